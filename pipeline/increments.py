"""The segments that a run has to read: the new ones, and those of before with records of the same deliveries.

A delivery key is the number and the epoch of the ingress router, and a counter. So the deliveries in a segment are, for
each life of a router, those from a least to a greatest counter. Two segments have records of the same delivery only
if these overlap, whatever the clocks say, and however long ago one of them was written. No Spark.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from amqpmesh.pipeline.events import file_of
from amqpmesh.pipeline.published import digest
from amqpmesh.pipeline.segment_rows import segment_rows

LIFE: Final = 14
"""Octets at the beginning of a delivery key that name the ingress router and its life; the others are its counter."""

Ranges = Mapping[str, tuple[str, str]]
"""For each life of a router, the least and the greatest counter of its deliveries; all of them in hexadecimal."""


@dataclass(frozen=True)
class Segment:
    """A converted segment. Args: digest: of its row in `segments`. hops: its rows in `hops`, in the file `path`."""

    name: str
    digest: str
    hops: int
    path: str | None


@dataclass(frozen=True)
class Increment:
    """The segments to be read.

    Args: new: those that were not read before. again: those that were, with records of deliveries that the new ones
        have, too. is_whole: the tables have to be made from all segments, which are `new`. state: for the next run.
    """

    new: list[Segment]
    again: list[Segment]
    is_whole: bool
    state: Mapping[str, Any]

    @property
    def hops(self) -> int:
        """Return the hop records in all these segments."""
        return sum(each.hops for each in (*self.new, *self.again))


def converted(ingested: str) -> dict[str, Segment]:
    """Return the segments that `ingest` has converted, by name. Args: ingested: its directory, on this machine."""
    place = Path(ingested)
    rows = segment_rows(place).values()
    files = {path.name: str(path) for path in place.glob("hops/date=*/recorded_by=*/*.parquet")} if rows else {}
    return {
        row["name"]: Segment(row["name"], digest(row), row["hops"], files.get(file_of(row["name"]))) for row in rows
    }


def increment(segments: Mapping[str, Segment], before: Mapping[str, Any], version: int) -> Increment:
    """Return what is to be read.

    Args: before: the state of the run before; empty: there was none. version: of the tables; those of another version
        are made from all segments.
    """
    known: Mapping[str, list[Any]] = before.get("segments", {}) if before.get("version") == version else {}
    is_same = all(name in segments and segments[name].digest == told[0] for name, told in known.items())
    is_whole = not known or not is_same  # what a changed segment had before cannot be read any more
    new = [each for name, each in segments.items() if is_whole or name not in known]
    found = {each.name: ranges(each.path) if each.path else {} for each in new}
    state = {} if is_whole else dict(known)
    spans = {} if is_whole else _spans(found.values())
    again = [segments[name] for name, told in known.items() if _meet(told[1], spans)] if spans else []
    state.update((each.name, [each.digest, found[each.name]]) for each in new)
    return Increment(new, again, is_whole, {"version": version, "segments": state})


def ranges(path: str) -> Ranges:
    """Return the deliveries that have records in a file of the table `hops`."""
    told: dict[str, tuple[str, str]] = {}
    for batch in pq.ParquetFile(path).iter_batches(1 << 20, columns=["key"]):
        keys = batch.column("key")
        split = {"life": pc.binary_slice(keys, 0, LIFE), "counter": pc.binary_slice(keys, LIFE, 1 << 10)}
        summed = pa.table(split).group_by("life").aggregate([("counter", "min"), ("counter", "max")])
        for row in summed.to_pylist():
            life, low, high = row["life"].hex(), row["counter_min"].hex(), row["counter_max"].hex()
            least, greatest = told.get(life, (low, high))
            told[life] = min(least, low), max(greatest, high)
    return told


def _spans(many: Iterable[Ranges]) -> dict[str, list[tuple[str, str]]]:
    """Return the deliveries of several files: for each life, ranges in order, which have nothing in common."""
    lives: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for each in many:
        for life, (least, greatest) in each.items():
            lives[life].append((least, greatest))
    spans: dict[str, list[tuple[str, str]]] = {}
    for life, found in lives.items():
        joined = spans[life] = []
        for least, greatest in sorted(found):
            if joined and least <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(greatest, joined[-1][1])
            else:
                joined.append((least, greatest))
    return spans


def _meet(known: Ranges, spans: Mapping[str, list[tuple[str, str]]]) -> bool:
    """Tell if a file has some of these deliveries. Its cost does not depend on how many files they are of."""
    for life, (low, high) in known.items():
        found = spans.get(life, ())
        at = bisect_right(found, high, key=itemgetter(0))
        if at and found[at - 1][1] >= low:
            return True
    return False
