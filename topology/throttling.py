"""Limits on how often routers send and accept records: token buckets, and exponential backoff."""

from typing import Final, NamedTuple

NEVER: Final = float("-inf")
"""The `spent` time of a user that has used nothing yet."""


class TokenBucket(NamedTuple):
    """A token bucket. Its state for one user is a single time, `spent`: the bucket is full from then on."""

    a_second: float
    burst: float
    """The amount that can be used at once after an idle time. A larger single amount counts as this much."""

    def when(self, spent: float, amount: float) -> float:
        """Return the time from which an amount can be used; a time in the past means now."""
        return spent - (self.burst - min(amount, self.burst)) / self.a_second

    def used(self, spent: float, amount: float, now: float) -> float:
        """Return the new `spent` after an amount was used."""
        return max(spent, now) + amount / self.a_second

    def part(self, of_rate: float, of_burst: float) -> "TokenBucket":
        """Return a smaller bucket, for a sender that must stay within the limit of its receivers."""
        return TokenBucket(self.a_second * of_rate, max(1.0, self.burst * of_burst))


class Backoff:
    """An exponential backoff: the first run after an idle time is immediate, then each wait doubles.

    A single change takes effect at once. When a mesh starts or falls apart, many changes share one run of the work, so
    a router does not repeat the work for each of them.
    """

    __slots__ = ("_done_at", "_least", "_wait")

    def __init__(self, least: float) -> None:
        """Args: least: the first wait, seconds."""
        self._least = least
        self._wait = least
        self._done_at = float("-inf")

    def next(self, now: float) -> float:
        """Return the time of the next run."""
        return max(now, self._done_at + self._wait)

    def done(self, now: float, most: float) -> None:
        """Note a run at `now`. Args: most: the longest next wait, seconds; the first wait is always allowed."""
        is_idle = now > self._done_at + 2 * self._wait
        self._wait = self._least if is_idle else max(self._least, min(2 * self._wait, most))
        self._done_at = now
