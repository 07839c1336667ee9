"""The server's end of the handshake of a WebSocket (RFC 6455, 4.2; OASIS AMQP WebSocket Binding, 2.1), without I/O."""

from __future__ import annotations

import binascii
from base64 import b64decode
from typing import TYPE_CHECKING, Final

from wsproto.utilities import generate_accept_token

from amqpmesh.router.config.http import HttpConfig
from amqpmesh.router.http.checks import Site
from amqpmesh.router.http.connection import HttpConnection
from amqpmesh.router.http.requests import BAD_REQUEST, NOT_ALLOWED, NOT_FOUND, UPGRADE_REQUIRED, HttpError
from amqpmesh.router.io.websocket_framing import SUBPROTOCOLS, Framing

if TYPE_CHECKING:
    from amqpmesh.router.config.listener import ListenerConfig
    from amqpmesh.router.http.requests import Request

VERSION: Final = "13"
"""The version of WebSocket in RFC 6455."""

KEY_SIZE: Final = 16
"""Octets of the random key in the request of a client."""


_UPGRADE: Final = (("Upgrade", "websocket"), ("Connection", "Upgrade"))


class Upgrade:
    """One handshake, as the server.

    Attributes: `answer`: octets for the client; empty: its request is not whole. `refusal`: the reason to refuse it,
        for people; None: there is none. `framing`: of the open WebSocket; None: it is not open.
    """

    def __init__(self, config: ListenerConfig) -> None:
        """Args: config: of the listener."""
        self._site = Site(config)
        self._path = config.endpoint.path
        self._http = HttpConnection(HttpConfig(head=config.websocket_limits.head, body=0))
        self.answer = b""
        self.refusal: str | None = None
        self.framing: Framing | None = None

    def receive(self, data: bytes) -> None:
        """Take octets from the client; b"": it sends no more. Raises: EOFError: it has gone."""
        http = self._http
        http.receive(data)
        try:
            request = http.next_request()
            if request is None:
                return
            self._site.check_websocket(request)
            if self._path and request.path != self._path:
                raise HttpError(NOT_FOUND, "the listener has its WebSocket at another path")
            headers = accepted(request)
        except HttpError as error:
            self.refusal = str(error)
            answer = error.answer
            self.answer = http.head(answer, closes=True) + http.part(answer.body) + http.end()
        else:
            self.answer, rest = http.switch(headers)
            self.framing = Framing.of_server(rest)


def accepted(request: Request) -> list[tuple[str, str]]:
    """Return the header fields that accept a request for a WebSocket. Raises: HttpError: it cannot be accepted.

    No extension is accepted, so nothing is compressed.
    """
    if request.version == "1.0":
        raise HttpError(BAD_REQUEST, "a WebSocket needs HTTP/1.1")
    if request.method != "GET":
        raise HttpError(NOT_ALLOWED, "a WebSocket is opened by GET", ("Allow", "GET"))
    if "websocket" not in _tokens(request, "upgrade"):
        raise HttpError(UPGRADE_REQUIRED, "the listener speaks WebSocket only", *_UPGRADE)
    if "upgrade" not in _tokens(request, "connection"):
        raise HttpError(BAD_REQUEST, "the field connection does not name upgrade")
    if request.headers.get("sec-websocket-version") != VERSION:
        reason = f"the version of WebSocket is not {VERSION}"
        raise HttpError(UPGRADE_REQUIRED, reason, ("Sec-WebSocket-Version", VERSION), *_UPGRADE)
    key = request.headers.get("sec-websocket-key", "")
    try:
        size = len(b64decode(key, validate=True))
    except (binascii.Error, ValueError):
        size = 0
    if size != KEY_SIZE:
        raise HttpError(BAD_REQUEST, "the field sec-websocket-key is missing or malformed")
    offered = [each.strip() for each in request.headers.get("sec-websocket-protocol", "").split(",")]
    chosen = next((each for each in SUBPROTOCOLS if each in offered), None)
    if chosen is None:
        raise HttpError(BAD_REQUEST, "the subprotocol amqp is not offered")
    return [
        *_UPGRADE,
        ("Sec-WebSocket-Accept", generate_accept_token(key.encode("ascii")).decode("ascii")),
        ("Sec-WebSocket-Protocol", chosen),
    ]


def _tokens(request: Request, name: str) -> list[str]:
    """Return the words in a header field, in lower case."""
    return [each.strip().lower() for each in request.headers.get(name, "").split(",")]
