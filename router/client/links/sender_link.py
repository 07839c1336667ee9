"""`SenderLink`: deliveries wait for credit in the order of the calls, then for their outcomes (§2.6.7, §2.6.12)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import aclosing, nullcontext
from itertools import count
from typing import TYPE_CHECKING, Final

import trio

from amqpmesh.router import kernel
from amqpmesh.router.amqp.errors import AmqpMeshError, CommandError, InDoubtError
from amqpmesh.router.amqp.link import Sender as EngineSender
from amqpmesh.router.amqp.link import Terminus
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode, Role, SenderSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Released
from amqpmesh.router.amqp.standard.messaging import Source, Target
from amqpmesh.router.amqp.states import LinkEndpointState
from amqpmesh.router.client.links.link import without_traceback
from amqpmesh.router.client.links.outgoing import Outgoing, OutgoingStream
from amqpmesh.router.client.links.redirected import RedirectedLink, at_redirect
from amqpmesh.router.client.links.unheard import FROM_THE_START, UnheardDeliveries
from amqpmesh.router.logs import event_log
from amqpmesh.router.message.outcomes import NOTHING_SAID, outcome_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Mapping, Sequence

    from amqpmesh.router.amqp.codec.types import Symbol, Value
    from amqpmesh.router.amqp.events import TransferReceived
    from amqpmesh.router.amqp.link import Link
    from amqpmesh.router.amqp.session import Session
    from amqpmesh.router.amqp.standard.performatives import Attach
    from amqpmesh.router.client.links.client_connection import ClientConnection
    from amqpmesh.router.client.links.link_manager import LinkManager
    from amqpmesh.router.message.writer import Sections

log = event_log.EventLog("amqpmesh.client")

NOTICE_TIME: Final = 1.0
"""Seconds of waiting for outcomes, when the program leaves a sender, before the log says so."""

CHUNK: Final = 128 * 2**10
"""Octets of a message that are put into frames at once, before the next look at the connection's backlog."""


