"""Checks of arguments that programs pass, at the call that takes them."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any, Final

import trio

from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.errors import CommandError, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LONGEST: Final = 86_400.0
"""The most seconds that a peer is asked to keep its end of a link."""


def demand_trio() -> None:
    """Check that this is a task of Trio.

    Raises: CommandError: it is not, so nothing of the client would work.
    """
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        raise CommandError(
            'amqpmesh runs on Trio: run this inside `trio.run`; in asyncio see "In an asyncio program" in '
            "docs/develop/embedding.md"
        ) from None


def whole(name: str, value: int, largest: int | None = None) -> int:
    """Return a whole number. Raises: CommandError: the value is no int, or not 0 to `largest`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0 or (largest is not None and value > largest):
        limits = "0 or more" if largest is None else f"0 to {largest}"
        raise CommandError(f"{name} is a whole number, {limits}, not {shown(value)}")
    return value


def seconds_to_keep(resume: float) -> int:
    """Return the seconds that a peer is asked to keep its end of a link, a whole number.

    Raises: CommandError: they are not positive, or more than a day.
    """
    if not 0 < resume <= LONGEST:
        raise CommandError(f"resume is a number of seconds, {LONGEST:.0f} at most")
    return ceil(resume)


def text(name: str, value: str | None) -> str | None:
    """Return a name or an address. Raises: CommandError: the value is neither text nor None."""
    if value is not None and not isinstance(value, str):
        raise CommandError(f"{name} is text or None, not {shown(value)}")
    return value


def symbol(name: str) -> Symbol:
    """Return a name as a symbol (§1.6.21). Raises: CommandError: it is no ASCII text."""
    if not isinstance(name, str) or not name.isascii():
        raise CommandError(f"{shown(name)} is no symbol: it is text of ASCII characters")
    return Symbol(name)


def symbols(names: Iterable[str]) -> tuple[Symbol, ...]:
    """Return names as symbols. Raises: CommandError: one is no ASCII text, or there is one name in place of a list."""
    if isinstance(names, str):
        raise CommandError(f"{shown(names)} is one name: give a list of them")
    return tuple(map(symbol, names))


def by_symbol(fields: Mapping[str, Any] | None) -> dict[Symbol, Any] | None:
    """Return the fields with symbols as keys. Raises: CommandError: a key is no ASCII text."""
    return None if fields is None else {symbol(key): value for key, value in fields.items()}
