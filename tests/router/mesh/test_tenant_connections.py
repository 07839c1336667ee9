"""Connections between routers for the lanes of one tenant each: what goes by them, and what their loss changes."""

from __future__ import annotations

from itertools import pairwise
from typing import TypeVar

import pytest

from amqpmesh.policies.policy import Policy
from amqpmesh.router import handlers
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified
from amqpmesh.router.amqp.standard.performatives import Attach, Close, Detach, Open, Performative
from amqpmesh.router.config.file import MeshConfig
from amqpmesh.router.endpoint_setup import TENANT
from amqpmesh.router.mesh.tenant_connections import NO_LANES
from tests.support.peers.scripted import AMQP, Script, attached, begun
from tests.support.worlds.meshes import LISTENER, Wire, World
from tests.support.worlds.network import Sent, message
from tests.support.worlds.tenants import Tenants, policy

P = TypeVar("P", bound=Performative)

LOST = Modified(delivery_failed=True)


class Contending(Tenants):
    """A mesh in which `polite` and `flood` have connections of their own on each edge; `rest` has none."""

    def __init__(self, routers: str = "AB", resume: int = 0) -> None:
        self.mesh = World(routers, [], mesh=MeshConfig(insecure=True, resume=resume))
        self.change(policy(polite="", flood="weight = 2.0", rest=""))
        self.wires: dict[tuple[str, str], Wire] = {}
        for one, two in pairwise(routers):
            for tenant in ("polite", "flood", ""):
                self.join(one, two, tenant)
        self.mesh.advance(1.0)

    def join(self, one: str, two: str, tenant: str) -> None:
        """Connect two routers. Args: tenant: whose lanes alone the connection is for; empty: it is for all."""
        self.wires[one + two, tenant] = self.mesh.join(one, two, lanes_of=tenant or None)

    def lanes(self, tenant: str, edge: str = "AB") -> int:
        """Return the lanes by which the first router of an edge sends on the connection of a tenant."""
        (_core, record), _ = self.wires[edge, tenant].ends
        return 0 if record.lost else sum(not each.retired for each in record.outgoing)


class Pair:
    """A client that sends to an address of its tenant, and one that receives from it."""

    def __init__(
        self, mesh: Contending, tenant: str, sends: str = "A", receives: str = "B", address: str = "q"
    ) -> None:
        self._receiver, self._sender = mesh.client(tenant, receives), mesh.client(tenant, sends)
        self._receiver.receiver(address, credit=100)
        self._link = self._sender.sender(address)
        self._count = 0
        mesh.rest()

    def send(self) -> Sent:
        """Send the next message."""
        self._count += 1
        return self._sender.send(self._link, message(self._count))

    def received(self) -> int:
        """Accept what has come, in order. Returns: how many messages."""
        came = self._receiver.take()
        for each in came:
            each.accept()
        self._receiver.network.run()
        return len(came)


def test_the_lanes_of_a_tenant_go_by_its_connection_in_both_directions_and_over_each_hop() -> None:
    mesh = Contending("ABC")
    pairs = {tenant: Pair(mesh, tenant, "A", "C") for tenant in ("polite", "flood", "rest")}
    back = Pair(mesh, "polite", "C", "A", "back")
    for _ in range(5):
        for pair in (*pairs.values(), back):
            assert pair.send().said == []
            assert pair.received() == 1
    assert [mesh.lanes(tenant, edge) for edge in ("AB", "BC") for tenant in ("polite", "flood", "")] == [1] * 6
    assert sum(not each.retired for each in mesh.wires["BC", "polite"].ends[1][1].outgoing) == 1
    mesh.mesh.leave()


def test_what_one_tenant_has_under_way_holds_up_no_other() -> None:
    mesh = Contending()
    polite, flood, rest = (Pair(mesh, tenant) for tenant in ("polite", "flood", "rest"))
    stuck = mesh.wires["AB", "flood"]
    stuck.frozen = True
    held = [flood.send() for _ in range(50)]
    sent = [polite.send(), rest.send()]
    assert (polite.received(), rest.received(), flood.received()) == (1, 1, 0)
    assert [each.said for each in sent] == [[(Accepted(), True)]] * 2
    stuck.frozen = False
    mesh.mesh.add(stuck)
    mesh.mesh.wires.remove(stuck)
    assert flood.received() == 50
    assert all(each.said == [(Accepted(), True)] for each in held)


