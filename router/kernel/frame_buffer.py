"""A byte stream cut into protocol headers and frames (§2.2, §2.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.kernel.encoded_values import uint32
from amqpmesh.router.kernel.fast_path import relay_frames
from amqpmesh.router.kernel.frame_reading import frame_size
from amqpmesh.router.kernel.violations import CONNECTION, Violation

if TYPE_CHECKING:
    from amqpmesh.router.kernel.connection_endpoint import KernelConnection

#: Octets of a protocol header, and of a frame header without extension.
_HEADER_SIZE: Final = 8

#: Octets that were read and may stay in memory, because the octets behind them are in the same buffer.
_LITTLE: Final = 4 * 2**10

#: The most octets that are kept of a connection that may be handed over: an `open`, a `begin`, an `attach`, and little
#: else.
_KEPT: Final = 4 * 2**10


class Frame:
    """One frame: its type, its channel (0 for SASL), and its body without header and extended header."""

    __slots__ = ("body", "channel", "type")

    def __init__(self, kind: int, channel: int, body: bytes) -> None:
        self.type = kind
        self.channel = channel
        self.body = body


class FrameReader:
    """A buffer that takes chunks of any size, and returns protocol headers and frames.

    A chunk of a large transfer begins and ends within a frame. Only a frame that lies in several chunks is copied; all
    others are read from the chunk that they came in.
    """

    __slots__ = ("_at", "_begun", "_behind", "_behind_at", "_data", "_wanted", "kept", "max_frame_size")

    def __init__(self, max_frame_size: int) -> None:
        """Args: max_frame_size: octets of the largest frame that is accepted; it may change between frames."""
        self.max_frame_size = max_frame_size
        self._data = b""
        self._at = 0
        # The chunk behind `_data`, if there is one, and its first unread octet.
        self._behind = b""
        self._behind_at = 0
        # The begin of a frame that comes in more than two chunks, and the frame's size. The chunks are joined once.
        self._begun: bytearray | None = None
        self._wanted = 0
        #: All octets from AMQP's protocol header on, while the connection may be handed over; empty: there were too
        #: many. None: they are not kept.
        self.kept: bytearray | None = None

    def feed(self, data: bytes | bytearray | memoryview, at: int = 0) -> None:
        """Take the next bytes of the stream. Args: at: their begin in `data`; 0 unless `is_empty`."""
        if not data:
            return
        if self.kept:
            self._keep(data)
        if self.is_empty():
            self._data = bytes(data)
            self._mark_read(at)
            return
        if self._begun is None:
            rest = memoryview(self._data)[self._at :]
            self._at = 0
            size = 0 if self._behind else self._begun_size(rest, data)
            missing = size - len(rest)
            if missing <= 0:  # there are several frames, or the size of the first is not known
                self._data = b"".join((rest, memoryview(self._behind)[self._behind_at :], data))
                self._behind = b""
                return
            if missing <= len(data):
                self._data = b"".join((rest, memoryview(data)[:missing]))
                self._leave_behind(data, missing)
                return
            self._begun = bytearray(rest)
            self._data = b""
            self._wanted = size
        missing = self._wanted - len(self._begun)
        self._begun += memoryview(data)[:missing]
        if missing <= len(data):
            self._data, self._at = bytes(self._begun), 0
            self._begun = None
            self._leave_behind(data, missing)

    def begin_to_keep(self, header: bytes) -> None:
        """Keep all octets from now on. Args: header: the protocol header that was read last."""
        self.kept = bytearray(header)
        self._keep(self._unread())

    def _keep(self, data: bytes | bytearray | memoryview) -> None:
        assert self.kept is not None
        if len(self.kept) + len(data) > _KEPT:
            self.kept.clear()
        else:
            self.kept += data

    def _begun_size(self, rest: memoryview, data: bytes | bytearray | memoryview) -> int:
        """Return the size of the frame that begins with `rest` and goes on with `data`; 0: it is unknown or illegal."""
        head = b"".join((rest[:_HEADER_SIZE], memoryview(data)[: max(0, _HEADER_SIZE - len(rest))]))
        if head.startswith(b"AMQP"):  # a protocol header has no size field
            return 0
        return max(0, frame_size(head, 0, self.max_frame_size))

    def _leave_behind(self, data: bytes | bytearray | memoryview, at: int) -> None:
        if at < len(data):
            self._behind, self._behind_at = bytes(data), at

    def _mark_read(self, at: int) -> None:
        """Note that the octets before `at` were read."""
        size = len(self._data)
        self._at = at
        if at == size:
            self._data, self._at, self._behind, self._behind_at = self._behind, self._behind_at, b"", 0
        elif at > _LITTLE and 2 * at > size:
            # The begin of an incomplete frame does not keep the frames before it in memory.
            self._data, self._at = self._data[at:], 0

    def _unread(self) -> bytes:
        return self._data[self._at :] + self._behind[self._behind_at :] + bytes(self._begun or b"")

    def starts_with(self, data: bytes) -> bool:
        """Return whether the unread octets begin with `data`."""
        return self._data.startswith(data, self._at)

    def next_header(self) -> bytes | None:
        """Return the next 8 octets, which may be a protocol header; None until they have come.

        Octets that cannot begin a header are returned at once, up to the first wrong one: garbage is answered without
        delay.
        """
        available = self._data[self._at : self._at + _HEADER_SIZE]
        if len(available) == _HEADER_SIZE and available.startswith(b"AMQP"):
            self._mark_read(self._at + _HEADER_SIZE)
            return available
        for length in range(1, min(len(available), 4) + 1):
            if not b"AMQP".startswith(available[:length]):
                self._mark_read(self._at + length)
                return available[:length]
        return None

    def is_empty(self) -> bool:
        """Return whether all octets that were taken have been read or relayed."""
        return self._at == len(self._data) and self._begun is None

    def relay(self, wire: KernelConnection) -> bool:
        """Relay frames, up to the first that needs a decision. Returns: whether any was relayed."""
        relayed = False
        while self._at < len(self._data):
            data, began = self._data, self._at
            at = relay_frames(wire, data, began, len(data))
            relayed = relayed or at != began
            self._mark_read(at)
            if data is self._data or wire.pending_disposition is not None or wire.work <= 0:
                break
        return relayed

    def relay_next(self, data: bytes | bytearray, wire: KernelConnection) -> bool:
        """Take the next bytes of the stream, and relay frames as `relay` does. Only bytes that are left are kept."""
        if not self.is_empty():
            self.feed(data)
            return self.relay(wire)
        read = bytes(data)
        at = relay_frames(wire, read, 0, len(read))
        if at < len(read):
            self.feed(read, at)
        return at > 0

    def next_frame(self) -> Frame | None:
        """Return the next whole frame; None until it has come.

        Raises: Violation(CONNECTION, framing-error): an illegal size, data offset or type (§2.3.1).
        """
        data, at = self._data, self._at
        size = frame_size(data, at, self.max_frame_size)
        if size < 0:
            raise Violation(CONNECTION, "amqp:connection:framing-error", _why_refused(data, at, self.max_frame_size))
        if not size or size > len(data) - at:
            return None
        kind = data[at + 5]
        channel = 0 if kind else data[at + 6] << 8 | data[at + 7]
        frame = Frame(kind, channel, data[at + data[at + 4] * 4 : at + size])
        self._mark_read(at + size)
        return frame

    def needs_more(self) -> bool:
        """Return whether more bytes must come before a frame can be returned, or an error raised."""
        size = frame_size(self._data, self._at, self.max_frame_size)
        return size == 0 or size > len(self._data) - self._at

    def take_rest(self) -> bytes:
        """Take out the unread octets: they belong to another layer (TLS)."""
        rest = self._unread()
        self._data = self._behind = b""
        self._at = 0
        self._begun = None
        return rest


def _why_refused(data: bytes, at: int, most: int) -> str:
    """Return the description of the error of the illegal frame header at `at`."""
    size = uint32(data, at)
    body_at = data[at + 4] * 4
    if size < _HEADER_SIZE or not _HEADER_SIZE <= body_at <= size:
        return f"frame of size {size} with data offset {body_at // 4}"
    if size > most:
        return f"frame of {size} bytes, {most} are agreed"
    return f"frame of unknown type {data[at + 5]}"
