"""Names that programs give, which are symbols on the wire (§1.6.21)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.errors import CommandError, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def symbol(name: str) -> Symbol:
    """The name as a symbol. Raises: CommandError: it is none."""
    if not isinstance(name, str) or not name.isascii():
        raise CommandError(f"{shown(name)} is no symbol: it is text of ASCII characters")
    return Symbol(name)


def symbols(names: Iterable[str]) -> tuple[Symbol, ...]:
    """The names as symbols. Raises: CommandError: one is none; or it is one name, where several are asked for."""
    if isinstance(names, str):
        raise CommandError(f"{shown(names)} is one name: give a list of them")
    return tuple(map(symbol, names))


def by_symbol(fields: Mapping[str, Any] | None) -> dict[Symbol, Any] | None:
    """The fields with symbols as keys. Raises: CommandError: a key is none."""
    return None if fields is None else {symbol(key): value for key, value in fields.items()}
