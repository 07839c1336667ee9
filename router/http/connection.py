"""The server's end of a connection of HTTP/1.1, without I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlsplit

import h11

from amqpmesh.router.http.requests import (
    BAD_REQUEST,
    HEAD_TOO_LARGE,
    NO_CONTENT,
    NOT_MODIFIED,
    REASONS,
    TOO_LARGE,
    HttpError,
    Request,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqpmesh.router.config.http import HttpConfig
    from amqpmesh.router.http.requests import Answer

MOST_PARAMETERS: Final = 20
"""Parameters in the target of a request."""

SINGLE: Final = frozenset(
    {
        "authorization",
        "content-type",
        "host",
        "origin",
        "sec-websocket-key",
        "sec-websocket-version",
        "x-amqpmesh-change",
    }
)
"""Header fields of which a request has one at most: another reader could take the other one."""

ALWAYS: Final = (
    ("Cache-Control", "no-store"),
    ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
)
"""Header fields of each answer: no page of another site can show or read it, and nothing stores it."""


class HttpConnection:
    """One connection: it reads a request, then writes the answer, one after the other.

    Attributes: `is_begun`: a part of a request has come.
    """

    def __init__(self, limits: HttpConfig) -> None:
        self._limits = limits
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head)
        self._head: h11.Request | None = None
        self._body = bytearray()
        self.is_begun = False

    def receive(self, data: bytes) -> None:
        """Take octets from the client; b"": it sends no more."""
        self.is_begun = self.is_begun or bool(data)
        self._h11.receive_data(data)

    @property
    def wants_continue(self) -> bool:
        """True if the client waits for an answer of status 100 before it sends the content."""
        return self._head is not None and self._h11.they_are_waiting_for_100_continue

    @property
    def is_whole(self) -> bool:
        """True if the request was read to its end."""
        return self._h11.their_state is h11.DONE

    @property
    def wants_head_only(self) -> bool:
        """True if the request is for the head of an answer without its content."""
        return self._head is not None and self._head.method == b"HEAD"

    def next_request(self) -> Request | None:
        """Return the request that has come; None: a part is missing.

        Raises: HttpError: it is malformed, or too large: answer it, and close. EOFError: the client sends no more.
        """
        while True:
            try:
                event = self._h11.next_event()
            except h11.RemoteProtocolError as error:
                raise _malformed(error) from None
            if event is h11.NEED_DATA:
                return None
            if isinstance(event, h11.Request):
                self._take_head(event)
            elif isinstance(event, h11.Data):
                self._take_body(len(event.data))
                self._body += event.data
            elif isinstance(event, h11.EndOfMessage):
                assert self._head is not None, "the head comes first"
                return self._whole(self._head)
            else:
                raise EOFError

    def go_on(self) -> bytes:
        """Return the octets that let a client send the content of its request."""
        return self._sent(h11.InformationalResponse(status_code=100, headers=[]))

    def head(self, answer: Answer, *, closes: bool = False) -> bytes:
        """Return the first octets of an answer. Args: closes: no request can follow on this connection."""
        headers = [("Content-Type", answer.kind)] if answer.body or answer.parts is not None else []
        if answer.parts is None and answer.status not in (NO_CONTENT, NOT_MODIFIED):
            headers.append(("Content-Length", str(len(answer.body))))
        if closes:
            headers.append(("Connection", "close"))
        own = {name for name, _ in answer.headers}
        headers += [*(each for each in ALWAYS if each[0] not in own), *answer.headers]
        reason = REASONS.get(answer.status, "").encode()
        return self._sent(h11.Response(status_code=answer.status, headers=headers, reason=reason))

    def part(self, data: bytes) -> bytes:
        """Return the octets of a part of an answer's content; none, if the client wants the head alone."""
        return b"" if self.wants_head_only else self._sent(h11.Data(data=data))

    def end(self) -> bytes:
        """Return the last octets of an answer."""
        return self._sent(h11.EndOfMessage())

    def switch(self, headers: Sequence[tuple[str, str]]) -> tuple[bytes, bytes]:
        """Leave HTTP, as the request asks. Returns: the answer's octets, and those that came behind the request."""
        told = h11.InformationalResponse(status_code=101, headers=list(headers), reason=b"Switching Protocols")
        return self._sent(told), self._h11.trailing_data[0]

    def begin_next(self) -> bool:
        """Turn to the next request. Returns: False: none can follow."""
        if self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
            return False
        self._h11.start_next_cycle()
        self._head, self._body = None, bytearray()
        self.is_begun = bool(self._h11.trailing_data[0])
        return True

    def _sent(self, event: h11.Event) -> bytes:
        return self._h11.send(event) or b""

    def _take_head(self, head: h11.Request) -> None:
        self._head = head
        # h11 counts a head that is not whole yet; a whole one may come with one read.
        if sum(len(name) + len(value) + 4 for name, value in head.headers) + len(head.target) > self._limits.head:
            raise HttpError(HEAD_TOO_LARGE, "the head of the request is too large")
        fields = dict(head.headers)
        # A reader before this one may end the content elsewhere, and take the rest for another request (RFC 9112, 6.1).
        if b"transfer-encoding" in fields and (b"content-length" in fields or head.http_version == b"1.0"):
            raise HttpError(BAD_REQUEST, "the length of the content is ambiguous")
        self._take_body(int(fields.get(b"content-length", b"0")))

    def _take_body(self, more: int) -> None:
        if len(self._body) + more > self._limits.body:
            raise HttpError(TOO_LARGE, "the content of the request is too large")

    def _whole(self, head: h11.Request) -> Request:
        headers: dict[str, str] = {}
        for raw, octets in head.headers:
            name, value = raw.decode("ascii"), octets.decode("latin-1")
            if name in headers and name in SINGLE:
                raise HttpError(BAD_REQUEST, f"the header field {name} comes twice")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value  # a list (RFC 9110, 5.3)
        try:
            # What begins with "//" is a path as well, and names no host: a browser sends what a page chooses.
            is_path = head.target.startswith(b"/")
            target = urlsplit(f"{'//path' * is_path}{head.target.decode('ascii')}")
            query = dict(
                parse_qsl(target.query, keep_blank_values=True, max_num_fields=MOST_PARAMETERS, errors="strict")
            )
        except ValueError:
            raise HttpError(BAD_REQUEST, "the target of the request is malformed") from None
        if target.netloc and not is_path:  # the absolute form, as proxies send it (RFC 9112, 3.2.2)
            headers["host"] = target.netloc
        method, version = head.method.decode("ascii"), head.http_version.decode("ascii")
        return Request(method, target.path or "/", query, headers, bytes(self._body), version)


def _malformed(error: h11.RemoteProtocolError) -> HttpError:
    if error.error_status_hint == HEAD_TOO_LARGE:
        return HttpError(HEAD_TOO_LARGE, "the head of the request is too large")
    return HttpError(BAD_REQUEST, "the request is malformed")
