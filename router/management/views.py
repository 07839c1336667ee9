"""Views of a router's statistics: all of it for operators, and for a tenant its own part.

A tenant's view has the entities that bear its name, and the router with the tenant's own counts. The configuration of
the router, and its mesh, are the operator's. A number that the router gives to all connections or links in turn would
tell how many others there are: a view has another number in its place, always the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from amqpmesh.router.management.entities import TYPES, EntityType
from amqpmesh.router.statistics.router_statistics import RouterStatistics, Statistics, TenantTotals

if TYPE_CHECKING:
    from amqpmesh.router.incremental import Steps

HALF: Final = 24
"""Bits of each half of a number in a view: together few enough for numbers in JSON."""

MASK: Final = (1 << HALF) - 1

ROUNDS: Final = 4
"""Rounds of the permutation of numbers."""

_NUMBERS: Final = {"number": None, "connection": "connection", "maker": "connection"}
"""The attributes that are such numbers, with the type of entities that they number; None: those of the entity."""

Permits = Callable[[str], bool]
"""A function that tells whether the asking peer has a right to the entities of a type, by its name without prefix."""


@dataclass(frozen=True, slots=True)
class View:
    """The entities that an asking peer may see. Args: may_read, may_change: its rights."""

    entities: Callable[[EntityType], Sequence[Any]]
    may_read: Permits = lambda _: True
    may_change: Permits = lambda _: True


def whole(statistics: Statistics, may_read: Permits = lambda _: True, may_change: Permits = lambda _: True) -> View:
    """Return the view of an operator."""
    return View(lambda kind: kind.entities(statistics), may_read, may_change)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterOfTenant(TenantTotals):
    """The router as one tenant sees it: the tenant's own counts, and a part of `RouterStatistics`."""

    id: str
    now: float
    started_at: float
    draining: bool
    connections: int
    links: int
    addresses: int
    buffered: int


class Numbers:
    """Numbers of connections and links as tenants see them: a permutation of all numbers, by a secret key."""

    def __init__(self, key: bytes) -> None:
        """Args: key: 16 octets, random for each run of a router."""
        self._key = key

    def of(self, number: int, kind: str) -> int:
        """Return the number in place of another one, 0 to 2**48 - 1. Different numbers have different ones.

        Args: kind: the type of entities that it numbers. Each has a permutation of its own: a connection and a link
            with the same number would tell how many others there are.
        """
        left, right = number >> HALF, number & MASK
        for each in range(ROUNDS):
            left, right = right, left ^ self._mixed(right, each, kind)
        return left << HALF | right

    def behind(self, number: int, kind: str) -> int:
        """Return the number that another one stands for: the reverse of `of`."""
        left, right = number >> HALF, number & MASK
        for each in reversed(range(ROUNDS)):
            left, right = right ^ self._mixed(left, each, kind), left
        return left << HALF | right

    def _mixed(self, half: int, each: int, kind: str) -> int:
        salt = bytes([each]) + kind[:15].encode()
        return int.from_bytes(blake2b(half.to_bytes(3, "big"), digest_size=3, key=self._key, salt=salt).digest(), "big")


class TenantViews:
    """The parts of one snapshot by tenant. Making it takes one pass over all entities; each part is made when asked."""

    def __init__(self, statistics: Statistics, numbers: Numbers) -> None:
        self._statistics = statistics
        self._numbers = numbers
        self._rows: dict[str, dict[str, list[Any]]] | None = None
        self._parts: dict[str, Mapping[str, Sequence[Any]]] = {}

    def of(self, tenant: str) -> Steps[Mapping[str, Sequence[Any]]]:
        """Return the entities that a tenant sees, by type, in steps. Args: tenant: not the operator's."""
        if self._rows is None:
            self._rows = yield from self._by_tenant()
        part = self._parts.get(tenant)
        if part is None:
            rows: dict[str, Sequence[Any]] = {}
            for kind, found in self._rows.get(tenant, {}).items():
                rows[kind] = shown = []
                for entity in found:
                    shown.append(self.shown(kind, entity))
                    yield
            rows["router"] = (self._router(tenant, rows),)
            part = self._parts[tenant] = rows
        return part

    def _by_tenant(self) -> Steps[dict[str, dict[str, list[Any]]]]:
        rows: dict[str, dict[str, list[Any]]] = {}
        for kind in TYPES.values():
            if "tenant" in kind.attributes:
                for entity in kind.entities(self._statistics):
                    if entity.tenant:
                        rows.setdefault(entity.tenant, {}).setdefault(kind.kind, []).append(entity)
                    yield
        return rows

    def unmasked(self, kind: str, entity: Any) -> Any:
        """Return an entity of a tenant's view with the numbers that the operator sees."""
        return replace(entity, **_renumbered(kind, entity, self._numbers.behind))

    def shown(self, kind: str, entity: Any) -> Any:
        """Return an entity without what would tell of other tenants."""
        changed = _renumbered(kind, entity, self._numbers.of)
        if kind == "lane":
            changed["name"] = f"lane/{changed['number']}"  # its own one has the number of lanes so far
        return replace(entity, **changed) if changed else entity

    def _router(self, tenant: str, rows: Mapping[str, Sequence[Any]]) -> RouterOfTenant:
        router: RouterStatistics = self._statistics.router
        totals = self._statistics.totals.get(tenant) or NOTHING
        return RouterOfTenant(
            id=router.id,
            now=router.now,
            started_at=router.started_at,
            draining=router.draining,
            connections=len(rows.get("connection", ())),
            links=len(rows.get("link", ())),
            addresses=len(rows.get("address", ())),
            buffered=sum(each.buffered for each in rows.get("address", ())),
            **{each.name: getattr(totals, each.name) for each in fields(totals)},
        )


def _renumbered(kind: str, entity: Any, number_of: Callable[[int, str], int]) -> dict[str, Any]:
    """Return the numbers of an entity, each replaced by another one."""
    return {
        name: number_of(number, of or kind)
        for name, of in _NUMBERS.items()
        if (number := getattr(entity, name, None)) is not None
    }


NOTHING: Final = TenantTotals(presettled=0, accepted=0, rejected=0, released=0, modified=0)


def of_tenant(
    part: Mapping[str, Sequence[Any]], may_read: Permits = lambda _: True, may_change: Permits = lambda _: True
) -> View:
    """Return the view of a tenant's peer. Args: part: of `TenantViews`."""
    return View(lambda kind: part.get(kind.kind, ()), may_read, may_change)
