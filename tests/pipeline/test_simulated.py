"""All jobs on the records of a simulated mesh whose traffic, faults and clocks are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock

from amqpmesh.pipeline.jobs import JOBS
from amqpmesh.pipeline.work import Done, Work
from amqpmesh.router.config.file import TelemetryConfig
from amqpmesh.router.management.cost_plan import from_json
from amqpmesh.topology.simulation.mesh import Mesh

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# All jobs, one after the other.
pytestmark = pytest.mark.slow

LATENCY = 0.005
ROUND = 0.02
SKEW = {"B": 3.0, "C": -1.5}
#: address, ingress, egress, way, and how many: a square A-B-C-D, and E behind C.
FLOWS = (
    ("orders", "A", "C", "ABC", 40),
    ("orders", "D", "C", "DC", 25),
    ("news", "B", "E", "BCE", 30),
    ("local", "A", "A", "A", 10),
)
SIZE = 100


async def square(mesh: Mesh) -> None:
    for each in "ABCDE":
        await mesh.router(each)
    for router, seconds in SKEW.items():
        mesh.step_clock(router, seconds)
    for one, other, cost in (("A", "B", 1), ("B", "C", 1), ("C", "D", 1), ("A", "D", 5), ("C", "E", 1)):
        mesh.link(one, other, cost=cost)
    await mesh.settled()
    await trio.sleep(3.0)  # the clocks were set before: what is recorded from now on has them


async def send(mesh: Mesh, address: str, ingress: str, egress: str, count: int) -> None:
    """So many messages, one after the other, each of which is accepted."""
    async with (
        mesh[egress].receiver(address, credit=20) as receiver,
        mesh[ingress].sender(address) as sender,
        trio.open_nursery() as nursery,
    ):

        async def take() -> None:
            for _ in range(count):
                (await anext(aiter(receiver))).accept()

        nursery.start_soon(take)
        for _ in range(count):
            await sender.send(b"x" * SIZE)


async def known(mesh: Mesh) -> None:
    """Return the flows one by one: orders has two receivers at one router, and the cheapest takes all."""
    for address, ingress, egress, _, count in FLOWS:
        await send(mesh, address, ingress, egress, count)
    await trio.sleep(1.0)  # then routers leave, and the graph is another one


def run(directory: Path, program: Callable[[Mesh], Awaitable[None]]) -> None:
    """Run a program in virtual time on the square, whose routers record."""

    async def main() -> None:
        async with Mesh(seed=3, latency=LATENCY, telemetry=TelemetryConfig(directory=directory, counts=1.0)) as mesh:
            await square(mesh)
            await program(mesh)

    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.fixture(scope="module")
def work(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Work:
    """All jobs, done on what the known flows have left."""
    root = tmp_path_factory.mktemp("simulated")
    run(root / "events", known)
    work = Work(spark, (str(root / "events"),), str(root / "out"))
    for job in JOBS.values():
        assert isinstance(job.load()(work), Done)
    return work


def test_every_delivery_took_the_way_that_it_is_known_to_have_taken(work: Work) -> None:
    rows = work.read("deliveries/attempts").where("address is not null and address not like '$%'").collect()
    found = Counter((row["address"], row["ingress"], row["egress"], "".join(row["path"])) for row in rows)
    assert found == {(address, ingress, egress, way): count for address, ingress, egress, way, count in FLOWS}
    assert {(row["outcome"], row["complete"], row["attempt"], row["settled"]) for row in rows} == {
        ("accepted", True, 1, False)
    }
    assert len({row["size"] for row in rows}) == 1
    assert len({bytes(row["key"]) for row in rows}) == len(rows)


def test_the_matrix_is_what_was_sent(work: Work) -> None:
    rows = work.read("traffic/matrix").where("address not like '$%'").collect()
    found: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        found[row["address"], row["ingress"], row["egress"]] += row["messages"]
    assert found == {(address, ingress, egress): count for address, ingress, egress, _, count in FLOWS}
    sizes = {row["bytes"] / row["messages"] for row in rows}
    assert len(sizes) == 1
    assert SIZE <= sizes.pop() <= SIZE + 20


def test_clocks_are_corrected_within_the_error_that_is_told_and_latencies_are_those_of_the_links(work: Work) -> None:
    offsets = work.read("latency/clocks").where("is_reference and problem is null").collect()
    assert {row["router"] for row in offsets} == set("ABCDE")
    for row in offsets:
        true = (SKEW.get(row["router"], 0.0) - SKEW.get(row["against"], 0.0)) * 1e9
        assert abs(row["offset_ns"] - true) <= row["error_ns"] + 1000, row
    for row in work.read("latency/addresses").where("address in ('orders', 'news', 'local')").collect():
        hops = {"orders": (1, 2), "news": (2, 2), "local": (0, 0)}[row["address"]]
        error = row["error_ns"] + 1000
        assert row["unknown"] == 0
        assert hops[0] * LATENCY * 1e9 - error <= row["p50_ns"] <= (hops[1] * (LATENCY + 0.001)) * 1e9 + error, row


def test_nothing_was_lost(work: Work) -> None:
    kinds = {row["kind"] for row in work.read("losses/findings").collect()}
    assert not kinds & {"broken", "loop", "repeated", "storm", "slow"}


def test_what_breaks_is_what_the_graph_says(work: Work) -> None:
    rows = {row["failure"]: row for row in work.read("contingency").where("kind != 'pair'").collect()}
    assert set(rows) == {"A - B", "B - C", "C - D", "A - D", "C - E", *"ABCDE"}
    assert rows["C - E"]["addresses"] == ["news"]
    assert rows["C - E"]["lost_messages"] == 30
    assert rows["B - C"]["addresses_cut_off"] == 0  # A goes round by D, B by A and D
    assert rows["B - C"]["moved_messages"] == 70
    assert rows["A - D"]["moved_messages"] == rows["A - D"]["lost_messages"] == 0
    assert set(rows["C"]["addresses"]) == {"orders", "news"}
    worst = min(rows.values(), key=lambda row: row["rank"])
    assert worst["failure"] == "C"


def test_the_plan_lets_two_ways_share_what_one_carries_and_was_checked(work: Work) -> None:
    plan = from_json((Path(work.out) / "plan" / "plan.json").read_bytes())
    assert plan.refusal is None
    (change,) = plan.changes  # A - B costs more, or A - D less: then half of what goes to C goes each way
    assert (change.router, change.before) in {("A", 1), ("A", 5)}
    assert (plan.before.router, plan.before.neighbour) == ("B", "C")
    assert plan.after.share == pytest.approx(50 / 70, abs=0.02)
    rows = {(row["router"], row["neighbour"]): row for row in work.read("plan/links").collect()}
    assert rows["A", "D"]["bytes_before"] == 0
    assert rows["A", "D"]["bytes_after"] == pytest.approx(rows["A", "B"]["bytes_after"], rel=0.1)
