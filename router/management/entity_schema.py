"""The schema of the entities: their attributes, the keys that requests may change, and their operations."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from amqpmesh.router.config.connector import PasswordConfig
from amqpmesh.router.config.tables import Effect, Table, declared, effect_of, key_of, toml
from amqpmesh.router.management.entities import TYPES

if TYPE_CHECKING:
    from dataclasses import Field

    from amqpmesh.router.amqp.codec.types import Value
    from amqpmesh.router.config.edits import TableKind
    from amqpmesh.router.management.entities import EntityType

_SIMPLE: Final[Mapping[type, str]] = {bool: "boolean", int: "integer", float: "number", str: "string"}

USER: Final = "user"
"""The type, without prefix, that has keys without being a table of the configuration."""


def _of_user(kind: str, *, required: bool = False, default: str | None = None, update: bool = True) -> Value:
    effect = Effect.AT_ONCE.value
    return {
        "type": kind,
        "create": True,
        "update": update,
        "required": required,
        "default": default,
        "effect": effect,
    }


_OF_USERS: Final[Mapping[Value, Value]] = {
    "password": _of_user("string", required=True),
    "groups": _of_user("list", default="[]"),
    "disabled": _of_user("boolean", default="false"),
    "listener": _of_user("string"),
}

_OF_FILES: Final = (Path, PasswordConfig)


def schema(names: typing.Iterable[str], operations: typing.Callable[[str], Value]) -> Value:
    """Return the schema of types: `entityTypes`, a map by their names, each with `attributes` and `operations`.

    An attribute has a `type`, and tells whether CREATE and UPDATE take it. `settings` has `keys`: those of the table of
    the configuration, each with its `type` (a list: one of these words), whether it is `required`, its `default` as
    TOML, and its `effect`; keys that need a restart, or that name files, are not for requests. Users have `keys`, too.
    Args: operations: returns the operations of a type.
    """
    return {"entityTypes": {name: _entity(TYPES[name], operations(name)) for name in names}}


def _entity(kind: EntityType, operations: Value) -> Value:
    attributes: dict[str, Any] = {}
    for name, primitive in kind.attributes.items():
        is_new = kind.table is not None and kind.table.key is not None and name in ("name", "settings")
        changes = name in kind.changeable or (kind.table is not None and name == "settings")
        attributes[name] = {"type": primitive.value, "create": is_new, "update": changes}
    if kind.table is not None:
        attributes["settings"]["keys"] = _keys(kind.table)
    told: dict[Any, Value] = {"attributes": attributes, "operations": operations}
    if kind.kind == USER:
        told["keys"] = dict(_OF_USERS)
    return told


def _keys(table: TableKind) -> dict[str, Value]:
    hints = typing.get_type_hints(table.cls)
    return {
        key_of(item): _key(table, item, hints[item.name]) for item in declared(table.cls) if not item.metadata["apart"]
    }


def _key(table: TableKind, item: Field[Any], hint: Any) -> Value:
    effect = effect_of(table.cls, item.name)
    is_given = effect is not Effect.RESTART and not any(_is_of_files(each) for each in _options(hint))
    default = item.default
    return {
        "type": _type(hint),
        "create": is_given and table.key is not None,
        "update": is_given and item.name != table.key,
        "required": default is MISSING and item.default_factory is MISSING,
        "default": None if default is MISSING or default is None or item.name == "name" else toml(default),
        "effect": effect.value,
    }


def _options(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(each for each in typing.get_args(hint) if each is not types.NoneType)
    return (hint,)


def _is_of_files(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, _OF_FILES)


def _type(hint: Any) -> Value:
    """Return the type of a key: a word, or a list of the words that it may be."""
    first, *_ = _options(hint)
    origin = typing.get_origin(first)
    if origin is Literal:
        return [str(each) for each in typing.get_args(first)]
    if origin is tuple:
        return "list"
    if issubclass(first, Enum):
        return [str(each.value) for each in first]
    if first in _SIMPLE:
        return _SIMPLE[first]
    return "map" if issubclass(first, Table | Mapping) else "string"
