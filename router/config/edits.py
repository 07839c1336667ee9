"""Changes of single tables of a configuration: a row that comes, changes or goes, and the keys of a table that is there
once.

A change makes another whole configuration, which is checked like one that was read from a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.config.address import AddressConfig
from amqpmesh.router.config.connector import ConnectorConfig, LinkConfig, PasswordConfig
from amqpmesh.router.config.file import RouterConfig
from amqpmesh.router.config.limits import Limits
from amqpmesh.router.config.listener import ListenerConfig
from amqpmesh.router.config.observability import LogConfig, MetricsConfig, TelemetryConfig, TracingConfig
from amqpmesh.router.config.redirect import ElsewhereConfig
from amqpmesh.router.config.resumption import ResumptionConfig
from amqpmesh.router.config.tables import Table, changed, declared, read

MAX_TEXT: Final = 1_024
"""Characters of a text in a request at most."""

MAX_NAME: Final = 255
"""Characters of a row's name, or of its pattern, at most: it is in the log, in metrics, and in answers."""

SOURCE: Final = Path("management")
"""The name of the file in errors. Paths of a request start at the working directory, as those of a file there."""

Edit = Callable[[RouterConfig], RouterConfig]
"""A function that returns another configuration. Raises: ConfigError, EditError."""


class EditError(Exception):
    """A change that cannot be made."""


class MissingRowError(EditError):
    """A change of a row that is not there."""


class TakenNameError(EditError):
    """A new row with the name of another one."""


class DeniedKeyError(EditError):
    """A key that nobody may change so."""


class TableKind(NamedTuple):
    """One of the tables of a configuration that can be changed while the router runs."""

    kind: str
    """The type of entities, without its prefix."""
    table: str
    """Its name in the file."""
    attribute: str
    """Its attribute in `RouterConfig`; "": it is that table itself."""
    cls: type[Table]
    key: str | None
    """The key that names a row; None: the table is there once."""
    is_optional: bool = False
    """A table that is there once can be missing."""

    def rows(self, config: RouterConfig) -> Mapping[str, Any]:
        """Return the rows by their names; a table that is there once has the name of its type, the router its id."""
        if self.key is not None:
            return {getattr(row, self.key): row for row in getattr(config, self.attribute)}
        if not self.attribute:
            return {config.id if config.worker is None else config.worker.name: config}
        found = getattr(config, self.attribute)
        return {} if found is None else {self.kind: found}


KINDS: Final[Mapping[str, TableKind]] = {
    each.kind: each
    for each in (
        TableKind("router", "router", "", RouterConfig, None),
        TableKind("listener", "listener", "listeners", ListenerConfig, "name"),
        TableKind("connector", "connector", "connectors", ConnectorConfig, "name"),
        TableKind("container-link", "link", "container_links", LinkConfig, "name"),
        TableKind("address-pattern", "address", "addresses", AddressConfig, "pattern"),
        TableKind("elsewhere", "elsewhere", "elsewhere", ElsewhereConfig, None),
        TableKind("log", "log", "log", LogConfig, None),
        TableKind("telemetry", "telemetry", "telemetry", TelemetryConfig, None, is_optional=True),
        TableKind("metrics", "metrics", "metrics", MetricsConfig, None),
        TableKind("tracing", "tracing", "tracing", TracingConfig, None),
        TableKind("resumption", "resumption", "resumption", ResumptionConfig, None),
    )
}
"""By the type of entities."""


def create(config: RouterConfig, kind: TableKind, name: str, raw: Mapping[str, object]) -> RouterConfig:
    """Return a configuration with one more row.

    Args: raw: its keys. Raises: ConfigError: a key is not valid, or the row contradicts another one. EditError.
    """
    _check_texts(raw)
    if kind.key is None:
        return _begin_table(config, kind, raw)
    _check_name(name)
    if name in kind.rows(config):
        raise TakenNameError(f"there is one named {name!r}")
    if raw.get(kind.key, name) != name:
        raise ConfigError(str(SOURCE), kind.key, "is another one than the name of the request")
    row = read(kind.cls, {**raw, kind.key: name}, file=SOURCE, **_given(config, kind))
    _check_files(config, None, row)
    return _with(config, kind, (*getattr(config, kind.attribute), row))


def _begin_table(config: RouterConfig, kind: TableKind, raw: Mapping[str, object]) -> RouterConfig:
    if kind.rows(config):
        raise TakenNameError(f"a router has one {kind.table}, which can be changed")
    row: Any = read(kind.cls, raw, file=SOURCE)
    _check_files(config, None, row)
    return replace(config, **{kind.attribute: row})


def update(config: RouterConfig, kind: TableKind, name: str, raw: Mapping[str, object]) -> RouterConfig:
    """Return a configuration with other values of some keys of a row.

    A limit of the router that changes does so in the listeners and connectors that have the same value.
    Args: name: "" stands for a table that is there once. raw: these keys; None: the default.
    Raises: as `create`.
    """
    _check_texts(raw)
    row = _found(config, kind, name)
    if kind.key is not None and raw.get(kind.key, name) != name:
        raise ConfigError(str(SOURCE), kind.key, "names the row, and stays: delete this one and create another")
    there = changed(row, raw, file=SOURCE, **_given(config, kind))
    _check_files(config, row, there)
    if there == row:
        return config
    if isinstance(there, RouterConfig):
        return _with_limits(config, there)
    if kind.key is None:
        return replace(config, **{kind.attribute: there})
    rows = getattr(config, kind.attribute)
    return _with(config, kind, tuple(there if each is row else each for each in rows))


