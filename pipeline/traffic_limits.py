"""The limits of links, and the shares of tenants in them: the file `limits.toml`, which an operator writes."""

from __future__ import annotations

import math
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pyarrow import fs

from amqpmesh.router.amqp.errors import CommandError

if TYPE_CHECKING:
    from amqpmesh.pipeline.contingency import Case
    from amqpmesh.pipeline.routing import Amounts

FILE: Final = "limits.toml"
"""The name of the file, in the directory of results."""

MINUTE: Final = 60.0
"""Seconds of a window of the table `traffic/matrix`."""

_SAME: Final = 1e-9
"""The relative difference up to which amounts are equal."""

_KEYS: Final[Mapping[str, frozenset[str]]] = {
    "link": frozenset({"router", "neighbour", "bytes_per_second"}),
    "tenant": frozenset({"name", "share"}),
}


@dataclass(frozen=True)
class Limits:
    """Limits.

    Args: links: of each direction of a link, from -> to, in octets of payload a second. tenants: the share of each
        link's limit that a tenant may use, above 0 and at most 1.
    """

    links: Mapping[tuple[str, str], float] = field(default_factory=dict)
    tenants: Mapping[str, float] = field(default_factory=dict)

    def of(self, total: float, busiest: float) -> Allowed:
        """Return what the limits allow in a whole time, so that they hold in its busiest minute, too.

        It is taken that each link has the same part of the mesh's traffic in each minute.
        Args: total: the octets of the time. busiest: those of its busiest minute.
        """
        scale = MINUTE * (total / busiest if busiest else 1.0)
        return Allowed({edge: most * scale for edge, most in self.links.items()}, self.tenants)


@dataclass(frozen=True)
class Allowed:
    """The octets that each direction of a link may carry in a time, and the shares of tenants in them."""

    links: Mapping[tuple[str, str], float] = field(default_factory=dict)
    tenants: Mapping[str, float] = field(default_factory=dict)

    def above(self, case: Case) -> dict[tuple[str, ...], float]:
        """Return what is above its limit: directions of links, and of links with a tenant, with their octets."""
        return dict(self._above(case))

    def broken(self, known: Mapping[tuple[str, ...], float], after: Case) -> list[tuple[str, ...]]:
        """Return what a change of costs puts above its limit, or raises where it is above already.

        Args: known: what was above before the change.
        """
        return [place for place, load in self.above(after).items() if load > known.get(place, 0.0) * (1 + _SAME)]

    def _above(self, case: Case) -> Iterator[tuple[tuple[str, ...], float]]:
        routers = case.network.routers
        edges = [(routers[a], routers[b]) for a, b in zip(case.network.tails, case.network.heads, strict=True)]
        limits = np.array([self.links.get(edge, math.inf) for edge in edges], dtype=np.float64)

        def over(load: Amounts, share: float) -> Iterator[tuple[tuple[str, str], float]]:
            for at in np.flatnonzero(load > limits * share * (1 + _SAME)).tolist():
                yield edges[at], float(load[at])

        yield from over(case.traffic.load, 1.0)
        for tenant, share in self.tenants.items():
            # A tenant has a part of the load at most. Most have no chance to be above, and are not routed.
            if any(over(case.traffic.load, share)):
                for edge, octets in over(case.load_of(tenant), share):
                    yield (*edge, tenant), octets


def read(out: str) -> Limits:
    """Read the file. Args: out: the directory of results, a path or a URI. Returns: no limits, if there is no file.

    Raises: CommandError: the file is not valid, or cannot be read.
    """
    try:
        return parsed(octets(out).decode())
    except (OSError, ValueError) as error:  # errors of TOML and of UTF-8 are of the latter kind
        raise CommandError(f"{out}/{FILE}: {error}") from None
    except RecursionError:
        raise CommandError(f"{out}/{FILE}: its values are nested too deeply") from None


def octets(out: str) -> bytes:
    """Return the content of the file; nothing, if there is none. Raises: OSError: it cannot be read."""
    system, path = fs.FileSystem.from_uri(out) if "://" in out else (fs.LocalFileSystem(), out)
    place = f"{path.rstrip('/')}/{FILE}"
    if system.get_file_info(place).type == fs.FileType.NotFound:
        return b""
    with system.open_input_stream(place) as stream:
        content: bytes = stream.readall()
    return content


def parsed(text: str) -> Limits:
    """Return the limits that a text has. Raises: ValueError: it is no TOML, or not of this form."""
    told = tomllib.loads(text)
    _check_keys("the file", told, frozenset(_KEYS))
    links: dict[tuple[str, str], float] = {}
    tenants: dict[str, float] = {}
    for row in _rows(told, "link"):
        edge = _name(row, "router"), _name(row, "neighbour")
        if edge in links:
            raise ValueError(f"[[link]] {edge[0]!r} to {edge[1]!r}: is there twice")
        links[edge] = _number(row, "bytes_per_second", math.inf)
    for row in _rows(told, "tenant"):
        name = _name(row, "name")
        if name in tenants:
            raise ValueError(f"[[tenant]] {name!r}: is there twice")
        tenants[name] = _number(row, "share", 1.0)
    return Limits(links, tenants)


def _rows(told: Mapping[str, Any], kind: str) -> list[Mapping[str, Any]]:
    rows = told.get(kind, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{kind}: is a table of its own, [[{kind}]]")
    for row in rows:
        _check_keys(f"[[{kind}]]", row, _KEYS[kind])
    return rows


def _check_keys(place: str, row: Mapping[str, Any], known: frozenset[str]) -> None:
    for name in row:
        if name not in known:
            raise ValueError(f"{place}: has no key {name!r}; there are {', '.join(sorted(known))}")


def _name(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{key}: is a name, not {value!r}")
    return value


def _number(row: Mapping[str, Any], key: str, most: float) -> float:
    value = row.get(key)
    # A number of TOML has any length; no link carries more than the largest float.
    largest = min(most, sys.float_info.max)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= largest:
        upper = "" if math.isinf(most) else f", and at most {most:g}"
        raise ValueError(f"{key}: is a number above 0{upper}, not {value!r:.50}")
    return float(value)
