"""The segment files in the directories that routers write to."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from amqpmesh.pipeline.events import LONGEST_NAME, Problem
from amqpmesh.pipeline.segments import Finding, peek
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.telemetry.schema import VERSION
from amqpmesh.router.telemetry.segments import OPEN, Name

LEFT_BEHIND: Final = 24 * 3600.0
"""Seconds without a write, after which an open segment is converted as it is: its router is dead, or it would have
started another segment. The router's next life closes open segments.
"""

PEEKED: Final = 1 << 16
"""Octets at the beginning of a file that are read to identify its segment."""

LARGEST: Final = 1 << 33
"""Octets of a segment file at most: it is read at once, and a router's largest configurable segment has half
as much.
"""

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


@dataclass(frozen=True, slots=True, order=True)
class File:
    """A file, with its state when it was found."""

    path: str
    octets: int
    modified: int
    """Nanoseconds since 1970."""


@dataclass(slots=True)
class Found:
    """The files that were found."""

    segments: dict[Name, list[File]] = field(default_factory=dict)
    """The files that are, or claim to be, each segment."""
    open: int = 0
    """Files that are being written to."""
    findings: list[tuple[str, Finding]] = field(default_factory=list)
    """The faults of other paths."""


def ordinary(place: str) -> Path:
    """Return the path of a directory on this machine. Raises: CommandError: the directory is elsewhere."""
    if not _SCHEME.match(place):
        return Path(place).absolute()
    url = urlsplit(place)
    if url.scheme == "file" and url.netloc in ("", "localhost") and url.path.startswith("/"):
        return Path(unquote(url.path))
    raise CommandError(
        f"ingest: {place}: segments are read from, and their tables written to, paths that this machine and all "
        "executors share; the tables can be copied from there"
    )


def find(directories: Iterable[Path], out: Path, known: Mapping[File, Name], now: float) -> Found:
    """Find all segments below directories, except in hidden files, which are still being copied, and below `out`.

    Args: known: files whose segment is known already. now: seconds since 1970.
    Raises: OSError: one of the directories cannot be read.
    """
    found = Found()
    seen = set()
    for directory in directories:
        os.listdir(
            directory
        )  # an unreadable directory that the user named is an error; an unreadable one below it is a finding
        for path in _paths(directory, out, found):
            if (shown := _shown(path)) != path:  # tables can only hold text
                found.findings.append((shown, Finding(Problem.INACCESSIBLE, "its path is not UTF-8")))
                continue
            real = os.path.realpath(path)
            if real in seen:
                continue
            seen.add(real)
            try:
                _identify(path, found, known, now)
            except FileNotFoundError:
                continue  # its router, or a clean-up, has removed it
            except OSError as error:
                found.findings.append((path, Finding(Problem.INACCESSIBLE, f"it cannot be read: {error.strerror}")))
    return found


def _paths(directory: Path, out: Path, found: Found) -> Iterator[str]:
    def inaccessible(error: OSError) -> None:
        sentence = f"the directory cannot be read: {error.strerror}"
        found.findings.append((_shown(str(error.filename)), Finding(Problem.INACCESSIBLE, sentence)))

    for folder, folders, files in os.walk(directory, onerror=inaccessible):
        folders[:] = sorted(each for each in folders if each[0] != "." and Path(folder, each) != out)
        yield from (os.path.join(folder, each) for each in sorted(files) if each[0] != "." or Name.of(each))


def _shown(path: str) -> str:
    """Return a path as text; escape octets that are not UTF-8."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _identify(path: str, found: Found, known: Mapping[File, Name], now: float) -> None:
    """Identify one file. Raises: OSError."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):  # reading a pipe would never end
        found.findings.append((path, Finding(Problem.FOREIGN, "it is no file")))
        return
    file = File(path, status.st_size, status.st_mtime_ns)
    if file.octets > LARGEST:
        sentence = f"no segment is larger than {LARGEST} octets"
        found.findings.append((path, Finding(Problem.FOREIGN, sentence, octets=file.octets)))
        return
    if path.endswith(OPEN) and now - status.st_mtime < LEFT_BEHIND:
        found.open += 1
        return
    name = known.get(file) or identity(path)
    if name is None:
        problem = Problem.FOREIGN if file.octets else Problem.EMPTY
        found.findings.append((path, Finding(problem, "it is no segment", octets=file.octets)))
        return
    found.segments.setdefault(name, []).append(file)


def identity(path: str) -> Name | None:
    """Identify a file's segment by its first block, else by its name; None: it is no segment. Raises: OSError."""
    with open(path, "rb") as opened:
        name, version = peek(opened.read(PEEKED))
    if name is None or (version is not None and version > VERSION):
        name = Name.of(os.path.basename(path))
    return name if name is not None and len(name.file("")) <= LONGEST_NAME else None
