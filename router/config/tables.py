"""Tables of a TOML file as frozen dataclasses, declared once: name, type, default, limits.

`@table` makes a class whose fields are `setting(...)`. `read` makes an object of it from the result of `parsed`. The
same declarations check tables that a program makes.
"""

import json
import keyword
import math
import tomllib
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeVar, dataclass_transform

from amqpmesh.router.amqp.errors import ConfigError

T = TypeVar("T", bound="Table")
C = TypeVar("C")


class Words(dict[str, tuple[str, ...]]):
    """A table of the file whose keys are free: each has a text, or a list of texts. Never changed once it is read."""

    def __hash__(self) -> int:  # type: ignore[override]  # of a table that is never changed
        return hash(frozenset(self.items()))


class Effect(StrEnum):
    """The way in which a changed key comes into effect while the router runs."""

    AT_ONCE = "at once"
    NEW_CONNECTIONS = "for new connections"
    NEW_LINKS = "for new links"
    BOUND_ANEW = "listener is bound anew"
    RESTART = "restart"


class Rule(NamedTuple):
    """A rule for several keys of a table. If it is `broken`, the error names `key`."""

    key: str
    reason: str
    broken: Callable[[Any], bool]


def parsed(file: Path) -> dict[str, Any]:
    """Return the document in a TOML file.

    Raises: ConfigError: it cannot be read, is not UTF-8, or not TOML; the reason has line and column.
    """
    try:
        return parsed_text(file.read_bytes(), file)
    except OSError as error:
        raise ConfigError(str(file), "file", error.strerror or str(error)) from None


def parsed_text(text: bytes, file: Path) -> dict[str, Any]:
    """Return the document in the octets of a TOML file. Raises: as `parsed`."""
    try:
        document = tomllib.loads(text.decode())
        _check_numbers(document)
        return document
    except ValueError as error:
        reason = str(error)
    except RecursionError:
        reason = "arrays or tables are nested too deeply"
    raise ConfigError(str(file), "file", reason)


def _check_numbers(document: dict[str, Any]) -> None:
    """Raise ValueError if a document has a whole number of more than 64 bits, as TOML demands: Python reads all."""
    values: list[object] = [document]
    while values:
        value = values.pop()
        if isinstance(value, dict):
            values += value.values()
        elif isinstance(value, list):
            values += value
        elif isinstance(value, int) and not -LARGEST - 1 <= value <= LARGEST:
            raise ValueError("has a whole number of more than 64 bits")


def setting(
    *,
    default: object = MISSING,
    factory: Callable[[], object] | None = None,
    low: float | None = None,
    high: float | None = None,
    check: Callable[[Any], str | None] | None = None,
    apart: bool = False,
    effect: Effect | None = None,
) -> Any:
    """Declare a key of a table; without default or factory it is required.

    Args: low, high: the least and the greatest value. check: returns the reason to refuse a value, or None. apart: in
        the file it is no key of this table, but a table of its own. effect: of a change; None: that of its table.
    """
    metadata = {"low": low, "high": high, "check": check, "apart": apart, "effect": effect}
    if factory is not None:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


LARGEST: Final = 2**63 - 1
"""The largest whole number of TOML."""

#: The hash of a table, among its attributes. What is made of a table once begins with two underscores there.
_HASH: Final = "__hash"


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(setting,))
def table(cls: type[C]) -> type[C]:
    """Make a frozen dataclass with keyword arguments only, which is hashed once: it is the key of many look-ups."""
    made: Any = dataclass(frozen=True, kw_only=True)(cls)
    by_fields = made.__hash__

    def hashed(self: C) -> int:
        known: int | None = vars(self).get(_HASH)
        if known is None:
            known = vars(self)[_HASH] = by_fields(self)
        return known

    def state(self: C) -> dict[str, Any]:  # another process has another hash of the same text
        return {name: value for name, value in vars(self).items() if not name.startswith("__")}

    made.__hash__, made.__getstate__ = hashed, state
    return made  # type: ignore[no-any-return]  # the class itself


