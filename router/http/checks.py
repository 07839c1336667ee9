"""The hosts that a listener is asked under, and the pages that may ask it for changes, or open a WebSocket.

A page of any site can have a browser send requests to a loopback address, and can give its own name that address (DNS
rebinding). So the host of a request must be the listener's own, and a change or a WebSocket must come from no page, or
from a page of the listener itself or of a configured origin. A header that no form of HTML can send shows that a
browser has asked first (CORS).
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Final

from amqpmesh.router.config.consistency import ANYWHERE, LOCALHOST
from amqpmesh.router.http.requests import BAD_REQUEST, FORBIDDEN, MISDIRECTED, Answer, HttpError

if TYPE_CHECKING:
    from amqpmesh.router.config.listener import ListenerConfig
    from amqpmesh.router.http.requests import Request

CHANGE_HEADER: Final = "x-amqpmesh-change"
"""The header field that each change has to carry, with any value but an empty one."""

PREFLIGHT_TIME: Final = 600
"""Seconds for which a browser may remember what a page of another origin may ask for."""

_AUTHORITY: Final = re.compile(r"(?P<host>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:(?P<port>[0-9]{1,5}))?")
_DEFAULTS: Final = {"http": ":80", "https": ":443"}


class Site:
    """The names of a listener, and the origins whose pages may ask it for changes."""

    def __init__(self, config: ListenerConfig) -> None:
        endpoint = config.endpoint
        self._scheme = "https" if endpoint.secure else "http"
        self._origins = frozenset(config.origins)
        self._is_anywhere = endpoint.host in ANYWHERE
        names = {endpoint.host.lower(), *config.hosts}
        if endpoint.loopback or self._is_anywhere:
            names |= LOCALHOST
        self._names = frozenset(names)

    def check(self, request: Request) -> None:
        """Check the host that a request asks for, and the origin of a change.

        Raises: HttpError: 421: another host. 403: a change from a page of another origin, or without the header.
        """
        authority = self._own(request.headers.get("host"))
        if not request.is_change:
            return
        if self._is_foreign(request, authority):
            raise HttpError(FORBIDDEN, "pages of that origin may change nothing")
        if not request.headers.get(CHANGE_HEADER):
            raise HttpError(FORBIDDEN, f"a change needs the header field {CHANGE_HEADER}")

    def check_websocket(self, request: Request) -> None:
        """Check the host that a request for a WebSocket asks for, and its origin. Raises: HttpError: as `check`."""
        if self._is_foreign(request, self._own(request.headers.get("host"))):
            raise HttpError(FORBIDDEN, "pages of that origin may open no WebSocket; the key origins adds further ones")

    def host_of(self, request: Request) -> str:
        """Return the host that a request asks for, without its port. Raises: HttpError: as `check`."""
        return _split(self._own(request.headers.get("host")))

    def permits(self, request: Request) -> tuple[tuple[str, str], ...]:
        """Return the header fields that let a page of a configured origin read the answer (CORS)."""
        origin = request.headers.get("origin")
        if origin is None or origin not in self._origins:
            return ()
        return (("Access-Control-Allow-Origin", origin), ("Vary", "Origin"))

    def preflight(self, request: Request) -> Answer:
        """Answer a browser's question whether a page may ask for a change. Raises: HttpError: it may not."""
        self._own(request.headers.get("host"))
        permits = self.permits(request)
        if not permits:
            raise HttpError(FORBIDDEN, "pages of that origin may change nothing")
        permitted = (
            *permits,
            ("Access-Control-Allow-Methods", "GET, POST, PATCH, DELETE"),
            ("Access-Control-Allow-Headers", f"authorization, content-type, {CHANGE_HEADER}"),
            ("Access-Control-Max-Age", str(PREFLIGHT_TIME)),
        )
        return Answer(204, headers=permitted)

    def _is_foreign(self, request: Request, authority: str) -> bool:
        """Tell whether a request comes from a page of another origin. Other clients than browsers name none."""
        origin = request.headers.get("origin")
        return origin is not None and origin not in self._origins and origin != self._origin(authority)

    def _own(self, authority: str | None) -> str:
        """Return the authority of a request, in lower case. Raises: HttpError: it is not the listener's own."""
        if authority is None:
            raise HttpError(BAD_REQUEST, "the request names no host")
        authority = authority.lower()
        host = _split(authority)
        if host not in self._names and not (self._is_anywhere and _is_address(host)):
            raise HttpError(MISDIRECTED, "the listener has another host; the key hosts adds further ones")
        return authority

    def _origin(self, authority: str) -> str:
        return f"{self._scheme}://{authority.removesuffix(_DEFAULTS[self._scheme])}"


def _split(authority: str) -> str:
    """Return the host in `HOST[:PORT]`, an IPv6 address without brackets. Raises: HttpError: it is malformed."""
    found = _AUTHORITY.fullmatch(authority)
    if found is None or int(found["port"] or 0) > 0xFFFF:
        raise HttpError(BAD_REQUEST, "the host of the request is malformed")
    return found["host"].strip("[]")


def _is_address(host: str) -> bool:
    # A page cannot give an address of its own to another host.
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
