"""Bodies in msgpack, declared once: a class declaration is the schema, the reader, the writer and the documentation.

    @body("Hello", "keeps an adjacency")
    class Hello:
        router: str = item("r", ROUTER_ID, "who speaks")
        hold_ms: int = item("h", Integer(1, 2**32 - 1), "silence that ends the adjacency, milliseconds")

On the wire a body is a map from the items' short keys; `v`, the version of the protocol, is in each. An item that has
its default may be absent, and keys that a reader does not know are ignored, as are further elements of a row: so items
can be added. The version changes only where an older reader would misunderstand what it reads.
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
"""Elements of one array. msgpack reserves what a header announces, and nests: this bounds what 64 KiB can ask for."""

MAX_KEYS: Final = 64
"""Keys of one map: the bodies have ten or so, the rest is for items to come."""


class UnreadableError(Exception):
    """Bytes that are no body of ours; the only error that reading raises.

    `reason` is one word for counters and logs: malformed, oversized, version, kind, area.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class ValueType:
    """What a value may be: how it is read, and how that is described."""

    def read(self, value: Any) -> Any:
        """The value, checked.

        Raises: UnreadableError: it is something else, or out of bounds.
        """
        raise NotImplementedError

    def read_all(self, values: Sequence[Any]) -> Sequence[Any]:
        """Array values, checked: forms that can look at all of them at once do so, which takes a fifth of the time.

        Raises: UnreadableError: one of them is something else, or out of bounds.
        """
        read = self.read
        return [read(value) for value in values]

    def describe(self) -> str:
        """In words, for the documentation."""
        raise NotImplementedError


def _malformed(form: ValueType) -> UnreadableError:
    return UnreadableError("malformed", f"not {form.describe()}")


@dataclass(frozen=True, slots=True)
class Integer(ValueType):
    """A whole number within bounds; both belong to it."""

    low: int
    high: int

    def read(self, value: Any) -> int:
        """See `ValueType`; a boolean is no number here."""
        if type(value) is not int or not self.low <= value <= self.high:
            raise _malformed(self)
        return value

    def read_all(self, values: Sequence[Any]) -> Sequence[Any]:
        """See `ValueType`."""
        if values and (set(map(type, values)) != {int} or min(values) < self.low or max(values) > self.high):
            raise _malformed(self)
        return values

    def describe(self) -> str:
        """See `ValueType`."""
        return f"integer, {_bound(self.low)} to {_bound(self.high)}"


@dataclass(frozen=True, slots=True)
class Text(ValueType):
    """A string of at most so many characters, of a certain pattern if one is given."""

    longest: int
    pattern: re.Pattern[str] | None = None
    words: str = "string"

    def read(self, value: Any) -> str:
        """See `ValueType`."""
        if type(value) is not str or len(value) > self.longest:
            raise _malformed(self)
        if self.pattern is not None and self.pattern.fullmatch(value) is None:
            raise _malformed(self)
        return value

    def read_all(self, values: Sequence[Any]) -> Sequence[Any]:
        """See `ValueType`."""
        if values and (set(map(type, values)) != {str} or max(map(len, values)) > self.longest):
            raise _malformed(self)
        if self.pattern is not None and not all(map(self.pattern.fullmatch, values)):
            raise _malformed(self)
        return values

    def describe(self) -> str:
        """See `ValueType`."""
        return f"{self.words}, at most {self.longest:,} characters"


@dataclass(frozen=True, slots=True)
class Binary(ValueType):
    """At most so many octets."""

    longest: int

    def read(self, value: Any) -> bytes:
        """See `ValueType`."""
        if type(value) is not bytes or len(value) > self.longest:
            raise _malformed(self)
        return value

    def describe(self) -> str:
        """See `ValueType`."""
        return f"binary, at most {self.longest:,} octets"


@dataclass(frozen=True, slots=True)
class Boolean(ValueType):
    """True or false."""

    def read(self, value: Any) -> bool:
        """See `ValueType`."""
        if type(value) is not bool:
            raise _malformed(self)
        return value

    def describe(self) -> str:
        """See `ValueType`."""
        return "boolean"


@dataclass(frozen=True, slots=True)
class Nullable(ValueType):
    """Something or nil, which reads as None."""

    form: ValueType

    def read(self, value: Any) -> Any:
        """See `ValueType`."""
        return None if value is None else self.form.read(value)

    def describe(self) -> str:
        """See `ValueType`."""
        return f"nil, or {self.form.describe()}"


@dataclass(frozen=True, slots=True)
class Array(ValueType):
    """An array of at most so many of the same form; it reads as a tuple."""

    form: ValueType
    most: int

    def read(self, value: Any) -> tuple[Any, ...]:
        """See `ValueType`."""
        if type(value) is not list or len(value) > self.most:
            raise _malformed(self)
        return tuple(self.form.read_all(value))

    def describe(self) -> str:
        """See `ValueType`."""
        return f"array of at most {self.most:,}: {self.form.describe()}"


