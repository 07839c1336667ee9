"""Random policies and traffic over random meshes: nothing of a tenant reaches another one that no export gives.

A second judge (`tenant_judge`) decides what should be. Each tenant's own names have a word that no other tenant's have,
so what a router says to a peer shows whose names it is from; and all tenants have some names in common.
"""

from __future__ import annotations

import re
import tomllib
from itertools import combinations, pairwise
from pathlib import Path
from random import Random
from typing import Final

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.policies.exports import Use
from amqpmesh.policies.policy import Policy
from amqpmesh.router.amqp import events
from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.link import Receiver, Sender
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Rejected
from amqpmesh.router.amqp.standard.messaging import DeliveryAnnotations, Source
from amqpmesh.router.config.file import AddressConfig
from amqpmesh.router.config.policy_file import parse_policy
from amqpmesh.router.config.redirect import RedirectConfig
from amqpmesh.router.delivery import tracing
from amqpmesh.router.management.entities import TYPES
from amqpmesh.router.management.trace import events_of
from amqpmesh.router.message.content import Message
from amqpmesh.router.telemetry.traces import Trace
from tests.support.worlds.network import Arrival, Client, Sent, decoded, message
from tests.support.worlds.readings import Readings
from tests.support.worlds.tenant_judge import Judge
from tests.support.worlds.tenants import Tenants, made

NAMES: Final = ("operator", "red", "green", "blue")
#: An address that clients are sent elsewhere for, and the host there.
AWAY: Final = "away"
ELSEWHERE: Final = "b.example"
ADDRESSES: Final = (
    AddressConfig(pattern="#/all", distribution=Distribution.MULTICAST),
    AddressConfig(pattern="#/bad", redeliver=True, dead_letter="dead"),
    AddressConfig(pattern=AWAY, redirect=RedirectConfig(network_host=ELSEWHERE, port=5672)),
)
#: Names that all tenants have of their own.
COMMON: Final = ("q", "q/all", "dead")
DEAD: Final = "dead"
#: Addresses of the routers themselves, which no export reaches.
RESERVED: Final = ("$management", "$telemetry")


def key(tenant: str) -> str:
    return tenant.removeprefix("operator")


def own(tenant: str) -> tuple[str, ...]:
    """Return some of a tenant's addresses."""
    return (
        f"of-{tenant}/1",
        f"of-{tenant}/all",
        f"of-{tenant}/bad",
        f"at-{tenant}/1",
        f"at-{tenant}/all",
        f"a-{tenant}",
    )


def offers(exporter: str, importer: str) -> tuple[tuple[str, str], ...]:
    """Return patterns of addresses, each with the importer's name for it."""
    return (
        (f"of-{exporter}/#", f"in-{importer}/{NAMES.index(exporter)}/#"),
        (f"at-{exporter}/*", f"in-{importer}/at{NAMES.index(exporter)}/*"),
        (f"a-{exporter}", f"in-{importer}/a{NAMES.index(exporter)}"),
        ("#", f"in-{importer}/each{NAMES.index(exporter)}/#"),
    )


def imported(importer: str) -> tuple[str, ...]:
    """Return names that a tenant may import."""
    ends = ("1", "all", "bad", "x/1", "/all", "x//1", "../1", "*", "#", "\0", "\u00e9", "e\u0301")
    return tuple(
        name
        for exporter in NAMES
        if exporter != importer
        for _, pattern in offers(exporter, importer)
        for name in (
            (pattern,)
            if pattern[-1] not in "#*"
            else (
                pattern[:-2],
                *(
                    f"{pattern[:-1]}{end}"
                    for end in (*ends, *own(exporter), *COMMON, *RESERVED, f"$telemetry/{exporter}")
                ),
            )
        )
    )


