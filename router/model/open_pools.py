"""Nodes whose credit the kernel may divide, since nothing else than credit matters there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.model.links import IncomingLink, OutgoingLink
from amqpmesh.router.small_set import first

if TYPE_CHECKING:
    from amqpmesh.router.kernel import Pool
    from amqpmesh.router.model.node import Node

#: The most receivers, and the most senders, of a node whose credit the kernel divides: the router looks at all of them
#: when it lets it.
FEW: Final = 64

#: The most receivers of a multicast: what is held back leaves to all of them at once.
FEW_COPIES: Final = 256


def open_pool(node: Node, pool: Pool) -> None:
    """Let the kernel divide the credit of a node after a turn of the router, if its pool decides everything there.

    Whatever the router does to the node, it touches the node first, which closes the pool (`Context.touch`).
    Args: pool: of the node.
    """
    incoming, outgoing, borrowers, shares = node.incoming, node.outgoing, node.borrowers, node.shares
    if not (incoming or borrowers or shares) and (node.fast_route is None or node.is_internal):
        # Nobody sends there: neither links, nor anonymous senders, to whom the pool gives no credit.
        pool.is_plain = pool.goes_ahead = pool.is_open = False
        return
    is_multicast = node.is_multicast
    pool.is_plain = is_plain = (
        not (
            (is_multicast and (shares or borrowers or node.lane is not None))
            or node.copies
            or node.config.redeliver  # a message that is sent again uses credit of no sender
            or node.remote is not None
            or len(outgoing) > (FEW_COPIES if is_multicast else FEW)
            or len(incoming) + len(borrowers) + len(shares) > FEW
        )
        and not (incoming and not all(map(_is_plain_sender, incoming)))
        and all(map(_is_plain_receiver, outgoing))
        and not (borrowers and any(share.ingress.is_multicast for share in borrowers))
    )
    pool.goes_ahead = is_plain and bool(incoming) and len(shares) <= 1
    pool.is_open = is_plain and not (
        node.waiting.size or pool.held or node.draining or node.lenders or node.suspended or node.held
    )


def _is_plain_sender(incoming: IncomingLink) -> bool:
    # The router's own answers and requests have a memory of their own.
    return not (incoming.connection.own or incoming.endpoint.forgiven)


def _is_plain_receiver(outgoing: OutgoingLink) -> bool:
    return not (
        outgoing.connection.own
        or outgoing.retired
        or outgoing.skipped
        or outgoing.gone
        or outgoing.connection.unsettled_after_detach.get(outgoing.node)
    )


def node_of_pool(pool: Pool) -> Node | None:
    """Return the node of a pool; None: it has no sender."""
    sinks = pool.sinks
    owner = first(sinks).owner if sinks else None
    return None if owner is None else owner.node  # type: ignore[attr-defined]  # a link, or a share
