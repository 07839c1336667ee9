"""`ReceiverLink`: credit for undecided deliveries, and a session window for deliveries not taken (§2.6.7, §2.5.6)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import trio

from amqpmesh.router import kernel
from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.value_limits import MAX_VALUES
from amqpmesh.router.amqp.errors import AmqpMeshError, CommandError, LinkDetachedError, ProtocolError, Scope
from amqpmesh.router.amqp.link import FORGIVEN, MAX_CREDIT
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
    from collections.abc import Iterable, Mapping

    from amqpmesh.router.amqp.codec.types import Symbol, Value
    from amqpmesh.router.amqp.events import TransferReceived
    from amqpmesh.router.amqp.link import Link
    from amqpmesh.router.amqp.session import Session
    from amqpmesh.router.amqp.standard.performatives import Attach
    from amqpmesh.router.client.links.attach_options import ReceiverOptions
    from amqpmesh.router.client.links.client_connection import ClientConnection
    from amqpmesh.router.client.links.kept_deliveries import KeptDeliveries
    from amqpmesh.router.client.links.link_manager import LinkManager
    from amqpmesh.router.client.links.outgoing import Outgoing

log = event_log.EventLog("amqpmesh.client")

MODIFIED: Final = "amqp:modified:list"

MAX_WINDOW: Final = 2**31 - 1
"""The largest session window, since transfer-ids are serial numbers (§2.8.10)."""

ANSWER_TIME: Final = 0.25
"""Seconds that a sender has, when the program leaves the link, to stop at zero credit, and to settle (mode second)."""


class ReceiverLink(CreditingLink):
    """The receiving end of a link."""

    kind = "receiver"
    _direction = "from"

    def __init__(
        self,
        manager: LinkManager,
        name: str,
        address: str | None,
        options: ReceiverOptions,
        *,
        credit: int,
        buffer: int,
        streaming: bool = False,
        any_format: bool = False,
        max_values: int = MAX_VALUES,
        kept: KeptDeliveries | None = None,
    ) -> None:
        """Args: kept: of a link that is to be resumed; None: deliveries are lost with the link."""
        super().__init__(manager, name, address, credit)
        #: The filters that the peer applies (§3.5.8).
        self.filter: Mapping[Symbol, Value] = {}
        self._options = options
        #: The source to ask for over each connection, whatever address the peer gave it on the last one.
        self._requested = options.source_for(address)
        self._kept = kept
        if kept is not None:
            self._requested = kept.asking(self._requested)
        self._window = min(max(MIN_WINDOW, whole("buffer", buffer) // manager.max_frame_size), MAX_WINDOW)
        self._streaming = streaming
        self._any_format = any_format
        self._max_values = whole("max_values", max_values)
        self._ready: deque[Incoming] = deque()
        self._arriving: Incoming | None = None
        #: Its part of the window of the session that it is attached on, or was last.
        self._window_share: WindowShare | None = None
        #: Unsettled deliveries, by the engine's delivery.
        self._open: dict[kernel.Delivery, Incoming] = {}
        #: Whether the source supports the outcome modified. Brokers without it (RabbitMQ 3) end the session for it.
        self.takes_modified = True
        #: Whether the answer to our last `flow` is awaited.
        self._awaits_flow = False
        #: Whether the log has told of a reply that cannot be sent.
        self._has_warned = False
        self._takers = trio.lowlevel.ParkingLot()
        #: The number of tasks of `_takers` that were woken and have not run yet.
        self._woken = 0

    def described(self) -> str:
        """Return the link's state, for people."""
        return f"{super().described()}, credit {self.credit}, {self.undecided} undecided"

    async def receive(self) -> Incoming:
        """Return the next delivery, as `Receiver.receive` does."""
        await trio.lowlevel.checkpoint_if_cancelled()
        parked = False
        while True:
            # A task that was woken and has not run yet goes first: it called earlier.
            while not self._ready or (self._woken and not parked and not self.is_over):
                self.check()
                await self._takers.park()
                self._woken -= 1
                parked = True
            delivery = self._take()
            error = delivery.decode()
            if error is None:
                break
            self._reject(delivery, error)
            self._refund_credit()
        if not parked:
            await trio.lowlevel.cancel_shielded_checkpoint()
        return delivery

    def receive_nowait(self) -> Incoming:
        """Return the next delivery, as `Receiver.receive_nowait` does."""
        # A task that was woken and has not run yet goes first: it called earlier.
        while len(self._ready) > self._woken or (self._ready and self.is_over):
            delivery = self._take()
            error = delivery.decode()
            if error is None:
                return delivery
            self._reject(delivery, error)
            self._refund_credit()
        self.check()
        raise trio.WouldBlock

    # ------------------------------------------------------------------------------------------------- for deliveries

    def decide(self, delivery: Incoming, state: bytes) -> bool:
        """Decide a delivery with any terminal state, as `Delivery.accept` does."""
        if delivery.is_decided:
            raise CommandError("the delivery was decided already")
        delivery.decided()
        kernel_delivery = delivery.kernel
        told = not (delivery.is_lost or kernel_delivery.remote_settled or kernel_delivery.aborted)
        if delivery.is_away:
            kernel_delivery.state = state  # for the next map
        elif not delivery.is_lost:
            self._tell(delivery, state)
            self._note_progress()
        self._free_credit(delivery)
        self._replenish()
        return told

    def _tell(self, delivery: Incoming, state: bytes) -> None:
        """Tell the sender our state of a delivery. With rcv-settle-mode second we settle when it has (§2.6.12)."""
        settle = not delivery.kernel.second or delivery.kernel.remote_settled
        kernel.dispose(delivery.kernel, state, settle)
        if settle:
            self._settled(delivery)

    def _settled(self, delivery: Incoming) -> None:
        """Note that both sides have settled a delivery."""
        self._open.pop(delivery.kernel, None)
        delivery.settled()

    def fail(self, delivery: Incoming) -> None:
        """Decide a delivery that failed: modified (delivery-failed), or released if the source lacks modified."""
        self.decide(delivery, FAILED if self.takes_modified else RELEASED_STATE)

    async def reply(self, to: str, payload: bytes, *, settled: bool) -> Outgoing:
        """Send a reply. Raises: LinkDetachedError, SessionEndedError: the peer refuses the address."""
        self._note_progress()
        return await self._manager.reply(to, payload, settled=settled)

    def reject_unanswerable(self, delivery: Incoming, condition: Symbol, why: str) -> None:
        """Reject a delivery that cannot be replied to, unless it is decided, so that its sender learns the reason."""
        if not self._has_warned:
            self._has_warned = True  # a client that sends one such request may send a million
            log.warning("request cannot be answered", link=self.name, address=self.address or "", reason=why)
        if not delivery.is_decided:
            self.decide(delivery, encode_composite(Rejected(error=Error(condition=condition, description=why))))

    # ---------------------------------------------------------------------------------------------------- of ClientLink

    def _choose_session(self, client_connection: ClientConnection) -> Session:
        session = client_connection.session_for(self, self._window)
        widening = self._manager.widening
        self._window_share = WindowShare(session, min(self._window * widening, MAX_WINDOW) if widening > 1 else 0)
        return session

    @property
    def _requested_address(self) -> str | None:
        return self._requested.address

    def _attach(self, session: Session) -> Link:
        link = self._options.attach(session, self.name, at_redirect(self._requested, self._chain), self._kept)
        remote = session.connection.remote
        if isinstance(link, EngineReceiver) and not (remote is not None and REDIRECT in remote.offered_capabilities):
            link.forgiven = FORGIVEN  # the peer is no amqpmesh router
        return link

    def _accepts(self, attach: Attach) -> bool:
        return attach.source is not None

    def _missing_from(self, attach: Attach) -> str | None:
        missing = self._options.missing_from(attach, self._requested)
        return missing if missing is not None or self._kept is None else self._kept.missing_from(attach)

    def _begin_use(self, attach: Attach) -> None:
        assert isinstance(attach.source, Source)
        self.address = attach.source.address
        self.filter = attach.source.filter or {}
        # A source without a list of outcomes supports them all (§3.5.3).
        self.takes_modified = not attach.source.outcomes or MODIFIED in attach.source.outcomes
        if self._kept is not None:
            settled, lost = self._kept.compare(attach)
            for each in (*settled, *lost):
                kernel.forget(each.kernel)  # the peer may use its tag again
            for each in settled:
                self._go_on(each)
            self._lose(lost, LinkDetachedError("the peer knows nothing of it any more"))
        self._give_credit()

    def _endpoint_lost(self, error: AmqpMeshError, *, final: bool) -> None:
        # Whole deliveries that were sent settled stay here. Of all others the sender still has a copy.
        ready, self._ready = self._ready, deque()
        coming = () if self._arriving is None else (self._arriving,)
        lost = list(dict.fromkeys((*self._open.values(), *ready, *coming)))
        for delivery in ready:
            delivery.is_queued = False
            if delivery.is_settled and delivery.kernel.complete:
                delivery.is_queued = True
                self._ready.append(delivery)
        if self._kept is not None:
            lost = [*self._kept.give_up(), *lost] if final else self._kept.keep(lost)
        self._lose(lost, error)
        self._open.clear()
        self._arriving = None
        if self._window_share is not None:
            self._window_share.close()
        self._stop_drain()
        if final:
            self._woken += len(self._takers.unpark_all())

    def _lose(self, deliveries: Iterable[Incoming], error: AmqpMeshError) -> None:
        """Note that the sender cannot be told decisions any more. What was not taken, and not settled, is dropped."""
        for delivery in deliveries:
            if not (delivery.is_taken or delivery.is_queued):
                if not delivery.is_decided:
                    self._refund_credit()
                self._free_credit(delivery)
            delivery.lose(error)

    async def _finish(self, *, clean: bool) -> None:
        """Stop the credit, release deliveries that are not taken, and fail those that are taken and not decided."""
        kept = self._kept
        if clean and kept is not None:
            with trio.move_on_after(kept.seconds):
                while kept.has_outcomes and not self.is_over and (kept.is_round or not self.is_attached):
                    await self._change.wait()
        with trio.move_on_after(ANSWER_TIME, shield=True):
            while self._expected and self.is_attached:
                await self._change.wait()
        link = self._link
        self._stop_credit()
        with trio.move_on_after(ANSWER_TIME, shield=True):
            if isinstance(link, EngineReceiver) and self.is_attached and link.credit:
                # After the answer no delivery follows. A drain would do the same, but RabbitMQ fails on it.
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
        """Handle a frame of a delivery (§2.7.5)."""
        came, share = event.delivery, self._window_share
        assert share is not None, "it was attached"
        share.take()
        share.note(len(event.payload))
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
        if came.remote_settled and not delivery.is_over:
            # A later frame of the delivery has `settled` set (§2.7.5).
            self._settled(delivery)
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
                self._reject(delivery, error)
                if not delivery.is_taken:
                    self._refund_credit()
            else:
                if delivery.is_ready and not delivery.is_queued:
                    self._enqueue(delivery)
        self._open_window()
        self._check_drained()
        if event.link.credit == 0:
            # Credit that was too little for a `flow` of its own: now the sender waits for it.
            self._replenish()

    def disposition_received(
        self,
        delivery: kernel.Delivery,
        state: bytes | None,  # noqa: ARG002 - the receiver's state counts
        settled: bool,
    ) -> None:
        """Handle the sender's settlement of a delivery (§2.7.6)."""
        known = self._open.get(delivery)
        if known is None or not settled:
            return
        # The sender has forgotten the delivery, whether it knows our decision or not.
        kernel.dispose(delivery, None, True)
        self._settled(known)
        self._changed()
        self._replenish()

    def delivery_resumed(self, delivery: kernel.Delivery) -> None:
        """Go on with a delivery of a former link endpoint (§2.6.13, §3.4.6)."""
        known = None if self._kept is None else self._kept.resumed(delivery)
        if known is not None:
            self._go_on(known)

    @property
    def _expected(self) -> int:
        return 0 if self._kept is None else self._kept.expected

    @property
    def _room(self) -> int:
        if self._kept is None or self._session is None:
            return MAX_CREDIT
        limit = self._session.connection.remote_max_frame_size
        return self._kept.room(limit) - len(self._open)

    def _go_on(self, delivery: Incoming) -> None:
        """Go on with a delivery that the peer has resumed, or settled while the link was away."""
        delivery.is_away = False
        came = delivery.kernel
        stated = came.remote_state if kernel.is_terminal(came.remote_state) else None
        if not came.settled:
            self._open[came] = delivery
            if stated is not None and not delivery.is_decided:  # the sender has decided it: the program cannot any more
                delivery.decided()
            if delivery.is_decided:
                state = stated or came.state
                assert state is not None
                self._tell(delivery, state)
        if came.remote_settled:
            kernel.dispose(came, None, True)
            self._settled(delivery)
        if not (delivery.is_taken or delivery.is_decided):
            self._enqueue(delivery)
        self._changed()
        self._replenish()

    def flow_received(self) -> None:
        """Handle the sender's `flow` (§2.6.7)."""
        if self._awaits_flow:
            self._awaits_flow = False
            self._changed()
        self._check_drained()
        self._replenish()

    def resume_sending(self) -> None:
        """Do nothing: a receiver sends nothing that has to wait."""

    # ----------------------------------------------------------------------------------------------------------- inside

    def _enqueue(self, delivery: Incoming) -> None:
        """Queue a delivery for the program, and wake a task that waits for one."""
        delivery.is_queued = True
        self._ready.append(delivery)
        if self._takers:
            self._woken += len(self._takers.unpark())

    def _take(self) -> Incoming:
        delivery = self._ready.popleft()
        if self._streaming:
            delivery.release_unstreamed()
        else:
            delivery.release_frames()
        delivery.is_taken = True
        self._note_progress()
        if delivery.is_settled and not self._streaming:
            # Sent settled: the sender waits for no decision.
            self._free_credit(delivery)
            self._replenish()
        self._open_window()
        if self._takers and self._ready and not self._woken:
            # Tasks that called while another was being woken still wait.
            self._woken += len(self._takers.unpark())
        return delivery

    def _open_window(self) -> None:
        """Return the frames of the first delivery to the window: otherwise one larger than the window would stall."""
        first = self._ready[0] if self._ready else self._arriving
        if first is None:
            return
        if self._streaming:
            first.release_unstreamed()
        elif first is self._arriving:
            first.release_frames()

    def _note_progress(self) -> None:
        """Note that the program has taken, answered or decided a delivery: it may go on at once if others are ready."""
        if self._ready and self._client_connection is not None:
            self._client_connection.decides_more = True

    def _aborted(self, delivery: Incoming) -> None:
        self._open.pop(delivery.kernel, None)
        delivery.end(DeliveryAbortedError("the sender aborted the delivery"))
        delivery.settled()
        self._withdraw(delivery)
        # An aborted delivery needs no decision.
        self._free_credit(delivery)
        self._replenish()
        if not (delivery.is_taken or delivery.is_decided):
            self._refund_credit()

    def _withdraw(self, delivery: Incoming) -> None:
        """Remove a delivery that is still arriving from the queue, where it can only be the last."""
        if self._ready and self._ready[-1] is delivery:
            self._ready.pop()

    def _reject(self, delivery: Incoming, error: ProtocolError) -> None:
        """Reject a delivery that is no valid message, or of a format that the program did not ask for."""
        log.warning("message rejected", peer=self.peer, link=self.name, address=self.address or "", reason=str(error))
        delivery.end(error)
        if not delivery.is_decided:
            refusal = Rejected(error=Error(condition=error.condition, description=error.description))
            self.decide(delivery, encode_composite(refusal))
