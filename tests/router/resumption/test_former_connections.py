"""Lost connections while links of them are kept: little of them stays, and it counts."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import replace
from weakref import ref

import pytest

from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error, ReceiverSettleMode, Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Rejected
from amqpmesh.router.amqp.standard.messaging import Source, Target
from amqpmesh.router.amqp.standard.performatives import Detach, Open
from amqpmesh.router.endpoint_setup import WHOLE_MAP
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.model.connections import ConnectionRecord
from amqpmesh.router.model.lost_connection import LostConnection
from tests.router.resumption.test_returning_senders import CLOSE, WHOLE, Roaming, as_map, tag
from tests.support.peers.bystanders import Intruder
from tests.support.peers.roaming_receiver import ALL, FAILED, RoamingReceiver
from tests.support.peers.scripted import AMQP, attached
from tests.support.worlds.network import Network


def attach(network: Network, role: Role, name: str) -> Intruder:
    """Return a peer over a connection of its own, with a link that is to be kept. Args: role: of the peer."""
    terminus = Target if role is Role.SENDER else Source
    terms = {terminus.__name__.lower(): terminus(address="q", expiry_policy=CLOSE, timeout=30)}
    end = Intruder(network, shares=True)
    end.peer.open()
    end.peer.begin()
    end.peer.write(attached(role, "q", name=name, offered_capabilities=(WHOLE_MAP,), **terms))
    end.peer.hear()
    return end


def lose_links(network: Network, role: Role, count: int, *, detached: bool) -> None:
    """Attach links, each over a connection of its own, and lose these. Args: detached: these were detached before."""
    for number in range(count):
        end = attach(network, role, f"link {number}")
        if detached:
            end.peer.write(Detach(handle=0))
            end.peer.expect(Detach)
        end.leave()


@pytest.mark.parametrize("detached", [False, True], ids=["attached", "detached"])
@pytest.mark.parametrize("role", Role)
def test_a_link_that_was_alone_on_its_connection_takes_2_kib_and_counts_as_much(role: Role, detached: bool) -> None:
    network, count = Network(), 100
    network.client().receiver("q")  # so that the node stays
    termini, budget = network.core.context.termini, network.core.context.budget
    lose_links(network, role, count, detached=detached)
    network.advance(31.0)  # what is made only once is there now
    assert budget.used == termini.suspended_number == 0
    gc.collect()
    tracemalloc.start()
    try:
        lose_links(network, role, count, detached=detached)
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert termini.suspended_number == count
    assert taken < 2_048 * count
    assert 0.5 * taken < budget.used < 2.5 * taken
    network.advance(31.0)
    assert budget.used == 0


def is_freed(r: Roaming | RoamingReceiver) -> bool:
    """Lose the connection of a peer. Returns: whether its record is in no memory, though nothing looks for circles."""
    kept = ref(r.end.record)
    gc.disable()
    try:
        r.lose()
        r.network.run()
        del r.end.record
        return kept() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("rcv", ReceiverSettleMode)
def test_a_sender_that_is_away_hears_outcomes_though_its_connection_is_freed(rcv: ReceiverSettleMode) -> None:
    r = Roaming(rcv)
    r.send(3)
    assert is_freed(r)
    r.arrivals[0].dispose(Accepted(), settled=rcv is ReceiverSettleMode.FIRST)
    r.network.run()
    assert as_map(r.back({tag(0): None, tag(1): None})) == {tag(0): Accepted(), tag(1): WHOLE}
    assert is_freed(r)
    assert as_map(r.back({tag(0): None, tag(1): None})) == {tag(0): Accepted(), tag(1): WHOLE}
    r.resume(0, of=0, settled=True)
    r.resume(1, of=1)
    for each in r.arrivals[1:]:
        each.accept()
    assert [each.first for each in r.heard()] == [1]
    r.finish()


def test_a_receiver_that_is_away_keeps_its_deliveries_though_its_connection_is_freed() -> None:
    r = RoamingReceiver()
    (sent,) = r.send()
    assert is_freed(r)
    assert sent.outcome is None
    assert as_map(r.back({r.tag(): ALL}, credit=0))
    assert is_freed(r)
    r.network.advance(r.timeout + 1)
    assert sent.outcome == FAILED
    r.begin()
    r.finish()


def test_links_that_are_kept_tell_of_their_connection_what_they_told_before_it_was_freed() -> None:
    network = Network()
    ends = [attach(network, Role.SENDER, f"link {number}") for number in range(2)]
    numbers = {each.record.number for each in ends}
    for end in ends:
        end.peer.write(Detach(handle=0))
        end.peer.expect(Detach)
    before = snapshot(network.core).termini
    ends.pop().leave()
    ends.pop().leave()
    assert snapshot(network.core).termini == tuple(replace(each, expires_at=network.now + 30) for each in before)
    assert {each.connection for each in before} == numbers
    network.advance(31)
    network.leave()


def test_what_stands_for_a_lost_connection_has_all_that_a_connection_has() -> None:
    record = attach(Network(), Role.SENDER, "a").record
    lost = LostConnection(record)
    names = {*ConnectionRecord.__slots__, *(name for name in vars(ConnectionRecord) if not name.startswith("_"))}
    commands = {"dismantle", "limit_output"}  # of connections that are there
    assert {name for name in names if not hasattr(lost, name)} == commands
    for name in ("number", "host", "peer", "listener", "limits", "origin", "principal", "strict_annotations"):
        assert getattr(lost, name) == getattr(record, name)
    assert (lost.is_congested(), lost.unwritten, lost.held_frames) == (False, 0, 0)


HUGE = "x" * 20_000


@pytest.mark.parametrize("large", ["name", "address", "default_outcome", "container_id", "hostname"])
@pytest.mark.parametrize("role", Role)
def test_long_names_that_are_kept_count_in_memory(role: Role, large: str) -> None:
    network, count = Network(), 20
    budget = network.core.context.budget
    rejected = Rejected(error=Error(condition=AmqpCondition.NOT_FOUND, description=HUGE))
    terms = {"default_outcome": rejected} if large == "default_outcome" else {}
    terminus: Source | Target = Source(address="q", expiry_policy=CLOSE, timeout=30, **terms)
    if role is Role.SENDER:
        terminus = Target(address="q", expiry_policy=CLOSE, timeout=30)
    if large == "address":
        terminus = replace(terminus, address=HUGE)
    for number in range(count):
        end = Intruder(network, shares=True)
        container = f"{number:03}{HUGE if large == 'container_id' else ''}"
        end.peer.write(AMQP, Open(container_id=container, hostname=HUGE if large == "hostname" else None))
        end.peer.expect_header()
        end.peer.expect(Open)
        end.peer.begin()
        name = f"{number:03}{HUGE if large == 'name' else ''}"
        end.peer.write(attached(role, "q", name=name, **{"source" if role is Role.RECEIVER else "target": terminus}))
        end.peer.hear()
        end.leave()
    assert network.core.context.termini.suspended_number == count
    is_kept = large != "default_outcome" or role is Role.RECEIVER
    assert (budget.used > count * len(HUGE)) is is_kept
    network.advance(31)
    assert budget.used == 0
