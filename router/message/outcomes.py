"""Outcomes of deliveries, and errors for the program that sent them (§3.4)."""

from __future__ import annotations

from typing import Final, TypeAlias

from amqpmesh.router.amqp.codec.composite import decode_composite
from amqpmesh.router.amqp.errors import AmqpMeshError
from amqpmesh.router.amqp.standard.definitions import Error
from amqpmesh.router.amqp.standard.delivery_states import STATES, Accepted, Modified, Received, Rejected, Released

Outcome: TypeAlias = Accepted | Rejected | Released | Modified
"""The outcomes of a delivery."""

#: The outcome in place of a missing one: a receiver that settles without an outcome may have begun to process.
NOTHING_SAID: Final = Modified(delivery_failed=True)

#: The state of a delivery that has come whole: a place behind the last section that a message can have (§3.4.1).
ALL_RECEIVED: Final = Received(section_number=2**32 - 1, section_offset=0)


class OutcomeError(AmqpMeshError):
    """A delivery was not accepted; `outcome` is its outcome."""

    def __init__(self, outcome: Rejected | Released | Modified) -> None:
        super().__init__(outcome)
        self.outcome = outcome

    @property
    def error(self) -> Error | None:
        """The reason of a receiver that has rejected the delivery."""
        return self.outcome.error if isinstance(self.outcome, Rejected) else None

    def __str__(self) -> str:
        said = type(self.outcome).__name__.lower()
        if self.error is not None:
            said += f": {self.error.condition}: {self.error.description or 'no description'}"
        return said


class RejectedError(OutcomeError):
    """The receiver has rejected the message as invalid (§3.4.3)."""


class ReleasedError(OutcomeError):
    """The message was not processed: there was no receiver, or the receivers have released it (§3.4.4)."""


class ModifiedError(OutcomeError):
    """The message was not processed; its processing may have begun (§3.4.5)."""


def outcome_error(outcome: Rejected | Released | Modified) -> OutcomeError:
    """Return the error for an outcome."""
    return _ERRORS[type(outcome)](outcome)


def outcome_of(state: bytes | None) -> Outcome | None:
    """Decode an outcome; None: the state is no outcome, or one of a transaction or an extension.

    Raises: ProtocolError: it is no delivery state.
    """
    if state is None:
        return None
    value = decode_composite(STATES, state)[0]
    return value if isinstance(value, Accepted | Rejected | Released | Modified) else None


_ERRORS: Final[dict[type, type[OutcomeError]]] = {
    Rejected: RejectedError,
    Released: ReleasedError,
    Modified: ModifiedError,
}
