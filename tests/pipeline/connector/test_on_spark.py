"""Streams as Spark runs them, in `local[2]`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from amqpmesh import Accepted, Message, Released
from tests.support.processes.router_thread import PATIENCE, Served

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def eventually(is_so: Callable[[], Any]) -> None:
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < PATIENCE
        time.sleep(0.05)


@pytest.fixture
def read(spark: SparkSession, served: Served) -> Callable[..., DataFrame]:

    def read(address: str = "q", schema: str | None = None, **options: str) -> DataFrame:
        reader = spark.readStream.format("amqp").options(**{"url": served.url, "address": address, **options})
        return (reader if schema is None else reader.schema(schema)).load()

    return read


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., StreamingQuery]]:
    begun: list[StreamingQuery] = []

    def start(rows: DataFrame, **trigger: Any) -> StreamingQuery:
        writer = rows.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        begun.append((writer.trigger(**trigger) if trigger else writer).start(str(tmp_path / "sink")))
        return begun[-1]

    yield start
    for query in begun:
        query.stop()


def attached(served: Served, address: str = "q") -> None:
    """Wait until the reader is there."""
    served.until(lambda: any(each.address == address for each in served.router.statistics().links))


def test_a_stream_accepts_what_its_sink_has_also_when_nothing_more_comes(
    spark: SparkSession, served: Served, read: Any, start: Any, tmp_path: Path
) -> None:
    query = start(read())
    attached(served)
    outcomes = served.send("q", *(Message(b"%d" % number, subject="s") for number in range(100)))
    assert served.first(100, outcomes) == [Accepted()] * 100
    told = [source["latestOffset"] for progress in query.recentProgress for source in progress["sources"]]
    assert {"seq", "waiting", "unsettled", "oldest_ms"} <= set(json.loads(told[-1]))
    rows = spark.read.parquet(str(tmp_path / "sink"))
    assert sorted(int(row.body) for row in rows.select("body").collect()) == list(range(100))
    assert rows.filter("properties.subject = 's' and error is null").count() == 100


def test_available_now_reads_what_there_is_and_ends(
    spark: SparkSession, served: Served, read: Any, start: Any, tmp_path: Path
) -> None:
    outcomes = served.send(
        "q", *(Message({"n": number} if number % 2 else f'{{"n": {number}}}') for number in range(100))
    )
    rows = read(body="json", maxRowsPerBatch="40", quiet="1")
    query = start(rows.select(F.from_json("body", "n int").n.alias("n")), availableNow=True)
    assert query.awaitTermination(PATIENCE)
    assert served.first(100, outcomes) == [Accepted()] * 100
    assert sorted(row.n for row in spark.read.parquet(str(tmp_path / "sink")).collect()) == list(range(100))
    assert [each.numInputRows for each in query.recentProgress if each.numInputRows] == [40, 40, 20]


def test_what_is_not_committed_is_released_when_a_query_is_stopped_and_comes_again(
    spark: SparkSession, served: Served, read: Any, start: Any, tmp_path: Path
) -> None:
    stuck = F.udf(lambda number: time.sleep(PATIENCE) or number, "int")
    query = start(read().select(stuck(F.length("body")).alias("n")))
    attached(served)
    outcomes = served.send("q", b"1", b"22", b"333")

    def is_stuck() -> bool:
        """Tell if a micro-batch has begun with some of the three; which is the first of them, only Spark knows."""
        batches = (tmp_path / "checkpoint" / "offsets").glob("[0-9]*")
        return any(json.loads(batch.read_text().splitlines()[-1]).get("seq") for batch in batches)

    eventually(is_stuck)
    query.stop()
    assert served.first(3, outcomes) == [Released()] * 3


def test_a_query_that_goes_on_from_its_checkpoint_reads_what_was_not_accepted(
    spark: SparkSession, served: Served, read: Any, start: Any, tmp_path: Path
) -> None:
    for name in (b"a", b"b"):
        query = start(read())
        attached(served)
        outcomes = served.send("q", name)
        assert served.first(1, outcomes) == [Accepted()]
        query.stop()
        served.until(lambda: not served.router.statistics().links)
    rows = spark.read.parquet(str(tmp_path / "sink")).collect()
    assert sorted(bytes(row.body) for row in rows) == [b"a", b"b"]
    assert len({row.epoch for row in rows}) == 2


def test_what_is_wrong_is_told_in_the_words_of_the_connector(read: Any, start: Any) -> None:
    with pytest.raises(AnalysisException, match="option colour: there is no such option"):
        read(colour="red")
    with pytest.raises(StreamingQueryException, match=r"'q' at amqp://127\.0\.0\.1:1: no connection and no link"):
        start(read(url="amqp://127.0.0.1:1", connectTimeout="0.5")).awaitTermination(PATIENCE)


def test_only_the_columns_that_are_asked_for_are_there(read: Any) -> None:
    assert read(schema="error string, body binary").columns == ["error", "body"]


def test_a_stream_is_written_with_keys_that_name_its_batches(
    spark: SparkSession, served: Served, tmp_path: Path
) -> None:
    came = served.receive("q")
    rows = spark.readStream.format("rate").option("rowsPerSecond", 50).load().selectExpr("'{}' as body")
    writer = rows.writeStream.format("amqp").options(url=served.url, address="q", body="json")
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    try:
        eventually(lambda: len(came) >= 20)
    finally:
        query.stop()
    keys = [str(message.application_properties["spark-delivery-key"]).split("/") for message in came]
    assert {key[0] for key in keys} == {query.id}
    assert len({tuple(key) for key in keys}) == len(keys)


def test_batches_are_read_and_written(spark: SparkSession, served: Served) -> None:
    outcomes = served.send("in", *(Message(b"%d" % number, subject="s") for number in range(100)))
    came = served.receive("out")
    options = {"url": served.url, "address": "in", "acquire": "accept", "maxRows": "100"}
    rows = spark.read.format("amqp").options(**options).load().repartition(2)
    rows.write.format("amqp").mode("append").options(url=served.url, address="out").save()
    assert served.first(100, outcomes) == [Accepted()] * 100
    assert sorted(int(message.body) for message in came) == list(range(100))
    assert {message.subject for message in came} == {"s"}
    keys = [str(message.application_properties["spark-delivery-key"]) for message in came]
    assert [message.message_id for message in came] == keys
    parts = [each.split("/")[2] for each in keys]
    assert set(parts) == {"0", "1"}


def test_a_row_that_is_not_accepted_fails_the_batch_and_is_named(spark: SparkSession, served: Served) -> None:
    served.receive("q", lambda delivery: delivery.reject("amqp:invalid-field", "bad taste"))
    writer = spark.range(1).selectExpr("'x' as body").write.format("amqp").mode("append")
    with pytest.raises(Exception, match=r"row \w+/0/\d/0: rejected: amqp:invalid-field: bad taste"):
        writer.options(url=served.url, address="q", body="string").save()
