"""Settlement of deliveries that the kernel relays without a decision (§2.6.12)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.kernel.encoded_states import (
    _ACCEPTED,
    _LONG_STATE,
    _MODIFIED,
    FAILED_STATE,
    is_terminal,
    state_kind,
)
from amqpmesh.router.kernel.fast_deliveries import _record

if TYPE_CHECKING:
    from amqpmesh.router.kernel.fast_deliveries import Passage
    from amqpmesh.router.kernel.router_state import KernelRouter


def _receiver_said(router: KernelRouter, passage: Passage, state: bytes | None, settled: bool) -> bool:
    """Pass an outcome up, as it is; whether it was."""
    incoming, outgoing = passage.incoming, passage.outgoing
    if passage.outcome is not None and not incoming.over:
        # It is known, and cannot change (§2.6.12): only that it is settled may be new.
        if settled:
            _end_sent(router, passage)
        return True
    if state is None or not is_terminal(state):
        return False
    if incoming.over:
        if passage.left >= 0 and router.recorder is not None:
            return False
        if passage.outcome is None:
            outgoing.count_outcome(state)
        _end_orphan(router, passage, settled)
        return True
    if incoming.selective and state_kind(state) != _ACCEPTED:
        return False
    if incoming.lane != outgoing.lane and state_kind(state) == _MODIFIED and state != FAILED_STATE:
        return False  # neighbours are told who it was that gave it back
    if passage.second and (incoming.outstanding >= incoming.max_outstanding or len(state) > _LONG_STATE):
        return False
    outgoing.count_outcome(state)
    incoming.count_outcome(state)
    passage.said = router.now
    if settled:
        _end_sent(router, passage)
    if passage.second:
        passage.outcome = state
        incoming.outstanding += 1
        incoming.session.dispose(True, passage.incoming_id, False, state)
        return True
    if not settled:
        _end_sent(router, passage)
        outgoing.session.dispose(False, passage.outgoing_id, True, state)
    _end_received(router, passage, state)
    incoming.session.dispose(True, passage.incoming_id, True, state)
    return True


def _sender_settled(router: KernelRouter, passage: Passage, state: bytes | None) -> None:
    """The sender has heard the outcome, and settles: so may the receiver (mode second, §2.6.12)."""
    passage.incoming.outstanding -= 1
    assert passage.outcome is not None
    _end_received(router, passage, passage.outcome)
    if not passage.over:
        _end_sent(router, passage)
        if not passage.outgoing.over:
            passage.outgoing.session.dispose(False, passage.outgoing_id, True, state)


def _end_received(router: KernelRouter, passage: Passage, state: bytes) -> None:
    """The incoming delivery is settled here, and the passage with it."""
    link = passage.incoming
    if passage.left >= 0 and router.recorder is not None:
        _record(
            router,
            router.recorder,
            link,
            passage.outgoing,
            passage.incoming_tag,
            passage.outgoing_tag,
            passage.counter,
            passage.size,
            passage.arrived,
            passage.left,
            passage.said,
            state,
            passage.told,
        )
    link.session.incoming.remove(passage.incoming_id)
    del link.unsettled[passage.incoming_tag]
    router.relays -= 1
    if link.remote_handle == -1:  # it is detached, and the last of its deliveries may be settled now
        router.touch(link)
        router.due = True


def _end_sent(router: KernelRouter, passage: Passage) -> None:
    """The outgoing delivery is settled here."""
    link = passage.outgoing
    if passage.over:
        return
    passage.over = True
    link.session.outgoing.remove(passage.outgoing_id)
    if link.lane and not passage.outgoing_tag:
        del link.passing[passage.incoming_tag]
    if link.outstanding >= link.max_outstanding:
        router.touch(link)
        router.due = True
    link.outstanding -= 1


def _leave_sender(passage: Passage) -> None:
    """Its sender is gone: it lives on for its receiver alone."""
    link = passage.incoming
    if passage.incoming_id != -1:
        if link.session.incoming.find(passage.incoming_id) is passage:
            link.session.incoming.remove(passage.incoming_id)
        if link.unsettled.get(passage.incoming_tag) is passage:
            del link.unsettled[passage.incoming_tag]
        passage.incoming_id = -1


def _end_orphan(router: KernelRouter, passage: Passage, settled: bool) -> None:
    """The receiver has said its outcome, and the sender is gone. Args: settled: the receiver has settled it."""
    _leave_sender(passage)
    if not passage.over:
        _end_sent(router, passage)
        if not (settled or passage.outgoing.over):
            # There is no state of a sender's.
            passage.outgoing.session.dispose(False, passage.outgoing_id, True, None)
    router.relays -= 1
