"""As much AMQP as a load client needs, in fixed bytes, so that the load costs less than what it loads.

It shares nothing with the router's engine: a fault there cannot hide itself here.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

HEADER = b"AMQP\x00\x01\x00\x00"
OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
ACCEPTED = b"\x00\x53\x24\x45"
NULL, TRUE, FALSE = b"\x40", b"\x41", b"\x42"

STAMP = struct.Struct(">QQ")  # monotonic nanoseconds, index of the message
SECTIONS = b"\x00\x53\x70\x45\x00\x53\x75\xb0"  # an empty header, as proton writes it; data

EMPTY_FRAME = b"\x00\x00\x00\x08\x02\x00\x00\x00"

PATIENCE = 60.0  # seconds without any byte, after which a load client gives up
BEAT = 2.0  # seconds between empty frames: no router is known to ask for more

_unpack_size = struct.Struct(">I").unpack_from


def uint(value: int) -> bytes:
    return b"\x70" + struct.pack(">I", value)


def text(value: str) -> bytes:
    return b"\xa1" + bytes([len(value)]) + value.encode()


def described(code: int, *fields: bytes) -> bytes:
    body = b"".join(fields)
    return b"\x00\x53" + bytes([code, 0xD0]) + struct.pack(">II", len(body) + 4, len(fields)) + body


def frame(body: bytes, channel: int = 0, *, sasl: bool = False) -> bytes:
    return struct.pack(">IBBH", len(body) + 8, 2, sasl, channel) + body


def opening(container: str, max_frame_size: int = 65536) -> bytes:
    """Protocol header, open and begin, pipelined."""
    window = uint(2**31 - 1)
    return (
        HEADER
        + frame(described(OPEN, text(container), text("localhost"), uint(max_frame_size), b"\x60\x00\x00"))
        + frame(described(BEGIN, NULL, uint(0), window, window))
    )


def attach(name: str, address: str | None, *, receiver: bool, settled: bool, handle: int = 0) -> bytes:
    """Args: address: None: to receive from a dynamic node, or to send each message where it says."""
    if address is not None:
        here = described(0x28 if receiver else 0x29, text(address))
    else:
        here = described(0x28, NULL, NULL, NULL, NULL, TRUE) if receiver else described(0x29)
    there = described(0x29 if receiver else 0x28)
    source, target = (here, there) if receiver else (there, here)
    modes = [b"\x50\x01" if settled else b"\x50\x00", b"\x50\x00"]
    count = NULL if receiver else uint(0)
    role = TRUE if receiver else FALSE
    return frame(described(ATTACH, text(name), uint(handle), role, *modes, source, target, NULL, NULL, count))


def flow(next_incoming_id: int, next_outgoing_id: int, delivery_count: int, credit: int, handle: int = 0) -> bytes:
    window = uint(2**31 - 1)
    return frame(
        described(
            FLOW, uint(next_incoming_id), window, uint(next_outgoing_id), window,
            uint(handle), uint(delivery_count), uint(credit),
        )
    )  # fmt: skip


def accept(first: int, last: int) -> bytes:
    return frame(described(DISPOSITION, TRUE, uint(first), uint(last), TRUE, ACCEPTED))


def message(size: int) -> bytearray:
    """Encode an unsettled delivery in one frame; the caller writes its delivery-id at ID_AT and its tag at TAG_AT."""
    head = b"\x43\x70" + bytes(4) + b"\xa0\x04" + bytes(4) + b"\x43" + FALSE
    performative = b"\x00\x53\x14\xc0" + bytes([len(head) + 1, 5]) + head
    return bytearray(frame(performative + SECTIONS + struct.pack(">I", size) + bytes(size)))


ID_AT = 8 + 6 + 2  # frame header, performative's head, handle and the constructor of the id
TAG_AT = ID_AT + 4 + 2


def detach(handle: int) -> bytes:
    return frame(described(DETACH, uint(handle), TRUE))


def close() -> bytes:
    return frame(described(CLOSE))


class Stream:
    """A socket cut into frames; while it reads, empty frames show the peer that it lives (§2.4.5)."""

    def __init__(self, sock: socket.socket, farewells: tuple[int, ...] = (DETACH, END, CLOSE)) -> None:
        """Args: farewells: what the peer does not say unless something is wrong."""
        self.socket = sock
        self._farewells = farewells
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(PATIENCE)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._beat_at = time.monotonic()
        self._buffer = b""
        self._greeted = False
        self._farewell: str | None = None

    def read(self, size: int = 1 << 18, *, patience: float = PATIENCE) -> Iterator[tuple[int, bytes, int, int]]:
        """Read once. Yields: for each whole frame, its performative code, the buffer, and the frame's begin and end.

        Raises: ConnectionError: the peer ended the stream, or link, session or connection in an earlier read.
            TimeoutError: no octet arrived in time.
        """
        if self._farewell is not None:
            raise ConnectionError(self._farewell)
        self._wait(patience)
        data = self.socket.recv(size)
        if not data:
            raise ConnectionError("the peer ended the stream")
        buffer = self._buffer + data if self._buffer else data
        position = 0
        if not self._greeted:
            if len(buffer) < 8:
                self._buffer = buffer
                return
            if buffer[:8] != HEADER:
                raise ConnectionError(f"the peer answered with {buffer[:8]!r}")
            self._greeted = True
            position = 8
        end = len(buffer)
        while end - position >= 8:
            length = _unpack_size(buffer, position)[0]
            if end - position < length:
                break
            if length > 8:
                # The descriptor of a performative is a small ulong in every encoder met so far.
                code = buffer[position + 10]
                if code in self._farewells:
                    self._farewell = f"the peer said {code:#x}: {buffer[position : position + length]!r}"
                yield code, buffer, position, position + length
            position += length
        self._buffer = buffer[position:]

    def beat(self) -> None:
        """Send an empty frame if it is time for one."""
        if time.monotonic() - self._beat_at > BEAT and self._greeted:
            self.socket.sendall(EMPTY_FRAME)
            self._beat_at = time.monotonic()

    def _wait(self, patience: float) -> None:
        self.beat()
        deadline = time.monotonic() + patience
        while not self._poll.poll(1000 * min(BEAT, patience)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing came for {patience:g} s")
            self.beat()

    def end(self) -> None:
        """Close, and read until the peer has closed too."""
        self.socket.sendall(close())
        self.socket.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and self.socket.recv(1 << 16):
            pass
        self.socket.close()


def fields(buffer: bytes, start: int) -> list[Any]:
    """Return the fields of the performative in the frame at `start`: numbers, booleans, None; others as octets."""
    position = start + buffer[start + 4] * 4 + 3
    constructor = buffer[position]
    if constructor == 0x45:
        return []
    if constructor == 0xC0:
        count, position = buffer[position + 2], position + 3
    else:
        count, position = _unpack_size(buffer, position + 5)[0], position + 9
    found = []
    for _ in range(count):
        value, position = _value(buffer, position)
        found.append(value)
    return found


def payload(buffer: bytes, start: int, end: int) -> bytes:
    """Return the octets after the performative in the frame from `start` to `end`."""
    position = start + buffer[start + 4] * 4 + 3
    constructor = buffer[position]
    if constructor == 0x45:
        return buffer[position + 1 : end]
    if constructor == 0xC0:
        return buffer[position + 2 + buffer[position + 1] : end]
    return buffer[position + 5 + _unpack_size(buffer, position + 1)[0] : end]


_FIXED = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0}
_WIDTHS = {0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}


def _value(buffer: bytes, position: int) -> tuple[Any, int]:
    code = buffer[position]
    position += 1
    if code in _FIXED:
        return _FIXED[code], position
    if code == 0x45:
        return b"", position
    if code == 0:
        descriptor, position = _value(buffer, position)
        value, position = _value(buffer, position)
        return (descriptor, value), position
    kind = code >> 4
    if kind in _WIDTHS:
        end = position + _WIDTHS[kind]
        return int.from_bytes(buffer[position:end]), end
    # 0xA, 0xC, 0xE: one octet of size; 0xB, 0xD, 0xF: four.
    if kind % 2 == 0:
        start, size = position + 1, buffer[position]
    else:
        start, size = position + 4, _unpack_size(buffer, position)[0]
    return buffer[start : start + size], start + size
