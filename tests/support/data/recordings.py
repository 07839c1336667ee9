"""The records of a router under test, kept in memory, and hop records as numbers."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from amqpmesh.router.config.observability import TelemetryConfig
from amqpmesh.router.core import Core
from amqpmesh.router.kernel import Recorder
from amqpmesh.router.telemetry.schema import PACKED, UNIT_OCTETS, UNIT_WORDS, Kind, Unit
from amqpmesh.router.telemetry.segments import Block, Damage, read

EPOCH = 1_700_000_000_000


def unpacked(words: Iterable[int]) -> list[dict[str, int]]:
    """Return the numbers of hop records."""
    words = list(words)
    records: list[dict[Unit, list[int]]] = []
    key: list[int] | None = None
    for at in range(0, len(words), UNIT_WORDS):
        unit = words[at : at + UNIT_WORDS]
        mark = unit[2] >> 56
        if mark == Unit.KEY:
            key = unit
        elif mark == Unit.WIDE:
            assert Unit.WIDE not in records[-1]
            records[-1][Unit.WIDE] = unit
        else:
            assert key is not None
            assert mark < Unit.KEY
            records.append({Unit.RECORD: unit, Unit.KEY: key})
    return [_numbers(each) for each in records]


def _numbers(units: dict[Unit, list[int]]) -> dict[str, int]:
    found = {}
    for name, parts in PACKED.items():
        found[name] = shift = 0
        for bits in parts:
            if bits.unit in units:
                found[name] |= (units[bits.unit][bits.word] >> bits.shift & (1 << bits.bits) - 1) << shift
            shift += bits.bits
    return found if Unit.WIDE in units else {**found, "attempt": 1}


def blocks(directory: Path, suffix: str = "events") -> list[Block]:
    """Return the whole blocks of all segments in a directory."""
    found = []
    for file in sorted(directory.glob(f"*.{suffix}")):
        damage = Damage()
        found += read(file.read_bytes(), damage)
        assert damage == Damage(), (file, damage)
    return found


def hops_in(found: Iterable[Block]) -> list[dict[str, int]]:
    """Return the hop records of blocks."""
    return [each for block in found if block.kind == Kind.HOP for each in unpacked(memoryview(block.body).cast("Q"))]


class Records:
    """The records of one core, whose clock they use."""

    def __init__(self, core: Core, *, records: int = 1000, rooms: int = 100, **settings: Any) -> None:
        """Args: records: of a block, if keys begin alike. rooms: how many blocks there are. settings: of the
        telemetry.
        """
        self.core = core
        self.taken: dict[Kind, list[dict[str, Any]]] = {kind: [] for kind in Kind}
        self.gone_numbers: list[int] = []
        self._blocks = [array("Q", bytes(UNIT_OCTETS * (1 + records + 2))) for _ in range(rooms)]
        self._hops: list[dict[str, int]] = []
        self.recorder = Recorder(lambda: core.context.now)
        config = TelemetryConfig(directory="events", **settings)
        self.recording = core.record(self.recorder, config, self, EPOCH)
        self.recording.begin()

    @property
    def hops(self) -> list[dict[str, int]]:
        """All hop records so far, in their order."""
        self.recording.flush()
        return self._hops

    def happened(self) -> list[tuple[str, str]]:
        """Return the events so far, each with its link."""
        return [(each["happening"], each["link"]) for each in self.taken[Kind.EVENT]]

    def conditions(self) -> list[str | None]:
        """Return the condition of each hop record so far."""
        told = {each["number"]: each["name"] for each in self.taken[Kind.LINK] if each["direction"] == "condition"}
        return [told[each["condition"]] if each["condition"] else None for each in self.hops]

    def number(self, link: str) -> int:
        """Return the number of the link of that name that was attached last."""
        return next(int(each["number"]) for each in reversed(self.taken[Kind.LINK]) if each["name"] == link)

    # As the core's writer.

    def take(self, kind: Kind, records: list[dict[str, Any]]) -> None:
        self.taken[kind] += records

    def take_hops(self, words: array[int], used: int, first: int, count: int) -> array[int] | None:
        found = unpacked(words[:used])
        assert len(found) == count
        assert first - self.recorder.lost == len(self._hops)
        self._hops += found
        return self.room()

    def gone(self, number: int) -> None:
        self.gone_numbers.append(number)

    def room(self) -> array[int] | None:
        return self._blocks.pop() if self._blocks else None
