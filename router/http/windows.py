"""Windows of lists of entities: some rows of an order, and the orders of all rows that clients ask for.

A list may have a hundred thousand rows, of which somebody looks at fifty. So a client asks for a window, by a text that
rows contain and an attribute by which they are sorted.
"""

from __future__ import annotations

import json
from heapq import merge
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from amqpmesh.router.amqp.codec.types import Primitive
from amqpmesh.router.http.requests import BAD_REQUEST, HttpError
from amqpmesh.router.http.siblings import ROUTER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.management.entities import EntityType

ROWS: Final = 200
"""Rows of a window at most."""

OCTETS: Final = 256 * 2**10
"""Octets of rows after which a window has no further one: peers choose names, and a client may read slowly."""

LONGEST: Final = 100
"""Characters of the text that rows are searched for."""

STEP: Final = 500
"""Rows that one step looks at, or sorts."""

RATE: Final = "rate"
"""The attribute of windows that entities do not have: deliveries a second, or of connections octets."""

PARAMETERS: Final = frozenset({"count", "offset", "sort", "filter", "attributes"})

COUNTED: Final[Mapping[str, tuple[str, ...]]] = {
    "address": ("deliveries_in", "deliveries_out"),
    "connection": ("octets_in", "octets_out"),
    "link": ("deliveries",),
    "lane": ("deliveries",),
}
"""The counters that a rate is made of, by the type of the entities."""

_TEXTS: Final = ("name", "address", "container_id", "user", "host", "tenant", "router", "neighbour", "reason", "role")


class Window(NamedTuple):
    """The rows that a client asks for."""

    offset: int
    most: int
    """Rows at most."""
    sort: str | None
    """An attribute; None: the order of the router."""
    is_descending: bool
    text: str
    """In the names and the other texts of a row, in any case; "": all rows."""
    attributes: tuple[str, ...]
    """Of each row."""


def window_of(query: Mapping[str, str], kind: EntityType) -> Window | None:
    """Return the window that a request asks for; None: it asks for all. Raises: HttpError: it is malformed."""
    if not PARAMETERS & query.keys():
        return None
    if query.keys() - PARAMETERS - {ROUTER}:
        raise HttpError(BAD_REQUEST, f"the parameters are {', '.join(sorted(PARAMETERS))} and {ROUTER}")
    sort = query.get("sort") or None
    is_descending = sort is not None and sort.startswith("-")
    sort = None if sort is None else sort.removeprefix("-")
    known = {*kind.attributes, RATE}
    if sort is not None and (sort not in known or kind.attributes.get(sort) in (Primitive.MAP, Primitive.LIST)):
        raise HttpError(BAD_REQUEST, "there is no such attribute to sort by")
    attributes = tuple(query["attributes"].split(",")) if query.get("attributes") else (*kind.attributes, RATE)
    if not known.issuperset(attributes):
        raise HttpError(BAD_REQUEST, "there is no such attribute")
    text = query.get("filter", "")
    if len(text) > LONGEST:
        raise HttpError(BAD_REQUEST, f"the text has more than {LONGEST} characters")
    offset, count = _number(query, "offset", 0), _number(query, "count", ROWS)
    return Window(offset, min(count, ROWS), sort, is_descending, text.casefold(), attributes)


def _number(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name, str(default))
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise HttpError(BAD_REQUEST, f"{name} is no count")
    return int(text)


class Rates:
    """Rates of the entities of one list, between two readings of all of them."""

    def __init__(self) -> None:
        #: The time of the last reading, seconds; None: there was none.
        self.at: float | None = None
        self._seen: dict[str, float] = {}
        self._rates: dict[str, float] = {}

    def take(self, kind: EntityType, entities: Iterable[Any], at: float) -> Steps[None]:
        """Take a reading, in steps. Args: at: its time, seconds; that of the last one: there is nothing to do."""
        counters = COUNTED.get(kind.kind)
        if counters is None or at == self.at:
            return
        seconds = 0.0 if self.at is None else at - self.at
        seen, rates = dict[str, float](), dict[str, float]()
        for number, entity in enumerate(entities):
            if number % STEP == 0:
                yield
            key, count = kind.identity(entity), float(sum(getattr(entity, name) for name in counters))
            seen[key] = count
            if seconds > 0 and key in self._seen:
                rates[key] = max(0.0, count - self._seen[key]) / seconds
        self.at, self._seen, self._rates = at, seen, rates

    def of(self, identity: str) -> float | None:
        """Return the rate of an entity, a second; None: it was read once only."""
        return self._rates.get(identity)


def ordered(
    kind: EntityType, entities: Sequence[Any], window: Window, rate: Callable[[str], float | None]
) -> Steps[list[Any]]:
    """Return the entities that a window is of, sorted, in steps. Those without the attribute come last.

    Args: rate: returns the rate of an entity by its identity.
    """
    texts = kind.reader([name for name in _TEXTS if name in kind.attributes])
    value_of = _value(kind, window, rate)
    with_value: list[tuple[Any, int, Any]] = []
    without: list[Any] = []
    for number, entity in enumerate(entities):
        if number % STEP == 0:
            yield
        if window.text and not any(window.text in each.casefold() for each in texts(entity) if isinstance(each, str)):
            continue
        value = number if value_of is None else value_of(entity)
        if value is None:
            without.append(entity)
        else:
            # By the place of the router among equals: a row stays where it is.
            with_value.append((value, -number if window.is_descending else number, entity))
    runs = []
    for at in range(0, len(with_value), STEP):
        runs.append(sorted(with_value[at : at + STEP], key=_key, reverse=window.is_descending))
        yield
    found: list[Any] = []
    for number, (_, _, entity) in enumerate(merge(*runs, key=_key, reverse=window.is_descending)):
        if number % STEP == 0:
            yield
        found.append(entity)
    return found + without


def _key(row: tuple[Any, int, Any]) -> tuple[Any, int]:
    return row[0], row[1]


def _value(
    kind: EntityType, window: Window, rate: Callable[[str], float | None]
) -> Callable[[Any], float | str | None] | None:
    """Return the function that reads the value by which a row is sorted; None: they stay as they are."""
    if window.sort is None:
        return None
    if window.sort == RATE:
        counters = COUNTED.get(kind.kind, ())

        def rated(entity: Any) -> float | None:
            found = rate(kind.identity(entity))
            # Before there are rates, those are first that have had the most.
            return sum(getattr(entity, name) for name in counters) / 1e18 if found is None else found

        return rated
    read = kind.reader([window.sort])

    def value(entity: Any) -> float | str | None:
        (found,) = read(entity)
        return found.casefold() if isinstance(found, str) else found  # type: ignore[return-value]  # no map or list

    return value


def rows(
    kind: EntityType, entities: Iterable[Any], window: Window, rate: Callable[[str], float | None]
) -> Steps[list[bytes]]:
    """Return the rows of a window in JSON, in steps; fewer, if they are longer than `OCTETS`."""
    names = [name for name in window.attributes if name != RATE]
    read, has_rate = kind.reader(names), RATE in window.attributes
    found: list[bytes] = []
    size = 0
    for entity in entities:
        told: dict[str, Any] = dict(zip(names, read(entity), strict=True))
        if has_rate:
            told[RATE] = rate(kind.identity(entity))
        row = json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
        size += len(row)
        if found and size > OCTETS:
            break
        found.append(row)
        yield
    return found
