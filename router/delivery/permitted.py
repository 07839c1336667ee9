"""The delivery states that a router makes, passes on, or replaces (§3.4, §3.5.3)."""

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

#: The symbols of the outcomes in a source (§3.5.3, outcomes).
_SYMBOLS: Final = {
    ACCEPTED: "amqp:accepted:list",
    REJECTED: "amqp:rejected:list",
    RELEASED: "amqp:released:list",
    MODIFIED: "amqp:modified:list",
}
#: The outcomes that replace one that a source does not list.
_IN_ITS_PLACE: Final = {
    RELEASED: RELEASED_STATE,
    MODIFIED: FAILED_STATE,
    REJECTED: encode_composite(Rejected()),
}
#: The most octets of a `disposition` without its state.
_AROUND: Final = 48


def rejected(condition: AmqpCondition | LinkCondition, description: str) -> bytes:
    """Return the encoded outcome `rejected` with an error (§3.4.3)."""
    return encode_composite(Rejected(error=Error(condition=condition, description=description)))


def too_large(limit: int) -> bytes:
    """Return the outcome of a message that is too large for a receiver. Args: limit: the receiver's, octets."""
    return rejected(LinkCondition.MESSAGE_SIZE_EXCEEDED, f"the receiver takes messages of at most {limit} octets")


def unknown_transaction() -> Error:
    """Return the error of a link with a `transactional-state`: the router coordinates no transactions (§4.5.8)."""
    return Error(
        condition=TransactionCondition.UNKNOWN_ID, description="a transactional-state outside a known transaction"
    )


def is_outcome(state: bytes | None) -> bool:
    """Tell whether a delivery that is settled with this state has an outcome.

    A state of an extension counts as one: the router does not know its meaning.
    """
    return is_terminal(state) or state_kind(state) == EXTENSION


def senders_state(delivery: Delivery) -> bytes | None:
    """Return the state that the sender of a delivery gave it, if its receivers may get it; else None.

    The state `received` says where a resumed delivery continues. It concerns only the link that resumes the delivery
    (§3.4.1).
    """
    state = delivery.remote_state
    return None if state_kind(state) == RECEIVED else state


def permissible(source: IncomingLink, outcome: bytes) -> bytes | None:
    """Return an outcome that the sender's source permits: this one, or a replacement; None: it permits none of ours."""
    remote = source.endpoint.remote
    terminus = remote.source if remote is not None else None
    kind = state_kind(outcome)
    outcomes = terminus.outcomes if isinstance(terminus, Source) else ()
    if kind == EXTENSION:
        if len(outcome) > source.endpoint.session.connection.remote_max_frame_size - _AROUND:
            # The state does not fit into a frame of this peer. `modified` says that the delivery ended without
            # being accepted.
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
    # `released` says that nothing happened to the message: of an unknown outcome that would be a guess.
    for each in (MODIFIED, RELEASED, REJECTED) if kind == EXTENSION else (RELEASED, MODIFIED, REJECTED):
        if _SYMBOLS[each] in outcomes:
            return _IN_ITS_PLACE[each]
    return None


def takes_rejected(source: IncomingLink) -> bool:
    """Tell whether a sender's source lists the outcome `rejected`."""
    remote = source.endpoint.remote
    terminus = remote.source if remote is not None else None
    return not isinstance(terminus, Source) or not terminus.outcomes or _SYMBOLS[REJECTED] in terminus.outcomes


#: The format codes of symbols.
_SYMBOLIC: Final = (0xA3, 0xB3)


def _may_be_listed(state: bytes, outcomes: Sequence[Symbol]) -> bool:
    """Tell whether a list of outcomes may include a state of an extension.

    The list has the state's symbol. A state with a number only may be any symbol of an extension.
    """
    descriptor = decode(state, 1)[0] if state[1] in _SYMBOLIC else None
    return descriptor in outcomes if isinstance(descriptor, Symbol) else not OUTCOMES.issuperset(outcomes)
