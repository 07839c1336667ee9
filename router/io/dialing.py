"""Streams to peers: opening them, pauses between attempts, and reasons of failures."""

from __future__ import annotations

import os
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from amqpmesh.router.amqp.errors import ConnectionClosedError
from amqpmesh.router.config.urls import Endpoint
from amqpmesh.router.io.environment import environment

if TYPE_CHECKING:
    from amqpmesh.policies.redirect import PeerAddress
    from amqpmesh.router.amqp.errors import AmqpMeshError

Opener = Callable[[Endpoint], Awaitable[trio.abc.Stream]]
"""A function that opens the stream for TLS and AMQP."""

LASTING: Final = 5.0
"""Seconds after which a connection or a link counts as working: the next failure is the first in a row again."""

NOT_TLS: Final = ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE")
"""OpenSSL's reasons, in its several versions, for data that is not TLS at all."""


class PermanentError(Exception):
    """A failure that another attempt would not mend; `error` is what the program gets."""

    def __init__(self, error: AmqpMeshError) -> None:
        super().__init__(error)
        self.error = error


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses between attempts to connect: each twice as long as the one before, shortened by a random part.

    Args: first, longest: seconds.
    """

    first: float = 0.1
    longest: float = 10.0

    def pause(self, row: int) -> float:
        """Return the seconds to wait after the `row`-th failure in a row, counted from 1."""
        longest = min(self.longest, self.first * 2.0 ** min(row - 1, 30))
        # Many clients of a restarted router must not connect all at once.
        return longest * environment().chance.uniform(0.5, 1.0)


async def open_tcp(endpoint: Endpoint) -> trio.abc.Stream:
    """Open a TCP connection by IPv6 or IPv4, whichever answers first. Raises: OSError."""
    try:
        stream = await trio.open_tcp_stream(endpoint.host, endpoint.port)
    except UnicodeError:  # a label of the name is empty, or too long for DNS
        raise OSError("that is no name of a host") from None
    stream.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NODELAY, 1)
    stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_KEEPALIVE, 1)
    return stream


async def secure(stream: trio.abc.Stream, context: ssl.SSLContext, place: PeerAddress) -> trio.abc.Stream:
    """Return the stream inside TLS, as its client (§5.2).

    Raises: BrokenResourceError: the handshake failed. PermanentError: the server's certificate is not valid for
        `place`.
    """
    secured: trio.SSLStream[trio.abc.Stream] = trio.SSLStream(
        stream, context, server_hostname=place.certified, https_compatible=True
    )
    try:
        await secured.do_handshake()
    except trio.BrokenResourceError as error:
        cause = error.__cause__
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise PermanentError(ConnectionClosedError(f"{place}: TLS: {cause.verify_message}")) from None
        raise
    return secured


def reason(failure: BaseException) -> str:
    """Return the reason why no stream was opened. After attempts at several addresses, each reason is listed once."""
    return ", ".join(dict.fromkeys(map(_reason_of, _causes(failure))))


def is_refused(failure: BaseException) -> bool:
    """Tell whether no stream was opened because nobody listens there, at none of the addresses that were tried."""
    return all(isinstance(each, ConnectionRefusedError) for each in _causes(failure))


def _causes(failure: BaseException) -> tuple[BaseException, ...]:
    cause = failure.__cause__ or failure
    return cause.exceptions if isinstance(cause, BaseExceptionGroup) else (cause,)


def _reason_of(error: BaseException) -> str:
    if isinstance(error, ssl.SSLError) and error.reason in NOT_TLS:
        return "no TLS here: does it want amqp://?"
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and (error.errno or 0) > 0:
        return os.strerror(error.errno or 0)  # Trio's own message repeats the address
    return str((isinstance(error, OSError) and error.strerror) or error)
