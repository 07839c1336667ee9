"""A stream with several links, each in a process of its own, called as Spark calls its reader, without Spark."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadMaxRows

from amqpmesh import (
    Accepted,
    AddressConfig,
    CommandError,
    Direction,
    Distribution,
    LinkDetachedError,
    LinkStatistics,
    Released,
)
from amqpmesh.pipeline.connector import link_process
from amqpmesh.pipeline.connector.link_process import LinkProcess
from amqpmesh.pipeline.connector.options import Options, Use
from amqpmesh.pipeline.connector.stream_links import divided
from tests.support.processes.router_thread import PATIENCE, Served
from tests.support.spark.stream_query import MANY, StreamQuery

LINKS = 2


class Query(StreamQuery):
    """A reader with several links, and the micro-batches that Spark would make."""

    def __init__(self, url: str, **options: str) -> None:
        super().__init__(url, ("body", "sequence"), **{"links": str(LINKS), "connectTimeout": "60", **options})

    def batch(self, limit: ReadMaxRows = MANY) -> tuple[dict[str, Any], list[tuple[int, bytes]]]:
        """Return the end of the next micro-batch, and its rows by their positions."""
        end = self.reader.latestOffset(self.start, limit)
        rows = [
            (row["sequence"], row["body"])
            for partition in self.reader.partitions(self.start, end)
            for made in self.reader.read(partition)
            for row in made.to_pylist()
        ]
        self.start = end
        return end, rows


@pytest.fixture
def queries(served: Served) -> Iterator[Any]:
    made: list[Query] = []

    def query(**options: str) -> Query:
        made.append(Query(served.url, **options))
        made[-1].reader.latestOffset(made[-1].start, MANY)
        # A link whose credit comes late would get nothing of the first messages.
        served.until(lambda: len(links := receiving(served)) == LINKS and all(each.credit for each in links))
        return made[-1]

    yield query
    for each in made:
        each.reader.stop()


def receiving(served: Served) -> list[LinkStatistics]:
    """Return the links to the reader."""
    links = served.router.statistics().links
    return [each for each in links if each.address == "q" and each.direction is Direction.OUTGOING]


def test_all_links_receive_and_each_message_is_one_row_with_a_position_of_its_own(served: Served, queries: Any) -> None:
    query = queries()
    bodies = [b"%d" % number for number in range(60)]
    outcomes = served.send("q", *bodies)
    query.here(60)
    assert [each.deliveries > 0 for each in receiving(served)] == [True] * LINKS
    end, first = query.batch(ReadMaxRows(41))
    assert end["seq"] == 41
    query.reader.commit(end)
    served.until(lambda: len(outcomes) == 41)
    assert {bodies[place] for place in outcomes} == {body for _, body in first}
    start = query.start
    end, rest = query.batch()
    query.reader.commit({**end, "seq": 50})  # in the middle of what was announced
    served.until(lambda: len(outcomes) == 50)
    with pytest.raises(RuntimeError, match="10 deliveries are here of 41 to 60"):
        query.reader.partitions(start, end)
    again = query.reader.partitions({**end, "seq": 50}, end)
    rows = [row for each in again for made in query.reader.read(each) for row in made.to_pylist()]
    assert [(row["sequence"], row["body"]) for row in rows] == rest[9:]
    assert [position for position, _ in first + rest] == list(range(60))
    assert sorted(body for _, body in first + rest) == sorted(bodies)
    query.reader.latestOffset(query.start, MANY)
    assert served.first(60, outcomes) == [Accepted()] * 60


def test_they_divide_one_credit_the_report_adds_them_up_and_stopping_releases_the_rest(
    served: Served, queries: Any
) -> None:
    query = queries(credit="7")
    outcomes = served.send("q", *(b"%d" % number for number in range(28)))
    seen: list[bytes] = []
    while len(seen) < 21:
        report = query.here(len(seen) + 7)
        assert (report["waiting"], report["unsettled"]) == (7, 7)
        end, rows = query.batch()
        seen += [body for _, body in rows]
        query.reader.commit(end)
    query.here(28)
    query.batch(ReadMaxRows(4))
    query.reader.stop()
    told = served.first(28, outcomes)
    assert {b"%d" % place for place, outcome in enumerate(told) if outcome == Accepted()} == set(seen)
    assert told.count(Released()) == 7


def test_a_killed_process_of_a_link_ends_the_query_and_the_other_processes(
    served: Served, queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []
    made = LinkProcess.__init__

    def noted(self: LinkProcess, *arguments: Any) -> None:
        made(self, *arguments)
        pids.append(self.pid)

    monkeypatch.setattr(LinkProcess, "__init__", noted)
    query = queries()
    served.send("q", *(b"%d" % number for number in range(12)))
    query.here(12)
    os.kill(pids[1], signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(CommandError, match=f"link 1 of the stream: its process {pids[1]} has ended"):
        while time.monotonic() - began < PATIENCE:
            query.reader.latestOffset(query.start, MANY)
            time.sleep(0.01)
    query.reader.stop()
    for pid in pids:  # all of them have ended, and were waited for
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_stopped_process_of_a_link_is_an_error_in_time(
    served: Served, queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[LinkProcess] = []
    begin = LinkProcess.__init__

    def noted(self: LinkProcess, *arguments: Any) -> None:
        begin(self, *arguments)
        made.append(self)

    monkeypatch.setattr(LinkProcess, "__init__", noted)
    query = queries()
    outcomes = served.send("q", *(b"%d" % number for number in range(12)))
    query.here(12)
    for each in made:
        os.kill(each.pid, signal.SIGSTOP)
    resumed = threading.Timer(PATIENCE, lambda: [os.kill(each.pid, signal.SIGCONT) for each in made])
    resumed.start()  # so that the test fails, and does not hang, without the limit
    monkeypatch.setattr(link_process, "ANSWER_TIME", 0.2)
    with pytest.raises(CommandError, match=r"link 0 of the stream: its process \d+ does not answer, and was killed"):
        query.reader.latestOffset(query.start, MANY)
    resumed.cancel()
    query.reader.stop()
    for each in made:
        with pytest.raises(ProcessLookupError):
            os.kill(each.pid, 0)
    assert Accepted() not in served.first(12, outcomes)


def test_a_process_ends_with_its_reader_while_it_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: killed.append(process.pid))
    monkeypatch.setattr(link_process, "START_TIME", PATIENCE)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE)
        url = f"amqp://127.0.0.1:{silent.getsockname()[1]}"
        link = LinkProcess(Options({"url": url, "address": "q", "connectTimeout": "3600"}, Use.STREAM), 0)
        link.ask("start")
        with silent.accept()[0]:
            link.hang_up()
            link.wait()
    assert killed == []
    with pytest.raises(ProcessLookupError):
        os.kill(link.pid, 0)


def test_what_the_peer_refuses_is_the_error_that_one_link_has() -> None:
    served = Served(addresses=[AddressConfig(pattern="q", distribution=Distribution.UNAVAILABLE)])
    query = Query(served.url)
    try:
        with pytest.raises(LinkDetachedError, match="amqp:not-found"):
            query.reader.latestOffset(query.start, MANY)
    finally:
        query.reader.stop()
        served.end()


def test_a_credit_that_they_cannot_divide_is_refused() -> None:
    with pytest.raises(CommandError, match="option links: 3 links cannot divide a credit of 2"):
        Options({"url": "amqp://127.0.0.1", "address": "q", "links": "3", "credit": "2"}, Use.STREAM)


@given(st.integers(1, 1000), st.lists(st.integers(0, 1000), min_size=1, max_size=9))
def test_a_batch_is_divided_in_proportion_to_what_waits(count: int, waiting: list[int]) -> None:
    parts = divided(count, waiting)
    assert sum(parts) == min(count, sum(waiting))
    exact = [each * sum(parts) / max(1, sum(waiting)) for each in waiting]
    assert all(0 <= part <= most for part, most in zip(parts, waiting, strict=True))
    assert all(abs(part - share) <= 1 for part, share in zip(parts, exact, strict=True))
