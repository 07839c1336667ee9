"""Engines without I/O on one clock: one with a scripted peer, or two with each other.

Bytes are carried as a test wants: all at once, or in chunks of any sizes.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, TypeVar

from amqpmesh.router import kernel
from amqpmesh.router.amqp import events
from amqpmesh.router.amqp.connection import Connection
from amqpmesh.router.amqp.connection_settings import ConnectionSettings
from amqpmesh.router.amqp.link import Receiver, Sender
from amqpmesh.router.amqp.negotiation import Negotiation
from tests.support.peers.scripted import Script

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from amqpmesh.router.amqp.link import Link
    from amqpmesh.router.amqp.session import Session

E = TypeVar("E")


class End:
    """An engine and its owner, who answers as most owners do and keeps all events."""

    def __init__(
        self,
        now: float,
        *,
        server: bool,
        negotiation: Negotiation | None = None,
        answers: bool = True,
        hostname: str | None = None,
        **settings: object,
    ) -> None:
        """Args: answers: to open, begin, attach and detach. hostname: the peer's. settings: of the connection."""
        name = "server" if server else "client"
        self.engine = Connection(
            ConnectionSettings(container_id=name, **settings),  # type: ignore[arg-type]  # the names are the tests'
            negotiation or Negotiation(server=server),
            now,
            hostname=hostname,
        )
        self.answers = answers
        #: What was not taken yet.
        self.events: list[events.Event] = []

    def receive(self, data: bytes, now: float) -> None:
        """Take octets."""
        for event in self.engine.receive(data, now):
            self.happened(event)

    def happened(self, event: events.Event) -> None:
        """Keep an event, and answer it if the peer caused it."""
        self.events.append(event)
        if not self.answers:
            return
        if isinstance(event, events.ConnectionOpened) and self.engine.negotiation.server:
            self.engine.open()
        elif isinstance(event, events.SessionBegun) and event.session.flow_state.channel == -1:
            event.session.begin()
        elif isinstance(event, events.LinkAttached) and event.link.flow_state.handle == -1:
            attach = event.attach
            event.link.attach(
                source=attach.source,
                target=attach.target,
                snd_settle_mode=attach.snd_settle_mode,
                rcv_settle_mode=attach.rcv_settle_mode,
            )
        elif isinstance(event, events.LinkDetached) and event.by_peer:
            event.link.detach(closed=event.closed)

    def take(self, kind: type[E]) -> list[E]:
        """Return the events of that kind that were not taken yet."""
        taken = [event for event in self.events if isinstance(event, kind)]
        self.events = [event for event in self.events if not isinstance(event, kind)]
        return taken

    def take_one(self, kind: type[E]) -> E:
        """Return the one event of that kind."""
        taken = self.take(kind)
        assert len(taken) == 1, (kind, taken, self.events)
        return taken[0]


class Scripted:
    """One engine and a scripted peer."""

    def __init__(
        self, *, server: bool = True, now: float = 100.0, peer_frame_size: int = 2**20, **settings: object
    ) -> None:
        """Args: server: the engine is the server. peer_frame_size: octets, above which the peer's reader raises.
        settings: of its `End`.
        """
        self.now = now
        self.end = End(now, server=server, **settings)  # type: ignore[arg-type]  # the names are the tests'
        self.engine = self.end.engine
        self.peer = Script(
            lambda data: self.end.receive(data, self.now),
            lambda: self.engine.data_to_send(self.now),
            max_frame_size=peer_frame_size,
        )

    def advance(self, seconds: float) -> None:
        """Let time pass; nobody reads or writes."""
        self.now += seconds
        for event in self.engine.handle_timer(self.now):
            self.end.happened(event)

    def session(self, channel: int = 0) -> Session:
        """Return the session on an incoming channel."""
        return self.engine.channels.incoming[channel]

    def receiver(self, handle: int = 0, channel: int = 0) -> Receiver:
        """Return the engine's link with the peer's sender of that handle."""
        link = self.link(handle, channel)
        assert isinstance(link, Receiver)
        return link

    def sender(self, handle: int = 0, channel: int = 0) -> Sender:
        """Return the engine's link with the peer's receiver of that handle."""
        link = self.link(handle, channel)
        assert isinstance(link, Sender)
        return link

    def link(self, handle: int = 0, channel: int = 0) -> Link:
        """Return the engine's link with the peer's link of that handle."""
        return self.session(channel).links[handle]

    def transfers(self) -> list[tuple[kernel.Delivery, bytes]]:
        """Return the deliveries that arrived whole, with their payload, and release their part of the window."""
        return whole(self.end.take(events.TransferReceived))


def whole(received: Iterable[events.TransferReceived]) -> list[tuple[kernel.Delivery, bytes]]:
    """Put frames together to deliveries, and release their part of the window."""
    payloads: dict[kernel.Delivery, bytes] = {}
    for event in received:
        assert event.first == (event.delivery not in payloads)
        payloads[event.delivery] = payloads.get(event.delivery, b"") + event.payload
        event.link.session.release(1)
    assert all(delivery.complete for delivery in payloads)
    return list(payloads.items())


class Pair:
    """A client and a server, connected."""

    def __init__(
        self,
        *,
        client: dict[str, object] | None = None,
        server: dict[str, object] | None = None,
        sizes: Iterator[int] = repeat(2**20),  # noqa: B008 - endless, and its state is of no consequence
        now: float = 100.0,
    ) -> None:
        """Args: client, server: settings of each `End`. sizes: of the chunks that bytes are carried in."""
        self.now = now
        self.client = End(now, server=False, **(client or {}))  # type: ignore[arg-type]  # the names are the tests'
        self.server = End(now, server=True, **(server or {}))  # type: ignore[arg-type]  # the names are the tests'
        self._sizes = sizes
        #: Bytes under way: taken from one end, not given to the other yet.
        self._under_way = {self.client: bytearray(), self.server: bytearray()}

    def take(self) -> None:
        """Take what both ends have to send; it does not arrive yet."""
        for end, under_way in self._under_way.items():
            under_way += end.engine.data_to_send(self.now)

    def run(self) -> None:
        """Carry octets to and fro until no end has any."""
        for _ in range(100_000):
            self.take()
            if not any(self._under_way.values()):
                return
            for end, other in ((self.client, self.server), (self.server, self.client)):
                under_way = self._under_way[end]
                if under_way:
                    size = next(self._sizes)
                    data, under_way[:] = bytes(under_way[:size]), under_way[size:]
                    other.receive(data, self.now)
        raise AssertionError("they do not come to rest")

    def advance(self, seconds: float) -> None:
        """Let time pass, timer by timer, and carry what follows from it."""
        until = self.now + seconds
        while True:
            times = [each.engine.next_timer() for each in (self.client, self.server)]
            due = min((time for time in times if time is not None), default=until)
            self.now = max(self.now, min(due, until))
            for end in (self.client, self.server):
                for event in end.engine.handle_timer(self.now):
                    end.happened(event)
            self.run()
            if due >= until:
                return

    def open(self) -> Session:
        """Open the connection and begin a session. Returns: the client's end of the session."""
        self.client.engine.open()
        session = self.client.engine.begin()
        self.run()
        return session
