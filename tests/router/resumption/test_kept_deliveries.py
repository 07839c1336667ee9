"""Deliveries that are kept for senders that are away: how, and what happens to them meanwhile (§2.6.13)."""

from __future__ import annotations

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode, Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted, DeliveryState, Modified, Rejected, Released
from amqpmesh.router.amqp.standard.messaging import Target
from amqpmesh.router.amqp.standard.performatives import Attach, Disposition, Flow
from amqpmesh.router.config.address import AddressConfig
from amqpmesh.router.kernel import FastDelivery, FastMulticast, Pool
from amqpmesh.router.management.snapshot import snapshot
from tests.router.resumption.test_returning_senders import CLOSE, SECOND, WHOLE, Roaming, as_map, tag
from tests.support.peers.scripted import frame, transferred
from tests.support.worlds.network import Arrival, Network, message

FIRST = ReceiverSettleMode.FIRST


def kept(r: Roaming) -> dict[bytes, object]:
    """Return the deliveries of the one link whose sender is away."""
    (terminus,) = r.network.core.context.termini._suspended.values()  # type: ignore[attr-defined]
    return dict(terminus.deliveries)


def send(r: Roaming, count: int) -> list[Arrival]:
    """Send deliveries whose ids begin with 0. The kernel relays them alone: the router has decided about one before."""
    r.peer.write(frame(transferred(2**31 - 1), message()))
    (first,) = r.consumer.take(1)
    first.accept()
    r.network.run()
    r.peer.hear()
    r.peer.write(Disposition(role=Role.SENDER, first=2**31 - 1, settled=True))
    for number in range(count):
        r.peer.write(frame(transferred(number), message(number)))
        r.peer.hear()
    r.arrivals = r.consumer.take(count)
    return r.arrivals


def kinds(r: Roaming) -> set[type[object]]:
    return {type(each) for each in kept(r).values()}


# --------------------------------------------------------------------------------------------- how they are kept


@pytest.mark.parametrize("rcv", ReceiverSettleMode)
def test_a_delivery_is_kept_as_small_as_it_was(rcv: ReceiverSettleMode) -> None:
    r = Roaming(rcv)
    arrivals = send(r, 3)
    r.lose()
    assert kinds(r) == {FastDelivery}
    arrivals[0].dispose(Accepted(), settled=rcv is FIRST)
    r.network.run()
    assert kinds(r) == {FastDelivery}
    assert as_map(r.back({tag(number): None for number in range(3)})) == {
        tag(0): Accepted(), tag(1): WHOLE, tag(2): WHOLE
    }  # fmt: skip
    for number in range(1, 3):
        r.resume(10 + number, of=number)
    (link,) = r.end.record.incoming
    ledger = link.endpoint.session.flow_state.incoming
    assert [type(ledger.find(10 + number)) for number in range(1, 3)] == [FastDelivery, FastDelivery]
    for arrival in arrivals[1:]:
        arrival.dispose(Rejected(), settled=rcv is FIRST)
    r.network.run()
    (said,) = r.heard()
    assert (said.first, said.last, said.state, said.settled) == (11, 12, Rejected(), rcv is FIRST)
    r.finish()


def test_a_lost_link_has_no_delivery_left() -> None:
    r = Roaming()
    arrivals = send(r, 3)
    (link,) = r.end.record.incoming
    ledger = link.endpoint.session.flow_state.incoming
    assert len(ledger) == 3
    r.lose()
    assert len(ledger) == 0
    assert len(kept(r)) == 3
    for each in arrivals:
        each.accept()
    r.finish()


# ---------------------------------------------------------------------------------------- outcomes while it is away


OUTCOMES = [
    Accepted(),
    Rejected(),
    Released(),
    Modified(delivery_failed=True),
    Modified(delivery_failed=True, message_annotations={Symbol("x"): "y" * 3000}),  # it needs a decision
]


@pytest.mark.parametrize("outcome", OUTCOMES, ids=["accepted", "rejected", "released", "modified", "long"])
@pytest.mark.parametrize("rcv", ReceiverSettleMode)
def test_the_map_has_the_outcome_that_came_meanwhile(rcv: ReceiverSettleMode, outcome: DeliveryState) -> None:
    r = Roaming(rcv)
    (arrival,) = r.send()
    r.lose()
    arrival.dispose(outcome, settled=True)
    r.network.run()
    (state,) = as_map(r.back({tag(0): None})).values()
    assert type(state) is type(outcome)
    r.resume(1)
    (said,) = r.heard()
    assert type(said.state) is type(outcome)
    if rcv is SECOND:
        r.peer.write(Disposition(role=Role.SENDER, first=1, settled=True))
    assert r.network.relays == 0
    r.finish()


