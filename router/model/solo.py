"""Credit of a node with one sender and few receivers, which the kernel grants along its fast route."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router import kernel
from amqpmesh.router.credit.pool import Pool
from amqpmesh.router.credit.solo import give, give_settings, is_calm, take
from amqpmesh.router.model.links import IncomingLink, OutgoingLink
from amqpmesh.router.small_set import first

if TYPE_CHECKING:
    from amqpmesh.router.model.node import Node

#: The most receivers whose credit the kernel looks at after a batch.
FEW: Final = 8


def set_solo(route: kernel.FastRoute, node: Node, credit_wait: float) -> None:
    """Let the kernel grant credit along the route of a node, if the node has one sender and few receivers.

    Args: credit_wait: seconds, from which a wait for credit is recorded.
    """
    if len(node.incoming) != 1 or not 1 <= len(node.outgoing) <= FEW or node.borrowers:
        return
    incoming = first(node.incoming)
    # The router's own answers and requests have a memory of their own.
    if incoming.connection.own or incoming.lane is not None or incoming.endpoint.forgiven:
        return
    if any(each.connection.own or each.lane is not None or each.retired for each in node.outgoing):
        return
    receivers = [each.endpoint.flow_state for each in node.outgoing]
    solo = route.solo = kernel.SoloPool(incoming.endpoint.flow_state, receivers, incoming.connection.account)
    give_settings(node.pool, solo)
    solo.credit_wait = credit_wait
    give_solo(node)


def give_solo(node: Node) -> None:
    """Give the kernel the numbers of a pool again, after a turn, if the pool is calm."""
    route = node.fast_route
    solo = route.solo if route is not None else None
    if solo is None:
        return
    incoming = solo.sender.record
    assert isinstance(incoming, IncomingLink)
    link, sink, pool = solo.sender, incoming.credit_sink, node.pool
    solo.calm = False
    if (
        incoming.endpoint.is_attached
        and not link.drain
        and link.link_credit == sink.granted
        and link.delivery_count == sink.delivery_count
        and link.granted_limit == sink.limit
        and is_calm(pool, sink, sum(each.link_credit for each in solo.receivers))
    ):
        solo.sender_dry = _in_kernel(incoming.zero_credit_since)
        solo.receivers_dry = [_in_kernel(_outgoing(each).zero_credit_since) for each in solo.receivers]
        give(pool, sink, solo)


def take_solo(incoming: IncomingLink, solo: kernel.SoloPool, count: int) -> None:
    """Take the numbers of a pool back. Args: count: deliveries of the link that the kernel has relayed."""
    link, pool = solo.sender, incoming.pool
    assert isinstance(pool, Pool)
    if solo.raised:
        incoming.endpoint.note_limit()
    incoming.zero_credit_since = _dry_since(link, solo.sender_dry)
    take(pool, incoming.credit_sink, solo, count, link.last_at)
    for out, dry in zip(solo.receivers, solo.receivers_dry, strict=True):
        outgoing = _outgoing(out)
        outgoing.zero_credit_since = _dry_since(out, dry)
        assert outgoing.credit_source is not None
        pool.set_usable(outgoing.credit_source, outgoing.usable, link.last_at)


def _outgoing(link: kernel.KernelLink) -> OutgoingLink:
    """Return the router's record of a receiver."""
    outgoing = link.record
    assert isinstance(outgoing, OutgoingLink)
    return outgoing


def _in_kernel(since: float | None) -> float:
    """Return a time as the kernel has it: negative if there is none."""
    return -1.0 if since is None else since


def _dry_since(link: kernel.KernelLink, since: float) -> float | None:
    """Return since when a link has had no credit; None: it has some. Args: since: as the kernel knows it."""
    if since >= 0:
        return since
    return None if link.link_credit else link.last_at  # the last delivery used it up
