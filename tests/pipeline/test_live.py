"""Minutes of a watch, from segments in any order: compared with the deliveries, and with one batch of them all."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from amqpmesh.pipeline import live as module
from amqpmesh.pipeline.live import BOOK, Decoded, Live, alone, decoded
from amqpmesh.pipeline.live_minutes import AHEAD, MINUTE, Minutes, class_of, percentile
from amqpmesh.pipeline.live_tables import ADDRESSES, REMEMBERED, TABLES, History, forget, publish, schema_of, start
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.telemetry.schema import Outcome
from tests.support.data.known_traffic import Known
from tests.support.data.segments import BEGAN, Recorder, at

SECOND = 1_000_000_000
NOW = at(86_400)
FIRST = BEGAN // 60_000
"""The minute in which routers begin; they do so in its 40th second."""


def segments(directory: Path) -> list[Decoded]:
    return [decoded(str(path), path.read_bytes(), path.name) for path in sorted(directory.rglob("*.events"))]


def begun(out: Path, *, delay: float = 90, sources: tuple[str, ...] = ("events",)) -> Live:
    return Live(out, out / "live" / "checkpoint", sources, round(delay * SECOND))


def closed(live: Live, some: list[list[Decoded]], first: int = 0) -> Live:
    """Take batches, and close all minutes."""
    for number, batch in enumerate(some, start=first):
        live.take(number, batch, NOW)
    live.minutes.see(at(1_260), NOW)
    live.take(first + len(some), [], NOW)
    return live


def table(out: Path, name: str) -> list[dict[str, Any]]:
    tables = [pq.ParquetFile(path).read() for path in sorted((out / "live" / name).glob("*.parquet"))]
    return pa.concat_tables([schema_of(name).empty_table(), *tables]).to_pylist()


def of_deliveries(out: Path) -> dict[str, Counter[str]]:
    """Return the rows that follow from deliveries, and not from when segments came."""
    return {name: Counter(map(str, table(out, name))) for name in TABLES if name != "minutes"}


def minute(time: int) -> int:
    return time // MINUTE - FIRST


def mixed(directory: Path, count: int = 300, seed: int = 1) -> Known:
    """Record deliveries of ten minutes of all kinds."""
    known = Known(directory, "ABCD", seed=seed)
    chance = random.Random(seed)
    for _ in range(count):
        tried = known.deliver(
            chance.choice(("ABC", "CBA", "AB", "D")),
            address=chance.choice(("orders", "news", f"$dynamic/{chance.random()}")),
            tenant=chance.choice(("", "shop")),
            outcome=chance.choice([Outcome.ACCEPTED] * 6 + [Outcome.REJECTED, Outcome.RELEASED, Outcome.NONE]),
            settled=chance.random() < 0.1,
            unrecorded=chance.choice(("", "", "", "B")),
        )
        if tried.outcome is Outcome.RELEASED and chance.random() < 0.5:
            seconds = (tried.time - at(0)) / SECOND + 1
            known.deliver("AB", address=tried.address, attempt=2, first=tried, seconds=seconds)
    known.deliver("ABC", "ABD", receivers=("one", "other"), copies=(False, True))
    known.deliver("D", outcome=Outcome.UNDELIVERED, receivers=("",), condition="amqp:not-found")
    return known


def test_in_any_order_and_with_kills_in_between_the_minutes_are_those_of_one_batch(tmp_path: Path) -> None:
    mixed(tmp_path / "events").close(4)
    whole = segments(tmp_path / "events")
    closed(begun(tmp_path / "whole", delay=600), [whole])
    expected = of_deliveries(tmp_path / "whole")
    assert all(expected.values())
    for seed in range(2):
        chance, out = random.Random(seed), tmp_path / f"{seed}"
        some = [*whole, *chance.sample(whole, 3)]  # some come twice
        chance.shuffle(some)
        live, number = begun(out, delay=600), 0
        while some:
            size = chance.randrange(1, 5)
            batch, some = some[:size], some[size:]
            live.take(number, batch, NOW)
            if chance.random() < 0.5:
                live = begun(out, delay=600)
                assert live.take(number, batch, NOW) == []  # Spark had not noted it
            number += 1
        closed(live, [], number)
        assert live.counts["late"] == 0
        assert live.counts["again"] == 3
        assert of_deliveries(out) == expected


def test_traffic_is_that_of_the_deliveries(tmp_path: Path) -> None:
    known = Known(tmp_path / "events", "ABC")
    for number in range(200):
        known.deliver(("ABC", "CB", "B")[number % 3], address=("orders", "news")[number % 2])
    known.close()
    closed(begun(tmp_path, delay=600), [segments(tmp_path / "events")])
    expected: Counter[Any] = Counter()
    octets: Counter[Any] = Counter()
    for each in known.deliveries:
        name = start(FIRST + minute(each.time)), each.ways[0][0], each.ways[0][-1], each.address
        expected[name] += 1
        octets[name] += each.size
    rows = table(tmp_path, "traffic")
    names = [(row["window_start"], row["ingress"], row["egress"], row["address"]) for row in rows]
    assert dict(zip(names, (row["messages"] for row in rows), strict=True)) == expected
    assert dict(zip(names, (row["bytes"] for row in rows), strict=True)) == octets
    assert {row["basis"] for row in rows} == {"recorded"}
    told = table(tmp_path, "minutes")
    assert sum(row["deliveries"] for row in told) == 200
    assert sum(row["records"] for row in told) == sum(len(each.ways[0]) for each in known.deliveries)
    assert [row["window_start"] for row in told] == [start(FIRST + each) for each in range(len(told))]


def test_late_records_within_the_delay_change_their_minute_and_later_ones_are_counted(tmp_path: Path) -> None:
    early = Known(tmp_path / "events", "A")
    early.deliver("A", seconds=5)
    early.close(1)
    live = begun(tmp_path, delay=30)
    live.take(0, segments(tmp_path / "events"), NOW)
    for batch, (seconds, router) in enumerate(((40, "B"), (6, "C"), (60, "D")), 1):
        known = Known(tmp_path / router, router)
        known.deliver(router, seconds=seconds)
        known.close(1)
        live.take(batch, segments(tmp_path / router), NOW)
        assert live.counts["late"] == 0
        assert (FIRST in live.minutes.sums) == (seconds != 60)
    assert sum(row["messages"] for row in table(tmp_path, "traffic")) == 2
    known = Known(tmp_path / "E", "E")
    known.deliver("E", seconds=7)
    known.deliver("E", seconds=61)
    known.close(1)
    live.take(4, segments(tmp_path / "E"), NOW)
    assert live.counts["late"] == 1
    closed(live, [], 5)
    assert sum(row["messages"] for row in table(tmp_path, "traffic")) == 5
    assert [row["late"] for row in table(tmp_path, "minutes")] == [0, 1, *[0] * 19]


def test_a_clock_that_is_ahead_closes_no_minutes(tmp_path: Path) -> None:
    known = Known(tmp_path / "events", "A")
    known.deliver("A", seconds=5)
    known.deliver("A", seconds=10_000)
    known.close(1)
    live = begun(tmp_path)
    live.take(0, segments(tmp_path / "events"), at(10_000) - AHEAD - 1)
    assert live.counts["ahead"] == 1
    assert (live.minutes.boundary, live.minutes.seen) == (at(5) // MINUTE * MINUTE - MINUTE, at(5))
    assert len(live.minutes.pending) == 1


def test_a_clock_that_is_a_little_ahead_closes_no_minute_before_its_time(tmp_path: Path) -> None:
    known = Known(tmp_path / "events", "A")
    known.deliver("A", seconds=65)
    known.close(1)
    live = begun(tmp_path, delay=15)
    live.take(0, segments(tmp_path / "events"), at(25))  # the minute ends at 20
    assert live.counts["ahead"] == 0
    assert (live.minutes.boundary, live.minutes.seen) == (at(-40), at(25))
    live.minutes.see(at(65), at(36))
    live.take(1, [], at(36))
    assert live.minutes.boundary == at(20)


def test_segments_of_one_batch_are_taken_in_their_order_and_none_for_one_that_came_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RECOGNISED", 2)
    known = Known(tmp_path / "events", "A")
    for number in range(60):
        known.deliver("A", seconds=number)
    known.close(6)
    live = begun(tmp_path, delay=600)
    live.take(0, segments(tmp_path / "events")[::-1], NOW)
    assert (live.counts["segments"], live.counts["again"], live.counts["records"]) == (6, 0, 60)
    assert len(live.minutes.pending) == 60


def test_a_record_of_long_ago_closes_no_minutes_since_then(tmp_path: Path) -> None:
    known = Known(tmp_path / "events", "A")
    known.deliver("A", seconds=0)
    known.deliver("A", seconds=864_000)
    known.close(1)
    live = Live(tmp_path, tmp_path / "checkpoint", ["events"], 90 * SECOND, keep=1)
    live.take(0, segments(tmp_path / "events"), at(864_000))
    assert live.counts["minutes"] == 61


def test_with_too_many_records_the_oldest_minutes_are_closed_early(tmp_path: Path) -> None:
    known = Known(tmp_path / "events", "A")
    for number in range(90):
        known.deliver("A", seconds=number)
    known.close(1)
    live = begun(tmp_path, delay=3600)
    live.minutes.most = 50
    live.take(0, segments(tmp_path / "events"), NOW)
    assert live.counts["closed early"] == 1
    assert len(live.minutes.pending) <= 50
    assert sum(row["messages"] for row in table(tmp_path, "traffic")) + len(live.minutes.pending) == 90


def losses(out: Path) -> dict[tuple[Any, ...], int]:
    names = "kind", "address", "router", "receiver", "condition"
    return {tuple(row[name] for name in names): row["found"] for row in table(out, "losses")}


def test_losses_name_who_told_them_and_messages_that_were_tried_again_are_none(tmp_path: Path) -> None:
    known = Known(tmp_path / "events", "ABC")
    known.deliver("ABC", seconds=1, outcome=Outcome.REJECTED, condition="amqp:decode-error")
    known.deliver("ABC", seconds=2, outcome=Outcome.NONE)
    known.deliver("ABC", seconds=3, settled=True, outcome=Outcome.EXPIRED, receivers=("",))
    known.deliver("A", seconds=4, outcome=Outcome.UNDELIVERED, receivers=("",))
    known.deliver("AC", seconds=5, unrecorded="C")
    known.deliver("ABC", seconds=6, unrecorded="A")
    tried = known.deliver("AB", seconds=7, outcome=Outcome.RELEASED)
    known.close(1)
    live = begun(tmp_path, delay=600)
    live.take(0, segments(tmp_path / "events"), NOW)
    again = Known(tmp_path / "again", "ABC")
    again._counter = 100
    again.deliver("AB", seconds=15, attempt=2, first=tried)
    for recorder in again.recorders.values():  # of the same lives
        recorder._segment = 7
        recorder.begin()
        recorder._numbers.clear()
    again._links.clear()
    again.close(1)
    live.take(1, segments(tmp_path / "again"), NOW)
    closed(live, [], 2)
    assert losses(tmp_path) == {
        ("rejected", "orders", "C", "desk", "amqp:decode-error"): 1,
        ("unanswered", "orders", "A", None, None): 1,
        ("dropped", "orders", "A", None, None): 1,
        ("undelivered", "orders", "A", None, None): 1,
        ("incomplete", "orders", "A", None, None): 1,
        ("incomplete", "orders", "B", None, None): 1,
    }


def test_a_sample_is_scaled_by_its_share(tmp_path: Path) -> None:
    known = Known(tmp_path / "events", "A", sample=1 << 30)
    for number in range(10):
        known.deliver("A", seconds=number, size=100)
    known.close(1)
    closed(begun(tmp_path), [segments(tmp_path / "events")])
    (row,) = table(tmp_path, "traffic")
    assert (row["messages"], row["bytes"], row["records"], row["basis"]) == (40, 4_000, 10, "scaled")


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_percentiles_are_right_to_less_than_a_hundredth(share: float) -> None:
    chance = random.Random(1)
    times = sorted(int(chance.lognormvariate(15, 2)) for _ in range(1_000))
    found = percentile(Counter(class_of(np.array(times)).tolist()), share)
    assert found == pytest.approx(times[int(share * 1_000) - 1], rel=0.006)


def test_an_address_whose_traffic_stops_is_an_anomaly_and_others_are_not(tmp_path: Path) -> None:
    history = History()
    last: list[dict[str, Any]] = []
    for number in range(100):
        present = {("messages", name, ""): (1_000.0 + number % 7, 1_000.0) for name in ("orders", "news")}
        if number == 99:
            del present["messages", "orders", ""]
        last = history.judged(number, present)
        publish(tmp_path, {number: {"anomalies": last}})
    told = {row["address"]: row for row in last}
    assert told["orders"]["value"] == 0
    assert told["orders"]["score"] < -1
    assert told["orders"]["low"] > 500
    assert abs(told["news"]["score"]) < 1
    again = History.read(tmp_path, 99).judged(99, {("messages", "news", ""): (1_001.0, 1_000.0)})
    assert again == last


def test_addresses_that_are_judged_and_remembered_are_bounded() -> None:
    history = History()
    for number in range(3):
        present = {("messages", f"{each}", ""): (10.0 + each, 1.0) for each in range(1_200)}
        rows = history.judged(number, present)
    assert len(rows) == 1_000
    assert min(row["value"] for row in rows) == 210
    for number in (REMEMBERED + 1, REMEMBERED + 3):
        rows = history.judged(number, {})
    assert rows == []
    assert ADDRESSES < 1_000


def test_what_is_wrong_with_segments_is_counted_and_named(tmp_path: Path) -> None:
    known = Known(tmp_path, "A")
    for number in range(120):
        known.deliver("A", seconds=number)
    known.close(1)
    (path,) = tmp_path.rglob("*.events")
    torn = decoded("here", path.read_bytes()[:-80], path.name)
    live = begun(tmp_path)
    wrong = live.take(0, [torn, decoded("there", b"nothing"), decoded("empty", b"")], NOW)
    assert [(source, problem) for source, problem, _ in wrong] == [
        ("here", "torn"), ("here", "unfinished"), ("there", "foreign"), ("empty", "empty"),
    ]  # fmt: skip
    assert live.problems == {"torn": 1, "unfinished": 1, "foreign": 1, "empty": 1}
    assert (live.counts["segments"], live.counts["unnamed"], live.counts["faults"]) == (1, 2, 4)
    newer = Recorder(tmp_path / "newer", version=99)
    wrong = live.take(1, [decoded("new", newer.end())], NOW)
    assert [problem for _, problem, _ in wrong] == ["newer"]


def test_a_checkpoint_is_of_its_sources_and_a_damaged_one_says_so(tmp_path: Path) -> None:
    begun(tmp_path).take(0, [], NOW)
    with pytest.raises(CommandError, match="is the checkpoint of other sources"):
        begun(tmp_path, sources=("others",))
    book = tmp_path / "live" / "checkpoint" / BOOK
    told = json.loads(book.read_text())
    book.write_text(json.dumps({**told, "format": 2}))
    with pytest.raises(CommandError, match="has format 2"):
        begun(tmp_path)
    for text in ("{", json.dumps({**told, "files": ["gone.arrow"]}), "[]"):
        book.write_text(text)
        with pytest.raises(CommandError, match="is damaged"):
            begun(tmp_path)


def test_one_watch_uses_a_checkpoint(tmp_path: Path) -> None:
    with alone(tmp_path / "here"), pytest.raises(CommandError, match="another watch uses"), alone(tmp_path / "here"):
        pass
    with alone(tmp_path / "here"):
        pass


def test_a_watch_that_is_killed_between_publication_and_its_book_publishes_the_same_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed(tmp_path / "events", 50).close(2)
    whole = segments(tmp_path / "events")
    closed(begun(tmp_path / "whole"), [whole])
    live = begun(tmp_path / "killed")
    live.take(0, whole, NOW)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Live, "_note", killed)
    live.minutes.see(at(1_260), NOW)
    with pytest.raises(KeyboardInterrupt):
        live.take(1, [], NOW)
    monkeypatch.undo()
    closed(begun(tmp_path / "killed"), [], 1)
    assert of_deliveries(tmp_path / "killed") == of_deliveries(tmp_path / "whole")


def test_old_hours_are_removed_and_the_last_hour_is_remembered_over_a_restart(tmp_path: Path) -> None:
    known = Known(tmp_path / "events", "A")
    for hour in range(4):
        known.deliver("A", seconds=hour * 3_600)
    known.close(1)
    live = Live(tmp_path, tmp_path / "checkpoint", ["events"], 90 * SECOND, keep=1)
    live.take(0, segments(tmp_path / "events"), NOW)
    assert len([*(tmp_path / "live" / "minutes").iterdir()]) == 2
    again = Live(tmp_path, tmp_path / "checkpoint", ["events"], 90 * SECOND, keep=1)
    assert len(live.closed) == module.HOUR
    assert again.closed == live.closed


def test_what_is_remembered_of_a_closed_minute_does_not_grow_with_what_peers_choose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ADDRESSES", 3)
    known = Known(tmp_path / "events", "A")
    for number in range(60):
        condition, receiver = f"x:{number}", f"client {number}"
        known.deliver("A", seconds=5, outcome=Outcome.REJECTED, condition=condition, receivers=(receiver,))
        known.deliver("A", seconds=5, address=f"address {number % 30}")
    known.close(1)
    live = closed(begun(tmp_path), [segments(tmp_path / "events")])
    sums = live.closed[FIRST].sums
    places = Counter(values[0] for name, values in sums.items() if name[0] == "traffic")
    assert places == {60: 1, 2: 2}
    assert [values for name, values in sums.items() if name[0] == "losses"] == [(60,)]
    assert len(table(tmp_path, "losses")) == 60
    assert len(table(tmp_path, "traffic")) == 31


def test_a_table_that_cannot_be_read_is_named_and_files_of_others_stay(tmp_path: Path) -> None:
    mixed(tmp_path / "events", 20).close(1)
    closed(begun(tmp_path), [segments(tmp_path / "events")])
    (tmp_path / "live" / "minutes" / "copy.parquet").touch()
    forget(tmp_path, FIRST)
    assert [path.name for path in (tmp_path / "live").rglob("*.parquet")] == ["copy.parquet"]
    hour = tmp_path / "live" / "traffic" / f"{start(FIRST):%Y-%m-%dT%H}.parquet"
    pq.write_table(pa.table({"other": [1]}), hour)
    for _ in range(2):
        with pytest.raises(CommandError, match=r"T01.parquet is damaged, or of another version .*: remove it"):
            publish(tmp_path, {FIRST: {"traffic": []}})
        hour.write_bytes(b"nothing")


def test_the_delay_is_from_the_end_of_a_minute() -> None:
    minutes = Minutes(30 * SECOND)
    minutes.see(5 * MINUTE + 29 * SECOND, NOW)
    assert [*minutes.close()] == []
    assert minutes.boundary == 4 * MINUTE
    minutes.see(5 * MINUTE + 30 * SECOND, NOW)
    assert [*minutes.close()] == []
    assert minutes.boundary == 5 * MINUTE
