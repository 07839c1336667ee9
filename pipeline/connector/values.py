"""AMQP values in Spark: a type and a text, or plain JSON; and back.

Spark's maps have one type for all values, AMQP's do not. A value of a map is therefore a struct of the name of its AMQP
type and a text without loss: `ulong` exceeds Spark's `bigint`, decimals and timestamps exceed Spark's. Lists, maps,
arrays and described values are JSON there, without the types of their elements.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from amqpmesh.router.amqp.codec import types
from amqpmesh.router.amqp.codec.decimals import Decimal32, Decimal64, Decimal128
from amqpmesh.router.amqp.codec.types import Symbol

if TYPE_CHECKING:
    from collections.abc import Callable


class MisfitError(ValueError):
    """A value does not fit the requested form; with the reason."""


def to_plain(value: Any) -> Any:
    """Return a value for JSON.

    Octets become base64, timestamps milliseconds since 1970; UUIDs, decimals, and floating-point numbers that are not
    finite become text; a described value has a `descriptor` and a `value`.
    Raises: MisfitError: keys of a map are not distinct as text.
    """
    kind = type(value)
    if kind in _AS_IT_IS or value is None:
        return value
    if kind in _PLAIN:
        return _PLAIN[kind](value)
    if isinstance(value, Mapping):
        plain = {_key(key): to_plain(each) for key, each in value.items()}
        if len(plain) != len(value):
            raise MisfitError("the keys of a map are not distinct as text")
        return plain
    if isinstance(value, list):
        return [to_plain(each) for each in value]
    if isinstance(value, types.Array):
        return [to_plain(each) for each in value.values]
    if isinstance(value, types.Described):
        return {"descriptor": to_plain(value.descriptor), "value": to_plain(value.value)}
    raise MisfitError(f"{kind.__name__} cannot be said in JSON")


def to_json(value: Any) -> str:
    """Return a value as JSON text. Raises: MisfitError: as `to_plain`."""
    return json.dumps(to_plain(value), ensure_ascii=False, separators=(",", ":"))


def _float(value: float) -> Any:
    return float(value) if math.isfinite(value) else repr(float(value)).replace("inf", "Infinity").replace("nan", "NaN")


def _key(key: Any) -> str:
    return str.__str__(key) if isinstance(key, str) else str(to_text(key)[1])


_INTEGERS: Final = (types.UByte, types.UShort, types.UInt, types.ULong, types.Byte, types.Short, types.Int)

_AS_IT_IS: Final = frozenset({bool, str, int})

_PLAIN: Final[dict[type, Callable[[Any], Any]]] = {
    float: _float,
    types.Float: _float,
    bytes: lambda value: b64encode(value).decode(),
    UUID: str,
    Symbol: str.__str__,
    types.Char: str.__str__,
    Decimal32: str,
    Decimal64: str,
    Decimal128: str,
    **dict.fromkeys((*_INTEGERS, types.Timestamp), int),
}


def to_text(value: Any) -> tuple[str, str | None]:
    """Return the name of a value's type, and its text; null has none. Raises: MisfitError: as `to_plain`."""
    name, text = _NAMES.get(type(value), (None, None))
    if name is None or text is None:
        for kind, compound in _COMPOUNDS.items():
            if isinstance(value, kind):
                return compound, to_json(value)
        raise MisfitError(f"{type(value).__name__} is no AMQP type")
    return name, text(value)


def _exact(value: float) -> str:
    return repr(float(value))


_NAMES: Final[dict[type, tuple[str, Callable[[Any], str | None]]]] = {
    str: ("string", lambda value: value),
    Symbol: ("symbol", str.__str__),
    bool: ("boolean", lambda value: "true" if value else "false"),
    int: ("long", str),
    float: ("double", _exact),
    types.Timestamp: ("timestamp", lambda value: str(int(value))),
    UUID: ("uuid", str),
    bytes: ("binary", lambda value: b64encode(value).decode()),
    type(None): ("null", lambda _: None),
    types.Float: ("float", _exact),
    types.Char: ("char", str.__str__),
    Decimal32: ("decimal32", str),
    Decimal64: ("decimal64", str),
    Decimal128: ("decimal128", str),
    **{kind: (kind.__name__.lower(), lambda value: str(int(value))) for kind in _INTEGERS},
}

_COMPOUNDS: Final[dict[type, str]] = {Mapping: "map", list: "list", types.Array: "array", types.Described: "described"}


def from_text(name: str, text: str | None) -> Any:
    """Return the value of a type and a text.

    Raises: MisfitError: there is no such type, it cannot be written (arrays, described values), or the text does not
        fit it.
    """
    reader = _READERS.get(name)
    if reader is None:
        raise MisfitError(f"{name!r} is no type that is written here; those are {', '.join(_READERS)}")
    if name == "null":
        return None
    if text is None:
        raise MisfitError(f"a {name} has a value")
    try:
        return reader(text)
    except (ValueError, ArithmeticError) as error:
        raise MisfitError(f"{text!r} is no {name}: {error}") from None


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("true or false")
    return text == "true"


def _compound(kind: type) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        value = json.loads(text)
        if not isinstance(value, kind):
            raise ValueError("another kind of JSON")
        return value

    return read


def _long(text: str) -> int:
    return int(types.Long(int(text)))


def _integer(kind: type[int]) -> Callable[[str], Any]:
    return lambda text: kind(int(text))


def _decimal(kind: Any) -> Callable[[str], Any]:
    return lambda text: kind.from_decimal(Decimal(text))


_READERS: Final[dict[str, Callable[[str], Any]]] = {
    "string": str,
    "symbol": Symbol,
    "boolean": _boolean,
    "long": _long,
    "double": float,
    "timestamp": lambda text: types.Timestamp(int(text)),
    "uuid": UUID,
    "binary": lambda text: b64decode(text, validate=True),
    "null": lambda _: None,
    "float": lambda text: types.Float(float(text)),
    "char": types.Char,
    "decimal32": _decimal(Decimal32),
    "decimal64": _decimal(Decimal64),
    "decimal128": _decimal(Decimal128),
    "list": _compound(list),
    "map": _compound(dict),
    **{kind.__name__.lower(): _integer(kind) for kind in _INTEGERS},
}

TYPES: Final = tuple(name for name, _ in _NAMES.values()) + tuple(_COMPOUNDS.values())
"""All names of types."""
