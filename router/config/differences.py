"""Differences between two configurations of one router, and the effect of each of them while the router runs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from amqpmesh.router.config.listener import ListenerConfig
from amqpmesh.router.config.tables import Effect, Table, declared, effect_of, key_of, toml

if TYPE_CHECKING:
    from amqpmesh.router.config.file import RouterConfig

T = TypeVar("T", bound=Table)

Identity = Callable[[Any], Hashable]
"""A function that returns what a row keeps when it changes; rows with the same are one row. None: it has nothing."""


class _Rows(NamedTuple):
    """A list of tables: its attribute, its name in the file, and what two versions of one row have in common."""

    attribute: str
    name: str
    shown: Identity
    identities: tuple[Identity, ...]
    """The first that matches counts."""


def _fixed_url(listener: Any) -> Hashable:
    # The system chooses a port anew for each listener with port 0.
    fixed: Hashable = listener.url if listener.endpoint.port or listener.endpoint.is_unix else None
    return fixed


def _name(row: Any) -> Hashable:
    name: Hashable = row.name
    return name


ROWS: Final = (
    _Rows("token_issuers", "token_issuer", lambda row: row.issuer, (lambda row: row.issuer,)),
    _Rows("token_keys", "token_key", _name, (_name,)),
    # Without a name of its own a listener is named after its scheme and its place among others.
    _Rows("listeners", "listener", _name, (_fixed_url, _name)),
    _Rows("connectors", "connector", _name, (_name,)),
    _Rows("container_links", "link", _name, (lambda row: replace(row, name=""), _name)),
    _Rows("addresses", "address", lambda row: row.pattern, (lambda row: row.pattern,)),
)

SHARED: Final = "the workers of the router share their ports, which are bound before they start"
"""The reason why a listener of a router with workers needs a restart."""

WAITING: Final = "the process that has started the workers waits that long for their end"
"""The reason why `drain` and `drain_timeout` of such a router need one."""

SINGLE: Final = (
    "mesh",
    "policy",
    "tokens",
    "elsewhere",
    "log",
    "audit",
    "telemetry",
    "metrics",
    "tracing",
    "resumption",
)
"""The tables that a configuration has once."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A key, or a whole table, that differs."""

    key: str
    """Its place in the file: `listener[amqps].sasl`, `address[news/#]`."""
    effect: Effect
    before: str | None
    """The value in force, as TOML; None: there is none."""
    after: str | None
    """The value that is to be in force, in the same way."""
    reason: str = ""
    """The reason why it needs a restart."""

    @property
    def needs_restart(self) -> bool:
        """True if the change waits for a restart."""
        return self.effect is Effect.RESTART


def pairs(before: Sequence[T], after: Sequence[T], *identities: Identity) -> list[tuple[T | None, T | None]]:
    """Return the two versions of each row: first those that change or stay, then new ones (None, row), then those that
    are gone (row, None).

    Args: identities: the first one by which two rows are the same counts.
    """
    found: dict[int, T] = {}
    free = dict(enumerate(before))
    for identity in identities:
        known = {value: at for at, row in free.items() if (value := identity(row)) is not None}
        for at, row in enumerate(after):
            here = known.pop(identity(row), None) if at not in found else None
            if here is not None:
                found[at] = free.pop(here)
    same: list[tuple[T | None, T | None]] = [(found[at], row) for at, row in enumerate(after) if at in found]
    return [
        *same,
        *((None, row) for at, row in enumerate(after) if at not in found),
        *((row, None) for row in free.values()),
    ]


def row_pairs(before: RouterConfig, after: RouterConfig, attribute: str) -> list[tuple[Any, Any]]:
    """Return the two versions of each row of a list of tables. Args: attribute: `listeners`, `connectors`, ..."""
    rows = next(each for each in ROWS if each.attribute == attribute)
    return pairs(getattr(before, attribute), getattr(after, attribute), *rows.identities)


def differences(before: RouterConfig, after: RouterConfig) -> tuple[Difference, ...]:
    """Return what differs, in the order of the file's tables. The order of rows in a list is no difference."""
    found = _all(before, after)
    return tuple(found if before.worker is None else map(_of_worker, found))


