"""A receiving peer whose link outlives its connections (§2.6.13), on raw frames, and a sender of what it gets."""

from __future__ import annotations

from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode, Role
from amqpmesh.router.amqp.standard.delivery_states import DeliveryState, Modified, Received
from amqpmesh.router.amqp.standard.messaging import Source, TerminusExpiryPolicy
from amqpmesh.router.amqp.standard.performatives import Attach, Disposition, Transfer
from tests.support.peers.bystanders import Intruder
from tests.support.peers.scripted import Heard, attached, flow
from tests.support.worlds.network import Network, Sent, message

FIRST, SECOND = ReceiverSettleMode
CLOSE = TerminusExpiryPolicy.CONNECTION_CLOSE
ALL = Received(section_number=2**32 - 1, section_offset=0)
RELIABLE = (Symbol("amqpmesh:whole"),)
FAILED = Modified(delivery_failed=True)

Map = dict[bytes, DeliveryState | None]


class RoamingReceiver:
    """A receiving peer whose link outlives its connections, and a sender of what it gets."""

    def __init__(
        self,
        rcv: ReceiverSettleMode = SECOND,
        *,
        sent: ReceiverSettleMode = FIRST,
        policy: TerminusExpiryPolicy = CLOSE,
        timeout: int = 30,
        network: Network | None = None,
        reliable: bool = True,
        name: str = "q",
    ) -> None:
        """Args: rcv: of the receiver's link. sent: of the sender's. reliable: the receiver's map can be relied on.
        name: of the receiver's link.
        """
        self.name = name
        self.network = network or Network()
        self.rcv, self.policy, self.timeout, self.reliable = rcv, policy, timeout, reliable
        self.producer = self.network.client()
        self.sender = self.producer.sender("q", rcv=sent)
        self.came: list[Heard] = []
        self.begin()
        self.answer = self.attach(None)

    def begin(self) -> None:
        """Open a connection, with a session."""
        self.end = Intruder(self.network)
        self.peer = self.end.peer
        self.peer.open()
        self.peer.begin()
        self.count = self.transfers = 0

    def begin_small(self, incoming_window: int = 1000) -> None:
        """Open a connection with small frames. Args: incoming_window: frames that its session takes at first."""
        self.end = Intruder(self.network)
        self.peer = self.end.peer
        self.peer.open(max_frame_size=1024)
        self.peer.begin(incoming_window=incoming_window)
        self.count = self.transfers = 0

    def attaching(self, unsettled: Map | None, **fields: object) -> Attach:
        given = {
            "source": Source(address="q", expiry_policy=self.policy, timeout=self.timeout),
            "rcv_settle_mode": self.rcv,
            "unsettled": unsettled,
            "offered_capabilities": RELIABLE if self.reliable else (),
            **fields,
        }
        return attached(Role.RECEIVER, "q", name=self.name, **given)

    def attach(self, unsettled: Map | None, *, credit: int = 100, **fields: object) -> Attach:
        """Attach the link, and give credit. Returns: the answer."""
        self.peer.write(self.attaching(unsettled, **fields))
        self.count = self.transfers = 0
        heard = self.peer.hear()
        answer = heard[0].performative
        assert isinstance(answer, Attach), heard
        if len(heard) == 1:
            self.give(credit)
        return answer

    def give(self, credit: int, **fields: object) -> None:
        """Give credit, and take what comes for it."""
        at = {"next_incoming_id": self.transfers, "delivery_count": self.count}
        self.peer.write(flow(handle=0, link_credit=credit, **at, **fields))
        self.take()

    def take(self) -> list[Heard]:
        """Return the transfers that have come."""
        self.network.run()
        found = [each for each in self.peer.hear() if isinstance(each.performative, Transfer)]
        self.transfers += len(found)
        self.count += sum(each.performative.delivery_id is not None for each in found)  # type: ignore[union-attr]  # all transfers
        self.came += found
        return found

    def send(self, count: int = 1, *payloads: bytes) -> list[Sent]:
        """Send messages, which come to the receiver. Args: payloads: of them; none: there are `count` of its own."""
        messages = list(payloads) or [message(number) for number in range(count)]
        sent = [self.producer.send(self.sender, each) for each in messages]
        assert [each.payload for each in self.take()] == messages
        return sent

    def tag(self, number: int = 0) -> bytes:
        tag = self.transfer(number).delivery_tag
        assert tag is not None
        return tag

    def transfer(self, number: int) -> Transfer:
        found = self.came[number].performative
        assert isinstance(found, Transfer)
        return found

    def say(self, delivery_id: int, state: DeliveryState | None, *, settled: bool) -> None:
        self.peer.write(Disposition(role=Role.RECEIVER, first=delivery_id, state=state, settled=settled))
        self.network.run()

    def lose(self) -> None:
        """Lose the connection."""
        self.end.leave()

    def back(self, unsettled: Map | None, **fields: object) -> Attach:
        """Come back over a new connection. Returns: the answer to the attach."""
        self.begin()
        self.came.clear()
        return self.attach(unsettled, **fields)  # type: ignore[arg-type]  # fields of an attach

    @property
    def resumed(self) -> list[Transfer]:
        found = [each.performative for each in self.came]
        return [each for each in found if isinstance(each, Transfer) and each.resume]

    @property
    def suspended(self) -> int:
        return self.network.core.context.termini.suspended_number

    def finish(self) -> None:
        """End all connections, and check that nothing is left."""
        self.lose()
        self.network.advance(self.timeout + 1)
        assert self.network.core.context.termini.granted == 0
        assert self.suspended == 0
        assert self.network.relays == 0
        self.network.leave()


def as_map(answer: Attach) -> dict[bytes, object]:
    assert answer.unsettled is not None
    return dict(answer.unsettled.items())


def fields_of(transfer: Transfer) -> tuple[object, bool, bool]:
    """Return what a resuming transfer says: the state, whether it settles, whether it aborts."""
    return transfer.state, bool(transfer.settled), bool(transfer.aborted)