class Table:
    """The common base of tables: it checks each key by itself, then keys against each other."""

    RULES: ClassVar[tuple[Rule, ...]] = ()
    EFFECT: ClassVar[Effect] = Effect.RESTART
    """The effect of a change of a key that this class declares without another one."""
    RESTART: ClassVar[str] = ""
    """The reason why a change needs a restart, for people."""

    def __post_init__(self) -> None:
        """Check the values.

        Raises: ConfigError: a value outside its limits, or keys that contradict each other. Its `file` is the name of
            the class, until `read` replaces it.
        """
        for name, kind in _word_types(type(self)).items():
            # A program can use the words of the file in place of paths and members of enumerations.
            value = getattr(self, name)
            if isinstance(value, str) and not isinstance(value, kind):
                try:
                    object.__setattr__(self, name, Path(value) if kind is Path else _choice(_members(kind), value))
                except _RefusedError as refused:
                    raise ConfigError(type(self).__name__, name, refused.reason) from None
        for item in declared(type(self)):
            value = getattr(self, item.name)
            reason = None if value is None else _refusal(value, item.metadata)
            if reason is not None:
                raise ConfigError(type(self).__name__, key_of(item), reason)
        for rule in self.RULES:
            if rule.broken(self):
                raise ConfigError(type(self).__name__, rule.key, rule.reason)


def declared(cls: type[Table]) -> tuple[Field[Any], ...]:
    """Return the keys of a table, in the order of their declaration."""
    return fields(cls) if is_dataclass(cls) else ()


def effect_of(cls: type[Table], name: str) -> Effect:
    """Return the effect of a change of a key. Args: name: of the attribute."""
    owner = next(each for each in cls.__mro__ if name in vars(each).get("__annotations__", ()))
    item = next(each for each in declared(cls) if each.name == name)
    effect: Effect = item.metadata["effect"] or owner.EFFECT  # type: ignore[attr-defined]  # tables declare them
    return effect


def key_of(item: Field[Any]) -> str:
    """Return a key as the file has it: an attribute whose name would be a word of Python ends with an underscore."""
    return item.name.removesuffix("_")


_word_keys: dict[type[Table], Mapping[str, type]] = {}
_types_of_keys: dict[type[Table], Mapping[str, Any]] = {}


def _word_types(cls: type[Table]) -> Mapping[str, type]:
    """Return the keys whose values are paths or one of several words, with the class of the values."""
    if cls in _word_keys:
        return _word_keys[cls]
    hints = _hints(cls)
    found: dict[str, type] = {}
    for item in declared(cls):
        hint = hints[item.name]
        for kind in (hint, *typing.get_args(hint)):
            if isinstance(kind, type) and (kind is Path or issubclass(kind, Enum)):
                found[item.name] = kind
    return _word_keys.setdefault(cls, found)


def _members(kind: type[Enum]) -> Mapping[str, Enum]:
    return {member.value: member for member in kind}


def _refusal(value: Any, limits: Mapping[str, Any]) -> str | None:
    low, high, check = limits["low"], limits["high"], limits["check"]
    if low is not None and value < low:
        return f"must be at least {low}"
    if high is not None and value > high:
        return f"must be at most {high}"
    reason: str | None = check(value) if check is not None else None
    return reason


