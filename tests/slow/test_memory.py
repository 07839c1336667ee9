"""Memory of a router whose peers do not read, and of a router that relays messages larger than its memory."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

import pytest

from benchmarks import processes, wire
from benchmarks.generator import generate
from benchmarks.processes import cpu_seconds
from tests.slow.conftest import Soaked

pytestmark = pytest.mark.slow

MIB = 1 << 20
GIB = 1 << 30
CHUNK = 30_000  # octets of a message in each of its frames; the router's default limit of a frame is 32 KiB
ENDLESS = 10_000_000  # messages: more than a test can send
ALLOWED = 16 * MIB  # resident memory beyond that of the idle router


def head(number: int, *, more: bool, aborted: bool = False) -> bytes:
    """Encode the first transfer of a delivery."""
    fields = [wire.uint(0), wire.uint(number), b"\xa0\x01" + bytes([number]), wire.uint(0), wire.FALSE]
    fields += [
        wire.TRUE if more else wire.FALSE,
        wire.NULL,
        wire.NULL,
        wire.FALSE,
        wire.TRUE if aborted else wire.FALSE,
    ]
    return wire.described(wire.TRANSFER, *fields)


def chunks(size: int) -> Iterator[bytes]:
    """Yield `size` octets in pieces that differ."""
    noise = random.Random(size).randbytes(CHUNK + 256)
    for index, start in enumerate(range(0, size, CHUNK)):
        offset = index % 256
        yield noise[offset : offset + min(CHUNK, size - start)]


class Producer:
    """Sends messages of any size as window and credit allow."""

    def __init__(self, stream: wire.Stream, address: str) -> None:
        self.stream = stream
        self.frames = self.window_limit = self.credit_limit = 0
        self.outcomes: list[int] = []
        attach = wire.attach("producer", address, receiver=False, settled=False)
        stream.socket.sendall(wire.opening("producer") + attach)

    def take(self) -> None:
        for code, buffer, start, _ in self.stream.read():
            found = wire.fields(buffer, start)
            if code == wire.BEGIN:
                self.window_limit = found[2]
            elif code == wire.FLOW:
                self.window_limit = (found[0] or 0) + found[1]
                if len(found) > 6 and found[4] is not None:
                    self.credit_limit = (found[5] or 0) + found[6]
            elif code == wire.DISPOSITION:
                self.outcomes.append(found[4][0])

    def wait_for_credit(self, number: int) -> None:
        while self.credit_limit <= number:
            self.take()

    def send(self, performative: bytes, payload: bytes) -> None:
        while self.frames >= self.window_limit:
            self.take()
        self.stream.socket.sendall(wire.frame(performative + payload))
        self.frames += 1

    def message(self, number: int, size: int, *, abort_after: int | None = None) -> str:
        """Send a message. Args: abort_after: abort it after so many octets. Returns: the digest of the sent octets."""
        self.wait_for_credit(number)
        digest = hashlib.blake2b()
        sent = 0
        for index, chunk in enumerate(chunks(size)):
            # The body is one data section, whose size comes first.
            payload = (b"\x00\x53\x75\xb0" + size.to_bytes(4) if index == 0 else b"") + chunk
            digest.update(payload)
            if abort_after is not None and sent > abort_after:
                self.send(head(number, more=False, aborted=True), b"")
                break
            sent += len(chunk)
            self.send(head(number, more=sent < size), payload)
        return digest.hexdigest()


@dataclass
class Got:
    """The part of a delivery that a consumer has got."""

    digest: str
    octets: int
    aborted: bool


@dataclass
class Consumer:
    """Takes messages and accepts them; `pause` seconds before each read make it a slow one."""

    stream: wire.Stream
    address: str
    count: int
    pause: float = 0.0
    got: list[Got] = field(default_factory=list)
    fault: BaseException | None = None

    def attach(self) -> None:
        attach = wire.attach("consumer", self.address, receiver=True, settled=False)
        self.stream.socket.sendall(wire.opening("consumer") + attach + wire.flow(0, 0, 0, self.count))
        while wire.ATTACH not in [code for code, *_ in self.stream.read()]:
            pass

    def start(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        return thread

    def _run(self) -> None:
        try:
            self.consume()
        except BaseException as fault:
            self.fault = fault

    def consume(self) -> None:
        digest, octets, delivery_id = hashlib.blake2b(), 0, None
        while len(self.got) < self.count:
            if self.pause:
                time.sleep(self.pause)  # a slow consumer; the test waits for nothing here
            for code, buffer, start, end in self.stream.read(1 << 16):
                if code != wire.TRANSFER:
                    continue
                found = wire.fields(buffer, start) + [None] * 10
                delivery_id = found[1] if found[1] is not None else delivery_id
                payload = wire.payload(buffer, start, end)
                digest.update(payload)
                octets += len(payload)
                if not found[5]:
                    self.got.append(Got(digest.hexdigest(), octets, bool(found[9])))
                    if not found[9]:
                        self.stream.socket.sendall(wire.accept(delivery_id, delivery_id))
                    digest, octets, delivery_id = hashlib.blake2b(), 0, None


@pytest.mark.parametrize("pause", [0.0, 0.002], ids=["a fast receiver", "a slow receiver"])
def test_a_gibibyte_passes_in_less_than_16_mib(pause, soaked):
    # 64 KiB every 2 ms are 30 MB/s at most: far less than the producer could send.
    consumer = Consumer(soaked.connect(receive_buffer=1 << 16 if pause else None), "large", count=1, pause=pause)
    consumer.attach()
    producer = Producer(soaked.connect(), "large")
    producer.wait_for_credit(0)
    before = soaked.resident()
    soaked.forget_peak()
    thread = consumer.start()
    digest = producer.message(0, GIB)
    while not producer.outcomes:
        producer.take()
    thread.join()
    assert consumer.fault is None
    assert consumer.got == [Got(digest, GIB + 8, aborted=False)]
    assert producer.outcomes == [0x24]
    assert soaked.peak() - before < ALLOWED


def test_a_gibibyte_aborted_half_way_is_aborted_and_the_next_message_goes_on(soaked):
    consumer = Consumer(soaked.connect(), "large", count=2)
    consumer.attach()
    producer = Producer(soaked.connect(), "large")
    producer.wait_for_credit(0)
    before = soaked.resident()
    soaked.forget_peak()
    thread = consumer.start()
    producer.message(0, GIB, abort_after=GIB // 2)
    digest = producer.message(1, MIB)
    while 0x24 not in producer.outcomes:
        producer.take()
    thread.join()
    assert consumer.fault is None
    assert [got.aborted for got in consumer.got] == [True, False]
    assert consumer.got[1].digest == digest
    assert soaked.peak() - before < ALLOWED


@pytest.mark.parametrize("source", ["a file", "standard input"])
def test_a_quarter_of_a_gibibyte_is_sent_by_a_command_that_holds_little_of_it(source, soaked, tmp_path):
    sizes = (1, 256 * MIB)
    consumer = Consumer(soaked.connect(), "large", count=len(sizes))
    consumer.attach()
    thread = consumer.start()
    peaks = []
    for size in sizes:
        film = tmp_path / "film"
        with film.open("wb") as made:
            made.truncate(size)
        with film.open("rb") as stream:
            name = str(film) if source == "a file" else "-"
            command = [sys.executable, "-m", "amqpmesh", "send", "large", "--url", soaked.url, "--file", name]
            sender = subprocess.Popen(command, stdin=stream, stderr=subprocess.PIPE)
            _, status, usage = os.wait4(sender.pid, 0)
        assert sender.stderr is not None
        assert (status, b"accepted" in sender.stderr.read()) == (0, True)
        sender.stderr.close()
        peaks.append(usage.ru_maxrss * 1024)
    thread.join()
    assert consumer.fault is None
    assert [got.octets >= size for got, size in zip(consumer.got, sizes, strict=True)] == [True, True]
    assert peaks[1] - peaks[0] < ALLOWED


@contextmanager
def stopped_consumer(soaked) -> Iterator[wire.Stream]:
    """Attach a consumer that gives much credit, and reads only when the test says so."""
    stream = soaked.connect(receive_buffer=1 << 16)
    attach = wire.attach("consumer", "bench", receiver=True, settled=False)
    stream.socket.sendall(wire.opening("consumer") + attach + wire.flow(0, 0, 0, ENDLESS))
    while wire.ATTACH not in [code for code, *_ in stream.read()]:
        pass
    with stream.socket:
        yield stream


def wait_until_it_stands_still(pid: int, consumer: wire.Stream) -> None:
    """Wait until the router has used nearly no CPU for a second: no message moves any more."""
    deadline = time.monotonic() + 60
    while True:
        before = cpu_seconds(pid)
        time.sleep(1.0)
        consumer.beat()  # it reads nothing, and stays alive
        if cpu_seconds(pid) - before < 0.02:
            return
        assert time.monotonic() < deadline, "the producer was not stopped"


@pytest.mark.parametrize(("size", "more"), [(100, 100_000), (10_000, 10_000), (1_000_000, 300)])
def test_a_consumer_that_stops_reading_stops_its_producer_and_memory_stays_flat(size, more, soaked):
    produce = ["--url", soaked.url, "--address", "bench", "--settled", "--size", str(size), "--count", str(ENDLESS)]
    with stopped_consumer(soaked) as consumer:
        before = soaked.resident()
        soaked.forget_peak()
        with generate("send", *produce) as sender:
            wait_until_it_stands_still(soaked.pid, consumer)
            assert soaked.peak() - before < ALLOWED
            # When the consumer reads again, messages move again.
            taken = 0
            while taken < more:
                taken += sum(code == wire.TRANSFER for code, *_ in consumer.read())
            wait_until_it_stands_still(soaked.pid, consumer)
            assert soaked.peak() - before < ALLOWED
            assert sender.process.poll() is None


def test_a_consumer_that_takes_and_never_settles_stops_its_producer_and_memory_stays_flat(soaked):
    produce = ["--url", soaked.url, "--address", "bench", "--size", "1000", "--count", str(ENDLESS)]
    with stopped_consumer(soaked) as consumer:
        before = soaked.resident()
        soaked.forget_peak()
        taken = 0
        with generate("send", *produce) as sender:
            with pytest.raises(TimeoutError):  # no more octets arrive
                while True:
                    taken += sum(code == wire.TRANSFER for code, *_ in consumer.read(patience=3.0))
            assert sender.process.poll() is None
        # The credit is two thousand times the limit of unsettled deliveries.
        assert 100 < taken < ENDLESS / 100
        assert soaked.peak() - before < taken * 4096  # bytes for each unsettled delivery


READERS = 200
MEMORY = 16 * MIB
CONNECTION = 50 << 10
SPARE = 56 * MIB  # input that is not handled yet, and memory that may be free; without the process itself


def test_the_memory_of_a_router_is_what_the_operations_page_says_while_200_receivers_do_not_read(tmp_path):
    config = tmp_path / "router.toml"
    config.write_text(f'[router]\nid = "A"\nmemory = {MEMORY}\n[[listener]]\nurl = "amqp://127.0.0.1:0"\n')
    with processes.server("amqpmesh", "run", str(config)) as (url, pid), ExitStack() as stack:
        soaked = Soaked(url, pid)
        consumers = []
        for number in range(READERS):
            stream = soaked.connect(receive_buffer=1 << 12)
            stack.callback(stream.socket.close)
            attach = wire.attach("consumer", f"unread-{number}", receiver=True, settled=False)
            stream.socket.sendall(wire.opening(f"reader {number}") + attach + wire.flow(0, 0, 0, ENDLESS))
            while wire.ATTACH not in [code for code, *_ in stream.read()]:
                pass
            consumers.append(stream)
        before = soaked.resident()
        soaked.forget_peak()
        produce = ["--url", url, "--address", "unread-%", "--connections", str(READERS), "--size", "28000"]
        with generate("send", *produce, "--count", str(ENDLESS)) as sender:
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                for each in consumers:
                    with suppress(OSError):  # it held the most memory, and the router has closed its connection
                        each.beat()
                time.sleep(0.5)
            assert sender.process.poll() is None, "no sender is closed for what others do not read"
            assert soaked.peak() - before < 2 * MEMORY + SPARE + 2 * READERS * CONNECTION
            ask = [sys.executable, "-m", "amqpmesh", "status", "--url", url]
            assert "buffered" in subprocess.run(ask, capture_output=True, text=True, timeout=120, check=True).stdout
