"""Session endpoints: handles, links, windows and dispositions (§2.5)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from amqpmesh.router import kernel
from amqpmesh.router.amqp.channels import LowestFree
from amqpmesh.router.amqp.codec.types import Extension
from amqpmesh.router.amqp.disposition_writing import write_dispositions
from amqpmesh.router.amqp.errors import CommandError, ProtocolError, Scope, framing_error
from amqpmesh.router.amqp.events import (
    CreditChanged,
    DeliveryIgnored,
    DeliveryResumed,
    DispositionReceived,
    DrainRequested,
    Event,
    LinkAttached,
    LinkDetached,
    SessionBegun,
    SessionEnded,
    TransferReceived,
    WindowOpened,
)
from amqpmesh.router.amqp.hot_frames import flow_frame
from amqpmesh.router.amqp.link import TXN_ID, Link, Receiver, Sender, Terminus
from amqpmesh.router.amqp.standard.conditions import endpoint_condition
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error, Role, SessionCondition
from amqpmesh.router.amqp.standard.performatives import Attach, Begin, Detach, End, Flow, encoded_begin, plain_begin
from amqpmesh.router.amqp.states import LINK, SENDING, SESSION, STEP, LinkEndpointState, SessionState, direct

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from amqpmesh.router.amqp.alike_attaches import AlikeAttaches
    from amqpmesh.router.amqp.codec.types import Symbol
    from amqpmesh.router.amqp.connection import Connection
    from amqpmesh.router.amqp.standard.performatives import Performative

S = direct(SessionState)
R = direct(Role)

#: States of links that drop their input, until the peer's detach has come. The input is still counted.
_DEAF: Final = frozenset({LinkEndpointState.DETACH_SENT, LinkEndpointState.DISCARDING})


class Session:
    """A session endpoint of ours, mapped to an outgoing channel and the peer's incoming one."""

    def __init__(self, connection: Connection, window: int) -> None:
        """Args: window: transfer frames that may be unreleased."""
        settings = connection.settings
        self.connection = connection
        self.state = S.UNMAPPED
        #: Its share of the connection's window, or the window that its owner chose.
        self.part = window
        self.flow_state = kernel.KernelSession(
            window, settings.initial_outgoing_id, settings.initial_delivery_id, connection.flow_state, self
        )
        #: The highest handle that the peer may use.
        self.handle_max = settings.handle_max
        self.incoming_channel: int | None = None
        #: The peer's `begin`, or what the owner of the connection keeps of it.
        self.remote: Begin | None = None
        #: Links by the peer's handle; `output_links`: by ours.
        self.links: dict[int, Link] = {}
        self.output_links: dict[int, Link] = {}
        #: For the owner of the connection: objects that wait for the peer to open its window.
        self.stalled: dict[Any, None] = {}
        self._handles = LowestFree(self.handle_max)
        #: Links whose attach the peer has not answered; `owed`: whose attach by the peer we have not answered.
        self.awaiting: dict[tuple[str, Role], Link] = {}
        self.owed: set[Link] = set()
        #: The channel of our `end`.
        self._ended_channel = -1
        #: The peer's handles of links that we have detached with an error.
        self._errant: set[int] = set()

    def __repr__(self) -> str:
        return f"<Session {self.flow_state.channel} {self.state.name}>"

    @property
    def can_send(self) -> bool:
        """Frames may be sent on the session (§2.5.5)."""
        return self.flow_state.channel != -1 and self.connection.state in SENDING

    @property
    def is_closed(self) -> bool:
        """The peer takes no transfer now: its incoming window is used up (§2.5.6)."""
        return self.remote is not None and self.flow_state.remote_incoming_window <= 0

    @property
    def window(self) -> int:
        """The incoming window: transfer frames that may be unreleased."""
        return self.flow_state.window_size

    @property
    def has_room(self) -> bool:
        """One more link can be attached and answered: both sides have a free handle for it (§2.7.2)."""
        return self._handles.in_use <= min(self._handles.maximum, self.handle_max)

    @property
    def all_links(self) -> list[Link]:
        """The links that have a handle on either side."""
        return list(dict.fromkeys([*self.links.values(), *self.output_links.values()]))

    # ---------------------------------------------------------------------------------------------------- commands

    def begin(
        self,
        *,
        window: int | None = None,
        offered_capabilities: Sequence[Symbol] = (),
        desired_capabilities: Sequence[Symbol] = (),
    ) -> None:
        """Send our `begin`: the first, or the answer to the peer's (§2.5.1).

        Args: window: transfer frames that may be unreleased, in addition to the connection's window; None: the
            session's share of the connection's window. offered_capabilities, desired_capabilities: of the session
            (§2.7.2).
        Raises: CommandError: it was sent already, or no channel is free.
        """
        after = SESSION[self.state].get(STEP.SENT_BEGIN)
        if after is None or not self.connection.can_send:
            raise CommandError(f"begin is not possible: the session is {self.state.name}")
        channels = self.connection.channels
        channel = channels.allocate(self)
        flow_state = self.flow_state
        flow_state.channel = channel
        if window is not None:
            flow_state.window_size = window
        if self.remote is None:
            # Until the peer names its handle-max here, the lowest of its other sessions is assumed (§2.7.2).
            told = [each.remote.handle_max for each in channels.sessions if each.remote is not None]
            self._handles.maximum = min(told, default=self.handle_max)
        next_id, window, wire = flow_state.next_outgoing_id, flow_state.announce(), flow_state.wire
        numbers = self.incoming_channel, next_id, window, kernel.OUTGOING_WINDOW, self.handle_max
        if offered_capabilities or desired_capabilities:
            offered, desired = tuple(offered_capabilities), tuple(desired_capabilities)
            begin = replace(plain_begin(*numbers), offered_capabilities=offered, desired_capabilities=desired)
            self.connection.write(channel, begin)
        else:
            wire.append(channel, encoded_begin(*numbers, wire.compact))
        self._set_state(after)

    def attach(self, terminus: Terminus, **fields: object) -> Link:
        """Initiate a link of `terminus`; `fields` as `Link.attach` takes them (§2.6.3).

        Raises: CommandError: a link of that name and role waits for its answer on this session, or no handle is free.
        """
        key = (terminus.name, terminus.role)
        if key in self.awaiting:
            raise CommandError(f"a link named {terminus.name!r} is being attached")
        link = (Sender if terminus.role is R.SENDER else Receiver)(self, terminus)
        link.attach(**fields)  # type: ignore[arg-type]  # the one signature, declared at Link.attach
        self.awaiting[key] = link
        return link

    def end(self, error: Error | None = None) -> None:
        """Send our `end`, which ends every link of the session (§2.5.2, §2.5.4)."""
        after = SESSION[self.state].get(STEP.SENT_END if error is None else STEP.SENT_ERROR)
        if after is None or not self.can_send:
            raise CommandError(f"end is not possible: the session is {self.state.name}")
        self.write_dispositions()
        self.write(End(error=error))
        self._ended_channel, self.flow_state.channel = self.flow_state.channel, -1
        self._set_state(after)
        # Links do not matter any more, and the peer's `end` may never come.
        for each in (self.links, self.output_links, self.awaiting, self.owed, self._errant):
            each.clear()
        if after is S.UNMAPPED:
            self._free_channel()

    def release(self, frames: int) -> None:
        """Release `frames` received transfers, which are no longer held: the window may grow again (§2.5.6)."""
        self.flow_state.release(frames)

    def flow(self) -> None:
        """Have the next flush write the session's flow state."""
        self.flow_state.flow_due = True
        self.wake()

    # ------------------------------------------------------------------------------------------------ for the links

    def write(self, performative: Performative) -> None:
        """Append a frame on our channel."""
        self.connection.write(self.flow_state.channel, performative)

    def wake(self) -> None:
        """Have the connection flush this session."""
        self.flow_state.stir()

    def allocate_handle(self, link: Link) -> int:
        """Give `link` the lowest free output handle. Raises: CommandError: the peer takes no more handles (§2.7.2)."""
        handle = self._handles.take()
        if handle is None:
            raise CommandError("no handle is free: the peer's handle-max is reached")
        self.output_links[handle] = link
        self.owed.discard(link)
        return handle

    def free_handle(self, handle: int) -> None:
        """Free an output handle."""
        del self.output_links[handle]
        self._handles.free(handle)

    def write_dispositions(self) -> None:
        """Write the dispositions that are due (§2.7.6)."""
        flow_state = self.flow_state
        if flow_state.channel == -1 or not kernel.write_dispositions(flow_state):
            write_dispositions(flow_state, self.connection.remote_max_frame_size)

    def flush(self) -> None:
        """Write the dispositions, then the flows, that are due since the last flush."""
        flow_state = self.flow_state
        flows, flow_state.flows = flow_state.flows, []
        if not self.can_send:
            flow_state.dispositions.clear()
            flow_state.progress.clear()
            flow_state.grants = None
            return
        self.write_dispositions()
        kernel.write_grants(flow_state)
        for link in flows:
            assert isinstance(link, Link)
            if link.flow_due and link.flow_state.handle != -1:
                link.write_flow()
        if flow_state.flow_due:
            kernel.write_flow(flow_state, None, False)

    # ------------------------------------------------------------------------------------------------------ receiving

    def begun(self, begin: Begin, channel: int) -> tuple[Event, ...]:
        """Take the peer's `begin`: it answers ours, or it begins a session of the peer's.

        Args: channel: the channel that the peer sends on; no other session of the peer uses it.
        """
        self.remote = begin
        self.incoming_channel = channel
        if self._ended_channel != -1:
            # We ended the session before this answer came: only the peer's `end` matters now.
            return ()
        self._set_state(SESSION[self.state][STEP.RECEIVED_BEGIN])
        flow_state = self.flow_state
        flow_state.begun = True
        flow_state.next_incoming_id = begin.next_outgoing_id
        flow_state.incoming_limit = kernel.serial_add(begin.next_outgoing_id, flow_state.incoming_window)
        flow_state.remote_incoming_window = begin.incoming_window
        flow_state.remote_outgoing_window = begin.outgoing_window
        self._handles.maximum = begin.handle_max
        return (SessionBegun(self),)

    def receive(self, performative: Performative) -> tuple[Event, ...]:
        """Take a frame other than `transfer` and `disposition`. Raises: ProtocolError."""
        if self.state in (S.DISCARDING, S.END_SENT) and not isinstance(performative, End):
            return ()
        if isinstance(performative, Flow):
            return self._receive_flow(performative)
        if isinstance(performative, Detach):
            return self._receive_detach(performative)
        if isinstance(performative, Attach):
            return self.receive_attach(performative)
        assert isinstance(performative, End)
        return self._receive_end(performative)

    def refuse(self, attach: Attach, error: Error) -> tuple[Event, ...]:
        """Refuse an `attach` of the peer with `error` (§2.6.3). Raises: ProtocolError."""
        events = self.receive(attach)
        return self._fail_link(self.links[attach.handle], error) if events else ()

    def receive_transfer(self, frame: kernel.TransferFrame, payload: bytes) -> tuple[Event, ...]:
        """Take a frame of a delivery (§2.7.5). Raises: ProtocolError, Violation."""
        if self.state in (S.DISCARDING, S.END_SENT):
            return ()
        link = self._link_at(frame.handle)
        flow_state = link.flow_state
        if link.state in _DEAF:
            kernel.discard_transfer(self.flow_state)
            return ()
        if not isinstance(link, Receiver):
            raise ProtocolError(Scope.SESSION, AmqpCondition.NOT_ALLOWED, "transfer on a link that we send on")
        try:
            first = link.begins(frame)
            delivery = kernel.receive_transfer(flow_state, frame, len(payload))
        except kernel.Violation as violation:
            if violation.scope != kernel.LINK:
                raise
            kernel.discard_transfer(self.flow_state)
            return self.fail_link(link, violation.condition, violation.description)
        if delivery.ignored:
            self.flow_state.release(1)
            events: tuple[Event, ...] = (DeliveryIgnored(link, delivery.tag),) if first else ()
            # A program has no relay; what is unknown here is settled.
            if flow_state.current is None if delivery.relay is not None else first and not delivery.settled:
                events = (*events, DeliveryResumed(link, delivery))
            return events
        return (TransferReceived(link, delivery, b"" if frame.aborted else payload, first),)

    def receive_disposition(self, frame: kernel.DispositionFrame) -> Iterator[Event]:
        """Take a disposition of the peer, and yield what the owner has to decide (§2.7.6)."""
        if self.state not in (S.DISCARDING, S.END_SENT):
            said = kernel.receive_disposition(self.flow_state, frame)
            if said is not None:
                yield from self.decide(said)

    def decide(self, said: kernel.PendingDisposition) -> Iterator[Event]:
        """Yield events for a disposition that the kernel cannot pass on, for some deliveries at a time."""
        more = True
        while more:
            yield DispositionReceived(self, said.deliveries, said.state, said.settled)
            more = kernel.apply_more(said)

    def fail_link(self, link: Link, condition: str, description: str) -> tuple[Event, ...]:
        """Detach `link` for an error of the peer on it (§2.6.5)."""
        return self._fail_link(link, Error(condition=endpoint_condition(condition), description=description))

    def _fail_link(self, link: Link, error: Error) -> tuple[Event, ...]:
        if link.state is LinkEndpointState.ATTACH_RCVD:
            self._answer_begin()
            link.refuse(error)
        else:
            link.detach(error=error)
        return (LinkDetached(link, True, error, by_peer=False),)

    def fail(self, error: Error) -> tuple[Event, ...]:
        """End the session for an error of the peer on it (§2.5.4)."""
        self._answer_begin()
        if SESSION[self.state].get(STEP.SENT_ERROR) is None:
            return ()
        self.end(error)
        return (SessionEnded(self, error, by_peer=False),)

    def _set_state(self, state: SessionState) -> None:
        self.state = state
        sessions = self.connection.flow_state.sessions
        if state is S.MAPPED:
            assert self.incoming_channel is not None
            sessions[self.incoming_channel] = self.flow_state
        elif self.incoming_channel is not None and sessions.get(self.incoming_channel) is self.flow_state:
            del sessions[self.incoming_channel]

    def _answer_begin(self) -> None:
        """Send our `open` and our `begin` if they are due: no other frame can be sent before them."""
        if self.state is S.BEGIN_RCVD:
            self.connection.answer_open()
            self.begin()

    def _link_at(self, handle: int) -> Link:
        link = self.links.get(handle)
        if link is None:
            if handle > self.handle_max:
                raise framing_error(f"handle {handle} is above the handle-max")
            if handle in self._errant:
                raise ProtocolError(
                    Scope.SESSION,
                    SessionCondition.ERRANT_LINK,
                    f"the link of handle {handle} ended with an error",
                )
            raise ProtocolError(
                Scope.SESSION, SessionCondition.UNATTACHED_HANDLE, f"no link is attached to handle {handle}"
            )
        return link

    def receive_attach(self, attach: Attach, alike: AlikeAttaches | None = None) -> tuple[Event, ...]:
        """Take an `attach`. Args: alike: those that it is like. Raises: ProtocolError."""
        if self.state in (S.DISCARDING, S.END_SENT):
            return ()
        handle = attach.handle
        if handle > self.handle_max:
            raise framing_error(f"handle {handle} is above the handle-max")
        self._errant.discard(handle)
        if handle in self.links:
            raise ProtocolError(Scope.SESSION, SessionCondition.HANDLE_IN_USE, f"handle {handle} is in use")
        role = R.RECEIVER if attach.role is R.SENDER else R.SENDER
        if role is R.RECEIVER and attach.initial_delivery_count is None:
            raise ProtocolError(
                Scope.SESSION, AmqpCondition.INVALID_FIELD, "attach of a sender without initial-delivery-count"
            )
        link = self.awaiting.pop((attach.name, role), None)
        if link is None:
            if self.owed or self._handles.in_use > self._handles.maximum:
                self._check_room()
            link = (Sender if role is R.SENDER else Receiver)(self, Terminus(attach.name, role))
            self.owed.add(link)
        link.state = LINK[link.state][STEP.RECEIVED_ATTACH]
        link.remote = attach
        link.input_handle = handle
        self.links[handle] = link
        flow_state = link.flow_state
        if isinstance(link, Receiver):
            assert attach.initial_delivery_count is not None
            link.begin_count(attach.initial_delivery_count)
            flow_state.snd_settle_mode = int(attach.snd_settle_mode)
        else:
            flow_state.second = int(attach.rcv_settle_mode) == 1
            flow_state.max_message_size = attach.max_message_size or 0
        if link.state in _DEAF:
            return ()
        if isinstance(attach.source, Extension) or isinstance(attach.target, Extension):
            return self.fail_link(link, AmqpCondition.NOT_IMPLEMENTED, "a source or target of an unknown type")
        return (LinkAttached(link, attach, alike),)

    def _check_room(self) -> None:
        """Check that a handle will be free for our answer to one more `attach`, besides the answers that are due.

        Raises: ProtocolError(SESSION, resource-limit-exceeded): the peer's handle-max allows no more links.
        """
        if len(self.owed) >= self._handles.maximum + 1 - self._handles.in_use:
            raise ProtocolError(
                Scope.SESSION,
                AmqpCondition.RESOURCE_LIMIT_EXCEEDED,
                f"more links than the handle-max of {self._handles.maximum} allows",
            )

    def _receive_flow(self, flow: Flow) -> tuple[Event, ...]:
        link = None if flow.handle is None else self._link_at(flow.handle)
        if link is not None and link.state in _DEAF:
            link, echoes = None, False
        else:
            echoes = flow.echo
        wants_transaction = flow.properties is not None and flow.properties.get(TXN_ID) is not None
        frame = flow_frame(flow)
        sends_on: kernel.KernelLink | None = None
        if isinstance(link, Sender) and not wants_transaction:
            sends_on = link.flow_state
            if flow.delivery_count is None:
                # A receiver that has not seen our attach cannot know the count: the initial one is meant (§2.6.7).
                frame.delivery_count = link.initial_delivery_count
        effect = kernel.apply_flow(self.flow_state, sends_on, frame, kernel.ANY_EFFECT)
        if effect & kernel.NEVER_SENT:
            raise ProtocolError(Scope.SESSION, AmqpCondition.INVALID_FIELD, "flow counts transfers never sent")
        events: list[Event] = [WindowOpened(self)] if effect & kernel.WINDOW_OPENED else []
        if isinstance(link, Sender):
            if wants_transaction:  # the receiver would acquire within a transaction (§4.4.3)
                return (
                    *events,
                    *self.fail_link(link, AmqpCondition.NOT_IMPLEMENTED, "no transactional acquisition here"),
                )
            drain = flow.drain and link.flow_state.link_credit > 0
            events.append(DrainRequested(link, flow) if drain else CreditChanged(link, flow))
            if flow.drain and not drain:
                # The credit is used up already, and the receiver waits for that answer (§2.6.7).
                link.request_flow()
        elif isinstance(link, Receiver):
            try:
                link.receive_flow(flow)
            except kernel.Violation as violation:
                return (*events, *self.fail_link(link, violation.condition, violation.description))
            events.append(CreditChanged(link, flow))
        if echoes:
            if link is not None:
                link.request_flow()
            else:
                self.flow()
        return tuple(events)

    def _receive_detach(self, detach: Detach) -> tuple[Event, ...]:
        link = self._link_at(detach.handle)
        closed = detach.closed or detach.error is not None
        del self.links[detach.handle]
        kernel.disable_fast_path(link.flow_state)
        self.owed.discard(link)
        link.input_handle = None
        if link.state is LinkEndpointState.DISCARDING:
            # Both sides know that the link has ended: any later frame for it is errant (§2.6.5).
            self._errant.add(detach.handle)
        link.state = LINK[link.state][STEP.RECEIVED_DETACH]
        if link.state is not LinkEndpointState.DETACHED:
            return (LinkDetached(link, closed, detach.error, by_peer=True),)
        if not closed or link.closed:
            return ()
        # The peer closed the link while we detached it to attach it again later. We can close it, too, only after
        # we have attached it once more (§2.6.6).
        kernel.abandon(link.flow_state)
        if (link.name, link.role) not in self.awaiting:
            self.attach(Terminus(link.name, link.role)).detach()
        return (LinkDetached(link, True, detach.error, by_peer=False),)

    def _receive_end(self, end: End) -> tuple[Event, ...]:
        # The peer may end the session before we have answered its begin: both answers are due.
        self._answer_begin()
        assert self.incoming_channel is not None
        self._set_state(SESSION[self.state][STEP.RECEIVED_END])
        del self.connection.channels.incoming[self.incoming_channel]
        self.incoming_channel = None
        if self.state is S.UNMAPPED:
            self._free_channel()
            return ()
        self.end()
        return (SessionEnded(self, end.error, by_peer=True),)

    def _free_channel(self) -> None:
        # By §2.5.2 our own `end` frees the channel. We wait for the peer's `end`: a `begin` of the peer may still name
        # the channel, and RabbitMQ 3 answers on the channel of the same number: the `begin` of the next session would
        # come before the `end` of this one.
        self.connection.channels.free(self._ended_channel)
