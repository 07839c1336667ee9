"""A sending container on raw frames, that resumes its link and never has a message processed twice."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode, Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified, Received, Rejected, Released
from amqpmesh.router.amqp.standard.messaging import Target, TerminusExpiryPolicy
from amqpmesh.router.amqp.standard.performatives import Attach, Disposition, Flow, Performative, Transfer
from tests.support.peers.raw_peer import RawPeer
from tests.support.peers.scripted import attached, flow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from amqpmesh.router.amqp.standard.delivery_states import DeliveryState

SECOND: Final = ReceiverSettleMode.SECOND
_OUTCOMES: Final = (Accepted, Rejected, Released, Modified)
_WHOLE: Final = Received(section_number=2**32 - 1, section_offset=0)

#: The times that a message is sent as long as it is released.
_TRIES: Final = 3


@dataclass(eq=False)
class Message:
    """A message of the program, and what it has heard of it."""

    number: int
    parts: Sequence[bytes]
    tag: bytes = b""
    #: Frames of its present delivery that were written.
    written: int = 0
    #: The outcome that the receiving end has told, which is ours, too, until both have settled it.
    state: DeliveryState | None = None
    tries: int = 0
    #: What the program was told, in order: one word, if all is well.
    heard: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """All frames of the present delivery were written."""
        return self.written == len(self.parts)


class RawSender(RawPeer):
    """A sender whose program sends messages, each of one frame or more.

    Messages are sent again if they were released, or if the map of the router tells that they have not come whole.
    """

    def __init__(
        self,
        container: str,
        address: str,
        rcv: ReceiverSettleMode,
        *,
        timeout: int = 30,
        policy: TerminusExpiryPolicy = TerminusExpiryPolicy.CONNECTION_CLOSE,
        sends_octets: bool = False,
        settles_later: bool = False,
    ) -> None:
        """Args: timeout: that is asked for, seconds. sends_octets: a resuming transfer has all octets again, as the
        standard allows (§3.4.6, tag 2, a). settles_later: a delivery is not settled by its resuming transfer.
        """
        super().__init__(container)
        self.address, self.rcv = address, rcv
        self.target = Target(address=address, expiry_policy=policy, timeout=timeout)
        self.sends_octets, self.settles_later = sends_octets, settles_later
        self.messages: list[Message] = []
        #: Deliveries that this end has not settled, by tag.
        self.unsettled: dict[bytes, Message] = {}
        self._waiting: deque[Message] = deque()
        self._resuming: deque[tuple[Message, Transfer]] = deque()
        self._tags = 0
        self._has_history = False
        self._begin_link()

    def submit(self, *parts: bytes) -> Message:
        """Queue a message of the program. Args: parts: the payload of each frame."""
        message = Message(len(self.messages), parts)
        self.messages.append(message)
        self._waiting.append(message)
        self._send()
        return message

    def heard(self) -> list[list[str]]:
        """Return what the program has heard of each message."""
        return [each.heard for each in self.messages]

    @property
    def credit(self) -> int:
        """The deliveries that it may send now."""
        return self._limit - self._delivery_count

    def crash(self) -> RawSender:
        """Return the container that is started in its place: it knows the messages that this one has not begun."""
        fresh = RawSender(self.container, self.address, self.rcv)
        fresh.target, fresh.sends_octets, fresh.settles_later = self.target, self.sends_octets, self.settles_later
        fresh.messages = self.messages
        fresh._waiting = deque(each for each in self._waiting if not each.tries)
        fresh._tags = self._tags
        return fresh

    # ----------------------------------------------------------------------------------------------------- of `RawPeer`

    def lost(self) -> None:
        super().lost()
        unwritten = [each for each in self.unsettled.values() if not each.written]
        for message in unwritten:
            del self.unsettled[message.tag]
        # Those that were to be sent anew wait already.
        self._waiting.extendleft(each for each in reversed(unwritten) if each not in self._waiting)

    def _written(self, message: object) -> None:
        assert isinstance(message, Message)
        message.written += 1

    def _begin_link(self) -> None:
        self._sent: dict[int, Message] = {}
        self._next_id = self._delivery_count = self._limit = 0
        self._resuming.clear()
        #: The map of this attach, and that the peer has told an incomplete one.
        self._ours: dict[bytes, DeliveryState | None] = {}
        self._is_incomplete = False

    def _attach(self) -> Attach:
        self._ours = {tag: each.state for tag, each in self.unsettled.items()}
        return attached(
            Role.SENDER,
            name="out",
            target=self.target,
            rcv_settle_mode=self.rcv,
            unsettled=self._ours if self._has_history else None,
            desired_capabilities=(Symbol("amqpmesh:whole"),),
        )

    def _compare(self, attach: Attach, theirs: Mapping[bytes, DeliveryState | None] | None) -> None:
        self._has_history = True
        if attach.target is None:
            return  # refused: a detach follows
        self._is_incomplete = attach.incomplete_unsettled
        is_certain = self.rcv is SECOND and attach.rcv_settle_mode is SECOND and not attach.incomplete_unsettled
        again: list[Message] = []
        for tag in self._ours:
            message = self.unsettled[tag]
            if theirs is not None and tag in theirs:
                self._resume(message, theirs[tag])
            elif self._is_incomplete:
                pass  # nothing is known of it yet
            elif message.state is not None:
                del self.unsettled[tag]  # figure, tag 10
            elif not message.is_whole or (theirs is not None and is_certain):
                again.append(message)  # figure, tag 1: nobody can have all of it
            else:
                del self.unsettled[tag]
                self._tell(message, "doubt")
        for message in again:
            message.written = 0
        self._waiting = deque([*again, *(each for each in self._waiting if each not in again)])
        self._send()

    def _resume(self, message: Message, theirs: DeliveryState | None) -> None:
        """Queue the transfer by which a delivery is resumed that both ends have."""
        handle_and_tag = {"handle": 0, "delivery_tag": message.tag, "message_format": 0, "resume": True}
        has_outcome = isinstance(theirs, _OUTCOMES)
        if has_outcome and message.state is None:  # figure, tags 3 and 8
            message.state = theirs
            self._outcome(message, theirs)
        if message.state is None and not message.is_whole:  # figure, tag 7: it is given up, then sent anew
            transfer = Transfer(**handle_and_tag, aborted=True)
        elif message.state is None:  # figure, tags 2, 6
            transfer = Transfer(**handle_and_tag, state=None if self.sends_octets else _WHOLE)
        elif has_outcome and theirs == message.state:  # figure, tags 3, 8, 12
            transfer = Transfer(**handle_and_tag, state=message.state, settled=None if self.settles_later else True)
        elif has_outcome:  # figure, tag 13
            transfer = Transfer(**handle_and_tag, state=message.state)
        else:  # figure, tags 11 and 14
            transfer = Transfer(**handle_and_tag, aborted=True)
        self._resuming.append((message, transfer))

    def _take(self, performative: Performative, payload: bytes) -> None:
        assert not payload, "nothing is sent to a sender"
        if isinstance(performative, Flow):
            if performative.handle is not None and self.is_attached:
                assert performative.link_credit is not None
                self._limit = (performative.delivery_count or 0) + performative.link_credit
                self._send()
                if performative.drain:
                    self._delivery_count = max(self._delivery_count, self._limit)
                if performative.drain or performative.echo:
                    self.write(
                        flow(
                            handle=0,
                            delivery_count=self._delivery_count,
                            link_credit=max(0, self.credit),
                            drain=performative.drain,
                        )
                    )
            return
        assert isinstance(performative, Disposition), performative
        assert performative.role is Role.RECEIVER
        last = performative.first if performative.last is None else performative.last
        for number in range(performative.first, last + 1):
            message = self._sent.get(number)
            if message is not None and self.unsettled.get(message.tag) is message:
                self._disposed(number, message, performative)

    # ----------------------------------------------------------------------------------------------------------- inside

    def _disposed(self, number: int, message: Message, said: Disposition) -> None:
        if isinstance(said.state, _OUTCOMES) and message.state is None:
            message.state = said.state
            self._outcome(message, said.state)
        elif said.settled and message.state is None:
            self._outcome(message, Modified())
        if not said.settled:
            if message.state is None:
                return
            self.write(Disposition(role=Role.SENDER, first=number, settled=True, state=message.state))
        self._forget(message)

    def _outcome(self, message: Message, state: DeliveryState) -> None:
        if isinstance(state, Released) and message.tries < _TRIES:
            self._again(message)
        else:
            self._tell(message, type(state).__name__.lower())

    def _again(self, message: Message) -> None:
        """Send a message in a new delivery: the old one ends for itself."""
        copy = Message(message.number, message.parts, tries=message.tries, heard=message.heard)
        self._waiting.append(copy)

    def _forget(self, message: Message) -> None:
        del self.unsettled[message.tag]
        self._send()

    @staticmethod
    def _tell(message: Message, word: str) -> None:
        message.heard.append(word)

    def _send(self) -> None:
        while self.is_attached and self._delivery_count < self._limit:
            if self._resuming:
                self._send_resuming(*self._resuming.popleft())
            elif self._waiting and not self._is_incomplete:
                self._send_new(self._waiting.popleft())
            else:
                return

    def _send_resuming(self, message: Message, transfer: Transfer) -> None:
        number = self._number(message)
        payload = (
            b"".join(message.parts) if self.sends_octets and transfer.state is None and not transfer.aborted else b""
        )
        fields = {name: getattr(transfer, name) for name in transfer.__slots__}
        self.write(Transfer(**{**fields, "delivery_id": number}), payload)
        if transfer.aborted and message.state is None:
            del self.unsettled[message.tag]
            self._again(message)
        elif transfer.settled or transfer.aborted:
            del self.unsettled[message.tag]
        elif message.state is not None and self.rcv is SECOND:
            self.write(Disposition(role=Role.SENDER, first=number, settled=True, state=message.state))
            del self.unsettled[message.tag]

    def _send_new(self, message: Message) -> None:
        if not message.tag:
            message.tag = f"t{self._tags}".encode()
            self._tags += 1
        message.tries += 1
        number = self._number(message)
        self.unsettled[message.tag] = message
        for at, part in enumerate(message.parts):
            head = {"delivery_id": number, "delivery_tag": message.tag, "message_format": 0} if at == 0 else {}
            self.write(Transfer(handle=0, more=at < len(message.parts) - 1, **head), part, message)

    def _number(self, message: Message) -> int:
        number, self._next_id = self._next_id, self._next_id + 1
        self._delivery_count += 1
        self._sent[number] = message
        return number
