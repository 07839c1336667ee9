"""Incoming flows, applied to a session and to a link that we send on (§2.5.6, §2.6.7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.kernel.serial import _HALF, _MASK, serial_distance

if TYPE_CHECKING:
    from amqpmesh.router.kernel.frame_fields import FlowFrame
    from amqpmesh.router.kernel.link_endpoint import KernelLink
    from amqpmesh.router.kernel.session_endpoint import KernelSession

#: Effects of a `flow`, as bits. This one: the peer counts transfers that we never sent, an error of the session.
NEVER_SENT: Final = 1
#: The session's window was closed, and is open now.
WINDOW_OPENED: Final = 2
#: The peer has skipped transfer-ids.
IDS_SKIPPED: Final = 4
#: The peer asks for our flow state.
ECHO: Final = 8
#: The link has more credit, or less.
CREDIT_RAISED: Final = 16
CREDIT_LOWERED: Final = 32
#: The receiver asks to drain the link, or no longer asks.
DRAIN: Final = 64
#: All effects that leave the peer's `flow` valid.
ANY_EFFECT: Final = WINDOW_OPENED | IDS_SKIPPED | ECHO | CREDIT_RAISED | CREDIT_LOWERED | DRAIN

_NEVER_SENT: Final = NEVER_SENT
_WINDOW_OPENED: Final = WINDOW_OPENED
_IDS_SKIPPED: Final = IDS_SKIPPED
_ECHO: Final = ECHO
_CREDIT_RAISED: Final = CREDIT_RAISED
_CREDIT_LOWERED: Final = CREDIT_LOWERED
_DRAIN: Final = DRAIN


def apply_flow(session: KernelSession, link: KernelLink | None, frame: FlowFrame, allowed: int) -> int:
    """Apply an incoming `flow` if all its effects are `allowed`; otherwise change nothing.

    Args: link: of the `flow`, if we send on it. Then a frame with a link-credit has a delivery-count.
    Returns: the effects, whether they were allowed or not.
    """
    seen = frame.next_incoming_id if frame.next_incoming_id != -1 else session.initial_outgoing_id
    in_flight = serial_distance(seen, session.next_outgoing_id)
    # A peer may shrink its window below the frames on the wire: the result is 0, not four billion.
    window = max(0, frame.incoming_window - in_flight)
    skipped = serial_distance(session.next_incoming_id, frame.next_outgoing_id)
    effect = 0
    if in_flight < 0:
        effect = _NEVER_SENT
    if session.remote_incoming_window <= 0 and window > 0:
        effect |= _WINDOW_OPENED
    if skipped:
        effect |= _IDS_SKIPPED
    if frame.echo:
        effect |= _ECHO
    credit = 0
    if link is not None:
        if frame.drain or link.drain:
            effect |= _DRAIN
        credit = link.link_credit
        if frame.link_credit != -1:
            limit = (frame.delivery_count + min(frame.link_credit, _HALF - 1)) & _MASK
            credit = serial_distance(link.delivery_count, limit)
            if credit > link.link_credit:
                effect |= _CREDIT_RAISED
            elif credit < link.link_credit:
                effect |= _CREDIT_LOWERED
    if effect & ~allowed:
        return effect
    # The peer numbers its transfers; skipped numbers do not use its window (§2.5.6).
    session.next_incoming_id = frame.next_outgoing_id
    session.incoming_limit = (session.incoming_limit + skipped) & _MASK
    session.remote_incoming_window = window
    session.remote_outgoing_window = frame.outgoing_window
    if link is not None:
        if frame.link_credit != -1:
            # A receiver that left some credit, which is used by now, did not withdraw it all.
            link.lowered = frame.link_credit == 0 and effect & _CREDIT_LOWERED != 0
            link.link_credit = max(0, credit)
        link.drain = frame.drain
    return effect
