"""Meshes with several tenants: each client is of the tenant that its listener names."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from amqpmesh.router.amqp.standard.messaging import Source, Target
from amqpmesh.router.config.file import ListenerConfig
from amqpmesh.router.config.policy_file import parse_policy
from tests.support.worlds.meshes import World
from tests.support.worlds.network import Client

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amqpmesh.policies.policy import Policy
    from amqpmesh.router.amqp.link import Link
    from amqpmesh.router.config.file import AddressConfig

#: A group with all rights within its tenant.
ALL = 'send = ["#"]\nreceive = ["#"]\nmay = ["dynamic", "anonymous", "copy", "container"]'


def policy(**tenants: str) -> Policy:
    """Return a policy. Args: tenants: by name, further keys of each, such as its exports."""
    text = "".join(
        f'[[tenant]]\nname = "{name}"\nmatch = [{{ listener = "{name}" }}]\n{keys}\n'
        f'[[group]]\ntenant = "{name}"\nname = "all"\n{ALL}\n'
        for name, keys in tenants.items()
    )
    return parse_policy(tomllib.loads(text), Path("policy.toml"))


class Tenants:
    """A mesh whose routers have one policy."""

    def __init__(
        self,
        routers: str = "AB",
        edges: Iterable[tuple[str, str]] = (("A", "B"),),
        *addresses: AddressConfig,
        own: dict[str, AddressConfig] | None = None,
        **tenants: str,
    ) -> None:
        self.mesh = World(routers, edges, *addresses, own=own)
        self.change(policy(**tenants))

    def change(self, changed: Policy) -> None:
        """Put a policy in force at each router."""
        for node in self.mesh.nodes.values():
            node.core.set_policy(changed, node.now)
        self.mesh.run()

    def client(self, tenant: str, router: str = "A", container_id: str | None = None) -> Client:
        """Connect a client of a tenant to a router."""
        node = self.mesh[router]
        node.listener = ListenerConfig(url="amqp://127.0.0.1:0", name=tenant, idle_time_out=0.0)
        client = node.client(container_id or f"{tenant}-{router}-{len(node.clients)}")
        assert client.record.peer.tenant == tenant.removeprefix("operator")
        return client

    def client_inside(self, router: str, container_id: str) -> Client:
        """Connect a client of the program around a router, which no policy rules."""
        node = self.mesh[router]
        client = Client(node, container_id, max_frame_size=4096, window=256, idle_time_out=None)
        client.record.inside = True
        node.clients.append(client)
        self.mesh.run()
        return client

    def rest(self) -> None:
        """Let receivers become known at all routers, and lanes come."""
        self.mesh.advance(0.5)


def made(link: Link) -> str:
    """Return the name of the dynamic node that a link has made."""
    remote = link.remote
    assert remote is not None
    terminus = remote.source if isinstance(remote.source, Source) and remote.source.dynamic else remote.target
    assert isinstance(terminus, Source | Target)
    assert terminus.address is not None
    return terminus.address