def test_a_receiver_that_goes_meanwhile_leaves_the_outcome_in_its_place() -> None:
    r = Roaming()
    r.send(2)
    r.lose()
    r.consumer.lose()
    states = as_map(r.back({tag(0): None, tag(1): None}))
    assert {type(each) for each in states.values()} == {Modified}
    r.lose()
    r.network.advance(31)
    assert r.network.relays == 0


MULTICAST = AddressConfig(pattern="q", distribution=Distribution.MULTICAST)


@pytest.mark.parametrize("resumes", [True, False])
@pytest.mark.parametrize("rcv", ReceiverSettleMode)
def test_a_multicast_whose_sender_is_away(rcv: ReceiverSettleMode, resumes: bool) -> None:
    network = Network(MULTICAST)
    other = network.client()
    other.receiver("q", credit=10)
    r = Roaming(rcv, network=network)
    (arrival,) = send(r, 1)
    first, others = other.take(2)
    first.accept()
    r.lose()
    assert kinds(r) == {FastMulticast}
    arrival.accept()
    r.network.run()
    if resumes:
        assert as_map(r.back({tag(0): None})) == {tag(0): WHOLE}
        others.dispose(Rejected(), settled=True)
        r.network.run()
        r.resume(4)
        (said,) = r.heard()
        assert (said.first, said.state) == (4, Rejected())
        if rcv is SECOND:
            r.peer.write(Disposition(role=Role.SENDER, first=4, settled=True))
    else:
        r.network.advance(31)
        others.dispose(Accepted(), settled=False)
        r.network.run()
        assert others.said[-1][1], "settled: its sender is gone"
    assert network.relays == 0
    r.finish()


def test_a_message_that_is_redelivered_meanwhile() -> None:
    r = Roaming(network=Network(AddressConfig(pattern="q", redeliver=True)))
    (arrival,) = send(r, 1)
    r.lose()
    arrival.dispose(Released(), settled=True)
    r.network.run()
    (again,) = r.consumer.take(1)
    again.accept()
    r.network.run()
    assert as_map(r.back({tag(0): None})) == {tag(0): Accepted()}
    r.resume(0, settled=True)
    assert r.network.relays == 0
    r.finish()


# ------------------------------------------------------------------------------------------------- its end


def test_outcomes_that_come_after_the_end_of_its_time_settle_the_receivers() -> None:
    r = Roaming(SECOND)
    arrivals = r.send(4)
    arrivals[0].dispose(Accepted(), settled=False)
    r.network.run()
    r.lose()
    arrivals[1].dispose(Accepted(), settled=False)
    r.network.run()
    assert not arrivals[1].said, "its sender may come back"
    r.network.advance(31)
    assert [each.said[-1:] for each in arrivals] == [[(None, True)], [(None, True)], [], []]
    for each in arrivals[2:]:
        each.dispose(Accepted(), settled=False)
    r.network.run()
    assert all(each.said[-1][1] for each in arrivals)
    assert r.network.relays == 0
    r.finish()


def test_deliveries_that_a_sender_has_not_resumed_end_with_its_link() -> None:
    r = Roaming()
    arrivals = r.send(3)
    r.lose()
    r.back({tag(number): None for number in range(3)}, target=Target(address="q"))  # nothing is granted this time
    r.resume(5, of=1)
    r.lose()
    assert r.suspended == 0
    for each in arrivals:
        each.dispose(Accepted(), settled=False)
    r.network.run()
    assert all(each.said[-1][1] for each in arrivals)
    assert r.network.relays == 0
    r.finish()


@pytest.mark.parametrize("count", [30, 1000])
def test_what_the_sender_has_settled_is_settled_in_steps(count: int) -> None:
    r = Roaming(SECOND, network=Network(AddressConfig(pattern="q", max_credit=2000)))
    r.consumer.receiver("q", rcv=SECOND, credit=2000)
    for number, each in enumerate(send(r, count)):
        if number % 2:
            each.dispose(Accepted(), settled=False)
    r.network.run()
    r.lose()
    r.begin()
    core = r.network.core
    data = frame(r.attaching({}))
    core.receive(r.end.record, data, r.network.now)
    # A turn does no more than so many steps, however many deliveries there are.
    assert bool(core.context.chores) is (count > 200)
    r.network.run()
    assert all(each.said[-1][1] for each in r.arrivals)
    assert r.network.relays == 0
    r.finish()


