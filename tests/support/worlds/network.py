"""One router and its clients without sockets, in virtual time: `run` carries the octets, `advance` the time."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count

from amqpmesh.router.amqp import events
from amqpmesh.router.amqp.codec.composite import decode_composite, encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.connection import Connection
from amqpmesh.router.amqp.connection_settings import ConnectionSettings
from amqpmesh.router.amqp.link import Link, Receiver, Sender, Terminus
from amqpmesh.router.amqp.negotiation import Negotiation
from amqpmesh.router.amqp.session import Session
from amqpmesh.router.amqp.standard.definitions import Error, ReceiverSettleMode, Role, SenderSettleMode
from amqpmesh.router.amqp.standard.delivery_states import STATES, Accepted, DeliveryState, Modified, Rejected, Released
from amqpmesh.router.amqp.standard.messaging import AmqpValue, DistributionMode, Header, Properties, Source, Target
from amqpmesh.router.config.file import AddressConfig, ListenerConfig, RouterConfig
from amqpmesh.router.core import Core
from amqpmesh.router.endpoint_setup import agreed
from amqpmesh.router.kernel import Delivery, dispose
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.model.connections import ConnectionRecord

OUTCOMES: dict[str, DeliveryState] = {
    "accepted": Accepted(),
    "rejected": Rejected(error=Error(condition=Symbol("test:bad"), description="why", info={Symbol("n"): 7})),
    "released": Released(),
    "modified": Modified(delivery_failed=True, message_annotations={Symbol("x-opt-k"): "v"}),
}

LISTENER = ListenerConfig(url="amqp://127.0.0.1:0", name="test", idle_time_out=0.0)

# To check all keys of a configuration takes as long as to start its router, and thousands of tests start one.
_config = lru_cache(maxsize=256)(RouterConfig)


def decoded(state: bytes | None) -> DeliveryState | None:
    """Return a delivery state as a value."""
    return None if state is None else decode_composite(STATES, state)[0]


def message(
    body: object = "hello", *, ttl: int | None = None, priority: int = 4, to: str | None = None, header: bool = True
) -> bytes:
    """Encode a message of format 0."""
    parts = [encode_composite(Header(ttl=ttl, priority=priority))] if header else []
    if to is not None:
        parts.append(encode_composite(Properties(to=to)))
    return b"".join([*parts, encode_composite(AmqpValue(value=body))])  # type: ignore[arg-type]  # any AMQP value


@dataclass(eq=False)
class Arrival:
    """A delivery as a client receives it."""

    link: Receiver
    delivery: Delivery
    payload: bytearray = field(default_factory=bytearray)
    #: What the sender said of it, (state, settled), in order.
    said: list[tuple[DeliveryState | None, bool]] = field(default_factory=list)

    def dispose(self, state: DeliveryState | None, *, settled: bool) -> None:
        """Send its state to the router."""
        dispose(self.delivery, None if state is None else encode_composite(state), settled)

    def accept(self) -> None:
        """Accept and settle it."""
        self.dispose(Accepted(), settled=True)


@dataclass(eq=False)
class Sent:
    """A delivery as a client sends it."""

    link: Sender
    delivery: Delivery
    #: What the router said of it, (state, settled), in order.
    said: list[tuple[DeliveryState | None, bool]] = field(default_factory=list)

    @property
    def outcome(self) -> DeliveryState | None:
        """The last state that the router sent."""
        return next((state for state, _ in reversed(self.said) if state is not None), None)

    def dispose(self, state: DeliveryState | None, *, settled: bool) -> None:
        """Send its state to the router."""
        dispose(self.delivery, None if state is None else encode_composite(state), settled)


class Client:
    """One connection to the router under test, and everything that arrived over it."""

    def __init__(
        self,
        network: Network,
        container_id: str,
        *,
        max_frame_size: int,
        window: int,
        idle_time_out: float | None,
        user: str | None = None,
        host: str = "127.0.0.1",
        hostname: str | None = None,
    ) -> None:
        self.network = network
        settings = ConnectionSettings(
            container_id=container_id,
            max_frame_size=max_frame_size,
            window=window,
            idle_time_out=idle_time_out,
        )
        self.engine = Connection(settings, Negotiation(server=False), network.now, hostname=hostname)
        core = network.core
        # A user has logged in before, as on a connection from another worker.
        negotiation = None if user is None else agreed("PLAIN", user)
        self.record = core.accept(network.listener, host, network.now, secured=False, negotiation=negotiation)
        self.engine.open()
        self.session: Session = self.engine.begin()
        self.arrivals: list[Arrival] = []
        self._came: dict[Delivery, Arrival] = {}
        self.sent: dict[Delivery, Sent] = {}
        self.events: list[events.Event] = []
        self.detached: dict[Link, Error | None] = {}
        #: Bytes are not read while this is set: a client that has stopped.
        self.stopped = False
        #: What the router would write meanwhile.
        self.unread = bytearray()
        self.is_lost = False
        #: A sender that is asked to drain says at once that it has nothing; else a test says when.
        self.drains = True
        self._names = count()
        self._tags = count(1)

    # What a test does.

    def sender(
        self,
        address: str | None,
        *,
        snd: SenderSettleMode = SenderSettleMode.MIXED,
        rcv: ReceiverSettleMode = ReceiverSettleMode.FIRST,
        target: Target | None = None,
        source: Source | None = None,
        name: str | None = None,
        session: Session | None = None,
        initial_delivery_count: int = 0,
    ) -> Sender:
        """Attach a sender."""
        name = name or f"s{next(self._names)}"
        link = (session or self.session).attach(
            Terminus(name, Role.SENDER),
            source=source or Source(),
            target=target or Target(address=address),
            snd_settle_mode=snd,
            rcv_settle_mode=rcv,
            initial_delivery_count=initial_delivery_count,
        )
        self.network.run()
        assert isinstance(link, Sender)
        return link

    def receiver(
        self,
        address: str | None,
        *,
        credit: int = 10,
        rcv: ReceiverSettleMode = ReceiverSettleMode.FIRST,
        snd: SenderSettleMode = SenderSettleMode.MIXED,
        source: Source | None = None,
        copy: bool = False,
        name: str | None = None,
        session: Session | None = None,
        max_message_size: int | None = None,
    ) -> Receiver:
        """Attach a receiver, and give it credit."""
        name = name or f"r{next(self._names)}"
        mode = DistributionMode.COPY if copy else None
        link = (session or self.session).attach(
            Terminus(name, Role.RECEIVER),
            source=source or Source(address=address, distribution_mode=mode),
            target=Target(),
            snd_settle_mode=snd,
            rcv_settle_mode=rcv,
            max_message_size=max_message_size,
        )
        self.network.run()
        assert isinstance(link, Receiver)
        if credit and link.is_attached:
            link.flow(credit)
            self.network.run()
        return link

    def send(
        self,
        link: Sender,
        payload: bytes | None = None,
        *,
        settled: bool = False,
        more: bool = False,
        message_format: int = 0,
        state: bytes | None = None,
    ) -> Sent:
        """Send a message, or with `more` the first part of one."""
        delivery = link.delivery(next(self._tags).to_bytes(4, "big"), message_format=message_format, settled=settled)
        sent = self.sent[delivery] = Sent(link, delivery)
        self.resume(sent, message() if payload is None else payload, more=more, state=state)
        return sent

    def resume(
        self,
        sent: Sent,
        payload: bytes = b"",
        *,
        more: bool = False,
        aborted: bool = False,
        settled: bool = False,
        state: bytes | None = None,
    ) -> None:
        """Send the next part."""
        taken = sent.link.transfer(sent.delivery, payload, more=more, aborted=aborted, settled=settled, state=state)
        self.network.run()
        while taken < len(payload):
            # The session's window was closed: it opens as the router passes the message on.
            more_taken = sent.link.transfer(sent.delivery, payload[taken:], more=more, settled=settled)
            assert more_taken, "the window stays closed"
            taken += more_taken
            self.network.run()

    def lose(self) -> None:
        """Cut the connection."""
        self.is_lost = True
        self.network.core.receive_eof(self.record, self.network.now)
        self.network.run()

    def close(self) -> None:
        """Close in good order."""
        self.engine.close()
        self.network.run()
        if not self.is_lost:
            self.lose()

    # What came.

    def take(self, number: int | None = None) -> list[Arrival]:
        """Return the whole messages since the last call, and assert that they are `number`, if that is given."""
        came, self.arrivals = self.arrivals, []
        whole: list[Arrival] = []
        for each in came:
            (whole if each.delivery.complete and not each.delivery.aborted else self.arrivals).append(each)
        if number is not None:
            assert len(whole) == number, f"{len(whole)} messages came, {number} should have"
        return whole

    def read(self, data: bytes) -> None:
        """Take octets from the router."""
        for event in self.engine.receive(data, self.network.now):
            self.events.append(event)
            if isinstance(event, events.TransferReceived):
                self._transferred(event)
            elif isinstance(event, events.DispositionReceived):
                for delivery in event.deliveries:
                    if delivery in self.sent:
                        self.sent[delivery].said.append((decoded(event.state), event.settled))
                        if event.settled:
                            dispose(delivery, None, True)
                    if delivery in self._came:
                        self._came[delivery].said.append((decoded(event.state), event.settled))
                        if event.settled:
                            dispose(delivery, None, True)
            elif isinstance(event, events.LinkDetached):
                self.detached[event.link] = event.error
                if event.by_peer:
                    event.link.detach(closed=event.closed)
            elif isinstance(event, events.DrainRequested) and self.drains:
                event.link.drained()

    def _transferred(self, event: events.TransferReceived) -> None:
        if event.first:
            arrival = Arrival(event.link, event.delivery)
            self.arrivals.append(arrival)
            self.network.arrived.append(arrival)
            self._came[event.delivery] = arrival
        else:
            arrival = self._came[event.delivery]
        arrival.payload += event.payload
        event.link.session.release(1)


class Network:
    """A router and the clients that are connected to it."""

    def __init__(self, *addresses: AddressConfig, router: str = "A", **settings: object) -> None:
        """Args: settings: of the router and its listener, by the names of the configuration."""
        self.listener = LISTENER
        self.now = 100.0
        self.core = Core(_config(id=router, addresses=addresses, **settings), self.now)
        self.core.context.is_acknowledged = self._is_acknowledged
        self.clients: list[Client] = []
        self.arrived: list[Arrival] = []

    @property
    def relays(self) -> int:
        """Relays of deliveries that are not settled yet."""
        return self.core.context.in_flight

    def client(
        self,
        container_id: str | None = None,
        *,
        max_frame_size: int = 4096,
        window: int = 256,
        idle_time_out: float | None = None,
        user: str | None = None,
        host: str = "127.0.0.1",
        hostname: str | None = None,
    ) -> Client:
        """Connect one more client. Args: user: that has logged in. host: its address. hostname: of its `open`."""
        client = Client(
            self,
            container_id or f"client-{len(self.clients)}",
            max_frame_size=max_frame_size,
            window=window,
            idle_time_out=idle_time_out,
            user=user,
            host=host,
            hostname=hostname,
        )
        self.clients.append(client)
        self.run()
        return client

    def _is_acknowledged(self, record: ConnectionRecord) -> bool:
        """Return whether the client's system has all that was written, as sockets can tell."""
        return not (record.unwritten or any(each.stopped for each in self.clients if each.record is record))

    def run(self) -> None:
        """Carry octets to and fro until no end has any."""
        for _ in range(10_000):
            moved = False
            for client in self.clients:
                if client.is_lost:
                    continue
                upstream = client.engine.data_to_send(self.now)
                if upstream:
                    moved = True
                    while not self.core.receive(client.record, upstream, self.now):
                        upstream = b""
                downstream = client.unread or self.core.data_to_send(client.record, self.now)
                if client.record.cut:
                    moved = client.is_lost = True
                    self.core.receive_eof(client.record, self.now)
                elif client.stopped:
                    if downstream and not client.unread:
                        client.unread = downstream
                        self.core.output_blocked(client.record)
                elif downstream:
                    moved = True
                    client.unread = bytearray()
                    self.core.sent(client.record, self.now)
                    client.read(downstream)
                elif client.record.engine.finished and client.engine.finished:
                    client.is_lost = True
                    self.core.receive_eof(client.record, self.now)
            if self.core.context.chores:
                moved = True
                self.core.work(self.now, lambda: False)
            if not moved:
                return
        raise AssertionError("the network does not come to rest")

    def advance(self, seconds: float) -> None:
        """Let time pass, timer by timer."""
        end = self.now + seconds
        while True:
            due = self.core.next_timer()
            if due is None or due > end:
                break
            self.now = max(self.now, due)
            self.core.handle_timer(self.now)
            self.run()
        self.now = end
        self.core.handle_timer(end)
        self.run()

    def leave(self) -> None:
        """Close every client; then assert that nothing is left."""
        for client in self.clients:
            client.stopped = False
        for client in self.clients:
            if not client.is_lost:
                client.close()
        statistics = snapshot(self.core)
        assert statistics.is_empty, statistics
