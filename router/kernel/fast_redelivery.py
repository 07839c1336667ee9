"""Deliveries of addresses that redeliver: their messages are kept until an outcome, and sent again (§3.4.4, §3.4.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.kernel.encoded_states import _MODIFIED, _RELEASED, state_kind
from amqpmesh.router.kernel.fast_deliveries import _new_fast_delivery, _settle_outgoing
from amqpmesh.router.kernel.fast_route import _ALL, _ready_link
from amqpmesh.router.kernel.kept_messages import KeptMessage
from amqpmesh.router.kernel.transfer_accounting import _count_leg, _write_leg

if TYPE_CHECKING:
    from amqpmesh.router.kernel.fast_deliveries import FastDelivery
    from amqpmesh.router.kernel.fast_route import FastRoute
    from amqpmesh.router.kernel.frame_fields import TransferFrame
    from amqpmesh.router.kernel.kept_messages import Keeper
    from amqpmesh.router.kernel.link_endpoint import KernelLink
    from amqpmesh.router.kernel.router_state import KernelRouter

#: Deliveries that are relayed in the time in which one is sent again.
_WORK = 8


def _may_keep(router: KernelRouter, keeper: Keeper, link: KernelLink, frame: TransferFrame, size: int) -> bool:
    """Return whether the kernel can keep the message of a delivery that came whole. Args: size: octets of it."""
    return (
        not link.lane
        and not link.anonymous
        and not link.second
        and frame.message_format <= 0
        and router.recorder is None
        and size <= keeper.largest
        and not keeper.is_over()
    )


def _keep(router: KernelRouter, keeper: Keeper, fast: FastDelivery, payload: bytes) -> None:
    """Keep the message of a delivery that was sent."""
    router.kept[fast] = KeptMessage(keeper, payload)
    keeper.account.add(len(payload))


def _drop_kept(router: KernelRouter, fast: FastDelivery) -> None:
    """Stop keeping the message of a delivery, if it is kept."""
    kept: KeptMessage | None = router.kept.pop(fast, None)
    if kept is not None:
        kept.keeper.account.add(-len(kept.payload))
        if kept.outcome is not None:
            fast.outgoing.outstanding += 1


def _put_off(router: KernelRouter, fast: FastDelivery, state: bytes, settled: bool) -> bool:
    """Have a message sent again at the end of the batch, after an outcome other than `accepted`.

    Returns: False: the router has to decide.
    """
    kept: KeptMessage = router.kept[fast]
    if kept.outcome is not None:  # it cannot change any more
        kept.settled = kept.settled or settled
        return True
    kind = state_kind(state)
    if kind != _RELEASED and kind != _MODIFIED:
        return False
    kept.outcome = state
    kept.settled = settled
    out = fast.outgoing
    out.outstanding -= 1  # for the choice among receivers it is settled
    router.mark_dirty(out)
    router.put_off.append((fast, kept))
    router.needs_update = True
    out.session.wire.work -= _WORK
    return True


def _send_again(router: KernelRouter, fast: FastDelivery, state: bytes, settled: bool) -> bool:
    """Send a message again after an outcome that is not `accepted`, by any link that is ready.

    Args: state, settled: as its receiver said. Returns: False: the router has to decide: this was the last attempt, its
        next receiver is not any one that is ready, or it must wait.
    """
    kept: KeptMessage = router.kept[fast]
    keeper, incoming, outgoing = kept.keeper, fast.incoming, fast.outgoing
    route: FastRoute | None = incoming.fast_route
    kind = state_kind(state)
    if (
        (kind != _RELEASED and kind != _MODIFIED)
        or kept.attempts >= keeper.attempts
        or router.recorder is not None
        or route is None
        or route.keeper is not keeper
        or route.generation != router.generation
    ):
        return False
    out = _ready_link(route)
    payload: bytes | None = None if out is None else keeper.next_attempt(kept.payload, state)
    if out is None or payload is None:
        return False
    size = len(payload)
    if size > route.room or (out.max_message_size and size > out.max_message_size):
        return False
    if kept.outcome is not None:
        outgoing.outstanding += 1  # `_put_off` has taken it off
    _settle_outgoing(router, fast)
    outgoing.count_outcome(state)
    outgoing.count_latency(router.now - fast.arrived)
    if not (settled or outgoing.ended):
        outgoing.session.dispose(False, fast.outgoing_id, True, state)
    delivery_id = _write_leg(out, 0, False, -1, b"", payload)
    again = _new_fast_delivery(
        incoming, fast.incoming_id, fast.incoming_tag, False, fast.arrived, out, delivery_id, b""
    )
    again.number = out.last_tag
    again.size = size
    again.sent_at = -1.0
    again.header_info = fast.header_info
    again.counter = fast.counter
    out.outstanding += 1
    if route.turn:
        out.turn = route.turn
    _count_leg(router, out)
    del router.kept[fast]
    router.kept[again] = kept
    keeper.account.add(size - len(kept.payload))
    kept.payload = payload
    kept.attempts += 1
    if kind == _MODIFIED:
        kept.failed = kept.failed or keeper.is_failure(state)
    kept.outcome = None
    kept.settled = False
    return True


def _bury(router: KernelRouter, fast: FastDelivery) -> bool:
    """Send a copy of a rejected message to the dead-letter address, if there is one.

    The copy has no sender: it is settled once its receiver has stated an outcome.
    Returns: False: the router has to decide: the copy would wait there, or leave in another way than as it is.
    """
    kept: KeptMessage = router.kept[fast]
    keeper, incoming = kept.keeper, fast.incoming
    if keeper.find_grave is None:
        return True
    if incoming.selective or router.recorder is not None or (router.noted and fast in router.noted):
        return False
    route = _grave(router, keeper)
    out = None if route is None else _ready_link(route)
    payload: bytes | None = None if out is None else keeper.dead_letter(kept.payload)
    if route is None or out is None or payload is None:
        return False
    size = len(payload)
    if out.lane or size > route.room or (out.max_message_size and size > out.max_message_size):
        return False
    delivery_id = _write_leg(out, 0, False, -1, b"", payload)
    copy = _new_fast_delivery(incoming, -1, b"", False, router.now, out, delivery_id, b"", True)
    copy.tracked = False  # nobody has settled it
    copy.number = out.last_tag
    copy.size = size
    copy.sent_at = -1.0
    copy.header_info = copy.counter = 0
    out.outstanding += 1
    if route.turn:
        out.turn = route.turn
    _count_leg(router, out)
    router.relays += 1
    if router.relays > router.most_relays:
        router.most_relays = router.relays
    fast.outgoing.session.wire.work -= _WORK
    return True


def _grave(router: KernelRouter, keeper: Keeper) -> FastRoute | None:
    """Return the valid route of the dead-letter address; None: the router has to decide."""
    route: FastRoute | None = keeper.grave
    if route is None or keeper.grave_epoch != router.epoch or route.generation != router.generation:
        assert keeper.find_grave is not None
        route = keeper.grave = keeper.find_grave()
        keeper.grave_epoch = router.epoch
    if (
        route is None
        or route.generation != router.generation
        or route.order == _ALL
        or route.shares is not None
        or route.borrowed >= 0
        or route.keeper is not None
        or route.window is not None
        or route.traced
    ):
        return None
    return route
