"""Hop records as columns: numbers by shifts and masks of their words, strings by the table of links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from amqpmesh.router.telemetry.schema import KEY_OCTETS, PACKED, UNIT_WORDS, Bits, Flag, Outcome, Unit

Numbers = np.ndarray[Any, np.dtype[Any]]

LARGEST: Final = (1 << 63) - 1
"""The largest number of a column: no count comes near it."""

LATEST: Final = 1 << 62
"""The latest time, nanoseconds since 1970: in the year 2116."""

MOST_COUNTED: Final = 1 << 53
"""The largest number of other kinds in a record: 9 * 10**15."""

MOST: Final = {"time": LATEST, "size": 1 << 45, "in_router": MOST_COUNTED, "outcome_after": MOST_COUNTED}
"""The largest numbers of hop records. With these, no sum of a few overflows, nor the sum of all sizes."""

OUTCOMES: Final = tuple(outcome.name.lower() for outcome in Outcome)
"""The outcomes by their numbers in hop records."""

NO_LINK: Final = -1
"""A value in place of a row: there is no link."""

UNKNOWN: Final = -2
"""A value in place of a row: no record explains the link's number."""


class Links:
    """The meanings of link numbers. Each explanation of a number has a row; the latest one counts."""

    def __init__(self) -> None:
        self._current: dict[int, int] = {}
        self._sorted: tuple[Numbers, Numbers] | None = None
        self._values: dict[str, dict[str, int]] = {name: {} for name in ("name", "peer", "address", "tenant")}
        self._codes: dict[str, list[int]] = {name: [] for name in self._values}
        self._lanes: list[bool] = []

    def add(self, links: Sequence[Mapping[str, Any]]) -> None:
        """Add explanations of link numbers, for the records that follow."""
        for each in links:
            self._current[each["number"]] = len(self._lanes)
            self._lanes.append(each["from_router"])
            is_link = each["direction"] != "address"
            for name, values in self._values.items():
                value = each[name] if is_link or name in ("address", "tenant") else None
                self._codes[name].append(NO_LINK if value is None else values.setdefault(value, len(values)))
        self._sorted = None

    def rows(self, numbers: Numbers) -> Numbers:
        """Return the row that each number means now."""
        if self._sorted is None:
            known = sorted(number for number in self._current if 0 < number < 1 << 32)
            rows = [self._current[number] for number in known]
            self._sorted = np.array(known, np.uint64), np.array(rows, np.int32)
        known_numbers, known_rows = self._sorted
        found = np.full(len(numbers), UNKNOWN, np.int32)
        if len(known_numbers):
            places = np.minimum(np.searchsorted(known_numbers, numbers), len(known_numbers) - 1)
            found = np.where(known_numbers[places] == numbers, known_rows[places], found)
        return np.where(numbers == 0, NO_LINK, found).astype(np.int32)

    def strings(self, name: str, rows: Numbers) -> pa.Array:
        """Return one of the names of each row: name, peer, address, tenant."""
        codes = np.array([*self._codes[name], NO_LINK, NO_LINK], np.int32)  # rows -1 and -2 are the last two
        return coded(codes[rows], list(self._values[name]))

    def are_lanes(self, rows: Numbers) -> pa.Array:
        """Return for each row whether the peer is a router."""
        lanes = np.array([*self._lanes, False, False])
        return pa.array(lanes[rows], mask=rows < 0)


_UNITS: Final = {Unit.RECORD: 0, Unit.KEY: 1, Unit.WIDE: 2}
"""The place of each unit's words among those of a record."""

_ATTEMPT: Final = PACKED["attempt"][0]


def records(body: memoryview, count: int) -> Numbers:
    """Return the words of a block's records, by place: those of its own unit, of the key unit that applies to it, and
    of its wide unit; each as an array over all records.

    Raises: ValueError: the number of records is wrong, or there are other units, or a number that no router writes.
    """
    units: Numbers = np.frombuffer(body, "<u8").reshape(-1, UNIT_WORDS)
    marks = units[:, 2] >> np.uint64(56)
    own = np.flatnonzero(marks < Unit.KEY)
    keys = np.flatnonzero(marks == Unit.KEY)
    wide = np.flatnonzero(marks == Unit.WIDE)
    if len(own) != count:
        raise ValueError(f"{len(own)} records instead of {count}")
    if len(own) + len(keys) + len(wide) != len(units):
        raise ValueError("a unit is none that is known")
    # A key unit applies to the records after it, a wide unit to the record before it.
    holding = np.searchsorted(keys, own) - 1
    if count and holding[0] < 0:
        raise ValueError("a record stands before what its key begins with")
    places = np.searchsorted(own, wide) - 1
    if (places < 0).any() or (own[places] != wide - 1).any():
        raise ValueError("a wide unit stands behind no record")
    words: Numbers = np.zeros((len(_UNITS) * UNIT_WORDS, count), np.uint64)
    words[:UNIT_WORDS] = units[own].T
    words[UNIT_WORDS : 2 * UNIT_WORDS] = units[keys[holding]].T
    words[2 * UNIT_WORDS + _ATTEMPT.word] = 1 << _ATTEMPT.shift
    words[2 * UNIT_WORDS :, places] = units[wide].T
    for name, most in MOST.items():
        largest = int(_unpack(words, name).max(initial=0))
        if largest > most:
            raise ValueError(f"{name} is {largest}, more than {most}")
    return words


