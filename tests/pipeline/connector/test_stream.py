"""The reader of a stream, called as Spark calls it, without Spark."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from pyspark.sql.streaming.datasource import ReadMaxRows

from amqpmesh import (
    Accepted,
    AddressConfig,
    CommandError,
    ConnectionClosedError,
    Distribution,
    LinkDetachedError,
    ListenerConfig,
    Message,
    Released,
    SaslError,
    connect,
)
from amqpmesh.pipeline.connector import stream
from amqpmesh.pipeline.connector.columns import BY_NAME
from amqpmesh.pipeline.connector.options import Options, Use
from amqpmesh.pipeline.connector.rows import Shape
from amqpmesh.pipeline.connector.stream import AmqpStreamReader
from amqpmesh.router.amqp.errors import AmqpMeshError
from amqpmesh.router.amqp.link import Sender as EngineSender
from amqpmesh.router.config.users import add_user
from tests.support.processes.router_thread import PATIENCE, Served
from tests.support.spark.stream_query import MANY, StreamQuery, waited


class Query(StreamQuery):
    """A reader with one link, and the micro-batches that Spark would make."""

    def __init__(self, url: str, names: tuple[str, ...] = tuple(BY_NAME), **options: str) -> None:
        super().__init__(url, names, **{"connectTimeout": "5", **options})

    def more(self, limit: ReadMaxRows = MANY) -> dict[str, Any]:
        """Wait for the next end, and return it."""
        start = self.start
        end = waited(lambda: found if (found := self.reader.latestOffset(start, limit)) != start else None)
        assert end["seq"] - (start["seq"] if start["epoch"] == end["epoch"] else 0) <= limit.max_rows
        return end

    def rows(self, end: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the rows that executors would read."""
        fresh = pickle.loads(pickle.dumps(AmqpStreamReader(self.reader._options, self.reader._shape)))
        return [
            row
            for partition in self.reader.partitions(self.start, end)
            for made in fresh.read(pickle.loads(pickle.dumps(partition)))
            for row in made.to_pylist()
        ]

    def bodies(self, end: dict[str, Any]) -> list[bytes]:
        return [row["body"] for row in self.rows(end)]

    def next(self, end: dict[str, Any]) -> None:
        """Put the batch into the commit log, before `commit` comes."""
        self.start = end


@pytest.fixture
def queries(served: Served) -> Iterator[Any]:
    made: list[Query] = []

    def query(**options: Any) -> Query:
        made.append(Query(served.url, **options))
        return made[-1]

    yield query
    for each in made:
        each.reader.stop()


def test_what_came_is_accepted_when_its_batch_is_committed_and_not_before(served: Served, queries: Any) -> None:
    query = queries()
    query.reader.latestOffset(query.start, MANY)
    outcomes = served.send("q", b"1", b"2", b"3")
    while (end := query.more())["seq"] < 3:
        query.next(end)
    query.reader.partitions(query.start, end)
    assert 2 not in outcomes
    query.reader.commit(end)
    assert served.first(3, outcomes) == [Accepted()] * 3


def test_the_next_question_for_an_offset_accepts_as_commit_does(served: Served, queries: Any) -> None:
    query = queries()
    query.reader.latestOffset(query.start, MANY)
    outcomes = served.send("q", b"1", b"2", b"3")
    while (end := query.more())["seq"] < 3:
        query.next(end)
    query.next(end)
    assert query.reader.latestOffset(end, MANY) == end
    assert served.first(3, outcomes) == [Accepted()] * 3


def test_the_report_tells_how_many_wait_how_many_are_unsettled_and_since_when(served: Served, queries: Any) -> None:
    def lag() -> tuple[int, int, bool]:
        report = query.reader.reportLatestOffset()
        return report["waiting"], report["unsettled"], report["oldest_ms"] > 0

    query = queries()
    query.reader.latestOffset(query.start, MANY)
    assert lag() == (0, 0, False)
    outcomes = served.send("q", *(b"%d" % number for number in range(10)))
    query.here(10)
    end = query.more(limit=ReadMaxRows(7))
    while lag() != (3, 10, True):
        time.sleep(0.01)
    first = query.reader.reportLatestOffset()["oldest_ms"]
    while query.reader.reportLatestOffset()["oldest_ms"] < first + 200:
        time.sleep(0.01)
    query.next(end)
    query.reader.commit(end)
    assert served.first(7, outcomes) == [Accepted()] * 7
    assert lag()[:2] == (3, 3)
    query.reader.commit(query.more())
    assert lag() == (0, 0, False)


