"""Traffic that is known beforehand: its records at each router, and the rows that follow from them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from amqpmesh.router.telemetry.schema import Kind, Outcome
from amqpmesh.router.telemetry.segments import Name
from tests.support.data.segments import ANSWERED, BEGAN, BEGUN, COPY, SETTLED, TIMED, WHOLE_SAMPLE, Recorder, at, hop

STAY: Final = 50_000
"""Nanoseconds in each router."""

CROSSING: Final = 300_000
"""Nanoseconds between two routers."""


@dataclass(frozen=True)
class Delivery:
    """One attempt to deliver. Each of `ways` leads from the ingress router to a receiver."""

    number: int
    ways: tuple[tuple[str, ...], ...]
    receivers: tuple[str, ...]
    time: int
    address: str
    tenant: str
    sender: str
    size: int
    outcome: Outcome
    condition: str
    settled: bool
    attempt: int
    first: int
    priority: int
    copies: tuple[bool, ...]


@dataclass
class Known:
    """Routers, and their records.

    Args: sample: of keys, 2**-32; the others are counted only. alike: all clients call their links the same.
    """

    directory: Path
    routers: Sequence[str]
    seed: int = 0
    sample: int = WHOLE_SAMPLE
    alike: bool = False
    deliveries: list[Delivery] = field(default_factory=list)
    recorders: dict[str, Recorder] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._links: dict[tuple[str, str, str, str], int] = {}
        self._records: dict[str, list[Any]] = {router: [] for router in self.routers}
        self._counter = 0
        for router in self.routers:
            self.recorders[router] = Recorder(self.directory / router, router, sample=self.sample)

    def deliver(
        self,
        *ways: str,
        seconds: float | None = None,
        address: str = "orders",
        tenant: str = "",
        sender: str = "shop",
        receivers: Sequence[str] | None = None,
        size: int | None = None,
        outcome: Outcome = Outcome.ACCEPTED,
        condition: str = "",
        settled: bool = False,
        attempt: int = 1,
        first: Delivery | None = None,
        priority: int = 4,
        copies: Sequence[bool] = (),
        unrecorded: str = "",
        sampled: bool = True,
    ) -> Delivery:
        """Record a delivery on these ways. Args: ways: letters of routers, each from the ingress router; several for
        multicast.
        receivers: of each way; an empty one: it does not leave the last router. unrecorded: routers without a record.
        """
        self._counter += 1
        delivery = Delivery(
            self._counter, tuple(tuple(way) for way in ways), tuple(receivers or ["desk"] * len(ways)),
            at(self._chance.random() * 600 if seconds is None else seconds), address, tenant, sender,
            self._chance.randrange(1, 5_000) if size is None else size, outcome, condition, settled, attempt,
            first.number if first else self._counter, priority, tuple(copies) or (False,) * len(ways),
        )  # fmt: skip
        self.deliveries.append(delivery)
        passages = {}
        for way, receiver, copy in zip(delivery.ways, delivery.receivers, delivery.copies, strict=True):
            for index, router in enumerate(way):
                last = index == len(way) - 1
                came, went = way[index - 1] if index else sender, receiver if last else way[index + 1]
                passages[router, came, went, index] = (last and copy, max(map(len, delivery.ways)))
        for (router, came, went, index), (copy, longest) in passages.items():
            if sampled and router not in unrecorded:
                self.record(delivery, router, came, went, index, longest=longest, copy=copy)
        return delivery

    def record(
        self, delivery: Delivery, router: str, came: str, went: str, index: int, *, longest: int, copy: bool = False
    ) -> None:
        """Record `delivery` at `router`, once more if it is recorded there already.

        Args: came, went: the names of its peers there. index: of the router on its way. longest: routers on the
        longest of its ways.
        """
        incoming = self._link(router, "incoming", came, delivery)
        outgoing = self._link(router, "outgoing", went, delivery) if went else 0
        lone = longest == 1 and not index
        flags = (BEGUN if not index else 0) | (SETTLED if delivery.settled else 0) | (COPY if copy else 0)
        answered = not delivery.settled and delivery.outcome is not Outcome.NONE
        record = hop(
            time=delivery.time + index * (STAY + CROSSING),
            ingress=1 + self.routers.index(delivery.ways[0][0]),
            epoch=BEGAN,
            counter=delivery.number,
            first=0 if delivery.first == delivery.number else delivery.first,
            attempt=0 if index else delivery.attempt,
            hops_left=0 if lone else longest + 16 - max(0, index - 1),
            priority=delivery.priority,
            outcome=int(delivery.outcome),
            flags=flags | (TIMED if went else 0) | (ANSWERED if answered else 0),
            incoming=incoming,
            outgoing=outgoing,
            address=self._link(router, "address", "", delivery),
            condition=self._condition(router, delivery.condition),
            size=delivery.size,
            in_router=STAY if went else 0,
            outcome_after=(longest - index) * 1_000_000 if answered else 0,
        )
        self._records[router].append(record)

    def unrecord(self, router: str) -> None:
        """Forget all records of `router`."""
        self._records[router].clear()

    def _link(self, router: str, direction: str, peer: str, delivery: Delivery) -> int:
        key = router, direction, peer, delivery.address + "\0" + delivery.tenant
        if key not in self._links:
            lane = peer in self.routers and peer != router
            name = direction if self.alike else f"{direction}-{peer}-{delivery.address}-{delivery.tenant}"
            self._links[key] = self.recorders[router].link(
                name, direction, peer or None, lane=lane, address=delivery.address, tenant=delivery.tenant
            )
        return self._links[key]

    def _condition(self, router: str, condition: str) -> int:
        key = router, "condition", condition, ""
        if condition and key not in self._links:
            self._links[key] = self.recorders[router].link(condition, "condition", None, address=None, tenant=None)
        return self._links.get(key, 0)

    def key(self, delivery: Delivery, number: int | None = None) -> bytes:
        ingress = 1 + self.routers.index(delivery.ways[0][0])
        counter = delivery.number if number is None else number
        return ingress.to_bytes(8, "big") + BEGAN.to_bytes(6, "big") + counter.to_bytes(6, "big")

    def count(self, router: str, records: Sequence[dict[str, Any]]) -> None:
        """Write counters of links."""
        self.recorders[router].put(Kind.COUNTS, records)

    def close(self, segments: int = 2) -> list[Name]:
        """Write all records to files, in no order, in that many segments of each router."""
        names = []
        for router, recorder in self.recorders.items():
            records = self._records[router]
            self._chance.shuffle(records)
            for part in range(segments):
                some = records[part::segments]
                for begin in range(0, len(some), 50):
                    recorder.hops(*some[begin : begin + 50])
                names.append(recorder.name)
                recorder.close()
            records.clear()
        return names
