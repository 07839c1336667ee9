"""Rates that the workers of a router have together: the part of each follows what its links ask for.

Each worker says how much of a rate it claims, where all others see it: the places of a shared count. Its part is its
claim next to all claims. A worker whose links wait claims ever more, up to the whole; one whose links have not waited
for a while claims ever less, down to a little, with which a client can begin. A greater claim counts only at the next
look, when the others have seen it, and a smaller one at once. So all parts together are the rate, but for what a worker
grants within one look that the others have not taken back yet.

Only rates that links wait for are looked at.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from amqpmesh.router.credit.places import Shared

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpmesh.router.credit.places import Places
    from amqpmesh.router.kernel import TokenBucket

PERIOD: Final = 0.1
"""Seconds between two looks."""

WHOLE: Final = 256
"""The claim of a worker whose links could use the whole rate."""

FASTER: Final = 4
"""Times the claim of a worker whose links wait is as large after a look."""

AT_ONCE: Final = 500
"""Rates that are looked at in one turn; of more, the others are looked at the next time."""


def set_rate(bucket: TokenBucket, rate: float, burst: float, now: float) -> None:
    """Change the rate of a bucket from now on. What is granted stays granted."""
    bucket.fill(now)
    bucket.rate, bucket.burst = rate, burst
    bucket.tokens = min(bucket.tokens, burst)


class _Claim:
    """The claim of one worker to a rate."""

    __slots__ = ("asked_at", "burst", "least", "most", "places", "rate", "size")

    def __init__(self, places: Places, workers: int) -> None:
        self.places = places
        self.size = 0
        self.least = max(1, WHOLE // (16 * workers))
        #: Places that there are: one for each claim of each worker.
        self.most = WHOLE * workers
        #: When a link has last waited, seconds.
        self.asked_at = -inf
        #: Of all workers together.
        self.rate = self.burst = 0.0

    def set_size(self, size: int) -> None:
        """Claim more or less from now on."""
        if size > self.size:
            self.size += self.places.take_some(size - self.size, self.most)
        elif size < self.size:
            self.places.give_back(self.size - size)
            self.size = size

    def part(self, size: int) -> float:
        """Return the part of the rate that a claim of some size has now."""
        return size / max(WHOLE, size + self.places.others())


class SharedRates:
    """The parts that one worker has of the rates that workers share."""

    def __init__(self) -> None:
        #: Returns the shared places of a count, if the router has several workers.
        self.share: Callable[[tuple[object, ...], Shared], Places | None] | None = None
        self._claims: dict[TokenBucket, _Claim] = {}
        #: Those to look at, the one that has been looked at last at the end.
        self._active: dict[TokenBucket, None] = {}
        self.due = inf
        """The time of the next look, seconds."""

    def limit(
        self, bucket: TokenBucket, key: tuple[object, ...], rate: float, burst: float, workers: int, now: float
    ) -> bool:
        """Have a bucket share a rate with those of other workers.

        Args: key: the same at all workers. rate, burst: of all together.
        Returns: False: workers share nothing here.
        """
        claim = self._claims.get(bucket)
        if claim is None:
            places = None if self.share is None else self.share(key, Shared.RATE)
            if places is None:
                return False
            claim = self._claims[bucket] = _Claim(places, workers)
        if not claim.size or (claim.rate, claim.burst) != (rate, burst):
            claim.rate, claim.burst = rate, burst
            claim.set_size(max(claim.size, claim.least))
            self._set_part(bucket, claim, claim.size, now)
        return True

    def want(self, bucket: TokenBucket, now: float) -> bool:
        """Note that a link waits for a bucket. Returns: whether the next look is earlier now."""
        claim = self._claims.get(bucket)
        if claim is None:
            return False
        claim.asked_at = now
        self._active[bucket] = None
        if self.due < inf:
            return False
        self.due = now + PERIOD
        return True

    def release(self, bucket: TokenBucket) -> None:
        """Claim nothing any more for a bucket that limits no link."""
        claim = self._claims.pop(bucket, None)
        if claim is not None:
            claim.places.release_all()
            self._active.pop(bucket, None)

    def look(self, now: float) -> list[TokenBucket]:
        """Look at the rates that links have waited for. Returns: the buckets that have a greater part now."""
        grown = []
        for bucket in [each for each, _ in zip(self._active, range(AT_ONCE), strict=False)]:
            claim = self._claims[bucket]
            before = bucket.rate
            size = claim.size
            if bucket.waiting:
                claim.asked_at = now
            if claim.asked_at > now - PERIOD:
                claim.set_size(min(WHOLE, FASTER * size))
            elif now > claim.asked_at + claim.burst / claim.rate + PERIOD:  # a full burst holds no link any longer
                claim.set_size(max(claim.least, size // 2))
            self._set_part(bucket, claim, min(size, claim.size), now)
            del self._active[bucket]
            if claim.size > claim.least or bucket.waiting:
                self._active[bucket] = None
            if bucket.rate > before:
                grown.append(bucket)
        self.due = now + PERIOD if self._active else inf
        return grown

    def _set_part(self, bucket: TokenBucket, claim: _Claim, size: int, now: float) -> None:
        part = claim.part(size)
        set_rate(bucket, claim.rate * part, max(1.0, claim.burst * part), now)
