"""The tables made from segments: their columns, derived from the routers' schema, and the places of their files.

The tables of hops, events, counts and edges have one Parquet file for each segment, in a directory for its date and
router:

    OUT/ingest/hops/date=2026-05-01/recorded_by=A/A.1777600000000.000001.parquet

The date is that of the segment's beginning, in UTC: a segment over midnight is one file, too, so queries for a day
select by `time`, which Parquet answers from its statistics. `recorded_by` is the router as in the segment's name,
percent-encoded; the column `router` has its id. The files of `segments` (what was converted) and `quarantine` (what
could not be) are in one directory each; those of `segments` are gathered by day (`segment_rows`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from amqpmesh.router.telemetry.schema import COUNTS, EDGE, EVENT, HOP, Field, Type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


LONGEST_NAME: Final = 230
"""Characters of a segment's name at most, without its suffix: a file system allows 255, and the names of results are
longer.
"""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    name: str
    type: pa.DataType
    meaning: str
    unit: str = ""
    optional: bool = False


_ARROW: Final[Mapping[Type, pa.DataType]] = {
    Type.STRING: pa.string(),
    Type.BINARY: pa.binary(),
    Type.BOOLEAN: pa.bool_(),
    Type.INTEGER: pa.int64(),
    Type.TIME: pa.int64(),  # Spark's timestamps have microseconds only
}


def _declared(fields: Iterable[Field]) -> tuple[Column, ...]:
    return tuple(Column(each.name, _ARROW[each.type], each.meaning, each.unit, each.optional) for each in fields)


_SOURCE: Final = (
    Column("epoch", pa.int64(), "when this life of the router began", "ms since 1970"),
    Column("segment", pa.int64(), "the number of the segment in this life"),
)
_COPY: Final = pa.struct(
    [pa.field("path", pa.string()), pa.field("octets", pa.int64()), pa.field("modified", pa.int64())]
)

SEGMENTS: Final = (
    Column("name", pa.string(), "the name of the segment, without a suffix"),
    Column("router", pa.string(), "the id of the router"),
    *_SOURCE,
    Column("version", pa.int64(), "the version of the telemetry schema", "", True),
    Column("time", pa.int64(), "when the segment was started or, if unknown, the router's life began", "ns since 1970"),
    Column("sample", pa.int64(), "the share of delivery keys that are recorded", "2**-32", True),
    Column("path", pa.string(), "the file that was converted"),
    Column(
        "copies", pa.list_(_COPY), "all files of the segment, the converted one first, with size and time of change"
    ),
    Column("octets", pa.int64(), "the size of the converted file", "octets"),
    Column("whole", pa.bool_(), "true if the segment has an end record that matches its content, and no damage"),
    Column("hops", pa.int64(), "its rows in `hops`"),
    Column("events", pa.int64(), "its rows in `events`"),
    Column("counts", pa.int64(), "its rows in `counts`"),
    Column("edges", pa.int64(), "its rows in `edges`"),
    Column("quarantined", pa.int64(), "its rows in `quarantine`"),
    Column("first_hop", pa.int64(), "the number of its first hop record in this life of the router", "", True),
    Column("next_hop", pa.int64(), "the number of its last hop record, plus 1", "", True),
    Column("first_time", pa.int64(), "the earliest `time` of its hop records", "ns since 1970", True),
    Column("last_time", pa.int64(), "the latest `time` of its hop records", "ns since 1970", True),
    Column(
        "dropped", pa.int64(), "hop records that this life of the router had lost when the segment was closed", "", True
    ),
)

QUARANTINE: Final = (
    Column("segment", pa.string(), "the name of the segment, or of the file"),
    Column("path", pa.string(), "the path of the file", "", True),
    Column("router", pa.string(), "the router that wrote the segment", "", True),
    Column("problem", pa.string(), "the kind of problem, such as `torn` or `damaged`"),
    Column("at", pa.int64(), "the offset of the problem in the file", "octets", True),
    Column("octets", pa.int64(), "the size of the affected part of the file", "octets", True),
    Column("records", pa.int64(), "the number of affected records, if known", "", True),
    Column("sentence", pa.string(), "the problem in words"),
)


class Problem(StrEnum):
    """A problem of a file, or of its content."""

    TORN = "torn"
    """It ends in the middle of a block: its router was killed, or its disk was full. The blocks before are used."""
    DAMAGED = "damaged"
    """It has octets that are no undamaged block; they are skipped."""
    UNREADABLE = "unreadable"
    """An undamaged block does not have the content of its kind, is of an unknown kind, or belongs to another segment;
    it is skipped.
    """
    EMPTY = "empty"
    """It is empty."""
    FOREIGN = "foreign"
    """It is no segment."""
    NEWER = "newer"
    """A newer version has written it; it is tried again after an update of this program."""
    OLDER = "older"
    """An older version has written it, in a format that this version does not read."""
    MISNAMED = "misnamed"
    """Its content and its name are of different segments; the content counts."""
    UNKNOWN_LINK = "unknown link"
    """Hop records have link numbers that no record explains; they are used, with nulls."""
    UNKNOWN_OUTCOME = "unknown outcome"
    """Hop records have an unknown outcome; they are used, with null."""
    LOST = "lost"
    """Record numbers are missing: the router had no room for the records, or they are in damaged blocks."""
    DISORDERED = "disordered"
    """Record numbers go back; the records are used."""
    UNFINISHED = "unfinished"
    """Its name is that of a closed segment, and it has no end record."""
    MISCOUNTED = "miscounted"
    """Its end record differs from its content."""
    LEFT_BEHIND = "left behind"
    """It is open, and was not written to for long; it is used as it is."""
    DUPLICATE = "duplicate"
    """Another file is the same segment with other content; the longest complete one is used."""
    INACCESSIBLE = "inaccessible"
    """The system does not allow reading it."""
    MISSING = "missing"
    """Segments of the router before and after it exist."""
    CONTRADICTION = "contradiction"
    """Records of one delivery contradict each other."""


TABLES: Final[Mapping[str, tuple[Column, ...]]] = {
    "hops": (*_declared(HOP), *_SOURCE),
    "events": (*_declared(EVENT), *_SOURCE),
    "counts": (*_declared(COUNTS), *_SOURCE),
    "edges": (*_declared(EDGE), *_SOURCE),
    "segments": SEGMENTS,
    "quarantine": QUARANTINE,
}
"""The columns of each table, in order."""

PARTITIONED: Final = ("hops", "events", "counts", "edges")
"""The tables with a directory for each date and router."""


def file_of(segment: str) -> str:
    """Return the name of a segment's file in each table; Spark ignores files that begin with `.` or `_`."""
    return f"{f'%{ord(segment[0]):02X}' if segment[0] in '._' else segment[0]}{segment[1:]}.parquet"


