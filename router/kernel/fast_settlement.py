"""Settlement of deliveries that the kernel relays without a decision (§2.6.12)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.kernel.delivery_keys import _KEY
from amqpmesh.router.kernel.encoded_states import (
    _ACCEPTED,
    _LONG_STATE,
    _MODIFIED,
    FAILED_STATE,
    is_terminal,
    state_kind,
)
from amqpmesh.router.kernel.fast_deliveries import _record
from amqpmesh.router.kernel.outcome_steps import _SETTLE_RECEIVER, _SETTLE_SENDER, _TELL_RECEIVER, outcome_step

if TYPE_CHECKING:
    from amqpmesh.router.kernel.fast_deliveries import FastDelivery
    from amqpmesh.router.kernel.router_state import KernelRouter


def _pass_outcome_up(router: KernelRouter, fast: FastDelivery, state: bytes | None, settled: bool) -> bool:
    """Pass a receiver's outcome to the sender, unchanged. Returns: False: the router has to decide."""
    incoming, outgoing = fast.incoming, fast.outgoing
    if fast.outcome is not None and not incoming.ended:
        if outcome_step(fast.second, settled, True) & _SETTLE_RECEIVER:
            _settle_outgoing(router, fast)
        return True
    if state is None or not is_terminal(state):
        return False
    if incoming.ended:
        if fast.sent_at >= 0 and router.recorder is not None:
            return False
        if fast.outcome is None:
            outgoing.count_outcome(state)
        _end_orphan(router, fast, settled)
        return True
    if incoming.selective and state_kind(state) != _ACCEPTED:
        return False
    if incoming.lane != outgoing.lane and state_kind(state) == _MODIFIED and state != FAILED_STATE:
        return False  # a neighbour must learn which receiver released it; towards others that must be removed
    if fast.second and (incoming.outstanding >= incoming.max_outstanding or len(state) > _LONG_STATE):
        return False
    outgoing.count_outcome(state)
    incoming.count_outcome(state)
    fast.outcome_at = router.now
    step = outcome_step(fast.second, settled, False)
    if step & _SETTLE_RECEIVER:
        _settle_outgoing(router, fast)
    if step & _TELL_RECEIVER:
        outgoing.session.dispose(False, fast.outgoing_id, True, state)
    if step & _SETTLE_SENDER:
        _settle_incoming(router, fast, state)
    else:
        fast.outcome = state
        incoming.outstanding += 1
    incoming.session.dispose(True, fast.incoming_id, step & _SETTLE_SENDER != 0, state)
    return True


def _pass_settlement_down(router: KernelRouter, fast: FastDelivery, state: bytes | None) -> None:
    """Settle a delivery whose sender has settled after the outcome (mode second, §2.6.12).

    Args: state: the sender's; the receiver gets it, if it waits for the settlement.
    """
    fast.incoming.outstanding -= 1
    assert fast.outcome is not None
    _settle_incoming(router, fast, fast.outcome)
    if not fast.outgoing_settled:
        _settle_outgoing(router, fast)
        if not fast.outgoing.ended:
            fast.outgoing.session.dispose(False, fast.outgoing_id, True, state)


def _settle_incoming(router: KernelRouter, fast: FastDelivery, state: bytes) -> None:
    """Settle the incoming delivery, and end the fast delivery. Args: state: its outcome."""
    link = fast.incoming
    if fast.sent_at >= 0 and router.recorder is not None:
        _record(
            router,
            router.recorder,
            link,
            fast.outgoing,
            fast.incoming_tag,
            fast.outgoing_tag[: _KEY + 1],
            fast.counter,
            fast.size,
            fast.arrived,
            fast.sent_at,
            fast.outcome_at,
            state,
            fast.header_info,
        )
    link.session.incoming.remove(fast.incoming_id)
    del link.unsettled[fast.incoming_tag]
    router.relays -= 1
    if link.remote_handle == -1:  # the link is detached, and this may have been its last delivery
        router.mark_dirty(link)
        router.needs_update = True


def _settle_outgoing(router: KernelRouter, fast: FastDelivery) -> None:
    """Settle the outgoing delivery, unless it is settled."""
    link = fast.outgoing
    if not fast.outgoing_settled:
        fast.outgoing_settled = True
        link.session.outgoing.remove(fast.outgoing_id)
        if link.lane and not fast.outgoing_tag:
            del link.lane_to_lane[fast.incoming_tag]
        if link.outstanding >= link.max_outstanding:
            router.mark_dirty(link)
            router.needs_update = True
        link.outstanding -= 1


def _drop_incoming(fast: FastDelivery) -> None:
    """Forget the incoming delivery: its sender is gone, and its receiver is not."""
    link = fast.incoming
    if fast.incoming_id != -1:
        if link.session.incoming.find(fast.incoming_id) is fast:
            link.session.incoming.remove(fast.incoming_id)
        if link.unsettled.get(fast.incoming_tag) is fast:
            del link.unsettled[fast.incoming_tag]
        fast.incoming_id = -1


def _end_orphan(router: KernelRouter, fast: FastDelivery, settled: bool) -> None:
    """End a delivery whose sender is gone, once its receiver has stated an outcome.

    Args: settled: the receiver has settled it.
    """
    _drop_incoming(fast)
    if not fast.outgoing_settled:
        _settle_outgoing(router, fast)
        if not (settled or fast.outgoing.ended):
            # Without a state: no sender has stated one.
            fast.outgoing.session.dispose(False, fast.outgoing_id, True, None)
    router.relays -= 1
