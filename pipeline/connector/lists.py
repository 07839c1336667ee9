"""The fields of described lists (§1.4), headers and properties, read from many messages at once.

A list with a value that is not read here is left to the decoder, which reads all, and says what is malformed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpmesh.pipeline.connector.columns import TIME, VALUES
from amqpmesh.pipeline.connector.sections import gathered, widths

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from amqpmesh.pipeline.connector.sections import Numbers, Octets

    Mask = npt.NDArray[np.bool_]

EARLIEST: Final = -62_135_596_800_000
LATEST: Final = 253_402_300_799_999
"""The range of Spark's timestamps, the years 1 to 9999, in milliseconds since 1970."""


class Kind(Enum):
    """A kind of field: the format codes that are read here, with the octets before their contents."""

    BOOLEAN = auto()
    UBYTE = auto()
    UINT = auto()
    TIME = auto()
    BINARY = auto()
    STRING = auto()
    SYMBOL = auto()
    #: A message-id (§3.2.11); a uuid and a binary are left to the decoder.
    ID = auto()


_NULL: Final = 0x40
_TRUE: Final = 0x41
_ULONGS: Final = (0x44, 0x53, 0x80)
_STRINGS: Final = {0xA1: 2, 0xB1: 5}

_HEADS: Final[Mapping[Kind, Mapping[int, int]]] = {
    Kind.BOOLEAN: {_TRUE: 1, 0x42: 1},
    Kind.UBYTE: {0x50: 1},
    Kind.UINT: {0x43: 1, 0x52: 1, 0x70: 1},
    Kind.TIME: {0x83: 1},
    Kind.BINARY: {0xA0: 2, 0xB0: 5},
    Kind.STRING: _STRINGS,
    Kind.SYMBOL: {0xA3: 2, 0xB3: 5},
    Kind.ID: {**_STRINGS, **dict.fromkeys(_ULONGS, 1)},
}
"""The format codes that are read of each kind, and the octets before their contents."""

_BEFORE: Final[Mapping[Kind, Numbers]] = {
    kind: np.array([1 if code == _NULL else heads.get(code, 0) for code in range(256)])
    for kind, heads in _HEADS.items()
}
"""The same, by format code: 0 is one that is not read."""

_ARROW: Final = {Kind.UBYTE: pa.int16(), Kind.UINT: pa.int64()}


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a list. `default`: for null, and for a field that is not there."""

    kind: Kind
    default: int | None = None


@dataclass(slots=True)
class _Values:
    """One field of all lists: the format code, and the offsets of the content, which is empty if there is none."""

    code: Numbers
    begin: Numbers
    end: Numbers

    def of(self, rows: Mask) -> _Values:
        return _Values(self.code[rows], self.begin[rows], self.end[rows])


def structs(
    data: Octets, at: Numbers, fields: Sequence[Field], kind: pa.StructType
) -> tuple[Mask, pa.StructArray] | None:
    """Read described lists that have been found by `sections.find`.

    Args: data: with padding. at: the offset of each described list, in ascending order.
    Returns: which of them were read, and the structs of those; None: some text is not in its encoding.
    """
    read, end, count, here = _opened(data, at)
    read &= count <= len(fields)
    found = []
    for place, field in enumerate(fields):
        is_there = read & (count > place)
        safe = np.where(is_there, here, 0)
        code = np.where(is_there, data[safe], _NULL)
        before = _BEFORE[field.kind][code]
        after = np.where(is_there, here + 1 + widths(data, safe), here)
        read &= (before > 0) & (after <= end)
        after = np.where(read, after, here)
        found.append(_Values(code, np.where(read & (code != _NULL), here + before, after), after))
        if field.kind is Kind.TIME:
            time = _numbers(data, found[-1])
            read &= (code == _NULL) | ((time >= EARLIEST) & (time <= LATEST))
        here = after
    read &= here == end
    columns = []
    for field, values in zip(fields, found, strict=True):
        column = _column(data, field, values.of(read))
        if column is None:
            return None
        columns.append(column)
    return read, pa.StructArray.from_arrays(columns, fields=list(kind))


def _opened(data: Octets, at: Numbers) -> tuple[Mask, Numbers, Numbers, Numbers]:
    """Return which described lists can be read, the end of each, the number of fields, and the offset of the first."""
    value = at + 3  # behind a descriptor that is a small ulong
    code = data[value]
    small, large = code == 0xC0, code == 0xD0
    can = (data[at + 1] == 0x53) & (small | large | (code == 0x45))
    count = np.where(small, data[value + 2], 0).astype(np.int64)
    count[large] = _number(data, value[large] + 5, 4)
    first = value + np.where(small, 3, np.where(large, 9, 1))
    return can, value + 1 + widths(data, value), count, first


def _number(data: Octets, at: Numbers, octets: int) -> Numbers:
    number = np.zeros(len(at), np.int64)
    for each in range(octets):
        number = number << 8 | data[at + each]
    return number


def _numbers(data: Octets, values: _Values) -> Numbers:
    """Return numbers of one, four or eight octets; 0: there is no content, as of null and of the code for zero."""
    numbers = np.zeros(len(values.code), np.int64)
    octets = values.end - values.begin
    for size in (1, 4, 8):
        rows = octets == size
        if rows.any():
            numbers[rows] = _number(data, values.begin[rows], size)
    return numbers


def _column(data: Octets, field: Field, values: _Values) -> pa.Array | None:
    null = values.code == _NULL
    if field.kind is Kind.BOOLEAN:
        return pa.array(values.code == _TRUE)
    if field.kind is Kind.ID:
        return _ids(data, values, null)
    if field.kind in (Kind.UBYTE, Kind.UINT, Kind.TIME):
        numbers = _numbers(data, values)
        if field.kind is Kind.TIME:
            return pa.array(numbers * 1000, pa.int64(), mask=null).cast(TIME)
        if field.default is not None:
            return pa.array(np.where(null, field.default, numbers), _ARROW[field.kind])
        return pa.array(numbers, _ARROW[field.kind], mask=null)
    if field.kind is Kind.BINARY:
        return gathered(data, values.begin, values.end, null)
    return _texts(data, values, null, is_ascii=field.kind is Kind.SYMBOL)


def _texts(data: Octets, values: _Values, null: Mask, *, is_ascii: bool = False) -> pa.StringArray | None:
    """Return texts; None: some are not UTF-8, or not ASCII if they have to be."""
    if null.all():
        return pa.nulls(len(null), pa.string())
    try:
        texts = gathered(data, values.begin, values.end, null).cast(pa.string())
    except pa.ArrowInvalid:
        return None
    return None if is_ascii and not pc.all(pc.string_is_ascii(texts), min_count=0).as_py() else texts


def _ids(data: Octets, values: _Values, null: Mask) -> pa.StructArray | None:
    """Return message-ids, each as a type and a text."""
    is_number = np.isin(values.code, _ULONGS)
    texts = _texts(data, values, null | is_number)
    if texts is None:
        return None
    if is_number.any():
        numbers = _numbers(data, values).view(np.uint64)
        texts = pc.coalesce(texts, pa.array(numbers, mask=~is_number).cast(pa.string()))
    types = pa.array(["string", "ulong"]).take(pa.array(is_number.astype(np.int8), mask=null))
    return pa.StructArray.from_arrays([types, texts], fields=list(VALUES.item_type), mask=pa.array(null))
