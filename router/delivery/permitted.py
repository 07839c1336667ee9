"""What is said of deliveries: states that a router makes, passes on, or puts in the place of others (§3.4, §3.5.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.codec.values import decode
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error, LinkCondition, TransactionCondition
from amqpmesh.router.amqp.standard.delivery_states import OUTCOMES
from amqpmesh.router.amqp.standard.messaging import Rejected, Source
from amqpmesh.router.kernel import (
    ACCEPTED,
    EXTENSION,
    FAILED_STATE,
    MODIFIED,
    RECEIVED,
    REJECTED,
    RELEASED,
    RELEASED_STATE,
    is_terminal,
    state_kind,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqpmesh.router.kernel import Delivery
    from amqpmesh.router.model.links import IncomingLink

#: The symbols by which termini name the outcomes (§3.5.3, outcomes).
_SYMBOLS: Final = {
    ACCEPTED: "amqp:accepted:list",
    REJECTED: "amqp:rejected:list",
    RELEASED: "amqp:released:list",
    MODIFIED: "amqp:modified:list",
}
#: What stands in the place of an outcome that a source does not list.
_IN_ITS_PLACE: Final = {
    RELEASED: RELEASED_STATE,
    MODIFIED: FAILED_STATE,
    REJECTED: encode_composite(Rejected()),
}
#: Octets of a `disposition` beside its state, at most.
_AROUND: Final = 48


def rejected(condition: AmqpCondition | LinkCondition, description: str) -> bytes:
    """The encoded outcome `rejected` with a reason (§3.4.3)."""
    return encode_composite(Rejected(error=Error(condition=condition, description=description)))


def too_large(limit: int) -> bytes:
    """Return the outcome of a message that a receiver does not take for its size. Args: limit: octets."""
    return rejected(LinkCondition.MESSAGE_SIZE_EXCEEDED, f"the receiver takes messages of at most {limit} octets")


def unknown_transaction() -> Error:
    """Why a link with a `transactional-state` ends: there is no transaction here (§4.5.8)."""
    return Error(
        condition=TransactionCondition.UNKNOWN_ID, description="a transactional-state outside a known transaction"
    )


def is_outcome(state: bytes | None) -> bool:
    """Whether a delivery that is settled with this state ended by it: an outcome, or a state of an extension, of which
    nobody here knows what it means."""
    return is_terminal(state) or state_kind(state) == EXTENSION


def senders_state(delivery: Delivery) -> bytes | None:
    """What the sender of a delivery has said of it, as far as its receivers may hear it from us.

    Where a resumed delivery goes on (`received`) concerns the link that resumes it, and nobody else (§3.4.1).
    """
    state = delivery.remote_state
    return None if state_kind(state) == RECEIVED else state


def permissible(source: IncomingLink, outcome: bytes) -> bytes | None:
    """The outcome, or the one that stands for it where the sender's source does not list it (§3.5.3, outcomes)."""
    remote = source.link.remote
    terminus = remote.source if remote is not None else None
    kind = state_kind(outcome)
    outcomes = terminus.outcomes if isinstance(terminus, Source) else ()
    if kind == EXTENSION:
        if len(outcome) > source.link.session.connection.remote_max_frame_size - _AROUND:
            # What must be said of it is not known here. That it ended is, and that nobody accepted it.
            outcome, kind = FAILED_STATE, MODIFIED
        elif not outcomes or _may_be_listed(outcome, outcomes):
            return outcome
    if not outcomes or kind == ACCEPTED or _SYMBOLS.get(kind) in outcomes:
        return outcome
    assert isinstance(terminus, Source)
    default = terminus.default_outcome
    if default is not None:
        encoded = encode_composite(default)
        if is_outcome(encoded) and state_kind(encoded) != ACCEPTED:
            return encoded
    # That nothing happened to it is no more than a guess about an outcome that nobody here knows.
    for each in (MODIFIED, RELEASED, REJECTED) if kind == EXTENSION else (RELEASED, MODIFIED, REJECTED):
        if _SYMBOLS[each] in outcomes:
            return _IN_ITS_PLACE[each]
    return None


def takes_rejected(source: IncomingLink) -> bool:
    """Whether a sender's source takes the outcome `rejected`."""
    remote = source.link.remote
    terminus = remote.source if remote is not None else None
    return not isinstance(terminus, Source) or not terminus.outcomes or _SYMBOLS[REJECTED] in terminus.outcomes


#: Format codes of symbols.
_SYMBOLIC: Final = (0xA3, 0xB3)


def _may_be_listed(state: bytes, outcomes: Sequence[Symbol]) -> bool:
    """Whether a list of outcomes may mean this state of an extension: it has its name, or names some extension's, where
    this state has only a number."""
    descriptor = decode(state, 1)[0] if state[1] in _SYMBOLIC else None
    return descriptor in outcomes if isinstance(descriptor, Symbol) else not OUTCOMES.issuperset(outcomes)
