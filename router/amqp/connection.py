"""A connection endpoint: bytes in, events out; commands in, bytes out (§2.4).

It knows no socket and no clock: the time comes in as `now`, in seconds of any monotonic clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from amqpmesh.router import kernel
from amqpmesh.router.amqp.channels import Channels
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.codec.value_limits import FEW_VALUES
from amqpmesh.router.amqp.errors import CommandError, ProtocolError, Scope
from amqpmesh.router.amqp.events import (
    RELAYED,
    Authenticated,
    ConnectionClosed,
    ConnectionOpened,
    DeliveriesGathered,
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
    Frame,
    FrameReader,
    protocol_header,
)
from amqpmesh.router.amqp.hot_frames import disposition_frame, names_all_fields, transfer_frame
from amqpmesh.router.amqp.link import Receiver
from amqpmesh.router.amqp.negotiation import AMQP_ID, Negotiation, Progress
from amqpmesh.router.amqp.session import Session
from amqpmesh.router.amqp.shortening import short_farewell
from amqpmesh.router.amqp.standard.definitions import (
    AmqpCondition,
    ConnectionCondition,
    Error,
    LinkCondition,
    SessionCondition,
)
from amqpmesh.router.amqp.standard.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Open,
    Performative,
    Transfer,
    decode_abridged,
    decode_performative,
    encode_performative,
    is_overfull,
)
from amqpmesh.router.amqp.states import CONNECTION, ConnectionState, Step
from amqpmesh.router.amqp.timeouts import Due, Liveness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from amqpmesh.router.amqp.codec.types import Value

S = ConnectionState

# Descriptor codes (§2.7).
_OPEN: Final = 0x10
#: What an `open` of ours says of itself (§2.7.1, properties).
PRODUCT: Final = Symbol("product")
OURS: Final = "amqpmesh"

#: Transfer frames that any session may send, however many there are.
MIN_WINDOW: Final = 8

_TRANSFER: Final = 0x14
_DISPOSITION: Final = 0x15
_CLOSE: Final = 0x18

#: Our `close` is written: of what the peer sends only its own matters (§2.4.6).
_CLOSING: Final = frozenset({S.CLOSE_SENT, S.DISCARDING, S.CLOSE_PIPE, S.OC_PIPE})

_CONDITIONS: Final = {
    each.value: each for kind in (AmqpCondition, ConnectionCondition, SessionCondition, LinkCondition) for each in kind
}


class Connection:
    """A connection endpoint of ours, for either role."""

    # From 30 attributes on, instances do not share the keys of their dictionaries: that would be 1.6 KB for each.
    __slots__ = (
        "__weakref__",
        "_closed_told",
        "_events",
        "_in_frames",
        "_is_deaf",
        "_liveness",
        "_opening",
        "_reader",
        "_waiting",
        "channels",
        "connection_window",
        "container_id",
        "context",
        "desired_capabilities",
        "finished",
        "flow_state",
        "handle_max",
        "hostname",
        "in_full",
        "initial_delivery_id",
        "initial_outgoing_id",
        "max_frame_size",
        "max_values",
        "minimum_idle_time_out",
        "negotiation",
        "offered_capabilities",
        "properties",
        "remote",
        "small_window",
        "state",
        "window",
    )

    def __init__(
        self,
        *,
        container_id: str,
        now: float,
        negotiation: Negotiation,
        hostname: str | None = None,
        max_frame_size: int = 16_384,
        channel_max: int = 255,
        handle_max: int = 4_095,
        window: int = 256,
        small_window: int = 0,
        connection_window: int = 1024,
        idle_time_out: float | None = 16.0,
        minimum_idle_time_out: float = 0.1,
        close_time_out: float = 5.0,
        open_time_out: float = 10.0,
        max_values: int = FEW_VALUES,
        properties: Mapping[Symbol, Value] | None = None,
        offered_capabilities: Sequence[Symbol] = (),
        desired_capabilities: Sequence[Symbol] = (),
        initial_outgoing_id: int = 0,
        initial_delivery_id: int = 0,
    ) -> None:
        """Args:
        negotiation: the layers below (part 5). hostname: of the peer, as `open` names it.
        max_frame_size: octets we take; 512 at least. channel_max, handle_max: the highest the peer may use.
        window: transfer frames of one session that may be here unreleased; small_window: of the first, while they are
            small and leave at once, if that is more; connection_window: of all together, but for that and
            a few that each one has in any case.
        idle_time_out: seconds without a frame after which we close; we announce half of it (§2.4.5); None: never.
        minimum_idle_time_out: seconds; a peer that demands shorter ones is refused.
        close_time_out: seconds that the peer has to answer our `close`; open_time_out: to come as far as `open`.
        max_values: that a performative of the peer's may hold, its own fields among them.
        desired_capabilities: those that we use where the peer offers them, and no others (§2.7.1).
        initial_outgoing_id, initial_delivery_id: where the sequence numbers of its sessions begin.
        """
        self.container_id = container_id
        self.hostname = hostname
        self.negotiation = negotiation
        self.max_frame_size = max_frame_size
        self.handle_max = handle_max
        self.window = window
        self.small_window = small_window
        self.connection_window = connection_window
        self.minimum_idle_time_out = minimum_idle_time_out
        self.max_values = max_values
        self.properties = properties
        self.offered_capabilities = offered_capabilities
        self.desired_capabilities = desired_capabilities
        self.initial_outgoing_id = initial_outgoing_id
        self.initial_delivery_id = initial_delivery_id

        self.state = S.START
        #: The peer's `open`, or what the owner of the connection remembers of it in its place.
        self.remote: Open | None = None
        #: What changes with each transfer: the bytes to be sent, and the sessions.
        self.flow_state = kernel.KernelConnection()
        self.flow_state.max_frame_size = max_frame_size
        #: The peer leaves nothing out, and may need the same of us.
        self.in_full = False
        #: Nothing more will be read or written: close the transport once `out` is empty.
        self.finished = False
        self.channels = Channels(channel_max)
        self.context: object = None

        # SASL frames are never larger (§5.3.1); those of AMQP may be, once its header has come.
        self._reader = FrameReader(MIN_MAX_FRAME_SIZE)
        self._in_frames = False
        #: For TLS, or for the work of the SASL exchange: what comes meanwhile is not looked at.
        self._waiting = False
        self._events: deque[Event] = deque()
        self._liveness = Liveness(
            now, idle_time_out=idle_time_out, open_time_out=open_time_out, close_time_out=close_time_out
        )
        self._opening = False
        self._closed_told = False
        self._is_deaf = False
        negotiation.start()
        self._take_negotiation()

    # ---------------------------------------------------------------------------------------------------- commands

    @property
    def on_wake(self) -> Callable[[], None] | None:
        """Called when there is something to be sent, once until `data_to_send` has given it."""
        return self.flow_state.on_wake

    @on_wake.setter
    def on_wake(self, on_wake: Callable[[], None] | None) -> None:
        self.flow_state.on_wake = on_wake

    @property
    def out(self) -> bytearray:
        """Bytes to be sent, in order."""
        return self.flow_state.out

    @property
    def remote_max_frame_size(self) -> int:
        """Octets of a frame that the peer takes."""
        return self.flow_state.remote_max_frame_size

    @property
    def can_send(self) -> bool:
        """Frames other than `open` may be sent (figure 2.24)."""
        return self.state in (S.OPENED, S.CLOSE_RCVD, S.OPEN_SENT, S.OPEN_PIPE)

    @property
    def user(self) -> str | None:
        """The authenticated user, after SASL."""
        return self.negotiation.sasl.user if self.negotiation.sasl is not None else None

    def open(self) -> None:
        """Send our `open` (§2.7.1); while security layers are negotiated, as soon as they are (§5.1).

        Raises: CommandError: it was sent, or does not fit into the peer's frames.
        """
        if self.state is S.START and not self._opening:
            self._opening = True
            return
        after = self._step(Step.SENT_OPEN)
        self.write(
            0,
            Open(
                container_id=self.container_id,
                hostname=self.hostname,
                max_frame_size=self.max_frame_size,
                channel_max=self.channels.incoming_max,
                idle_time_out=self._liveness.announced_ms,
                offered_capabilities=tuple(self.offered_capabilities),
                desired_capabilities=tuple(self.desired_capabilities),
                properties={PRODUCT: OURS, **(self.properties or {})},
            ),
        )
        self._become(after)

    def begin(self, window: int | None = None, *, desired_capabilities: Sequence[Symbol] = ()) -> Session:
        """Initiate a session (§2.5.1).

        Args: window: transfer frames that may be here unreleased; None: what the connection divides among sessions.
            desired_capabilities: of the session (§2.7.2).
        Raises: CommandError: the connection is not open, or no channel is free.
        """
        session = self._new_session(window)
        session.begin(desired_capabilities=desired_capabilities)
        return session

    def close(self, error: Error | None = None) -> None:
        """Send our `close`, after which nothing is sent (§2.4.3). Raises: CommandError: it was sent already."""
        after = self._step(Step.SENT_CLOSE if error is None else Step.SENT_ERROR)
        self.flush()
        self.write(0, Close(error=error))
        self._become(after)
        self._liveness.closing()

    def secured(self) -> None:
        """The TLS handshake that `TlsRequested` asked for is done; go on inside it (§5.2)."""
        self._waiting = False
        self.negotiation.secured()
        self._take_negotiation()

    def sasl_worked(self, now: float) -> None:
        """The work that `SaslWorkDue` asked for is done; exhaust `receive` of nothing more (§5.3.2)."""
        self._waiting = False
        if not self.finished:
            self._liveness.go_on(now)
            self.report(self._after_sasl(self.negotiation.sasl_worked()))

    # ------------------------------------------------------------------------------------------------ bytes and time

    def relay(self, data: bytes | bytearray, now: float) -> bool:
        """Take the next bytes, and have relayed what needs no decision; whether that was all.

        If not, exhaust `receive` of nothing more; but see `is_halted`.
        """
        reader, flow_state = self._reader, self.flow_state
        flow_state.waits_for = None
        if not flow_state.is_open or self._events or flow_state.pending_disposition is not None:
            if not (self.finished or self._is_deaf):
                reader.feed(data)
            return False
        if reader.is_empty:
            data = bytes(data)
            at = kernel.relay_frames(flow_state, data, 0, len(data))
            if at:
                self._liveness.received_at = now
            if at < len(data):
                reader.feed(data, at)
        else:
            reader.feed(data)
            if reader.relay(flow_state):
                self._liveness.received_at = now
        return flow_state.pending_disposition is None and reader.needs_more

    @property
    def is_halted(self) -> bool:
        """`relay` may go on, with nothing more: once `flow_state.waits_for` has been written, or others have had their
        turn."""
        flow_state = self.flow_state
        return flow_state.waits_for is not None or (flow_state.work <= 0 and flow_state.pending_disposition is None)

    def receive(self, data: bytes | bytearray | memoryview, now: float) -> Iterator[Event]:
        """Take the next bytes, and yield what the peer did, one frame at a time.

        A frame is looked at only when the event before it has been taken, so what the caller does about an event is
        in force for the frames behind it. Exhaust the iterator. The peer's errors are answered here.
        It ends early where `flow_state.waits_for` is to be written first.
        """
        events: Iterable[Event]
        if not (self.finished or self._is_deaf):
            self._reader.feed(data)
        while True:
            while self._events:
                yield self._events.popleft()
            if self.finished or self._is_deaf or self._waiting:
                return
            try:
                if not self._in_frames:
                    header = self._reader.next_header()
                    if header is None:
                        return
                    self._liveness.received_at = now
                    events = self._receive_header(header)
                else:
                    flow_state = self.flow_state
                    is_pending = flow_state.pending_disposition is not None
                    if is_pending or (flow_state.is_open and self._reader.relay(flow_state)):
                        self._liveness.received_at = now
                        is_next = flow_state.pending_disposition is None and flow_state.work > 0
                        yield from self._after_relaying()
                        if not is_next:  # what stopped it was not the next frame, which may be relayed, too
                            continue
                    if flow_state.waits_for is not None:
                        return
                    frame = self._reader.next_frame()
                    if frame is None:
                        return
                    self._liveness.received_at = now
                    flow_state.waits_since = -1.0  # if it was that which waited
                    events = self._receive_frame(frame)
            except ProtocolError as error:
                events = self._fail(error)
            except kernel.Violation as violation:
                events = self._fail(
                    ProtocolError(Scope.CONNECTION, self.condition(violation.condition), violation.description)
                )
            yield from events

    def _after_relaying(self) -> Iterator[Event]:
        """What the kernel could not decide of what it has read, and whether it has done enough for once."""
        flow_state = self.flow_state
        batch = flow_state.batch
        if batch is not None and batch.deliveries:
            link = batch.deliveries[0].link.record
            assert isinstance(link, Receiver)
            came = DeliveriesGathered(link, batch.deliveries, batch.payloads)
            batch.deliveries, batch.payloads = [], []
            yield came
        pending, flow_state.pending_disposition = flow_state.pending_disposition, None
        if pending is not None:
            session = pending.session.owner
            assert isinstance(session, Session)
            yield from session.decide(pending)
        if flow_state.work <= 0:
            yield RELAYED

    def receive_eof(self) -> tuple[Event, ...]:
        """The transport has ended: nothing more will come, and nothing can be sent."""
        self._reader.take_rest()
        self.flow_state.out = bytearray()
        self.flow_state.sending = 0
        return self._end(None, by_peer=True)

    def flush(self) -> None:
        """Write what sessions and links have gathered: dispositions and flows."""
        self.flow_state.flush()

    def data_to_send(self, now: float) -> bytearray:
        """The bytes to be sent now, after a flush; they are the caller's, and count as sent."""
        data = self.flow_state.take()
        if data:
            self._liveness.sent(now)
        return data

    @property
    def received_at(self) -> float:
        """When the last frame came, seconds."""
        return self._liveness.received_at

    def next_timer(self) -> float | None:
        """When `handle_timer` is to be called at the latest; None: there is nothing to wait for."""
        if self._events:
            return self._liveness.received_at
        return None if self.finished else self._liveness.next_timer()

    def handle_timer(self, now: float) -> tuple[Event, ...]:
        """The time of `next_timer` may have come: send an empty frame, or give a silent peer up (§2.4.5)."""
        events = tuple(self._events)
        self._events.clear()
        if self.finished:
            return events
        due = self._liveness.due(now)
        if due is Due.HEARTBEAT:
            self.probe(now)
        elif due is Due.SILENCE:
            events += self._give_up(f"no frame came for {self._liveness.idle_time_out:g} s (idle time-out)")
        elif due is Due.OURS_LATE:
            events += self._give_up("nothing was sent in the peer's idle time-out")
        elif due is Due.OPEN_LATE:
            events += self._give_up("no open came in time")
        elif due is Due.CLOSE_LATE:
            events += self._end(None, by_peer=False)
        return events

    def probe(self, now: float) -> None:
        """See to it that the peer hears something now: an empty frame, if there is nothing else (§2.4.5)."""
        if self.can_send and not self.out:
            self.out.extend(EMPTY_FRAME)
        self._liveness.sent(now)
        self.flow_state.wake()

    # --------------------------------------------------------------------------------------------- for the sessions

    def write(self, channel: int, performative: Performative) -> None:
        """Append a frame. An error that is too long for the peer's frames is told shortly.

        Raises: CommandError: the frame is too large for the peer; nothing was written.
        """
        body = encode_performative(performative, compact=self.flow_state.compact)
        limit = self.remote_max_frame_size - HEADER_SIZE
        if len(body) > limit:
            if not isinstance(performative, Detach | End | Close):
                raise CommandError(
                    f"{type(performative).__name__.lower()} of {len(body) + HEADER_SIZE} octets, "
                    f"the peer takes {self.remote_max_frame_size}"
                )
            body = encode_performative(short_farewell(performative))
        size = HEADER_SIZE + len(body)
        out = self.out
        out += size.to_bytes(4, "big") + bytes((2, AMQP_FRAME)) + channel.to_bytes(2, "big") + body
        self.flow_state.wake()

    def report(self, events: Iterable[Event]) -> None:
        """Something happened outside of `receive`: it is told there, or by `handle_timer`."""
        self._events.extend(events)

    def answer_open(self) -> None:
        """Send our `open` if it is due: nothing else can be said before it."""
        if self.state in (S.HDR_EXCH, S.OPEN_RCVD):
            self.open()

    @staticmethod
    def condition(symbol: str) -> AmqpCondition | ConnectionCondition | SessionCondition | LinkCondition:
        """The condition with this symbol (§2.8.15 to §2.8.18)."""
        return _CONDITIONS[symbol]

    # ----------------------------------------------------------------------------------------------------- receiving

    def _receive_header(self, header: bytes) -> tuple[Event, ...]:
        progress = self.negotiation.receive_header(header)
        self._take_negotiation()
        if progress is Progress.AMQP:
            self._in_frames = True
            self._reader.max_frame_size = self.max_frame_size
            self.state = CONNECTION[self.state][Step.RECEIVED_HEADER]
            if self.negotiation.server:
                self._header_sent()
        elif progress is Progress.GO_ON:
            self._in_frames = True
        elif progress is Progress.TLS:
            self._waiting = True
            return (TlsRequested(self._reader.take_rest()),)
        elif progress is Progress.REFUSED:
            return self._refused()
        return ()

    def _receive_frame(self, frame: Frame) -> Iterable[Event]:
        if self.negotiation.in_sasl:
            if frame.type != SASL_FRAME:
                raise _framing_error("an AMQP frame before the SASL outcome")
            return self._after_sasl(self.negotiation.receive_sasl(frame.body))
        if frame.type != AMQP_FRAME:
            raise _framing_error("a SASL frame after the SASL outcome")
        body = frame.body
        if self.state in _CLOSING:
            return self._receive_while_closing(body)
        if frame.channel > self.channels.incoming_max:
            raise _framing_error(f"channel {frame.channel} is above the channel-max")
        if not body:
            if self.remote is None:
                raise ProtocolError(
                    Scope.CONNECTION, AmqpCondition.ILLEGAL_STATE, "an empty frame before open (§2.4.5)"
                )
            return ()
        # The two frames that carry the traffic are read by the skimmer, if they have the usual shape.
        if self.state is S.OPENED and len(body) > 3 and body[1] == 0x53:
            code = body[2]
            if code == _TRANSFER:
                skimmed = kernel.skim_transfer(body, 0, len(body))
                if skimmed is not None:
                    return self._receive_transfer(frame.channel, skimmed[0], body[skimmed[1] :])
            elif code == _DISPOSITION:
                disposition = kernel.skim_disposition(body, 0, len(body))
                if disposition is not None:
                    return self._receive_disposition(frame.channel, disposition)
        if is_overfull(body, self.max_values):
            abridged, payload_at = decode_abridged(body, self.max_values)
            return self._receive_overfull(frame.channel, abridged, body[payload_at:])
        performative, payload_at = decode_performative(body)
        if isinstance(performative, Open):
            # One of ours names all fields, too, for the same peers, and reads any.
            compact = (performative.properties or {}).get(PRODUCT) == OURS
            self.flow_state.compact = compact
            self.in_full = names_all_fields(body) and not compact
        if payload_at != len(body) and not isinstance(performative, Transfer):
            raise ProtocolError(
                Scope.CONNECTION, AmqpCondition.DECODE_ERROR, f"bytes behind a {type(performative).__name__.lower()}"
            )
        return self._receive_performative(frame.channel, performative, body[payload_at:])

    def _after_sasl(self, progress: Progress) -> tuple[Event, ...]:
        self._take_negotiation()
        if progress is Progress.REFUSED:
            return self._refused()
        sasl = self.negotiation.sasl
        if progress is Progress.WORK and sasl is not None and sasl.work is not None:
            self._waiting = True
            self._liveness.hold(self._liveness.received_at)
            return (SaslWorkDue(sasl.work),)
        # After the outcome comes a protocol header again (§5.3.2).
        self._in_frames = self.negotiation.in_sasl
        is_let_in = self.negotiation.server and not self._in_frames and self.user is not None
        return (Authenticated(),) if is_let_in else ()

    def _receive_performative(self, channel: int, performative: Performative, payload: bytes) -> Iterable[Event]:
        if isinstance(performative, Open):
            return self._receive_open(channel, performative)
        if self.remote is None:
            raise ProtocolError(
                Scope.CONNECTION, AmqpCondition.ILLEGAL_STATE, f"{type(performative).__name__.lower()} before open"
            )
        if isinstance(performative, Close):
            return self._receive_close(performative)
        if isinstance(performative, Begin):
            return self._receive_begin(channel, performative)
        if isinstance(performative, Transfer):
            return self._receive_transfer(channel, transfer_frame(performative), payload)
        if isinstance(performative, Disposition):
            return self._receive_disposition(channel, disposition_frame(performative))
        session = self._mapped(channel)
        try:
            return session.receive(performative)
        except ProtocolError as error:
            return self._fail_session(session, error)

    def _receive_overfull(self, channel: int, performative: Performative, payload: bytes) -> Iterable[Event]:
        """A frame with more values than are made. What it would begin is refused; what it would end, ends; a delivery
        has the state that is left, if one is.

        Args: performative: without them.
        Raises: ProtocolError(CONNECTION, resource-limit-exceeded): nothing less can be refused.
        """
        label = type(performative).__name__.lower()
        error = Error(
            condition=AmqpCondition.RESOURCE_LIMIT_EXCEEDED,
            description=f"{label} with more than {self.max_values} values",
        )
        if isinstance(performative, Detach | End | Close):
            return self._receive_performative(channel, replace(performative, error=error), b"")
        if self.remote is None or isinstance(performative, Open):
            raise ProtocolError(Scope.CONNECTION, error.condition, error.description or label)
        if isinstance(performative, Transfer | Disposition):
            return self._receive_performative(channel, performative, payload)
        if isinstance(performative, Begin):
            self._receive_begin(channel, performative)
        session = self._mapped(channel)
        if not isinstance(performative, Attach):
            return session.fail(error)
        try:
            return session.refuse(performative, error)
        except ProtocolError as refusal:
            return self._fail_session(session, refusal)

    def _receive_transfer(self, channel: int, frame: kernel.TransferFrame, payload: bytes) -> tuple[Event, ...]:
        session = self._mapped(channel)
        try:
            return session.receive_transfer(frame, payload)
        except ProtocolError as error:
            return self._fail_session(session, error)
        except kernel.Violation as violation:
            return session.fail(Error(condition=self.condition(violation.condition), description=violation.description))

    def _receive_disposition(self, channel: int, frame: kernel.DispositionFrame) -> Iterable[Event]:
        return self._mapped(channel).receive_disposition(frame)

    def _receive_open(self, channel: int, remote: Open) -> tuple[Event, ...]:
        after = CONNECTION[self.state].get(Step.RECEIVED_OPEN)
        if after is None:
            raise ProtocolError(Scope.CONNECTION, AmqpCondition.ILLEGAL_STATE, "a second open")
        if channel != 0:
            raise ProtocolError(Scope.CONNECTION, AmqpCondition.NOT_ALLOWED, "open on a channel other than 0")
        if remote.max_frame_size < MIN_MAX_FRAME_SIZE:
            raise ProtocolError(Scope.CONNECTION, AmqpCondition.INVALID_FIELD, "max-frame-size below 512")
        idle_time_out_ms = remote.idle_time_out or 0
        if 0 < idle_time_out_ms < self.minimum_idle_time_out * 1000:
            raise ProtocolError(
                Scope.CONNECTION,
                AmqpCondition.NOT_ALLOWED,
                f"idle-time-out of {idle_time_out_ms} ms is not supported: {self.minimum_idle_time_out * 1000:g} ms is",
            )
        self.remote = remote
        self.flow_state.remote_max_frame_size = remote.max_frame_size
        self._become(after)
        return (ConnectionOpened(remote),)

    def _receive_begin(self, channel: int, begin: Begin) -> tuple[Event, ...]:
        self.channels.check_begin(channel, begin.remote_channel)
        session = self._new_session() if begin.remote_channel is None else self.channels.outgoing[begin.remote_channel]
        self.channels.incoming[channel] = session
        return session.begun(begin, channel)

    def _receive_close(self, close: Close) -> tuple[Event, ...]:
        # The peer may leave before our open was sent: both are due (§2.4.3).
        self.answer_open()
        self._become(CONNECTION[self.state][Step.RECEIVED_CLOSE])
        self.close()
        return self._end(close.error, by_peer=True)

    def _receive_while_closing(self, body: bytes) -> tuple[Event, ...]:
        """After our `close` only the peer's matters, and its `open`; nothing else is looked at (§2.4.6, DISCARDING)."""
        if len(body) < 3 or (body[1] == 0x53 and body[2] not in (_OPEN, _CLOSE)):
            return ()
        try:
            overfull = is_overfull(body, self.max_values)
            performative = (decode_abridged(body, self.max_values) if overfull else decode_performative(body))[0]
        except ProtocolError:
            return ()
        if isinstance(performative, Close):
            return self._end(performative.error, by_peer=False)
        if isinstance(performative, Open):
            self.state = CONNECTION[self.state].get(Step.RECEIVED_OPEN, self.state)
        return ()

    # -------------------------------------------------------------------------------------------------------- errors

    def _fail(self, error: ProtocolError) -> tuple[Event, ...]:
        """Close the connection for what the peer did wrong."""
        amqp_error = Error(condition=error.condition, description=error.description, info=error.info)
        if not self._in_frames or self.negotiation.in_sasl:
            # Before AMQP's own header there is no frame to say it in (§5.3.2): the transport is closed.
            return self._end(amqp_error, by_peer=False)
        self.answer_open()
        if CONNECTION[self.state].get(Step.SENT_ERROR) is None:
            return self._end(amqp_error, by_peer=False)
        self.close(amqp_error)
        if error.condition is ConnectionCondition.FRAMING_ERROR:
            # Where the next frame begins cannot be trusted: nothing of the stream is read any more.
            self._is_deaf = True
        return self._tell_closed(amqp_error, by_peer=False)

    def _give_up(self, reason: str) -> tuple[Event, ...]:
        """Close the connection for what the peer did not do."""
        return self._fail(ProtocolError(Scope.CONNECTION, AmqpCondition.RESOURCE_LIMIT_EXCEEDED, reason))

    def _end(self, error: Error | None, *, by_peer: bool) -> tuple[Event, ...]:
        """Nothing more will come or go."""
        self.flow_state.is_open = False
        self.finished = True
        self.state = S.END
        return self._tell_closed(error, by_peer=by_peer)

    def _tell_closed(self, error: Error | None, *, by_peer: bool) -> tuple[Event, ...]:
        if self._closed_told:
            return ()
        self._closed_told = True
        return (ConnectionClosed(error, by_peer=by_peer),)

    def _fail_session(self, session: Session, error: ProtocolError) -> tuple[Event, ...]:
        if error.scope is Scope.CONNECTION:
            raise error
        return session.fail(Error(condition=error.condition, description=error.description, info=error.info))

    def _refused(self) -> tuple[Event, ...]:
        error = Error(condition=AmqpCondition.UNAUTHORIZED_ACCESS, description=self.negotiation.refusal)
        return self._end(error, by_peer=False)

    # ------------------------------------------------------------------------------------------------------- helpers

    def _new_session(self, window: int | None = None) -> Session:
        first = not self.channels.sessions
        session = Session(
            self,
            window=self._window_for_one_more() if window is None else window,
            handle_max=self.handle_max,
            initial_outgoing_id=self.initial_outgoing_id,
            initial_delivery_id=self.initial_delivery_id,
        )
        flow_state = session.flow_state
        flow_state.in_full = self.in_full
        if first:
            flow_state.widest = max(flow_state.window_size, self.small_window)
        return session

    def _window_for_one_more(self) -> int:
        """A session's window: what a connection may make us hold is divided, and not multiplied by its sessions."""
        announced = sum(session.part for session in self.channels.sessions)
        return min(self.window, max(MIN_WINDOW, (self.connection_window - announced) // 2))

    def _mapped(self, channel: int) -> Session:
        if self.remote is None:
            raise ProtocolError(Scope.CONNECTION, AmqpCondition.ILLEGAL_STATE, "a frame before open")
        session = self.channels.incoming.get(channel)
        if session is None:
            raise ProtocolError(Scope.CONNECTION, AmqpCondition.ILLEGAL_STATE, f"no session on channel {channel}")
        return session

    def _step(self, step: Step) -> ConnectionState:
        after = CONNECTION[self.state].get(step)
        if after is None:
            raise CommandError(f"{step.name.lower()} is not possible: the connection is {self.state.name}")
        return after

    def _become(self, state: ConnectionState) -> None:
        self.state = state
        self.flow_state.is_open = state is S.OPENED
        if state is S.OPENED:
            assert self.remote is not None
            self.channels.agree(self.remote.channel_max)
            self._liveness.opened(self.remote.idle_time_out or 0)

    def _header_sent(self) -> None:
        """AMQP's own header is written: what waited for it can follow."""
        self.state = CONNECTION[self.state][Step.SENT_HEADER]
        if self._opening:
            self.open()

    def _take_negotiation(self) -> None:
        negotiation = self.negotiation
        if negotiation.out:
            self.out.extend(negotiation.out)
            is_amqp = negotiation.out.endswith(protocol_header(AMQP_ID))
            negotiation.out.clear()
            self.flow_state.wake()
            if is_amqp and not negotiation.server:
                self._header_sent()


def _framing_error(description: str) -> ProtocolError:
    return ProtocolError(Scope.CONNECTION, ConnectionCondition.FRAMING_ERROR, description)
