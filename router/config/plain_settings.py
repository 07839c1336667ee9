"""The keys of a table with their values as plain data: texts, numbers, lists and maps, as requests have them, too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final

from amqpmesh.router.config.connector import PasswordConfig
from amqpmesh.router.config.tables import Table, declared, key_of, toml

HIDDEN: Final = (Path, PasswordConfig)
"""Values that are left out: the places of files and passwords."""

LARGEST: Final = 2**63
"""Whole numbers from here on are shown as text: TOML and AMQP's `long` have none so large."""


class PlainSettings(Mapping[str, object]):
    """The keys of one table. A value is made when it is read."""

    __slots__ = ("_row",)

    def __init__(self, row: Table) -> None:
        self._row = row

    def __getitem__(self, key: str) -> object:
        found = next((value for name, value in self._shown() if name == key), None)
        if found is None:
            raise KeyError(key)
        return _plain(found)

    def __iter__(self) -> Iterator[str]:
        return (key for key, _ in self._shown())

    def __len__(self) -> int:
        return sum(1 for _ in self._shown())

    def __repr__(self) -> str:
        return repr(self.plain())

    def plain(self) -> dict[str, object]:
        """Return all keys that have a value."""
        return {key: _plain(value) for key, value in self._shown()}

    def _shown(self) -> Iterator[tuple[str, object]]:
        for item in declared(type(self._row)):
            value = getattr(self._row, item.name)
            if not item.metadata["apart"] and _is_shown(value):
                yield key_of(item), value


def _is_shown(value: object) -> bool:
    if isinstance(value, tuple) and value:
        return _is_shown(value[0])
    return value is not None and not isinstance(value, HIDDEN) and not callable(value)


def _plain(value: Any) -> object:
    if isinstance(value, Table):
        return PlainSettings(value).plain()
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool | float | str) or (isinstance(value, int) and type(value) is int and value < LARGEST):
        return value
    return toml(value)