def test_a_connection_that_is_lost_before_all_is_settled_disturbs_nothing() -> None:
    r = Roaming(SECOND, network=Network(AddressConfig(pattern="q", max_credit=2000)))
    r.consumer.receiver("q", rcv=SECOND, credit=2000)
    send(r, 600)
    r.lose()
    r.begin()
    core = r.network.core
    core.receive(r.end.record, frame(r.attaching({})), r.network.now)
    assert core.context.chores
    core.receive_eof(r.end.record, r.network.now)
    assert r.suspended == 1
    r.network.run()
    assert kept(r) == {}
    assert r.network.relays == 0
    r.finish()


# ------------------------------------------------------------------------------------------------- counts


@pytest.mark.parametrize("rcv", ReceiverSettleMode)
def test_outcomes_count_once(rcv: ReceiverSettleMode) -> None:
    r = Roaming(rcv)
    arrivals = r.send(3)
    r.lose()
    arrivals[0].dispose(Accepted(), settled=True)
    r.network.run()
    r.back({tag(number): None for number in range(3)})
    arrivals[1].dispose(Accepted(), settled=True)
    r.network.run()
    for number in range(3):
        r.resume(number, of=number)
    arrivals[2].dispose(Accepted(), settled=True)
    r.network.run()
    if rcv is SECOND:
        r.peer.write(Disposition(role=Role.SENDER, first=0, last=2, settled=True))
    r.lose()
    r.network.advance(31)
    counted = snapshot(r.network.core).addresses
    assert [each.accepted for each in counted if each.name == "q"] == [3]
    r.finish()


def test_an_outcome_that_waits_for_its_settlement_counts_for_the_link_that_is_back() -> None:
    r = Roaming(SECOND)
    for each in r.send(2):
        each.dispose(Accepted(), settled=True)
    r.network.run()
    r.lose()
    r.back({tag(0): None, tag(1): None})
    (link,) = r.end.record.incoming
    assert link.awaiting_settlement == 2
    r.resume(0, of=0)
    r.peer.write(Disposition(role=Role.SENDER, first=0, settled=True))
    assert link.awaiting_settlement == 1
    r.resume(1, of=1, settled=True)
    assert link.awaiting_settlement == 0
    r.finish()


# ------------------------------------------------------------------------------------------------- credit


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("address", ["q", None])
def test_credit_for_what_may_be_resumed_comes_at_once(address: str | None, is_there: bool) -> None:
    r = Roaming()
    if address is None:
        r.lose()
        r.network.advance(31)
        r.begin()
        target = Target(expiry_policy=CLOSE, timeout=30)
        r.attach(None, target=target)
        for number in range(100):
            r.peer.write(frame(transferred(number), message(number, to="q")))
            r.peer.hear()
    else:
        for number in range(100):
            r.peer.write(frame(transferred(number), message(number)))
            r.peer.hear()
    r.arrivals = r.consumer.take(100)  # it has no credit left
    r.lose()
    if not is_there:
        r.consumer.lose()
    tags = dict.fromkeys(map(tag, range(100)))
    r.begin()
    if address is None:
        r.peer.write(r.attaching(tags, target=target))
    else:
        r.peer.write(r.attaching(tags))
    heard = [each.performative for each in r.peer.hear()]
    assert [type(each) for each in heard] == [Attach, Flow]
    flow = heard[1]
    assert isinstance(flow, Flow)
    assert flow.delivery_count == 0
    assert flow.link_credit is not None
    assert 100 <= flow.link_credit <= 101, "one of the pool, if it has any"
    for number in range(100):
        r.resume(200 + number, of=number)
        heard += [each.performative for each in r.peer.hear()]
    assert r.network.relays == (100 if is_there else 0)
    if is_there and address:
        last = [each for each in heard if isinstance(each, Flow) and each.link_credit is not None][-1]
        assert (last.delivery_count, last.link_credit) == (100, 1), "the pool's"
    r.lose()
    for each in r.arrivals:
        each.accept()
    r.network.advance(31)
    assert r.network.relays == 0


def test_credit_to_resume_is_not_the_pools() -> None:
    r = Roaming()
    send(r, 50)
    r.lose()
    r.back(dict.fromkeys(map(tag, range(50))))
    (link,) = r.end.record.incoming
    assert isinstance(link.pool, Pool)
    assert link.pool.granted <= link.pool.demand + link.pool.overcommit
    for each in r.arrivals:
        each.accept()
    r.finish()