class _RefusedError(Exception):
    """A value that does not fit its declaration: `where` is the path from the table to the value, as text."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(where, reason)
        self.where = where
        self.reason = reason

    def within(self, outer: str) -> "_RefusedError":
        return _RefusedError(f"{outer}{'.' if self.where[:1] not in ('', '[') else ''}{self.where}", self.reason)


def read(cls: type[T], raw: object, *, file: Path, where: str = "", **given: object) -> T:
    """Return a table from a parsed TOML table.

    Args: raw: as `parsed` returns it; anything but a table is refused.
        file: the file that it is from: relative paths start at its folder.
        where: the name of the table in the file.
        given: values of keys that the TOML table does not have; they precede the keys' own defaults.
    Raises: ConfigError: naming the file and the key, `listener[0].tls.key`.
    """
    try:
        return _table(cls, raw, file.parent, given)
    except _RefusedError as refused:
        at = refused.within(where) if where else refused
        raise ConfigError(str(file), at.where, at.reason) from None


def rows(cls: type[T], raw: Mapping[str, object], name: str, *, file: Path, **given: object) -> Iterator[tuple[str, T]]:
    """Return the tables of a list of tables in a parsed document, each with its key in errors, `listener[0]`.

    Args: name: of the list; without it there are none. file, given: as of `read`.
    Raises: ConfigError: as `read`.
    """
    found = raw.get(name, [])
    if not isinstance(found, list):
        raise ConfigError(str(file), name, f"is a list of tables: [[{name}]]")
    for position, row in enumerate(found):
        key = f"{name}[{position}]"
        yield key, read(cls, row, file=file, where=key, **given)


def _table(cls: type[T], raw: object, folder: Path, given: Mapping[str, object]) -> T:
    if not isinstance(raw, Mapping):
        raise _RefusedError("", "must be a table")
    items, values = _items(cls), _values(cls, raw, folder)
    missing = next((key_of(item) for name, item in items.items() if _is_mandatory(item) and name not in values), None)
    if missing is not None:
        raise _RefusedError(missing, "is missing")
    try:
        return cls(**{**given, **values})
    except ConfigError as error:
        raise _RefusedError(error.key, error.reason) from None


def changed(shown: T, raw: Mapping[str, object], *, file: Path, **given: object) -> T:
    """Return a table with other values of some keys.

    Args: raw: these keys, with values as `parsed` returns them. None: the key has its default again, or the value of
        `given`. file, given: as of `read`.
    Raises: ConfigError: as `read`, with the key alone.
    """
    cls = type(shown)
    items = _items(cls)
    try:
        values = _values(cls, {name: value for name, value in raw.items() if value is not None}, file.parent)
        for spelling, value in raw.items():
            if value is None:
                name = _attribute(items, spelling)
                if name in values:
                    raise _RefusedError(spelling, "given twice, with hyphens and with underscores")
                values[name] = given[name] if name in given else _default(items[name])
        return replace(shown, **values)  # type: ignore[type-var]  # tables are dataclasses
    except _RefusedError as refused:
        raise ConfigError(str(file), refused.where, refused.reason) from None
    except ConfigError as error:
        raise ConfigError(str(file), error.key, error.reason) from None


def _default(item: Field[Any]) -> object:
    if _is_mandatory(item):
        raise _RefusedError(key_of(item), "has no default")
    return item.default if item.default_factory is MISSING else item.default_factory()


def _items(cls: type[Table]) -> dict[str, Field[Any]]:
    return {item.name: item for item in declared(cls) if not item.metadata["apart"]}


def _attribute(items: Mapping[str, Field[Any]], spelling: str) -> str:
    """Return the attribute of a key."""
    name = spelling.replace("-", "_")
    if keyword.iskeyword(name):
        name += "_"
    if name not in items:
        raise _RefusedError(spelling, f"unknown key; known are {', '.join(sorted(map(key_of, items.values())))}")
    return name


def _hints(cls: type[Table]) -> Mapping[str, Any]:
    """Return the types of the keys of a table, worked out once: a policy has thousands of tables of one class."""
    found = _types_of_keys.get(cls)
    return _types_of_keys.setdefault(cls, typing.get_type_hints(cls)) if found is None else found


def _values(cls: type[Table], raw: Mapping[str, object], folder: Path) -> dict[str, object]:
    items = _items(cls)
    hints = _hints(cls)
    values: dict[str, object] = {}
    for spelling, value in raw.items():
        name = _attribute(items, spelling)
        if name in values:
            raise _RefusedError(spelling, "given twice, with hyphens and with underscores")
        try:
            values[name] = _value(hints[name], value, folder)
        except _RefusedError as refused:
            raise refused.within(spelling) from None
    return values


def emptiness(text: str) -> str | None:
    """Refuse an empty text: return the reason, or None."""
    return None if text else "must not be empty"


def _is_mandatory(item: Field[Any]) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def _value(kind: Any, value: object, folder: Path) -> object:
    """Convert a value of TOML, which has fewer types, to that of its key."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):  # X | None: TOML has no null; a key without a value is left out
        options = [option for option in typing.get_args(kind) if option is not types.NoneType]
        listed = [option for option in options if typing.get_origin(option) is tuple]
        # A single value can stand for a list of one.
        return _value(listed[0] if listed and isinstance(value, list) else options[0], value, folder)
    if origin is tuple:
        return _list(typing.get_args(kind)[0], value, folder)
    if origin is Literal:
        return _choice({choice: choice for choice in typing.get_args(kind)}, value)
    if issubclass(kind, Table):
        return _table(kind, value, folder, {})
    if issubclass(kind, Words):
        return _words(value, folder)
    if issubclass(kind, Enum):
        return _choice(_members(kind), value)
    if hasattr(kind, "from_toml"):  # a quantity, in a number or a text
        try:
            return kind.from_toml(value)
        except ValueError as error:
            raise _RefusedError("", str(error)) from None
    return _SCALARS[kind](value, folder)


