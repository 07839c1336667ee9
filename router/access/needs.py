"""The rights that an address needs, each with the line of the policy that gives it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.policies.access import PUBLISHED, is_published, is_reserved
from amqpmesh.policies.exports import Use
from amqpmesh.policies.groups import May
from amqpmesh.policies.managing import Manage
from amqpmesh.router.address_syntax import DYNAMIC, without_secret

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqpmesh.policies.exports import Crossing
    from amqpmesh.policies.rights import Grant, Rights


EXPORT: Final = "export"
"""The right that an imported address needs beside those of the peer's groups."""


def is_of_dynamic_node(name: str) -> bool:
    """Tell whether a name is of a dynamic node (§3.5.3)."""
    return name.startswith(f"{DYNAMIC}/")


def right_to(name: str, *, sends: bool) -> str:
    """Return the right to send to an address, or to receive from it, for the log."""
    return f"{'send to' if sends else 'receive from'} {without_secret(name)}"


def needed(
    rights: Rights, name: str, container: str | None, *, sends: bool, is_ours: bool
) -> Iterator[tuple[str, Grant | Crossing | None]]:
    """Return the rights that a peer needs to use an address, each with its line; None: the peer does not have it.

    The groups of the peer judge the name that the peer uses; for an imported one, the export judges the use, too.

    Args: name, container: of the address, after aliases. An empty name: it stands for all nodes of the container.
        is_ours: the container is none, or a router of the mesh.
    """
    wanted = right_to(name, sends=sends)
    if is_of_dynamic_node(name):
        # Its 128 random bits are the permission at a router; its maker decides which peers may receive from it. Another
        # container is not to be reached by an invented name.
        if not is_ours:
            yield May.CONTAINER, rights.may(May.CONTAINER)
    elif is_published(name):
        yield wanted, None if sends else _telemetry(rights, name)
    elif is_reserved(name):
        # Another router learns which tenant a request comes from, and no types of entities.
        yield "manage: read", rights.management if container is None else rights.manage(Manage.READ)
        if not sends:
            yield wanted, None
    else:
        if container is not None:
            yield May.CONTAINER, rights.may(May.CONTAINER)
        if name:
            yield wanted, rights.send(name) if sends else rights.receive(name)
            exports = rights.policy.exports
            imported = exports.imported(rights.tenant_key, name) if is_ours else None
            if imported is not None:
                yield EXPORT, exports.crossing(imported, name, Use.SEND if sends else Use.RECEIVE)
        else:
            yield May.ANONYMOUS, rights.may(May.ANONYMOUS)


def _telemetry(rights: Rights, name: str) -> Grant | None:
    """Return the line by which a peer receives what routers record; None: it may not.

    The operator's peers, or without tenants all, may receive everything; those of a tenant only its own part.
    """
    tenant = rights.tenant_key
    return rights.may(May.TELEMETRY) if not tenant or name == f"{PUBLISHED}/{tenant}" else None
