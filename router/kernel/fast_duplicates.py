"""Deliveries of addresses that drop duplicates: the kernel relays first messages, and notes what becomes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.kernel.encoded_states import (
    _ACCEPTED,
    _ACCEPTED_STATE,
    _LONG_STATE,
    _MODIFIED,
    _RELEASED,
    state_kind,
)
from amqpmesh.router.kernel.message_ids import read_message_id
from amqpmesh.router.kernel.violations import Incomplete, Violation

if TYPE_CHECKING:
    from amqpmesh.router.kernel.fast_deliveries import FastDelivery
    from amqpmesh.router.kernel.frame_fields import TransferFrame
    from amqpmesh.router.kernel.router_state import KernelRouter
    from amqpmesh.router.kernel.seen_messages import MessageWindow


def _new_id(
    router: KernelRouter, window: MessageWindow, frame: TransferFrame, data: bytes, at: int, end: int
) -> bytes | None:
    """Return the message-id of a whole message, whose bare message begins at `at`; empty: it has none.

    Returns: None: a message with this one was seen before, so the router must decide.
    """
    if frame.message_format > 0:
        return b""
    try:
        message_id = read_message_id(data, at, end)
    except (Incomplete, Violation):
        return b""  # a malformed section is the receiver's concern
    if message_id is None:
        return b""
    return None if window.find(message_id, router.now) is not None else message_id


def _note_message(
    router: KernelRouter, window: MessageWindow, message_id: bytes, settled: bool, fast: FastDelivery | None
) -> None:
    """Note a first message that was relayed. Args: settled: its sender gets no outcome. fast: None: nor the router."""
    seen = window.note(message_id, settled, router.now)
    if fast is None:
        window.end(seen, None, router.now)
    else:
        router.noted[fast] = seen


def _note_outcome(router: KernelRouter, fast: FastDelivery, state: bytes) -> bool:
    """Note the outcome of a first message. Returns: False: the router must decide, as others wait for it."""
    seen = router.noted[fast]
    if seen.joined or len(state) > _LONG_STATE:
        return False
    del router.noted[fast]
    kind = state_kind(state)
    if kind in (_RELEASED, _MODIFIED):
        seen.window.forget(seen)
    elif seen.settled:
        seen.window.end(seen, None, router.now)
    else:
        seen.window.end(seen, _ACCEPTED_STATE if kind == _ACCEPTED else state, router.now)
    return True
