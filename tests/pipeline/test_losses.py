"""Findings of losses with their evidence, and no finding where nothing was lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from amqpmesh.pipeline import events as declared
from amqpmesh.pipeline.losses import (
    ATTEMPTS,
    EVIDENCE,
    GROWTH_LEAST,
    GROWTH_TELLINGS,
    SLOW_LEAST,
    STORM_LEAST,
    Loss,
)
from amqpmesh.pipeline.losses_days import TOP, job
from amqpmesh.pipeline.outlines import SLOW_OUTCOME, outlined
from amqpmesh.pipeline.passages import ALL, PATIENCE, SLACK, without_record
from amqpmesh.pipeline.work import Done, Work
from tests.support.data.attempts import Way, frame
from tests.support.data.segments import SECOND, at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]
START = at(3600)


class Found(NamedTuple):
    done: Done
    findings: list[Row]
    evidence: list[Row]

    def of(self, kind: Loss) -> Row:
        (row,) = (row for row in self.findings if row["kind"] == kind)
        return row

    def shown(self, kind: Loss) -> list[Row]:
        return [row for row in self.evidence if row["finding"] == self.of(kind)["finding"]]


class World:
    """The records of a mesh of A and B."""

    def __init__(self) -> None:
        self.attempts: list[Row] = []
        self.hops: list[Row] = []
        self.events: list[Row] = []
        self.counts: list[Row] = []
        self.segments = [*life("A"), *life("B")]
        self.edges: list[Row] = []

    def pass_on(self, count: int, **more: Any) -> None:
        """So many deliveries from A to B, a tenth of a second apart; all is well but what `more` says."""
        way = Way(START, "AB", (1000, 1000), (1000,), (1000,))
        for _ in range(count):
            number = len(self.attempts)
            way.sent = START + number * SECOND // 10
            way.outcome = more.get("outcome") or "accepted"
            self.attempts.append({**way.row(number, {}), **more})

    def run(self, spark: SparkSession, out: Path) -> Found:
        work = Work(spark, (), str(out))
        work.write("deliveries/attempts", frame(spark, self.attempts))
        for name in ("hops", "events", "counts", "segments", "edges"):
            rows = frame(spark, getattr(self, name), declared.TABLES[name])
            rows.write.mode("overwrite").parquet(work.place(f"ingest/{name}"))
        done = job(work)
        tables = ([row.asDict() for row in work.read(f"losses/{name}").collect()] for name in ("findings", "evidence"))
        return Found(done, *tables)


def heard(router: str, outcome: str) -> Row:
    return {"router": router, "arrived_ns": START, "in_router_ns": 10, "outcome_after_ns": 20, "outcome": outcome}


def life(router: str, count: int = 4, **more: Any) -> list[Row]:
    """Whole segments, half an hour each, with 10 hop records."""
    return [
        {
            "router": router, "epoch": 1, "segment": number + 1, "time": START + (number - 2) * 1800 * SECOND,
            "sample": ALL, "whole": True, "hops": 10, "first_hop": 10 * number, "next_hop": 10 * number + 10,
            "last_time": START + (number - 1) * 1800 * SECOND - 1, "dropped": 0, **more,
        }
        for number in range(count)
    ]  # fmt: skip


def passage(number: int = 0, **more: Any) -> Row:
    """A's record of a delivery that it has sent to B."""
    return {
        "key": number.to_bytes(20, "big"), "router": "A", "time": START + number, "outgoing_peer": "B",
        "to_router": True, "epoch": 1, "segment": 3, "outcome": "accepted", "settled": False, "in_router": 1000,
        "outcome_after": 5000, **more,
    }  # fmt: skip


def event(number: int, waited: int | None, **more: Any) -> Row:
    told = {"router": "B", "happening": "credit", "direction": "outgoing", "link": "in", "peer": "slow one"}
    return {**told, "time": START + number * 20 * SECOND, "waited": waited, **more}


def telling(step: int, unsettled: int | None, **more: Any) -> Row:
    told = {"router": "B", "epoch": 1, "number": 7, "link": "in", "direction": "outgoing", "peer": "hoarder"}
    return {**told, "time": START + step * 10 * SECOND, "unsettled": unsettled, "deliveries": step, **more}


