"""Segments as routers write them: links, hop records, counters, and faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from amqpmesh.router.telemetry.schema import PACKED, UNIT_WORDS, VERSION, Flag, Kind, Outcome, Unit
from amqpmesh.router.telemetry.segments import OPEN, Name, block, maps

BEGAN: Final = 1_777_600_000_000
"""The default start of a router: 2026-05-01 01:46:40 UTC, in milliseconds since 1970."""

WHOLE_SAMPLE: Final = 1 << 32

SECOND: Final = 1_000_000_000


def at(seconds: float) -> int:
    """Return nanoseconds since 1970. Args: seconds: after `BEGAN`."""
    return BEGAN * 1_000_000 + round(seconds * SECOND)


def words(columns: Mapping[str, Any], count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return hop records, each with the units that may stand beside it.

    Args: columns: numbers as `PACKED` names them, or arrays of them; what is not there is 0, and an attempt the first.
    """
    packed = np.zeros((count, len(Unit), UNIT_WORDS), "<u8")
    for place, unit in enumerate(Unit):
        packed[:, place, 2] = unit << 56
    for name, values in {"attempt": 1, **columns}.items():
        rest = np.asarray(values, np.uint64)
        for part in PACKED[name]:
            lower = rest & np.uint64((1 << part.bits) - 1)
            packed[:, list(Unit).index(part.unit), part.word] |= lower << np.uint64(part.shift)
            rest = rest >> np.uint64(part.bits) if part.bits < 64 else np.zeros_like(rest)
    return packed


NARROW: Final = words({}, 1)[0, list(Unit).index(Unit.WIDE)]
"""A wide unit that says nothing."""


def units(records: np.ndarray[Any, np.dtype[np.uint64]]) -> bytes:
    """Return hop records as they stand in a block: with a key where that changes, and wide units that say something."""
    own, key, wide = (records[:, place] for place in range(len(Unit)))
    is_said = np.ones(len(records), bool)
    is_said[1:] = (key[1:] != key[:-1]).any(axis=1)
    is_wide = (wide != NARROW).any(axis=1)
    chosen = np.stack([is_said, np.ones_like(is_said), is_wide], axis=1)
    return np.stack([key, own, wide], axis=1)[chosen].tobytes()


def hop(**numbers: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return one hop record."""
    return words(numbers, 1)


def framed(kind: int, first: int, count: int, body: bytes) -> bytes:
    return block(Kind(kind), first, count, body) + body


class Recorder:
    """The segments of one router in one life. Each is a file once it is closed."""

    def __init__(
        self,
        directory: Path,
        router: str = "A",
        *,
        epoch: int = BEGAN,
        sample: int = WHOLE_SAMPLE,
        version: int = VERSION,
    ) -> None:
        self.router, self.epoch, self.sample, self.version = router, epoch, sample, version
        self.directory = directory
        self.dropped = 0
        self._segment = 0
        self._numbers: dict[int, int] = {}
        self._links: list[dict[str, Any]] = []
        self._blocks = 0
        self._hops = 0
        self.data = b""
        self.begin()

    @property
    def name(self) -> Name:
        return Name(self.router, self.epoch, self._segment)

    def begin(self, time: int | None = None) -> None:
        """Begin another segment, which explains all links again."""
        self._segment += 1
        self.data = b""
        self._blocks = self._hops = 0
        told = {"version": self.version, "router": self.router, "epoch": self.epoch, "segment": self._segment}
        self.put(Kind.SEGMENT, [{**told, "time": time or self.epoch * 1_000_000, "sample": self.sample}])
        if self._links:
            self.put(Kind.LINK, self._links)

    def put(self, kind: Kind, records: Sequence[Mapping[str, Any]]) -> None:
        """Write a block of maps."""
        self._append(kind, len(records), maps(records))

    def link(
        self,
        name: str,
        direction: str = "incoming",
        peer: str | None = "client",
        *,
        lane: bool = False,
        address: str | None = "orders",
        tenant: str | None = "",
        number: int | None = None,
    ) -> int:
        """Explain a link. Returns: its number."""
        number = number or len(self._links) + 1
        told = {"number": number, "name": name, "direction": direction, "peer": peer, "from_router": lane}
        self._links.append({**told, "address": address, "tenant": tenant})
        self.put(Kind.LINK, self._links[-1:])
        return number

    def hops(self, *records: np.ndarray[Any, np.dtype[np.uint64]]) -> None:
        """Write a block of hop records."""
        together = np.concatenate(records)
        self._append(Kind.HOP, len(together), units(together))
        self._hops += len(together)

    def lose(self, count: int) -> None:
        """Lose so many hop records for want of room."""
        self._numbers[Kind.HOP] = self._numbers.get(Kind.HOP, 0) + count
        self.dropped += count

    def _append(self, kind: Kind, count: int, body: bytes) -> None:
        first = self._numbers.get(kind, 0)
        self._numbers[kind] = first + count
        self.data += framed(kind, first, count, body)
        self._blocks += 1

    def end(self, time: int | None = None) -> bytes:
        """Return the segment as it is when it is closed."""
        told = {"hops": self._hops, "blocks": self._blocks, "dropped": self.dropped}
        return self.data + framed(Kind.END, 0, 1, maps([{**told, "time": time or self.epoch * 1_000_000}]))

    def close(self, time: int | None = None, begins: int | None = None) -> Path:
        """Write the file, and begin another segment. Args: begins: when that begins, in ns since 1970."""
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / self.name.file()
        path.write_bytes(self.end(time))
        self.begin(begins)
        return path

    def leave_open(self) -> Path:
        """Write the file as it stands when the router is killed."""
        path = self.directory / self.name.file(OPEN)
        path.write_bytes(self.data)
        return path


SETTLED, BEGUN, COPY, TIMED, ANSWERED = (int(flag) for flag in Flag)
ACCEPTED = int(Outcome.ACCEPTED)
