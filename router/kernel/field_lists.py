"""Composites, read from lists of fields and written as such (§1.4).

The usual encodings of the common types are read and written here. All others are left to the codec's readers and
writers, which also refuse what is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from amqpmesh.router.kernel.encoded_values import _append_uint, uint32
from amqpmesh.router.kernel.uncompiled import set_field

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_UINT: Final = 1
_ULONG: Final = 2
_USHORT: Final = 3
_UBYTE: Final = 4
_BOOLEAN: Final = 5
_STRING: Final = 6
_BINARY: Final = 7
_DESCRIBED: Final = 8

#: By the name of a primitive type, or "described": the kind of a field that is read and written here.
_KINDS: Final = {
    "uint": _UINT,
    "ulong": _ULONG,
    "ushort": _USHORT,
    "ubyte": _UBYTE,
    "boolean": _BOOLEAN,
    "string": _STRING,
    "binary": _BINARY,
    "described": _DESCRIBED,
}


class ListField:
    """A field of a composite: its type on the wire, and its value if it is null."""

    __slots__ = (
        "_by_class",
        "_by_code",
        "_default",
        "_default_octets",
        "_kind",
        "_mandatory",
        "_members",
        "_name",
        "_readers",
        "_write",
        "_written",
    )

    def __init__(
        self,
        name: str,
        kind: str,
        readers: Sequence[Callable[[bytes, int, int], tuple[Any, int]]],
        write: Callable[[Any, int], bytes],
        *,
        mandatory: bool,
        default: object,
        default_octets: bytes,
        members: Mapping[object, object] | None = None,
        written: Mapping[object, bytes] | None = None,
        by_code: Mapping[int, FieldList] | None = None,
        by_class: Mapping[type, FieldList] | None = None,
    ) -> None:
        """Args: kind: a key of `_KINDS`, or another word. readers: by format code. default_octets: of the default.
        members, written: of an enumeration. by_code, by_class: composites that it may hold, by descriptor and class.
        """
        self._name = name
        self._kind = _KINDS.get(kind, 0)
        self._readers = readers
        self._write = write
        self._mandatory = mandatory
        self._default = default
        self._default_octets = default_octets
        self._members = members
        self._written = written
        self._by_code = by_code or {}
        self._by_class = by_class or {}

    def _read(self, data: bytes, at: int, code: int, depth: int) -> tuple[Any, int]:
        """Read the value at `at`, of that format code. Returns: it, and its end. Raises: as the codec's readers."""
        if self._kind == _DESCRIBED:
            if code == 0 and data[at + 1] == 0x53:
                composite = self._by_code.get(data[at + 2])
                if composite is not None:
                    return composite._read(data, at + 3, depth)
        elif self._kind:
            end = _scalar_end(self._kind, data, at, code)
            if end >= 0:
                item = _scalar(self._kind, data, at, end)
                if self._members is not None:
                    item = self._members.get(item)
                if item is not None:
                    return item, end
        return self._readers[code](data, at + 1, depth)

    def _append(self, out: bytearray, item: Any, depth: int, full: bool) -> bool:
        """Append a value to `out`. Args: full: a default is written, and not null in its place."""
        kind = self._kind
        if item is None:
            out.append(0x40)
            return True
        if self._default is not None:
            if full and item is self._default:
                out += self._default_octets
                return True
            if not full and (item is self._default or item == self._default):
                out.append(0x40)
                return True
        if kind == _DESCRIBED:
            composite = self._by_class.get(type(item))
            if composite is not None:
                return composite._append(out, item, depth, False)
        elif self._written is not None:
            octets = self._written.get(item)
            if octets is not None:
                out += octets
                return True
        elif kind and _append_scalar(out, kind, item):
            return True
        out += self._write(item, depth)
        return True


