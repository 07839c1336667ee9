"""A receiving container on raw frames: it notes what it has processed, and may resume its link."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode, Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified, Received, Rejected, Released
from amqpmesh.router.amqp.standard.messaging import Source, TerminusExpiryPolicy
from amqpmesh.router.amqp.standard.performatives import Attach, Disposition, Flow, Performative, Transfer
from tests.support.peers.raw_peer import RawPeer
from tests.support.peers.scripted import attached, flow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqpmesh.router.amqp.standard.delivery_states import DeliveryState

_SECOND = ReceiverSettleMode.SECOND
_OUTCOMES = (Accepted, Rejected, Released, Modified)
_WHOLE = Received(section_number=2**32 - 1, section_offset=0)


@dataclass(eq=False)
class Taken:
    """A delivery that has come, whole or not."""

    tag: bytes
    payload: bytes = b""
    is_whole: bool = False
    #: The program's outcome; None: it has not decided.
    state: DeliveryState | None = None
    number: int = -1
    #: The outcome has been written, or the peer's map has shown that it knows it.
    is_said: bool = False


class RawReceiver(RawPeer):
    """A receiver whose program processes each message that it is handed, once."""

    def __init__(
        self,
        container: str,
        address: str,
        rcv: ReceiverSettleMode,
        *,
        credit: int = 10,
        timeout: int = 0,
        decides: bool = True,
        reliable: bool = True,
    ) -> None:
        """Args: timeout: that is asked for, seconds; 0: the link is never resumed. decides: accept each message at
        once; else the test calls `decide`. reliable: its map says for certain what came whole; else what did is named
        with null, as peers do that do not count sections.
        """
        super().__init__(container)
        self.reliable = reliable
        self.address, self.rcv, self.credit, self.decides = address, rcv, credit, decides
        self.source = Source(
            address=address, expiry_policy=TerminusExpiryPolicy.CONNECTION_CLOSE if timeout else None, timeout=timeout
        )
        self.is_lasting = bool(timeout)
        #: The payloads that the program has accepted, and those that it was handed, in order.
        self.processed: list[bytes] = []
        self.handed: list[Taken] = []
        #: Deliveries that this end has not settled, by tag.
        self.unsettled: dict[bytes, Taken] = {}
        self._has_history = False
        self._begin_link()

    def crash(self) -> RawReceiver:
        """Return the container that is started in its place; what was processed stays processed."""
        fresh = RawReceiver(self.container, self.address, self.rcv, credit=self.credit, decides=self.decides)
        fresh.reliable = self.reliable
        fresh.source, fresh.is_lasting = self.source, self.is_lasting
        fresh.processed, fresh.handed = self.processed, self.handed
        return fresh

    def decide(self, taken: Taken, state: DeliveryState) -> None:
        """Give a message its outcome."""
        taken.state = state
        if isinstance(state, Accepted):
            self.processed.append(taken.payload)
        if taken.number != -1 and self.unsettled.get(taken.tag) is taken:
            self._say(taken)

    # ----------------------------------------------------------------------------------------------------- of `RawPeer`

    @property
    def lost_outcomes(self) -> list[Taken]:
        """Deliveries that were accepted and settled here, and whose disposition was never written: no sender can know.

        Without a map, or in mode first, nothing of it is left here.
        """
        to_write = {id(of) for _, of in self._out}
        return [
            each
            for each in self.handed
            if isinstance(each.state, Accepted)
            and not (each.is_said or id(each) in to_write or self.unsettled.get(each.tag) is each)
        ]

    def _written(self, message: object) -> None:
        assert isinstance(message, Taken)
        message.is_said = True

    def lost(self) -> None:
        super().lost()
        self._begin_link()

    def _begin_link(self) -> None:
        if not self.is_lasting:
            self.unsettled.clear()
        for tag, taken in tuple(self.unsettled.items()):
            taken.number = -1
            if not taken.is_whole:
                del self.unsettled[tag]  # it is recommended not to name these (§3.4.6)
        self._by_number: dict[int, Taken] = {}
        self._current: Taken | None = None
        self._is_ignored = False
        self._count = 0
        self._ours: dict[bytes, DeliveryState | None] = {}

    def _attach(self) -> Attach:
        undecided = _WHOLE if self.reliable else None
        self._ours = {tag: undecided if each.state is None else each.state for tag, each in self.unsettled.items()}
        return attached(
            Role.RECEIVER,
            name="in",
            source=self.source,
            rcv_settle_mode=self.rcv,
            unsettled=self._ours if self._has_history else None,
            offered_capabilities=(Symbol("amqpmesh:whole"),) if self.is_lasting and self.reliable else (),
        )

    def _compare(self, attach: Attach, theirs: Mapping[bytes, DeliveryState | None] | None) -> None:
        self._has_history = self.is_lasting
        if attach.source is None:
            return  # refused: a detach follows
        self._count = attach.initial_delivery_count or 0
        if not attach.incomplete_unsettled:
            for tag in self._ours:
                if theirs is None or tag not in theirs:
                    taken = self.unsettled.pop(tag, None)  # the sender has settled it, or knows nothing of it
                    if taken is not None and theirs is not None and taken.state is not None:
                        taken.is_said = True
        self._grant()

    def _take(self, performative: Performative, payload: bytes) -> None:
        if isinstance(performative, Transfer):
            if self.is_attached:  # else it came before the answer to our detach
                self._transferred(performative, payload)
        elif isinstance(performative, Disposition):
            assert performative.role is Role.SENDER
            last = performative.first if performative.last is None else performative.last
            for number in range(performative.first, last + 1):
                taken = self._by_number.get(number)
                if taken is not None and performative.settled:
                    self._forget(taken)
        else:
            assert isinstance(performative, Flow), performative

    # ----------------------------------------------------------------------------------------------------------- inside

    def _grant(self) -> None:
        self.write(flow(handle=0, delivery_count=self._count, link_credit=self.credit))

    def _transferred(self, transfer: Transfer, payload: bytes) -> None:
        if self._current is None and not self._is_ignored:
            assert transfer.delivery_tag is not None
            assert transfer.delivery_id is not None
            self._count += 1
            self._grant()
            if transfer.resume:
                self._resumed(transfer)
                return
            assert transfer.delivery_tag not in self.unsettled, "the tag is in use"
            self._current = Taken(transfer.delivery_tag, number=transfer.delivery_id)
            self._by_number[transfer.delivery_id] = self._current
            if not transfer.settled:
                self.unsettled[transfer.delivery_tag] = self._current
        if self._is_ignored:
            self._is_ignored = transfer.more
            return
        taken = self._current
        assert taken is not None
        if transfer.aborted:
            self._current = None
            self._forget(taken)
            return
        taken.payload += payload
        if transfer.settled:
            self.unsettled.pop(taken.tag, None)
        if not transfer.more:
            self._current = None
            taken.is_whole = True
            self.handed.append(taken)
            if self.decides:
                self.decide(taken, Accepted())

    def _resumed(self, transfer: Transfer) -> None:
        """Take the first frame of a resumed delivery: all of it is here already, or nothing is known of it."""
        assert transfer.delivery_tag is not None
        assert transfer.delivery_id is not None
        self._is_ignored = transfer.more
        taken = self.unsettled.get(transfer.delivery_tag)
        if taken is None:
            return
        if taken.state is not None and (transfer.settled or transfer.state == taken.state):
            taken.is_said = True
        if transfer.settled or transfer.aborted:
            self._forget(taken)
            return
        taken.number = transfer.delivery_id
        self._by_number[taken.number] = taken
        if isinstance(transfer.state, _OUTCOMES) and transfer.state != taken.state:  # figure, tag 13
            taken.state = transfer.state
            self.write(Disposition(role=Role.RECEIVER, first=taken.number, settled=True, state=taken.state))
            self._forget(taken)
        elif taken.state is not None:
            self._say(taken)

    def _say(self, taken: Taken) -> None:
        settled = self.rcv is not _SECOND
        self.write(Disposition(role=Role.RECEIVER, first=taken.number, settled=settled, state=taken.state), of=taken)
        if settled:
            self._forget(taken)

    def _forget(self, taken: Taken) -> None:
        if self.unsettled.get(taken.tag) is taken:
            del self.unsettled[taken.tag]
