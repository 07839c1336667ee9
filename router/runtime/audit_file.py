"""The file of the audit log: appended to, rotated by size, and opened again on request. No threads, tasks or clocks."""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.errors import ConfigError

if TYPE_CHECKING:
    from amqpmesh.router.config.observability import AuditConfig

MODE: Final = 0o600
"""The permissions of a file that is created."""


def file_of(config: AuditConfig, worker: int | None) -> Path:
    """Return the path of the file. Args: worker: the number of the worker that writes it; None: there are none."""
    return config.file if worker is None else config.file.with_suffix(f".{worker}{config.file.suffix}")


def demand_writable(config: AuditConfig, workers: int) -> None:
    """Check that all workers of a router can open their files, whether or not they write them now.

    Raises: ConfigError: one cannot; then none is created.
    """
    created: list[Path] = []
    try:
        for number in range(1, workers + 1):
            path = file_of(config, number)
            is_new = not path.exists()
            try:
                os.close(_opened(path))
            except OSError as error:
                raise ConfigError(str(path), "audit.file", error.strerror or str(error)) from None
            if is_new:
                created.append(path)
    except ConfigError:
        for path in created:
            path.unlink(missing_ok=True)
        raise


def _opened(path: Path) -> int:
    """Open a file to append to it; create it if necessary. Raises: OSError."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK, MODE)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(None, "is no regular file", str(path))
    return file


class AuditFile:
    """The file that a router, or one worker of it, writes alone. Every method but `close` may raise OSError."""

    def __init__(self, path: Path, max_size: int, keep: int) -> None:
        """Args: max_size: octets before it is rotated; 0: never. keep: rotated files."""
        self.path = path
        self._max_size = max_size
        self._keep = keep
        self._file: int | None = None

    def limit(self, max_size: int, keep: int) -> None:
        """Follow other limits. Args: as of the class."""
        self._max_size, self._keep = max_size, keep

    def open(self) -> None:
        """Open the file, which is created if necessary; do nothing if it is open."""
        if self._file is not None:
            return
        file = _opened(self.path)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OSError(None, "another process writes it", str(self.path)) from None
            size = os.fstat(file).st_size
            if size and os.pread(file, 1, size - 1) != b"\n":
                os.write(file, b"\n")  # the machine has stopped within a line: the next one stands for itself
        except BaseException:
            os.close(file)
            raise
        self._file = file

    def append(self, lines: bytes) -> None:
        """Append whole lines. If that fails, no part of them stays."""
        self.open()
        assert self._file is not None
        size = os.fstat(self._file).st_size
        if self._max_size and size and size + len(lines) > self._max_size:
            self._rotate()
            self.open()
            size = 0
        written = 0
        try:
            while written < len(lines):  # the disk may be nearly full
                written += os.write(self._file, lines[written:])
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file, size)
            self.close()  # the next attempt finds out what is there
            raise

    def close(self) -> None:
        """Close the file. The next `append` opens it again, by its name."""
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(OSError):
                os.close(file)

    def _rotate(self) -> None:
        """Rename the file to `NAME.1`, that one to `NAME.2`, and so on; the oldest one is removed."""
        self.close()
        # Up to the first free number only: an attempt that has failed half-way moves nothing twice.
        last = next((number for number in range(1, self._keep) if not self._rotated(number).exists()), self._keep)
        for number in range(last, 1, -1):
            self._rotated(number - 1).replace(self._rotated(number))
        if self._keep:
            self.path.replace(self._rotated(1))
        else:
            self.path.unlink()

    def _rotated(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")
