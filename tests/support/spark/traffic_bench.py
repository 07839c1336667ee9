"""A small mesh whose traffic is known, and the tables of `ingest` and `traffic` made from it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from amqpmesh.pipeline.deliveries import deliveries
from amqpmesh.pipeline.events import table
from amqpmesh.pipeline.ingest import ingest
from amqpmesh.pipeline.traffic import Windows, links, weighted
from amqpmesh.pipeline.work import Work
from tests.support.data.known_traffic import Known
from tests.support.data.segments import WHOLE_SAMPLE, at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def window(ns: int, seconds: int = 60) -> datetime:
    return datetime.fromtimestamp(ns // 1_000_000_000 // seconds * seconds, UTC)


class Bench:
    def __init__(self, spark: SparkSession, root: Path, sample: int = WHOLE_SAMPLE) -> None:
        self.spark, self.root = spark, root
        self.known = Known(root / "events", "ABCDE", sample=sample)
        self.work = Work(spark, (str(root / "events"),), str(root / "out"))

    def take(self) -> None:
        self.known.close()
        ingest(self.spark, self.work.events, self.work.place("ingest"))

    def table(self, name: str) -> DataFrame:
        return table(self.spark, self.work.place("ingest"), name)

    def weighted(self, windows: Windows = Windows()) -> DataFrame:  # noqa: B008 - it is frozen
        return weighted(deliveries(self.table("hops")), self.table("counts"), self.table("segments"), windows)

    def links(self, windows: Windows = Windows(), capacity: DataFrame | None = None) -> DataFrame:  # noqa: B008
        return links(self.table("hops"), self.table("counts"), self.table("segments"), windows, capacity)

    def count(
        self,
        router: str,
        peer: str,
        direction: str,
        *looks: tuple[float, int, int],
        number: int = 1,
        since: int | None = None,
        unsettled: int = 0,
    ) -> None:
        """Add a reading of a link's counters: its time, deliveries, octets, and the time of the reading before."""
        rest = dict.fromkeys(("presettled", "accepted", "rejected", "released", "modified", "unsettled", "credit"), 0)
        told = {"number": number, "link": f"{direction}-{peer}", "direction": direction, "peer": peer, **rest}
        told["unsettled"] = unsettled
        told["from_router"] = peer in self.known.routers
        records = []
        for seconds, count, size in looks:
            records.append({**told, "time": at(seconds), "since": since, "deliveries": count, "octets": size})
            since = at(seconds)
        self.known.count(router, records)
