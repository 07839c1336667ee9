"""Links of peers to nodes of another tenant: what the peer calls the node, and why it may use it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from amqpmesh.router.model.links import IncomingLink, OutgoingLink

if TYPE_CHECKING:
    from amqpmesh.policies.exports import Crossing


class Foreign(NamedTuple):
    """The node of a link, as its peer sees it."""

    address: str
    """The address that the peer uses, after aliases."""
    crossing: Crossing | None
    """The lines of the policy; None: the node is a dynamic one, and the peer answers there."""


class ForeignIncomingLink(IncomingLink):
    """A sender's link to a node of another tenant."""

    __slots__ = ("foreign",)

    foreign: Foreign | None


class ForeignOutgoingLink(OutgoingLink):
    """A receiver's link to a node of another tenant."""

    __slots__ = ("foreign",)

    foreign: Foreign | None


def name_of(link: IncomingLink | OutgoingLink) -> str | None:
    """Return the address of a link, as its peer may see it; None: its messages name their own."""
    if link.foreign is not None:
        return link.foreign.address
    return None if link.node is None else link.node.name


def tenant_of(link: IncomingLink | OutgoingLink) -> str | None:
    """Return the tenant among whose names that of a link is; None: as `name_of`."""
    if link.foreign is not None:
        return link.connection.peer.tenant
    return None if link.node is None else link.node.tenant
