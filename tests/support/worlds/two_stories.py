"""One history of several tenants over a mesh, with and without some of them, as the others perceive it.

Each tenant draws its actions from random numbers of its own, and chooses by what it has seen itself. So a tenant does
the same in both, unless something of the others has reached it.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.frames import protocol_header
from amqpmesh.router.amqp.link import Receiver, Sender
from amqpmesh.router.amqp.standard.messaging import Source, Target
from amqpmesh.router.amqp.standard.performatives import Flow, decode_performative
from amqpmesh.router.config.file import AddressConfig, ListenerConfig
from amqpmesh.router.config.policy_file import parse_policy
from amqpmesh.router.config.redirect import ElsewhereConfig, RedirectConfig
from amqpmesh.router.delivery import tracing
from amqpmesh.router.management.entities import TYPES
from amqpmesh.router.management.trace import events_of
from amqpmesh.router.message.content import Message
from tests.support.data.tokens import NOW, named_key, shared_access, tokens
from tests.support.peers.broker import Broker
from tests.support.worlds.meshes import World
from tests.support.worlds.network import OUTCOMES, Client, message
from tests.support.worlds.readings import Readings
from tests.support.worlds.tenants import made

if TYPE_CHECKING:
    from collections.abc import Collection

    from amqpmesh.policies.policy import Policy
    from amqpmesh.router.config.file import ConnectorConfig
    from amqpmesh.router.telemetry.traces import Trace
    from tests.support.worlds.meshes import Node

SLOT: Final = 0.25
"""Seconds between actions."""

OBSERVED: Final = "red"
OTHERS: Final = ("operator", "green", "blue", "inside")
"""Tenants, and links within the process, which are the operator's."""

ADDRESSES: Final = (
    AddressConfig(pattern="#/all", distribution=Distribution.MULTICAST),
    AddressConfig(pattern="#/bad", redeliver=True, dead_letter="dead", attempts=2),
    AddressConfig(pattern="gone", distribution=Distribution.UNAVAILABLE),
    AddressConfig(pattern="other", alias="q"),
    AddressConfig(
        pattern="over", redirect=RedirectConfig(network_host="b.example", port=5672, address="svc", follow="router")
    ),
    AddressConfig(pattern="away", redirect=RedirectConfig(hostname="b.example", network_host="127.0.0.1", port=5672)),
)
#: Names that every tenant uses, and that mean its own addresses.
WORDS: Final = ("q", "q/all", "q/bad", "dead", "other", "gone", "away", "", "$management", "$cbs", "$dynamic/0", "$x")
#: Names of nodes of a container that a router connects to once a client asks.
ELSEWHERE: Final = ("over", "svc@b.example", "x@b.example")
#: What a client reads about: names that others use, some of them as the operator sees them.
GUESSES: Final = ("q", "from/green/1", "from/blue/all", "over", "away", "gone", "x@b.example", "$management@A")
IDENTITIES: Final = ("address/q", "address@green/q", "connection/1", "link/1", "lane/1", "tenant/green", "policy/0")
#: Attributes that are numbers of connections or links, or hold one.
NUMBERS: Final = frozenset({"identity", "number", "connection", "maker"})
#: Attributes that depend on how long something takes, which is shared: flows may be one or several, and a route may be
#: there before a delivery comes or not. `deliveries_in` has the sum of these deliveries.
SHARED: Final = frozenset(
    {
        *("octets_out", "relayed", "decided", "decisions"),
        *("zero_credit_in", "zero_credit_out", "latency", "latency_seconds", "oldest_unsettled"),
    }
)

#: The same of known tools; and parts of the names of metrics.
SHARED_COLUMNS: Final = frozenset(
    {"zeroCreditSeconds", "settleRate", "creditAvailable", "lastDlvSeconds", "identity", "connectionId"}
)
SHARED_METRICS: Final = re.compile(
    r'zero_credit|credit_zero|latency|oldest|relayed|decided|decisions|waiting_seconds|connection_bytes_total.*"out"'
)

#: Numbers of connections and lanes in names, and digests of tokens.
_MASKED: Final = re.compile(r"(?<=['L])(connection|lane)/\d+|\*[0-9a-f]{12}")
_TOKEN: Final = re.compile(rb"[0-9a-f]{32}")


