"""What programs give, looked at before anything is done with it: what is wrong is said at the door it came in by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.errors import CommandError, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def demand_trio() -> None:
    """Raises: CommandError: this is no task of Trio's, so nothing here would work."""
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        raise CommandError(
            'amqpmesh runs on Trio: run this inside `trio.run`; in asyncio see "In an asyncio program" in '
            "docs/develop/embedding.md"
        ) from None


def whole(name: str, value: int, largest: int | None = None) -> int:
    """A number of things. Raises: CommandError: it is no int, or not 0 to `largest`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0 or (largest is not None and value > largest):
        limits = "0 or more" if largest is None else f"0 to {largest}"
        raise CommandError(f"{name} is a whole number, {limits}, not {shown(value)}")
    return value


def text(name: str, value: str | None) -> str | None:
    """A name or an address. Raises: CommandError: it is no text, and not None."""
    if value is not None and not isinstance(value, str):
        raise CommandError(f"{name} is text or None, not {shown(value)}")
    return value


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
