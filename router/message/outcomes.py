"""What became of a delivery, for the program that sent it (§3.4)."""

from __future__ import annotations

from typing import Final, TypeAlias

from amqpmesh.router.amqp.codec.composite import decode_composite
from amqpmesh.router.amqp.errors import AmqpMeshError
from amqpmesh.router.amqp.standard.definitions import Error
from amqpmesh.router.amqp.standard.delivery_states import STATES, Accepted, Modified, Rejected, Released

Outcome: TypeAlias = Accepted | Rejected | Released | Modified
"""How a delivery can end."""

#: A receiver that settles and says nothing more may have begun, and did not say that it succeeded.
NOTHING_SAID: Final = Modified(delivery_failed=True)


class OutcomeError(AmqpMeshError):
    """A delivery ended, and was not accepted; `outcome` says how."""

    def __init__(self, outcome: Rejected | Released | Modified) -> None:
        super().__init__(outcome)
        self.outcome = outcome

    @property
    def error(self) -> Error | None:
        """What a receiver that rejected gave as the reason."""
        return self.outcome.error if isinstance(self.outcome, Rejected) else None

    def __str__(self) -> str:
        said = type(self.outcome).__name__.lower()
        if self.error is not None:
            said += f": {self.error.condition}: {self.error.description or 'no description'}"
        return said


class RejectedError(OutcomeError):
    """The receiver finds the message invalid (§3.4.3)."""


class ReleasedError(OutcomeError):
    """It was not processed, and will not be: there was nobody to take it, or they gave it back (§3.4.4)."""


class ModifiedError(OutcomeError):
    """It was not processed, and may have been begun (§3.4.5)."""


def outcome_error(outcome: Rejected | Released | Modified) -> OutcomeError:
    """The error that says it."""
    return _ERRORS[type(outcome)](outcome)


def outcome_of(state: bytes | None) -> Outcome | None:
    """The outcome that an encoded delivery state is; None: it is no outcome, or one of a transaction or an extension.

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
