"""Short forms of errors and delivery states, for peers with small frames (§2.4.1, §2.7.1, max-frame-size).

The condition of an error and the kind of an outcome are always short, and are kept. A short form leaves out the info
of an error, most of its description, and the annotations of a `modified`.
"""

from dataclasses import replace
from typing import Final

from amqpmesh.router.amqp.codec.composite import decode_composite, encode_composite
from amqpmesh.router.amqp.codec.types import Extension
from amqpmesh.router.amqp.codec.value_limits import bounded
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error
from amqpmesh.router.amqp.standard.delivery_states import (
    STATES,
    DeliveryState,
    Modified,
    Received,
    Rejected,
    TransactionalState,
)
from amqpmesh.router.amqp.standard.performatives import Close, Detach, End
from amqpmesh.router.kernel import EXTENSION, LONG_STATE

#: Characters of at most 4 octets each. A description or a condition of this length fits into a frame of 512 octets.
_DESCRIPTION: Final = 60
_CONDITION: Final = 80

#: An encoded state of an unnamed extension.
_UNKNOWN: Final = bytes((0x00, 0x53, EXTENSION, 0x45))


def short_error(error: Error | None) -> Error | None:
    """Return the error with a short description and no info; None if the condition is longer than any known one."""
    if error is None or len(error.condition) > _CONDITION:
        return None
    return Error(condition=error.condition, description=(error.description or "")[:_DESCRIPTION] or None)


def short_farewell(frame: Detach | End | Close) -> Detach | End | Close:
    """Return a `detach`, `end` or `close` that fits into the smallest frames; an error in it is shortened."""
    if frame.error is None:
        return frame
    return replace(frame, error=short_error(frame.error) or Error(condition=AmqpCondition.INTERNAL_ERROR))


def short_state(state: bytes) -> bytes | None:
    """Return an encoded delivery state that fits into the smallest frames, with room for a delivery-tag beside it.

    Returns: None for the state of an extension, whose essential part is unknown.
    """
    value = decode_composite(STATES, bounded(state))[0]
    return None if isinstance(value, Extension) else encode_composite(_short_state(value))


def lasting_state(state: bytes | None) -> bytes | None:
    """Return the form of a state that is passed on and kept until its delivery ends: a long state is shortened.

    Returns: None: there is no state, or it is a long one without a short form.
    """
    return state if state is None or len(state) <= LONG_STATE else short_state(state)


def told_state(state: bytes | None) -> bytes | None:
    """Return the form of a state that is kept after the state was passed on.

    A long state is shortened. If it has no short form, an unnamed state of an extension stands for it.
    """
    return state if state is None or len(state) <= LONG_STATE else short_state(state) or _UNKNOWN


def _short_state(state: DeliveryState) -> DeliveryState:
    if isinstance(state, Rejected):
        return Rejected(error=short_error(state.error))
    if isinstance(state, Modified):
        return replace(state, message_annotations=None)
    if isinstance(state, TransactionalState) and state.outcome is not None:
        outcome = _short_state(state.outcome)
        assert not isinstance(outcome, Received | TransactionalState)
        return replace(state, outcome=None if isinstance(outcome, Extension) else outcome)
    return state
