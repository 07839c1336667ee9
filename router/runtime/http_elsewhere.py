"""Requests of HTTP's clients to other routers of the mesh: as those of clients of AMQP, to their `$management`."""

from __future__ import annotations

import secrets
from collections import Counter
from typing import TYPE_CHECKING, Final

import trio

from amqpmesh.router.amqp.errors import AmqpMeshError
from amqpmesh.router.http.requests import NOT_FOUND, UNAVAILABLE, HttpError
from amqpmesh.router.management.service import ADDRESS

if TYPE_CHECKING:
    from amqpmesh.router.core import Core
    from amqpmesh.router.http.visitors import Visitor
    from amqpmesh.router.message.content import Message
    from amqpmesh.router.runtime.management_node import ManagementNode
    from amqpmesh.topology.vouching import Client

PATIENCE: Final = 3.0
"""Seconds that another router has to answer."""

AT_ONCE: Final = 2
"""Requests of the clients of a tenant, or of operators, that wait for other routers at a time: those for this router
must not wait for one that is silent.
"""


class Elsewhere:
    """The management nodes of other routers, asked for clients of this one. It vouches for them, if it can."""

    def __init__(self, core: Core, management: ManagementNode) -> None:
        self._core = core
        self._management = management
        #: By the key of the tenant, those that have any: others learn nothing of them.
        self._waiting = Counter[str]()

    async def ask(self, router: str, request: Message, visitor: Visitor) -> Message:
        """Return the answer of another router. Raises: HttpError: there is none."""
        context, mesh, tenant = self._core.context, self._core.mesh, visitor.tenant
        if mesh is None or router == context.id or mesh.topology.distance(router) is None:
            raise HttpError(NOT_FOUND, "there is no path to that router")
        if self._waiting[tenant] >= AT_ONCE:
            raise HttpError(UNAVAILABLE, "too many requests wait for other routers", ("Retry-After", "1"))
        name = f"http-{secrets.token_hex(8)}"
        context.on_behalf[name] = _client(visitor)
        self._waiting[tenant] += 1
        try:
            with trio.move_on_after(PATIENCE):
                async with self._management.requester_at(name, f"{ADDRESS}@{router}", tenant) as there:
                    return await there.request(request)
        except AmqpMeshError:
            raise HttpError(UNAVAILABLE, "that router refuses, or cannot be reached") from None
        finally:
            self._waiting[tenant] -= 1
            if not self._waiting[tenant]:
                del self._waiting[tenant]
            del context.on_behalf[name]
        raise HttpError(UNAVAILABLE, "that router does not answer")


def _client(visitor: Visitor) -> Client:
    """Return what this router says about a client."""
    from amqpmesh.topology.vouching import Client  # a router of no mesh does not load the topology

    fields = visitor.fields
    user, host, groups = fields.get("user"), fields.get("peer"), fields.get("groups")
    return Client(
        tenant=visitor.tenant,
        user=user if isinstance(user, str) else None,
        groups=tuple(groups) if isinstance(groups, tuple | list) else None,
        manage=visitor.manages,
        host=str(host or ""),
        container_id="",
    )
