"""Metrics of a router: tables of limited size, and the documents that scrapers get of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from amqpmesh.policies.patterns import PatternTable
from amqpmesh.router.http import families
from amqpmesh.router.http.measures import measure
from amqpmesh.router.http.rows import OTHER, STEP, Row, Subject, Table, lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from amqpmesh.router.core import Core
    from amqpmesh.router.http.families import Family
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.statistics.configured import ListenerStatistics

PLAIN: Final = "text/plain; version=0.0.4; charset=utf-8"
OPEN: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

LABELS: Final = ("address", "tenant")

# The parts of the series that each kind of subjects has, in tenths of all. The router itself has some twenty.
ADDRESSES: Final = 6
OF_TENANTS: Final = 1
NEIGHBOURS: Final = 0.5
LISTENERS: Final = 0.5

LONGEST: Final = 256
"""Characters of a pattern that a scraper asks for: each address is compared with all of its parts."""

REMEMBERED: Final = 10_000
"""Neighbours whose octets are remembered while they are not connected."""


class Scope(NamedTuple):
    """The rights of a scraper."""

    tenant: str
    """Its tenant; "": all."""
    kinds: frozenset[str]
    """The types of entities that it may read."""


class Selection(NamedTuple):
    """The addresses that a scraper asks for."""

    tenant: str | None
    """Their tenant; None: any."""
    pattern: str
    """As in `[[address]]`."""


class Metrics:
    """The metrics of one router."""

    def __init__(
        self, core: Core, listeners: Callable[[], Sequence[ListenerStatistics]], most: Callable[[], int]
    ) -> None:
        """Args: listeners: returns the state of the router's listeners. most: returns how many series a document has,
        about.
        """
        self._core = core
        self._listeners = listeners
        self._wanted = most
        self._most = self._share()
        worker = core.context.config.worker
        self._octets = _NeighbourOctets()
        #: The worker of the router, if it has several.
        self._fixed = fixed = () if worker is None else (("worker", str(worker.number)),)
        self._addresses = Table(families.ADDRESS, LABELS, self._part(ADDRESSES), fixed)
        #: The addresses without a row, by tenant.
        self._rest = Table(families.ADDRESS, LABELS[1:], self._part(OF_TENANTS), (*fixed, (LABELS[0], OTHER)))
        self._tenants = Table(families.TENANT, ("tenant",), self._part(OF_TENANTS), fixed)
        self._latencies = Table(families.LATENCY, ("tenant",), self._part(OF_TENANTS), fixed)
        self._neighbours = Table(families.NEIGHBOUR, ("neighbour",), self._part(NEIGHBOURS), fixed)
        self._of_listeners = Table(families.LISTENER, ("listener",), self._part(LISTENERS), fixed)
        #: All tables, with the tenths of the series that each has.
        self._tables = (
            (self._addresses, ADDRESSES),
            *((table, OF_TENANTS) for table in (self._rest, self._tenants, self._latencies)),
            (self._neighbours, NEIGHBOURS),
            (self._of_listeners, LISTENERS),
        )
        self._router: Subject | None = None

    def refresh(self) -> Steps[None]:
        """Read all counts, in steps."""
        self._fit()
        found = yield from measure(self._core, self._listeners())
        policy = self._core.context.policy
        yield from self._addresses.update(found.addresses, None if policy is None else policy.part)
        rest = [Subject(tenant, (tenant,), values, tenant) for tenant, values in self._addresses.others()]
        yield from self._rest.update(rest)
        yield from self._tenants.update(found.tenants)
        yield from self._latencies.update(found.latencies)
        yield from self._neighbours.update(self._octets.grown(found.neighbours))
        yield from self._of_listeners.update(found.listeners)
        self._router = Subject("", (), found.router)

    def document(self, scope: Scope, *, is_open: bool) -> Steps[bytes]:
        """Return all that a scraper may see by default, in steps."""
        return (yield from _joined(self._sections(scope), is_open=is_open))

    def selected(self, scope: Scope, selection: Selection, *, is_open: bool) -> Steps[bytes]:
        """Return the series of the addresses that a scraper asks for, in steps."""
        table = PatternTable([(selection.pattern, True)])
        most = self._most // families.series(families.ADDRESS)
        rows: list[Row] = []
        left_out = 0
        if "address" in scope.kinds:
            for number, subject in enumerate(list(self._addresses.subjects())):
                if number % STEP == 0:
                    yield
                if (
                    OTHER not in subject.labels
                    and subject.tenant == (scope.tenant or subject.tenant)
                    and selection.tenant in (None, subject.tenant)
                    and table.lookup(subject.labels[0])
                ):
                    if len(rows) < most:
                        rows.append(self._addresses.row(subject))
                    else:
                        left_out += 1
        left = Row(families.LEFT_OUT, self._fixed, Subject("", (), (left_out,)))
        return (yield from _joined([(families.ADDRESS, rows), (families.LEFT_OUT, [left])], is_open=is_open))

    def _sections(self, scope: Scope) -> Iterator[tuple[tuple[Family, ...], Sequence[Row]]]:
        tenant, kinds = scope
        if "router" in kinds and not tenant and self._router is not None:
            yield families.ROUTER, [Row(families.ROUTER, self._fixed, self._router)]
        if "router" in kinds:
            for table in (self._tenants, self._latencies):
                yield table.families, self._of_tenant(table, tenant) if tenant else table.with_other()
        if "address" in kinds and tenant:
            own = [each for each in self._addresses.rows.values() if each.tenant == tenant]
            yield families.ADDRESS, [*own, *self._of_tenant(self._rest, tenant)]
        elif "address" in kinds:
            yield families.ADDRESS, [*self._addresses.rows.values(), *self._rest.with_other()]
        if "neighbour" in kinds and not tenant:
            yield families.NEIGHBOUR, self._neighbours.with_other()
        if "listener" in kinds and not tenant:
            yield families.LISTENER, self._of_listeners.with_other()

    @staticmethod
    def _of_tenant(table: Table, tenant: str) -> list[Row]:
        """Return the row of a tenant, whether the table has room for it or not."""
        return [table.row(each) for each in table.subjects() if each.tenant == tenant]

    def _share(self) -> int:
        """Return how many of the router's series this worker has."""
        worker = self._core.context.config.worker
        return self._wanted() if worker is None else self._wanted() // worker.count

    def _fit(self) -> None:
        """Have as many series as the configuration says now."""
        most = self._share()
        if most != self._most:
            self._most = most
            for table, tenths in self._tables:
                table.resize(self._part(tenths))

    def _part(self, tenths: float) -> int:
        return int(self._most / 10 * tenths)