_NUMBERED: Final = ("incoming", "outgoing", "address", "condition")
"""The numbers in a record that a link record explains."""


def rows(words: Numbers, links: Links) -> Numbers:
    """Return the meanings of the numbers in records: rows of `links`, for each of `_NUMBERED`."""
    return np.stack([links.rows(_unpack(words, name)) for name in _NUMBERED], axis=1)


def columns(words: Numbers, rows: Numbers, links: Links) -> dict[str, pa.Array]:
    """Return the columns that records have, without their router. Args: rows: of the same records, at their time."""
    flags = _unpack(words, "flags")
    flag = {each: (flags & np.uint64(each)).astype(bool) for each in Flag}
    incoming, outgoing, address, condition = rows.T
    address = np.where(_unpack(words, "address") == 0, incoming, address)
    outcomes = _unpack(words, "outcome").astype(np.int32)
    not_begun = ~flag[Flag.BEGAN]
    counter, first = _unpack(words, "counter"), _unpack(words, "first")
    return {
        "time": _integers(words, "time"),
        "key": _keys(words, counter),
        "first_key": _keys(words, np.where(first == 0, counter, first), not_begun),
        "hops_left": _integers(words, "hops_left"),
        "began": pa.array(flag[Flag.BEGAN]),
        "attempt": _integers(words, "attempt", not_begun),
        "address": links.strings("address", address),
        "tenant": links.strings("tenant", address),
        "incoming_link": links.strings("name", incoming),
        "incoming_peer": links.strings("peer", incoming),
        "from_router": links.are_lanes(incoming),
        "outgoing_link": links.strings("name", outgoing),
        "outgoing_peer": links.strings("peer", outgoing),
        "to_router": links.are_lanes(outgoing),
        "outcome": coded(np.where(outcomes < len(OUTCOMES), outcomes, -1), OUTCOMES),
        "condition": links.strings("name", condition),
        "settled": pa.array(flag[Flag.SETTLED]),
        "copy": pa.array(flag[Flag.COPY]),
        "size": _integers(words, "size"),
        "in_router": _integers(words, "in_router", ~flag[Flag.TIMED]),
        "outcome_after": _integers(words, "outcome_after", ~flag[Flag.ANSWERED]),
        "priority": _integers(words, "priority"),
        "delivery_count": _integers(words, "delivery_count"),
    }


def _unpack(words: Numbers, name: str) -> Numbers:
    """Return one number of each record."""
    lower, *upper = PACKED[name]
    found = _bits(words, lower)
    shift = lower.bits
    for part in upper:
        found = found | _bits(words, part) << np.uint64(shift)
        shift += part.bits
    return found


def _bits(words: Numbers, place: Bits) -> Numbers:
    word: Numbers = words[_UNITS[place.unit] * UNIT_WORDS + place.word]
    if place.bits == 64:
        return word
    return (word >> np.uint64(place.shift)) & np.uint64((1 << place.bits) - 1)


def _integers(words: Numbers, name: str, unknown: Numbers | None = None) -> pa.Array:
    return pa.array(_unpack(words, name).view(np.int64), mask=unknown)


def coded(codes: Numbers, values: Sequence[str]) -> pa.Array:
    """Return strings by number. Args: codes: places in `values`; less than 0: null."""
    indices = pa.array(codes, pa.int32(), mask=codes < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(values, pa.string()))


def _keys(words: Numbers, counter: Numbers, unknown: Numbers | None = None) -> pa.Array:
    """Return delivery keys in their form on the wire: number, epoch and counter, big-endian."""
    keys = np.empty((len(counter), KEY_OCTETS), np.uint8)
    keys[:, :8] = _octets(_unpack(words, "ingress"))
    keys[:, 8:14] = _octets(_unpack(words, "epoch"))[:, 2:]
    keys[:, 14:] = _octets(counter)[:, 2:]
    validity = None if unknown is None else pa.py_buffer(np.packbits(~unknown, bitorder="little"))
    fixed = pa.Array.from_buffers(pa.binary(KEY_OCTETS), len(counter), [validity, pa.py_buffer(keys)])
    return fixed.cast(pa.binary())


def _octets(numbers: Numbers) -> Numbers:
    return numbers.astype(">u8").view(np.uint8).reshape(-1, 8)
