"""Lanes between a router and one with workers: which worker is waited for, and until when."""

from __future__ import annotations

from itertools import combinations

import pytest

from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified
from tests.support.worlds.frayed_wires import LATE, RESUME, SECOND
from tests.support.worlds.meshes import World

IN_DOUBT = Modified(delivery_failed=True)
WORKERS = ("B.1", "B.2")


class Story:
    """A sender and a receiver at each end of the lanes between A and the first worker of B; A connects to that one."""

    def __init__(self) -> None:
        self.world = World(("A", *WORKERS), combinations(WORKERS, 2), mesh=RESUME)
        self.join("B.1")
        consumers = {each: self.world[each].client() for each in ("A", "B.1")}
        for router, each in consumers.items():
            each.receiver(f"to {router}", credit=10, rcv=SECOND)
        self.world.advance(0.5)
        self.sent = []
        for router, far in (("A", "B.1"), ("B.1", "A")):
            producer = self.world[router].client()
            link = producer.sender(f"to {far}", rcv=SECOND)
            self.world.advance(0.5)
            self.sent.append(producer.send(link))
        self.world.advance(0.5)
        self.came = [each.take(1)[0] for each in consumers.values()]

    def join(self, worker: str) -> None:
        """Connect A to a worker."""
        self.world.join("A", worker)
        self.world.advance(2.0)

    def silence(self) -> None:
        """Let the path between A and the first worker stand still until both have noticed."""
        (wire,) = self.world.between("A", "B.1")
        wire.frozen = True
        self.world.advance(4.0)

    def awaited(self, router: str) -> list[str]:
        """Return the neighbours whose lanes a router keeps without a connection."""
        return self.world[router].mesh.routes.lane_links.resumed.awaited()

    def heard(self) -> list[object]:
        """Return the outcomes of both messages; None: none yet."""
        self.world.run()
        return [each.outcome for each in self.sent]


def test_a_worker_is_awaited_until_there_is_a_connection_to_it() -> None:
    story = Story()
    assert story.awaited("A") == story.awaited("B.1") == []
    story.silence()
    assert (story.awaited("A"), story.awaited("B.1"), story.awaited("B.2")) == (["B.1"], ["A"], [])
    story.join("B.2")
    assert (story.awaited("A"), story.awaited("B.1"), story.heard()) == (["B.1"], ["A"], [None, None])
    story.join("B.1")
    assert story.awaited("A") == story.awaited("B.1") == []
    for each in story.came:
        each.accept()
    assert story.heard() == [Accepted(), Accepted()]
    story.world.leave()


def test_it_is_awaited_no_longer_than_lanes_are_kept() -> None:
    story = Story()
    story.silence()
    story.join("B.2")
    story.world.advance(LATE)
    assert story.awaited("A") == story.awaited("B.1") == []
    assert story.heard() == [IN_DOUBT, IN_DOUBT]
    story.world.leave()


@pytest.mark.parametrize(("anew", "other"), [("A", "B.1"), ("B.1", "A")])
def test_one_that_begins_anew_and_is_connected_to_another_one_is_awaited_no_longer(anew: str, other: str) -> None:
    story = Story()
    story.silence()
    mine = story.sent[0 if other == "A" else 1]
    story.world.kill(anew)
    assert (story.awaited(other), mine.outcome) == ([anew], None)
    story.world.start(anew)
    if anew != "A":
        story.world.join(*WORKERS)
    story.join("B.2")
    assert (story.awaited(other), mine.outcome) == ([], IN_DOUBT)
