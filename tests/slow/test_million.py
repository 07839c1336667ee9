"""A million messages, and thousands of connections."""

from __future__ import annotations

import resource

import pytest

from benchmarks import wire
from benchmarks.processes import load

pytestmark = pytest.mark.slow

MILLION = 1_000_000
PAIRS = 1_000  # two connections with a link each


def test_a_million_messages_are_accepted_and_none_is_lost_or_doubled_or_overtaken(soaked):
    common = ["--url", soaked.url, "--count", str(MILLION), "--size", "100"]
    with load("benchmarks.proton_load", "receive", *common) as receiver:
        assert receiver.line() == {"ready": True}
        with load("benchmarks.proton_load", "send", *common) as sender:
            sent, received = sender.result(), receiver.result()
    assert sent["outcomes"] == {"accepted": MILLION}
    assert received["count"] == MILLION
    assert received["faults"] == 0  # each message carries its number, and came in the place of that number


def until(stream: wire.Stream, performative: int) -> tuple[bytes, int]:
    """Return the first frame of a kind: its buffer, and its offset."""
    while True:
        found = [(buffer, start) for code, buffer, start, _ in stream.read() if code == performative]
        if found:
            return found[0]


def test_two_thousand_connections_with_a_link_each_are_served(soaked, many_files):
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 2 * PAIRS + 100, "the system allows too few open files"
    receivers = [soaked.connect() for _ in range(PAIRS)]
    senders = [soaked.connect() for _ in range(PAIRS)]
    for number, stream in enumerate(receivers):
        attach = wire.attach("link", f"address-{number}", receiver=True, settled=False)
        stream.socket.sendall(wire.opening(f"receiver-{number}") + attach + wire.flow(0, 0, 0, 1))
    for stream in receivers:
        until(stream, wire.ATTACH)
    for number, stream in enumerate(senders):
        attach = wire.attach("link", f"address-{number}", receiver=False, settled=False)
        stream.socket.sendall(wire.opening(f"sender-{number}") + attach)
    # All are connected now; each sends to its own peer, and that one alone gets it.
    for number, stream in enumerate(senders):
        until(stream, wire.FLOW)
        body = wire.text(f"for {number}")
        transfer = wire.described(wire.TRANSFER, wire.uint(0), wire.uint(0), b"\xa0\x01t", wire.uint(0), wire.FALSE)
        stream.socket.sendall(wire.frame(transfer + b"\x00\x53\x77" + body))
    for number, stream in enumerate(receivers):
        buffer, start = until(stream, wire.TRANSFER)
        assert f"for {number}".encode() in buffer
        delivery_id = wire.fields(buffer, start)[1]
        stream.socket.sendall(wire.accept(delivery_id, delivery_id))
    for stream in senders:
        buffer, start = until(stream, wire.DISPOSITION)
        assert wire.fields(buffer, start)[4][0] == 0x24
    for stream in receivers + senders:
        stream.end()