@pytest.fixture(scope="module")
def found(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Found:
    world = World()
    world.pass_on(200)
    # Each to an address of its own.
    world.pass_on(30, address="unanswered", outcome="none")
    world.pass_on(2, address="unanswered", outcome="none", legs=2, key=b"twice")  # one, with two legs
    world.pass_on(5, address="unanswered")
    world.pass_on(3, address="dropped", settled=True, outcome="undelivered", egress=None)
    world.pass_on(1, address="dropped", settled=True, outcome="none")
    gone = {"address": "gone", "egress": None, "receiver": None}
    world.pass_on(4, **gone, outcome="undelivered")
    world.pass_on(2, **gone, outcome="expired")
    world.pass_on(1, **gone, outcome="aborted")
    world.pass_on(1, **gone, outcome="undelivered", condition="amqp:not-found")
    refused = {"address": "refused", "outcome": "rejected"}
    world.pass_on(25, **refused, condition="shop:sold-out")
    world.pass_on(5, **refused, condition="shop:closed")
    world.pass_on(2, **refused, condition="shop:sold-out", receiver="other")
    world.pass_on(3, **refused, egress=None, receiver=None, ingress="A", condition=None)
    world.pass_on(10, address="refused")
    world.pass_on(6, address="returned", outcome="released", first_key=b"never taken")
    world.pass_on(1, address="returned", outcome="released", first_key=b"taken in the end")
    world.pass_on(1, address="returned", attempt=2, first_key=b"taken in the end")
    world.pass_on(1, address="returned", outcome="rejected", copy=True)
    world.pass_on(3, address="half done", outcome="modified")
    world.pass_on(2, address="cut off", outcome="modified", hops=[heard("A", "modified"), heard("B", "accepted")])
    world.pass_on(2, address="loop", path=["A", "B", "A", "B"])
    world.pass_on(1, address="poison", attempt=ATTEMPTS, first_key=b"first", delivery_count=None)
    world.pass_on(1, address="poison", attempt=ATTEMPTS + 1, first_key=b"first")
    world.pass_on(1, address="poison", attempt=None, delivery_count=ATTEMPTS - 2)
    world.pass_on(STORM_LEAST - 10, address="storm")
    world.pass_on(10, address="storm", attempt=2)
    world.pass_on(STORM_LEAST - 9, address="breeze")
    world.pass_on(9, address="breeze", attempt=2)
    late = {"router": "B", "arrived_ns": START, "in_router_ns": 10, "outcome_after_ns": 10 + 3 * SLOW_OUTCOME}
    world.pass_on(SLOW_LEAST, address="slow", hops=[late], receiver="late one")
    world.pass_on(SLOW_LEAST - 1, address="slow", hops=[late], receiver="one of few")
    world.hops = [passage(number) for number in range(7)]
    world.hops.append({**passage(3), "router": "B", "to_router": False, "outgoing_peer": "client"})
    world.pass_on(7, address="broken", complete=False, egress=None)
    for number, row in enumerate(world.attempts[-7:]):
        row["key"] = number.to_bytes(20, "big")
    world.events = [event(number, 12 * SECOND) for number in range(4)]
    world.events += [event(number, 2 * SECOND, peer="often enough") for number in range(10)]
    for router in ("A", "C"):  # C records nothing itself
        world.events += [event(number, 12 * SECOND, peer=router, link="a lane") for number in range(4)]
    world.edges = [{"router": "A", "time": START, "origin": "C", "neighbour": "B", "cost": 1, "whole": True}]
    grow = GROWTH_LEAST // (GROWTH_TELLINGS - 1)
    world.counts = [telling(number, number * grow) for number in range(GROWTH_TELLINGS)]
    world.counts += [telling(number, number * grow, number=8, peer="few") for number in range(GROWTH_TELLINGS - 1)]
    world.counts += [telling(number, number % 2 * 500, number=9, peer="to and fro") for number in range(20)]
    return world.run(spark, tmp_path_factory.mktemp("losses"))


def test_what_went_wrong_is_found_and_nothing_else(found: Found) -> None:
    assert [(row["kind"], row["address"] or row["receiver"] or row["router"], row["found"], row["of"])
            for row in found.findings] == [
        ("broken", "A", 6, 7),
        ("unanswered", "unanswered", 31, 36),
        ("dropped", "dropped", 3, 4),
        ("rejected", "refused", 25, 40),
        ("rejected", "refused", 5, 40),
        ("rejected", "refused", 3, 45),
        ("rejected", "refused", 2, 2),
        ("undelivered", "gone", 4, 8),
        ("undelivered", "gone", 1, 8),
        ("expired", "gone", 2, 8),
        ("modified", "half done", 3, 3),
        ("modified", "cut off", 2, 2),
        ("released", "returned", 6, 8),
        ("aborted", "gone", 1, 8),
        ("loop", "loop", 2, 2),
        ("repeated", "poison", 1, 3),
        ("storm", "storm", 10, STORM_LEAST),
        ("slow", "slow", SLOW_LEAST, SLOW_LEAST),
        ("no credit", "slow one", 4, None),
        ("growing", "hoarder", GROWTH_TELLINGS, None),
    ]  # fmt: skip
    assert [row["finding"] for row in found.findings] == list(range(1, 21))


def test_a_finding_says_where_and_when_and_how_bad(found: Found) -> None:
    broken = found.of(Loss.BROKEN)
    assert (broken["router"], broken["next_router"]) == ("A", "B")
    assert (broken["first_time"], broken["last_time"]) == (START, START + 6)
    assert broken["sentence"] == "6 of 7 deliveries left A for B, and there is no record of them there"
    assert found.of(Loss.REPEATED)["worst"] == ATTEMPTS + 1
    slow = found.of(Loss.SLOW)
    assert (slow["router"], slow["receiver"], slow["link"]) == ("B", "late one", "in")
    assert slow["sentence"] == f"half of the {SLOW_LEAST} outcomes of late one at B came late, one of them after 3.0 s"
    assert found.of(Loss.NO_CREDIT)["sentence"] == "slow one at B gave no credit 4 times, once for 12.0 s"
    assert found.of(Loss.GROWING)["sentence"] == f"unsettled deliveries of hoarder at B grew to {GROWTH_LEAST}"


def test_an_outcome_that_is_not_accepted_is_found_by_address_and_receiver_and_condition(found: Found) -> None:
    told = {"rejected", "undelivered", "expired", "modified", "released", "aborted", "dropped"}
    assert [row["sentence"] for row in found.findings if row["kind"] in told] == [
        "3 of 4 deliveries to dropped by A were settled, and reached nobody",
        "25 of 40 deliveries to refused were rejected by receiver at B: shop:sold-out",
        "5 of 40 deliveries to refused were rejected by receiver at B: shop:closed",
        "3 of 45 deliveries to refused were rejected at A",
        "2 of 2 deliveries to refused were rejected by other at B: shop:sold-out",
        "4 of 8 deliveries to gone by A had nobody to go to",
        "1 of 8 deliveries to gone by A had nobody to go to: amqp:not-found",
        "2 of 8 deliveries to gone by A expired on their way",
        "3 of 3 deliveries to half done ended as modified by receiver at B",
        "2 of 2 deliveries to cut off ended as modified at A",
        "6 of 8 deliveries to returned were released by receiver at B",
        "1 of 8 deliveries to gone by A were aborted by their senders",
    ]
    sold_out = next(row for row in found.findings if row["condition"] == "shop:sold-out")
    assert (sold_out["router"], sold_out["receiver"], sold_out["left_out"]) == ("B", "receiver", 25 - EVIDENCE)


def test_a_finding_has_the_rows_that_show_it_and_says_how_many_are_left_out(found: Found) -> None:
    for row in found.findings:
        shown = [each for each in found.evidence if each["finding"] == row["finding"]]
        assert len(shown) == min(EVIDENCE, row["found"])
        assert row["left_out"] == row["found"] - len(shown)
        assert {each["kind"] for each in shown} == {row["kind"]}
    assert found.of(Loss.UNANSWERED)["left_out"] == 31 - EVIDENCE
    assert {row["key"] for row in found.shown(Loss.BROKEN)} == {
        number.to_bytes(20, "big") for number in range(7) if number != 3
    }
    assert {tuple(row["path"]) for row in found.shown(Loss.LOOP)} == {("A", "B", "A", "B")}
    assert {row["value"] for row in found.shown(Loss.NO_CREDIT)} == {12 * SECOND}
    assert [row["key"] for row in found.shown(Loss.REPEATED)] == [b"first"]


def test_the_summary_counts_them(found: Found) -> None:
    several = {"rejected": 4, "undelivered": 2, "modified": 2}
    counted = {**{str(kind): 1 for kind in Loss}, **several}
    assert found.done.figures == {"findings": 20, **counted, "not to be judged": 0}
    assert [row[1] for row in found.done.tables[0].rows] == [row["kind"] for row in found.findings][:TOP]


def test_nothing_is_found_in_nothing(spark: SparkSession, tmp_path: Path) -> None:
    world = World()
    world.segments = []
    assert world.run(spark, tmp_path).done.rows == 0


def test_nulls_and_nonsense_are_no_trouble(spark: SparkSession, tmp_path: Path) -> None:
    world = World()
    bare = dict.fromkeys(("address", "tenant", "outcome", "receiver", "receiver_link", "settled", "legs"))
    world.pass_on(3, **bare, first_key=None, attempt=None, delivery_count=None, copy=None)
    world.pass_on(1, **{**bare, "outcome": "none", "settled": False})
    hop = {"router": "B", "arrived_ns": START, "in_router_ns": None, "outcome_after_ns": None}
    world.pass_on(1, **bare, hops=[hop], complete=False)
    world.hops = [
        passage(outcome=None, settled=None, in_router=None, outcome_after=None, epoch=9),
        passage(1, key=None),
    ]
    world.events = [event(0, None), event(0, -5, peer=None)]
    world.counts = [telling(0, None), telling(0, 1, time=None)]
    world.segments = [dict.fromkeys(world.segments[0]), *world.segments]
    (row,) = world.run(spark, tmp_path).findings
    assert (row["kind"], row["address"], row["found"], row["of"]) == ("unanswered", None, 1, 5)
    assert row["sentence"] == "1 of 5 deliveries to ? by A ended without an outcome"


def judged(
    spark: SparkSession, hops: Iterable[Row], segments: Iterable[Mapping[str, Any]]
) -> tuple[list[str], list[str]]:
    """Return the places without a record, by attempts that are evidence and by those that are not."""
    way = Way(START, "A", (1,))
    attempts = frame(spark, [{**way.row(0, {}), "key": row["key"], "complete": False} for row in hops])
    both = without_record(
        outlined(attempts),
        frame(spark, hops, declared.TABLES["hops"]),
        frame(spark, segments, declared.TABLES["segments"]),
    )
    evidence, other = (sorted(row["next_router"] for row in rows.collect()) for rows in both)
    return evidence, other


def changed(place: int, **more: Any) -> list[Row]:
    rows = life("B")
    rows[place].update(more)
    return rows


RECORDED = {
    "all of it is there": life("B"),
    "another segment is torn": changed(0, whole=False),
    "it lost some long before": changed(1, first_hop=15, hops=5),
    "it has recorded nothing": [],
    "its segment is torn": changed(2, whole=False),
    "numbers are missing before its segment": changed(2, first_hop=23, hops=7),
    "numbers are missing within its segment": changed(2, hops=8),
    "it says that it has dropped some": changed(2, dropped=3),
    "its segment is not there": [each for each in life("B") if each["segment"] != 3],
    "it records a smaller sample": life("B", sample=ALL // 2),
    "it began later": life("B")[3:],
    "it ended before": life("B")[:2],
}


def test_a_missing_record_means_something_only_where_all_others_are_there(spark: SparkSession) -> None:
    hops, segments = [], life("A")
    for number, (name, rows) in enumerate(RECORDED.items()):
        hops.append(passage(number, time=START + SLACK // 2, outgoing_peer=name))
        segments += [{**row, "router": name} for row in rows]
    evidence, other = judged(spark, hops, segments)
    assert evidence == ["all of it is there", "another segment is torn", "it lost some long before"]
    assert other == sorted({*RECORDED} - {*evidence})


def test_what_has_no_outcome_may_still_be_recorded_later(spark: SparkSession) -> None:
    end = life("B")[-1]["last_time"]
    waiting = {"outcome": "none", "outcome_after": None, "outgoing_peer": "waiting"}
    segments = [*life("A"), *life("B"), *life("waiting")]
    hops = [passage(0, time=end - SLACK - 10_000), passage(1, time=end - PATIENCE + 1, **waiting)]
    assert judged(spark, hops, segments) == (["B"], ["waiting"])
    hops[1]["time"] = end - PATIENCE - 10_000
    assert judged(spark, hops, segments) == (["B", "waiting"], [])
