"""The busiest addresses and links of a router as text, with rates between two readings of its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from amqpmesh.router.cli.output.terminal import Cell, table

if TYPE_CHECKING:
    from amqpmesh.router.cli.output.listing import Entities, Entity

ORDERS: Final = ("rate", "octets", "waiting", "unsettled", "name")
"""The keys by which rows are sorted. `rate` counts deliveries in and out."""

_CUT: Final = frozenset({"address", "container", "tenant"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An address or a link: `rate_in` and `rate_out` are deliveries, `octets` those of messages, in a second."""

    kind: str
    tenant: str
    name: str
    rate_in: float
    rate_out: float
    octets: float
    waiting: int
    unsettled: int
    ends: Mapping[str, Cell]
    """The cells of this kind alone, by their headings."""
    reason: str | None

    @property
    def rate(self) -> float:
        """Deliveries in and out in a second."""
        return self.rate_in + self.rate_out


@dataclass(slots=True)
class Rates:
    """Rates of a router, whose state is given again and again."""

    _now: float | None = None
    _counts: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _rows: list[Row] | None = None

    def take(self, entities: Entities, now: float) -> list[Row] | None:
        """Return the rows since the reading before, or None after the first reading.

        Args: now: the time of the state, in seconds. If it is the same twice, the rows are those of before.
        """
        if now == self._now:
            return self._rows
        passed = None if self._now is None else now - self._now
        self._now, before = now, self._counts
        self._counts = {}
        rows = [*self._addresses(entities, before, passed), *self._links(entities, before, passed)]
        self._rows = None if passed is None else rows
        return self._rows

    def _addresses(self, entities: Entities, before: dict[str, tuple[int, ...]], passed: float | None) -> list[Row]:
        unsettled: dict[tuple[Any, Any], int] = {}
        octets: dict[tuple[Any, Any], int] = {}
        for link in entities["link"]:
            key = link["tenant"], link["address"]
            if link["direction"] == "outgoing":
                unsettled[key] = unsettled.get(key, 0) + link["unsettled"]
            octets[key] = octets.get(key, 0) + link["octets"]
        found = []
        for each in entities["address"]:
            key = each["tenant"], each["name"]
            counts = each["deliveries_in"], each["deliveries_out"], octets.get(key, 0)
            into, out, size = self._per_second(each, counts, before, passed)
            found.append(
                Row(
                    kind="address",
                    tenant=each["tenant"],
                    name=each["name"],
                    rate_in=into,
                    rate_out=out,
                    octets=size,
                    waiting=each["waiting"],
                    unsettled=unsettled.get(key, 0),
                    ends={"senders": each["producers"], "receivers": each["consumers"]},
                    reason=each["reason"],
                )
            )
        return found

    def _links(self, entities: Entities, before: dict[str, tuple[int, ...]], passed: float | None) -> list[Row]:
        containers = {each["number"]: each["container_id"] or f"#{each['number']}" for each in entities["connection"]}
        found = []
        for each in entities["link"]:
            into = each["direction"] == "incoming"
            rate, size = self._per_second(each, (each["deliveries"], each["octets"]), before, passed)
            found.append(
                Row(
                    kind="link",
                    tenant=each["tenant"],
                    name=each["address"] or "(any)",
                    rate_in=rate if into else 0.0,
                    rate_out=0.0 if into else rate,
                    octets=size,
                    waiting=each["undelivered"],
                    unsettled=each["unsettled"],
                    ends={
                        "container": containers.get(each["connection"]),
                        "role": "sender" if into else "receiver",
                        "credit": each["credit"],
                    },
                    reason=each["reason"],
                )
            )
        return found

    def _per_second(
        self, entity: Entity, counts: tuple[int, ...], before: dict[str, tuple[int, ...]], passed: float | None
    ) -> list[float]:
        """Return the growth of counts in a second. Those of an entity that is new are from 0 on."""
        name = entity["identity"]
        self._counts[name] = counts
        if not passed:
            return [0.0] * len(counts)
        old = before.get(name, (0,) * len(counts))
        return [max(0, count - earlier) / passed for count, earlier in zip(counts, old, strict=True)]


def lines(rows: Sequence[Row], order: str, most: int | None, width: int) -> list[str]:
    """Return the lines. Args: order: one of `ORDERS`. most: rows of each table at most; None: all."""
    has_tenants = any(row.tenant for row in rows)
    shown: list[str] = []
    for kind, title in (("address", "ADDRESSES"), ("link", "LINKS")):
        found = sorted((row for row in rows if row.kind == kind), key=_KEYS[order])
        if not found:
            continue
        cut = found if most is None else found[:most]
        headings = [
            *(("tenant",) if has_tenants else ()),
            *("address", "in/s", "out/s", "KiB/s", "waiting", "unsettled", *cut[0].ends, "why blocked"),
        ]
        cells = [
            [
                *((row.tenant or "operator",) if has_tenants else ()),
                *(row.name, round(row.rate_in, 1), round(row.rate_out, 1), round(row.octets / 1024, 1)),
                *(row.waiting, row.unsettled, *row.ends.values(), row.reason),
            ]
            for row in cut
        ]
        more = f" ({len(cut):,} of {len(found):,})" if len(cut) < len(found) else ""
        shown += ["", f"{title}{more}", *table(headings, cells, width, _CUT)]
    return shown


_KEYS: Final[dict[str, Callable[[Row], tuple[Any, ...]]]] = {
    "rate": lambda row: (-row.rate, -row.waiting, row.name),
    "octets": lambda row: (-row.octets, row.name),
    "waiting": lambda row: (-row.waiting, -row.rate, row.name),
    "unsettled": lambda row: (-row.unsettled, -row.rate, row.name),
    "name": lambda row: (row.name, -row.rate),
}