class FieldList:
    """The reader and the writer of a composite type. Each level of nesting counts twice: a descriptor and a list."""

    __slots__ = (
        "_depth",
        "_empty",
        "_explain",
        "_fields",
        "_head",
        "_leave",
        "_made",
        "_refused",
        "_span",
        "_width",
    )

    def __init__(
        self,
        made: type,
        descriptor: bytes,
        fields: tuple[ListField, ...],
        depth: int,
        span: Callable[[bytes, int, int], tuple[int, int, int]],
        leave: Callable[[int, int], None],
        explain: Callable[[Exception, int], Exception | None],
        refused: Callable[[Exception, int], Exception | None],
    ) -> None:
        """Args: made: the class of the values. descriptor: encoded. depth: the deepest nesting. span: returns the begin
        of the first field, the end, and the number of fields of a list, or refuses it. leave: refuses a list whose
        fields do not end at its end. explain, refused: return the error to raise for an error in reading or writing
        the field of that number (-1: before the first one); None: the error itself.
        """
        self._made: Any = made
        self._head = descriptor + b"\xc0\x00\x00"
        self._fields = fields
        self._width = len(fields)
        self._depth = depth
        self._span = span
        self._leave = leave
        self._explain = explain
        self._refused = refused
        #: All values without fields are one object, which is frozen. None: a field is mandatory.
        self._empty = None if self._is_any_mandatory() else made()

    def read(self, data: bytes | bytearray | memoryview, at: int, depth: int) -> tuple[Any, int]:
        """Read the list at `at`, behind the descriptor. Returns: the composite, and the offset behind it.

        Raises: as the codec's readers.
        """
        if isinstance(data, bytes):
            return self._read(data, at, depth)
        value, size = self._read(bytes(data[at : _behind(data, at)]), 0, depth)
        return value, at + size

    def write(self, value: object, depth: int) -> bytes:
        """Return the composite with its descriptor; null replaces defaults, and is left out at the end.

        Raises: as the codec's writers.
        """
        out = bytearray()
        self._append(out, value, depth, False)
        return bytes(out)

    def write_full(self, value: object, depth: int) -> bytes:
        """Return the composite as `write` does, with all defaults written."""
        out = bytearray()
        self._append(out, value, depth, True)
        return bytes(out)

    def like(self, other: object, first: tuple[object, ...]) -> Any:
        """Return a composite like another one of its class, with other values of the first fields."""
        value: Any = self._made.__new__(self._made)
        own = len(first)
        for number in range(self._width):
            field: ListField = self._fields[number]
            set_field(value, field._name, first[number] if number < own else getattr(other, field._name))
        return value

    def _is_any_mandatory(self) -> bool:
        for number in range(self._width):
            field: ListField = self._fields[number]
            if field._mandatory:
                return True
        return False

    def _read(self, data: bytes, at: int, depth: int) -> tuple[Any, int]:
        """Read as `read` does."""
        number = -1
        depth += 1
        size = len(data)
        end = count = -1
        try:
            code = data[at]
            begin = at
            if code == 0xC0 and at + 2 < size:
                begin = at + 3
                end = at + 2 + data[at + 1]
                count = data[at + 2]
            elif code == 0xD0 and at + 8 < size:
                begin = at + 9
                end = at + 5 + uint32(data, at + 1)
                count = uint32(data, at + 5)
            elif code == 0x45 and self._empty is not None and depth < self._depth:
                return self._empty, at + 1
            if count < 0 or end > size or count > end - begin or count > self._width or depth >= self._depth:
                begin, end, count = self._span(data, at, depth)
            at = begin
            value: Any = self._made.__new__(self._made)
            for number in range(count):
                field: ListField = self._fields[number]
                code = data[at]
                if code == 0x40 and not field._mandatory:
                    item: Any = field._default
                    at += 1
                else:
                    item, at = field._read(data, at, code, depth + 1)
                set_field(value, field._name, item)
            if at != end:
                self._leave(at, end)
            # A field that is missing at the end is null.
            for number in range(count, self._width):
                field = self._fields[number]
                if field._mandatory:
                    field._readers[0x40](data, at, depth)
                set_field(value, field._name, field._default)
        except Exception as error:
            fault = self._explain(error, number)
            if fault is None:
                raise
            raise fault from error
        return value, end

    def _append(self, out: bytearray, value: object, depth: int, full: bool) -> bool:
        """Append a composite to `out`. Args: full: with all defaults."""
        out += self._head
        begin = end = len(out)
        count = 0
        number = -1
        if depth + 1 >= self._depth:
            raise ValueError(f"values nest deeper than {self._depth}")
        try:
            for number in range(self._width):
                field: ListField = self._fields[number]
                at = len(out)
                field._append(out, getattr(value, field._name), depth + 2, full)
                is_null = out[at] == 0x40 and len(out) == at + 1
                if is_null and field._mandatory:
                    raise ValueError("is mandatory")
                if full or not is_null:
                    end = len(out)
                    count = number + 1
        except Exception as error:
            fault = self._refused(error, number)
            if fault is None:
                raise
            raise fault from error
        del out[end:]
        size = end - begin
        if not count:
            out[begin - 3] = 0x45
            del out[begin - 2 :]
        elif size < 255:
            out[begin - 2] = size + 1
            out[begin - 1] = count
        else:
            out[begin - 3 : begin] = b"\xd0" + (size + 4).to_bytes(4, "big") + count.to_bytes(4, "big")
        return True


