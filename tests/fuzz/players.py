"""An intruder with a protocol engine of its own, whose frames are altered on their way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.amqp import events
from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.connection import Connection
from amqpmesh.router.amqp.connection_settings import ConnectionSettings
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.amqp.link import Receiver, Sender, Terminus
from amqpmesh.router.amqp.negotiation import Negotiation
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode, Role, SenderSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Received
from amqpmesh.router.amqp.standard.messaging import DistributionMode, Source, Target
from amqpmesh.router.kernel import Delivery, dispose
from tests.support.worlds.network import OUTCOMES, message

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from amqpmesh.router.amqp.session import Session

ADDRESSES = ("a", "feed", "own", "own", "all", "again", "few", None)
#: Encoded delivery states that a receiver may send.
STATES = [
    *map(encode_composite, OUTCOMES.values()),
    encode_composite(Received(section_number=1, section_offset=4)),
    None,
]


class Player:
    """A peer that takes random steps which its engine permits."""

    def __init__(self, random: Random, now: float) -> None:
        self.random = random
        settings = ConnectionSettings(
            container_id="player",
            max_frame_size=random.choice([512, 4096]),
            window=random.choice([1, 3, 100]),
            idle_time_out=None,
        )
        self.engine = Connection(settings, Negotiation(server=False), now)
        self.engine.open()
        self.engine.begin()
        self._tag = 0
        self._current: dict[Sender, Delivery] = {}
        self._came: list[Delivery] = []
        self._sent: list[Delivery] = []

    def step(self) -> None:
        """Take a random step, if it is possible."""
        steps: list[Callable[[], None]] = [
            self._attach,
            self._attach,
            *[self._transfer] * 5,
            *[self._credit] * 3,
            *[self._dispose] * 4,
            self._settle,
            self._detach,
            self._rarely,
        ]
        try:
            self.random.choice(steps)()
        except CommandError:
            return

    def receive(self, data: bytes, now: float) -> None:
        """Take the octets of the router, which altered frames may have confused."""
        for event in self.engine.receive(data, now):
            if isinstance(event, events.LinkDetached) and event.by_peer:
                event.link.detach(closed=event.closed)
            elif isinstance(event, events.SessionBegun) and event.session.flow_state.channel == -1:
                event.session.begin()
            elif isinstance(event, events.TransferReceived):
                event.link.session.release(1)
                if event.first:
                    self._came.append(event.delivery)
            elif isinstance(event, events.DispositionReceived) and event.settled:
                for delivery in event.deliveries:
                    dispose(delivery, None, settled=True)
            elif isinstance(event, events.DrainRequested) and self.random.random() < 0.5:
                event.link.drained()

    def frames(self, now: float) -> list[bytes]:
        """Return the protocol header or the frames to send."""
        data = self.engine.data_to_send(now)
        found = []
        while data:
            size = 8 if data.startswith(b"AMQP") else int.from_bytes(data[:4], "big")
            found.append(data[:size])
            data = data[size:]
        return found

    def _session(self) -> Session:
        sessions = list(self.engine.channels.outgoing.values())
        return self.random.choice(sessions) if sessions else self.engine.begin()

    def _attach(self) -> None:
        random = self.random
        role = random.choice(list(Role))
        dynamic = random.random() < 0.1
        address = None if dynamic else random.choice(ADDRESSES)
        name = f"{role.name}{random.randrange(6)}"
        link = self._session().attach(
            Terminus(name, role),
            source=Source(
                address=address if role is Role.RECEIVER else None,
                dynamic=dynamic and role is Role.RECEIVER,
                distribution_mode=random.choice([None, None, DistributionMode.COPY]),
            ),
            target=Target(address=address if role is Role.SENDER else None, dynamic=dynamic and role is Role.SENDER),
            snd_settle_mode=random.choice(list(SenderSettleMode)),
            rcv_settle_mode=random.choice(list(ReceiverSettleMode)),
            initial_delivery_count=random.choice([0, 2**32 - 2]),
            max_message_size=random.choice([None, None, 700]),
        )
        if isinstance(link, Receiver):
            link.flow(random.randrange(1, 6))

    def _links(self, kind: type[Sender] | type[Receiver]) -> list[Sender | Receiver]:
        sessions = self.engine.channels.outgoing.values()
        return [link for each in sessions for link in each.all_links if isinstance(link, kind) and link.is_attached]

    def _transfer(self) -> None:
        random = self.random
        links = self._links(Sender)
        able = [each for each in links if isinstance(each, Sender) and (each.credit or each in self._current)]
        link = random.choice(able) if able else None
        if link is None:
            return
        body = "x" * random.choice([0, 10, 500, 900])
        payload = message(
            body, ttl=random.choice([None, 1, 5000]), to=random.choice(["own", "again", "few", "nowhere"])
        )
        delivery = self._current.pop(link, None)
        if delivery is None:
            self._tag += 1
            settled = random.random() < 0.3
            delivery = link.delivery(b"%d" % self._tag, message_format=random.choice([0, 0, 0, 5]), settled=settled)
            self._sent.append(delivery)
        payload = payload[: random.choice([0, 3, 20, 2000])]
        aborted = delivery.delivery_id != -1 and random.random() < 0.15
        more = not aborted and random.random() < 0.4
        link.transfer(delivery, b"" if aborted else payload, more=more, aborted=aborted)
        if not delivery.complete:
            self._current[link] = delivery

    def _credit(self) -> None:
        links = self._links(Receiver)
        link = self.random.choice(links) if links else None
        if isinstance(link, Receiver):
            link.flow(self.random.randrange(6), drain=self.random.random() < 0.3, echo=self.random.random() < 0.2)

    def _dispose(self) -> None:
        if self._came:
            delivery = self.random.choice(self._came)
            dispose(delivery, self.random.choice(STATES), settled=self.random.random() < 0.7)

    def _settle(self) -> None:
        if self._sent:
            delivery = self.random.choice(self._sent)
            dispose(delivery, self.random.choice(STATES), settled=self.random.random() < 0.7)

    def _detach(self) -> None:
        links = self._links(self.random.choice([Sender, Receiver]))
        if links:
            self.random.choice(links).detach(closed=self.random.random() < 0.6)

    def _rarely(self) -> None:
        choice = self.random.random()
        if choice < 0.4:
            self.engine.begin()
        elif choice < 0.6:
            self._session().flow()
        elif choice < 0.9:
            self._session().end()
        else:
            self.engine.close()


def tampered(random: Random, frames: list[bytes]) -> bytes:
    """Join frames: mostly unchanged, sometimes with one lost, doubled, reordered or altered."""
    frames = list(frames)
    if frames and random.random() < 0.07:
        at = random.randrange(len(frames))
        octets = bytearray(frames[at])
        kind = random.randrange(6)
        if kind == 0:
            del frames[at]
        elif kind == 1:
            frames.insert(at, bytes(octets))
        elif kind == 2:
            random.shuffle(frames)
        elif kind == 3:
            # One of the fields: ids, handles, flags.
            octets[random.randrange(min(8, len(octets) - 1), len(octets))] = random.randrange(256)
            frames[at] = bytes(octets)
        elif kind == 4:
            octets[random.randrange(len(octets))] ^= 1 << random.randrange(8)
            frames[at] = bytes(octets)
        else:
            del octets[random.randrange(len(octets)) :]
            frames[at] = bytes(octets)
    return b"".join(frames)
