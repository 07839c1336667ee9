"""Error conditions of the standard, by the endpoint that they end (§2.8.15 to §2.8.18, §4.5.8)."""

from enum import ReprEnum

from amqpmesh.router.amqp.codec.types import Symbol


class AmqpCondition(Symbol, ReprEnum):
    """Conditions of all levels (§2.8.15)."""

    INTERNAL_ERROR = "amqp:internal-error"
    NOT_FOUND = "amqp:not-found"
    UNAUTHORIZED_ACCESS = "amqp:unauthorized-access"
    DECODE_ERROR = "amqp:decode-error"
    RESOURCE_LIMIT_EXCEEDED = "amqp:resource-limit-exceeded"
    NOT_ALLOWED = "amqp:not-allowed"
    INVALID_FIELD = "amqp:invalid-field"
    NOT_IMPLEMENTED = "amqp:not-implemented"
    RESOURCE_LOCKED = "amqp:resource-locked"
    PRECONDITION_FAILED = "amqp:precondition-failed"
    RESOURCE_DELETED = "amqp:resource-deleted"
    ILLEGAL_STATE = "amqp:illegal-state"
    FRAME_SIZE_TOO_SMALL = "amqp:frame-size-too-small"


class ConnectionCondition(Symbol, ReprEnum):
    """Conditions that close a connection (§2.8.16)."""

    CONNECTION_FORCED = "amqp:connection:forced"
    FRAMING_ERROR = "amqp:connection:framing-error"
    REDIRECT = "amqp:connection:redirect"


class SessionCondition(Symbol, ReprEnum):
    """Conditions that end a session (§2.8.17)."""

    # The draft has "amqp:session>window-violation"; the published standard and every implementation have a colon.
    WINDOW_VIOLATION = "amqp:session:window-violation"
    ERRANT_LINK = "amqp:session:errant-link"
    HANDLE_IN_USE = "amqp:session:handle-in-use"
    UNATTACHED_HANDLE = "amqp:session:unattached-handle"


class LinkCondition(Symbol, ReprEnum):
    """Conditions that detach a link (§2.8.18)."""

    DETACH_FORCED = "amqp:link:detach-forced"
    TRANSFER_LIMIT_EXCEEDED = "amqp:link:transfer-limit-exceeded"
    MESSAGE_SIZE_EXCEEDED = "amqp:link:message-size-exceeded"
    REDIRECT = "amqp:link:redirect"
    STOLEN = "amqp:link:stolen"


class TransactionCondition(Symbol, ReprEnum):
    """Conditions that fail a transaction (§4.5.8)."""

    UNKNOWN_ID = "amqp:transaction:unknown-id"
    TRANSACTION_ROLLBACK = "amqp:transaction:rollback"
    TRANSACTION_TIMEOUT = "amqp:transaction:timeout"


_ENDPOINT_CONDITIONS = {
    str(each): each for level in (AmqpCondition, ConnectionCondition, SessionCondition, LinkCondition) for each in level
}


def endpoint_condition(symbol: str) -> AmqpCondition | ConnectionCondition | SessionCondition | LinkCondition:
    """Return the condition of a connection, session or link with this symbol (§2.8.15 to §2.8.18)."""
    return _ENDPOINT_CONDITIONS[symbol]
