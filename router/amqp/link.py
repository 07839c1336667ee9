"""Link endpoints, senders and receivers: handles, credit and deliveries (§2.6)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from amqpmesh.router import kernel
from amqpmesh.router.amqp.codec.types import Extension, Symbol
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.amqp.shortening import short_state
from amqpmesh.router.amqp.standard.definitions import (
    SENDER,
    AmqpCondition,
    Error,
    ReceiverSettleMode,
    Role,
    SenderSettleMode,
)
from amqpmesh.router.amqp.standard.performatives import Attach, Detach, Flow, encode_performative, encoded_detach
from amqpmesh.router.amqp.states import LINK, STEP, LinkEndpointState, Step, direct

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from amqpmesh.router.amqp.alike_attaches import AttachTerms
    from amqpmesh.router.amqp.codec.types import Value
    from amqpmesh.router.amqp.session import Session
    from amqpmesh.router.amqp.standard.messaging import Source, Target
    from amqpmesh.router.amqp.standard.transactions import Coordinator

S = direct(LinkEndpointState)

#: The largest credit; serial numbers would take a higher delivery-limit for one in the past (RFC 1982).
MAX_CREDIT: Final = 2**31 - 1

#: The entry of a `flow`'s properties that makes a receiver acquire within a transaction (§4.4.3).
TXN_ID: Final = Symbol("txn-id")

#: The most octets of a `transfer` without its state and its payload.
_HEAD: Final = 80


@dataclass(slots=True, eq=False)
class Terminus:
    """Our end of a link, with its unsettled map; it outlives the link endpoints that are attached to it (§2.6.13).

    `name` and `role` (ours) identify it, together with the peer's container. Deliveries and their relays belong to the
    terminus. Handles belong to the link endpoint, delivery-ids to the session.
    """

    name: str
    role: Role
    #: Unsettled deliveries by delivery-tag.
    unsettled: dict[bytes, kernel.Delivery | kernel.FastDelivery | kernel.FastMulticast] = field(default_factory=dict)


class Link:
    """A link endpoint of ours. Its terminus may outlive it, and its handles may be reused."""

    __slots__ = (
        "closed",
        "context",
        "flow_due",
        "flow_state",
        "initial_delivery_count",
        "input_handle",
        "name",
        "owes_echo",
        "remote",
        "role",
        "session",
        "state",
        "terminus",
    )

    def __init__(self, session: Session, terminus: Terminus) -> None:
        self.session = session
        self.terminus = terminus
        self.name = terminus.name
        #: Our role.
        self.role = terminus.role
        self.state = S.DETACHED
        #: Our `detach` closed the link, or carried an error: it cannot be resumed.
        self.closed = False
        #: The kernel's part, which changes with each transfer: credit, delivery-count, counters, deliveries.
        self.flow_state = kernel.KernelLink(session.flow_state, self.role is SENDER, self, terminus.unsettled)
        #: Of a sender: its first delivery-count, a sequence number.
        self.initial_delivery_count = 0
        #: The peer's handle; None: the peer is not attached.
        self.input_handle: int | None = None
        #: The peer's `attach`, or what the owner of the connection keeps of it.
        self.remote: Attach | None = None
        #: The next flush writes a `flow`; with `owes_echo`, it asks for an answer.
        self.flow_due = False
        self.owes_echo = False
        #: For the owner of the connection.
        self.context: object = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {self.state.name}>"

    @property
    def is_attached(self) -> bool:
        """Both sides are attached, and neither has begun to detach."""
        return self.state is S.ATTACHED

    @property
    def delivery_count(self) -> int:
        """The delivery-count of the link, a sequence number, 0..2**32-1 (§2.6.7)."""
        return self.flow_state.delivery_count

    @property
    def credit(self) -> int:
        """The link-credit that this end knows: deliveries that may still be sent (§2.6.7)."""
        return self.flow_state.link_credit

    @property
    def remote_max_message_size(self) -> int:
        """The octets of the largest message that the peer takes; 0: no limit (§2.7.3)."""
        return self.flow_state.max_message_size if self.flow_state.sender else 0

    def attach(
        self,
        *,
        source: Source | Extension | None = None,
        target: Target | Coordinator | Extension | None = None,
        snd_settle_mode: SenderSettleMode = SenderSettleMode.MIXED,
        rcv_settle_mode: ReceiverSettleMode = ReceiverSettleMode.FIRST,
        max_message_size: int | None = None,
        initial_delivery_count: int = 0,
        unsettled: Mapping[bytes, object] | None = None,
        incomplete_unsettled: bool = False,
        offered_capabilities: Sequence[Symbol] = (),
        desired_capabilities: Sequence[Symbol] = (),
        properties: Mapping[Symbol, Value] | None = None,
    ) -> None:
        """Send our `attach`: the first of a link that we initiate, or the answer to the peer's (§2.6.3).

        An answer that does not fit into the peer's frames ends the session with frame-size-too-small (§2.7.3).

        Args: max_message_size: octets; None or 0: no limit. A receiver enforces it. initial_delivery_count: of a
            sender. unsettled: None for a link without history, {} for an empty unsettled map (§2.7.3).
                incomplete_unsettled: the map lacks some.
        Raises: CommandError: this end has sent its attach already, the session has ended, or the attach is the first
            and does not fit into the peer's frames.
        """

        def body(handle: int) -> bytes:
            attach = Attach(
                name=self.name,
                handle=handle,
                role=self.role,
                snd_settle_mode=snd_settle_mode,
                rcv_settle_mode=rcv_settle_mode,
                source=source,
                target=target,
                unsettled=unsettled,  # type: ignore[arg-type]  # tags and states, or none yet
                incomplete_unsettled=incomplete_unsettled,
                initial_delivery_count=initial_delivery_count if self.role is SENDER else None,
                max_message_size=max_message_size,
                offered_capabilities=tuple(offered_capabilities),
                desired_capabilities=tuple(desired_capabilities),
                properties=dict(properties) if properties else None,
            )
            return encode_performative(attach, compact=self.session.flow_state.wire.compact)

        self._attach(body, rcv_settle_mode, max_message_size, initial_delivery_count)

    def answer(
        self, terms: AttachTerms, rcv_settle_mode: ReceiverSettleMode, max_message_size: int | None = None
    ) -> None:
        """Answer the peer's attach as `attach` does, with fields that are encoded. Raises: as `attach`."""
        self._attach(partial(terms.body, self.name), rcv_settle_mode, max_message_size, 0)

    def _attach(
        self,
        body: Callable[[int], bytes],
        rcv_settle_mode: ReceiverSettleMode,
        max_message_size: int | None,
        initial_delivery_count: int,
    ) -> None:
        """Send our `attach`. Args: body: makes it for a handle. Raises: as `attach`."""
        after = self._step(STEP.SENT_ATTACH)
        session = self.session
        handle = session.allocate_handle(self)
        try:
            session.connection.write_body(session.flow_state.channel, "attach", body(handle))
        except CommandError as refusal:
            session.free_handle(handle)
            if self.state is S.DETACHED:
                raise
            error = Error(condition=AmqpCondition.FRAME_SIZE_TOO_SMALL, description=str(refusal))
            session.connection.report(session.fail(error))
            return
        flow_state = self.flow_state
        flow_state.handle = handle
        if self.role is SENDER:
            flow_state.delivery_count = self.initial_delivery_count = initial_delivery_count
        else:
            flow_state.max_message_size = max_message_size or 0
            flow_state.second = rcv_settle_mode is ReceiverSettleMode.SECOND
        self.state = after

    def refuse(self, error: Error) -> None:
        """Answer the peer's attach by one without our terminus, and by a closing detach with `error` (§2.6.3).

        Raises: CommandError: no attach of the peer waits for an answer.
        """
        if self.remote is None:
            raise CommandError("nothing to refuse: the peer has not attached")
        flow_state = self.flow_state
        if self.role is SENDER:
            self.attach(rcv_settle_mode=ReceiverSettleMode(int(flow_state.second)))
        else:
            self.attach(snd_settle_mode=SenderSettleMode(flow_state.snd_settle_mode))
        if self.state is S.ATTACHED:
            self.detach(error=error)

    def detach(self, *, closed: bool = True, error: Error | None = None) -> None:
        """Send our `detach`: the first, or the answer to the peer's (§2.6.4 to §2.6.6).

        With `closed` or an error the endpoint is destroyed: no later frame can refer to its deliveries.
        Raises: CommandError: this end has detached already, or never attached.
        """
        if self.state is S.DETACH_RCVD and self.flow_state.handle == -1:
            # The peer has detached before we answered its attach.
            self.attach()
            if self.flow_state.handle == -1:
                return
        after = self._step(STEP.SENT_DETACH if error is None else STEP.SENT_ERROR)
        session = self.session
        session.write_dispositions()
        self.closed = closed or error is not None
        if self.closed:
            kernel.abandon(self.flow_state)
        if error is None:
            session.flow_state.wire.append(
                session.flow_state.channel, encoded_detach(self.flow_state.handle, self.closed)
            )
        else:
            session.write(Detach(handle=self.flow_state.handle, closed=True, error=error))
        self.state = after
        session.free_handle(self.flow_state.handle)
        self.flow_state.handle = -1

    def let_go(self) -> None:
        """Forget the name and the attach of a detached link, to free memory: only its handle waits for the peer."""
        self.name = self.terminus.name = ""
        self.remote = None

    def _step(self, step: Step) -> LinkEndpointState:
        after = LINK[self.state].get(step)
        if after is None or not self.session.can_send:
            raise CommandError(f"{step.name.lower()} is not possible: the link is {self.state.name}")
        return after

    def request_flow(self) -> None:
        """Have the link's flow state written with the next flush."""
        if not self.flow_due and self.flow_state.handle != -1:
            self.flow_due = True
            self.session.flow_state.flows.append(self)
            self.session.wake()

    def write_flow(self) -> None:
        """Write a `flow` with the state of the session and of this link (§2.7.4)."""
        flow_state = self.flow_state
        echo, self.owes_echo = self.owes_echo, False
        self.flow_due = False
        kernel.write_flow(self.session.flow_state, flow_state, echo, flow_state.sender or self.remote is not None)