def random_policy(random: Random) -> tuple[Policy, Judge, dict[str, bool]]:
    """Return a policy, the judge of it, and the tenants whose clients may name a router with an address."""
    text, rights, contained = "", {}, {}
    lines = {each: {"exports": "", "imports": ""} for each in NAMES}
    for exporter in NAMES:
        for importer in NAMES:
            for pattern, name in offers(exporter, importer) if exporter != importer else ():
                if random.random() < 0.5:
                    may = random.choice(['"send"', '"receive"', '"send", "receive"'])
                    replies = random.choice(["true", "false"])
                    names = f'pattern = "{pattern}", to = "{importer}", as = "{name}"'
                    lines[exporter]["exports"] += f"{{ {names}, may = [{may}], replies = {replies} }},"
                if random.random() < 0.7:
                    taken = name if random.random() < 0.8 else name.replace("#", "1").replace("*", "1")
                    lines[importer]["imports"] += f'{{ from = "{exporter}", pattern = "{taken}" }},'
    for tenant in NAMES:
        text += f'[[tenant]]\nname = "{tenant}"\nmatch = [{{ listener = "{tenant}" }}]\n'
        text += "".join(f"{name} = [{given}]\n" for name, given in lines[tenant].items())
        may = ["dynamic", "anonymous", "copy", *(["container"] if random.random() < 0.5 else [])]
        text += f'[[group]]\ntenant = "{tenant}"\nname = "all"\nmay = {may}\n'.replace("'", '"')
        contained[key(tenant)] = "container" in may
        for use in Use:
            patterns = random.choice([("#",), ("#",), (f"in-{tenant}/#", "q"), (f"of-{tenant}/#", "dead", "q/all")])
            rights[key(tenant), use] = patterns
            text += f"{use} = {list(patterns)}\n".replace("'", '"')
    policy = parse_policy(tomllib.loads(text), Path("policy.toml"))
    return policy, Judge(policy.exports.exports, policy.exports.imports, rights), contained


