"""Receivers that are away, and all else that a router does meanwhile: to their deliveries, and to itself."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted, DeliveryState, Rejected, Released
from amqpmesh.router.amqp.standard.messaging import AmqpValue, Properties, Source
from amqpmesh.router.amqp.standard.performatives import Attach, Detach
from amqpmesh.router.config.address import AddressConfig, Duplicates
from amqpmesh.router.config.policy_file import parse_policy
from amqpmesh.router.config.resumption import ResumptionConfig
from amqpmesh.router.management.snapshot import snapshot
from tests.support.peers.bystanders import Intruder
from tests.support.peers.roaming_receiver import ALL, CLOSE, FAILED, SECOND, RoamingReceiver, as_map
from tests.support.peers.scripted import attached, frame
from tests.support.worlds.meshes import World
from tests.support.worlds.network import Network, message

POLICY = """
[[group]]
name = "all"
send = ["#"]
receive = ["other"]
"""


def with_id(message_id: str) -> bytes:
    return encode_composite(Properties(message_id=message_id)) + encode_composite(AmqpValue(value="hello"))


@pytest.mark.parametrize("back", [False, True])
def test_a_duplicate_waits_for_the_first_one_as_long_as_its_receiver_is_away(back: bool) -> None:
    address = AddressConfig(pattern="q", duplicates=Duplicates.MESSAGE_ID, duplicate_window=10, duplicate_time=60.0)
    r = RoamingReceiver(network=Network(address))
    (first,) = r.send(1, with_id("a"))
    tag = r.tag()
    r.lose()
    other = r.network.client()
    other.receiver("q")
    again = r.producer.send(r.sender, with_id("a"))
    other.take(0)
    assert again.said == []
    if back:
        r.back({tag: Accepted()})
        assert first.outcome == again.outcome == Accepted()
    else:
        r.network.advance(31)
        assert first.outcome == again.outcome == FAILED
    r.finish()


def test_a_rejection_in_the_map_makes_a_dead_letter() -> None:
    r = RoamingReceiver(network=Network(AddressConfig(pattern="q", redeliver=True, dead_letter="dead")))
    (of,) = r.send()
    tag = r.tag()
    dead = r.network.client()
    dead.receiver("dead")
    r.lose()
    r.back({tag: Rejected()})
    assert of.outcome == Rejected()
    dead.take(1)[0].accept()
    r.finish()


@pytest.mark.parametrize("outcome", [Released(), FAILED])
def test_what_the_map_gives_back_goes_to_another_receiver(outcome: DeliveryState) -> None:
    r = RoamingReceiver(network=Network(AddressConfig(pattern="q", redeliver=True)))
    (of,) = r.send()
    tag = r.tag()
    r.lose()
    other = r.network.client()
    other.receiver("q")
    assert as_map(r.back({tag: outcome}, credit=0)) == {tag: outcome}
    other.take(1)[0].accept()
    r.network.run()
    assert of.outcome == Accepted()
    r.give(1)
    (transfer,) = r.resumed
    assert transfer.settled, "it is another's now"
    r.finish()


def test_a_receiver_that_has_lost_its_right_cannot_resume() -> None:
    r = RoamingReceiver()
    (of,) = r.send()
    tag = r.tag()
    r.lose()
    r.network.core.set_policy(parse_policy(tomllib.loads(POLICY), Path("policy.toml")), r.network.now)
    r.begin()
    r.peer.write(r.attaching({tag: Accepted()}))
    _, detach = r.peer.expect_all(Attach, Detach)
    assert isinstance(detach, Detach)
    assert detach.error is not None
    assert detach.error.condition == "amqp:unauthorized-access"
    assert of.said == [], "a refused attach changes nothing"
    r.network.advance(31)
    assert of.outcome == FAILED


@pytest.mark.parametrize("how", ["drain", "departure"])
def test_a_router_that_leaves_keeps_nothing_of_connections_that_are_lost_then(how: str) -> None:
    r = RoamingReceiver()
    (of,) = r.send()
    core = r.network.core
    if how == "drain":
        core.start_drain(r.network.now)
    else:
        core.change(lambda: core.departure.begin(0.1, ()), r.network.now)
    r.lose()
    assert r.suspended == 0
    assert of.outcome == FAILED


def test_a_router_that_stays_after_all_keeps_them_again() -> None:
    r = RoamingReceiver()
    core = r.network.core
    core.change(lambda: core.departure.begin(0.1, ()), r.network.now)
    core.change(core.departure.cancel, r.network.now)
    r.lose()
    assert r.suspended == 1
    r.finish()


def test_statistics_tell_of_receivers_that_are_away_and_come_back() -> None:
    r = RoamingReceiver(reliable=False, network=Network(resumption=ResumptionConfig(keep=0)))
    r.send(4)
    tags = [r.tag(number) for number in range(4)]
    r.lose()
    found = snapshot(r.network.core).router
    assert (found.resumable, found.suspended, found.parked_unsettled) == (1, 1, 4)
    assert found.kept_octets > 0
    r.back({tags[0]: Accepted(), tags[1]: ALL, tags[2]: None})
    found = snapshot(r.network.core).router
    assert (found.suspended, found.parked_unsettled, found.kept_octets) == (0, 0, 0)
    counts = (found.resumed, found.resumed_outcomes, found.resumed_again, found.aborted_resumes)
    assert counts == (1, 1, 1, 1)
    r.lose()
    r.network.advance(31)
    assert snapshot(r.network.core).router.lapsed == 1
    r.back({tags[1]: ALL})
    assert snapshot(r.network.core).router.in_doubt == 1
    r.finish()


def test_links_of_one_user_are_limited_whatever_their_direction() -> None:
    network = Network(resumption=ResumptionConfig(links_per_user=1))
    end = Intruder(network)
    end.peer.open()
    end.peer.begin()
    granted = []
    for number in range(2):
        source = Source(address="q", expiry_policy=CLOSE, timeout=30)
        end.peer.write(attached(Role.RECEIVER, "q", handle=number, name=f"r{number}", source=source))
        answer = end.peer.expect(Attach)
        assert isinstance(answer.source, Source)
        granted.append(answer.source.timeout)
    assert granted == [30, 0]


@pytest.mark.parametrize("settled", [True, False])
def test_deliveries_that_have_ended_meanwhile_leave_their_room_to_those_of_others(settled: bool) -> None:
    network = Network(resumption=ResumptionConfig(unsettled=3))
    first = RoamingReceiver(sent=SECOND, network=network, name="first")
    sent = first.send(2)
    first.lose()
    if settled:
        for each in sent:
            each.dispose(None, settled=True)
        network.run()
    second = RoamingReceiver(network=network, name="second")
    second.send(2)
    second.lose()
    network.run()
    assert network.core.context.termini.evicted == (0 if settled else 1)
    answer = first.back({})
    assert (answer.unsettled is None) is not settled
    first.lose()
    if not settled:
        for each in sent:  # they have heard that it is gone
            each.dispose(None, settled=True)
    second.finish()


def test_a_long_map_is_taken_in_steps_and_new_messages_come_behind_all_of_it() -> None:
    r = RoamingReceiver(network=Network(AddressConfig(pattern="q", window=500)))
    sent = []
    while len(sent) < 200:
        sent.append(r.producer.send(r.sender, message(len(sent))))
        r.take()
        if not r.sender.credit:
            r.give(100)
    tags = [r.tag(number) for number in range(200)]
    r.lose()
    r.back({tag: Accepted() if number % 2 else ALL for number, tag in enumerate(tags)}, credit=1000)
    assert [each.outcome for each in sent] == [None, Accepted()] * 100
    assert [each.delivery_tag for each in r.resumed] == tags
    r.producer.send(r.sender, message("new"))
    assert [each.payload for each in r.take()] == [message("new")]
    r.finish()


def test_a_link_that_is_lost_while_its_map_is_taken_loses_nothing() -> None:
    r = RoamingReceiver()
    sent = r.send(60)
    tags = [r.tag(number) for number in range(60)]
    r.lose()
    r.begin()
    core = r.network.core
    # The attach and the loss in one turn: the steps in between are to come.
    octets = frame(r.attaching({tag: Accepted() for tag in tags}))
    core.receive(r.end.record, octets, r.network.now)
    core.receive_eof(r.end.record, r.network.now)
    r.network.run()
    assert [each.outcome for each in sent] == [Accepted()] * 60
    assert r.suspended == 1
    assert as_map(r.back(dict.fromkeys(tags, Accepted()))) == {}
    r.finish()


@pytest.mark.parametrize("where", ["here", "there"])
def test_a_remote_sender_gets_no_credit_for_a_receiver_that_is_away(where: str) -> None:
    mesh = World("AB", [("A", "B")])
    r = RoamingReceiver(network=mesh["B"])
    producer = mesh["A"].client()
    link = producer.sender("q")
    mesh.advance(0.5)
    assert link.credit > 0
    of = producer.send(link, message("far"))
    mesh.advance(0.5)
    r.take()
    tag = r.tag()
    r.lose()
    mesh.advance(0.5)
    assert of.said == []
    later = producer.send(link, message("later")) if link.credit else None
    mesh.advance(0.5)
    assert later is None or later.outcome == Released()
    if where == "here":
        r.back({tag: Accepted()})
        mesh.advance(0.5)
        assert of.outcome == Accepted()
    else:
        mesh.advance(31)
        assert of.outcome == FAILED
