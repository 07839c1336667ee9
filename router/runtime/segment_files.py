"""Segment files of one router: written, closed by renaming, and removed when old. No threads, tasks or clocks."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

from amqpmesh.router.telemetry.schema import Kind
from amqpmesh.router.telemetry.segments import HEAD, OPEN, SUFFIX, Name, beginning, block, bodies, ending

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from amqpmesh.router.config.observability import TelemetryConfig


class SegmentFiles:
    """The segment files of one life of a router.

    Every method may raise OSError; the octets that a failed write left of a block are removed. A missing directory is
    created with each segment.
    """

    def __init__(self, config: TelemetryConfig, router: str, epoch: int, sample: int) -> None:
        """Args: epoch: of this life, milliseconds since 1970. sample: recorded keys, of 2**32 possible ones."""
        self._config = config
        self._router = router
        self._epoch = epoch
        self._sample = sample
        #: The number of the current segment, or of the last.
        self.number = 0
        self._file: int | None = None
        self._path: Path | None = None
        self._size = 0
        self._beginning = 0
        self._blocks = 0
        self._hops = 0
        self._written: dict[Kind, int] = {}
        #: The links that later segments explain, by number; the numbers that end with the current segment, and with the
        #: next one.
        self._links: dict[int, dict[str, Any]] = {}
        self._ended: set[int] = set()
        self._leaving: set[int] = set()
        #: Hop records lost in this life: for want of room, and for errors of the disk.
        self.dropped = 0
        self.refused = 0
        #: Map records lost for errors of the disk.
        self.unwritten = 0
        self._has_begun = False

    def begin(self, now: int) -> None:
        """Create the directory, and close segments that an earlier life has left open. Args: now: ns since 1970."""
        directory = self._config.directory
        directory.mkdir(parents=True, exist_ok=True)
        if self._has_begun:
            return
        for each in directory.glob(f"*{OPEN}"):
            name = Name.of(each.name)
            if name is not None and name.router == self._router and name.epoch < self._epoch:
                each.rename(each.with_suffix(SUFFIX))
        self._remove_old(now)
        self._has_begun = True

    @property
    def is_due(self) -> bool:
        """True if the segment is large enough. Its first blocks, which explain all links, do not count: they may be
        larger.
        """
        return self._size - self._beginning >= self._config.segment_size

    @property
    def links(self) -> Mapping[int, dict[str, Any]]:
        """The links that segments explain, by number."""
        return self._links

    def next_number(self, kind: Kind) -> int:
        """Return the number of the next map record of a kind, among all of this life."""
        return self._written.get(kind, 0)

    def take(self, kind: Kind, records: list[dict[str, Any]], now: int) -> None:
        """Append map records."""
        if kind is Kind.LINK:
            self._links.update((each["number"], each) for each in records)
            self._leaving.difference_update(each["number"] for each in records)
        first = self._written.get(kind, 0)
        # Numbered before they are written: a gap in the numbers shows those that could not be.
        self.lose(kind, len(records))
        written = 0
        try:
            if self._file is None:
                self._open(now)
                if kind is Kind.LINK:  # written at the beginning of the segment
                    return
            for at, count, body in bodies(records):
                self._append(kind, first + at, count, body)
                written += count
        except OSError:
            if kind is not Kind.LINK:  # the next segment begins with the links
                self.unwritten += len(records) - written
            raise

    def lose(self, kind: Kind, count: int) -> None:
        """Count map records that have numbers and are not written."""
        self._written[kind] = self._written.get(kind, 0) + count

    def take_hops(self, words: memoryview, first: int, count: int, now: int) -> None:
        """Append hop records. Args: first: the number of the first one, lost ones included. count: of records."""
        try:
            if self._file is None:
                self._open(now)
            self._append(Kind.HOP, first, count, words)
        except OSError:
            self.refused += count
            raise
        self._hops += count

    def forget(self, numbers: list[int]) -> None:
        """Forget links that are gone. Later segments cannot have records of them, and do not explain their numbers."""
        self._ended.update(numbers)

    def close(self, now: int) -> None:
        """Close the segment, if one is open: from now on readers may read it."""
        if self._file is None:
            return
        assert self._path is not None
        end = ending(now, self._hops, self._blocks, self.dropped + self.refused)
        try:
            self._append(Kind.END, self.number - 1, 1, end)
        finally:
            os.close(self._file)
            self._file = None
            self._path.rename(self._path.with_suffix(SUFFIX))
        self._let_go()
        self._remove_old(now)

    def change(self, config: TelemetryConfig, sample: int, now: int) -> None:
        """Close the segment, and begin the next one with another configuration. Args: sample: as at first."""
        try:
            self.close(now)
        finally:
            self._config, self._sample = config, sample

    def _open(self, now: int) -> None:
        self.number += 1
        self._path = self._config.directory / Name(self._router, self._epoch, self.number).file(OPEN)
        try:
            self.begin(now)
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        except OSError:
            self._let_go()
            raise
        self._size = self._blocks = self._hops = 0
        told = beginning(self._router, self._epoch, self.number, now, self._sample)
        try:
            self._append(Kind.SEGMENT, self.number - 1, 1, told)
            for _, count, body in bodies(list(self._links.values())):
                self._append(Kind.LINK, 0, count, body)
        except OSError:
            # A segment without its first blocks would be of no use.
            os.close(self._file)
            self._file = None
            self._path.unlink(missing_ok=True)
            self._let_go()
            raise
        self._beginning = self._size

    def _let_go(self) -> None:
        """Drop the links that no further segment explains. Also called if a segment could not be opened: links come and
        go while a disk fails for days.
        """
        # Deliveries that were in flight when a link went are recorded in the segment of that time or, at the latest, in
        # the next.
        for number in self._leaving:
            self._links.pop(number, None)
        self._leaving, self._ended = self._ended, set()

    def _append(self, kind: Kind, first: int, count: int, body: bytes | memoryview) -> None:
        assert self._file is not None
        parts = [block(kind, first, count, body), body]
        whole = HEAD.size + len(body)
        try:
            written = os.writev(self._file, parts)
            while written < whole:  # interrupted by a signal, or the disk is nearly full
                written += os.write(self._file, b"".join(parts)[written:])
        except OSError:
            os.ftruncate(self._file, self._size)
            os.lseek(self._file, self._size, os.SEEK_SET)
            raise
        self._size += whole
        self._blocks += 1

    def _remove_old(self, now: int) -> None:
        """Remove closed segments of this router that are too old or too many."""
        found = []
        for each in self._config.directory.glob(f"*{SUFFIX}"):
            name = Name.of(each.name)
            if name is not None and name.router == self._router:
                found.append((name.epoch, name.segment, each, each.stat()))
        found.sort(key=lambda each: each[:2])
        size = sum(stat.st_size for *_, stat in found)
        config = self._config
        for _, _, path, stat in found:
            is_old = config.retain_time and now / 1e9 - stat.st_mtime > config.retain_time
            if not is_old and not (config.retain_size and size > config.retain_size):
                return
            path.unlink(missing_ok=True)
            size -= stat.st_size


def why_unusable(directory: Path) -> str | None:
    """Return the reason why no segment could be written to a directory; None: there is none. Nothing is created."""
    there = next((each for each in (directory, *directory.parents) if os.path.lexists(each)), directory)
    if not there.is_dir():
        return f"{there}: {os.strerror(errno.ENOTDIR)}"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{there}: {os.strerror(errno.EACCES)}"
    return None
