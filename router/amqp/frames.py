"""A byte stream cut into protocol headers and frames (§2.2, §2.3)."""

from typing import Final, NamedTuple

from amqpmesh.router import kernel
from amqpmesh.router.amqp.errors import ProtocolError, framing_error

#: Every peer takes frames of this size, and no other limit holds before `open` (§2.4.1).
MIN_MAX_FRAME_SIZE: Final = 512

AMQP_FRAME: Final = 0x00
SASL_FRAME: Final = 0x01

#: Octets of a protocol header, and of a frame header without extension.
HEADER_SIZE: Final = 8

#: Octets that were handed out and are kept all the same, with what comes behind them.
_LITTLE: Final = 4 * 2**10

#: A frame without body: traffic against an idle time-out (§2.4.5).
EMPTY_FRAME: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"


def protocol_header(protocol_id: int) -> bytes:
    """The protocol header of version 1.0.0: id 0 is AMQP, 2 TLS, 3 SASL (§2.2, §5.2, §5.3)."""
    return b"AMQP" + bytes((protocol_id, 1, 0, 0))


class Frame(NamedTuple):
    """One frame: its type, its channel (0 for SASL), and its body without header and extended header."""

    type: int
    channel: int
    body: bytes


class FrameReader:
    """Collects bytes and hands out protocol headers and frames, whatever the chunks they came in.

    What is large comes in chunks that begin and end within a frame. Only that frame is put together; the others stay in
    the chunk that they came in.
    """

    def __init__(self, max_frame_size: int) -> None:
        """Args: max_frame_size: octets, the largest frame that is taken; it may be changed between frames."""
        self.max_frame_size = max_frame_size
        self._data = b""
        self._at = 0
        # What follows that, if it came later; and where.
        self._behind = b""
        self._behind_at = 0
        # The begin of a frame that comes in more than two parts, joined once, however many; and its size.
        self._begun = bytearray()
        self._wanted = 0

    def feed(self, data: bytes | bytearray | memoryview, at: int = 0) -> None:
        """Take the next bytes of the stream. Args: at: where they begin in `data`; not 0 only if `is_empty`."""
        if not data:
            return
        if self.is_empty:
            self._data = bytes(data)
            self._move(at)
            return
        if not self._begun:
            rest = memoryview(self._data)[self._at :]
            self._at = 0
            size = 0 if self._behind else self._begun_size(rest, data)
            missing = size - len(rest)
            if missing <= 0:  # more than one is here, or none that can be said to be one
                self._data = b"".join((rest, memoryview(self._behind)[self._behind_at :], data))
                self._behind = b""
                return
            if missing <= len(data):
                self._data = b"".join((rest, memoryview(data)[:missing]))
                self._leave_behind(data, missing)
                return
            self._begun += rest
            self._data = b""
            self._wanted = size
        missing = self._wanted - len(self._begun)
        self._begun += memoryview(data)[:missing]
        if missing <= len(data):
            self._data, self._at = bytes(self._begun), 0
            self._begun.clear()
            self._leave_behind(data, missing)

    def _begun_size(self, rest: memoryview, data: bytes | bytearray | memoryview) -> int:
        """The size of the frame that begins with `rest` and goes on with `data`; 0: it is not known, or none has it."""
        head = b"".join((rest[:HEADER_SIZE], memoryview(data)[: max(0, HEADER_SIZE - len(rest))]))
        if len(head) < HEADER_SIZE or head.startswith(b"AMQP"):  # a protocol header, which has no size
            return 0
        try:
            return _frame_size(head, 0, self.max_frame_size)
        except ProtocolError:
            return 0

    def _leave_behind(self, data: bytes | bytearray | memoryview, at: int) -> None:
        if at < len(data):
            self._behind, self._behind_at = bytes(data), at

    def _move(self, at: int) -> None:
        """What comes before `at` was handed out."""
        size = len(self._data)
        self._at = at
        if at == size:
            self._data, self._at, self._behind, self._behind_at = self._behind, self._behind_at, b"", 0
        elif at > _LITTLE and 2 * at > size:
            # The begin of a frame that comes later does not keep what came before it.
            self._data, self._at = self._data[at:], 0

    def starts_with(self, data: bytes) -> bool:
        """Whether what was not handed out yet begins so."""
        return self._data.startswith(data, self._at)

    def next_header(self) -> bytes | None:
        """The next 8 octets, a protocol header as it seems; None until they are here.

        Whatever cannot become one is handed out as far as that is plain, so garbage is answered without delay.
        """
        available = self._data[self._at : self._at + HEADER_SIZE]
        for length in range(1, min(len(available), 4) + 1):
            if not b"AMQP".startswith(available[:length]):
                self._move(self._at + length)
                return available[:length]
        if len(available) < HEADER_SIZE:
            return None
        self._move(self._at + HEADER_SIZE)
        return available

    @property
    def is_empty(self) -> bool:
        """All that was taken was handed out, or relayed."""
        return self._at == len(self._data) and not self._begun

    def relay(self, wire: kernel.KernelConnection) -> bool:
        """Have the frames relayed of which nothing is to be decided, up to the first other; whether there were any."""
        relayed = False
        while True:
            data, began = self._data, self._at
            at = kernel.relay_frames(wire, data, began, len(data))
            relayed = relayed or at != began
            self._move(at)
            if data is self._data or wire.pending_disposition is not None or wire.work <= 0:
                return relayed

    def relay_next(self, data: bytes | bytearray, wire: kernel.KernelConnection) -> bool:
        """Take the next bytes of the stream, and relay as `relay` does. They are kept only as far as that fails."""
        if not self.is_empty:
            self.feed(data)
            return self.relay(wire)
        data = bytes(data)
        at = kernel.relay_frames(wire, data, 0, len(data))
        if at < len(data):
            self.feed(data, at)
        return at > 0

    def next_frame(self) -> Frame | None:
        """The next whole frame; None until it is here.

        Raises: ProtocolError(CONNECTION, framing-error): a size, offset or type that no frame can have (§2.3.1).
        """
        buffer = self._data
        at = self._at
        size = self._next_size()
        if not size:
            return None
        kind = buffer[at + 5]
        channel = (buffer[at + 6] << 8) | buffer[at + 7] if kind == AMQP_FRAME else 0
        self._move(at + size)
        return Frame(kind, channel, buffer[at + buffer[at + 4] * 4 : at + size])

    @property
    def needs_more(self) -> bool:
        """Whether nothing can be handed out before more bytes have come, be it a frame or an error."""
        try:
            return self._at == len(self._data) or not self._next_size()
        except ProtocolError:
            return False

    def _next_size(self) -> int:
        """The size of the next frame; 0 until it is here whole. Raises: as `next_frame`."""
        available = len(self._data) - self._at
        if available < HEADER_SIZE:
            return 0
        size = _frame_size(self._data, self._at, self.max_frame_size)
        return size if size <= available else 0

    def take_rest(self) -> bytes:
        """What was read and belongs to no frame yet, taken out: another layer (TLS) goes on with it."""
        rest = self._data[self._at :] + self._behind[self._behind_at :] + bytes(self._begun)
        self._data = self._behind = b""
        self._at = 0
        self._begun.clear()
        return rest


def _frame_size(buffer: bytes, at: int, most: int) -> int:
    """The size of a frame of which the header begins at `at`. Raises: ProtocolError, as `FrameReader.next_frame`."""
    size = int.from_bytes(buffer[at : at + 4], "big")
    body_at = buffer[at + 4] * 4
    kind = buffer[at + 5]
    if size < HEADER_SIZE or not HEADER_SIZE <= body_at <= size:
        raise framing_error(f"frame of size {size} with data offset {body_at // 4}")
    if size > most:
        raise framing_error(f"frame of {size} bytes, {most} are agreed")
    if kind not in (AMQP_FRAME, SASL_FRAME):
        raise framing_error(f"frame of unknown type {kind}")
    return size
