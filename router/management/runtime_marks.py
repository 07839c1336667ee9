"""The marks of what management has changed: the difference between the configuration in force and the one that the
router was given.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpmesh.router.config.differences import differences
from amqpmesh.router.config.edits import KINDS
from amqpmesh.router.config.plain_settings import PlainSettings
from amqpmesh.router.statistics.configured import TableStatistics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from amqpmesh.router.config.file import ConnectorConfig, LinkConfig, ListenerConfig, RouterConfig
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.statistics.configured import ConnectorStatistics, ContainerLinkStatistics, ListenerStatistics
    from amqpmesh.router.statistics.router_statistics import Statistics

    CostOf = Callable[[ListenerConfig | ConnectorConfig], int]

NAMED: Final = 100
"""Keys that a router names as changed at most."""

ROWS_A_STEP: Final = 64
"""Tables that one step of a snapshot reads."""

PATTERNS: Final = KINDS["address-pattern"]

ONCE: Final = [each for each in KINDS.values() if each.key is None and each.attribute]


class Marks(NamedTuple):
    """The changes that management has made."""

    rows: frozenset[tuple[str, str]] = frozenset()
    """The tables that have come or have changed, each by its type of entities and its name."""
    gone: int = 0
    """The number of those that are gone."""
    keys: tuple[str, ...] = ()
    """The keys that differ."""

    @property
    def has_router_keys(self) -> bool:
        """True if keys of the table of the router itself differ."""
        return any(key.startswith("router.") for key in self.keys)

    @property
    def total(self) -> int:
        """The number of tables that differ."""
        return len(self.rows) + self.gone


def marks_between(given: RouterConfig, running: RouterConfig) -> Marks:
    """Return the marks of a configuration. Args: given: the one that the router was given."""
    if given is running:
        return Marks()
    rows: set[tuple[str, str]] = set()
    gone = 0
    for kind in KINDS.values():
        if kind.attribute:
            before, after = kind.rows(given), kind.rows(running)
            rows.update((kind.kind, name) for name, row in after.items() if before.get(name) != row)
            gone += len(before.keys() - after.keys())
    return Marks(frozenset(rows), gone, tuple(each.key for each in differences(given, running)))


def with_settings(told: Statistics, config: RouterConfig, marks: Marks, cost_of: CostOf) -> Steps[Statistics]:
    """Return statistics with the settings of the configuration in force, and the marks, in steps."""
    listeners = {each.name: each for each in config.listeners}
    connectors = {each.name: each for each in config.connectors}
    links = {each.name: each for each in config.container_links}
    costs = [
        *(f"listener[{each.name}].cost" for each in config.listeners if cost_of(each) != (each.cost or 1)),
        *(f"connector[{each.name}].cost" for each in config.connectors if cost_of(each) != (each.cost or 1)),
    ]
    keys = list(dict.fromkeys((*marks.keys, *costs)))
    if len(keys) > NAMED:
        keys[NAMED:] = [f"and {len(keys) - NAMED} more"]
    patterns = []
    for number, (name, row) in enumerate(PATTERNS.rows(config).items(), 1):
        patterns.append(_table(PATTERNS.kind, name, row, marks))
        if number % ROWS_A_STEP == 0:
            yield
    return replace(
        told,
        router=replace(told.router, changed=tuple(keys), settings=PlainSettings(config)),
        listeners=tuple(_listener(each, listeners, marks, cost_of) for each in told.listeners),
        connectors=tuple(_connector(each, connectors, marks, cost_of) for each in told.connectors),
        container_links=tuple(_link(each, links, marks) for each in told.container_links),
        address_patterns=tuple(patterns),
        tables=tuple(_table(kind.kind, name, row, marks) for kind in ONCE for name, row in kind.rows(config).items()),
    )


def _table(kind: str, name: str, row: object, marks: Marks) -> TableStatistics:
    return TableStatistics(name=name, runtime=(kind, name) in marks.rows, settings=PlainSettings(row))  # type: ignore[arg-type]  # a table


def _listener(
    told: ListenerStatistics, rows: Mapping[str, ListenerConfig], marks: Marks, cost_of: CostOf
) -> ListenerStatistics:
    row = rows.get(told.name)
    if row is None:
        return told
    is_marked = ("listener", told.name) in marks.rows or cost_of(row) != (row.cost or 1)
    return replace(told, runtime=is_marked, settings=PlainSettings(row))


def _connector(
    told: ConnectorStatistics, rows: Mapping[str, ConnectorConfig], marks: Marks, cost_of: CostOf
) -> ConnectorStatistics:
    row = rows.get(told.name)
    if row is None:  # it is one on demand
        return told
    is_marked = ("connector", told.name) in marks.rows or cost_of(row) != (row.cost or 1)
    return replace(told, runtime=is_marked, settings=PlainSettings(row))


def _link(told: ContainerLinkStatistics, rows: Mapping[str, LinkConfig], marks: Marks) -> ContainerLinkStatistics:
    row = rows.get(told.name)
    if row is None:
        return told
    return replace(told, runtime=("container-link", told.name) in marks.rows, settings=PlainSettings(row))
