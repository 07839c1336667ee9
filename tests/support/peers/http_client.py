"""A client of HTTP that sends what the test writes."""

from __future__ import annotations

import json
import ssl
from base64 import b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio

if TYPE_CHECKING:
    from amqpmesh import Router

PATIENCE = 60.0
"""Seconds until a test fails that waits for an answer."""


@dataclass(frozen=True, slots=True)
class Told:
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The content, if it is JSON."""
        return json.loads(self.body)


class HttpClient:
    """A client of one listener. Each request has a connection of its own."""

    def __init__(self, port: int, *, host: str = "localhost", context: ssl.SSLContext | None = None) -> None:
        self._port = port
        self._host = host
        self._context = context

    @classmethod
    def of(cls, router: Router, position: int = 0, **settings: Any) -> HttpClient:
        """Return a client of a listener of a router in this process."""
        return cls(int(router.listeners[position].url.rpartition(":")[2]), **settings)

    async def connect(self) -> trio.abc.Stream:
        """Return a new connection."""
        stream: trio.abc.Stream = await trio.open_tcp_stream("127.0.0.1", self._port)
        if self._context is not None:
            stream = trio.SSLStream(stream, self._context, server_hostname="localhost", https_compatible=True)
        return stream

    async def get(self, path: str, **headers: str) -> Told:
        """Ask for a page. Args: headers: with `_` in place of `-`."""
        return await self.ask("GET", path, **headers)

    async def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Told:
        """Send a request. Args: headers: as of `get`."""
        named = {"host": self._host, "connection": "close", **{k.replace("_", "-"): v for k, v in headers.items()}}
        if body:
            named["content-length"] = str(len(body))
        head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        return await self.send(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)

    async def send(self, data: bytes) -> Told:
        """Send octets on a new connection, and return the answer, up to its end."""
        with trio.fail_after(PATIENCE):
            stream = await self.connect()
            async with stream:
                await stream.send_all(data)
                answer = bytearray()
                while more := await stream.receive_some(2**16):
                    answer += more
        return told(bytes(answer))


def told(data: bytes) -> Told:
    """Read an answer."""
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        body = b"".join(_chunks(body))
    return Told(int(first.split()[1]), headers, body)


def _chunks(data: bytes) -> list[bytes]:
    found = []
    while True:
        size, _, data = data.partition(b"\r\n")
        if int(size, 16) == 0:
            return found
        found.append(data[: int(size, 16)])
        data = data[int(size, 16) + 2 :]


def basic(user: str, password: str) -> str:
    """Return the field `authorization` of a user with a password."""
    return "Basic " + b64encode(f"{user}:{password}".encode()).decode()