def _behind(data: bytes | bytearray | memoryview, at: int) -> int:
    """Return the offset behind the list at `at`, as far as its size tells."""
    code = data[at]
    if code == 0xC0:
        return at + 2 + data[at + 1]
    return at + 5 + int.from_bytes(data[at + 1 : at + 5], "big") if code == 0xD0 else at + 1


def _scalar_end(kind: int, data: bytes, at: int, code: int) -> int:
    """Return the end of the value at `at`; -1: it is no usual encoding of its kind, or it ends beyond the data."""
    end = -1
    if kind == _UINT:
        end = at + 2 if code == 0x52 else at + 1 if code == 0x43 else at + 5 if code == 0x70 else -1
    elif kind == _STRING:
        end = at + 2 + data[at + 1] if code == 0xA1 else -1
    elif kind == _BOOLEAN:
        end = at + 1 if code == 0x41 or code == 0x42 else -1
    elif kind == _UBYTE:
        end = at + 2 if code == 0x50 else -1
    elif kind == _ULONG:
        end = at + 2 if code == 0x53 else at + 1 if code == 0x44 else -1
    elif kind == _USHORT:
        end = at + 3 if code == 0x60 else -1
    elif kind == _BINARY:
        end = at + 2 + data[at + 1] if code == 0xA0 else -1
    return end if end <= len(data) else -1


def _scalar(kind: int, data: bytes, at: int, end: int) -> Any:
    """Return the value that lies between `at` and `end`."""
    if kind == _STRING:
        return data[at + 2 : end].decode("utf-8")
    if kind == _BINARY:
        return data[at + 2 : end]
    if kind == _BOOLEAN:
        return data[at] == 0x41
    number = 0
    for octet in range(at + 1, end):
        number = number << 8 | data[octet]
    return number


def _append_scalar(out: bytearray, kind: int, item: Any) -> bool:
    """Append a value in its shortest encoding. Returns: False: it is for the codec's writer."""
    if kind == _STRING:
        return type(item) is str and _append_octets(out, 0xA1, item.encode())
    if kind == _BINARY:
        return type(item) is bytes and _append_octets(out, 0xA0, item)
    if kind == _BOOLEAN:
        if item is not True and item is not False:
            return False
        out.append(0x41 if item is True else 0x42)
        return True
    if type(item) is not int or item < 0 or item > 0xFFFFFFFF:
        return False
    number: int = item
    if kind == _UINT:
        _append_uint(out, number)
    elif kind == _USHORT and number <= 0xFFFF:
        out.append(0x60)
        out.append(number >> 8)
        out.append(number & 255)
    elif kind == _UBYTE and number <= 0xFF:
        out.append(0x50)
        out.append(number)
    elif kind == _ULONG and number <= 0xFF:
        if number:
            out.append(0x53)
        out.append(number if number else 0x44)
    else:
        return False
    return True


def _append_octets(out: bytearray, code: int, octets: bytes) -> bool:
    """Append a value of variable width with a size of one octet. Returns: False: it is too long for that."""
    if len(octets) > 255:
        return False
    out.append(code)
    out.append(len(octets))
    out += octets
    return True