def test_a_batch_holds_as_many_rows_as_the_limit_says_and_they_can_be_read_again(served: Served, queries: Any) -> None:
    query = queries()
    query.reader.latestOffset(query.start, MANY)
    served.send("q", *(b"%d" % number for number in range(10)))
    query.here(10)
    end = query.more(limit=ReadMaxRows(7))
    assert end["seq"] == 7
    assert query.bodies(end) == query.bodies(end) == [b"%d" % number for number in range(7)]
    query.next(end)
    assert query.bodies(query.more()) == [b"7", b"8", b"9"]


def test_an_end_that_was_told_and_not_used_is_told_again(served: Served, queries: Any) -> None:
    query = queries()
    query.reader.latestOffset(query.start, MANY)
    served.send("q", b"1")
    end = query.more()
    assert query.reader.latestOffset(query.start, MANY) == end
    assert query.bodies(end) == [b"1"]


def test_octets_bound_a_batch_too_but_one_message_is_always_taken(served: Served, queries: Any) -> None:
    query = queries(maxBytesPerBatch="1000")
    query.reader.latestOffset(query.start, MANY)
    served.send("q", *(bytes(400) for _ in range(3)), bytes(5000), b"last")
    sizes = []
    while not sizes or sizes[-1][-1] != 4:
        end = query.more()
        sizes.append([len(body) for body in query.bodies(end)])
        query.next(end)
    assert [size for batch in sizes for size in batch] == [400, 400, 400, 5000, 4]
    assert all(len(batch) == 1 or sum(batch) <= 1000 for batch in sizes)


def test_a_range_of_another_life_is_empty(queries: Any) -> None:
    query = queries()
    before, after = {"epoch": "before", "seq": 5}, {"epoch": "before", "seq": 9}
    assert query.reader.partitions(before, after) == []
    query.reader.commit(after)
    assert query.reader.latestOffset(after, MANY) == after


def test_what_begins_in_another_life_begins_at_the_first_of_this_one(served: Served, queries: Any) -> None:
    query = queries()
    query.start = {"epoch": "before", "seq": 5}
    query.reader.latestOffset(query.start, MANY)
    served.send("q", b"1")
    assert query.bodies(query.more()) == [b"1"]


def test_stopping_releases_what_is_not_accepted(served: Served, queries: Any) -> None:
    query = queries()
    query.reader.latestOffset(query.start, MANY)
    outcomes = served.send("q", *(b"%d" % number for number in range(10)))
    query.here(10)
    end = query.more(limit=ReadMaxRows(4))
    query.next(end)
    query.rows(query.more(limit=ReadMaxRows(4)))
    query.reader.stop()
    assert served.first(10, outcomes) == [Accepted()] * 4 + [Released()] * 6


def test_credit_bounds_what_is_not_accepted(served: Served, queries: Any) -> None:
    query = queries(credit="5")
    query.reader.latestOffset(query.start, MANY)
    outcomes = served.send("q", *(b"%d" % number for number in range(12)))
    seen = []
    while len(seen) < 12:
        query.here(min(len(seen) + 5, 12))
        end = query.more()
        seen += query.bodies(end)
        query.reader.commit(end)
        query.next(end)
    assert served.first(12, outcomes) == [Accepted()] * 12
    assert seen == [b"%d" % number for number in range(12)]


@pytest.mark.parametrize(("wanted", "cut"), [("1", 1), ("2", 2), ("3", 3), ("9", 3)])
def test_a_batch_is_cut_into_partitions_of_ten_rows_at_least(
    wanted: str, cut: int, served: Served, queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "ROWS", 10)
    query = queries(partitions=wanted)
    query.reader.latestOffset(query.start, MANY)
    served.send("q", *(b"%d" % number for number in range(25)), settled=True)
    query.here(25)
    end = query.more()
    assert len(query.reader.partitions(query.start, end)) == cut
    rows = query.rows(end)
    assert [row["body"] for row in rows] == [b"%d" % number for number in range(25)]
    assert [row["sequence"] for row in rows] == list(range(25))


def test_with_available_now_it_ends_when_nothing_more_comes(served: Served, queries: Any) -> None:
    query = queries(quiet="0.5")
    outcomes = served.send("q", *(b"%d" % number for number in range(10)))
    query.reader.prepareForTriggerAvailableNow()
    seen = []
    while (end := query.reader.latestOffset(query.start, ReadMaxRows(4))) != query.start:
        seen.append(query.bodies(end))
        query.next(end)
    assert [len(each) for each in seen] == [4, 4, 2]
    assert served.first(10, outcomes) == [Accepted()] * 10


def test_with_available_now_it_ends_in_time_though_messages_still_come(served: Served, queries: Any) -> None:
    query = queries(quiet="60", longest="0.5")
    query.reader.prepareForTriggerAvailableNow()
    began = time.monotonic()
    assert query.reader.latestOffset(query.start, MANY) == query.start
    assert 0.4 < time.monotonic() - began < 30