def policy(random: Random) -> Policy:
    """Return a policy in which the observed tenant has caps and rates, and the others exports among each other."""
    text = ""
    for name in (OBSERVED, "operator", "green", "blue"):
        text += f'[[tenant]]\nname = "{name}"\nmatch = [{{ listener = "{name}" }}]\n'
        text += f"weight = {random.choice([1, 3])}\nlimits = {{ {_limits(random)} }}\n"
        other = {"green": "blue", "blue": "green"}.get(name)
        if other is not None:
            offer = f'pattern = "q/#", to = "{other}", as = "from/{name}/#", may = ["send", "receive"], replies = true'
            text += f"exports = [{{ {offer} }}]\n"
            text += f'imports = [{{ from = "{other}", pattern = "from/{other}/#" }}]\n'
        text += f'[[group]]\ntenant = "{name}"\nname = "all"\nmay = ["dynamic", "anonymous", "copy", "container"]\n'
        for use in ("send", "receive"):
            text += f'{use} = {random.choice(["""["#"]""", """["q/#", "dead", "other"]"""])}\n'
        text += f'limits = {{ messages = "{random.choice([5, 100])}/s" }}\n'
    return parse_policy(tomllib.loads(text), Path("policy.toml"))


def _limits(random: Random) -> str:
    found = {
        "connections": random.randint(4, 8),
        "connections_per_host": random.randint(4, 6),
        "links": random.randint(5, 30),
        "receivers": random.randint(3, 20),
        "dynamic": random.randint(1, 3),
        "unsettled": random.randint(3, 100),
        "messages": '"10/s"',
        "messages_per_address": '"4/s"',
        "attaches": '"3/s"',
    }
    return ", ".join(f"{key} = {found[key]}" for key in random.sample(list(found), random.randint(0, len(found))))


def _shown(rows: list[dict[str, Any]]) -> list[str]:
    """Return rows as texts, without what is random or shared."""
    found = [repr({name: _slot(value) for name, value in each.items()}) for each in rows]
    return sorted(_MASKED.sub("*", each) for each in found)


def _slot(value: object) -> object:
    """Return the begin of the slot of a time: how long something takes is shared."""
    return value // SLOT * SLOT if isinstance(value, float) else value


