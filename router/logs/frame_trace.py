"""The frames of a connection as log lines, one for each frame: `trace_frames`.

The tracer reads the same octets beside the engine. The engine does not know of it, and without tracing it costs
nothing. A line has all fields that are set, but no octets of messages or SASL exchanges: only their number.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.codec.composite import Composite, Registry, declaration, decode_composite
from amqpmesh.router.amqp.codec.field_codecs import DECLARED
from amqpmesh.router.amqp.codec.maps import Entries
from amqpmesh.router.amqp.codec.value_limits import FEW_VALUES
from amqpmesh.router.amqp.errors import ProtocolError
from amqpmesh.router.amqp.frames import SASL_FRAME
from amqpmesh.router.amqp.sasl.exchange import SaslChallenge, SaslInit, SaslMechanisms, SaslOutcome, SaslResponse
from amqpmesh.router.amqp.standard.performatives import decode_abridged, decode_performative, is_overfull
from amqpmesh.router.kernel import FrameReader, Violation
from amqpmesh.router.logs.event_log import MAX_VALUE_CHARACTERS, EventLog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqpmesh.router.kernel import Frame

NAME: Final = "amqpmesh.frames"
"""The logger; each line is of level INFO."""

_ANY_SIZE: Final = 2**32 - 1  # a frame too large for the engine ends the connection, and with it the trace
_SASL: Final[Registry[object]] = Registry(SaslMechanisms, SaslInit, SaslChallenge, SaslResponse, SaslOutcome)
_HEADER: Final = b"AMQP"
_LAYERS: Final = {0: "AMQP", 2: "TLS", 3: "SASL"}
_AMQP, _TLS = 0, 2


class FrameTracer:
    """The trace of one connection: it gets all octets in their order, outside of TLS."""

    def __init__(self, **fields: object) -> None:
        """Args: fields: of every line, such as the connection's number."""
        log = EventLog(NAME, **fields)
        self._received = _DirectionTrace("in", log)
        self._sent = _DirectionTrace("out", log)

    def received(self, data: bytes | bytearray | memoryview) -> None:
        """Trace octets from the peer. Never raise."""
        self._received.feed(data)

    def sent(self, data: bytes | bytearray | memoryview) -> None:
        """Trace octets to the peer. Never raise."""
        self._sent.feed(data)

    def secured(self) -> None:
        """Continue inside TLS, after the handshake that the last protocol headers announced (§5.2)."""
        self._received.begin()
        self._sent.begin()


class _DirectionTrace:
    """The trace of one direction of a connection."""

    def __init__(self, event: str, log: EventLog) -> None:
        self._event = event
        self._log = log
        self.begin()

    def begin(self) -> None:
        """Expect a protocol header next."""
        self._reader = FrameReader(_ANY_SIZE)
        self._in_frames = False
        self._layer = -1
        self._is_stopped = False

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Trace the next octets."""
        if self._is_stopped:
            return
        self._reader.feed(data)
        while not self._is_stopped:
            try:
                if not (self._frame() if self._in_frames else self._header()):
                    return
            except (ProtocolError, Violation) as error:
                # No frame can follow; the engine answers the error.
                self._is_stopped = True
                self._write(frame="malformed", reason=str(error))

    def _header(self) -> bool:
        """Trace the next protocol header (§2.2). Returns: True if there was one."""
        header = self._reader.next_header()
        if header is None:
            return False
        if len(header) < 8 or not header.startswith(_HEADER):
            self._is_stopped = True
            self._write(frame="malformed", reason="no protocol header")
            return True
        self._layer = header[4]
        self._write(
            frame="header", protocol=_LAYERS.get(self._layer, self._layer), version=".".join(map(str, header[5:]))
        )
        self._in_frames = True
        self._is_stopped = self._layer == _TLS  # the TLS handshake has no frames; `secured` continues
        return True

    def _frame(self) -> bool:
        """Trace the next frame, or after a SASL layer the next header (§5.3.2). Returns: True if there was one."""
        if self._layer != _AMQP and self._reader.starts_with(_HEADER):
            self._in_frames = False
            return True
        frame = self._reader.next_frame()
        if frame is None:
            return False
        if frame.type == SASL_FRAME:
            value, _ = decode_composite(_SASL, frame.body)
            self._write(frame=_label(value), **dict(_fields(value, secret=True)))
        elif not frame.body:
            self._write(channel=frame.channel, frame="empty")
        else:
            self._performative(frame)
        return True

    def _performative(self, frame: Frame) -> None:
        if is_overfull(frame.body, FEW_VALUES):
            performative = decode_abridged(frame.body, FEW_VALUES)[0]
            more: dict[str, object] = {"values": f"more than {FEW_VALUES}"}
        else:
            performative, payload_at = decode_performative(frame.body)
            more = {"payload": len(frame.body) - payload_at or None}
        self._write(
            channel=frame.channel, frame=_label(performative), **dict(_fields(performative, secret=False)), **more
        )

    def _write(self, **fields: object) -> None:
        self._log.info(self._event, **fields)


def _label(value: object) -> str:
    return declaration(type(value)).label


def _fields(value: object, *, secret: bool) -> Iterator[tuple[str, str]]:
    """Yield the fields of a composite that differ from their defaults. Args: secret: show only the size of binaries."""
    declared = declaration(type(value))
    assert isinstance(declared, Composite)
    for field in declared.fields:
        held = getattr(value, field.attribute)
        if field.mandatory or held != field.default:
            yield field.attribute, f"{len(held)} octets" if secret and isinstance(held, bytes) else _shown(held)


def _shown(value: object) -> str:
    """Return a value on one line, in the standard's notation."""
    if isinstance(value, Enum):
        return str(value.value) if isinstance(value, str) else value.name.lower().replace("_", "-")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return f"0x{value[:MAX_VALUE_CHARACTERS].hex()}"
    if isinstance(value, Entries):
        return f"{len(value)} entries"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_shown(key)}: {_shown(item)}" for key, item in value.items()) + "}"
    if isinstance(DECLARED.get(type(value)), Composite):
        return f"{_label(value)}({', '.join(f'{name}={text}' for name, text in _fields(value, secret=False))})"
    return str(value)
