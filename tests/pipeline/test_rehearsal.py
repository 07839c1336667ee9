"""Plans tried on simulated routers: their traffic, compared with the prediction."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from amqpmesh.pipeline import rehearsal
from amqpmesh.pipeline.graphs import Graph
from amqpmesh.pipeline.rehearsal import rehearsed
from amqpmesh.router.management.cost_plan import Change
from tests.pipeline.test_routing import Edges, Flows, flows_of, grid

#: A reaches C by B, and by D if that costs no more.
SQUARE = {
    edge: cost
    for (one, other), cost in {("A", "B"): 1, ("B", "C"): 1, ("A", "D"): 2, ("C", "D"): 2}.items()
    for edge in ((one, other), (other, one))
}
FLOWS = [("A", "C", 900.0), ("B", "C", 100.0), ("A", "Z", 5.0)]

FEW = 600
"""Messages for what does not depend on how many there are: each costs a millisecond."""


def test_costs_are_changed_while_messages_go_and_routers_do_what_was_predicted() -> None:
    changes = [Change("A", "B", 1, 3)]  # then both ways cost 4
    found = rehearsal.rehearsal(Graph(SQUARE), FLOWS, changes)
    assert found.wrong == ()
    assert found.messages > rehearsal.MESSAGES
    assert found.hops == 12 + 2, "of twelve pairs of routers A, to C, and B, to D, have a choice"
    assert found.deviation < 0.4
    verdict = rehearsed(Graph(SQUARE), FLOWS, changes)
    assert verdict.passed
    assert f"{found.messages:,} of {found.messages:,} arrived" in verdict.sentence


def test_without_a_choice_links_carry_exactly_what_was_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "MESSAGES", FEW)
    found = rehearsal.rehearsal(Graph(SQUARE), FLOWS, [Change("A", "B", 1, 9)])
    assert (found.wrong, found.deviation) == ((), 0.0)


@pytest.mark.parametrize("seed", range(2))
def test_what_goes_by_many_ways_is_as_predicted_but_for_chance(seed: int) -> None:
    chance = random.Random(seed)
    edges, flows = grid(chance, 8, 16), flows_of(chance, 8, 20)
    changed = chance.sample(sorted(edges), 4)
    changes = [Change(*edge, edges[edge], edges[edge] + chance.randint(1, 2)) for edge in changed]
    assert rehearsed(Graph(edges), flows, changes).passed


def test_a_plan_of_another_mesh_does_not_pass() -> None:
    verdict = rehearsed(Graph(SQUARE), FLOWS, [Change("A", "B", 4, 9)])
    assert (verdict.passed, verdict.sentence[:47]) == (False, "A -> B costs 1 now, neither 4 nor 9: the plan w")


def test_what_routers_do_otherwise_than_was_predicted_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    async def put_nothing(*_: object) -> None:
        """Return a cost that is not changed."""

    monkeypatch.setattr(rehearsal, "set_cost", put_nothing)
    monkeypatch.setattr(rehearsal, "MESSAGES", FEW)
    found = rehearsal.rehearsal(Graph(SQUARE), FLOWS, [Change("A", "B", 1, 9)])
    assert "A sends to C by B, and not by D" in found.wrong
    assert any(each.startswith("A -> B carried ") for each in found.wrong)
    verdict = found.verdict
    assert not verdict.passed
    assert verdict.sentence == f"{found.wrong[0]} ({len(found.wrong) - 1} more)"


def test_what_is_lost_while_costs_change_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    set_cost = rehearsal.set_cost

    async def cutting(standing: object, cost: int, ask: object) -> None:
        for mesh in meshes:
            mesh.reset("B", "C")
        await set_cost(standing, cost, ask)  # type: ignore[arg-type]

    class Kept(rehearsal.Mesh):
        def __init__(self) -> None:
            super().__init__()
            meshes.append(self)

    meshes: list[Kept] = []
    monkeypatch.setattr(rehearsal, "MESSAGES", FEW)
    monkeypatch.setattr(rehearsal, "Mesh", Kept)
    monkeypatch.setattr(rehearsal, "set_cost", cutting)
    found = rehearsal.rehearsal(Graph(SQUARE), FLOWS, [Change("A", "D", 2, 3)])
    assert any(each.startswith("a message from ") for each in found.wrong)


@pytest.mark.parametrize(
    ("edges", "changes", "reason"),
    [
        (SQUARE, [], "there is nothing to be changed"),
        ({(f"R{a}", f"R{b}"): 1 for a in range(70) for b in (a - 1, a + 1)}, [Change("R1", "R2", 1, 2)], "72 routers"),
    ],
)
def test_what_is_not_tried_says_why(edges: Edges, changes: Sequence[Change], reason: str) -> None:
    flows: Flows = []
    verdict = rehearsed(Graph(edges), flows, changes)
    assert verdict.passed is None
    assert verdict.sentence.startswith(reason)