def _list(kind: Any, value: object, folder: Path) -> tuple[object, ...]:
    if not isinstance(value, list):
        raise _RefusedError("", "must be a list")
    values = []
    for position, item in enumerate(value):
        try:
            values.append(_value(kind, item, folder))
        except _RefusedError as refused:
            raise refused.within(f"[{position}]") from None
    return tuple(values)


def _words(value: object, folder: Path) -> Words:
    if not isinstance(value, Mapping):
        raise _RefusedError("", "must be a table")
    found: dict[str, Any] = {}
    for name, texts in value.items():
        try:
            found[name] = _list(str, texts if isinstance(texts, list) else [texts], folder)
        except _RefusedError as refused:
            raise refused.within(name) from None
    return Words(found)


def _choice(choices: Mapping[str, object], value: object) -> object:
    if not isinstance(value, str) or value not in choices:
        raise _RefusedError("", f"must be one of {', '.join(choices)}")
    return choices[value]


def _boolean(value: object, _folder: Path) -> bool:
    if not isinstance(value, bool):
        raise _RefusedError("", "must be true or false")
    return value


def _integer(value: object, _folder: Path) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _RefusedError("", "must be a whole number")
    return value


def _number(value: object, _folder: Path) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        raise _RefusedError("", "must be a number")
    return float(value)


def _text(value: object, _folder: Path) -> str:
    if not isinstance(value, str):
        raise _RefusedError("", "must be a text")
    return value


def _path(value: object, folder: Path) -> Path:
    if not isinstance(value, str) or not value or "\0" in value:
        raise _RefusedError("", "must be the path of a file")
    return folder / value


_SCALARS: Mapping[type, Callable[[object, Path], object]] = {
    bool: _boolean,
    int: _integer,
    float: _number,
    str: _text,
    Path: _path,
}


def written(shown: Table, heading: str, defaults: Mapping[str, object] | None = None) -> Iterator[str]:
    """Return a table as TOML; keys without a value are left out.

    Args: defaults: keys that have their defaults are left out, too: these, or those of the table. None: they are not.
    """
    yield heading
    for item in declared(type(shown)):
        value = getattr(shown, item.name)
        if value is None or item.metadata["apart"] or callable(value):
            continue
        if defaults is None or value != defaults.get(item.name, item.default):
            yield f"{key_of(item)} = {toml(value)}"


def toml(value: object) -> str:
    """Return a value as TOML, in one line. Args: value: the names in a mapping are keys of a configuration."""
    if isinstance(value, Table):
        items = ((key_of(item), getattr(value, item.name)) for item in declared(type(value)))
        return "{ " + ", ".join(f"{name} = {toml(item)}" for name, item in items if item is not None) + " }"
    if isinstance(value, Words):
        return "{ " + ", ".join(f"{json.dumps(name)} = {toml(texts)}" for name, texts in value.items()) + " }"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {toml(item)}" for name, item in value.items()) + " }"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    # A JSON text is a TOML one, except for DEL, and for surrogate pairs, which ensure_ascii would write.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
