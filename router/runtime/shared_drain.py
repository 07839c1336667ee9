"""The drain of a router with workers: one of them is asked, all follow, and each tells how far it is.

The order is a file in the workers' private folder, as the shared configuration is. The counts are a file with a place
for each worker, which only that worker writes: a place is written and read as a whole.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import tempfile
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpmesh.router.logs import event_log

if TYPE_CHECKING:
    from pathlib import Path

    from amqpmesh.router.config.mesh import WorkerConfig

log = event_log.EventLog("amqpmesh.io")

ORDER: Final = "drain"
"""The name of the order's file."""

COUNTS: Final = "drain.counts"
"""The name of the file with a place for each worker."""

LEAVE: Final = signal.SIGUSR2
"""The signal to a worker that has moved its clients, before its end: the others have moved theirs, too."""

_PLACE: Final = struct.Struct("=QQQ")  # the number of the order that it follows, connections left, connections moved


class Order(NamedTuple):
    """An order to move the clients away, or to let them stay."""

    number: int
    """Counts the orders."""
    moves: bool
    """False: the clients that were not moved yet stay."""
    pace: float | None
    """The share of the clients that is moved in a second; None: as configured."""
    until: float
    """The time after which no clients are moved, by the monotonic clock, which all processes share."""
    is_succession: bool = False
    """True if the clients move to other processes, which have the listening sockets, too."""

    @property
    def seconds_left(self) -> float:
        """The seconds until then."""
        return max(0.0, self.until - time.monotonic())


def read_order(folder: Path) -> Order | None:
    """Return the last order; None: there was none, or it cannot be read."""
    try:
        return Order(*json.loads((folder / ORDER).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        log.error("drain order unreadable", reason=str(error))
        return None


def write_order(folder: Path, order: Order) -> None:
    """Write an order, as a whole. Raises: OSError."""
    descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=f".{ORDER}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            json.dump(order, stream)
        os.replace(temporary, folder / ORDER)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise


class SharedDrain:
    """The drain of all workers of a router, as one of them sees it."""

    def __init__(self, worker: WorkerConfig) -> None:
        self._folder = worker.folder
        self._number = worker.number
        self._workers = worker.count
        self._last: tuple[int, int, int] = (0, 0, 0)
        self._file: int | None = None

    def order(self) -> Order | None:
        """Return the last order; None: there was none."""
        return read_order(self._folder)

    def give(self, order: Order) -> None:
        """Write an order; the caller has the workers follow. Raises: OSError."""
        write_order(self._folder, order)

    def note(self, order: int, left: int, moved: int) -> None:
        """Tell how far this worker is. Args: order: the number of the one that it follows. left, moved: connections."""
        if self._last == (order, left, moved):
            return
        self._last = order, left, moved
        with suppress(OSError):  # a full disk: then only the counts are wrong
            if self._file is None:
                self._file = os.open(self._folder / COUNTS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.pwrite(self._file, _PLACE.pack(*self._last), (self._number - 1) * _PLACE.size)

    def others(self) -> list[tuple[int, int, int]]:
        """Return the places of the other workers: the order that each follows, connections left and moved."""
        try:
            data = (self._folder / COUNTS).read_bytes()
        except OSError:
            data = b""
        data = data.ljust(self._workers * _PLACE.size, b"\0")
        places = [_PLACE.unpack_from(data, number * _PLACE.size) for number in range(self._workers)]
        return [each for number, each in enumerate(places, 1) if number != self._number]

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
