"""Outcomes of a delivery, for the program that sent it (§3.4)."""

from __future__ import annotations

import pytest

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.errors import AmqpMeshError, ProtocolError
from amqpmesh.router.amqp.standard.definitions import Error
from amqpmesh.router.amqp.standard.delivery_states import (
    Accepted,
    Declared,
    DeliveryState,
    Modified,
    Received,
    Rejected,
    Released,
    TransactionalState,
)
from amqpmesh.router.message.outcomes import (
    ModifiedError,
    OutcomeError,
    RejectedError,
    ReleasedError,
    outcome_error,
    outcome_of,
)

SPAM = Error(condition=Symbol("amqp:not-allowed"), description="spam")


@pytest.mark.parametrize(
    "outcome",
    [Accepted(), Rejected(), Rejected(error=SPAM), Released(), Modified(), Modified(delivery_failed=True)],
)
def test_an_outcome_is_what_was_encoded(outcome: DeliveryState) -> None:
    assert outcome_of(encode_composite(outcome)) == outcome


@pytest.mark.parametrize(
    "state",
    [
        Received(section_number=0, section_offset=0),
        Declared(txn_id=b"t"),
        TransactionalState(txn_id=b"t", outcome=Accepted()),
    ],
)
def test_other_states_are_no_outcome(state: DeliveryState) -> None:
    assert outcome_of(encode_composite(state)) is None
    assert outcome_of(None) is None


@pytest.mark.parametrize("octets", [b"", b"\x40", b"\x00\x53\x28\x45", encode_composite(Accepted())[:-1]])
def test_what_is_no_state_is_a_protocol_error(octets: bytes) -> None:
    with pytest.raises(ProtocolError):
        outcome_of(octets)


@pytest.mark.parametrize(
    ("outcome", "kind", "said"),
    [
        (Rejected(error=SPAM), RejectedError, "rejected: amqp:not-allowed: spam"),
        (Rejected(error=Error(condition=Symbol("x:y"))), RejectedError, "rejected: x:y: no description"),
        (Rejected(), RejectedError, "rejected"),
        (Released(), ReleasedError, "released"),
        (Modified(delivery_failed=True), ModifiedError, "modified"),
    ],
)
def test_what_was_not_accepted_is_an_error_that_says_so(
    outcome: Rejected | Released | Modified, kind: type[OutcomeError], said: str
) -> None:
    error = outcome_error(outcome)
    assert type(error) is kind
    assert isinstance(error, AmqpMeshError)
    assert error.outcome == outcome
    assert error.error == getattr(outcome, "error", None)
    assert str(error) == said