def delete(config: RouterConfig, kind: TableKind, name: str) -> RouterConfig:
    """Return a configuration without a row. Raises: ConfigError: another row needs it. EditError."""
    if kind.key is None and not kind.is_optional:
        raise DeniedKeyError(f"a router always has its table {kind.table}")
    row = _found(config, kind, name)
    if kind.key is None:
        missing: dict[str, Any] = {kind.attribute: None}
        return replace(config, **missing)
    return _with(config, kind, tuple(each for each in getattr(config, kind.attribute) if each is not row))


def _found(config: RouterConfig, kind: TableKind, name: str) -> Any:
    rows = kind.rows(config)
    found = next(iter(rows.values()), None) if kind.key is None and not name else rows.get(name)
    if found is None:
        raise MissingRowError(f"the configuration has no {kind.table}{f' {name!r}' if name else ''}")
    return found


def _with(config: RouterConfig, kind: TableKind, rows: tuple[Any, ...]) -> RouterConfig:
    """Return a configuration with other rows. Raises: ConfigError: its key names rows, in place of their positions."""
    lists = {each.table: each for each in KINDS.values() if each.key is not None}
    changes: dict[str, Any] = {kind.attribute: rows}
    try:
        return replace(config, **changes)
    except ConfigError as error:
        table, position, rest = re.fullmatch(r"(\w+)(?:\[(\d+)\])?(.*)", error.key, re.DOTALL).groups()  # type: ignore[union-attr]  # a key begins with a word
        named = lists.get(table)
        if position is None or named is None:
            raise ConfigError(str(SOURCE), error.key, error.reason) from None
        others = rows if named is kind else getattr(config, named.attribute)
        shown = f"{table}[{getattr(others[int(position)], str(named.key))}]{rest}"
        raise ConfigError(str(SOURCE), shown, error.reason) from None


def _with_limits(before: RouterConfig, after: RouterConfig) -> RouterConfig:
    names = ("connections", *(item.name for item in declared(Limits)))
    values = {name: getattr(after, name) for name in names if getattr(after, name) != getattr(before, name)}

    def follows(row: Any) -> Any:
        own = {name: value for name, value in values.items() if getattr(row, name, None) == getattr(before, name)}
        return replace(row, **own) if own else row

    if not values:
        return after
    return replace(
        after,
        listeners=tuple(map(follows, after.listeners)),
        connectors=tuple(map(follows, after.connectors)),
    )


def _given(config: RouterConfig, kind: TableKind) -> dict[str, Any]:
    """Return the values that rows have from the router, unless they have their own."""
    if kind.cls is ListenerConfig:
        return {"connections": config.connections, **config.limits()}
    return dict(config.limits()) if kind.cls is ConnectorConfig else {}


# ------------------------------------------------------------------------------------------------------- what is denied


def _check_name(name: str) -> None:
    if not 0 < len(name) <= MAX_NAME:
        raise ConfigError(str(SOURCE), "name", f"must have 1 to {MAX_NAME} characters")
    _check_texts({"name": name})


def _check_texts(raw: object, where: str = "") -> None:
    """Refuse texts that no file would have: names are in the log, in metrics and on screens."""
    if isinstance(raw, str):
        if len(raw) > MAX_TEXT:
            raise ConfigError(str(SOURCE), where, f"must have at most {MAX_TEXT} characters")
        if not raw.isprintable():
            raise ConfigError(str(SOURCE), where, "must be without control characters")
    elif isinstance(raw, Mapping):
        for key, value in raw.items():
            _check_texts(key, "a key")
            _check_texts(value, f"{where}.{key}" if where else str(key))
    elif isinstance(raw, list):
        for position, value in enumerate(raw):
            _check_texts(value, f"{where}[{position}]")


def _check_files(config: RouterConfig, before: Table | None, after: Table) -> None:
    """Refuse files that no file of the configuration names, and passwords that would go to another place.

    A client could have the router read any file of the machine otherwise, or send its content away.
    """
    named = set(_files(after))
    if named:
        named.difference_update(*(_files(row) for kind in KINDS.values() for row in kind.rows(config).values()))
    for key, _ in sorted(named, key=str):
        raise DeniedKeyError(f"{key}: no other table names this file: name it in the configuration file, and apply")
    if isinstance(before, TracingConfig) and isinstance(after, TracingConfig):
        if after.endpoint not in (None, before.endpoint):
            raise DeniedKeyError(
                "endpoint: the spans of all tenants, and perhaps a token, would go there: change the file, and apply"
            )
        return
    if not isinstance(after, ConnectorConfig) or after.password is None:
        return
    if not isinstance(before, ConnectorConfig) or before.password != after.password:
        raise DeniedKeyError("password: give it in the configuration file, and apply")
    for key in ("url", "hostname", "redirects", "tls", "user", "role"):
        if getattr(before, key) != getattr(after, key):
            raise DeniedKeyError(
                f"{key}: the connector has a password, which would go there: change the file, and apply"
            )


def _files(row: Table, where: str = "") -> Iterator[tuple[str, object]]:
    """Return the files and places of passwords that a table names, each with its key."""
    for item in declared(type(row)):
        value = getattr(row, item.name)
        key = f"{where}{item.name}"
        if item.metadata["apart"]:
            continue
        if isinstance(value, Path | PasswordConfig):
            yield key, value
        elif isinstance(value, Table):
            yield from _files(value, f"{key}.")
        elif isinstance(value, tuple):
            yield from ((key, each) for each in value if isinstance(each, Path))