def test_with_available_now_it_ends_in_time_though_there_are_always_messages(served: Served, queries: Any) -> None:
    query = queries(quiet="60", longest="0.5")
    query.reader.prepareForTriggerAvailableNow()
    served.flood("q")
    began = time.monotonic()
    batches = 0
    while (end := query.reader.latestOffset(query.start, ReadMaxRows(1))) != query.start:
        query.next(end)
        batches += 1
        assert time.monotonic() - began < PATIENCE
    assert batches > 0


def test_it_is_picklable_when_fresh_and_connects_to_nothing(queries: Any) -> None:
    reader = AmqpStreamReader(Options({"url": "amqp://127.0.0.1:1", "address": "q"}, Use.STREAM), Shape(("body",)))
    assert isinstance(pickle.loads(pickle.dumps(reader)), AmqpStreamReader)
    assert reader.getDefaultReadLimit() == ReadMaxRows(100_000)
    assert reader.reportLatestOffset() is None
    reader.stop()


def test_a_peer_that_is_not_there_is_an_error_in_time() -> None:
    query = Query("amqp://127.0.0.1:1", connectTimeout="0.5")
    with pytest.raises(AmqpMeshError, match=r"'q' at amqp://127\.0\.0\.1:1: no connection .* within 0\.5 s"):
        query.reader.latestOffset(query.start, MANY)
    query.reader.stop()


@pytest.mark.parametrize(("password", "lets"), [("right", True), ("wrong", False)])
def test_the_connector_logs_in_with_the_password_file(password: str, lets: bool, tmp_path: Path) -> None:
    users, file = tmp_path / "users.toml", tmp_path / "password"
    add_user(users, "spark", "right")
    file.write_text(f"{password}\n")
    listener = ListenerConfig(url="amqp://127.0.0.1:0", sasl=("SCRAM-SHA-256",), users=users)
    served = Served(listeners=[listener])
    query = Query(served.url, user="spark", passwordFile=str(file))
    try:
        if lets:
            assert query.reader.latestOffset(query.start, MANY) == query.start
        else:
            with pytest.raises(SaslError, match="not let in"):
                query.reader.latestOffset(query.start, MANY)
    finally:
        query.reader.stop()
        served.end()


def test_a_password_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    query = Query("amqp://127.0.0.1:1", user="spark", passwordFile=str(tmp_path / "none"))
    with pytest.raises(CommandError, match=f"{tmp_path}/none: No such file"):
        query.reader.latestOffset(query.start, MANY)
    query.reader.stop()


def test_an_address_that_the_peer_refuses_is_an_error() -> None:
    served = Served(addresses=[AddressConfig(pattern="q", distribution=Distribution.UNAVAILABLE)])
    query = Query(served.url)
    try:
        with pytest.raises(LinkDetachedError, match="amqp:not-found"):
            query.reader.latestOffset(query.start, MANY)
    finally:
        query.reader.stop()
        served.end()


def test_a_peer_that_does_not_come_back_fails_the_query_in_time(served: Served, queries: Any) -> None:
    query = queries(reconnectTimeout="0.5")
    query.reader.latestOffset(query.start, MANY)
    served.end()
    began = time.monotonic()
    with pytest.raises(ConnectionClosedError, match=r"'q' at .*: no connection came about again within 0\.5 s"):
        while time.monotonic() - began < PATIENCE:
            query.reader.latestOffset(query.start, MANY)
            time.sleep(0.01)


def test_what_is_of_another_message_format_is_a_row_too(served: Served, queries: Any) -> None:
    query = queries()
    query.reader.latestOffset(query.start, MANY)

    async def send() -> None:
        async with connect(served.url) as connection, connection.sender("q") as sender:
            link = sender._link._link
            assert isinstance(link, EngineSender)
            while not link.credit:
                await trio.sleep(0.01)
            link.transfer(link.delivery(b"tag", message_format=7), b"\xff\xff")
            link.session.wake()
            await trio.sleep(0.1)

    served.do(send)
    (row,) = query.rows(query.more())
    assert (row["message_format"], row["payload"], row["body"]) == (7, b"\xff\xff", None)
    assert row["error"] == "message: message-format 7 is not known here"


def test_messages_with_and_without_a_body_that_fits_all_become_rows(served: Served, queries: Any) -> None:
    query = queries()
    query.reader.latestOffset(query.start, MANY)
    served.send("q", Message(b"a", subject="s"), Message(7), Message(None), Message("x" * 2**20))
    query.here(4)
    rows = query.rows(query.more())
    assert [row["body"] for row in rows] == [b"a", None, None, b"x" * 2**20]
    assert [row["error"] for row in rows] == [None, "body: an amqp-value of type long is no octets", None, None]
    assert rows[1]["payload"] == Message(7).encode()
    assert [row["sequence"] for row in rows] == [0, 1, 2, 3]
    assert len({row["delivery_tag"] for row in rows}) == 4
