"""Errors of this package.

A `ProtocolError` is an error of the peer, and is answered on the wire with its condition. A `CommandError` is an error
of our caller: nothing was sent, and nothing has changed.
"""

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING

from amqpmesh.router.amqp.codec.types import Symbol, Value
from amqpmesh.router.amqp.standard.conditions import AmqpCondition, ConnectionCondition, LinkCondition

if TYPE_CHECKING:
    # Only the annotation needs it; the declaration of `Error` needs the codec, and the codec needs this module.
    from amqpmesh.router.amqp.standard.definitions import Error


class AmqpMeshError(Exception):
    """The base class of all errors of this package."""


class Scope(Enum):
    """The level of an error: the endpoint that ends because of it (§2.4.3, §2.5.4, §2.6.5)."""

    LINK = "link"
    SESSION = "session"
    CONNECTION = "connection"


class ProtocolError(AmqpMeshError):
    """The peer broke the standard.

    Args: scope: the level of the endpoint that ends.
        condition: the condition of the answer.
        description: a text for people and for the peer's log; it never contains a secret.
        info: the map that goes with the condition (§2.8.14).
    """

    def __init__(
        self, scope: Scope, condition: Symbol, description: str, info: Mapping[Symbol, Value] | None = None
    ) -> None:
        super().__init__(scope, condition, description, info)
        self.scope = scope
        self.condition = condition
        self.description = description
        self.info = info

    def __str__(self) -> str:
        return f"{self.condition} ({self.scope.value}): {self.description}"


class CommandError(AmqpMeshError):
    """Our caller asked for something impossible: nothing was sent, and nothing has changed."""


class ConfigError(AmqpMeshError):
    """The configuration is wrong: the file, the key in it, and the reason."""

    def __init__(self, file: str, key: str, reason: str) -> None:
        super().__init__(file, key, reason)
        self.file = file
        self.key = key
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.file}: {self.key}: {self.reason}"


class _EndedError(AmqpMeshError):
    """An endpoint has ended. `error` is the peer's reason; None: it gave none."""

    def __init__(self, message: str, error: "Error | None" = None) -> None:
        super().__init__(message, error)
        self.message = message
        self.error = error

    def __str__(self) -> str:
        if self.error is None:
            return self.message
        return f"{self.message}: {self.error.condition}: {self.error.description or 'no description'}"


class ConnectionClosedError(_EndedError):
    """The connection was refused, lost, or closed by either side."""


class _RedirectError(_EndedError):
    """The peer redirects to another place. An attribute is None if the peer left it out or sent another type."""

    def __init__(self, message: str, error: "Error | None" = None) -> None:
        super().__init__(message, error)
        info = (error.info if error is not None else None) or {}
        self.hostname = _text(info.get(Symbol("hostname")))
        self.network_host = _text(info.get(Symbol("network-host")))
        port = info.get(Symbol("port"))
        named = int(port) if isinstance(port, int) and not isinstance(port, bool) else 0
        self.port = named if 1 <= named <= 65535 else None


class ConnectionRedirectError(_RedirectError, ConnectionClosedError):
    """The peer redirects the connection to another container (§2.8.16, amqp:connection:redirect).

    Connect to `network_host` and `port`, and name `hostname` in `open`, SASL and TLS. None: the peer did not say.
    """


class SaslError(ConnectionClosedError):
    """The connection was refused in the SASL exchange (§5.3)."""


class SessionEndedError(_EndedError):
    """The session was ended by either side, or by the end of its connection."""


class LinkDetachedError(_EndedError):
    """The link was detached by either side, or by the end of its session."""


class LinkStolenError(LinkDetachedError):
    """Another connection has attached the same link (§2.6.1, amqp:link:stolen)."""


class LinkRedirectError(_RedirectError, LinkDetachedError):
    """The peer redirects the link to another node (§2.8.18, amqp:link:redirect).

    Connect to `network_host` and `port`, name `hostname` in `open`, SASL and TLS, and attach to `address`. None: the
    peer did not say.
    """

    def __init__(self, message: str, error: "Error | None" = None) -> None:
        super().__init__(message, error)
        info = (error.info if error is not None else None) or {}
        self.address = _text(info.get(Symbol("address")))


class InDoubtError(_EndedError):
    """The link was lost between transfer and outcome: the message may have been delivered, or not."""


def connection_closed(message: str, error: "Error | None") -> ConnectionClosedError:
    """Return the error for a connection that the peer closed with `error`."""
    if error is not None and error.condition == ConnectionCondition.REDIRECT:
        return ConnectionRedirectError(message, error)
    return ConnectionClosedError(message, error)


def link_detached(message: str, error: "Error | None") -> LinkDetachedError:
    """Return the error for a link that was detached with `error`."""
    return _DETACHED.get(error.condition if error is not None else "", LinkDetachedError)(message, error)


_DETACHED: dict[str, type[LinkDetachedError]] = {
    LinkCondition.STOLEN: LinkStolenError,
    LinkCondition.REDIRECT: LinkRedirectError,
}


def _text(value: Value) -> str | None:
    return value if isinstance(value, str) else None


def shown(value: object) -> str:
    """Return a value of the peer as text for a description, cut to 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def decode_error(description: str) -> ProtocolError:
    """Return the error for octets that do not encode the expected type (§2.8.15)."""
    return ProtocolError(Scope.CONNECTION, AmqpCondition.DECODE_ERROR, description)


def invalid_field(description: str) -> ProtocolError:
    """Return the error for a value that is well encoded, but not permitted in its place (§2.8.15)."""
    return ProtocolError(Scope.CONNECTION, AmqpCondition.INVALID_FIELD, description)


def framing_error(description: str) -> ProtocolError:
    """Return the error for octets that are not a legal frame (§2.8.16)."""
    return ProtocolError(Scope.CONNECTION, ConnectionCondition.FRAMING_ERROR, description)