class SenderLink(RedirectedLink):
    """The sending end of a link."""

    kind = "sender"
    _direction = "to"

    def __init__(
        self,
        manager: LinkManager,
        name: str,
        address: str | None,
        *,
        snd_settle_mode: SenderSettleMode = SenderSettleMode.MIXED,
        rcv_settle_mode: ReceiverSettleMode = ReceiverSettleMode.FIRST,
        target: Target | None = None,
        desired_capabilities: Sequence[Symbol] = (),
        properties: Mapping[Symbol, Value] | None = None,
        unheard: UnheardDeliveries | None = None,
    ) -> None:
        """Args: unheard: of a link that is to be resumed; None: deliveries are in doubt once the link is lost."""
        super().__init__(manager, name, address)
        self._requested = target if target is not None else Target(address=address)
        self._unheard = unheard
        if unheard is not None:
            self._requested = unheard.asking(self._requested)
        self._snd_settle_mode = snd_settle_mode
        self._rcv_settle_mode = rcv_settle_mode
        self._desired_capabilities = desired_capabilities
        self._properties = properties
        #: Deliveries to send, in the order of the calls. A cancelled one is removed from any position.
        self._waiting: OrderedDict[Outgoing, None] = OrderedDict()
        self._unsettled: dict[kernel.Delivery, Outgoing] = {}
        #: Unsettled deliveries whose outcome the program may still ask for.
        self._awaited: dict[Outgoing, None] = {}
        self._tags = count()
        self._largest = 0
        self._idle = trio.Event()

    @property
    def waiting(self) -> int:
        """The number of deliveries that wait for credit, or for room in the peer's session window."""
        return len(self._waiting)

    @property
    def unsettled(self) -> int:
        """The number of deliveries that were sent and have no outcome yet."""
        return len(self._unsettled)

    def described(self) -> str:
        """Return the link's state, for people."""
        return f"{super().described()}, credit {self.credit}, {self.waiting} waiting, {self.unsettled} unsettled"

    async def transfer(self, payload: bytes, *, settled: bool) -> Outgoing:
        """Send an encoded message as soon as there is credit for it. Raises: as `Sender.transfer`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        outgoing = self.submit(payload, settled=settled)
        await self.until_sent(outgoing)
        return outgoing

    def submit(
        self,
        payload: bytes,
        *,
        settled: bool = False,
        prepare: Callable[[], bytes] | None = None,
        watch: Callable[[Outgoing], None] | None = None,
    ) -> Outgoing:
        """Queue a delivery to be sent in its turn. The caller must call `until_sent` next.

        Args: prepare, watch: as of `Outgoing`. Raises: as `transfer`.
        """
        outgoing = Outgoing(payload, settled=self._settles(settled), prepare=prepare, watch=watch)
        self._waiting[outgoing] = None
        self._send_waiting()
        return outgoing

    async def stream(self, sections: Sections, parts: AsyncIterable[bytes], *, settled: bool) -> Outgoing:
        """Send a message whose body comes in parts, each at once. Raises: as `Sender.transfer_parts`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._unheard is not None and self._unheard.exactly_once:
            raise CommandError("an exactly-once sender keeps messages until they are settled: parts are not kept")
        outgoing = OutgoingStream(sections.head, sections.length, settled=self._settles(settled))
        self._waiting[outgoing] = None
        self._send_waiting()
        try:
            with outgoing.reading:
                await outgoing.piece_taken.wait()
                iterator = aiter(parts)
                async with aclosing(iterator) if isinstance(iterator, AsyncGenerator) else nullcontext():
                    async for octets in iterator:
                        for piece in sections.part(octets):
                            self._feed(outgoing, piece)
                            await outgoing.piece_taken.wait()
                self._feed(outgoing, sections.finish(), is_last=True)
        except BaseException:
            self._withdraw(outgoing)
            raise
        if outgoing.decided.is_set() and not outgoing.done.is_set():
            self._withdraw(outgoing)  # the receiver has refused it: the rest is not sent
        else:
            await self.until_sent(outgoing)
        return outgoing

    def _feed(self, outgoing: OutgoingStream, piece: bytes | memoryview, *, is_last: bool = False) -> None:
        """Send the next piece of a stream. Raises: CommandError: the message has become too large for the peer."""
        outgoing.feed(piece, is_last=is_last)
        self._check_size(outgoing)
        self._send_waiting()

    def _settles(self, settled: bool) -> bool:
        """Return whether a delivery is sent settled. Raises: CommandError: it cannot be; also as `check`."""
        self.check()
        if settled and self._snd_settle_mode is SenderSettleMode.UNSETTLED:
            raise CommandError("the sender was made with snd-settle-mode unsettled")
        return settled or self._snd_settle_mode is SenderSettleMode.SETTLED

    async def until_sent(self, outgoing: Outgoing) -> None:
        """Wait until the last frame of a submitted delivery is written. Raises: as `transfer`."""
        if outgoing.done.is_set():
            await trio.lowlevel.cancel_shielded_checkpoint()
        else:
            try:
                await outgoing.done.wait()
            except trio.Cancelled:
                if outgoing.done.is_set() and outgoing.failure is None:
                    # The delivery was sent before this task ran. Cancelled would tell the program that it was not.
                    return
                self._withdraw(outgoing)
                raise
        if outgoing.failure is not None:
            raise without_traceback(outgoing.failure)

    def fail_waiting(self, error: AmqpMeshError) -> None:
        """Fail all deliveries that wait. A delivery that is half sent is aborted."""
        waiting, self._waiting = self._waiting, OrderedDict()
        for outgoing in waiting:
            outgoing.fail(error)
            if outgoing.delivery is not None:
                outgoing.aborting = True
                self._waiting[outgoing] = None
        self._send_waiting()

    def restart_delivery(self) -> None:
        """Abort the delivery that is half sent, and send it again with a new payload."""
        first = self._partly_sent()
        if first is not None:
            first.outdated = True
            self._send_waiting()

    def forget(self, outgoing: Outgoing) -> None:
        """Stop watching an outcome that no caller waits for: leaving the link does not wait for it any more."""
        outgoing.watch = None  # a cycle of references: it holds the call, which holds the delivery
        self._awaited.pop(outgoing, None)
        self._idle.set()

    # ---------------------------------------------------------------------------------------------------- of ClientLink

    def _choose_session(self, client_connection: ClientConnection) -> Session:
        return client_connection.session_for(self)

    @property
    def _requested_address(self) -> str | None:
        return self._requested.address

    def _attach(self, session: Session) -> Link:
        return session.attach(
            Terminus(self.name, Role.SENDER),
            source=Source(),
            target=at_redirect(self._requested, self._chain),
            snd_settle_mode=self._snd_settle_mode,
            rcv_settle_mode=self._rcv_settle_mode,
            unsettled=self._next_map(session),
            incomplete_unsettled=self._unheard is not None and self._unheard.leaves_out,
            desired_capabilities=self._desired_capabilities,
            properties=self._properties,
        )

    def _next_map(self, session: Session) -> Mapping[bytes, object] | None:
        return None if self._unheard is None else self._unheard.next_map(session.connection.remote_max_frame_size)

    def _missing_from(self, attach: Attach) -> str | None:
        return None if self._unheard is None else self._unheard.missing_from(attach)

    def _accepts(self, attach: Attach) -> bool:
        return attach.target is not None

    def _begin_use(self, attach: Attach) -> None:
        if isinstance(attach.target, Target):
            self.address = attach.target.address
        self._largest = attach.max_message_size or 0
        if self._unheard is not None:
            first = self._unheard.compare(attach)
            self._waiting = OrderedDict.fromkeys([*first, *self._waiting])
            self._awaited = {each: None for each in self._awaited if not each.decided.is_set()}
        self._send_waiting()

    def _endpoint_lost(self, error: AmqpMeshError, *, final: bool) -> None:
        unsettled, self._unsettled = self._unsettled, {}
        if self._unheard is not None:
            self._unheard.lost(unsettled.values(), self._waiting)
            for outgoing in [each for each in self._waiting if each.resumed is not None]:
                del self._waiting[outgoing]
        if self._unheard is None or final:
            self._awaited.clear()
            in_doubt = unsettled.values() if self._unheard is None else self._unheard.give_up()
            for outgoing in in_doubt:
                outgoing.decide(None, InDoubtError("the outcome was not told", getattr(error, "error", None)))
        first = self._partly_sent()
        if first is not None:
            self._abort(first)
            # Its last frame was never sent, so no receiver can have taken it. It is sent again, unless it is a stream.
            first.delivery, first.at, first.outdated = None, 0, False
            is_stream = isinstance(first, OutgoingStream)
            if is_stream and not first.aborting:
                first.fail(error)
            if is_stream or first.aborting:
                del self._waiting[first]
        if final:
            for outgoing in self._waiting:
                if outgoing.done.is_set():  # it was to be sent again: its caller waits for an outcome
                    outgoing.decide(Released())
            self.fail_waiting(error)
        self._idle.set()

    async def _finish(self, *, clean: bool) -> None:
        """Wait for the outcomes of all deliveries, if the program leaves in good order (`clean`)."""
        with trio.move_on_after(NOTICE_TIME):
            await self._until_idle(clean=clean)
            return
        log.info(
            "sender waits for outcomes",
            peer=self.peer,
            link=self.name,
            address=self.address or "",
            waiting=self.waiting,
            unsettled=self.unsettled,
        )
        await self._until_idle(clean=clean)

    async def _until_idle(self, *, clean: bool) -> None:
        while clean and not self.is_over and (self._waiting or self._awaited):
            self._idle = trio.Event()
            await self._idle.wait()

    def transfer_received(self, event: TransferReceived) -> None:  # noqa: ARG002 - no event gets here
        """Fail: the engine refuses a transfer on a link that we send on."""
        raise AssertionError("a transfer on a link that we send on")

    def disposition_received(self, delivery: kernel.Delivery, state: bytes | None, settled: bool) -> None:
        """Handle the receiver's state of a delivery (§2.7.6)."""
        outgoing = self._unsettled.get(delivery)
        outcome = outcome_of(state)
        if outgoing is None:
            # It is half sent; its state is read again after its last frame. But the rest of a refused stream is not
            # produced.
            first = self._partly_sent()
            is_refused = outcome is not None and not isinstance(outcome, Accepted)
            if is_refused and isinstance(first, OutgoingStream) and first.delivery is delivery:
                first.decide(outcome)
            return
        if outcome is None:
            if not settled:
                return
            outcome = NOTHING_SAID
        del self._unsettled[delivery]
        self._awaited.pop(outgoing, None)
        # A receiver in mode second waits for our settlement.
        kernel.dispose(delivery, delivery.remote_state, True)
        if self._unheard is not None and self._unheard.sends_again(outgoing, outcome):
            self._waiting[outgoing] = None
            self._send_waiting()
            return
        outgoing.decide(outcome)
        if not self._awaited:
            self._idle.set()

    def flow_received(self) -> None:
        """Send what the receiver's new credit allows (§2.6.7)."""
        self._send_waiting()

    def resume_sending(self) -> None:
        """Send again: the peer's window has opened, or bytes were written."""
        self._send_waiting()

    # ----------------------------------------------------------------------------------------------------------- inside

    def _may_send(self) -> bool:
        return self.is_attached and self._session is not None and self._session.can_send

    def _partly_sent(self) -> Outgoing | None:
        """Return the delivery that is in the middle of its frames."""
        first = next(iter(self._waiting), None)
        return None if first is None or first.delivery is None else first

    def _abort(self, outgoing: Outgoing) -> None:
        """Abort a delivery that is half sent, if the link is still attached. A full session window prevents that."""
        link = self._link
        if isinstance(link, EngineSender) and link.state is LinkEndpointState.ATTACHED and link.session.can_send:
            assert outgoing.delivery is not None
            link.transfer(outgoing.delivery, aborted=True)

    def _send_waiting(self) -> None:
        """Send as much as credit, window and backlog allow, in order."""
        waiting = self._waiting
        while waiting and self._may_send():
            outgoing = next(iter(waiting))
            if outgoing.resumed is None and self._unheard is not None and self._unheard.is_round:
                break
            try:
                if not self._send_more(outgoing):
                    break
            except CommandError as error:
                if self._unheard is not None and outgoing.done.is_set():
                    self._awaited.pop(outgoing, None)
                    self._unheard.too_large(outgoing, error)
                outgoing.fail(error)
            else:
                if self._unheard is not None:
                    self._unheard.keep(outgoing)
                outgoing.sent()
            del waiting[outgoing]
        link = self._link
        if isinstance(link, EngineSender) and self.is_attached:
            link.offer(len(waiting))
            if link.flow_state.drain and not waiting:
                link.drained()
        if not waiting and not self._awaited:
            self._idle.set()

    def _send_more(self, outgoing: Outgoing) -> bool:
        """Send more of a delivery. Returns: whether all of it is sent. Raises: CommandError: it cannot be sent."""
        link, client_connection = self._link, self._client_connection
        assert isinstance(link, EngineSender)
        assert client_connection is not None
        delivery = outgoing.delivery
        if delivery is None:
            self._check_size(outgoing)  # too large: it must not wait for credit
            if link.credit <= 0:
                return False
            is_sent_again = outgoing.resumed == FROM_THE_START and not outgoing.aborting
            if outgoing.resumed is not None and not is_sent_again:
                return self._resume(link, outgoing, outgoing.resumed)
            if outgoing.prepare is not None and not is_sent_again:
                outgoing.payload = outgoing.prepare()
                self._check_size(outgoing)
            tag = outgoing.tag or next(self._tags).to_bytes(8, "big").lstrip(b"\0") or b"\0"
            delivery = link.delivery(tag, settled=outgoing.settled)
            if self._unheard is not None:
                outgoing.tag = tag
        if outgoing.aborting or outgoing.outdated:
            link.transfer(delivery, aborted=True)
            if outgoing.aborting or not delivery.complete:
                return delivery.complete
            outgoing.delivery, outgoing.at, outgoing.outdated = None, 0, False
            return self._may_send() and self._send_more(outgoing)
        if isinstance(outgoing, OutgoingStream) and outgoing.piece_taken.is_set():
            return False  # the next piece has not come
        payload = memoryview(outgoing.payload)
        while not delivery.complete:
            if client_connection.must_wait(self):
                return False
            part = payload[outgoing.at : outgoing.at + CHUNK]
            end = outgoing.at + len(part)
            more = end < len(payload) or not outgoing.is_last
            outgoing.at += link.transfer(delivery, part, more=more, resume=outgoing.resumed is not None)
            if delivery.delivery_id != -1:
                outgoing.delivery = delivery
            if outgoing.at < end or delivery.delivery_id == -1 or not (more or delivery.complete):
                return False  # the session's window is used up
            if end == len(payload) and more:
                assert isinstance(outgoing, OutgoingStream), "else it was the last piece"
                outgoing.piece_taken.set()
                return False
        outgoing.resumed = None
        if not delivery.settled:
            self._unsettled[delivery] = outgoing
            self._awaited[outgoing] = None
            if delivery.remote_state is not None or delivery.remote_settled:
                # The receiver has decided before the last frame.
                self.disposition_received(delivery, delivery.remote_state, delivery.remote_settled)
        return True

    def _resume(self, link: EngineSender, outgoing: Outgoing, state: bytes) -> bool:
        """Resume a delivery that the peer has (§2.6.13). Returns: False: the session's window is closed."""
        if link.session.flow_state.remote_incoming_window <= 0:
            return False
        delivery = link.delivery(outgoing.tag)
        link.resume(delivery, state=None if outgoing.aborting else state, aborted=outgoing.aborting)
        outgoing.resumed = None
        if outgoing.aborting:
            pass  # nothing follows
        elif outgoing.decided.is_set():
            # By a frame of its own: in snd-settle-mode unsettled no transfer is settled (§2.7.5).
            kernel.dispose(delivery, None, True)
        else:
            self._unsettled[delivery] = outgoing
        return True

    def _check_size(self, outgoing: Outgoing) -> None:
        if self._largest and outgoing.length > self._largest:
            raise CommandError(f"a message of {outgoing.length} octets: the peer takes {self._largest}")

    def _withdraw(self, outgoing: Outgoing) -> None:
        """Take back a delivery whose caller was cancelled."""
        if outgoing.delivery is None:
            self._waiting.pop(outgoing, None)  # absent if it has failed at the same time
        else:
            outgoing.aborting = True
        self._send_waiting()