def test_without_its_connection_a_tenant_uses_the_one_of_all_and_goes_back_when_it_returns() -> None:
    mesh = Contending()
    polite = Pair(mesh, "polite")
    wire = mesh.wires["AB", "polite"]
    assert (mesh.lanes("polite"), mesh.lanes("")) == (1, 0)
    wire.frozen = True
    lost = polite.send()
    mesh.mesh.cut(wire)
    assert lost.said == [(LOST, True)], "as with any path that is lost"
    mesh.rest()
    assert mesh.lanes("") == 1
    assert polite.send().said == []
    assert polite.received() == 1
    mesh.join("A", "B", "polite")
    mesh.rest()
    assert (mesh.lanes("polite"), mesh.lanes("")) == (1, 0)
    sent = polite.send()
    assert polite.received() == 1
    assert sent.said == [(Accepted(), True)]
    mesh.mesh.leave()


def test_they_end_with_the_last_connection_to_the_neighbour() -> None:
    mesh = Contending()
    mesh.join("A", "B", "")
    mains = [each for each in mesh.mesh.wires if each.ends[0][1].lanes_of is None]
    mesh.mesh.cut(mains[0])
    assert len(mesh.mesh.wires) == 3, "another one leads there"
    mesh.mesh.cut(mains[1])
    mesh.mesh.advance(1.0)
    assert mesh.mesh.wires == []
    assert [list(node.mesh.tenant_connections) for node in mesh.mesh.nodes.values()] == [[], []]


def test_their_time_is_that_of_their_tenant_with_the_weight_of_now() -> None:
    mesh = Contending()
    told: list[tuple[str | None, float]] = []
    node = mesh.mesh["A"]
    node.core.context.on_tenant = lambda record, tenant: told.append((record.lanes_of, tenant.weight))
    mesh.change(policy(polite="weight = 5.0", other=""))
    assert told == [("polite", 5.0)]
    contenders = {each.record.lanes_of: each.record.contender for each in node.mesh.tenant_connections}
    assert contenders["polite"] is not None
    assert contenders["polite"].weight == 5.0


def tenants_of(rules: Policy | None, limit: int = 8) -> tuple[str, ...]:
    """Return the tenants that get connections of their own."""
    world = World("A", [], mesh=MeshConfig(insecure=True, tenant_connections=limit))
    if rules is not None:
        world["A"].core.set_policy(rules, world.now)
    return world["A"].mesh.tenant_connections.tenants


def test_tenants_with_most_weight_get_them_if_there_are_several_and_the_operator_gets_none() -> None:
    rules = policy(operator="weight = 9.0", c="weight = 2.0", b="", a="")
    assert tenants_of(rules) == ("c", "a", "b")
    assert tenants_of(rules, limit=2) == ("c", "a")
    assert tenants_of(rules, limit=0) == ()
    assert tenants_of(policy(a="")) == ()
    assert tenants_of(None) == ()


class Opened:
    """A connection of a scripted neighbour that names a tenant."""

    def __init__(self, world: World, tenant: object, router: str = "B") -> None:
        core = world["A"].core
        self.record = core.accept(LISTENER, "127.0.0.1", world.now, secured=False)
        self._script = Script(
            lambda data: core.receive(self.record, data, world.now) and None,
            lambda: bytes(core.data_to_send(self.record, world.now)),
        )
        self.write = self._script.write
        self.write(AMQP, Open(container_id=router, properties={TENANT: tenant}))  # type: ignore[dict-item]  # any value
        assert self._script.expect_header() == AMQP

    def said(self, kind: type[P]) -> list[P]:
        """Return the performatives of one kind that the router has written."""
        heard = (each.performative for each in self._script.hear())
        return [each for each in heard if isinstance(each, kind)]


def test_the_answer_names_the_tenant_and_there_is_no_control_link() -> None:
    peer = Opened(World("A", []), "polite")
    first, *others = peer.said(Performative)
    assert isinstance(first, Open)
    assert (first.properties or {})[TENANT] == "polite"
    assert not any(isinstance(each, Attach) for each in others)


@pytest.mark.parametrize(
    ("tenant", "reason"), [("x" * 65, "no tenant has such a name"), ("c", "too many connections for tenants")]
)
def test_a_neighbour_cannot_open_more_of_them_than_the_limit_nor_for_names_of_any_length(
    tenant: str, reason: str
) -> None:
    world = World("A", [], mesh=MeshConfig(insecure=True, tenant_connections=2))
    first = [Opened(world, each) for each in "ab"]
    (close,) = Opened(world, tenant).said(Close)
    assert close.error is not None
    assert close.error.condition == AmqpCondition.RESOURCE_LIMIT_EXCEEDED
    assert reason in str(close.error.description)
    assert not any(each.record.lost for each in first)
    assert not Opened(world, "a", "C").record.lost, "of another router"


