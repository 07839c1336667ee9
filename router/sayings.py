"""What is said of deliveries: states that a router makes, passes on, or puts in the place of others (§3.4, §3.5.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.composite import encode_composite
from amqpmesh.router.amqp.definitions import AmqpCondition, Error, LinkCondition, TransactionCondition
from amqpmesh.router.amqp.messaging import Rejected
from amqpmesh.router.kernel.relay import (
    ACCEPTED,
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
    from amqpmesh.router.kernel.relay import Delivery
    from amqpmesh.router.links import IncomingLink

#: The symbols by which termini name the outcomes (§3.5.3, outcomes).
_SYMBOLS: Final = {
    ACCEPTED: "amqp:accepted:list",
    REJECTED: "amqp:rejected:list",
    RELEASED: "amqp:released:list",
    MODIFIED: "amqp:modified:list",
}
OUTCOMES: Final = frozenset(_SYMBOLS.values())


def rejected(condition: AmqpCondition | LinkCondition, description: str) -> bytes:
    """The encoded outcome `rejected` with a reason (§3.4.3)."""
    return encode_composite(Rejected(error=Error(condition=condition, description=description)))


def unknown_transaction() -> Error:
    """Why a link with a `transactional-state` ends: there is no transaction here (§4.5.8)."""
    return Error(
        condition=TransactionCondition.UNKNOWN_ID, description="a transactional-state outside a known transaction"
    )


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
    if terminus is None or not terminus.outcomes or kind == ACCEPTED or _SYMBOLS[kind] in terminus.outcomes:
        return outcome
    default = terminus.default_outcome
    if default is not None:
        encoded = encode_composite(default)
        if is_terminal(encoded) and state_kind(encoded) != ACCEPTED:
            return encoded
    for symbol, state in (
        (_SYMBOLS[RELEASED], RELEASED_STATE),
        (_SYMBOLS[MODIFIED], FAILED_STATE),
        (_SYMBOLS[REJECTED], encode_composite(Rejected())),
    ):
        if symbol in terminus.outcomes:
            return state
    return None
