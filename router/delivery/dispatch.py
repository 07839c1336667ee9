"""The choice of outgoing links for a delivery, at once or from the queue, and the settlement of what they write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.policies.distribution import choose
from amqpmesh.router.delivery import tracing
from amqpmesh.router.delivery.duplicates import choose_share, is_first
from amqpmesh.router.delivery.queueing import forwarded, unqueue, wait
from amqpmesh.router.delivery.sending import pump, start
from amqpmesh.router.delivery.settlement import expired, sender_gone, settle_written
from amqpmesh.router.incremental import LEGS_A_TURN
from amqpmesh.router.model.links import IncomingLink
from amqpmesh.router.model.node import InternalNode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amqpmesh.router.context import Context
    from amqpmesh.router.kernel import Relay
    from amqpmesh.router.model.credit_share import CreditShare
    from amqpmesh.router.model.links import OutgoingLink
    from amqpmesh.router.model.node import Node

#: The most octets of a lane's frame that are not payload: a `transfer` with its state, and the final address.
FRAME_HEAD: Final = 512

#: The most queued messages that are passed over, because the ready receivers have given them back for good, or because
#: the router of their message-ids has no credit.
MAX_ASIDE: Final = 100

#: The most receivers of a node that are all looked at, with credit or without. The fast route of a node with more is
#: not decided after each change, but after one more delivery.
FEW: Final = 64


def send_on(context: Context, relay: Relay, node: Node) -> bool:
    """Send a delivery to receivers that can take it now. Returns: False: there was none."""
    if node.shares and not node.is_multicast:
        share = _ready_share(context, node, relay)
        if share is None:
            return False
        _move_to_share(context, relay, share)
        return True
    links = _choose(context, node, relay)
    if links:
        _start(context, relay, node, links)
    return bool(links)


def _start(context: Context, relay: Relay, node: Node, links: list[OutgoingLink]) -> None:
    unsettled = start(context, relay, node, links)
    if unsettled is None:
        expired(context, relay)
    else:
        for leg, sent in unsettled:
            settle_written(context, leg, sent)


def send_more(context: Context, outgoing: OutgoingLink) -> None:
    """Write more of the current delivery of a link, and settle what happened to it."""
    leg = outgoing.current
    sent = pump(context, outgoing)
    if sent is not None:
        assert leg is not None, "only the current leg is settled by the caller"
        settle_written(context, leg, sent)


def resume_sending(context: Context, stalled: Iterable[OutgoingLink]) -> None:
    """Write to links again that were held up."""
    for outgoing in stalled:
        if not (outgoing.gone or context.termini.sources.go_on(outgoing)):
            send_more(context, outgoing)
            context.touch_outgoing(outgoing)


def dispatch(context: Context, node: Node) -> None:
    """Send queued deliveries of a node, as far as receivers can take them."""
    waiting = node.waiting
    aside: list[tuple[int, int, Relay]] = []
    by_share = bool(node.shares) and not node.is_multicast
    while (relay := waiting.first()) is not None:
        if context.legs_seen >= LEGS_A_TURN or context.sent >= context.most_sent:
            context.postpone(node)
            break
        if _is_abandoned(relay):
            assert relay.incoming is not None
            sender_gone(context, relay, relay.incoming)
            continue
        if by_share and (share := _ready_share(context, node, relay)) is not None:
            unqueue(context, relay)
            context.sent += 1
            _move_to_share(context, relay, share)
        elif not by_share and (links := _choose(context, node, relay)):
            unqueue(context, relay)
            context.sent += 1
            _start(context, relay, node, links)
        elif (relay.excluded is not None or (by_share and relay.message_id is not None)) and len(aside) < MAX_ASIDE:
            # No ready receiver may have it, but the next delivery may go to one of them.
            aside.append(waiting.set_aside())
        else:
            break
    waiting.put_back(aside)
    if node.fast_route is not None:
        node.fast_route.wanted = True  # more deliveries are likely to follow those that have waited


def _is_abandoned(relay: Relay) -> bool:
    """Tell whether the sender of an unsettled queued delivery is gone: then no receiver gets it."""
    incoming = relay.incoming  # its link is another one than the relay's source if the sender resumes it
    return incoming is not None and relay.complete and not relay.settled and incoming.link.ended


def _ready_share(context: Context, node: Node, relay: Relay) -> CreditShare | None:
    """Return the share of an ingress by which a delivery leaves now; None: it must wait."""
    if relay.message_id is not None:
        chosen = choose_share(relay, relay.message_id, node.shares, context.id)
        return chosen if chosen is not None and chosen.is_ready else None
    ready = [each for each in node.shares if each.is_ready and not each.is_excluded(relay.excluded)]
    return next(iter(choose(node.config.distribution, ready)), None)


def _move_to_share(context: Context, relay: Relay, share: CreditShare) -> None:
    """Move a delivery from its ingress to the node of a share: it leaves from there at once, or waits there."""
    forwarded(context, relay)
    if context.traces.relays:
        tracing.routed(context, relay, share)
    share.ingress.left_at = context.now
    share.take(context.now)
    relay.share = share
    relay.waiting = True
    relay.node = node = share.node
    context.touch(node)
    context.touch(share.ingress)
    if relay.message_id is not None:
        if any(each.is_excluded(relay.excluded) for each in share.ingress.shares):
            context.kernel.windows.moved += 1
        if not is_first(context, relay, node):
            return
    if node.waiting.size or not send_on(context, relay, node):
        wait(context, relay, node)


def _choose(context: Context, node: Node, relay: Relay) -> list[OutgoingLink]:
    """Return the outgoing links that take a delivery now; none: it must wait."""
    if node.is_multicast:
        return _choose_all(context, node)
    excluded = relay.excluded
    if isinstance(node, InternalNode) and node.lane is not None:
        return _choose_lane_link(context, node, relay)
    # Of equals, the first is chosen: among few, on the fast path, too, the one that was attached first.
    links = node.outgoing if len(node.outgoing) <= FEW else node.creditors
    ready = [each for each in links if each.is_ready and (excluded is None or each not in excluded)]
    if not ready:
        for each in node.creditors:
            each.stall()
    return list(choose(node.config.distribution, ready))


def _choose_lane_link(context: Context, lane_node: InternalNode, relay: Relay) -> list[OutgoingLink]:
    """Return the link of a lane that takes a delivery now; none: it must wait.

    A delivery of more than one frame goes by a bulk link of the lane, so that no small one waits for it. Later
    deliveries of the same sender do not overtake it, though another link is free.
    """
    source = relay.source
    behind = source.bulk.get(lane_node) if isinstance(source, IncomingLink) else None
    ready = [each for each in lane_node.creditors if each.is_ready]
    if behind is not None:
        ready = [each for each in ready if behind.outgoing is each]
    elif any(not _is_one_frame(relay, each) for each in lane_node.outgoing):
        ready = [each for each in ready if each.bulk]
        if not ready and all(each.busy or each.endpoint.session.is_closed for each in lane_node.outgoing if each.bulk):
            context.routes.need_bulk(lane_node)
    elif len(ready) > 1:
        ready.sort(key=lambda each: each.bulk)
    if not ready:
        for each in lane_node.creditors:
            each.stall()
    return ready[:1]


def room(outgoing: OutgoingLink) -> int:
    """Return the octets of payload that one frame of a link always has room for."""
    size = outgoing.endpoint.flow_state.session.wire.remote_max_frame_size
    return size - FRAME_HEAD if size >= 2 * FRAME_HEAD else size // 2


def _is_one_frame(relay: Relay, outgoing: OutgoingLink) -> bool:
    """Tell whether a delivery is complete and leaves in one frame."""
    return relay.complete and sum(len(chunk.data) for chunk in relay.chunks) <= room(outgoing)


def _choose_all(context: Context, node: Node) -> list[OutgoingLink]:
    """Return all receivers of a multicast that are not skipped; none: one of them is not ready, and it must wait."""
    awaited = node.awaited
    while awaited:
        last = awaited[-1]
        if last in node.outgoing and not (last.is_over or last.skipped or last.is_ready):
            last.stall()
            return []
        awaited.pop()
    ready = [each for each in node.creditors if each.is_ready]
    here: list[OutgoingLink] = []
    for share in node.shares:
        # This is a node of the mesh: the consumers of this router are at the node of the share.
        here = _choose_all(context, share.node) if share.is_ready else []
        if not here:
            return []
    if len(ready) == len(node.outgoing):
        return ready + here
    node.awaited = [each for each in node.outgoing if not (each.is_over or each.skipped or each.is_ready)]
    if node.awaited:
        for each in node.outgoing:
            each.stall()
        # Those of a multicast are watched, whatever it is that they lack. A link that is usable, or of another node,
        # would not be, and be touched again without end.
        for each in node.awaited if node.is_multicast else ():
            if (each.stalled_since is None or each.endpoint.flow_state.could_take) and not each.usable:
                context.touch_outgoing(each)
        return []
    for each in node.outgoing:
        if not each.is_ready:
            each.missed += 1
    return ready + here
