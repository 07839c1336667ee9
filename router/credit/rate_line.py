"""The line of links that wait for a rate, and their turns: each gets an equal part of what a bucket has meanwhile.

A link waits if a bucket of its meter has not enough for one delivery, or if others wait for the same bucket. It gets no
credit while it waits. All links of a router stand in one line. From time to time the line is looked at from its
beginning: a link whose buckets all have something has its turn. One timer serves all, while links wait.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpmesh.router.kernel import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

    from amqpmesh.router.kernel import RateMeter

INTERVAL: Final = 0.02
"""Seconds between two looks at the line at least. Credit for a rate of thousands in a second comes in pieces as large
as the rate allows in this time: each piece costs a turn of the router."""

EACH: Final = 20e-6
"""Seconds by which the interval is longer for each link in a long line: a look at it takes a small part of the time."""

AT_ONCE: Final = 500
"""Links that are looked at in one turn."""


HOLDERS: Final = 50
"""Links of a bucket whose unused credit is looked at in one turn."""

FORGOTTEN: Final = 4
"""Buckets that are looked at whether they can be forgotten, when a link comes or goes."""


NAMES: Final = 4096
"""Buckets of names that limit no link and are kept: a client may attach and detach links of ever other names."""


class Rate(NamedTuple):
    """A rate that links are limited by."""

    key: Hashable
    """The owner of the rate: links of the same key share it."""
    rate: float
    """Deliveries or octets in a second."""
    burst: float
    """Deliveries or octets that may come at once."""
    of_octets: bool
    by_name: bool = False
    """True if its owner is a name that clients choose: a link, or an address."""


class RateLine:
    """The links of a router that wait for a rate."""

    def __init__(self, wake: Callable[[float], object]) -> None:
        """Args: wake: has `turns` called at a time, seconds; it may be called more often than that."""
        self._wake = wake
        #: By their keys. A bucket that limits no link any more is kept until it is full: a link that is attached anew
        #: gains nothing. `_unused`: these, the one that has been looked at last at the end.
        self._buckets: dict[Hashable, TokenBucket] = {}
        self._unused: dict[TokenBucket, None] = {}
        #: The buckets of names, and those of them that limit no link: at most `NAMES`.
        self._by_name: set[TokenBucket] = set()
        self._unused_names: dict[TokenBucket, None] = {}
        #: The buckets that each link waits for, in the order of the line.
        self._waiting: dict[RateMeter, list[TokenBucket]] = {}
        #: Links that this look at the line has not come to; and those that had their turn in it.
        self._left: deque[RateMeter] = deque()
        self._called: list[RateMeter] = []
        self._due: float | None = None
        #: Buckets that links wait for, and all tokens of which other links hold.
        self._used_up: dict[TokenBucket, None] = {}

    def __len__(self) -> int:
        """Return how many links wait."""
        return len(self._waiting)

    def __iter__(self) -> Iterator[RateMeter]:
        """Return the links that wait, the one that came first at the beginning."""
        return iter(self._waiting)

    def limit(self, meter: RateMeter, rates: Iterable[Rate], credit: int, now: float) -> None:
        """Have a link limited by some rates, and by no other ones any more. Args: credit: that it has."""
        self.leave(meter)
        meter.settle(0, now)
        before = meter.buckets
        meter.buckets = [self._bucket(each, now) for each in rates]
        meter.spent = [0.0] * len(meter.buckets)
        meter.held = [0.0] * len(meter.buckets)
        for bucket in before:
            del bucket.meters[meter]
            bucket.users -= 1
        for bucket in meter.buckets:
            bucket.meters[meter] = None
            bucket.users += 1
            self._unused_of(bucket).pop(bucket, None)
        for bucket in before:
            if not bucket.users:
                self._unused_of(bucket)[bucket] = None
        meter.settle(credit, now)
        self._forget_full(now)

    def _bucket(self, rate: Rate, now: float) -> TokenBucket:
        bucket = self._buckets.get(rate.key)
        burst = max(1.0, rate.burst)
        if bucket is None:
            bucket = self._buckets[rate.key] = TokenBucket(rate.key, rate.rate, burst, rate.of_octets, now)
            if rate.by_name:
                self._by_name.add(bucket)
        elif (bucket.rate, bucket.burst) != (rate.rate, burst):
            bucket.fill(now)
            bucket.rate, bucket.burst = rate.rate, burst
            bucket.tokens = min(bucket.tokens, burst)
        return bucket

    def _unused_of(self, bucket: TokenBucket) -> dict[TokenBucket, None]:
        return self._unused_names if bucket in self._by_name else self._unused

    def _forget_full(self, now: float) -> None:
        """Forget some of the buckets that limit no link and are full, and names beyond `NAMES`."""
        for unused in (self._unused, self._unused_names):
            for bucket in [bucket for bucket, _ in zip(unused, range(FORGOTTEN), strict=False)]:
                del unused[bucket]
                bucket.fill(now)
                if bucket.tokens >= bucket.burst:
                    self._forget(bucket)
                else:
                    unused[bucket] = None
        while len(self._unused_names) > NAMES:
            bucket = next(iter(self._unused_names))
            del self._unused_names[bucket]
            self._forget(bucket)

    def _forget(self, bucket: TokenBucket) -> None:
        del self._buckets[bucket.key]
        self._by_name.discard(bucket)

    @property
    def buckets(self) -> Iterable[TokenBucket]:
        """Return all buckets."""
        return self._buckets.values()

    def short(self, meter: RateMeter) -> list[TokenBucket]:
        """Return the buckets that a link waits for; none: it does not wait."""
        return self._waiting.get(meter, [])

    def join(self, meter: RateMeter, wanted: int, now: float) -> None:
        """Have a link wait that wants more credit than its buckets have tokens for. Args: wanted: deliveries."""
        if meter.waits:
            return
        short = [each for each in meter.buckets if each.waiting or meter.most(each, each.tokens) < wanted]
        if short:
            meter.waits = True
            meter.quota = -1
            self._waiting[meter] = short
            for each in short:
                each.waiting += 1
            self._set(now + max(INTERVAL, self._need(meter, short)))

    def leave(self, meter: RateMeter) -> None:
        """Take a link out of the line, if it waits."""
        short = self._waiting.pop(meter, None)
        meter.waits = False
        for each in short or ():
            each.waiting -= 1

    def turns(self, now: float) -> list[RateMeter]:
        """Return the links that may be granted credit now: each as much as its `quota`."""
        if self._due is None or now < self._due:
            return []
        self._due = None
        for meter in self._called:
            meter.quota = -1
        self._called = []
        if not self._left:
            self._left.extend(self._waiting)
        #: What is left of each bucket in this turn.
        tokens: dict[TokenBucket, float] = {}
        for _ in range(min(AT_ONCE, len(self._left))):
            meter = self._left.popleft()
            if meter.waits and self._call(meter, tokens, now):
                self._called.append(meter)
        if self._left:
            self._set(now)
        elif self._waiting:
            need = min(self._need(meter, short) for meter, short in self._waiting.items())
            self._set(now + max(INTERVAL, EACH * len(self._waiting), need))
        return self._called

    def holders(self) -> list[RateMeter]:
        """Return links that hold more of a bucket than an equal part, while others wait and no tokens come any more.

        They got them while there were fewer links.
        """
        found = []
        for bucket in self._used_up:
            for meter in [meter for meter, _ in zip(bucket.meters, range(HOLDERS), strict=False)]:
                bucket.meters[meter] = bucket.meters.pop(meter)  # others are looked at the next time
                if meter.spent[meter.buckets.index(bucket)] * bucket.users > bucket.burst:
                    found.append(meter)
        self._used_up.clear()
        return found

    def _call(self, meter: RateMeter, tokens: dict[TokenBucket, float], now: float) -> bool:
        """Give a link its turn, if all its buckets have something. Returns: whether they have."""
        short = self._waiting[meter]
        quota: int | None = None
        for bucket in meter.buckets:
            if bucket not in tokens:
                bucket.fill(now)
                tokens[bucket] = bucket.tokens
            if bucket.waiting and bucket not in short:
                short.append(bucket)
                bucket.waiting += 1
            most = meter.most(bucket, tokens[bucket])
            if bucket in short and most > 1:
                most = max(1, most // bucket.waiting)
            quota = most if quota is None else min(quota, most)
        if quota == 0:
            self._used_up.update((bucket, None) for bucket in short if bucket.burst - bucket.held < 1)
            return False
        self.leave(meter)
        meter.quota = quota or 1
        for bucket in meter.buckets:
            tokens[bucket] -= meter.quota * (meter.size if bucket.of_octets else 1)
        return True

    @staticmethod
    def _need(meter: RateMeter, short: list[TokenBucket]) -> float:
        """Return the seconds until a link can have its turn, if nobody else takes what comes meanwhile."""
        need = 0.0
        for bucket in short:
            unit = min(meter.size, bucket.burst - bucket.held) if bucket.of_octets else 1.0
            need = max(need, (unit - bucket.tokens) / bucket.rate)
        return need

    def _set(self, at: float) -> None:
        if self._due is None or at < self._due:
            self._due = at
            self._wake(at)
