"""Rates of what cannot wait, which the workers of a router keep together: tokens in a file, under a lock.

A connection or an attach is admitted or refused at once, so a worker cannot ask others for a part of the rate first.
All workers take tokens from the same buckets. A worker reads a bucket, takes a token and writes it back while it has
the lock of the file; the system frees the lock of a worker that ends.

A bucket is a time: when it will be full. So buckets that are full need no record, and the file has a fixed size.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections import Counter
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from amqpmesh.router.credit.places import TOKEN
from amqpmesh.router.logs import event_log
from amqpmesh.router.runtime.file_locks import lock_soon, set_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from pathlib import Path

    from amqpmesh.router.credit.rate_line import Rate

log = event_log.EventLog("amqpmesh.io")

ROWS: Final = 4096
"""Rows of the file. The hash of a bucket's owner selects its row."""

EACH: Final = 16
"""Buckets in a row. With `ROWS`, as many as a single process remembers of users and hosts."""

_RECORD: Final = struct.Struct("=8s8sd")  # hash of the owner, hash of its tenant, the time at which the bucket is full

_ROW: Final = EACH * _RECORD.size

_Row = list[tuple[bytes, bytes, float]]


class SharedTokens:
    """The buckets of all workers, as one worker sees them: `Tokens`."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Args: path: of the file, which is made when the first token is taken. clock: the same for all workers."""
        self._path = path
        self._clock = clock
        self._file: int | None = None

    def take(self, rates: Sequence[Rate]) -> list[float] | None:
        """See `Tokens`."""
        try:
            if self._file is None:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._file = os.open(self._path, flags, 0o600)
            if not lock_soon(self._file):
                log.warning("shared count unavailable", reason="another worker holds it")
                return None
            try:
                return self._take(self._file, rates, self._clock())
            finally:
                set_lock(self._file, fcntl.F_UNLCK, 0, 1)
        except OSError as error:
            log.warning("shared count unavailable", reason=error.strerror or str(error))
            return None

    def close(self) -> None:
        """Close the file. What was taken stays taken."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _take(self, file: int, rates: Sequence[Rate], now: float) -> list[float]:
        rows: dict[int, _Row] = {}
        owners = [_digest(rate.owner) for rate in rates]
        numbers = [int.from_bytes(owner, "big") % ROWS for owner in owners]
        full_at, tokens = [], []
        for rate, owner, number in zip(rates, owners, numbers, strict=True):
            if number not in rows:
                rows[number] = _read(file, number)
            burst = max(1.0, rate.burst)
            known = next((each[2] for each in rows[number] if each[0] == owner), now)
            seconds = min(max(0.0, known - now), burst / rate.rate)  # less, if the burst has become smaller
            full_at.append(now + seconds)
            tokens.append(burst - seconds * rate.rate)
        if all(each >= TOKEN for each in tokens):
            for rate, owner, number, at in zip(rates, owners, numbers, full_at, strict=True):
                record = owner, _digest(rate.owner.tenant), at + 1 / rate.rate
                place = _place(rows[number], owner, record[1], now)
                rows[number][place] = record
                os.pwrite(file, _RECORD.pack(*record), number * _ROW + place * _RECORD.size)
        return tokens


def _place(row: _Row, owner: bytes, tenant: bytes, now: float) -> int:
    """Return the place of a bucket in a row: its own, that of one that is full, or that of one that is forgotten.

    If all are used, one is forgotten of the tenant that has most: so no tenant makes others gain anything.
    """
    place = next((at for at, each in enumerate(row) if each[0] == owner), None)
    if place is None:
        place = min(range(EACH), key=lambda at: row[at][2])
        if row[place][2] > now:
            counts = Counter([tenant, *(each[1] for each in row)])
            most = max(counts[each[1]] for each in row)
            place = min((at for at in range(EACH) if counts[row[at][1]] == most), key=lambda at: row[at][2])
    return place


def _read(file: int, number: int) -> _Row:
    octets = os.pread(file, _ROW, number * _ROW).ljust(_ROW, b"\0")  # nothing was written yet behind the file's end
    return list(_RECORD.iter_unpack(octets))


@lru_cache(maxsize=1024)
def _digest(value: Hashable) -> bytes:
    return blake2b(repr(value).encode("utf-8", "surrogatepass"), digest_size=8).digest()
