"""The load generator: its counters, and its detection of faulty peers."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from benchmarks import wire
from benchmarks.generator import generate, has_tls, program
from benchmarks.processes import Failed
from benchmarks.targets import certificate, router

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="the generator is written in C")
HAS_TLS = shutil.which("cc") is not None and has_tls("cc")

COUNT = 40
VICTIM = 20  # the number of the message with the fault
PATIENCE = ("--patience", "0.5")  # seconds without any octet

Frames = list[bytes]
Fault = Callable[[int, bytes], Frames]
"""(number of a frame of one kind, the frame) -> what is passed on in its place."""


class Between:
    """A proxy between two peers. It passes all frames on, except for a fault in frames of one kind."""

    def __init__(self, to: str, code: int, fault: Fault) -> None:
        self._to = int(to.rpartition(":")[2])
        self._code, self._fault = code, fault
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"amqp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Between:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        for each in self._sockets:
            each.close()
        self._thread.join(10)

    def _run(self) -> None:
        client, _ = self._listener.accept()
        server = socket.create_connection(("127.0.0.1", self._to))
        self._sockets += [client, server]
        threads = [threading.Thread(target=self._pass_on, args=ends) for ends in ((client, server), (server, client))]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        seen = 0
        try:
            with source.makefile("rb") as stream:
                sink.sendall(stream.read(8))  # the protocol header
                while head := stream.read(4):
                    frame = head + stream.read(int.from_bytes(head) - 4)
                    if len(frame) > 8 and frame[10] == self._code:
                        for each in self._fault(seen, frame):
                            sink.sendall(each)
                        seen += 1
                    else:
                        sink.sendall(frame)
                sink.shutdown(socket.SHUT_WR)
        except OSError:
            return  # the other end has given up, as it should


@contextmanager
def through(code: int, fault: Fault, *options: str) -> Iterator[tuple[Any, Any]]:
    """Run a receiver and a sender with a faulty peer between them. Yields: their results, in this order."""
    with ExitStack() as stack:
        common = ["--count", str(COUNT), *PATIENCE, *options]
        receiver = stack.enter_context(generate("receive", "--listen", *common))
        between = stack.enter_context(Between(receiver.line()["url"], code, fault))
        sender = stack.enter_context(generate("send", "--url", between.url, *common))
        sender.line()
        yield receiver, sender


def pair(*options: str, receiving: tuple[str, ...] = ()) -> tuple[Any, Any]:
    """Run a receiver, and a sender that is connected to it directly. Returns: their results, in this order."""
    with generate("receive", "--listen", *PATIENCE, *options, *receiving) as receiver:
        url = receiver.line()["url"]
        with generate("send", "--url", url, *PATIENCE, *options) as sender:
            sender.line()
            return receiver.result(), sender.result()


def instead(number: int, frames: Callable[[bytes], Frames]) -> Fault:
    """Return a fault that replaces one frame. Args: frames: returns the frames in its place."""
    return lambda seen, frame: frames(frame) if seen == number else [frame]


def swapped() -> Fault:
    """Return a fault that swaps a frame with the next one."""
    held: Frames = []

    def fault(seen: int, frame: bytes) -> Frames:
        if seen == VICTIM:
            held.append(frame)
            return []
        return [frame, held.pop()] if held else [frame]

    return fault


def resized(frame: bytes) -> bytes:
    return len(frame).to_bytes(4) + frame[4:]


@pytest.mark.parametrize("mode", [(), ("--settled",), ("--second",)], ids=["unsettled", "settled", "second"])
@pytest.mark.parametrize(
    "shape",
    [
        ("--size", "16"),
        ("--rich", "--size", "100"),
        ("--size", "100x3,200000", "--max-frame-size", "512"),
        ("--connections", "3", "--links", "4", "--size", "100,20000"),
        ("--each", "--credit", "1"),
    ],
    ids=lambda shape: " ".join(shape),
)
def test_a_sent_message_arrives_and_has_an_outcome(mode: tuple[str, ...], shape: tuple[str, ...]) -> None:
    received, sent = pair("--count", str(COUNT), *mode, *shape)
    assert received["count"] == sent["count"] == COUNT
    assert received["octets"] == sent["octets"]
    assert sent["outcomes"] == ({} if mode == ("--settled",) else {"accepted": COUNT})
    assert received["latency_us"]["count"] == COUNT


@pytest.mark.skipif(not HAS_TLS, reason="OpenSSL's headers are not here")
def test_tls_carries_the_same() -> None:
    with certificate() as files:
        options = ["--count", str(COUNT), "--connections", "20", "--size", "100,100000"]
        received, sent = pair(*options, receiving=("--certificate", files.certificate, "--key", files.key))
    assert received["count"] == COUNT
    assert sent["outcomes"] == {"accepted": COUNT}


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (instead(VICTIM, lambda frame: []), f"message {VICTIM + 1} came in the place of {VICTIM}"),
        (instead(VICTIM, lambda frame: [frame, frame]), f"message {VICTIM} came in the place of {VICTIM + 1}"),
        (swapped(), f"message {VICTIM + 1} came in the place of {VICTIM}"),
        (instead(VICTIM, lambda frame: [frame[:-1] + bytes([frame[-1] ^ 1])]), f"content of message {VICTIM} is not"),
        (instead(VICTIM, lambda frame: [resized(frame[:-1])]), f"message {VICTIM} is too short"),
        (instead(VICTIM, lambda frame: [resized(frame + b"x")]), f"message {VICTIM} is too long"),
        (instead(VICTIM, lambda frame: [frame[:31] + b"\x41" + frame[32:]]), f"message {VICTIM} came settled"),
        (instead(COUNT - 1, lambda frame: []), f"{COUNT - 1} of {COUNT} received"),
        (instead(COUNT - 1, lambda frame: [frame + frame]), "more messages came than were sent"),
    ],
    ids=["lost", "doubled", "out of order", "altered", "shorter", "longer", "settled", "the last lost", "one more"],
)
def test_a_receiver_sees_what_a_faulty_peer_does(fault: Fault, reason: str) -> None:
    with through(wire.TRANSFER, fault) as (receiver, _):
        with pytest.raises(Failed, match=reason):
            receiver.result()
        assert receiver.process.wait(5) == 1


def test_pre_settled_messages_that_are_dropped_are_counted_where_that_may_be() -> None:
    fault = instead(VICTIM, lambda frame: [])
    with through(wire.TRANSFER, fault, "--settled", "--lossy", "--patience", "0.2") as (receiver, _):
        received = receiver.result()
    assert (received["count"], received["lost"]) == (COUNT - 1, 1)


def test_a_sender_counts_each_outcome_by_its_kind() -> None:
    def rejected(frame: bytes) -> Frames:
        return [frame.replace(wire.ACCEPTED, b"\x00\x53\x25\x45")]

    with through(wire.DISPOSITION, instead(VICTIM, rejected), "--each") as (_, sender):
        assert sender.result()["outcomes"] == {"accepted": COUNT - 1, "rejected": 1}


def test_a_sender_whose_outcomes_do_not_come_says_so() -> None:
    with (
        through(wire.DISPOSITION, instead(VICTIM, lambda frame: []), "--each") as (_, sender),
        pytest.raises(Failed, match=f"{COUNT - 1} settled|has closed the connection"),
    ):
        sender.result()


def test_a_message_that_had_to_wait_is_as_old_as_it_was_due() -> None:
    stall = 0.4  # seconds

    def late(frame: bytes) -> Frames:
        time.sleep(stall)  # this peer is the measured one
        return [frame]

    # Twenty messages are due while the peer stalls. A sender that waited for the peer would give them later times.
    with through(wire.TRANSFER, instead(VICTIM, late), "--rate", "50", *("--patience", "5")) as (receiver, sender):
        latency = receiver.result()["latency_us"]
        sent = sender.result()
    assert latency["max"] > stall * 1e6
    assert latency["p90"] > stall / 2 * 1e6
    assert sent["seconds"] > (COUNT - 1) / 50


def test_one_is_outstanding_on_each_pair_where_that_is_wanted() -> None:
    pairs = 4
    outstanding = most = 0
    lock = threading.Lock()

    def count(change: int) -> Fault:
        def fault(seen: int, frame: bytes) -> Frames:
            nonlocal outstanding, most
            with lock:
                outstanding += change
                most = max(most, outstanding)
            return [frame]

        return fault

    options = ["--count", str(COUNT), "--links", str(pairs), "--each"]
    with (
        generate("receive", "--listen", *options) as receiver,
        Between(receiver.line()["url"], wire.TRANSFER, count(1)) as nearer,
        Between(nearer.url, wire.DISPOSITION, count(-1)) as farther,
        generate("send", "--url", farther.url, *options, "--outstanding", "1") as sender,
    ):
        sender.line()
        assert sender.result()["outcomes"] == {"accepted": COUNT}
    assert 1 <= most <= pairs


def test_a_receiver_that_holds_settles_nothing_until_it_is_told() -> None:
    options = ["--count", str(COUNT), "--credit", str(COUNT)]
    with (
        generate("receive", "--listen", *options, "--hold") as receiver,
        generate("send", "--url", receiver.line()["url"], *options) as sender,
    ):
        sender.line()
        assert receiver.line() == {"held": COUNT}
        receiver.go()
        assert receiver.result()["count"] == COUNT
        assert sender.result()["outcomes"] == {"accepted": COUNT}


def test_a_peer_that_keeps_no_link_is_told_apart_from_one_that_does() -> None:
    with (
        generate("receive", "--listen", "--count", str(COUNT)) as receiver,
        generate("send", "--url", receiver.line()["url"], "--count", str(COUNT), "--lasting", "60") as sender,
        pytest.raises(Failed, match="keeps no terminus of load-0"),
    ):
        sender.line()
    options = ["--count", str(COUNT), "--lasting", "60"]
    with (
        router() as target,
        generate("receive", "--url", target.receive_url, "--whole", *options) as receiver,
        generate("send", "--url", target.send_url, *options) as sender,
    ):
        receiver.line()
        sender.line()
        assert sender.result()["outcomes"] == {"accepted": COUNT}
        assert receiver.result()["count"] == COUNT


@pytest.mark.parametrize(
    "options",
    [
        ["loiter"],
        ["send"],
        ["send", "--listen"],
        ["send", "--url", "http://127.0.0.1:1"],
        ["receive", "--listen", "--size", "15"],
        ["receive", "--listen", "--links", "2", "--address", "one"],
        ["receive", "--listen", "--settled", "--second"],
        ["receive", "--listen", "--count", "many"],
        ["receive", "--listen", "--lasting", "60"],
    ],
    ids=" ".join,
)
def test_arguments_that_make_no_sense_are_refused(options: list[str]) -> None:
    done = subprocess.run([program(), *options], capture_output=True, text=True, timeout=10, check=False)
    assert done.returncode == 2
    assert "loadgen" in done.stderr