class Sender(Link):
    """Our end of a link to a receiving peer."""

    __slots__ = ()

    def delivery(self, tag: bytes, *, message_format: int = 0, settled: bool = False) -> kernel.Delivery:
        """Make a delivery that `transfer` will send. Nothing is sent yet, and no credit is used.

        Args: tag: 1..32 octets, different from the tags of unsettled deliveries on this link (§2.6.12). settled: we
            settle it before it is sent: it is delivered at most once.
        Raises: CommandError: the tag is too long or in use.
        """
        if len(tag) > kernel.MAX_TAG:
            raise CommandError(f"a delivery-tag has at most {kernel.MAX_TAG} octets")
        if tag in self.flow_state.unsettled:
            raise CommandError("the delivery-tag is in use")
        return kernel.Delivery(self.flow_state, tag, message_format, settled, False)

    def transfer(
        self,
        delivery: kernel.Delivery,
        payload: bytes | memoryview = b"",
        *,
        more: bool = False,
        settled: bool = False,
        aborted: bool = False,
        state: bytes | None = None,
        resume: bool = False,
    ) -> int:
        """Send the next part of `delivery`, cut into frames, as far as the session's window allows (§2.7.5).

        Args: more: other parts follow. settled: we settle the delivery with this frame. aborted: abort the delivery;
            the payload must be empty. state: encoded, sent with the first frame; in its short form if the peer's
            frames are too small. resume: the delivery was sent over a former link, and is sent again (§2.6.13).
        Returns: octets of the payload that were sent, 0 included. `delivery.complete` says whether the last frame is
            written; if not, call again with the rest after `WindowOpened`.
        Raises: CommandError: no credit, another delivery is in the middle of its frames, or the link is not attached.
        """
        flow_state = self.flow_state
        if self.state is not S.ATTACHED or not self.session.can_send:
            raise CommandError(f"the link is {self.state.name}")
        if delivery.complete:
            raise CommandError("the delivery is complete")
        if delivery.delivery_id == -1:
            if flow_state.link_credit <= 0:
                raise CommandError("no link credit")
            if flow_state.current is not None:
                raise CommandError("another delivery is in the middle of its frames")
            if aborted:
                raise CommandError("the delivery has not begun, so it cannot be aborted")
        if settled and not delivery.settled:
            delivery.settled = delivery.remote_settled = True
            kernel.forget(delivery)
        connection = self.session.connection
        limit = connection.remote_max_frame_size
        if state is not None and len(state) + _HEAD > limit:
            state = short_state(state)
        taken = kernel.send_transfer(flow_state, connection.out, delivery, payload, more, aborted, state, limit, resume)
        self.session.wake()
        return taken

    def resume(self, delivery: kernel.Delivery, *, state: bytes | None, aborted: bool = False) -> None:
        """Resume a delivery that was sent over a former link endpoint: no octets are sent again (§2.6.13).

        Args: delivery: without an id, with the tag of the former; the transfer settles it if it is settled. state:
            ours, encoded: the outcome that the receiver's map has, or the place up to which it has received. aborted:
            give it up.
        Raises: CommandError: no credit, no room in the session's window, or the link is not attached.
        """
        flow_state, session = self.flow_state, self.session
        if self.state is not S.ATTACHED or not session.can_send:
            raise CommandError(f"the link is {self.state.name}")
        if flow_state.link_credit <= 0 or flow_state.current is not None:
            raise CommandError("no link credit")
        if session.flow_state.remote_incoming_window <= 0:
            raise CommandError("the session's window is closed")
        connection = session.connection
        limit = connection.remote_max_frame_size
        if state is not None and len(state) + _HEAD > limit:
            state = short_state(state)
        kernel.resume_transfer(flow_state, connection.out, delivery, state, limit, aborted)
        session.wake()

    def drained(self) -> None:
        """Use up the credit that is left, and tell the receiver (§2.6.7). Without drain this does nothing."""
        flow_state = self.flow_state
        if flow_state.drain:
            if flow_state.link_credit > 0:
                flow_state.delivery_count = kernel.serial_add(flow_state.delivery_count, flow_state.link_credit)
                flow_state.link_credit = 0
            self.request_flow()

    def offer(self, available: int) -> None:
        """Set the count of messages that wait for credit here; the next flow carries it (§2.6.7, available)."""
        self.flow_state.available = available


