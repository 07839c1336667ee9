"""A connection endpoint without socket and clock: bytes in, events out; commands in, bytes out (§2.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router import kernel
from amqpmesh.router.amqp.channels import Channels
from amqpmesh.router.amqp.connection_settings import ConnectionSettings, encoded_open
from amqpmesh.router.amqp.errors import CommandError, ProtocolError, Scope, framing_error
from amqpmesh.router.amqp.events import (
    Authenticated,
    ConnectionClosed,
    ConnectionOpened,
    Event,
    SaslWorkDue,
    TlsRequested,
)
from amqpmesh.router.amqp.frames import (
    AMQP_FRAME,
    EMPTY_FRAME,
    HEADER_SIZE,
    MIN_MAX_FRAME_SIZE,
    SASL_FRAME,
    protocol_header,
)
from amqpmesh.router.amqp.incoming_frames import kernel_events, receive_frame
from amqpmesh.router.amqp.negotiation import AMQP_ID, Negotiation, P, Progress
from amqpmesh.router.amqp.session import Session
from amqpmesh.router.amqp.shortening import short_farewell
from amqpmesh.router.amqp.standard.conditions import AmqpCondition, ConnectionCondition, endpoint_condition
from amqpmesh.router.amqp.standard.definitions import Error
from amqpmesh.router.amqp.standard.performatives import (
    PLAIN_CLOSE,
    Begin,
    Close,
    Detach,
    End,
    Open,
    Performative,
    encode_performative,
)
from amqpmesh.router.amqp.states import CLOSING, CONNECTION, SENDING, STEP, ConnectionState, Step, direct
from amqpmesh.router.amqp.timeouts import QUIET, Due, Liveness

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from amqpmesh.router.amqp.codec.types import Symbol

S = direct(ConnectionState)


class Connection:
    """A connection endpoint of ours, as client or as server."""

    # Instances with 30 attributes or more do not share the keys of their dictionaries, at 1.6 KB each: hence slots.
    __slots__ = (
        "__weakref__",
        "_closed_told",
        "_events",
        "_opening",
        "_reader",
        "_waiting",
        "channels",
        "context",
        "finished",
        "flow_state",
        "hostname",
        "in_full",
        "is_deaf",
        "liveness",
        "negotiation",
        "remote",
        "settings",
        "state",
    )

    def __init__(
        self, settings: ConnectionSettings, negotiation: Negotiation, now: float, *, hostname: str | None = None
    ) -> None:
        """Args: negotiation: the layers below AMQP (part 5). hostname: the peer's, as our `open` names it."""
        self.settings = settings
        self.negotiation = negotiation
        self.hostname = hostname
        self.state = S.START
        #: The peer's `open`, or what the owner of the connection keeps of it.
        self.remote: Open | None = None
        #: The kernel's part: bytes to be sent, and sessions.
        self.flow_state = kernel.KernelConnection()
        self.flow_state.max_frame_size = settings.max_frame_size
        #: The peer names all fields of its frames, and may need the same of ours.
        self.in_full = False
        #: Nothing more will be read or written: the transport is to be closed once `out` is empty.
        self.finished = False
        self.channels = Channels(settings.channel_max)
        #: For the owner of the connection.
        self.context: object = None

        # SASL frames are rarely larger (§5.3.1). AMQP's may be, once the peer's protocol header has come.
        self._reader = kernel.FrameReader(MIN_MAX_FRAME_SIZE)
        #: TLS or work of the SASL exchange is under way: input is not read until it is done.
        self._waiting = False
        self._events: list[Event] = []  # an empty deque has 700 octets
        self.liveness = Liveness(now, settings)
        #: `open` is to be sent as soon as the layers below are agreed on.
        self._opening = False
        self._closed_told = False
        #: Input is dropped: it has lost its frame boundaries, or our `close` was not answered in time.
        self.is_deaf = False
        negotiation.start()
        self._send_negotiation()

    # ---------------------------------------------------------------------------------------------------- commands

    @property
    def out(self) -> bytearray:
        """Bytes to be sent, in order."""
        return self.flow_state.out

    @property
    def remote_max_frame_size(self) -> int:
        """The octets of the largest frame that the peer takes."""
        return self.flow_state.remote_max_frame_size

    @property
    def can_send(self) -> bool:
        """Frames other than `open` may be sent (figure 2.24)."""
        return self.state in SENDING

    @property
    def user(self) -> str | None:
        """The user that SASL has authenticated; None: there is none."""
        return self.negotiation.sasl.user if self.negotiation.sasl is not None else None

    def open(self) -> None:
        """Send our `open` (§2.7.1), after the negotiation of security layers if that is under way (§5.1).

        Raises: CommandError: it was sent already, or does not fit into the peer's frames.
        """
        if self.state is S.START and not self._opening:
            self._opening = True
            return
        after = self._step(STEP.SENT_OPEN)
        self.write_body(0, "open", encoded_open(self.settings, self.hostname, compact=self.flow_state.compact))
        self._set_state(after)

    def restrict(self, settings: ConnectionSettings) -> None:
        """Take other settings, before `open` is sent: with tighter limits, or with properties."""
        self.settings = settings
        self.liveness.idle_time_out = settings.idle_time_out
        self._reader.max_frame_size = self.flow_state.max_frame_size = settings.max_frame_size

    def begin(self, window: int | None = None, *, desired_capabilities: Sequence[Symbol] = ()) -> Session:
        """Initiate a session (§2.5.1).

        Args: window: transfer frames that may be unreleased; None: a share of the connection's window.
            desired_capabilities: of the session (§2.7.2).
        Raises: CommandError: the connection is not open, or no channel is free.
        """
        session = self._new_session(window)
        session.begin(desired_capabilities=desired_capabilities)
        return session

    def close(self, error: Error | None = None) -> None:
        """Send our `close`, the last frame (§2.4.3). Raises: CommandError: it was sent already."""
        after = self._step(STEP.SENT_CLOSE if error is None else STEP.SENT_ERROR)
        self.flush()
        if error is None:
            self.flow_state.append(0, PLAIN_CLOSE)
        else:
            self.write(0, Close(error=error))
        self._set_state(after)
        self.liveness.closing()

    def secured(self) -> None:
        """Go on inside TLS: the handshake that `TlsRequested` asked for is done (§5.2)."""
        self._waiting = False
        self.negotiation.secured()
        self._send_negotiation()

    def sasl_worked(self, now: float) -> None:
        """Go on with the SASL exchange: the work that `SaslWorkDue` asked for is done (§5.3.2).

        The caller must then exhaust `receive(b"", now)`.
        """
        self._waiting = False
        if not self.finished:
            self.liveness.resume(now)
            self.report(self._advance(self.negotiation.sasl_worked()))

    # ------------------------------------------------------------------------------------------------ bytes and time

    def relay(self, data: bytes | bytearray, now: float) -> bool | None:
        """Take the next bytes, and relay the frames that need no decision.

        Returns: True: all whole frames were relayed. False: the caller must exhaust `receive(b"", now)`. None: it must
            be called again without bytes, after `waits_for` is written, or others' turn.
        """
        reader, flow_state = self._reader, self.flow_state
        flow_state.waits_for = None
        if not flow_state.is_open or self._events or flow_state.pending_disposition is not None:
            if not (self.finished or self.is_deaf):
                reader.feed(data)
            return False
        if reader.relay_next(data, flow_state):
            self.liveness.received_at = now
        if flow_state.pending_disposition is not None:
            return False if flow_state.waits_for is None else None
        if reader.needs_more():
            return True
        return None if flow_state.waits_for is not None or flow_state.work <= 0 else False

    def receive(self, data: bytes | bytearray | memoryview, now: float) -> Iterator[Event]:
        """Take the next bytes, and yield the peer's actions as events, frame by frame.

        A frame is read only after the caller has taken the event before it, so the caller's reaction to an event
        holds for the frames behind it. The caller must exhaust the iterator. Errors of the peer are answered here.
        The iterator ends early if `flow_state.waits_for` is to be written first.
        """
        events: Iterable[Event]
        flow_state, reader, negotiation = self.flow_state, self._reader, self.negotiation
        has_stopped = not data and flow_state.pending_disposition is None  # `relay` did, at the next frame
        if data and not (self.finished or self.is_deaf):
            reader.feed(data)
        while True:
            while self._events:
                yield self._events.pop(0)
            if self.finished or self.is_deaf or self._waiting:
                return
            try:
                if not negotiation.in_frames:
                    header = reader.next_header()
                    if header is None:
                        return
                    self.liveness.received_at = now
                    events = self._advance(negotiation.receive_header(header))
                else:
                    if flow_state.pending_disposition is not None or (
                        not has_stopped and flow_state.is_open and reader.relay(flow_state)
                    ):
                        self.liveness.received_at = now
                        is_next = flow_state.pending_disposition is None and flow_state.work > 0
                        yield from kernel_events(flow_state)
                        if not is_next:  # the next frame did not stop the kernel: it may be relayed, too
                            continue
                    has_stopped = False
                    if flow_state.waits_for is not None:
                        return
                    frame = reader.next_frame()
                    if frame is None:
                        return
                    self.liveness.received_at = now
                    flow_state.waits_since = -1.0  # the frame that may have waited is read now
                    if negotiation.in_sasl or frame.type != AMQP_FRAME:
                        events = self._receive_sasl(frame)
                    else:
                        events = receive_frame(self, frame)
            except ProtocolError as error:
                events = self._fail(error)
            except kernel.Violation as violation:
                events = self._fail(
                    ProtocolError(Scope.CONNECTION, endpoint_condition(violation.condition), violation.description)
                )
            yield from events
            if reader.is_empty() and not self._events and flow_state.pending_disposition is None:
                return

    def receive_eof(self) -> tuple[Event, ...]:
        """Take the end of the transport: no byte will come, and none can be sent."""
        self._reader.take_rest()
        self.flow_state.out = bytearray()
        self.flow_state.sending = 0
        return self._end(None, by_peer=True)

    def flush(self) -> None:
        """Write the dispositions and flows that are due on sessions and links."""
        self.flow_state.flush()

    def data_to_send(self, now: float) -> bytearray:
        """Return the bytes to be sent, after a flush. They count as sent."""
        data = self.flow_state.take()
        if data:
            self.liveness.sent(now)
        return data

    def stop_keeping(self) -> bytes:
        """Keep no more input. Returns: all since AMQP's protocol header (`Negotiation.keeps_input`), if it was kept."""
        self.negotiation.keeps_input = False
        kept, self._reader.kept = self._reader.kept, None
        self.flow_state.is_open = self.state is S.OPENED
        return bytes(kept or b"")

    def next_timer(self) -> float | None:
        """Return the time by which `handle_timer` must be called; None: there is nothing to wait for."""
        if self._events:
            return self.liveness.received_at
        return None if self.finished else self.liveness.next_timer()

    def is_quiet(self, now: float) -> bool:
        """Return whether `handle_timer` has no event to return now."""
        return not self._events and self.liveness.due(now) in QUIET

    def handle_timer(self, now: float) -> tuple[Event, ...]:
        """Do what the time asks for: send an empty frame, or close the connection of a silent peer (§2.4.5)."""
        events = tuple(self._events)
        self._events.clear()
        if self.finished:
            return events
        if self.flow_state.waits_for is not None:
            self.liveness.received_at = now  # the peer is not silent: its input waits here, unread
        due = self.liveness.due(now)
        if due is Due.HEARTBEAT:
            self.probe(now)
        elif due is Due.CLOSE_LATE:
            self.is_deaf, events = True, events + self._end(None, by_peer=False)
        elif due is not Due.NOTHING:
            reason = self.liveness.reason(due)
            events += self._fail(ProtocolError(Scope.CONNECTION, AmqpCondition.RESOURCE_LIMIT_EXCEEDED, reason))
        return events

    def probe(self, now: float) -> None:
        """Send something to the peer: an empty frame, if nothing else is due (§2.4.5)."""
        if self.can_send and not self.out:
            self.out.extend(EMPTY_FRAME)
        self.liveness.sent(now)
        self.flow_state.wake()

    # --------------------------------------------------------------------------------------------- for the sessions

    def write(self, channel: int, performative: Performative) -> None:
        """Append a frame. An error that is too long for the peer's frames is shortened.

        Raises: CommandError: the frame is too large for the peer; nothing was written.
        """
        body = encode_performative(performative, compact=self.flow_state.compact)
        if isinstance(performative, Detach | End | Close) and len(body) > self._room:
            self.flow_state.append(channel, encode_performative(short_farewell(performative)))
        else:
            self.write_body(channel, type(performative).__name__.lower(), body)

    def write_body(self, channel: int, name: str, body: bytes) -> None:
        """Append a frame. Args: name: of the performative. Raises: CommandError: as `write`."""
        if len(body) > self.flow_state.remote_max_frame_size - HEADER_SIZE:
            raise self._refusal(name, body)
        self.flow_state.append(channel, body)

    @property
    def _room(self) -> int:
        """The octets of the largest body that the peer takes in a frame."""
        return self.flow_state.remote_max_frame_size - HEADER_SIZE

    def _refusal(self, name: str, body: bytes) -> CommandError:
        return CommandError(f"{name} of {len(body) + HEADER_SIZE} octets, the peer takes {self.remote_max_frame_size}")

    def report(self, events: Iterable[Event]) -> None:
        """Queue events that happened outside of `receive`, for the next `receive` or `handle_timer`."""
        self._events.extend(events)

    def answer_open(self) -> None:
        """Send our `open` if it is due: no other frame can be sent before it."""
        if self.state in (S.HDR_EXCH, S.OPEN_RCVD):
            self.open()

    # ----------------------------------------------------------------------------------------------------- receiving

    def _receive_sasl(self, frame: kernel.Frame) -> tuple[Event, ...]:
        """Read a frame of the SASL layer. Raises: ProtocolError: its type is that of the other layer."""
        if not self.negotiation.in_sasl:
            raise framing_error("a SASL frame after the SASL outcome")
        if frame.type != SASL_FRAME:
            raise framing_error("an AMQP frame before the SASL outcome")
        return self._advance(self.negotiation.receive_sasl(frame.body))

    def _advance(self, progress: Progress) -> tuple[Event, ...]:
        """Send what a step of the negotiation has written, and act on its result."""
        negotiation = self.negotiation
        self._send_negotiation()
        if progress is P.AMQP:
            self._reader.max_frame_size = self.settings.max_frame_size
            if negotiation.keeps_input:
                self._reader.begin_to_keep(protocol_header(AMQP_ID))
            self.state = CONNECTION[self.state][STEP.RECEIVED_HEADER]
            if negotiation.server:
                self._header_sent()
        elif progress is P.TLS:
            self._waiting = True
            return (TlsRequested(self._reader.take_rest()),)
        elif progress is P.WORK:
            assert negotiation.sasl is not None
            assert negotiation.sasl.work is not None
            self._waiting = True
            self.liveness.hold(self.liveness.received_at)
            return (SaslWorkDue(negotiation.sasl.work),)
        elif progress is P.REFUSED:
            error = Error(condition=AmqpCondition.UNAUTHORIZED_ACCESS, description=negotiation.refusal)
            return self._end(error, by_peer=False)
        elif negotiation.server and not negotiation.in_frames and self.user is not None:
            return (Authenticated(),)
        return ()

    def receive_open(self, remote: Open) -> tuple[Event, ...]:
        """Take the peer's `open`, which has been checked (§2.7.1)."""
        if self.state in CLOSING:
            self.state = CONNECTION[self.state].get(STEP.RECEIVED_OPEN, self.state)
            return ()
        self.remote = remote
        self.flow_state.remote_max_frame_size = remote.max_frame_size
        self._set_state(CONNECTION[self.state][STEP.RECEIVED_OPEN])
        return (ConnectionOpened(remote),)

    def receive_begin(self, begin: Begin, channel: int) -> tuple[Event, ...]:
        """Take the peer's `begin`: of a session of its own, or its answer to ours (§2.5.1). Raises: ProtocolError."""
        self.channels.check_begin(channel, begin.remote_channel)
        session = self._new_session() if begin.remote_channel is None else self.channels.outgoing[begin.remote_channel]
        self.channels.incoming[channel] = session
        return session.begun(begin, channel)

    def receive_close(self, close: Close) -> tuple[Event, ...]:
        """Take the peer's `close`, and answer it unless it answers ours (§2.4.3)."""
        if self.state in CLOSING:
            return self._end(close.error, by_peer=False)
        # The peer may leave before our open was sent: both are due (§2.4.3).
        self.answer_open()
        self._set_state(CONNECTION[self.state][STEP.RECEIVED_CLOSE])
        self.close()
        return self._end(close.error, by_peer=True)

    # -------------------------------------------------------------------------------------------------------- errors

    def _fail(self, error: ProtocolError) -> tuple[Event, ...]:
        """Close the connection for an error of the peer's, with a `close` if AMQP frames are spoken."""
        amqp_error = Error(condition=error.condition, description=error.description, info=error.info)
        if not self.negotiation.in_frames or self.negotiation.in_sasl:
            # Before AMQP's own protocol header no frame can carry the error (§5.3.2): the transport is closed.
            return self._end(amqp_error, by_peer=False)
        self.answer_open()
        if CONNECTION[self.state].get(STEP.SENT_ERROR) is None:
            return self._end(amqp_error, by_peer=False)
        self.close(amqp_error)
        if error.condition is ConnectionCondition.FRAMING_ERROR:
            # The begin of the next frame is uncertain: the rest of the stream is not read.
            self.is_deaf = True
        return self._tell_closed(amqp_error, by_peer=False)

    def _end(self, error: Error | None, *, by_peer: bool) -> tuple[Event, ...]:
        """Finish the connection: no frame is read or written from now on."""
        self.flow_state.is_open = False
        self.finished = True
        self.state = S.END
        return self._tell_closed(error, by_peer=by_peer)

    def _tell_closed(self, error: Error | None, *, by_peer: bool) -> tuple[Event, ...]:
        if self._closed_told:
            return ()
        self._closed_told = True
        return (ConnectionClosed(error, by_peer=by_peer),)

    # ------------------------------------------------------------------------------------------------------- helpers

    def _new_session(self, window: int | None = None) -> Session:
        first = not (self.channels.incoming or self.channels.outgoing)
        session = Session(self, self.channels.window_share(self.settings) if window is None else window)
        flow_state = session.flow_state
        flow_state.in_full = self.in_full
        if first:
            flow_state.widest = max(flow_state.window_size, self.settings.small_window)
        return session

    def _step(self, step: Step) -> ConnectionState:
        after = CONNECTION[self.state].get(step)
        if after is None:
            raise CommandError(f"{step.name.lower()} is not possible: the connection is {self.state.name}")
        return after

    def _set_state(self, state: ConnectionState) -> None:
        self.state = state
        self.flow_state.is_open = state is S.OPENED and self._reader.kept is None  # the kernel keeps no input
        if state is S.OPENED:
            assert self.remote is not None
            self.channels.agree(self.remote.channel_max)
            self.liveness.opened(self.remote.idle_time_out or 0)

    def _header_sent(self) -> None:
        """Note that our AMQP header is written, and send the `open` that has waited for it."""
        self.state = CONNECTION[self.state][STEP.SENT_HEADER]
        if self._opening:
            self.open()

    def _send_negotiation(self) -> None:
        """Send what the negotiation has written."""
        negotiation, self._reader.max_frame_size = self.negotiation, self.negotiation.max_frame_size
        if negotiation.out:
            self.out.extend(negotiation.out)
            is_amqp = negotiation.out.endswith(protocol_header(AMQP_ID))
            negotiation.out.clear()
            self.flow_state.wake()
            if is_amqp and not negotiation.server:
                self._header_sent()
