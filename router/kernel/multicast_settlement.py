"""Settlement of multicast deliveries that the kernel relays without a decision (§2.6.12, §3.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.kernel.encoded_states import (
    _ACCEPTED,
    _LONG_STATE,
    _MODIFIED,
    _REJECTED,
    is_terminal,
    state_kind,
)
from amqpmesh.router.kernel.fast_deliveries import _record
from amqpmesh.router.kernel.fast_multicast import _free_tag
from amqpmesh.router.kernel.head_sections import _OURS
from amqpmesh.router.kernel.ledger import _AWAY

if TYPE_CHECKING:
    from amqpmesh.router.kernel.fast_multicast import FastLeg, FastMulticast
    from amqpmesh.router.kernel.link_endpoint import KernelLink
    from amqpmesh.router.kernel.router_state import KernelRouter

#: Legs that are looked at in the time of one delivery, if nothing is written for them.
_LEGS_AT_ONCE: Final = 64


def _take_outcome(router: KernelRouter, leg: FastLeg, state: bytes | None, settled: bool) -> bool:
    """Take the outcome of a receiver, and tell the sender the strongest one once all receivers have stated theirs.

    A receiver that waits for the settlement gets it when the sender is told, or has settled (mode second), with its own
    outcome. Returns: False: the router has to decide.
    """
    multicast, outgoing = leg.multicast, leg.outgoing
    if leg.outcome is not None:
        if settled:
            _settle_leg(router, leg)
            _end_if_done(router, multicast)
        return True
    if state is None or not is_terminal(state) or len(state) > _LONG_STATE:
        return False
    incoming = multicast.incoming
    strength = _strength(state_kind(state))
    orphaned = multicast.incoming_id == -1 or incoming.ended
    last = multicast.unanswered == 1
    if last and not orphaned:
        if multicast.second and incoming.outstanding >= incoming.max_outstanding:
            return False
        strongest = state if strength > multicast.strength else multicast.strongest
        if not _may_be_told(incoming, strongest):
            return False
    outgoing.count_outcome(state)
    outgoing.count_latency(router.now - multicast.arrived)
    leg.outcome = state
    leg.outcome_at = router.now
    multicast.unanswered -= 1
    if strength > multicast.strength:
        multicast.strength = strength
        multicast.strongest = state
    if settled:
        _settle_leg(router, leg)
    if orphaned:
        if not leg.settled:
            _settle_receiver(router, leg, None)
        _end_if_done(router, multicast)
    elif last:
        if not multicast.second:
            outgoing.session.wire.work -= _cost(multicast)
        _answer(router, multicast)
    return True


def _may_be_told(incoming: KernelLink, outcome: bytes | None) -> bool:
    """Return whether the sender may be told an outcome as it is."""
    kind = state_kind(outcome)
    if incoming.selective and kind != _ACCEPTED:
        return False
    # A client does not see what routers tell each other of the receiver that released its message.
    return kind != _MODIFIED or incoming.lane or outcome is None or outcome.find(_OURS) < 0


def _strength(kind: int) -> int:
    """Return the strength of an outcome, as in `Relay.strongest`. Args: kind: of a terminal state."""
    return 3 if kind == _REJECTED else 2 if kind == _ACCEPTED else 1 if kind == _MODIFIED else 0


def _answer(router: KernelRouter, multicast: FastMulticast) -> None:
    """Tell the sender the strongest outcome. All legs have one."""
    incoming = multicast.incoming
    outcome = multicast.strongest
    incoming.count_outcome(outcome)
    if multicast.incoming_id != _AWAY:
        incoming.session.dispose(True, multicast.incoming_id, not multicast.second, outcome)
    if multicast.second:
        multicast.answered = True
        incoming.outstanding += 1
        return
    _forget_incoming(multicast)
    if multicast.open:
        _settle_open(router, multicast, False, None)
    _end_if_done(router, multicast)


def _settle_multicast(router: KernelRouter, multicast: FastMulticast, state: bytes | None) -> None:
    """Settle a multicast whose sender has settled it after the outcome (mode second, §2.6.12).

    Args: state: the sender's; the only receiver gets it, while several get each their own outcome.
    """
    incoming = multicast.incoming
    incoming.outstanding -= 1
    incoming.session.wire.work -= _cost(multicast)
    _forget_incoming(multicast)
    _settle_open(router, multicast, len(multicast.legs) == 1, state)
    _end_if_done(router, multicast)


def _cost(multicast: FastMulticast) -> int:
    """Return how many deliveries are handled in the time in which the open legs are settled."""
    return multicast.open + len(multicast.legs) // _LEGS_AT_ONCE


def _settle_open(router: KernelRouter, multicast: FastMulticast, alike: bool, state: bytes | None) -> None:
    """Settle all legs that have an outcome and are not settled.

    Args: alike: with `state`; else each with its own outcome.
    """
    for leg in multicast.legs:
        if not leg.settled and leg.outcome is not None:
            _settle_receiver(router, leg, state if alike else leg.outcome)


def _settle_receiver(router: KernelRouter, leg: FastLeg, state: bytes | None) -> None:
    """Settle a leg, and tell its receiver, which waits for it. Args: state: the one that the receiver gets."""
    outgoing = leg.outgoing
    _settle_leg(router, leg)
    if not outgoing.ended:
        outgoing.session.dispose(False, leg.outgoing_id, True, state)


def _settle_leg(router: KernelRouter, leg: FastLeg) -> None:
    """Settle a leg, which is not settled."""
    outgoing = leg.outgoing
    leg.settled = True
    leg.multicast.open -= 1
    outgoing.session.outgoing.remove(leg.outgoing_id)
    if outgoing.lane:
        _free_tag(leg)
    if outgoing.keeps is not None:
        outgoing.keeps.drop(b"%x" % leg.number)
    if outgoing.outstanding >= outgoing.max_outstanding:
        router.mark_dirty(outgoing)
        router.needs_update = True
    outgoing.outstanding -= 1


def _forget_incoming(multicast: FastMulticast) -> None:
    """Forget the incoming delivery: it is settled, or its sender is gone."""
    link = multicast.incoming
    if multicast.incoming_id != -1:
        if link.session.incoming.find(multicast.incoming_id) is multicast:
            link.session.incoming.remove(multicast.incoming_id)
        if link.unsettled.get(multicast.incoming_tag) is multicast:
            del link.unsettled[multicast.incoming_tag]
        multicast.incoming_id = -1


def _orphan(router: KernelRouter, multicast: FastMulticast) -> None:
    """Forget the sender of a multicast, which is gone. Legs without an outcome live until they have one."""
    _forget_incoming(multicast)
    # Without a state: no sender has stated one.
    _settle_open(router, multicast, True, None)
    _end_if_done(router, multicast)


def _end_if_done(router: KernelRouter, multicast: FastMulticast) -> None:
    """End a multicast if all its legs are settled, and its incoming side is, too, or its sender is gone."""
    link = multicast.incoming
    if multicast.open or not (multicast.incoming_id == -1 or link.ended):
        return
    _forget_incoming(multicast)
    first: FastLeg = multicast.legs[0]
    if first.sent_at >= 0 and router.recorder is not None:
        _record_legs(router, multicast)
    multicast.legs = []  # breaks the reference cycle
    router.relays -= 1
    if link.remote_handle == -1:  # the link is detached, and this may have been its last delivery
        router.mark_dirty(link)
        router.needs_update = True


def _record_legs(router: KernelRouter, multicast: FastMulticast) -> None:
    """Record a multicast that has ended: one hop record for each leg."""
    recorder = router.recorder
    assert recorder is not None
    link = multicast.incoming
    if link.ended and recorder.on_ended is not None:
        recorder.on_ended(link.record)
    for leg in multicast.legs:
        if leg.outgoing.ended and recorder.on_ended is not None:
            recorder.on_ended(leg.outgoing.record)
        assert leg.outcome is not None
        _record(
            router,
            recorder,
            link,
            leg.outgoing,
            multicast.incoming_tag,
            multicast.key,
            multicast.counter,
            multicast.size,
            multicast.arrived,
            leg.sent_at,
            leg.outcome_at,
            leg.outcome,
            multicast.header_info,
        )
