"""Requests and answers of HTTP, and the error that is answered with a status."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

OK, NO_CONTENT, SEE_OTHER, NOT_MODIFIED = 200, 204, 303, 304
BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND, NOT_ALLOWED = 400, 401, 403, 404, 405
TIME_OUT, TOO_LARGE, MISDIRECTED, UPGRADE_REQUIRED, HEAD_TOO_LARGE = 408, 413, 421, 426, 431
FAULT, NOT_IMPLEMENTED, UNAVAILABLE = 500, 501, 503

REASONS: Final[Mapping[int, str]] = {
    OK: "OK",
    NO_CONTENT: "No Content",
    SEE_OTHER: "See Other",
    NOT_MODIFIED: "Not Modified",
    BAD_REQUEST: "Bad Request",
    UNAUTHORIZED: "Unauthorized",
    FORBIDDEN: "Forbidden",
    NOT_FOUND: "Not Found",
    NOT_ALLOWED: "Method Not Allowed",
    TIME_OUT: "Request Timeout",
    409: "Conflict",
    TOO_LARGE: "Content Too Large",
    MISDIRECTED: "Misdirected Request",
    UPGRADE_REQUIRED: "Upgrade Required",
    HEAD_TOO_LARGE: "Request Header Fields Too Large",
    FAULT: "Internal Server Error",
    NOT_IMPLEMENTED: "Not Implemented",
    UNAVAILABLE: "Service Unavailable",
}
"""The reason phrases of the statuses that are sent (RFC 9110, 15)."""

READING: Final = frozenset({"GET", "HEAD"})
"""Methods that change nothing."""

CHANGING: Final = frozenset({"POST", "PATCH", "DELETE"})
"""Methods that change something."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request, whole."""

    method: str
    path: str
    """Of its target, percent-decoded parts included as they came."""
    query: Mapping[str, str]
    """The parameters of its target; of several with one name, the last."""
    headers: Mapping[str, str]
    """Its header fields, by their names in lower case. `host` is the host that it asks for, wherever it says so."""
    body: bytes = b""
    version: str = "1.1"
    """Of HTTP."""

    @property
    def is_change(self) -> bool:
        """True if it asks for a change."""
        return self.method in CHANGING


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer. Its content is `body`, or the parts of `parts`, which are made while earlier ones are read."""

    status: int = OK
    body: bytes = b""
    kind: str = "text/plain; charset=utf-8"
    """The media type of the content."""
    headers: tuple[tuple[str, str], ...] = ()
    parts: AsyncGenerator[bytes, None] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Switch:
    """The answer to a request for another protocol: the connection leaves HTTP."""

    headers: tuple[tuple[str, str], ...]


class HttpError(Exception):
    """A request that is answered with an error. The text is for the client, and never quotes it."""

    def __init__(self, status: int, reason: str, *headers: tuple[str, str]) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers

    @property
    def answer(self) -> Answer:
        """The answer that it stands for."""
        return refusal(self.status, str(self), self.headers)


def refusal(status: int, reason: str, headers: tuple[tuple[str, str], ...] = ()) -> Answer:
    """Return the answer with an error. Args: reason: for people."""
    return as_json({"error": reason}, status, headers)


def as_json(value: object, status: int = OK, headers: tuple[tuple[str, str], ...] = ()) -> Answer:
    """Return the answer with a value in JSON."""
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace") + b"\n"
    return Answer(status, body, "application/json", headers)
