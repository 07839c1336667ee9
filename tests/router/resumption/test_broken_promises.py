"""Links that are given up before their time, and changes of the limits: what was promised is kept, or null says so."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from amqpmesh.router.amqp.codec.types import Described, Extension, Symbol
from amqpmesh.router.amqp.codec.values import encode
from amqpmesh.router.amqp.standard.delivery_states import Accepted, DeliveryState, Modified
from amqpmesh.router.amqp.standard.messaging import Target
from amqpmesh.router.config.resumption import ResumptionConfig
from amqpmesh.router.kernel import Budget
from amqpmesh.router.management.changed_config import put_in_force
from tests.router.resumption.test_returning_senders import WHOLE, Roaming, as_map, tag
from tests.support.peers.bystanders import Intruder
from tests.support.peers.roaming_receiver import FAILED, RoamingReceiver
from tests.support.worlds.hogs import Hog
from tests.support.worlds.network import Network


@pytest.mark.parametrize("why", ["deliveries", "memory"])
def test_a_link_that_is_given_up_is_counted_and_logged_and_answered_by_null(
    why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "amqpmesh")
    limits = ResumptionConfig(unsettled=2 if why == "deliveries" else 100)
    r = Roaming(network=Network(memory=2**20, resumption=limits))
    r.send(3)
    context = r.network.core.context
    hog = Hog(r.network, 2**21 - 2_000) if why == "memory" else None  # of the same user
    r.lose()
    if hog is not None:
        assert hog.is_closed
        hog.leave()
    assert (context.termini.evicted, context.termini.suspended_number) == (1, 0)
    (line,) = [each for each in caplog.messages if each.startswith("link expired")]
    assert "there is no room" in line
    assert r.back({tag(number): None for number in range(3)}).unsettled is None
    assert context.termini.counts.in_doubt == 3
    for each in r.arrivals:
        each.accept()
    r.finish()
    assert not context.budget.used


def test_as_long_as_there_is_memory_nothing_is_given_up() -> None:
    r = Roaming()
    r.send(3)
    context = r.network.core.context
    others = Budget(context.budget.limit, context.budget)
    others.add(context.budget.limit)
    r.lose()
    others.add(-others.used)
    assert (context.termini.evicted, context.termini.suspended_number) == (0, 1)
    assert as_map(r.back({tag(number): None for number in range(3)})) == {tag(number): WHOLE for number in range(3)}
    for each in r.arrivals:
        each.accept()
    r.finish()


def test_a_receiver_that_is_given_up_is_answered_by_null_and_its_senders_hear_that_it_is_gone() -> None:
    r = RoamingReceiver(network=Network(resumption=ResumptionConfig(unsettled=2)))
    sent = r.send(3)
    tags = [r.tag(number) for number in range(3)]
    r.lose()
    r.network.run()
    assert [each.outcome for each in sent] == [FAILED] * 3
    assert r.back(dict.fromkeys(tags)).unsettled is None
    r.finish()


@pytest.mark.parametrize("why", ["given up", "begun anew"])
def test_a_receiver_that_names_a_part_of_its_deliveries_is_answered_by_null_too(why: str) -> None:
    r = RoamingReceiver(network=Network(resumption=ResumptionConfig(unsettled=2)))
    r.send(3)
    first = r.tag()
    r.lose()
    if why == "begun anew":
        r.network = Network()
    r.network.run()
    answer = r.back({first: Accepted()}, incomplete_unsettled=True)
    assert (answer.unsettled, answer.incomplete_unsettled) == (None, False)


@pytest.mark.parametrize("changed", [{"timeout": 0.0}, {"links": 0}, {"links_per_user": 0}])
def test_a_change_of_the_limits_is_for_new_links_and_breaks_no_promise(changed: dict[str, float]) -> None:
    r = Roaming()
    (arrival,) = r.send()
    r.lose()
    core = r.network.core
    limits = replace(core.context.config.resumption, **changed)
    put_in_force(core, replace(core.context.config, resumption=limits), r.network.now)
    r.network.run()
    answer = r.back({tag(0): None})
    assert as_map(answer) == {tag(0): WHOLE}
    assert isinstance(answer.target, Target)
    assert answer.target.timeout == 0
    r.resume(1)
    arrival.accept()
    (said,) = r.heard()
    assert said.first == 1
    r.finish()


class Framed(Roaming):
    """A sender whose first connection takes frames of some size."""

    def __init__(self, frame_size: int) -> None:
        self.sizes = [4096, frame_size]
        super().__init__()

    def begin(self) -> None:
        self.end = Intruder(self.network)
        self.peer = self.end.peer
        self.peer.open(max_frame_size=self.sizes.pop())
        self.peer.begin()


LONG = Extension(encode(Described(Symbol("x:done:list"), "n" * 600)))


@pytest.mark.parametrize(("frame_size", "outcome"), [(512, Modified(delivery_failed=True)), (4096, LONG)])
def test_an_outcome_that_comes_while_a_sender_is_away_is_one_that_its_frames_had_room_for(
    frame_size: int, outcome: DeliveryState
) -> None:
    r = Framed(frame_size)
    r.send()
    r.lose()
    r.arrivals[0].dispose(LONG, settled=True)
    r.network.run()
    assert as_map(r.back({tag(0): None})) == {tag(0): outcome}
    r.resume(0)
    r.finish()
