"""Anonymous senders to multicasts over routers, on the fast path: by the route of the ingress, as producers."""

from __future__ import annotations

from itertools import pairwise
from unittest.mock import patch

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.standard.delivery_states import Accepted, DeliveryState, Modified, Rejected, Released
from amqpmesh.router.config.file import AddressConfig
from amqpmesh.router.context import AT_ONCE
from tests.router.delivery.test_fast_routes import Events, decided, events, send
from tests.support.worlds.meshes import World
from tests.support.worlds.network import Client, Sent, message

__all__ = ["events"]

NEWS = AddressConfig(pattern="news/#", distribution=Distribution.MULTICAST)


class Spread:
    """A multicast with a receiver at each of some routers, and an anonymous sender at A that has sent a message."""

    def __init__(self, routers: str, at: str, credit: int = 100) -> None:
        """Args: routers: in a line. at: those with a receiver."""
        self.mesh = World(routers, pairwise(routers), NEWS)
        self.consumers: list[Client] = [self.mesh[each].client(window=1000) for each in at]
        self.receivers = [each.receiver("news/a", credit=credit) for each in self.consumers]
        self.mesh.advance(0.2)
        self.producer = self.mesh["A"].client(window=1000)
        self.link = self.producer.sender(None)
        self.send(2)
        self.mesh.advance(0.2)
        self.answer(2, Accepted())

    def send(self, count: int, *, settled: bool = False) -> list[Sent]:
        """Send messages to the address."""
        bodies = [message(str(number), to="news/a") for number in range(count)]
        return send(self.producer, self.link, *bodies, settled=settled)

    def answer(self, count: int, outcome: DeliveryState | None) -> None:
        """Have all receivers answer so many deliveries. Args: outcome: None: they are settled."""
        for consumer in self.consumers:
            arrived = consumer.take(count)
            assert [bytes(each.payload) for each in arrived] == [message(str(n), to="news/a") for n in range(count)]
            for each in arrived:
                if outcome is not None:
                    each.dispose(outcome, settled=True)
        self.mesh.advance(0.2)


@pytest.mark.parametrize(("routers", "at"), [("AB", "AB"), ("AB", "B"), ("AB", "AABB"), ("ABC", "ABC"), ("ABC", "C")])
@pytest.mark.parametrize("outcome", [Accepted(), Released(), Rejected(), Modified(delivery_failed=True)])
def test_after_its_first_all_deliveries_are_relayed_to_each_receiver_with_their_outcomes(
    events: Events, routers: str, at: str, outcome: DeliveryState
) -> None:
    spread = Spread(routers, at)
    sent: list[Sent] = []
    assert decided(events, lambda: sent.extend(spread.send(20))) == 0
    spread.answer(20, outcome)
    assert [each.outcome for each in sent] == [outcome] * 20
    spread.mesh.leave()


def test_presettled_deliveries_are_relayed_too(events: Events) -> None:
    spread = Spread("AB", "AB")
    assert decided(events, lambda: spread.send(20, settled=True)) == 0
    spread.answer(20, None)
    spread.mesh.leave()


def test_receivers_get_all_in_order_though_their_credit_is_small_and_is_divided_with_producers() -> None:
    spread = Spread("AB", "AB", credit=4)
    attached = spread.mesh["A"].client(window=1000)
    beside = attached.sender("news/a")
    spread.mesh.advance(0.2)
    got: list[list[bytes]] = [[], []]
    expected = 0
    for _ in range(40):
        spread.send(2)
        expected += 2
        if beside.credit > 0:
            attached.send(beside, message("beside"))
            expected += 1
        spread.mesh.advance(0.1)
        for number, (consumer, receiver) in enumerate(zip(spread.consumers, spread.receivers, strict=True)):
            arrived = consumer.take()
            for each in arrived:
                each.accept()
            got[number] += [bytes(each.payload) for each in arrived]
            receiver.flow(4)
        spread.mesh.advance(0.1)
    assert got[0] == got[1]
    assert len(got[0]) == expected
    spread.mesh.leave()


def test_an_ingress_without_a_producer_stays_while_it_is_named_and_is_forgotten_afterwards(events: Events) -> None:
    spread = Spread("AB", "AB")
    local = spread.mesh["A"].core.context.nodes.find("", "news/a")
    assert local is not None
    ingress = local.ingress
    assert ingress is not None
    for _ in range(10):
        spread.mesh.advance(5.0)
        assert decided(events, lambda: spread.send(2)) == 0
        spread.answer(2, Accepted())
    assert local.ingress is ingress
    spread.mesh.advance(60.0)
    assert local.ingress is None
    sent = spread.send(2)
    spread.mesh.advance(0.2)
    spread.answer(2, Accepted())
    assert [each.outcome for each in sent] == [Accepted()] * 2
    spread.mesh.leave()


def test_names_of_multicasts_that_nobody_receives_keep_no_ingress() -> None:
    spread = Spread("AB", "AB")
    sent = send(spread.producer, spread.link, *[message(to=f"news/{number}") for number in range(50)])
    assert {type(each.outcome) for each in sent} == {Released}
    assert len(spread.mesh["A"].core.context.nodes) == 1
    spread.mesh.leave()


def test_a_receiver_that_comes_or_goes_is_followed(events: Events) -> None:
    spread = Spread("AB", "B")
    late = spread.mesh["A"].client(window=1000)
    receiver = late.receiver("news/a", credit=100)
    spread.mesh.advance(0.2)
    assert decided(events, lambda: spread.send(3)) == 0
    spread.answer(3, Accepted())
    assert len(late.take()) == 3
    receiver.detach()
    spread.mesh.advance(0.2)
    sent = spread.send(3)
    spread.answer(3, Accepted())
    assert [each.outcome for each in sent] == [Accepted()] * 3
    spread.mesh.leave()


def test_ingresses_that_are_forgotten_at_the_same_time_are_so_in_steps() -> None:
    spread = Spread("AB", "AB")
    names = [f"news/{number}" for number in range(100)]
    for name in names:
        spread.consumers[1].receiver(name)
    spread.mesh.advance(0.2)
    core = spread.mesh["A"].core
    send(spread.producer, spread.link, *(message(to=name) for name in names), settled=True)  # no time passes
    assert len(spread.consumers[1].take()) == 100
    handle, steps = core.handle_timer, list[int]()

    def ingresses() -> int:
        return sum(node.ingress is not None for node in core.context.nodes.values())

    def counted(now: float) -> None:
        before = ingresses()
        handle(now)
        steps.append(before - ingresses())

    with patch.object(core, "handle_timer", counted):
        spread.mesh.advance(60.0)
    assert ingresses() == 0
    assert sum(steps) > 100
    assert max(steps) <= AT_ONCE
    spread.mesh.leave()


def test_the_first_messages_to_many_multicasts_take_several_turns() -> None:
    spread = Spread("AB", "AB")
    names = [f"news/{number}" for number in range(50)]
    for name in names:
        spread.consumers[1].receiver(name)
    spread.mesh.advance(0.2)
    node, producer = spread.mesh["A"], spread.producer
    with patch.object(spread.mesh, "run"):  # the router gets all of them at once
        send(producer, spread.link, *(message(to=name) for name in names), settled=True)
    data, turns = producer.engine.data_to_send(node.now), 1
    while not node.core.receive(producer.record, data, node.now):
        data, turns = b"", turns + 1
    assert turns == 3
    spread.mesh.run()
    assert len(spread.consumers[1].take()) == 50
    spread.mesh.leave()
