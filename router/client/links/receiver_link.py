"""Receiving: credit for what is not decided yet, a window for what is not taken yet (§2.6.7, §2.5.6)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import trio

from amqpmesh.router import kernel
from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.value_limits import MAX_VALUES
from amqpmesh.router.amqp.errors import AmqpMeshError, CommandError, ProtocolError, Scope
from amqpmesh.router.amqp.link import FORGIVEN
from amqpmesh.router.amqp.link import Receiver as EngineReceiver
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error
from amqpmesh.router.amqp.standard.delivery_states import Rejected
from amqpmesh.router.amqp.standard.messaging import MESSAGE_FORMAT, Source
from amqpmesh.router.client.links.arguments import whole
from amqpmesh.router.client.links.client_connection import MIN_WINDOW
from amqpmesh.router.client.links.incoming import FAILED, DeliveryAbortedError, Incoming, WindowShare
from amqpmesh.router.client.links.receiver_credit import CreditingLink
from amqpmesh.router.client.links.redirected import at_redirect
from amqpmesh.router.endpoint_setup import REDIRECT
from amqpmesh.router.kernel import RELEASED_STATE
from amqpmesh.router.logs import event_log

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqpmesh.router.amqp.codec.types import Symbol, Value
    from amqpmesh.router.amqp.events import TransferReceived
    from amqpmesh.router.amqp.link import Link
    from amqpmesh.router.amqp.session import Session
    from amqpmesh.router.amqp.standard.performatives import Attach
    from amqpmesh.router.client.links.attach_options import ReceiverOptions
    from amqpmesh.router.client.links.client_connection import ClientConnection
    from amqpmesh.router.client.links.link_manager import LinkManager
    from amqpmesh.router.client.links.outgoing import Outgoing

log = event_log.EventLog("amqpmesh.client")

MODIFIED: Final = "amqp:modified:list"

MAX_WINDOW: Final = 2**31 - 1
"""However large: transfer-ids are serial numbers (§2.8.10)."""

ANSWER_TIME: Final = 0.25
"""Seconds that a sender has, when the link is left, to say that it knows of no credit, and to settle (mode second)."""


class ReceiverLink(CreditingLink):
    """The receiving end of a link."""

    kind = "receiver"
    _direction = "from"

    def __init__(
        self,
        home: LinkManager,
        name: str,
        address: str | None,
        options: ReceiverOptions,
        *,
        credit: int,
        buffer: int,
        streaming: bool = False,
        any_format: bool = False,
        max_values: int = MAX_VALUES,
    ) -> None:
        super().__init__(home, name, address, credit)
        #: The filters that the peer applies (§3.5.8).
        self.filter: Mapping[Symbol, Value] = {}
        self._options = options
        #: Asked for again over each connection, whatever the peer then called it.
        self._requested = options.source_for(address)
        self._window = min(max(MIN_WINDOW, whole("buffer", buffer) // home.max_frame_size), MAX_WINDOW)
        self._streaming = streaming
        self._any_format = any_format
        self._max_values = whole("max_values", max_values)
        self._ready: deque[Incoming] = deque()
        self._arriving: Incoming | None = None
        #: Of the session that it is attached on, or was.
        self._window_share: WindowShare | None = None
        #: Deliveries that the peer was not told the end of, by the engine's.
        self._open: dict[kernel.Delivery, Incoming] = {}
        #: Whether the source has the outcome modified; brokers that have not (RabbitMQ 3) end the session for it.
        self.takes_modified = True
        #: The peer is to tell its flow state.
        self._awaits_flow = False
        #: That replies cannot be sent was logged.
        self._has_warned = False
        self._takers = trio.lowlevel.ParkingLot()
        #: Those of them who were woken, and have not run yet.
        self._woken = 0

    def described(self) -> str:
        """How it stands, for people."""
        return f"{super().described()}, credit {self.credit}, {self.undecided} undecided"

    async def receive(self) -> Incoming:
        """As `Receiver.receive`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        parked = False
        while True:
            # Whoever was woken and has not run yet called before.
            while not self._ready or (self._woken and not parked and not self.is_over):
                self.check()
                await self._takers.park()
                self._woken -= 1
                parked = True
            delivery = self._take()
            error = delivery.decode()
            if error is None:
                break
            self._refuse(delivery, error)
            self._refund_credit()
        if not parked:
            await trio.lowlevel.cancel_shielded_checkpoint()
        return delivery

    # ------------------------------------------------------------------------------------------------- for deliveries

    def decide(self, delivery: Incoming, state: bytes) -> bool:
        """As `Delivery.accept`, of any terminal state."""
        if delivery.is_decided:
            raise CommandError("the delivery was decided already")
        delivery.decided()
        self._free_credit(delivery)
        kernel_delivery = delivery.kernel
        told = not (delivery.is_lost or kernel_delivery.remote_settled or kernel_delivery.aborted)
        if not delivery.is_lost:
            # With rcv-settle-mode second we settle when the sender has (§2.6.12).
            settle = not kernel_delivery.second or kernel_delivery.remote_settled
            kernel.dispose(kernel_delivery, state, settle)
            if settle:
                self._open.pop(kernel_delivery, None)
                delivery.settlement.set()
        self._replenish()
        return told

    def fail(self, delivery: Incoming) -> None:
        """Decide for the program, which began and did not end well: modified (delivery-failed), or what comes next."""
        self.decide(delivery, FAILED if self.takes_modified else RELEASED_STATE)

    async def reply(self, to: str, payload: bytes, *, settled: bool) -> Outgoing:
        """As `Delivery.reply`. Raises: LinkDetachedError, SessionEndedError: the peer refuses the way."""
        return await self._manager.reply(to, payload, settled=settled)

    def reject_unanswerable(self, delivery: Incoming, condition: Symbol, why: str) -> None:
        """It cannot be replied to: whoever sent it is told, if nothing else was decided."""
        if not self._has_warned:
            self._has_warned = True  # whoever sends one such request may send a million
            log.warning("request cannot be answered", link=self.name, address=self.address or "", reason=why)
        if not delivery.is_decided:
            self.decide(delivery, encode_composite(Rejected(error=Error(condition=condition, description=why))))

    # ---------------------------------------------------------------------------------------------------- of ClientLink

    def _choose_session(self, client_connection: ClientConnection) -> Session:
        session = client_connection.session_for(self, self._window)
        self._window_share = WindowShare(session)
        return session

    @property
    def _requested_address(self) -> str | None:
        return self._requested.address

    def _attach(self, session: Session) -> Link:
        link = self._options.attach(session, self.name, at_redirect(self._requested, self._stop))
        remote = session.connection.remote
        if isinstance(link, EngineReceiver) and not (remote is not None and REDIRECT in remote.offered_capabilities):
            link.forgiven = FORGIVEN  # it is no router of ours
        return link

    def _accepts(self, attach: Attach) -> bool:
        return attach.source is not None

    def _missing_from(self, attach: Attach) -> str | None:
        return self._options.missing_from(attach, self._requested)

    def _begin_use(self, attach: Attach) -> None:
        assert isinstance(attach.source, Source)
        self.address = attach.source.address
        self.filter = attach.source.filter or {}
        # A source that lists none has them all: the list is of what may be chosen (§3.5.3).
        self.takes_modified = not attach.source.outcomes or MODIFIED in attach.source.outcomes
        self._give_credit()

    def _lost(self, error: AmqpMeshError, *, final: bool) -> None:
        # What was sent settled is here for good, if it is whole; what was not, its sender has.
        ready, self._ready = self._ready, deque()
        coming = () if self._arriving is None else (self._arriving,)
        waiting = set(ready)
        for delivery in dict.fromkeys((*self._open.values(), *ready, *coming)):
            if delivery in waiting and delivery.is_settled and delivery.kernel.complete:
                self._ready.append(delivery)
            elif not delivery.is_taken:
                if not delivery.is_decided:
                    self._refund_credit()
                self._free_credit(delivery)
            delivery.lose(error)
        self._open.clear()
        self._arriving = None
        if self._window_share is not None:
            self._window_share.close()
        self._stop_drain()
        if final:
            self._woken += len(self._takers.unpark_all())

    async def _finish(self, *, clean: bool) -> None:  # noqa: ARG002 - it waits for nobody either way
        """No new deliveries; those that nobody had go back, those that somebody has and did not decide have failed."""
        link = self._link
        self._stop_credit()
        with trio.move_on_after(ANSWER_TIME, shield=True):
            if isinstance(link, EngineReceiver) and self.is_attached and link.credit:
                # Behind the answer nothing comes. A drain would do the same, but RabbitMQ fails over it.
                self._awaits_flow = True
                link.flow(0, echo=True)
                while self._awaits_flow and self.is_attached:
                    await self._change.wait()
        ready, self._ready = self._ready, deque()
        for delivery in (*ready, *([self._arriving] if self._arriving is not None else [])):
            if not delivery.is_decided and not delivery.is_taken:
                self.decide(delivery, RELEASED_STATE)
        for delivery in list(self._open.values()):
            if not delivery.is_decided:
                self.fail(delivery)
        with trio.move_on_after(ANSWER_TIME, shield=True):
            while self._open and self.is_attached:
                await self._change.wait()

    def transfer_received(self, event: TransferReceived) -> None:
        """A frame of a delivery came (§2.7.5)."""
        came, share = event.delivery, self._window_share
        assert share is not None, "it was attached"
        share.take()
        if event.first:
            self._arriving = Incoming(came, share, streaming=self._streaming, max_values=self._max_values)
            self._use_credit()
            if not came.remote_settled:
                self._open[came] = self._arriving
        delivery = self._arriving
        if delivery is None:
            share.release(1)
            return
        if came.complete:
            self._arriving = None
        if came.remote_settled and not delivery.settlement.is_set():
            # A later frame of it said so (§2.7.5, settled).
            self._open.pop(came, None)
            delivery.settlement.set()
        if came.aborted:
            share.release(1)
            self._aborted(delivery)
        elif delivery.is_decided:
            share.release(1)
        else:
            try:
                delivery.add(event.payload)
                if came.message_format != MESSAGE_FORMAT and not self._any_format:
                    raise ProtocolError(
                        Scope.LINK,
                        AmqpCondition.NOT_IMPLEMENTED,
                        f"message-format {came.message_format} is not known here",
                    )
            except ProtocolError as error:
                self._withdraw(delivery)
                self._refuse(delivery, error)
                if not delivery.is_taken:
                    self._refund_credit()
            else:
                if delivery.is_ready and not delivery.is_queued:
                    self._enqueue(delivery)
        self._open_window()
        self._check_drained()
        if event.link.credit == 0:
            # What is free and was too little for a flow of its own: now the sender waits for it.
            self._replenish()

    def disposition_received(
        self,
        delivery: kernel.Delivery,
        state: bytes | None,  # noqa: ARG002 - what counts is what the receiver said
        settled: bool,
    ) -> None:
        """The sender's state of a delivery (§2.7.6)."""
        known = self._open.get(delivery)
        if known is None or not settled:
            return
        # It remembers nothing of it, whether it has heard what the program thinks of it or not.
        kernel.dispose(delivery, None, True)
        del self._open[delivery]
        self._changed()
        known.settlement.set()

    def flow_received(self) -> None:
        """The sender's flow state (§2.6.7)."""
        if self._awaits_flow:
            self._awaits_flow = False
            self._changed()
        self._check_drained()
        self._replenish()

    def resume_sending(self) -> None:
        """A receiver sends nothing that would have to wait."""

    # ----------------------------------------------------------------------------------------------------------- inside

    def _enqueue(self, delivery: Incoming) -> None:
        """It can be handed out."""
        delivery.is_queued = True
        self._ready.append(delivery)
        self._woken += len(self._takers.unpark())

    def _take(self) -> Incoming:
        delivery = self._ready.popleft()
        if self._streaming:
            delivery.release_unstreamed()
        else:
            delivery.release_frames()
        delivery.is_taken = True
        if delivery.is_settled and not self._streaming:
            # Nobody waits for what the program thinks of it.
            self._free_credit(delivery)
            self._replenish()
        self._open_window()
        if self._ready and not self._woken:
            # Who came while somebody was being woken waits, whatever there is.
            self._woken += len(self._takers.unpark())
        return delivery

    def _open_window(self) -> None:
        """What is coming and nothing is before it may be larger than the window: it holds nothing of it."""
        first = self._ready[0] if self._ready else self._arriving
        if first is None:
            return
        if self._streaming:
            first.release_unstreamed()
        elif first is self._arriving:
            first.release_frames()

    def _aborted(self, delivery: Incoming) -> None:
        self._open.pop(delivery.kernel, None)
        delivery.end(DeliveryAbortedError("the sender aborted the delivery"))
        delivery.settlement.set()
        self._withdraw(delivery)
        # There is nothing to decide, whoever has it.
        self._free_credit(delivery)
        self._replenish()
        if not (delivery.is_taken or delivery.is_decided):
            self._refund_credit()

    def _withdraw(self, delivery: Incoming) -> None:
        """It is coming, so that nothing can be behind it; nobody is to see it who has not yet."""
        if self._ready and self._ready[-1] is delivery:
            self._ready.pop()

    def _refuse(self, delivery: Incoming, error: ProtocolError) -> None:
        """It is no message, or of a format that the program did not ask for."""
        log.warning("message rejected", peer=self.peer, link=self.name, address=self.address or "", reason=str(error))
        delivery.end(error)
        if not delivery.is_decided:
            refusal = Rejected(error=Error(condition=error.condition, description=error.description))
            self.decide(delivery, encode_composite(refusal))
