"""Segments: files of checked blocks. A router appends records; readers read a segment after it is closed.

A block is a head of 32 octets and a body:

    magic (4) kind (1) zeros (3) octets of the body (4) records (4) sum of the body (4) first (8) sum of these (4)

all little-endian; the sums are CRC-32. `first` is the number of the block's first record among all records of its kind
in this life of the router, lost ones included: a gap shows how many were lost. The body of hop records is their units;
of all other kinds a msgpack array of maps (`telemetry`). Readers skip a damaged block: they find the next one by its
magic and its sum.

An open segment's name ends in `.open`; closing renames it. The first block names the router.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, unquote
from zlib import crc32

import msgpack

from amqpmesh.router.telemetry.schema import UNIT_OCTETS, VERSION, Kind

MAGIC: Final = b"\xa5mq\n"
"""The first octets of a block: not valid UTF-8, so no string contains them."""

HEAD: Final = struct.Struct("<4sB3xIIIQI")
"""The head of a block."""

_SUMMED: Final = HEAD.size - 4

MAX_BODY: Final = 1 << 26
"""Octets of a block's body at most: no reader needs to hold more."""

MAX_MAPS: Final = 1 << 22
"""Octets of a body of maps at most: in memory they may take a hundred times as much."""

AT_ONCE: Final = 1_000
"""Records in a block of maps at most."""

SUFFIX: Final = ".events"
"""The suffix of a closed segment."""

OPEN: Final = ".open"
"""The suffix of an open segment."""

_NAME: Final = re.compile(r"(?P<router>[^/]+)\.(?P<epoch>[0-9]{13,18})\.(?P<segment>[0-9]{6,18})\.(events|open)")


@dataclass(frozen=True, slots=True)
class Name:
    """The parts of a segment's file name."""

    router: str
    epoch: int
    """The start of that life of the router, milliseconds since 1970."""
    segment: int

    def file(self, suffix: str = SUFFIX) -> str:
        """Return the file name."""
        return f"{quote(self.router, safe='@')}.{self.epoch:013d}.{self.segment:06d}{suffix}"

    @staticmethod
    def of(file: str) -> Name | None:
        """Return the parts of a file's name; None: it is not a segment's."""
        found = _NAME.fullmatch(file)
        return found and Name(unquote(found["router"]), int(found["epoch"]), int(found["segment"]))


def block(kind: Kind, first: int, count: int, body: bytes | memoryview) -> bytes:
    """Return the head of a block. Args: first: the number of its first record. count: of records."""
    head = HEAD.pack(MAGIC, kind, len(body), count, crc32(body), first, 0)[:_SUMMED]
    return head + crc32(head).to_bytes(4, "little")


def maps(records: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the body of a block of maps."""
    packed: bytes = msgpack.packb(list(records), use_bin_type=True)
    return packed


def bodies(records: Sequence[dict[str, Any]], most: int = AT_ONCE) -> Iterator[tuple[int, int, bytes]]:
    """Encode map records as bodies of blocks of at most the readers' maximum: peers choose names, and their length.

    Yields: for each body the index of its first record, the number of records, and the octets. A record that is too
        large even alone is left out.
    """
    for at in range(0, len(records), most):
        some = records[at : at + most]
        body = maps(some)
        if len(body) <= MAX_MAPS:
            yield at, len(some), body
        elif len(some) > 1:
            for within, count, part in bodies(some, len(some) // 2):
                yield at + within, count, part


def beginning(router: str, epoch: int, segment: int, time: int, sample: int) -> bytes:
    """Return the body of the first block of a segment. Args: as the fields of `schema.SEGMENT`."""
    told = {"version": VERSION, "router": router, "epoch": epoch, "segment": segment, "time": time, "sample": sample}
    return maps([told])


def ending(time: int, hops: int, blocks: int, dropped: int) -> bytes:
    """Return the body of the last block of a segment. Args: as the fields of `schema.END`."""
    return maps([{"time": time, "hops": hops, "blocks": blocks, "dropped": dropped}])


@dataclass(frozen=True, slots=True)
class Block:
    """An undamaged block."""

    kind: int
    """A `Kind`, or a number unknown to this version."""
    first: int
    count: int
    body: memoryview
    at: int
    """Its offset in the file."""

    def records(self) -> list[dict[str, Any]]:
        """Return its map records. Raises: ValueError: the body is something else."""
        try:
            found = msgpack.unpackb(self.body, strict_map_key=True)
        except Exception as error:  # hostile octets may lead to any error
            raise ValueError(f"no msgpack: {error}") from error
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            raise ValueError("no array of maps")
        if len(found) != self.count:
            raise ValueError(f"{len(found)} records instead of {self.count}")
        return found


@dataclass(slots=True)
class Damage:
    """The unreadable parts of a segment."""

    blocks: int = 0
    """OnDemandConnections without an undamaged block, a torn end included."""
    octets: int = 0
    """Octets skipped."""
    torn: bool = False
    """True if the segment ends with a damaged part, most likely in the middle of a block."""
    where: list[tuple[int, int]] = field(default_factory=list)
    """Start and end offset of each place."""


def read(data: bytes, damage: Damage) -> Iterator[Block]:
    """Yield the undamaged blocks of a segment in order, and note the rest in `damage`. Any octets are accepted."""
    view = memoryview(data)
    at = 0
    while at < len(data):
        head = _head(view, at)
        if head is not None:
            kind, size, count, body_sum, first = head
            body = view[at + HEAD.size : at + HEAD.size + size]
            after = at + HEAD.size + len(body)
            if crc32(body) == body_sum and (kind != Kind.HOP or _holds(size, count)):
                yield Block(kind, first, count, body, at)
                at = after
                continue
            # The head is undamaged, so the end of the block is known: skip all of it.
            damage.torn = len(body) < size
        else:
            after = data.find(MAGIC, at + 1)
            while after >= 0 and _head(view, after) is None:
                after = data.find(MAGIC, after + 1)
            damage.torn = after < 0
            after = after if after >= 0 else len(data)
        damage.blocks += 1
        damage.octets += after - at
        damage.where.append((at, after))
        at = after


def _holds(size: int, count: int) -> bool:
    """Return True if `size` octets can hold `count` hop records.

    Each record takes a unit, and at least one more unit has the first octets of their keys.
    """
    return size % UNIT_OCTETS == 0 and size > count * UNIT_OCTETS


def _head(view: memoryview, at: int) -> tuple[int, int, int, int, int] | None:
    """Return kind, octets, records, sum and number of the block at an offset, if its head is undamaged."""
    octets = bytes(view[at : at + HEAD.size])
    if len(octets) < HEAD.size:
        return None
    magic, kind, size, count, body_sum, first, head_sum = HEAD.unpack(octets)
    if magic != MAGIC or crc32(octets[:_SUMMED]) != head_sum or size > (MAX_BODY if kind == Kind.HOP else MAX_MAPS):
        return None
    return kind, size, count, body_sum, first
