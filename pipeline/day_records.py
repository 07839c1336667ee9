"""The records of some days, and the days of which segments have records, for jobs that judge each day by itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Final

from amqpmesh.pipeline.deliveries import HOUR
from amqpmesh.pipeline.known_segments import records
from amqpmesh.pipeline.published import day_name, day_of_name
from amqpmesh.pipeline.segment_rows import Row
from amqpmesh.router.telemetry.segments import Name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BEFORE: Final = 2
"""Days before a day, at most, on which a segment begins that has events or counters of it; others are stray."""

_DAY: Final = 24 * HOUR

Stray = Mapping[str, Sequence[str]]
"""For a day, the segments with records of it that begin on no day near it: a clock was set."""


def records_of_days(
    spark: SparkSession, ingested: Path, name: str, some: Mapping[Name, Row], stray: Stray, days: Collection[int]
) -> DataFrame:
    """Return the events or counters of some days.

    Args: ingested: the directory of `ingest`. name: of the table. some: the segments. days: since 1970, at least one.
    """
    told = {each for day in days for each in stray.get(day_name(day), ())}
    close = {each for day in days for each in _near(day)}
    there = {each: row for each, row in some.items() if row["time"] // _DAY in close or each.file("") in told}
    return records(spark, ingested, name, there).where(f"time div {_DAY} in ({', '.join(map(str, sorted(days)))})")


def days_of_records(spark: SparkSession, ingested: Path, name: str, some: Mapping[Name, Row]) -> dict[Name, set[str]]:
    """Return the days of which segments have events or counters. Args: as `records_of_days`."""
    from pyspark.sql import functions as F  # noqa: N812

    found: dict[Name, set[str]] = defaultdict(set)
    told = records(spark, ingested, name, some).where("time is not null")
    for router, epoch, segment, day in (
        told.select("router", "epoch", "segment", F.expr(f"time div {_DAY}")).distinct().collect()
    ):
        found[Name(router, epoch, segment)].add(day_name(day))
    return found


def with_stray(before: Stray, some: Mapping[Name, Row], *seen: Mapping[Name, Set[str]]) -> dict[str, list[str]]:
    """Add segments to those of before. Args: some: new segments. seen: as `days_of_records` returns them."""
    found = {day: [*names] for day, names in before.items()}
    for each in seen:
        for name, days in each.items():
            for day in days:
                if name in some and some[name]["time"] // _DAY not in _near(day_of_name(day)):
                    found[day] = sorted({*found.get(day, ()), name.file("")})
    return found


def _near(day: int) -> range:
    """Return the days on which the segments begin that have events and counters of a day, but for stray ones."""
    return range(day - BEFORE, day + 2)
