"""Declarations of msgpack bodies: a class is the schema, the reader, the writer and the documentation at once.

    @body("Hello", "keeps an adjacency")
    class Hello:
        router: str = item("r", ROUTER_ID, "the sender")
        hold_ms: int = item("h", Integer(1, 2**32 - 1), "silence that ends the adjacency, milliseconds")

On the wire a body is a map with the short keys of its items, and `v`, the version of the protocol. An item can be
absent if it has its default. Readers ignore unknown keys, and further elements of a row, so items can be added. The
version changes only if an older reader would misunderstand a body.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeVar, dataclass_transform

import msgpack

T = TypeVar("T")

VERSION: Final = 1
"""The version of the protocol that is written, and the only one that is read."""

MAX_ELEMENTS: Final = 4096
"""Elements of one array. msgpack allocates what a header announces, and nests: this bounds what 64 KiB can cause."""

MAX_KEYS: Final = 64
"""Keys of one map: bodies have about ten, the rest is for future items."""


class UnreadableError(Exception):
    """Malformed input; reading raises no other error.

    `reason` is one word for counters and logs: malformed, oversized, version, kind, area.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class ValueType:
    """The type of a value: its check, and its description."""

    def read(self, value: Any) -> Any:
        """Return the checked value.

        Raises: UnreadableError: it has another type, or is out of bounds.
        """
        raise NotImplementedError

    def read_all(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return checked values. Types that can check all of them at once do so, in a fifth of the time.

        Raises: UnreadableError: one of them has another type, or is out of bounds.
        """
        read = self.read
        return [read(value) for value in values]

    def describe(self) -> str:
        """Return a description for the documentation."""
        raise NotImplementedError


def _malformed(form: ValueType) -> UnreadableError:
    return UnreadableError("malformed", f"not {form.describe()}")


@dataclass(frozen=True, slots=True)
class Integer(ValueType):
    """An integer within bounds, which are allowed themselves."""

    low: int
    high: int

    def read(self, value: Any) -> int:
        """Check a value; a boolean is no integer here."""
        if type(value) is not int or not self.low <= value <= self.high:
            raise _malformed(self)
        return value

    def read_all(self, values: Sequence[Any]) -> Sequence[Any]:
        """Check values; see `ValueType`."""
        if values and (set(map(type, values)) != {int} or min(values) < self.low or max(values) > self.high):
            raise _malformed(self)
        return values

    def describe(self) -> str:
        """Describe the type; see `ValueType`."""
        return f"integer, {_bound_text(self.low)} to {_bound_text(self.high)}"


@dataclass(frozen=True, slots=True)
class Text(ValueType):
    """A string of bounded length, and of a certain pattern if one is given."""

    longest: int
    pattern: re.Pattern[str] | None = None
    words: str = "string"

    def read(self, value: Any) -> str:
        """Check a value; see `ValueType`."""
        if type(value) is not str or len(value) > self.longest:
            raise _malformed(self)
        if self.pattern is not None and self.pattern.fullmatch(value) is None:
            raise _malformed(self)
        return value

    def read_all(self, values: Sequence[Any]) -> Sequence[Any]:
        """Check values; see `ValueType`."""
        if values and (set(map(type, values)) != {str} or max(map(len, values)) > self.longest):
            raise _malformed(self)
        if self.pattern is not None and not all(map(self.pattern.fullmatch, values)):
            raise _malformed(self)
        return values

    def describe(self) -> str:
        """Describe the type; see `ValueType`."""
        return f"{self.words}, at most {self.longest:,} characters"


@dataclass(frozen=True, slots=True)
class Binary(ValueType):
    """Octets of bounded length."""

    longest: int

    def read(self, value: Any) -> bytes:
        """Check a value; see `ValueType`."""
        if type(value) is not bytes or len(value) > self.longest:
            raise _malformed(self)
        return value

    def describe(self) -> str:
        """Describe the type; see `ValueType`."""
        return f"binary, at most {self.longest:,} octets"


@dataclass(frozen=True, slots=True)
class Boolean(ValueType):
    """A boolean."""

    def read(self, value: Any) -> bool:
        """Check a value; see `ValueType`."""
        if type(value) is not bool:
            raise _malformed(self)
        return value

    def describe(self) -> str:
        """Describe the type; see `ValueType`."""
        return "boolean"


@dataclass(frozen=True, slots=True)
class Nullable(ValueType):
    """A value or nil, which reads as None."""

    form: ValueType

    def read(self, value: Any) -> Any:
        """Check a value; see `ValueType`."""
        return None if value is None else self.form.read(value)

    def describe(self) -> str:
        """Describe the type; see `ValueType`."""
        return f"nil, or {self.form.describe()}"


@dataclass(frozen=True, slots=True)
class Array(ValueType):
    """An array of bounded length with elements of one type; it reads as a tuple."""

    form: ValueType
    most: int

    def read(self, value: Any) -> tuple[Any, ...]:
        """Check a value; see `ValueType`."""
        if type(value) is not list or len(value) > self.most:
            raise _malformed(self)
        return tuple(self.form.read_all(value))

    def describe(self) -> str:
        """Describe the type; see `ValueType`."""
        return f"array of at most {self.most:,}: {self.form.describe()}"


class Row(ValueType):
    """An array with a meaning for each place; it reads as the named tuple that declares them."""

    def __init__(self, row: type[tuple[Any, ...]], places: tuple[tuple[str, ValueType], ...]) -> None:
        self.row = row
        self.places = places
        self._reads = tuple(form.read for _, form in places)

    def read(self, value: Any) -> Any:
        """Check a value; further elements are ignored."""
        if type(value) is not list or len(value) < len(self._reads):
            raise _malformed(self)
        return tuple.__new__(self.row, [read(element) for read, element in zip(self._reads, value, strict=False)])

    def read_all(self, values: Sequence[Any]) -> Sequence[Any]:
        """Check values by columns; see `ValueType`."""
        if not values:
            return values
        if set(map(type, values)) != {list} or min(map(len, values)) < len(self.places):
            raise _malformed(self)
        columns = zip(*values, strict=False)  # rows can have further elements
        read = [form.read_all(column) for (_, form), column in zip(self.places, columns, strict=False)]
        return list(map(partial(tuple.__new__, self.row), zip(*read, strict=True)))  # twice as fast as the class

    def describe(self) -> str:
        """Describe the type; see `ValueType`."""
        return "[" + "; ".join(f"{name}: {form.describe()}" for name, form in self.places) + "]"


class Item(NamedTuple):
    """The declaration of an item."""

    name: str
    key: str
    form: ValueType
    words: str
    default: Any


def item(key: str, form: ValueType, words: str, *, default: Any = MISSING) -> Any:
    """Declare an item of a body; it is required if it has no default.

    Args: key: its key on the wire. words: its meaning, for the documentation.
    """
    return field(default=default, metadata={"key": key, "form": form, "words": words})


def derived(*, init: Literal[False] = False) -> Any:
    """Declare a field that is no item: it is computed from the items once, in `__post_init__`."""
    return field(init=init, repr=False, compare=False)


class Body:
    """The base of the bodies of all messages and records: a body has a title, a description and items."""

    TITLE: ClassVar[str]
    WORDS: ClassVar[str]
    ITEMS: ClassVar[tuple[Item, ...]]


B = TypeVar("B", bound=Body)


@dataclass_transform(frozen_default=True, field_specifiers=(item, derived))
def body(title: str, words: str) -> Callable[[type[T]], type[T]]:
    """Declare a body: a frozen dataclass. Each of its fields is an `item`, or `derived`."""

    def declare(cls: type[T]) -> type[T]:
        made: Any = dataclass(frozen=True, slots=True)(cls)
        made.TITLE, made.WORDS = title, words
        made.ITEMS = tuple(
            Item(each.name, each.metadata["key"], each.metadata["form"], each.metadata["words"], each.default)
            for each in fields(made)
            if each.init
        )
        return made  # type: ignore[no-any-return]  # dataclass with slots makes another class, of the same type

    return declare


def to_map(body: Body) -> dict[str, Any]:
    """Return the map of a body. msgpack writes named tuples as arrays, so values need no conversion."""
    written: dict[str, Any] = {"v": VERSION}
    for each in body.ITEMS:
        value = getattr(body, each.name)
        if value != each.default:
            written[each.key] = value
    return written


def encode(body: Body) -> bytes:
    """Encode a body.

    Raises: UnicodeEncodeError: UTF-8 cannot encode a string.
    """
    return pack(to_map(body))


def decode(form: type[B], data: bytes, longest: int) -> B:
    """Decode a body.

    Raises: UnreadableError: it is malformed, or longer than `longest` octets.
    """
    return read(form, unpack(data, longest))


def read(form: type[B], value: dict[str, Any]) -> B:
    """Return the body of a map.

    Raises: UnreadableError: an item is missing or malformed.
    """
    values = []
    for _, key, kind, _, default in form.ITEMS:
        if key in value:
            values.append(kind.read(value[key]))
        elif default is MISSING:
            raise UnreadableError("malformed", f"{form.TITLE} without {key}")
        else:
            values.append(default)
    return form(*values)


def pack(value: Any) -> bytes:
    """Encode a value in msgpack."""
    data: bytes = msgpack.packb(value, use_bin_type=True)
    return data


def unpack(data: bytes, longest: int) -> dict[str, Any]:
    """Decode a map, and check its version.

    Raises: UnreadableError: it is malformed, of another version, or longer than `longest` octets.
    """
    if len(data) > longest:
        raise UnreadableError("oversized", f"{len(data):,} octets, at most {longest:,} are read")
    try:
        value = msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            max_str_len=longest,
            max_bin_len=longest,
            max_array_len=MAX_ELEMENTS,
            max_map_len=MAX_KEYS,
            max_ext_len=0,
        )
    except (ValueError, OverflowError, TypeError, RecursionError) as error:  # errors of msgpack for malformed input
        raise UnreadableError("malformed", f"no msgpack: {error}") from None
    if type(value) is not dict:
        raise UnreadableError("malformed", "not a map")
    version = value.get("v")
    if type(version) is not int or version != VERSION:
        raise UnreadableError("version", f"not of version {VERSION}")
    return value


def _bound_text(number: int) -> str:
    for power in (32, 53, 62, 63, 64):
        if number == 2**power - 1:
            return f"2^{power} - 1"
    return f"{number:,}"
