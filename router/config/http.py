"""Listeners for HTTP and WebSocket: limits of their connections, names of their hosts, and origins of other pages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from amqpmesh.router.config.tables import Effect, Table, setting, table

HTTP_MECHANISMS: Final = ("ANONYMOUS", "PLAIN", "EXTERNAL", "OAUTHBEARER")
"""The mechanisms that have a counterpart in HTTP: no authentication, Basic, a certificate in TLS, Bearer."""


@table
class HttpConfig(Table):
    """Limits of a listener for HTTP."""

    EFFECT = Effect.NEW_CONNECTIONS

    connections: int = setting(default=100, low=1, high=10_000)
    #: Octets of a request's first line and header fields together, and of its content.
    head: int = setting(default=16_384, low=1024, high=2**20)
    body: int = setting(default=65_536, low=0, high=2**24)
    #: Seconds for a whole request, for a whole answer to be read, and without a request before it is closed.
    request_time: float = setting(default=10.0, low=0.01, high=3600.0)
    answer_time: float = setting(default=60.0, low=0.01, high=3600.0)
    idle_time: float = setting(default=60.0, low=0.01, high=3600.0)
    #: Requests of all connections that the router works on at a time.
    requests: int = setting(default=4, low=1, high=1000)
    #: The part of a core's time for all connections, without the work on answers.
    share: float = setting(default=0.1, low=0.001, high=1.0)
    #: Changes of the last hour that the router keeps for the page: half of them of the mesh.
    changes: int = setting(default=500, low=2, high=10_000)


@table
class WebSocketConfig(Table):
    """Limits of a listener for WebSocket."""

    EFFECT = Effect.NEW_CONNECTIONS

    #: Octets of the first line and the header fields of the request that opens a WebSocket.
    head: int = setting(default=16_384, low=1024, high=2**20)
    #: Seconds for that request.
    request_time: float = setting(default=10.0, low=0.01, high=3600.0)


def host_refusal(hosts: Sequence[str]) -> str | None:
    """Return the reason to refuse names of hosts; None: there is none."""
    for host in hosts:
        if not re.fullmatch(r"[a-z0-9_]([a-z0-9._-]*[a-z0-9_])?", host):
            return f"{host!r} is no name of a host, in lower case and without a port"
    return None


def origin_refusal(origins: Sequence[str]) -> str | None:
    """Return the reason to refuse origins of pages (RFC 6454, 6.2); None: there is none."""
    for origin in origins:
        try:
            parts = urlsplit(origin)
            is_origin = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_origin = False
        else:
            is_origin = is_origin and origin == f"{parts.scheme}://{parts.netloc}" and parts.username is None
        if not is_origin or origin != origin.lower() or not origin.isascii():
            return f"{origin!r} is no origin of a page, such as https://console.example"
    return None