class Story:
    """The history of some tenants, and what the observed one perceives of it: octets of each client, and rows."""

    def __init__(self, seed: int, tenants: Collection[str], slots: int = 60) -> None:
        """Args: tenants: those that take part. slots: moments at which each of them acts."""
        shared = Random(seed)
        self._routers = "ABCD"[: shared.randint(1, 4)]
        chain = list(pairwise(self._routers))
        more = [each for each in combinations(self._routers, 2) if each not in chain and shared.random() < 0.3]
        self.mesh = World(self._routers, [*chain, *more], *ADDRESSES, elsewhere=ElsewhereConfig(domains=("b.example",)))
        self._readings = {router: Readings(node.core) for router, node in self.mesh.nodes.items()}
        #: Containers that routers want to connect to, and those that they are connected to.
        self._wanted: list[tuple[Node, ConnectorConfig]] = []
        self._brokers: list[Broker] = []
        for node in self.mesh.nodes.values():
            node.core.context.wall_clock = self._wall
            node.core.context.tokens = tokens(named_key(), now=self._wall)
            node.core.on_demand.on_connect = partial(self._want, node)
        self._random = {each: Random(f"{seed}/{each}") for each in (OBSERVED, *OTHERS)}
        self._clients: dict[str, list[Client]] = {each: [] for each in (OBSERVED, *OTHERS)}
        self._links: dict[str, list[tuple[Client, Sender | Receiver]]] = {each: [] for each in self._clients}
        #: Names of dynamic nodes that a tenant has made.
        self._nodes: dict[str, list[str]] = {each: [] for each in self._clients}
        #: The traces of the observed tenant.
        self._traces: list[Trace] = []
        #: How many tokens clients have put, and containers routers have connected to.
        self.put = self.connected = 0
        #: All clients of the observed tenant, and the rows that it could see at each change.
        self.listening: list[Listening] = []
        self.rows: list[list[Any]] = []
        #: Messages that came to clients of each tenant.
        self.came = dict.fromkeys(self._clients, 0)
        self._change(shared)
        for slot in range(slots):
            for tenant in shared.sample((OBSERVED, *OTHERS), 5):
                if tenant in tenants:
                    self._act(tenant)
            self._answer_elsewhere(slot)
            self.mesh.advance(SLOT / 4)
            for each in self.listening:
                each.end_slot()
            if slot % 20 == 19:
                self.look()
                self._change(shared)
                self.mesh.advance(2.0)
        self.look()

    def _change(self, shared: Random) -> None:
        rules = policy(shared)
        for node in self.mesh.nodes.values():
            node.core.set_policy(rules, node.now)
        self.mesh.run()

    def look(self) -> None:
        """Note what the observed tenant reads at each router."""
        for router, node in self.mesh.nodes.items():
            node.core.handle_timer(self.mesh.now)
            readings = self._readings[router]
            readings.renew()
            view = readings.view(OBSERVED)
            for kind in TYPES.values():
                names = [each for each in kind.attributes if each not in NUMBERS | SHARED]
                if kind.kind in ("lane", "link"):
                    names.remove("credit")  # lanes share it in the order in which they come, links as flows gather
                elif kind.kind == "rate":  # credit is given some milliseconds sooner or later, and spends it
                    names = [each for each in names if each not in ("used", "left")]
                read = kind.reader(names)
                rows = [dict(zip(names, read(each), strict=True)) for each in view.entities(kind)]
                self.rows.append([router, kind.kind, _shown(rows)])
            tools = [
                {"of": of, **{name: value for name, value in row.items() if name not in SHARED_COLUMNS}}
                for of, row in readings.tools(OBSERVED)
            ]
            self.rows.append([router, "tools", _shown(tools)])
            metrics = readings.metrics(OBSERVED, OBSERVED, "green", "operator", "")
            self.rows.append([router, "metrics", sorted(each for each in metrics if not SHARED_METRICS.search(each))])
            self.rows.append([router, "answers", [*readings.answers(OBSERVED)]])
            self.rows.append([router, "asked", [*readings.asked(OBSERVED, IDENTITIES)]])
            self.rows.append([router, "why", [readings.why(OBSERVED, each) for each in GUESSES]])
        told: list[Any] = [events_of(each, 0, OBSERVED)["events"] for each in self._traces]
        self.rows.append(["traces", [[(each["event"], each.get("outcome")) for each in events] for events in told]])

    # ----------------------------------------------------------------------------------------------------- the actions

    def _act(self, tenant: str) -> None:
        random, clients = self._random[tenant], self._clients[tenant]
        clients[:] = [each for each in clients if not (each.is_lost or each.engine.finished)]
        links = self._links[tenant]
        links[:] = [(client, link) for client, link in links if client in clients and link.is_attached]
        if not clients or random.random() < 0.08:
            clients.append(self._connect(tenant, random))
            return
        client = random.choice(clients)
        if client.engine.remote is None or not client.session.can_send:
            return
        senders = [(owner, link) for owner, link in links if isinstance(link, Sender) and link.credit]
        choice = random.random()
        if choice < 0.02:
            self._trace(tenant, client, random)
        elif choice < 0.2:
            self._attach(tenant, client, random, sends=False)
        elif choice < 0.4:
            self._attach(tenant, client, random, sends=True)
        elif choice < 0.8 and senders:
            owner, sender = random.choice(senders)
            to = self._name(tenant, random)
            for _ in range(random.randint(1, 6)):
                if sender.credit and sender.is_attached:
                    owner.send(sender, message("x" * random.choice([1, 300]), to=to), settled=random.random() < 0.3)
        elif choice < 0.96:
            for each in clients:
                for arrival in each.take():
                    self.came[tenant] += 1
                    if random.random() < 0.8:
                        arrival.dispose(OUTCOMES[random.choice(["accepted", *OUTCOMES])], settled=True)
            self.mesh.run()
        elif links and random.random() < 0.7:
            _, link = random.choice(links)
            link.detach(closed=random.random() < 0.5)
            self.mesh.run()
        else:
            client.lose()

    def _connect(self, tenant: str, random: Random) -> Client:
        node = self.mesh[random.choice(self._routers)]
        takes_tokens = tenant != "inside" and random.random() < 0.3
        listener = ListenerConfig(url="amqp://127.0.0.1:0", name=tenant, idle_time_out=0.0)
        node.listener = replace(listener, cbs=True, sasl=("ANONYMOUS", "MSSBCBS")) if takes_tokens else listener
        # Clients of all tenants have the same container-ids, and names of links.
        client = Listening(node, f"container-{random.randrange(3)}", inside=tenant == "inside")
        if tenant == OBSERVED:
            self.listening.append(client)
        node.clients.append(client)
        self.mesh.run()
        if takes_tokens and client.session.can_send:
            self._put_token(client, random)
        return client

    def _put_token(self, client: Client, random: Random) -> None:
        """Show a token, which may be forged or expired, or may expire soon."""
        client.receiver("$cbs", name="answers")
        sender = client.sender("$cbs", name="requests")
        until = self._wall() + random.choice([-100, 3, 1000, 1000])
        token = random.choice([shared_access(until)] * 4 + [shared_access(until, secret=b"other"), "x"])
        asked = {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": "amqps://mesh.example/q"}
        if sender.is_attached:
            client.send(sender, Message(token, application_properties=asked).encode())
            self.put += 1

    def _trace(self, tenant: str, client: Client, random: Random) -> None:
        """Follow the next message to one of its addresses."""
        core, key = client.network.core, tenant.replace("inside", "operator").removeprefix("operator")
        name, now = random.choice(WORDS[:3]), self.mesh.now
        if (key, name) not in core.context.traces.addresses:
            trace = core.context.traces.begin(random.randbytes(16), key, now)
            if trace is not None:
                core.change(lambda: tracing.await_next(core.context, key, name, trace), now)
                self._traces += [trace] if tenant == OBSERVED else []

    def _wall(self) -> float:
        return NOW + self.mesh.now

    def _want(self, node: Node, config: ConnectorConfig, _: object) -> None:
        self._wanted.append((node, replace(config, idle_time_out=0.0)))

    def _answer_elsewhere(self, slot: int) -> None:
        """Let containers accept what comes, and send something now and then to those who receive from them."""
        for _ in range(2):  # others may have connected before: it takes as long in any case
            self.mesh.advance(SLOT / 4)
            for node, config in self._wanted:
                self._brokers.append(Broker(node, connector=config))
            self.connected += len(self._wanted)
            self._wanted.clear()
        self.mesh.advance(SLOT / 4)
        for broker in [each for each in self._brokers if not (each.is_lost or each.engine.finished)]:
            for arrival in broker.take():
                arrival.accept()
            for link in list(broker.links.values()):
                if slot % 5 == 0 and isinstance(link, Sender) and link.is_attached and link.credit:
                    broker.send(link)
        self.mesh.run()

    def _name(self, tenant: str, random: Random) -> str:
        imported = "from/green/1", "from/blue/all"
        name = random.choice([*WORDS[:4] * 3, *WORDS, *ELSEWHERE, *self._nodes[tenant], *imported])
        return name if random.random() < 0.8 else f"{name}@{random.choice('ABCX')}"

    def _attach(self, tenant: str, client: Client, random: Random, *, sends: bool) -> None:
        link: Sender | Receiver
        dynamic = random.random() < 0.15
        name = f"link-{random.randrange(4)}-{random.random() if random.random() < 0.8 else ''}"
        if any(each.name == name for _, each in self._links[tenant]):
            return
        address = self._name(tenant, random)
        if sends:
            anonymous = random.random() < 0.3
            link = client.sender(
                None if anonymous else address, target=Target(dynamic=True) if dynamic else None, name=name
            )
        else:
            source = Source(dynamic=True) if dynamic else None
            credit = random.choice([0, 1, 10, 100])
            link = client.receiver(address, source=source, copy=random.random() < 0.2, credit=credit, name=name)
        if link.is_attached:
            self._links[tenant].append((client, link))
            if dynamic:
                self._nodes[tenant].append(made(link))


class Listening(Client):
    """A client that keeps what it reads."""

    def __init__(self, node: Node, container_id: str, *, inside: bool) -> None:
        self._octets = bytearray()
        self._slots: list[bytearray] = []
        self._tokens: dict[bytes, bytes] = {}
        super().__init__(node, container_id, max_frame_size=4096, window=256, idle_time_out=None)
        self.record.inside = inside

    def read(self, data: bytes) -> None:
        """Take octets from the router."""
        self._octets += data
        super().read(data)

    def end_slot(self) -> None:
        """Begin another slot."""
        self._slots.append(self._octets)
        self._octets = bytearray()

    def frames(self) -> list[list[bytes]]:
        """Return the frames that have come in each slot, with random tokens masked: each by its place among all.

        Flows are left out, since how fast credit comes is shared. The rows have what credit there is.
        """
        return [self._mask(_without_flows(slot)) for slot in (*self._slots, self._octets)]

    def _mask(self, frames: list[bytes]) -> list[bytes]:
        known = self._tokens
        return [_TOKEN.sub(lambda token: known.setdefault(token[0], b"%32d" % len(known)), each) for each in frames]


def _without_flows(octets: bytearray) -> list[bytes]:
    found: list[bytes] = []
    at = len(protocol_header(0)) if octets.startswith(b"AMQP") else 0
    while at < len(octets):
        size = int.from_bytes(octets[at : at + 4], "big")
        frame = bytes(octets[at : at + size])
        at += size
        body = frame[frame[4] * 4 :]
        if not body or not isinstance(decode_performative(body)[0], Flow):
            found.append(frame)
    return found