class Traffic:
    """Clients of all tenants at the routers of a mesh, with what each of them may see."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        routers = "ABCD"[: self.random.randint(2, 4)]
        chain = list(pairwise(routers))
        more = [each for each in combinations(routers, 2) if each not in chain and self.random.random() < 0.3]
        policy, self.judge, self.contained = random_policy(self.random)
        empty = dict.fromkeys(NAMES, "")
        self.world = Tenants(routers, [*chain, *more], *ADDRESSES, **empty)
        self.world.change(policy)
        self.readings = [Readings(node.core) for node in self.world.mesh.nodes.values()]
        self.traces: list[Trace] = []
        self.clients = {
            self.world.client(tenant, self.random.choice(routers), f"of-{tenant}-{number}"): tenant
            for tenant in NAMES
            for number in range(2)
        }
        #: Links of the program around a router: they are the operator's, and no rights bound them.
        self.inside = {self.world.client_inside(self.random.choice(routers), "of-operator-inside")}
        self.clients |= dict.fromkeys(self.inside, "operator")
        self.receivers: dict[Receiver, tuple[Client, str]] = {}
        self.senders: dict[Sender, tuple[Client, str | None]] = {}
        #: Names of dynamic nodes, with their makers.
        self.nodes: dict[str, Client] = {}
        #: By message: the owner of its address at that time, and its address.
        self.messages: dict[int, tuple[str, str]] = {}
        self.accepted = self.refused = self.crossed = self.dead = self.at_routers = self.redirected = self.by_inside = 0

    def tenant(self, client: Client) -> str:
        return key(self.clients[client])

    def owner(self, client: Client, name: str, use: Use, judge: Judge | None = None) -> tuple[str, str] | None:
        """Return the owner and the address of a name; None: the client may not use it."""
        judge = judge or self.judge
        return (judge.owner if client in self.inside else judge.permitted)(self.tenant(client), name, use)

    def pick(self, use: Use) -> tuple[Client, str]:
        """Return a client, and a name that it may use or not; often one that meets a link that exists."""
        meeting = self.meeting(use) if self.random.random() < 0.7 else []
        if meeting:
            return self.random.choice(meeting)
        client = self.random.choice(list(self.clients))
        return client, self.random.choice(self.names(client))

    def names(self, client: Client) -> list[str]:
        """Return names that a client may know."""
        tenant = self.clients[client]
        return [*own(tenant), *COMMON, *imported(tenant)]

    def meeting(self, use: Use) -> list[tuple[Client, str]]:
        """Return who may use which name for the address of a link at random, preferably of another tenant."""
        links = [*self.receivers.values()] if use is Use.SEND else [each for each in self.senders.values() if each[1]]
        if not links:
            return []
        other, name = self.random.choice(links)
        owner = self.owner(other, name or "", Use.RECEIVE if use is Use.SEND else Use.SEND)
        found = [
            (client, each)
            for client in self.clients
            for each in self.names(client)
            if owner is not None and self.owner(client, each, use) == owner
        ]
        return [each for each in found if self.clients[each[0]] != self.clients[other]] or found

    def check_link(self, client: Client, link: Receiver | Sender, *, permitted: bool) -> bool:
        error = client.detached.get(link)
        assert link.is_attached is permitted, (self.clients[client], error)
        assert permitted or (error is not None and error.condition == "amqp:unauthorized-access")
        self.refused += not permitted
        return permitted

    # -------------------------------------------------------------------------------------------------------- the steps

    def await_dead_letters(self) -> None:
        """Attach receivers that reject what comes, and those of dead letters, in each tenant."""
        for client, tenant in self.clients.items():
            for name in (f"of-{tenant}/bad", DEAD):
                self.receive(client, name)

    def receive(self, client: Client | None = None, name: str = "") -> None:
        if client is None:
            client, name = self.pick(Use.RECEIVE)
        permitted = self.owner(client, name, Use.RECEIVE) is not None
        link = client.receiver(name, credit=1000)
        if self.check_link(client, link, permitted=permitted):
            self.receivers[link] = client, name

    def attach(self) -> None:
        client, name = self.pick(Use.SEND)
        anonymous = self.random.random() < 0.3
        permitted = anonymous or self.owner(client, name, Use.SEND) is not None
        link = client.sender(None if anonymous else name)
        if self.check_link(client, link, permitted=permitted):
            self.senders[link] = client, None if anonymous else name

    def make(self) -> None:
        client = self.random.choice(list(self.clients))
        link = client.receiver(None, source=Source(dynamic=True), credit=1000)
        self.nodes[made(link)] = client
        self.receivers[link] = client, made(link)

    def send(self) -> None:
        if not self.senders:
            return
        sender = self.random.choice(list(self.senders))
        client, name = self.senders[sender]
        is_anonymous = name is None
        if name is None:
            # A client may know names of any tenant's addresses: it only cannot reach them.
            meeting = [each for one, each in self.meeting(Use.SEND) if one is client]
            name = self.random.choice(meeting or [*self.names(client), self.pick(Use.SEND)[1]])
        self.world.rest()
        owner = self.owner(client, name, Use.SEND)
        wanted = [] if owner is None else self.listening(owner)
        if not sender.credit:
            assert is_anonymous or not wanted, (self.clients[client], name, owner)
            return
        self.deliver(client, client.send(sender, self.numbered(name, owner)), owner, wanted, name)

    def numbered(self, name: str, owner: tuple[str, str] | None) -> bytes:
        number = len(self.messages)
        self.messages[number] = owner or ("nobody's", "")
        if self.random.random() < 0.7:
            return message(f"number {number};", to=name)
        # What routers say to each other, said by a client.
        keys = ("to", "trace", "settled", "not-to", "by", "vouch", "tenant")
        others: list[str | bytes | bool] = [*own(self.random.choice(NAMES)), bytes(16), True]
        forged = {Symbol(f"x-opt-mesh-{key}"): self.random.choice(others) for key in self.random.sample(keys, 2)}
        annotations = encode_composite(DeliveryAnnotations(value=forged))
        return annotations + message(f"number {number};", to=name, header=False)

    def listening(self, owner: tuple[str, str]) -> list[Receiver]:
        """Return the receivers of an address, whatever each of them calls it."""
        return [
            link for link, (client, name) in self.receivers.items() if self.owner(client, name, Use.RECEIVE) == owner
        ]

    def deliver(
        self, client: Client, sent: Sent, owner: tuple[str, str] | None, wanted: list[Receiver], name: str
    ) -> None:
        """Let all clients take what comes, and check that exactly those get a message that should."""
        got = self.take()
        outcome = sent.outcome
        where = self.clients[client], name, owner, outcome
        expected = len(wanted) if name.endswith("/all") else min(1, len(wanted))
        main = [link for link in got if link in wanted]
        assert len(main) == expected, where
        if owner is None:
            assert isinstance(outcome, Rejected), where
            self.refused += 1
        elif wanted and not name.endswith("/bad"):
            assert isinstance(outcome, Accepted), where
            self.accepted += 1
            self.by_inside += client in self.inside
            self.crossed += owner[0] != self.tenant(client)
        else:
            assert not isinstance(outcome, Accepted), where
        rest = [link for link in got if link not in wanted]
        if rest:  # only a copy for the dead letters of the address' owner
            assert owner is not None, where
            assert name.endswith("/bad"), where
            dead = self.listening((owner[0], DEAD))
            assert len(rest) == 1, where
            assert rest[0] in dead, where
            self.dead += 1

    def take(self) -> list[Receiver]:
        """Let all clients take what has come, and return the links by which it came."""
        got = []
        for _ in range(3):  # the copy of a message that is rejected comes later
            for client in self.clients:
                for arrival in client.take():
                    (number,) = re.findall(rb"number (\d+);", bytes(arrival.payload))
                    _, address = self.messages[int(number)]
                    self.check_annotations(arrival, self.clients[client])
                    got.append(arrival.link)
                    is_bad = f"/{address}".endswith("/bad") and arrival.link in self.listening(
                        self.messages[int(number)]
                    )
                    arrival.dispose(Rejected() if is_bad else Accepted(), settled=True)
            self.world.mesh.run()
        return got

    def answer(self) -> None:
        """Send to a dynamic node, whose name a client was given or has guessed."""
        if not self.nodes:
            return
        client = self.random.choice(list(self.clients))
        name, maker = self.random.choice(list(self.nodes.items()))
        sender = client.sender(None if self.random.random() < 0.5 else name)
        self.world.rest()
        names = (*imported(self.clients[maker]), "q")
        permitted = self.judge.may_answer(self.tenant(client), self.tenant(maker), names)
        if not sender.credit:
            assert not permitted
            return
        sent = client.send(sender, self.numbered(name, ("", name)))
        got = self.take()
        assert [self.receivers[link][0] for link in got] == [maker] * permitted, (self.clients[client], name)
        assert isinstance(sent.outcome, Accepted) is permitted
        self.crossed += permitted and self.tenant(client) != self.tenant(maker)
        sender.detach(closed=True)
        self.world.mesh.run()

    def ask_router(self) -> None:
        """Attach a link to an address at a certain router, and detach it."""
        use = self.random.choice(list(Use))
        client, name = self.pick(use)
        tenant, at = self.tenant(client), f"{name}@{self.random.choice(list(self.world.mesh.nodes))}"
        contained = client in self.inside or self.contained[tenant]
        permitted = contained and self.owner(client, name, use) is not None
        link: Receiver | Sender = client.receiver(at, credit=0) if use is Use.RECEIVE else client.sender(at)
        if self.check_link(client, link, permitted=permitted):
            self.at_routers += 1
            link.detach(closed=True)
            self.world.rest()

    def ask_elsewhere(self) -> None:
        """Attach a link to an address that is elsewhere: its tenant learns where, and nobody else."""
        use = self.random.choice(list(Use))
        client = self.random.choice(list(self.clients))
        away = f"in-{self.clients[client]}/each{self.random.randrange(len(NAMES))}/{AWAY}"  # if somebody exports all
        name = self.random.choice([AWAY, away])
        owner = self.owner(client, name, use)
        if owner is not None and owner[1] != AWAY:
            return  # no tenant exports to itself
        link: Receiver | Sender = client.receiver(name, credit=0) if use is Use.RECEIVE else client.sender(name)
        error = client.detached[link]
        is_own = owner is not None and owner[0] == self.tenant(client)
        expected = "amqp:link:redirect" if is_own else "amqp:not-found" if owner else "amqp:unauthorized-access"
        assert error.condition == expected, (self.clients[client], name)
        assert (ELSEWHERE in repr(error)) is is_own, "an importer is never told"
        self.redirected += is_own

    def trace(self) -> None:
        """Follow the next message to an address of a tenant's own."""
        client, name = self.pick(self.random.choice(list(Use)))
        core, tenant, now = client.network.core, self.tenant(client), self.world.mesh.now
        owner = self.judge.owner(tenant, name, Use.SEND)
        if not tenant or owner is None or owner[0] != tenant or (tenant, name) in core.context.traces.addresses:
            return
        trace = core.context.traces.begin(self.random.randbytes(16), tenant, now)
        if trace is not None:
            core.change(lambda: tracing.await_next(core.context, tenant, name, trace), now)
            self.traces.append(trace)

    def read(self) -> None:
        """Check that what each tenant reads at a router names nothing of another."""
        readings = self.random.choice(self.readings)
        readings.renew()
        for tenant in NAMES[1:]:
            view = readings.view(tenant)
            for kind in TYPES.values():
                shown = kind.reader(kind.attributes)
                for entity in view.entities(kind):
                    self.check_text(repr(shown(entity)), tenant)
            links = {each.connection for each in view.entities(TYPES["org.amqpmesh.link"])}
            assert links <= {each.number for each in view.entities(TYPES["org.amqpmesh.connection"])}
            for text in (*map(str, readings.tools(tenant)), *readings.metrics(tenant, *NAMES, "")):
                self.check_text(text, tenant)
            others = [
                f"{kind}@{each}/{own(each)[0]}" for kind in ("address", "node") for each in NAMES if each != tenant
            ]
            assert {*readings.asked(tenant, others)} == {*readings.asked(tenant, ["address@nobody/x"])}
            for text in readings.answers(tenant):
                self.check_text(text, tenant)
            self.check_text(readings.pages(tenant).replace('"', "'"), tenant)
            for name in self.random.sample([*own(tenant), *imported(tenant), *COMMON], 10):
                self.check_text(str(readings.why(tenant, name)), tenant)
        for trace in self.traces:
            self.check_text(str(events_of(trace, 0, trace.tenant)), trace.tenant)

    def check_annotations(self, arrival: Arrival, tenant: str) -> None:
        """Check that a message says nothing of the mesh, and nothing of others that its sender has not said."""
        found = Message.decode(bytes(arrival.payload))
        assert not [key for key in found.delivery_annotations if str(key).startswith("x-opt-mesh-")]
        self.check_text(f"{found.delivery_annotations} {found.message_annotations}", tenant)

    def change(self) -> None:
        """Change the policy: links that it does not permit any more, or whose name means something else, end."""
        before = self.judge
        policy, self.judge, self.contained = random_policy(self.random)
        self.world.change(policy)
        links: list[tuple[Receiver | Sender, Client, str | None, Use]] = [
            *((link, client, name, Use.RECEIVE) for link, (client, name) in self.receivers.items()),
            *((link, client, name, Use.SEND) for link, (client, name) in self.senders.items()),
        ]
        for link, client, name, use in links:
            if name is None or name in self.nodes:
                continue
            was, now = (self.owner(client, name, use, each) for each in (before, self.judge))
            if not self.check_link(client, link, permitted=was == now):
                self.receivers.pop(link, None) if isinstance(link, Receiver) else self.senders.pop(link, None)

    def run(self, steps: int) -> None:
        actions = [
            (8, self.receive),
            (8, self.attach),
            (2, self.make),
            (20, self.send),
            (5, self.answer),
            (3, self.ask_router),
            (3, self.ask_elsewhere),
            (2, self.read),
            (2, self.trace),
            (1, self.change),
        ]
        for _ in range(steps):
            self.random.choices([each for _, each in actions], [weight for weight, _ in actions])[0]()
        for client, tenant in self.clients.items():
            self.check_words(client, tenant)
        self.world.mesh.leave()

    def check_words(self, client: Client, tenant: str) -> None:
        """Check that the router has said nothing to a client that has a name of another tenant."""
        for event in client.events:
            said: list[object] = []
            if isinstance(event, events.LinkAttached):
                said.append(event.attach)
            elif isinstance(event, events.LinkDetached | events.SessionEnded | events.ConnectionClosed):
                said.append(event.error)
            elif isinstance(event, events.DispositionReceived):
                said.append(decoded(event.state))
            for each in said:
                self.check_text(repr(each), tenant)

    def check_text(self, text: str, tenant: str) -> None:
        """Check that a text for a client of a tenant has no name of another tenant."""
        foreign = re.compile("|".join(f"(of|at|a|in)-{each}" for each in NAMES if each != tenant))
        # Dynamic nodes are named for their makers; and an export of all addresses has their names in its own.
        rest = re.sub(rf"(\$dynamic|in-{tenant})/[^\s']*", "", text)
        assert foreign.search(rest) is None, (tenant, text)


@pytest.mark.parametrize("seed", [200, 201, 206, 208, 210, 214, 219, 222])
def test_nothing_of_a_tenant_reaches_another_that_is_not_exported(seed: int) -> None:
    traffic = Traffic(seed)
    traffic.run(90)
    assert traffic.refused
    assert traffic.accepted


def test_the_traffic_crosses_tenants() -> None:
    traffic = Traffic(102)
    traffic.await_dead_letters()
    traffic.run(150)
    assert traffic.crossed > 3
    assert traffic.dead
    assert traffic.at_routers
    assert traffic.redirected
    assert traffic.by_inside