def _joined(sections: Iterable[tuple[tuple[Family, ...], Sequence[Row]]], *, is_open: bool) -> Steps[bytes]:
    parts: list[str] = []
    for of_kind, rows in sections:
        for part in lines(of_kind, rows, is_open=is_open):
            parts.append(part)
            yield
    if is_open:
        parts.append("# EOF\n")
    return "".join(parts).encode()


class _NeighbourOctets:
    """Octets of neighbours: those of all their connections so far, of which each begins with 0."""

    def __init__(self) -> None:
        self._seen: dict[object, tuple[float, float]] = {}
        self._sums: dict[str, list[float]] = {}

    def grown(self, found: Sequence[Subject]) -> list[Subject]:
        """Return the neighbours with sums of their octets. Args: found: a subject for each connection."""
        seen, self._seen = self._seen, {}
        values: dict[str, tuple[float, ...]] = {}
        for subject in found:
            (name,) = subject.labels
            octets = subject.values[0], subject.values[1]
            before = seen.get(subject.key, (0, 0))
            self._seen[subject.key] = octets
            sums = self._sums.setdefault(name, [0, 0])
            for each in range(2):
                sums[each] += max(0, octets[each] - before[each])
            self._sums[name] = self._sums.pop(name)  # the one that was there last is forgotten last
            up, cost = subject.values[2], subject.values[3]
            if name not in values or (up, -cost) > (values[name][0], -values[name][1]):
                values[name] = up, cost
        while len(self._sums) > REMEMBERED:
            del self._sums[next(iter(self._sums))]
        return [Subject(name, (name,), (*self._sums[name], *rest)) for name, rest in values.items()]
