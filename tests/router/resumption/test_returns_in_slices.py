"""Receivers that come back with thousands of deliveries, or are lost again meanwhile: others get turns in between."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.amqp.standard.messaging import Source
from amqpmesh.router.amqp.standard.performatives import Attach, Detach, Transfer
from amqpmesh.router.delivery.settlement import receiver_said
from amqpmesh.router.incremental import SENT_A_TURN, STEPS_A_TURN
from amqpmesh.router.resumption import returning_receivers
from amqpmesh.router.resumption.suspended_termini import OF_DELIVERY
from tests.support.peers.bystanders import Intruder
from tests.support.peers.roaming_receiver import ALL, CLOSE, FAILED, FIRST, Map, RoamingReceiver
from tests.support.peers.scripted import Script, attached, flow, frame
from tests.support.worlds.network import Network

COUNT = 3 * SENT_A_TURN

#: Deliveries that one step of the router's work moves, at most, and that the turn of an attach does.
A_STEP = 10
A_TURN = A_STEP * STEPS_A_TURN


class Slow(RoamingReceiver):
    """A receiver with many deliveries, at a router that does one step at a time."""

    def __init__(self) -> None:
        network = Network()
        super().__init__(sent=FIRST, network=network)
        self.give(COUNT)
        self.of = self.send(COUNT)
        self.tags = [self.tag(number) for number in range(COUNT)]
        self.core, self.context = network.core, network.core.context
        self.lose()
        self.ends = []
        for _ in range(2):
            self.begin()
            self.ends.append(self.end)

    def begin(self) -> None:
        self.end = Intruder(self.network, window=2**16, most_sent=2**16)
        self.peer = self.end.peer
        self.peer.open()
        self.peer.begin(incoming_window=2**16)
        self.count = self.transfers = 0

    def come(self, unsettled: Map) -> None:
        """Come back over the next connection. The router does not more than the turn that reads this."""
        self.end = self.ends.pop(0)
        self.peer = self.end.peer
        self.came.clear()
        octets = frame(self.attaching(unsettled)) + frame(flow(handle=0, link_credit=COUNT, delivery_count=0))
        assert self.core.receive(self.end.record, octets, self.network.now)

    def finish(self) -> None:
        for end in self.ends:
            end.leave()
        super().finish()

    def step(self) -> None:
        """Have the router do one step of what it has put off."""
        looks = iter((False, True))
        self.core.work(self.network.now, lambda: next(looks))

    @property
    def undecided(self) -> int:
        """The deliveries whose senders have heard nothing."""
        return self.context.in_flight


def test_what_is_resumed_leaves_in_portions() -> None:
    r = Slow()
    r.come(dict.fromkeys(r.tags, ALL))
    router = Script(lambda _: None, lambda: r.core.data_to_send(r.end.record, r.network.now))
    portions = [router.hear()]
    while r.context.chores:
        r.step()
        r.core.sent(r.end.record, r.network.now)
        portions.append(router.hear())
    assert [type(each.performative) for each in portions[0]].count(Attach) == 1
    came = [[each for each in portion if isinstance(each.performative, Transfer)] for portion in portions]
    assert max(map(len, came)) == SENT_A_TURN
    assert sum(map(len, came)) == COUNT
    tags = [each.performative.delivery_tag for portion in came for each in portion]  # type: ignore[union-attr]  # transfers
    assert tags == r.tags
    r.network.run()
    r.finish()


@pytest.mark.parametrize("then", ["it is back at once", "it is back later", "it stays away", "it has detached"])
def test_a_link_that_is_lost_while_deliveries_follow_it_keeps_them_in_steps(then: str) -> None:
    r = Slow()
    r.come(dict.fromkeys(r.tags, Accepted()))
    record = r.end.record
    assert r.undecided >= COUNT - A_TURN
    before = r.undecided
    if then == "it has detached":
        assert r.core.receive(record, frame(Detach(handle=0)), r.network.now)
        assert not r.undecided, "its session is there still: all at once"
    r.core.receive_eof(record, r.network.now)
    if then != "it has detached":
        assert r.undecided >= before - A_TURN, "the loss moves no more than its own steps"
    if then == "it is back at once":
        assert r.undecided
        r.come(dict.fromkeys(r.tags, Accepted()))
        assert not r.undecided
    elif then == "it is back later":
        while r.context.chores:
            before = r.undecided
            r.step()
            assert before - r.undecided <= A_STEP
        r.come(dict.fromkeys(r.tags, Accepted()))
    else:
        r.network.advance(31)
    r.network.run()
    assert [each.outcome for each in r.of] == [Accepted()] * COUNT
    assert r.network.relays == 0
    r.finish()


def test_a_link_that_is_given_up_while_deliveries_follow_it_ends_them() -> None:
    r = Slow()
    r.come(dict.fromkeys(r.tags, ALL))
    r.core.receive_eof(r.end.record, r.network.now)
    termini = r.context.termini
    while not (kept := list(termini.kept())):
        r.step()
    assert [each.octets > OF_DELIVERY * COUNT for each in kept] == [True], "those that follow count, too"
    termini.end(kept[0], "as there is no room")
    r.network.run()
    assert [each.outcome for each in r.of] == [FAILED] * COUNT
    assert r.network.relays == 0
    r.finish()


def test_a_link_that_is_lost_before_the_first_step_of_its_return_leaves_nothing() -> None:
    """It has no deliveries, its map says that it is incomplete, and another link has used up the steps of the turn."""
    r = Slow()
    second = r.ends.pop(0)
    other = attached(
        Role.RECEIVER, "other", name="other", handle=1, source=Source(address="other", expiry_policy=CLOSE, timeout=30)
    )
    second.peer.write(other)
    second.leave()
    nodes = r.context.nodes.values()
    assert [each.name for each in nodes if each.returning] == ["q", "other"]
    r.end = r.ends.pop(0)
    r.peer = r.end.peer
    incomplete = replace(other, unsettled={}, incomplete_unsettled=True)
    octets = [frame(each) for each in (r.attaching(dict.fromkeys(r.tags, ALL)), incomplete, Detach(handle=1))]
    r.core.receive(r.end.record, b"".join(octets), r.network.now)
    r.core.receive_eof(r.end.record, r.network.now)
    r.network.advance(31)
    r.network.run()
    assert [each.name for each in nodes if each.returning] == []
    r.finish()


@pytest.mark.parametrize("then", ["it stays", "it is lost"])
@pytest.mark.parametrize("number", [5, COUNT // 2, COUNT - 1], ids=["in the turn of the attach", "amid", "the last"])
def test_an_internal_error_costs_no_delivery_but_that_which_it_was_about(
    number: int, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Args: number: of the delivery."""
    r = Slow()
    numbers = itertools.count()

    def said(*args: Any, **named: Any) -> None:
        if next(numbers) == number:
            raise LookupError
        receiver_said(*args, **named)

    def work() -> None:
        for _ in range(4 * COUNT):
            if r.context.chores:
                r.step()
        assert not r.context.chores, "nothing turns for ever"

    monkeypatch.setattr(returning_receivers, "receiver_said", said)
    with pytest.raises(LookupError):
        r.come(dict.fromkeys(r.tags, Accepted()))
        work()
    if then == "it is lost":
        r.core.receive_eof(r.end.record, r.network.now)
        r.network.now += 31
        r.core.handle_timer(r.network.now)
    work()
    r.network.run()
    heard = [each.outcome for each in r.of]
    assert heard[:number] + heard[number + 1 :] == [Accepted()] * (COUNT - 1)
    r.finish()
    assert [each.outcome for each in r.of].count(None) == 0
