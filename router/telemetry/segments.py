"""Segments: files of checked blocks, to which a router appends what it records, and which others read when it is done.

A block is a head of 32 octets and a body:

    magic (4) kind (1) zeros (3) octets of the body (4) records (4) sum of the body (4) first (8) sum of these (4)

all little-endian, the sums CRC-32. `first` is the number of the first record among those of its kind that this life of
the router had for it, those that were lost included: a gap tells how many were. The body of hop records is their units;
of all other kinds a msgpack array of maps (`telemetry`). A block that is damaged is passed over: the next one is found
by its magic and its sum.

A segment that is being written ends in `.open`; closing renames it. The first block says who writes it.
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

from amqpmesh.router.telemetry.schema import UNIT_OCTETS, Kind

MAGIC: Final = b"\xa5mq\n"
"""What a block begins with: not valid UTF-8, so that it stands in no string."""

HEAD: Final = struct.Struct("<4sB3xIIIQI")
"""Of a block."""

_SUMMED: Final = HEAD.size - 4

MAX_BODY: Final = 1 << 26
"""Octets of a block's body at most: no reader needs to hold more."""

MAX_MAPS: Final = 1 << 22
"""Of one whose records are maps: in memory they may take a hundred times as much."""

SUFFIX: Final = ".events"
"""Of a closed segment."""

OPEN: Final = ".open"
"""Of one that is being written."""

_NAME: Final = re.compile(r"(?P<router>[^/]+)\.(?P<epoch>[0-9]{13,18})\.(?P<segment>[0-9]{6,18})\.(events|open)")


@dataclass(frozen=True, slots=True)
class Name:
    """What the name of a segment says."""

    router: str
    epoch: int
    """When that life of the router began, milliseconds since 1970."""
    segment: int

    def file(self, suffix: str = SUFFIX) -> str:
        """The name of the file."""
        return f"{quote(self.router, safe='@')}.{self.epoch:013d}.{self.segment:06d}{suffix}"

    @staticmethod
    def of(file: str) -> Name | None:
        """What a file's name says; None: it is no segment's."""
        found = _NAME.fullmatch(file)
        return found and Name(unquote(found["router"]), int(found["epoch"]), int(found["segment"]))


def block(kind: Kind, first: int, count: int, body: bytes | memoryview) -> bytes:
    """The head of a block. Args: first: the number of its first record. count: how many there are."""
    head = HEAD.pack(MAGIC, kind, len(body), count, crc32(body), first, 0)[:_SUMMED]
    return head + crc32(head).to_bytes(4, "little")


def maps(records: Sequence[Mapping[str, Any]]) -> bytes:
    """The body of a block of any kind but hop records."""
    packed: bytes = msgpack.packb(list(records), use_bin_type=True)
    return packed


@dataclass(frozen=True, slots=True)
class Block:
    """One that is whole."""

    kind: int
    """A `Kind`, if it is known here."""
    first: int
    count: int
    body: memoryview
    at: int
    """Where it stands in the file."""

    def records(self) -> list[dict[str, Any]]:
        """Its records, of any kind but hop records. Raises: ValueError: it holds something else."""
        try:
            found = msgpack.unpackb(self.body, strict_map_key=True)
        except Exception as error:  # whatever it was that hostile octets led to
            raise ValueError(f"no msgpack: {error}") from error
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            raise ValueError("no array of maps")
        if len(found) != self.count:
            raise ValueError(f"{len(found)} records instead of {self.count}")
        return found


@dataclass(slots=True)
class Damage:
    """What could not be read of a segment."""

    blocks: int = 0
    """Places where something else than a whole block stood, the torn end included."""
    octets: int = 0
    """Octets that were passed over."""
    torn: bool = False
    """It ends so: in the middle of a block, most likely."""
    where: list[tuple[int, int]] = field(default_factory=list)
    """Of each place, where it begins and ends in the file."""


def read(data: bytes, damage: Damage) -> Iterator[Block]:
    """The blocks of a segment that are whole, in order; what is not is noted in `damage`. It takes any octets."""
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
            # The head is whole: where the block would end is known, and nothing within it is looked at.
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
    """Whether so many octets may be so many hop records: one unit says what their keys begin with."""
    return size % UNIT_OCTETS == 0 and size > count * UNIT_OCTETS


def _head(view: memoryview, at: int) -> tuple[int, int, int, int, int] | None:
    """Kind, octets, records, sum and number of the block whose head stands there, if it is whole."""
    octets = bytes(view[at : at + HEAD.size])
    if len(octets) < HEAD.size:
        return None
    magic, kind, size, count, body_sum, first, head_sum = HEAD.unpack(octets)
    if magic != MAGIC or crc32(octets[:_SUMMED]) != head_sum or size > (MAX_BODY if kind == Kind.HOP else MAX_MAPS):
        return None
    return kind, size, count, body_sum, first