class Row(ValueType):
    """An array with a meaning for each place; it reads as the named tuple that declares them."""

    def __init__(self, row: type[tuple[Any, ...]], places: tuple[tuple[str, ValueType], ...]) -> None:
        self.row = row
        self.places = places
        self._reads = tuple(form.read for _, form in places)

    def read(self, value: Any) -> Any:
        """See `ValueType`; further elements are ignored."""
        if type(value) is not list or len(value) < len(self._reads):
            raise _malformed(self)
        return tuple.__new__(self.row, [read(element) for read, element in zip(self._reads, value, strict=False)])

    def read_all(self, values: Sequence[Any]) -> Sequence[Any]:
        """See `ValueType`: by columns."""
        if not values:
            return values
        if set(map(type, values)) != {list} or min(map(len, values)) < len(self.places):
            raise _malformed(self)
        columns = zip(*values, strict=False)  # rows may be longer than they are read
        read = [form.read_all(column) for (_, form), column in zip(self.places, columns, strict=False)]
        return list(map(partial(tuple.__new__, self.row), zip(*read, strict=True)))  # their __new__ is half the time

    def describe(self) -> str:
        """See `ValueType`."""
        return "[" + "; ".join(f"{name}: {form.describe()}" for name, form in self.places) + "]"


class Item(NamedTuple):
    """An item of a body as it was declared."""

    name: str
    key: str
    form: ValueType
    words: str
    default: Any


def item(key: str, form: ValueType, words: str, *, default: Any = MISSING) -> Any:
    """An item of a body; without a default it must be there.

    Args: key: its key on the wire. words: what it means, for the documentation.
    """
    return field(default=default, metadata={"key": key, "form": form, "words": words})


def derived(*, init: Literal[False] = False) -> Any:
    """Not an item, but what follows from them: made once, in `__post_init__`, for all who look at the body."""
    return field(init=init, repr=False, compare=False)


class Body:
    """What the bodies share."""

    TITLE: ClassVar[str]
    WORDS: ClassVar[str]
    ITEMS: ClassVar[tuple[Item, ...]]


B = TypeVar("B", bound=Body)


@dataclass_transform(frozen_default=True, field_specifiers=(item, derived))
def body(title: str, words: str) -> Callable[[type[T]], type[T]]:
    """Declare a body: a frozen dataclass, each field of which is an `item`, or `derived`."""

    def declare(cls: type[T]) -> type[T]:
        made: Any = dataclass(frozen=True, slots=True)(cls)
        made.TITLE, made.WORDS = title, words
        made.ITEMS = tuple(
            Item(each.name, each.metadata["key"], each.metadata["form"], each.metadata["words"], each.default)
            for each in fields(made)
            if each.init
        )
        return made  # type: ignore[no-any-return]  # dataclass with slots makes the class anew, of the same type

    return declare


def to_map(body: Body) -> dict[str, Any]:
    """The map of a body; named tuples are arrays to msgpack, so the values go out as they are."""
    written: dict[str, Any] = {"v": VERSION}
    for each in body.ITEMS:
        value = getattr(body, each.name)
        if value != each.default:
            written[each.key] = value
    return written


def encode(body: Body) -> bytes:
    """A body's bytes.

    Raises: UnicodeEncodeError: a string that UTF-8 cannot write.
    """
    return pack(to_map(body))


def decode(form: type[B], data: bytes, longest: int) -> B:
    """The body that these bytes are.

    Raises: UnreadableError: they are none, or more than `longest` octets.
    """
    return read(form, unpack(data, longest))


def read(form: type[B], value: dict[str, Any]) -> B:
    """The body that a map is.

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
    """A value in msgpack."""
    data: bytes = msgpack.packb(value, use_bin_type=True)
    return data


def unpack(data: bytes, longest: int) -> dict[str, Any]:
    """The map that these bytes are, of a version that we read.

    Raises: UnreadableError: they are something else, or more than `longest` octets.
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
    except (ValueError, OverflowError, TypeError, RecursionError) as error:  # what msgpack makes of hostile bytes
        raise UnreadableError("malformed", f"no msgpack: {error}") from None
    if type(value) is not dict:
        raise UnreadableError("malformed", "not a map")
    version = value.get("v")
    if type(version) is not int or version != VERSION:
        raise UnreadableError("version", f"not of version {VERSION}")
    return value


def _bound(number: int) -> str:
    for power in (32, 53, 62, 63, 64):
        if number == 2**power - 1:
            return f"2^{power} - 1"
    return f"{number:,}"
