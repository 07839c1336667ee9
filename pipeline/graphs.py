"""The graph that routers have recorded, as it was at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = ("router", "time", "origin", "neighbour", "cost", "whole")
"""Of the table `edges` that the graph is made of."""


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
    """Args: edges: from -> to, and the cost. routers: all of them, those without edges, too."""

    edges: dict[tuple[str, str], int] = field(default_factory=dict)
    routers: set[str] = field(default_factory=set)


def graph(records: Iterable[Record]) -> Graph:
    """What routers knew at the end of their records.

    Of its own edges each router is believed, which needs no comparing of clocks; of those of a router that has recorded
    nothing, whoever has heard of them last. A router whose graph was recorded whole has seen of all edges that are not
    in it that they are gone. An edge that leads one way only carries nothing, and is left out; so is one that costs
    less than 1, which no router says: by such ones ways could go in circles.
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
    """The graph as it was when it carried the last of some traffic, by each router's own clock.

    So it is that of the traffic, and not what is left of it when routers have been told to end.
    Args: edges: the table of that name. hops: the table of that name, or those of a time.
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
    """Records of which the same graph comes, no more than it has edges and routers.

    Each segment begins with the whole graph: so of all records there are as many as that, for each router and minute.
    Args: seen: rows of the table `edges`.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    changed = F.lit(False).alias("whole")
    # Of a router, what it said last of each edge; what is not in the whole graph that it saw last was gone by then.
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