@pytest.mark.parametrize("tenant", [7, None, b"polite", [Symbol("polite")]])
def test_a_value_that_is_no_name_means_a_connection_for_all(tenant: object) -> None:
    world = World("A", [])
    assert Opened(world, tenant).record in world["A"].mesh.neighbours


def test_a_neighbour_that_does_not_know_of_them_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "TENANT", Symbol("a property of later versions"))
    world = World("AB", [])
    (_, ours), (_, theirs) = world.join("A", "B", lanes_of="polite").ends
    assert ours.lost
    assert theirs.closed is not None
    assert theirs.closed.error is not None
    assert theirs.closed.error.description == NO_LANES


@pytest.mark.parametrize("target", ["$lane/anycast/A/flood/q", "$mesh"])
def test_lanes_of_others_and_control_links_are_refused_on_it(target: str) -> None:
    peer = Opened(World("A", []), "polite")
    peer.write(begun(), attached(Role.SENDER, target))
    (detach,) = peer.said(Detach)
    assert detach.error is not None
    assert detach.error.condition == AmqpCondition.INVALID_FIELD


def test_a_silent_one_is_given_up_after_the_hold_time() -> None:
    world = World("AB", [], mesh=MeshConfig(insecure=True, hold=3.0), idle_time_out=16.0)
    wire = world.join("A", "B", lanes_of="polite")
    world.advance(60.0)
    assert wire in world.wires, "each side says that it is there"
    wire.frozen = True
    world.advance(1.4)
    assert not any(record.lost for _, record in wire.ends)
    world.advance(1.7)
    assert all(record.lost for _, record in wire.ends)


@pytest.mark.parametrize("is_first", [True, False], ids=["it is lost first", "it is lost last"])
def test_with_lanes_that_are_kept_a_process_that_is_gone_is_heard_of_within_a_second(*, is_first: bool) -> None:
    mesh = Contending(resume=10)
    pair = Pair(mesh, "polite")
    sent = [pair.send() for _ in range(3)]
    mesh.rest()
    assert mesh.lanes("polite") == 1
    mesh.mesh.wires.sort(key=lambda wire: (wire is mesh.wires["AB", "polite"]) is not is_first)
    mesh.mesh.kill("B")
    mesh.mesh.advance(1.0)
    assert [each.outcome for each in sent] == [LOST] * 3


@pytest.mark.parametrize("lost", [("polite",), ("",), ("polite", "")])
def test_lanes_that_are_kept_go_on_over_any_connection_to_the_neighbour(lost: tuple[str, ...]) -> None:
    mesh = Contending(resume=10)
    pair = Pair(mesh, "polite")
    sent = [pair.send() for _ in range(3)]
    mesh.rest()
    mesh.mesh.cut(*(mesh.wires["AB", tenant] for tenant in lost))
    mesh.mesh.advance(0.5)
    for tenant in ("polite", "flood", ""):
        if (mesh.wires["AB", tenant]) not in mesh.mesh.wires:
            mesh.join("A", "B", tenant)
    mesh.mesh.advance(0.5)
    assert [each.outcome for each in sent] == [None] * 3
    assert pair.received() == 3
    assert [each.outcome for each in sent] == [Accepted()] * 3


def test_a_lane_of_a_neighbour_that_has_begun_anew_is_not_taken_for_one_of_its_former_life() -> None:
    mesh = Contending(resume=10)
    world = mesh.mesh
    pair = Pair(mesh, "polite")
    pair.send()
    mesh.rest()
    former = mesh.wires["AB", "polite"]
    for wire in world.wires:
        wire.frozen = True
    del world.nodes["A"]  # its neighbour is not told
    world.start("A")
    mesh.change(policy(polite="", flood="weight = 2.0", rest=""))
    for tenant in ("polite", "flood", ""):
        mesh.join("A", "B", tenant)
    world.advance(4.0)
    again = Pair(mesh, "polite")
    sent = [again.send() for _ in range(3)]
    mesh.rest()
    world.cut(mesh.wires["AB", "polite"])
    for core, record in former.ends:
        if core.context.id == "B":
            core.receive_eof(record, world.now)  # it is noticed last that this one is lost
    mesh.join("A", "B", "polite")
    world.advance(0.5)
    assert [each.outcome for each in sent] == [None] * 3
    assert pair.received() + again.received() == 4
    assert [each.outcome for each in sent] == [Accepted()] * 3
