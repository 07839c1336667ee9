"""A router under load, and peers that write fixed octets."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest

from benchmarks import processes, wire


@dataclass(frozen=True)
class Soaked:
    """A router that runs: where, and as which process."""

    url: str
    pid: int

    def connect(self, *, receive_buffer: int | None = None) -> wire.Stream:
        """Connect to the router. Args: receive_buffer: octets that the system may hold for us."""
        url = urlsplit(self.url)
        sock = socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.connect((url.hostname, url.port))
        return wire.Stream(sock)

    def resident(self) -> int:
        return processes.resident_bytes(self.pid)

    def peak(self) -> int:
        return processes.resident_bytes(self.pid, peak=True)

    def forget_peak(self) -> None:
        processes.reset_peak(self.pid)


@pytest.fixture
def soaked() -> Iterator[Soaked]:
    """`amqpmesh run` on loopback, alone in its process."""
    with processes.router() as (url, pid):
        yield Soaked(url, pid)


@pytest.fixture
def many_files() -> Iterator[None]:
    """As many open files as the system lets us have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
