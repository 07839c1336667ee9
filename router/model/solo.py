"""Credit of a node with one sender and one receiver, which the kernel grants along its fast route."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router import kernel
from amqpmesh.router.credit.pool import Pool
from amqpmesh.router.credit.solo import give, give_settings, is_calm, take
from amqpmesh.router.model.links import IncomingLink, OutgoingLink
from amqpmesh.router.small_set import first

if TYPE_CHECKING:
    from amqpmesh.router.model.node import Node


def set_solo(route: kernel.FastRoute, node: Node, credit_wait: float) -> None:
    """Let the kernel grant credit along the route of a node, if the node has one sender and one receiver.

    Args: credit_wait: seconds, from which a wait for credit is recorded.
    """
    if len(node.incoming) != 1 or len(node.outgoing) != 1 or node.borrowers:
        return
    incoming, outgoing = first(node.incoming), first(node.outgoing)
    if incoming.connection.own or outgoing.connection.own:
        return  # the router's own answers and requests have a memory of their own
    if incoming.lane is None and outgoing.lane is None and not incoming.endpoint.forgiven:
        account = incoming.connection.account
        route.solo = kernel.SoloPool(incoming.endpoint.flow_state, outgoing.endpoint.flow_state, account)
        give_settings(node.pool, route.solo)
        route.solo.credit_wait = credit_wait
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
        and is_calm(pool, sink, solo.receiver.link_credit)
    ):
        outgoing = solo.receiver.record
        assert isinstance(outgoing, OutgoingLink)
        solo.sender_dry = -1.0 if incoming.zero_credit_since is None else incoming.zero_credit_since
        solo.receiver_dry = -1.0 if outgoing.zero_credit_since is None else outgoing.zero_credit_since
        give(pool, sink, solo)


def take_solo(incoming: IncomingLink, solo: kernel.SoloPool, count: int) -> None:
    """Take the numbers of a pool back. Args: count: deliveries of the link that the kernel has relayed."""
    link, pool = solo.sender, incoming.pool
    assert isinstance(pool, Pool)
    if solo.raised:
        incoming.endpoint.note_limit()
    out = solo.receiver
    outgoing = out.record
    assert isinstance(outgoing, OutgoingLink)
    incoming.zero_credit_since = _dry_since(link, solo.sender_dry)
    outgoing.zero_credit_since = _dry_since(out, solo.receiver_dry)
    take(pool, incoming.credit_sink, solo, count, link.last_at)
    assert outgoing.credit_source is not None
    pool.set_usable(outgoing.credit_source, outgoing.usable, link.last_at)


def _dry_since(link: kernel.KernelLink, since: float) -> float | None:
    """Return since when a link has had no credit; None: it has some. Args: since: as the kernel knows it."""
    if since >= 0:
        return since
    return None if link.link_credit else link.last_at  # the last delivery used it up
