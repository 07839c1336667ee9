"""Batch reads, called as Spark calls them in a task, without Spark."""

from __future__ import annotations

import time
from typing import Any

import pytest
import trio

from amqpmesh import Accepted, Message
from amqpmesh.pipeline.connector import batches
from amqpmesh.pipeline.connector.batches import AmqpBatchReader
from amqpmesh.pipeline.connector.columns import BY_NAME
from amqpmesh.pipeline.connector.options import Options, Use
from amqpmesh.pipeline.connector.rows import Shape
from amqpmesh.router.amqp.errors import AmqpMeshError
from tests.support.processes.router_thread import PATIENCE, Served

BODIES = [b"%d" % number for number in range(20)]


def read(served: Served, **options: str) -> list[Any]:
    given = {"url": served.url, "address": "q", "quiet": "0.3", **options}
    reader = AmqpBatchReader(Options(given, Use.BATCH), Shape(tuple(BY_NAME)))
    (partition,) = reader.partitions()
    return [row["body"] for made in reader.read(partition) for row in made.to_pylist()]


@pytest.mark.parametrize("credit", ["3", "1000"])
def test_with_accept_it_takes_what_there_is(credit: str, served: Served) -> None:
    outcomes = served.send("q", *BODIES)
    assert read(served, acquire="accept", credit=credit) == BODIES
    assert served.first(20, outcomes) == [Accepted()] * 20


def test_it_takes_no_more_rows_than_are_wanted(served: Served) -> None:
    outcomes = served.send("q", *BODIES)
    assert read(served, acquire="accept", maxRows="3") == BODIES[:3]
    assert served.first(3, outcomes) == [Accepted()] * 3
    assert {place for place, outcome in outcomes.items() if outcome == Accepted()} == {0, 1, 2}


def test_it_ends_in_time_though_messages_may_still_come(served: Served) -> None:
    assert read(served, acquire="accept", quiet="60", longest="0.3") == []


def test_it_ends_in_time_though_there_are_always_messages(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "ROWS", 1)  # more come than are taken
    served.flood("q")
    given = {"url": served.url, "address": "q", "acquire": "accept", "quiet": "60", "longest": "0.5"}
    reader = AmqpBatchReader(Options(given, Use.BATCH), Shape(("body",)))
    began = time.monotonic()
    rows = 0
    for made in reader.read(reader.partitions()[0]):
        rows += len(made)
        assert time.monotonic() - began < PATIENCE
    assert rows > 0


def test_what_spark_did_not_take_is_released(served: Served) -> None:
    outcomes = served.send("q", *BODIES[:5])
    given = {"url": served.url, "address": "q", "acquire": "accept", "quiet": "0.3"}
    reader = AmqpBatchReader(Options(given, Use.BATCH), Shape(("body",)))
    rows = reader.read(reader.partitions()[0])
    assert len(next(rows)) == 5
    rows.close()  # type: ignore[attr-defined]  # it is a generator
    assert {type(outcome).__name__ for outcome in served.first(5, outcomes)} == {"Released"}


def test_browsing_sees_what_others_consume_and_takes_nothing_from_them(served: Served) -> None:
    came: list[Message] = []

    async def when_browsed(*, task_status: Any) -> None:
        task_status.started()
        while not any(link.address == "q" for link in served.router.statistics().links):
            await trio.sleep(0.01)
        async with served.router.sender("q") as sender, served.router.receiver("q") as receiver:
            for body in BODIES:
                await sender.transfer(body)
                async with await receiver.receive() as message:
                    came.append(message)

    served.begin(when_browsed)
    assert read(served, quiet="1.5") == BODIES
    assert [message.body for message in came] == BODIES


def test_a_peer_that_is_not_there_is_an_error_in_time(served: Served) -> None:
    with pytest.raises(AmqpMeshError, match="no connection and no link came about within 0.3 s"):
        read(served, url="amqp://127.0.0.1:1", connectTimeout="0.3")
