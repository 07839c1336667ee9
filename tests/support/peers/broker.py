"""A container that a router connects to, under the control of a test."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

from amqpmesh.router.amqp import events
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.connection import Connection
from amqpmesh.router.amqp.connection_settings import ConnectionSettings
from amqpmesh.router.amqp.link import Link, Receiver, Sender
from amqpmesh.router.amqp.negotiation import Negotiation
from amqpmesh.router.amqp.sasl.exchange import SaslServer
from amqpmesh.router.amqp.standard.definitions import Error
from amqpmesh.router.amqp.standard.performatives import Attach
from amqpmesh.router.config.file import ConnectorConfig
from amqpmesh.router.config.users import Users
from tests.support.worlds.network import Client, Network

PRODUCT = (Symbol("product"), Symbol("version"))
CONNECTOR = ConnectorConfig(url="amqp://127.0.0.1:5699", name="broker", role="container", idle_time_out=0.0)


class Broker(Client):
    """The far end of one connection of a router's connector; on the router's side it is one more client.

    It has all nodes that links ask for, except those in `refuses`, and gives credit to each link that sends to it.
    """

    def __init__(
        self,
        network: Network,
        *,
        connector: ConnectorConfig = CONNECTOR,
        credit: int = 10,
        refuses: Mapping[str, Error] | None = None,
        ends_sessions: bool = False,
        answers: Mapping[str, object] | None = None,
        channel_max: int = 100,
        container_id: str = "broker",
        product: tuple[str, str] | None = None,
    ) -> None:
        """Args: credit: of each sender. refuses: errors, by the nodes that are refused. ends_sessions: end the session
        of a refused link. answers: fields of its attaches that differ from the router's. product: the name and the
        version in its `open`.
        """
        self.network = network
        self.credit = credit
        settings = ConnectionSettings(
            container_id=container_id,
            idle_time_out=None,
            channel_max=channel_max,
            properties=None if product is None else dict(zip(PRODUCT, product, strict=True)),
        )
        negotiation = Negotiation(server=True, sasl=SaslServer(("ANONYMOUS",), Users({})), sasl_required=True)
        self.engine = Connection(settings, negotiation, network.now)
        self.record = network.core.connect(connector, connector.places[0].host, network.now, secured=False)
        self.arrivals = []
        self._came = {}
        self.unread = bytearray()
        self.sent = {}
        self.events = []
        self.detached = {}
        self.stopped = False
        self.unread = bytearray()
        self.is_lost = False
        self._names = count()
        self._tags = count(1)
        self.refuses = dict(refuses or {})
        #: Nodes that it refuses to receivers only.
        self.hides: dict[str, Error] = {}
        #: Nodes whose receivers are not answered.
        self.ignores: set[str] = set()
        self.ends_sessions = ends_sessions
        self.answers = dict(answers or {})
        #: The links that are attached, by name, and what was asked for in all attaches, in order.
        self.links: dict[str, Link] = {}
        self.asked: list[Attach] = []
        #: How often it was asked to drain a link that it sends on.
        self.drains = False
        self.drain_requests = 0
        network.clients.append(self)
        network.run()

    def read(self, data: bytes) -> None:
        """Take octets from the router."""
        super().read(data)
        while self.events:
            event = self.events.pop(0)
            if isinstance(event, events.ConnectionOpened):
                self.engine.open()
            elif isinstance(event, events.SessionBegun):
                event.session.begin()
            elif isinstance(event, events.LinkAttached):
                self._attached(event)
            elif isinstance(event, events.LinkDetached):
                self.links.pop(event.link.name, None)
            elif isinstance(event, events.DrainRequested):
                self.drain_requests += 1

    def _attached(self, event: events.LinkAttached) -> None:
        link, attach = event.link, event.attach
        self.asked.append(attach)
        terminus = attach.source if isinstance(link, Sender) else attach.target
        node = getattr(terminus, "address", None) or ""
        error = self.refuses.get(node)
        if isinstance(link, Sender):
            if node in self.ignores:
                return
            error = error or self.hides.get(node)
        if error is not None and self.ends_sessions:
            link.session.end(error)
        elif error is not None:
            link.refuse(error)
        else:
            fields = {"source": attach.source, "target": attach.target, **self.answers}
            link.attach(**fields)  # type: ignore[arg-type]  # as tests name them
            self.links[link.name] = link
            if isinstance(link, Receiver):
                link.flow(self.credit)

    def sending(self, name: str) -> Sender:
        """Return its end of a link that feeds the router."""
        link = self.links[name]
        assert isinstance(link, Sender)
        return link

    def receiving(self, name: str) -> Receiver:
        """Return its end of a link that is fed by the router."""
        link = self.links[name]
        assert isinstance(link, Receiver)
        return link
