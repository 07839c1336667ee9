"""Rows of `deliveries/attempts`, made from deliveries that the test knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from amqpmesh.pipeline.deliveries import ATTEMPTS
from amqpmesh.pipeline.events import Column, arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOTHING = {each.name: None for each in ATTEMPTS}


def moment(ns: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=ns // 1000)


@dataclass
class Way:
    """One delivery attempt, by true time.

    Args: sent: when it comes to the first router of `path`. stays: in each router. there, back: over each link between
        two of them, the delivery and its outcome. waits: from leaving the last until the outcome; None: there is none.
    """

    sent: int
    path: Sequence[str]
    stays: Sequence[int]
    there: Sequence[int] = ()
    back: Sequence[int] = ()
    waits: int | None = 1_000_000
    outcome: str = "accepted"
    address: str | None = "orders"
    size: int = 100
    more: Mapping[str, Any] = field(default_factory=dict)

    def row(self, number: int, clocks: Mapping[str, Any]) -> dict[str, Any]:
        """Return the row. Args: clocks: by router, a function from true time to how far it is ahead, in ns."""
        came = [self.sent]
        for stay, link in zip(self.stays, self.there, strict=False):
            came.append(came[-1] + stay + link)
        left = came[-1] + self.stays[-1]
        said: list[int | None] = [None] * len(self.path)
        if self.waits is not None:
            at = said[-1] = left + self.waits
            for hop in reversed(range(len(self.path) - 1)):
                at = said[hop] = at + self.back[hop]

        def shown(router: str, time: int) -> int:
            return int(time + clocks.get(router, lambda _: 0)(time))

        outcome = self.outcome if self.waits is not None else "none"
        hops = [
            {
                "router": router,
                "arrived_ns": shown(router, came[hop]),
                "in_router_ns": self.stays[hop],
                "outcome_after_ns": None if said[hop] is None else said[hop] - came[hop],
                "outcome": outcome,
            }
            for hop, router in enumerate(self.path)
        ]
        key = number.to_bytes(20, "big")
        first, last = hops[0]["arrived_ns"], hops[-1]["arrived_ns"]
        return {
            **NOTHING,
            "key": key,
            "first_key": key,
            "attempt": 1,
            "address": self.address,
            "tenant": "",
            "ingress": self.path[0],
            "egress": self.path[-1],
            "path": list(self.path),
            "hops": hops,
            "sent_at": moment(first),
            "latency_ns": last + self.stays[-1] - first,
            "outcome": outcome,
            "egress_outcome": outcome,
            "outcome_after_ns": hops[0]["outcome_after_ns"],
            "settled": self.waits is None,
            "size": self.size,
            "priority": 4,
            "delivery_count": 0,
            "sender": "sender",
            "sender_link": "out",
            "receiver": "receiver",
            "receiver_link": "in",
            "copy": False,
            "legs": 1,
            "complete": True,
            "contradictions": [],
            **self.more,
        }


def frame(spark: SparkSession, rows: Iterable[Mapping[str, Any]], columns: Iterable[Column] = ATTEMPTS) -> DataFrame:
    """Return such rows as a frame of Spark. A column that a row lacks is null, and so may be any other."""
    schema = pa.schema([each.with_nullable(True) for each in arrow_schema(columns)])
    found: DataFrame = spark.createDataFrame(pa.Table.from_pylist([dict(row) for row in rows], schema))
    return found
