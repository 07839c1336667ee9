"""Peers that say too much: how much memory they cost a router, and how long a bystander waits meanwhile."""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from amqpmesh.router.config.users import Users
from benchmarks import wire
from benchmarks.bench import Bench, progress
from benchmarks.memory import measured
from benchmarks.processes import load, reset_peak, resident_bytes
from benchmarks.tables import KIB, Figures, median, table
from benchmarks.targets import Target, router

OCTETS = 24_000  # of each thing that is large: a frame has 32 KiB
SESSIONS, LINKS = 4, 1024  # as many as a connection may have links
BEFORE, AFTER = 0.5, 1.0  # seconds that the bystander is looked at without an attack, and behind one
PACE = 0.002  # seconds between two of its messages
QUICK = 8  # a quick attack is so many times smaller

#: A list without anything in it is an octet on the wire, and 56 once it is made.
LISTS = (
    b"\xd1" + (OCTETS + 16).to_bytes(4, "big") + (2).to_bytes(4, "big")
    + b"\xa3\x01p\xd0" + (OCTETS + 4).to_bytes(4, "big") + OCTETS.to_bytes(4, "big") + b"\x45" * OCTETS
)  # fmt: skip
TAGS = [b"\xa0\x06%06d\x40" % number for number in range(OCTETS // 9)]
UNSETTLED = (
    b"\xd1" + (9 * len(TAGS) + 4).to_bytes(4, "big") + (2 * len(TAGS)).to_bytes(4, "big") + b"".join(TAGS)
)  # fmt: skip
WINDOW = wire.uint(2**31 - 1)
OPEN = wire.HEADER + wire.frame(wire.described(wire.OPEN, wire.text("attacker")))
BEGIN = (wire.NULL, wire.uint(0), WINDOW, WINDOW)


def _long(value: str) -> bytes:
    return b"\xb1" + len(value).to_bytes(4, "big") + value.encode()


def _links(
    number: int,
    *,
    name: str = "",
    node_filter: bytes = wire.NULL,
    unsettled: bytes = wire.NULL,
    properties: bytes = wire.NULL,
) -> list[bytes]:
    """One connection with so many receivers."""
    source = wire.described(0x28, wire.text("a"), *[wire.NULL] * 6, node_filter)
    parts = [OPEN]
    for session in range(-(-number // LINKS)):
        parts.append(wire.frame(wire.described(wire.BEGIN, *BEGIN), session))
        parts += [
            wire.frame(
                wire.described(
                    wire.ATTACH, _long(f"{session} {handle}{name}"), wire.uint(handle), wire.TRUE, wire.NULL, wire.NULL,
                    source, wire.described(0x29), unsettled, wire.NULL, wire.NULL, wire.NULL, wire.NULL, wire.NULL,
                    properties,
                ),
                session,
            )
            for handle in range(min(LINKS, number - LINKS * session))
        ]  # fmt: skip
    return [b"".join(parts)]


def _begins(connections: int) -> list[bytes]:
    begin = wire.described(wire.BEGIN, *BEGIN, wire.NULL, wire.NULL, wire.NULL, LISTS)
    return [OPEN + b"".join(wire.frame(begin, channel) for channel in range(63))] * connections


def _opens(connections: int) -> list[bytes]:
    body = wire.described(wire.OPEN, wire.text("attacker"), *[wire.NULL] * 8, LISTS)
    return [wire.HEADER + wire.frame(body)] * connections


LOGINS = "50 logins by PLAIN"
USER, PASSWORD, ITERATIONS = "ada", "right", 100_000


def _logins(connections: int) -> list[bytes]:
    """So many at once, by PLAIN."""
    response = f"\0{USER}\0{PASSWORD}".encode()
    init = wire.described(0x41, b"\xa3\x05PLAIN", b"\xa0" + bytes((len(response),)) + response)
    return [b"AMQP\x03\x01\x00\x00" + wire.frame(init, sasl=True)] * connections


CASES: dict[str, Callable[[int], list[bytes]]] = {
    "4,096 attaches, properties": lambda part: _links(SESSIONS * LINKS // part, properties=LISTS),
    "4,096 attaches, filters": lambda part: _links(SESSIONS * LINKS // part, node_filter=LISTS),
    "4,096 attaches, unsettled maps": lambda part: _links(SESSIONS * LINKS // part, unsettled=UNSETTLED),
    "4,096 attaches, names": lambda part: _links(SESSIONS * LINKS // part, name="x" * OCTETS),
    "30 x 63 begins, properties": lambda part: _begins(-(-30 // part)),
    "300 opens, properties": lambda part: _opens(300 // part),
    LOGINS: lambda part: _logins(-(-50 // part)),
}
"""The octets that each connection of an attack sends; `part` divides the size of the attack."""


def attack(url: str, case: str, part: int) -> None:
    """Send the octets of an attack as fast as the router takes them, and stay until standard input ends."""
    place = urlsplit(url)
    assert place.hostname is not None
    assert place.port is not None
    said = CASES[case](part)
    waiting: dict[socket.socket, memoryview] = {}
    for octets in said:
        sock = socket.create_connection((place.hostname, place.port))
        sock.setblocking(False)
        waiting[sock] = memoryview(octets)
    print(json.dumps({"octets": sum(map(len, said))}), flush=True)
    sys.stdin.readline()
    connected = list(waiting)
    while waiting:
        readable, writable, _ = select.select(connected, list(waiting), [])
        for sock in writable:
            try:
                waiting[sock] = waiting[sock][sock.send(waiting[sock]) :]
            except OSError:  # the router has had enough of it
                del waiting[sock]
            else:
                if not waiting[sock]:
                    del waiting[sock]
        for sock in readable:
            if not _listen(sock):
                connected.remove(sock)
                waiting.pop(sock, None)
    print(json.dumps({"said": True}), flush=True)
    sys.stdin.readline()


def _listen(sock: socket.socket) -> bool:
    """Read what the router says; whether it may say more."""
    try:
        return bool(sock.recv(1 << 20))
    except OSError:
        return False


class Bystander:
    """A sender and a receiver of their own, one message under way at a time."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        assert place.hostname is not None
        assert place.port is not None
        self._receiver, self._sender = (
            wire.Stream(socket.create_connection((place.hostname, place.port))) for _ in range(2)
        )
        credit = wire.flow(0, 0, 0, 1_000_000)
        attach = wire.attach("calm", "calm", receiver=True, settled=False)
        self._receiver.socket.sendall(wire.opening("calm receiver") + attach + credit)
        attach = wire.attach("calm", "calm", receiver=False, settled=False)
        self._sender.socket.sendall(wire.opening("calm sender") + attach)
        self._wait(self._sender, wire.FLOW)
        self._number = 0
        self._message = wire.message(100)

    @staticmethod
    def _wait(stream: wire.Stream, wanted: int) -> None:
        while all(code != wanted for code, *_ in stream.read()):
            pass

    def worst(self, seconds: float, goes_on: Callable[[], bool] = lambda: False) -> float:
        """Return the longest time of a message and its outcome, seconds.

        Args: goes_on: called again and again; `seconds` begin when it returns False.
        """
        worst, until = 0.0, 0.0
        while not until or time.monotonic() < until:
            if not until and not goes_on():
                until = time.monotonic() + seconds
            number = self._number.to_bytes(4, "big")
            self._message[wire.ID_AT : wire.ID_AT + 4] = self._message[wire.TAG_AT : wire.TAG_AT + 4] = number
            began = time.monotonic()
            self._sender.socket.sendall(self._message)
            self._wait(self._receiver, wire.TRANSFER)
            self._receiver.socket.sendall(wire.accept(self._number, self._number))
            self._wait(self._sender, wire.DISPOSITION)
            worst = max(worst, time.monotonic() - began)
            self._number += 1
            time.sleep(PACE)
        return worst

    def leave(self) -> None:
        for stream in (self._sender, self._receiver):
            stream.end()


@contextmanager
def bystander(target: Target) -> Iterator[Bystander]:
    calm = Bystander(target.send_url)
    try:
        yield calm
    finally:
        calm.leave()


def attacked(target: Target, case: str, part: int) -> Figures:
    """Attack a router. Returns: its memory, and the waits of a bystander, before and during the attack."""
    with bystander(target) as calm, load("benchmarks.hostile", target.send_url, case, str(part)) as attacker:
        octets = attacker.line()["octets"]
        alone = calm.worst(BEFORE)
        before = sum(map(resident_bytes, target.pids))
        for pid in target.pids:
            reset_peak(pid)
        attacker.go()
        said = select.poll()
        assert attacker.process.stdout is not None
        said.register(attacker.process.stdout, select.POLLIN)
        seconds = calm.worst(AFTER, goes_on=lambda: not said.poll(0))
        peak = sum(resident_bytes(pid, peak=True) for pid in target.pids)
        attacker.line()
        attacker.leave()
    return {"kib": (peak - before) / KIB, "seconds": seconds, "alone_seconds": alone, "said_kib": octets / KIB}


@contextmanager
def logged_in() -> Iterator[Target]:
    """Start a router with a user whose password takes many iterations of hashing."""
    with router(users=Users({}).add(USER, PASSWORD, ITERATIONS)) as target:
        yield target


def hostile(bench: Bench) -> None:
    """Attacks by what is said, each on a router that has just begun."""
    rows = []
    part = 1 if bench.extent else QUICK
    for case in CASES:
        if case == LOGINS and bench.router is not None:
            continue  # who may log in there is not known
        progress(f"hostile: {case}")
        found = []
        for _ in range(min(3, bench.rounds)):
            with logged_in() if case == LOGINS else measured(bench) as target:
                found.append(attacked(target, case, part))
        figures = median(found)
        bench.keep("hostile", case, {"router": figures})
        waits = [f"{1000 * figures[name]:,.0f} ms" for name in ("seconds", "alone_seconds")]
        rows.append((case, [f"{figures['said_kib'] / KIB:,.0f} MiB", f"{figures['kib'] / KIB:,.0f} MiB", *waits]))
    table("hostile peers", ["said", "more resident", "a bystander waits at most", "alone"], rows)


if __name__ == "__main__":
    attack(sys.argv[1], sys.argv[2], int(sys.argv[3]))
