"""The window of a transit lane: how much of all anonymous senders may be between two routers at a time."""

from __future__ import annotations

from itertools import pairwise

import pytest

from amqpmesh.router.amqp.link import Sender
from amqpmesh.router.config.mesh import MeshConfig
from amqpmesh.router.model.lane import LaneKind
from tests.router.delivery.test_fast_routes import Events, decided, events
from tests.support.worlds.meshes import World
from tests.support.worlds.network import Client, message

__all__ = ["events"]


class Clients:
    """Anonymous senders at the first router of a line, and a receiver of all that they send at the last."""

    def __init__(self, routers: str, senders: int, **limits: int) -> None:
        """Args: limits: of the mesh."""
        self.mesh = World(routers, pairwise(routers), mesh=MeshConfig(insecure=True, **limits))  # type: ignore[arg-type]
        self.consumer = self.mesh[routers[-1]].client(window=4096)
        self.consumer.receiver("q", credit=1000)
        self.producers = [self.mesh[routers[0]].client(window=1000) for _ in range(senders)]
        self.links: list[tuple[Client, Sender]] = [(each, each.sender(None)) for each in self.producers]
        self.mesh.advance(0.2)
        self.sent = 0
        self.send(1)
        assert self.arrive() == senders

    def send(self, each: int) -> None:
        """Send messages by each sender, in one batch."""
        for client, link in self.links:
            for _ in range(each):
                client.send(link, message(str(self.sent), to="q"))
                self.sent += 1
        self.mesh.run()

    def arrive(self) -> int:
        """Accept what has arrived. Returns: how many."""
        arrived = self.consumer.take()
        for each in arrived:
            each.accept()
        self.mesh.advance(0.2)
        return len(arrived)

    def waiting(self, router: str) -> int:
        """Return how many messages wait at a router for the transit lane to the next one."""
        return sum(each.waiting.size for each in self.mesh[router].mesh.routes.nodes())


@pytest.mark.parametrize("routers", ["AB", "ABC"])
def test_the_batches_of_several_senders_leave_without_a_decision(events: Events, routers: str) -> None:
    clients = Clients(routers, senders=6)
    assert decided(events, lambda: clients.send(60)) == 0
    assert clients.arrive() == 360
    clients.mesh.leave()


def test_the_credit_of_a_transit_lane_is_the_neighbours_setting() -> None:
    clients = Clients("AB", senders=1, transit_window=7)
    (record,) = clients.mesh["A"].mesh.neighbours
    lanes = [each for each in record.outgoing if each.lane is not None and each.lane.kind is LaneKind.TRANSIT]
    assert [each.endpoint.credit for each in lanes] == [6], "one is used"
    clients.mesh.leave()


def test_no_more_than_the_window_waits_for_a_router_that_reads_nothing() -> None:
    clients = Clients("ABC", senders=3, transit_window=10)
    (wire,) = clients.mesh.between("B", "C")
    wire.frozen = True
    clients.send(50)
    assert clients.waiting("B") == 10
    assert clients.waiting("A") == 150 - 10 - 7, "seven are on their way to C, which has had three before"
    wire.frozen = False
    clients.mesh.advance(0.2)
    assert clients.arrive() == 150
    clients.mesh.leave()