def _of_worker(found: Difference) -> Difference:
    is_new = found.before is None and found.key.startswith("listener[") and found.key.endswith("]")
    if is_new or found.effect is Effect.BOUND_ANEW:
        return replace(found, effect=Effect.RESTART, reason=SHARED)
    if found.key in ("router.drain", "router.drain_timeout"):
        return replace(found, effect=Effect.RESTART, reason=WAITING)
    return found


def in_force(running: RouterConfig, wanted: RouterConfig) -> RouterConfig:
    """Return the wanted configuration, with the running values of what needs a restart.

    Raises: ConfigError: these values and the others contradict each other.
    """
    kept: dict[str, Any] = {name: _kept(getattr(running, name), getattr(wanted, name)) for name in SINGLE}
    for rows in ROWS:
        here, there = getattr(running, rows.attribute), getattr(wanted, rows.attribute)
        kind = next((type(row) for row in (*here, *there)), None)
        kept[rows.attribute] = here if kind is not None and kind.EFFECT is Effect.RESTART else there
    kept["listeners"] = _listeners_in_force(running, wanted)
    if running.worker is not None:
        kept["drain"] = running.drain
        kept["drain_timeout"] = running.drain_timeout
    for item in declared(type(wanted)):
        if not item.metadata["apart"] and effect_of(type(wanted), item.name) is Effect.RESTART:
            kept[item.name] = getattr(running, item.name)
    return replace(wanted, **kept, worker=running.worker)


def _listeners_in_force(running: RouterConfig, wanted: RouterConfig) -> tuple[ListenerConfig, ...]:
    found: dict[int, ListenerConfig] = {}
    places = {id(each): at for at, each in enumerate(wanted.listeners)}
    for old, new in row_pairs(running, wanted, "listeners"):
        place = places.get(id(new), len(places) + len(found))
        if new is not None and running.worker is None:
            found[place] = new
        elif new is not None and old is not None:
            found[place] = replace(new, url=old.url, role=old.role)
    return tuple(each for _, each in sorted(found.items(), key=lambda item: item[0]))


def _kept(old: Any, new: Any) -> Any:
    """Return a table with the old values of keys that need a restart."""
    if old is None or new is None:
        there = new if old is None else old
        return old if there is not None and there.EFFECT is Effect.RESTART else new
    kept = {
        item.name: getattr(old, item.name)
        for item in declared(type(new))
        if effect_of(type(new), item.name) is Effect.RESTART
    }
    return replace(new, **kept) if kept else new


def _all(before: RouterConfig, after: RouterConfig) -> Iterator[Difference]:
    yield from _of_table(before, after, "router")
    for name in SINGLE:
        yield from _of_value(getattr(before, name), getattr(after, name), name, None)
    for rows in ROWS:
        for old, new in row_pairs(before, after, rows.attribute):
            yield from _of_value(old, new, f"{rows.name}[{rows.shown(new or old)}]", None)


def _of_table(old: Table, new: Table, where: str) -> Iterator[Difference]:
    for item in declared(type(new)):
        if not item.metadata["apart"]:
            values = getattr(old, item.name), getattr(new, item.name)
            yield from _of_value(*values, f"{where}.{key_of(item)}", (type(new), item.name))


def _of_value(old: Any, new: Any, where: str, key: tuple[type[Table], str] | None) -> Iterator[Difference]:
    """Args: key: the table and the attribute; None: the values are whole tables of the file."""
    if old == new:
        return
    if isinstance(old, Table) and isinstance(new, Table):
        yield from _of_table(old, new, where)
        return
    owner, effect = (type(new or old), (new or old).EFFECT) if key is None else (key[0], effect_of(*key))
    reason = owner.RESTART if effect is Effect.RESTART else ""
    yield Difference(where, effect, _shown(old), _shown(new), reason)


def _shown(value: Any) -> str | None:
    """Return a value as TOML; of a table, the keys that do not have their defaults."""
    if value is None:
        return None
    if callable(value):
        return "a function"
    if not isinstance(value, Table):
        return toml(value)
    items = ((item, getattr(value, item.name)) for item in declared(type(value)))
    told = (f"{key_of(item)} = {_shown(here)}" for item, here in items if here is not None and here != item.default)
    return "{ " + ", ".join(told) + " }"
