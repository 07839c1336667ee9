"""The limits of links, and the shares of tenants in them: the file `limits.toml`, which an operator writes."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyarrow import fs

from amqpmesh.router.amqp.errors import CommandError

FILE: Final = "limits.toml"
"""The name of the file, in the directory of results."""

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


def read(out: str) -> Limits:
    """Read the file. Args: out: the directory of results, a path or a URI. Returns: no limits, if there is no file.

    Raises: CommandError: the file is not valid, or cannot be read.
    """
    system, path = fs.FileSystem.from_uri(out) if "://" in out else (fs.LocalFileSystem(), out)
    place = f"{path.rstrip('/')}/{FILE}"
    try:
        if system.get_file_info(place).type == fs.FileType.NotFound:
            return Limits()
        with system.open_input_stream(place) as stream:
            return parsed(stream.readall().decode())
    except (OSError, ValueError) as error:  # of both kinds are errors of TOML and of UTF-8
        raise CommandError(f"{out}/{FILE}: {error}") from None


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
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most or math.isinf(value):
        upper = "" if math.isinf(most) else f", and at most {most:g}"
        raise ValueError(f"{key}: is a number above 0{upper}, not {value!r}")
    return float(value)
