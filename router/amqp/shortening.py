"""What a peer's frames have no room for is said in fewer octets (§2.4.1, §2.7.1, max-frame-size).

What must be said is always short: which condition, which outcome. What makes it long is for people, or a request: the
description and the info of an error, the annotations that a `modified` asks for.
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

#: Characters, of 4 octets at most: with all that is around them they fit into 512 octets, and so does a condition.
_DESCRIPTION: Final = 60
_CONDITION: Final = 80

#: A state of some extension.
_UNKNOWN: Final = bytes((0x00, 0x53, EXTENSION, 0x45))


def short_error(error: Error | None) -> Error | None:
    """The same condition, without what makes it long; None for a condition that is longer than any known one."""
    if error is None or len(error.condition) > _CONDITION:
        return None
    return Error(condition=error.condition, description=(error.description or "")[:_DESCRIPTION] or None)


def short_farewell(frame: Detach | End | Close) -> Detach | End | Close:
    """A `detach`, `end` or `close` that fits into the smallest frames; with an error, if it had one."""
    if frame.error is None:
        return frame
    return replace(frame, error=short_error(frame.error) or Error(condition=AmqpCondition.INTERNAL_ERROR))


def short_state(state: bytes) -> bytes | None:
    """An encoded delivery state that fits into the smallest frames, with room for a delivery-tag beside it.

    Returns: None: it is of an extension, and what of it must be said is not known here.
    """
    value = decode_composite(STATES, bounded(state))[0]
    return None if isinstance(value, Extension) else encode_composite(_short(value))


def lasting_state(state: bytes | None) -> bytes | None:
    """What is passed on of a state that stays as long as its delivery: of a long one the short form, if it has one."""
    return state if state is None or len(state) <= LONG_STATE else short_state(state)


def told_state(state: bytes | None) -> bytes | None:
    """What stays of a state that was passed on until its delivery is settled: of a long one, which it was."""
    return state if state is None or len(state) <= LONG_STATE else short_state(state) or _UNKNOWN


def _short(state: DeliveryState) -> DeliveryState:
    if isinstance(state, Rejected):
        return Rejected(error=short_error(state.error))
    if isinstance(state, Modified):
        return replace(state, message_annotations=None)
    if isinstance(state, TransactionalState) and state.outcome is not None:
        outcome = _short(state.outcome)
        assert not isinstance(outcome, Received | TransactionalState)
        return replace(state, outcome=None if isinstance(outcome, Extension) else outcome)
    return state
