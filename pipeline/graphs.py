"""The graph that routers have recorded, at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = ("router", "time", "origin", "neighbour", "cost", "whole")
"""The columns of the table `edges` that the graph is made from."""


class Record(NamedTuple):
    """A row of the table `edges`."""

    router: str
    time: int
    origin: str
    neighbour: str | None
    cost: int | None
    whole: bool


@dataclass
class Graph:
    """A graph. Args: edges: from -> to, and the cost. routers: all routers, including those without edges."""

    edges: dict[tuple[str, str], int] = field(default_factory=dict)
    routers: set[str] = field(default_factory=set)


def graph(records: Iterable[Record]) -> Graph:
    """Return the graph at the end of the routers' records.

    Each router is trusted for its own edges, so clocks need not be compared. For the edges of a router without records,
    the latest record of any other counts. A router that has recorded the whole graph has seen that all other edges are
    gone. An edge in one direction only carries nothing, and is left out; so is an edge of a cost below 1, which no
    router announces and which could make paths circle.
    """
    latest: dict[tuple[str, str], tuple[int, int | None]] = {}
    own: dict[tuple[str, str], tuple[int, int | None]] = {}
    recorders: set[str] = set()
    routers: set[str] = set()
    for router, seen in groupby(sorted(records, key=lambda each: (each.router, each.time)), attrgetter("router")):
        recorders.add(router)
        mine: dict[tuple[str, str], tuple[int, int | None]] = {}
        for (time, whole), together in groupby(seen, lambda each: (each.time, each.whole)):
            told = {}
            for each in together:
                routers.add(each.origin)
                if each.neighbour is not None:
                    told[each.origin, each.neighbour] = (time, each.cost)
            if whole:
                mine.update(dict.fromkeys(mine.keys() - told.keys(), (time, None)))
            mine.update(told)
        for edge, (time, cost) in mine.items():
            if edge[0] == router:
                own[edge] = (time, cost)
            if edge not in latest or latest[edge][0] < time:
                latest[edge] = (time, cost)
    believed = own | {edge: told for edge, told in latest.items() if edge[0] not in recorders}
    costs = {edge: cost for edge, (_, cost) in believed.items() if cost is not None and cost >= 1}
    edges = {(a, b): cost for (a, b), cost in costs.items() if (b, a) in costs}
    return Graph(edges, routers)


def recorded(edges: DataFrame, hops: DataFrame) -> Graph:
    """Return the graph as it was when it carried the last deliveries of some traffic.

    The records of a router count up to its last hop record, by its own clock. Later ones do not: they would show what
    is left of the graph after routers were stopped.
    Args: edges: the table of that name. hops: the table of that name, or its rows of a time.
    """
    from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

    ends = hops.groupBy("router").agg(F.max("time").alias("end"))
    (last,) = ends.agg(F.max("end")).collect()
    seen = edges.select(*COLUMNS)
    if last[0] is not None:
        bounded = seen.join(F.broadcast(ends), "router", "left")
        seen = bounded.where(F.col("time") <= F.coalesce("end", F.lit(last[0]))).select(*COLUMNS)
    return graph(Record(*row) for row in deciding(seen).collect())


def deciding(seen: DataFrame) -> DataFrame:
    """Return the records that decide the graph, at most one for each edge and router.

    Each segment begins with the whole graph, so the records of a router and minute are as many as the edges.
    Args: seen: rows of the table `edges`.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    changed = F.lit(False).alias("whole")
    # Each router's last record of each edge; an edge missing from its last whole graph was gone by then.
    order = F.struct("time", ~F.col("whole"), F.coalesce("cost", F.lit(-1)))
    told = seen.where("neighbour is not null").groupBy("router", "origin", "neighbour")
    wholes = seen.where("whole").groupBy("router").agg(F.max("time").alias("at"))
    latest = told.agg(F.max_by(F.struct("time", "cost"), order).alias("last")).join(wholes, "router", "left")
    is_gone = F.coalesce(F.col("at") > F.col("last.time"), F.lit(False))
    said = latest.select(
        "router",
        F.when(is_gone, F.col("at")).otherwise(F.col("last.time")).alias("time"),
        "origin",
        "neighbour",
        F.when(~is_gone, F.col("last.cost")).alias("cost"),
        changed,
    )
    recorders = F.broadcast(seen.select(F.col("router").alias("origin")).distinct())
    newest = Window.partitionBy("origin", "neighbour").orderBy(F.desc("time"), "router")
    of_others = said.join(recorders, "origin", "left_anti").withColumn("place", F.row_number().over(newest))
    routers = seen.groupBy("origin").agg(F.min("router").alias("router"), F.min("time").alias("time"))
    nothing = F.lit(None)
    return (
        said.where("origin = router")
        .select(*COLUMNS)
        .union(of_others.where("place = 1").select(*COLUMNS))
        .union(
            routers.select(
                "router",
                "time",
                "origin",
                nothing.cast("string").alias("neighbour"),
                nothing.cast("bigint").alias("cost"),
                changed,
            )
        )
    )