def arrow_schema(columns: Iterable[Column]) -> pa.Schema:
    """Return Arrow's schema; unit and meaning of a column are its field's metadata."""
    return pa.schema(
        pa.field(each.name, each.type, each.optional, {"unit": each.unit, "meaning": each.meaning}) for each in columns
    )


def encoded(schema: pa.Schema) -> pa.Schema:
    """Return the schema with strings as dictionaries, since few of them differ; any may be null."""
    dictionary = pa.dictionary(pa.int32(), pa.string())
    fields = [each.with_type(dictionary).with_nullable(True) if each.type == pa.string() else each for each in schema]
    return pa.schema(fields)


def spark_schema(columns: Iterable[Column]) -> StructType:
    """Return Spark's schema; every column may be null there."""
    from pyspark.sql.pandas.types import from_arrow_type  # imported here: the conversion of segments needs no Spark
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(each.name, from_arrow_type(each.type)) for each in columns])


def table(spark: SparkSession, ingested: str, name: str) -> DataFrame:
    """Return one of `TABLES`. Args: ingested: the directory that `ingest` has written."""
    columns = TABLES[name]
    if name == "segments":
        from amqpmesh.pipeline.segment_rows import segment_table  # here: it needs the columns

        return spark.createDataFrame(segment_table(ingested), spark_schema(columns))
    read = spark.read.schema(spark_schema(columns)).parquet(f"{ingested}/{name}")
    return read.select([each.name for each in columns])  # without the columns from the directories' names
