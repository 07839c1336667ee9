"""Settlement of deliveries that the kernel relays without a decision (§2.6.12)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.kernel.delivery_keys import _KEY
from amqpmesh.router.kernel.encoded_states import (
    _ACCEPTED,
    _LONG_STATE,
    _MODIFIED,
    _REJECTED,
    FAILED_STATE,
    is_terminal,
    state_kind,
)
from amqpmesh.router.kernel.fast_deliveries import _record, _settle_outgoing, expand
from amqpmesh.router.kernel.fast_duplicates import _note_outcome
from amqpmesh.router.kernel.fast_redelivery import _bury, _drop_kept, _put_off, _send_again
from amqpmesh.router.kernel.ledger import _AWAY, Delivery
from amqpmesh.router.kernel.outcome_steps import _SETTLE_RECEIVER, _SETTLE_SENDER, _TELL_RECEIVER, outcome_step

if TYPE_CHECKING:
    from amqpmesh.router.kernel.fast_deliveries import FastDelivery
    from amqpmesh.router.kernel.kept_messages import Keeper, KeptMessage
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
    if incoming.ended or fast.incoming_id == -1:
        if fast.sent_at >= 0 and router.recorder is not None:
            return False
        if router.noted and fast in router.noted and not _note_outcome(router, fast, state):
            return False
        if fast.outcome is None:
            outgoing.count_outcome(state)
            outgoing.count_latency(router.now - fast.arrived)
        _end_orphan(router, fast, settled)
        return True
    if router.kept and fast in router.kept:
        kept: KeptMessage = router.kept[fast]
        buried = kept.outcome is None and state_kind(state) == _REJECTED and _bury(router, fast)
        if not buried and (kept.outcome is not None or state_kind(state) != _ACCEPTED):
            if outgoing.ended:
                return _send_again(router, fast, state, settled)
            return _put_off(router, fast, state, settled)
        _drop_kept(router, fast)
    if incoming.selective and state_kind(state) != _ACCEPTED:
        return False
    if incoming.lane != outgoing.lane and state_kind(state) == _MODIFIED and state != FAILED_STATE:
        return False  # a neighbour must learn which receiver released it; towards others that must be removed
    if fast.second and (incoming.outstanding >= incoming.max_outstanding or len(state) > _LONG_STATE):
        return False
    if router.noted and fast in router.noted and not _note_outcome(router, fast, state):
        return False
    outgoing.count_outcome(state)
    incoming.count_outcome(state)
    fast.outcome_at = router.now
    outgoing.count_latency(router.now - fast.arrived)
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
        if fast.incoming_id == _AWAY:
            return True  # the sender hears it once it is back
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


def _drop_incoming(router: KernelRouter, fast: FastDelivery) -> None:
    """Forget the incoming delivery: its sender is gone, and its receiver is not."""
    link = fast.incoming
    if router.kept:
        _drop_kept(router, fast)
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
    _drop_incoming(router, fast)
    if not fast.outgoing_settled:
        _settle_outgoing(router, fast)
        if not (settled or fast.outgoing.ended):
            # Without a state: no sender has stated one.
            fast.outgoing.session.dispose(False, fast.outgoing_id, True, None)
    router.relays -= 1


def settle_put_off(router: KernelRouter) -> list[tuple[Delivery, bytes, bool]]:
    """Send messages again whose outcomes were put off.

    Once the router has to decide about one, it decides about all later ones of the same address: none overtakes it.
    Returns: the deliveries, outcomes and settlements about which the router has to decide.
    """
    put_off, router.put_off = router.put_off, []
    blocked: Keeper | None = None
    undecided: list[tuple[Delivery, bytes, bool]] = []
    for entry in put_off:
        fast: FastDelivery = entry[0]
        kept: KeptMessage = entry[1]
        assert kept.outcome is not None
        live = fast.outgoing.session.outgoing.find(fast.outgoing_id)
        if live is fast and fast in router.kept:
            if kept.keeper is not blocked and _send_again(router, fast, kept.outcome, kept.settled):
                continue
            blocked = kept.keeper
        if live is fast:
            if fast not in router.kept and _pass_outcome_up(router, fast, kept.outcome, kept.settled):
                continue  # the sender is gone
            delivery = expand(fast)[1]
        elif isinstance(live, Delivery):  # it was expanded meanwhile
            delivery = live
        else:
            continue
        delivery.remote_state = kept.outcome
        if kept.settled:
            delivery.remote_settled = True
        undecided.append((delivery, kept.outcome, kept.settled))
    return undecided