#: The most delivery-limits of a link that are remembered until the sender has shown the one that it knows.
MAX_TOLD: Final = 64

#: Deliveries beyond its credit that a foreign container may send. RabbitMQ 3 sends some whenever a `flow` crosses
#: deliveries on their way; the session's window bounds them.
FORGIVEN: Final = 2**20


class Receiver(Link):
    """Our end of a link from a sending peer."""

    __slots__ = ("announced_limits", "forgiven", "known_limit", "resumes_only")

    def __init__(self, session: Session, terminus: Terminus) -> None:
        super().__init__(session, terminus)
        #: Deliveries beyond the credit that we tolerate; the owner sets it before the peer answers.
        self.forgiven = 0
        #: An unsettled map was incomplete: a delivery that is not resumed is an error (§2.7.3).
        self.resumes_only = False
        #: The delivery-limit that the sender most likely uses: the last one that it has shown.
        self.known_limit = 0
        #: The delivery-limits that the sender may use, in the order of our flows. The highest one binds it.
        self.announced_limits: list[int] = [0]

    def begin_count(self, initial_delivery_count: int) -> None:
        """Take the sender's first delivery-count: credit that was granted before counts from it (§2.6.7)."""
        flow_state = self.flow_state
        flow_state.delivery_count = initial_delivery_count
        self.known_limit = kernel.serial_add(initial_delivery_count, flow_state.link_credit)
        flow_state.granted_limit = kernel.serial_add(self.known_limit, self.forgiven)
        self.announced_limits = [self.known_limit]

    def flow(self, credit: int, *, drain: bool = False, echo: bool = False) -> None:
        """Set the link's credit to `credit` deliveries from now on. The next flush writes the flow (§2.6.7).

        After the credit is lowered, deliveries that the sender sends before it knows are no error.
        Args: echo: ask for the sender's flow state.
        """
        flow_state = self.flow_state
        self.note_raised()
        flow_state.link_credit = credit
        flow_state.drain = drain
        self.owes_echo = self.owes_echo or echo
        self.note_limit()
        self.request_flow()

    def begins(self, frame: kernel.TransferFrame) -> bool:
        """Tell whether a frame is the first of a delivery.

        Raises: Violation(LINK, not-allowed): the link only resumes deliveries, and this is a new one.
        """
        first = self.flow_state.current is None
        if first and self.resumes_only and not frame.resume:
            raise kernel.Violation(kernel.LINK, "amqp:not-allowed", "a new delivery behind an incomplete unsettled map")
        return first

    @property
    def may_send(self) -> bool:
        """The sender may have credit, as far as its last flow tells."""
        self.note_raised()
        return kernel.serial_distance(self.delivery_count, self.known_limit) > 0

    @property
    def shown_limit(self) -> int:
        """The last delivery-limit that the sender has shown to know; until then that of the attach (§2.6.7)."""
        return self.announced_limits[0]

    def note_raised(self) -> None:
        """Remember the delivery-limit that the kernel has granted last, if it has granted any meanwhile."""
        if self.flow_state.raised:
            self.flow_state.raised = False
            self.note_limit()

    def note_limit(self) -> None:
        """Remember the delivery-limit of a flow that is written or will be: the link's credit was set."""
        flow_state = self.flow_state
        limit = kernel.serial_add(flow_state.delivery_count, flow_state.link_credit)
        if kernel.serial_distance(self.known_limit, limit) > 0:
            self.known_limit = limit
        told, count = self.announced_limits, flow_state.delivery_count
        if limit != told[-1] and len(told) < MAX_TOLD:
            # The deliveries that came show that the sender knows a limit at least as high: earlier ones are outdated.
            reached = (at for at, each in enumerate(told) if kernel.serial_distance(count, each) >= 0)
            del told[: next(reached, 0)]
            told.append(limit)
        limit = kernel.serial_add(limit, self.forgiven)
        if kernel.serial_distance(flow_state.granted_limit, limit) > 0:
            flow_state.granted_limit = limit

    def receive_flow(self, flow: Flow) -> None:
        """Take the sender's flow state: an advanced delivery-count, and the delivery-limit that it knows.

        Raises: Violation(LINK, transfer-limit-exceeded): it counts beyond the credit that was granted.
        """
        flow_state = self.flow_state
        self.note_raised()
        if flow.delivery_count is not None:
            advanced = kernel.serial_distance(flow_state.delivery_count, flow.delivery_count)
            if advanced > 0:
                if kernel.serial_distance(flow.delivery_count, flow_state.granted_limit) < 0:
                    raise kernel.Violation(
                        kernel.LINK, "amqp:link:transfer-limit-exceeded", "delivery-count beyond the delivery-limit"
                    )
                flow_state.delivery_count = flow.delivery_count
                flow_state.link_credit = max(0, flow_state.link_credit - advanced)
        if flow.delivery_count is not None and flow.link_credit is not None:
            ours = kernel.serial_add(flow_state.delivery_count, flow_state.link_credit)
            known = kernel.serial_add(flow.delivery_count, flow.link_credit)
            if ours == known:
                self.known_limit = ours
            self._take_shown_limit(known, clipped=not flow.link_credit)
        flow_state.available = flow.available or 0

    def _take_shown_limit(self, known: int, *, clipped: bool) -> None:
        """Take the delivery-limit that the sender has shown, and forget the limits before it.

        If the shown limit fits several flows, the oldest of them counts: the sender may not have seen the later ones.
        Args: clipped: the sender has no credit. It shows the same for each limit that it has reached.
        """
        told = self.announced_limits
        if len(told) >= MAX_TOLD:
            return  # some limits are not remembered
        for at, limit in enumerate(told):
            if limit == known or (clipped and kernel.serial_distance(limit, known) > 0):
                if at:
                    del told[:at]
                    count = self.flow_state.delivery_count
                    highest = max(told, key=lambda each: kernel.serial_distance(count, each))
                    self.flow_state.granted_limit = kernel.serial_add(highest, self.forgiven)
                return
