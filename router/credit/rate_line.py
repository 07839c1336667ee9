"""The lines of links that wait for a rate, and their turns: each gets an equal part of what a bucket has meanwhile.

A link waits if a bucket of its meter has not enough for one delivery, or if others wait for the same bucket. It gets no
credit while it waits. All links of a user stand in one line. From time to time the lines of a tenant are looked at, one
link of each in turn: a link whose buckets all have something has its turn. So users get equal parts of what their
tenant may have, and the links of a user equal parts of that. No bucket limits links of two tenants. One timer serves
all lines, while links wait.
"""

from __future__ import annotations

from collections import Counter, deque
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakValueDictionary

from amqpmesh.router.credit.debtors import AT_ONCE, INTERVAL, PAUSE, Debtors
from amqpmesh.router.credit.places import TOKEN
from amqpmesh.router.credit.shared_rates import SharedRates, set_rate
from amqpmesh.router.credit.unused_buckets import Room, Unused
from amqpmesh.router.kernel import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from amqpmesh.router.credit.places import Tokens
    from amqpmesh.router.kernel import RateMeter

EACH: Final = 20e-6
"""Seconds by which the interval is longer for each link that is looked at, times the number of tenants: looks take a
small part of the time."""

HOLDERS: Final = 50
"""Links of a bucket whose unused credit is looked at in one turn."""

FORGOTTEN: Final = 4
"""Buckets of a tenant that are looked at whether they can be forgotten, when a link comes or goes: of its own, and of
another one.
"""

NAMES: Final = 4096
"""Buckets of names that limit no link and are kept, of all tenants together: a client may attach and detach links of
ever other names.
"""

OWNERS: Final = 2**16
"""Other such buckets: users without a name are hosts, and one client may have ever other addresses of IPv6."""


LITTLE: Final = 0.001
"""The part of a rate that counts as nothing."""


def is_idle(bucket: TokenBucket, now: float) -> bool:
    """Tell whether a bucket limits no link, is full, and has not been used lately: it may be forgotten.

    It is not shown either. So the rates that a tenant sees do not tell when those of others had some forgotten.
    """
    bucket.fill(now)
    return not bucket.users and bucket.tokens >= bucket.burst and bucket.mean(now) < LITTLE * bucket.rate


class RateOwner(NamedTuple):
    """A rate by its name in a policy, and what it is the rate of: a tenant, or a user, host, address or link of it."""

    limit: str
    tenant: str
    user: str | None = None
    host: str | None = None
    address: str | None = None
    link: Hashable = None
    """Of a single link: what it is known by, besides the user or host."""


class Rate(NamedTuple):
    """A rate that links are limited by."""

    owner: RateOwner
    """Links share the rates of one owner."""
    rate: float
    """Deliveries or octets in a second."""
    burst: float
    """Deliveries or octets that may come at once."""
    of_octets: bool
    by_name: bool = False
    """True if its owner is one of any number: a link or an address, whose names clients choose, or a user or host."""
    tenant: str = ""
    """The key of the tenant whose clients have named it."""
    workers: int = 1
    """The workers of the router, whose links together have this rate."""


class RateLines:
    """The buckets of a router's rates, and the links that wait for them."""

    def __init__(self, wake: Callable[[float], object]) -> None:
        """Args: wake: has `turns` called at a time, seconds, and no more at the time that was asked for before."""
        self._wake = wake
        #: By their owners. A bucket that limits no link any more is kept until it is idle: a link that is attached anew
        #: gains nothing. `_unused`: these; `_unused_names`: those of names. `_rooms`: where each is put.
        self._buckets: dict[Hashable, TokenBucket] = {}
        self._unused = Unused(OWNERS)
        self._unused_names = Unused(NAMES)
        self._rooms: dict[TokenBucket, Room] = {}
        #: By tenants and users, while links of theirs have rates.
        self._lines: WeakValueDictionary[tuple[str, str], RateLine] = WeakValueDictionary()
        #: By tenants that have had a rate; and those of which links wait.
        self._tenants: dict[str, TenantLines] = {}
        self._active: dict[TenantLines, None] = {}
        self._due: float | None = None
        self.debtors = Debtors()
        #: Buckets that links wait for, and all tokens of which other links hold.
        self._used_up: dict[TokenBucket, None] = {}
        #: The parts of this worker, if the router has several.
        self.shared = SharedRates()
        self.tokens: Tokens | None = None

    def __len__(self) -> int:
        """Return how many links wait."""
        return sum(len(lines) for lines in self._active)

    @property
    def buckets(self) -> Iterable[TokenBucket]:
        """Return all buckets."""
        return self._buckets.values()

    def of(self, tenant: str, user: str) -> RateLine:
        """Return the line of a user. Args: tenant: the key of its tenant."""
        line = self._lines.get((tenant, user))
        if line is None:
            lines = self._tenants.get(tenant)
            if lines is None:
                lines = self._tenants[tenant] = TenantLines(self)
            line = self._lines[tenant, user] = RateLine(self, lines)
        return line

    def turns(self, now: float) -> list[RateMeter]:
        """Return the links that may be granted credit now: each as much as its `quota`."""
        if self._due is None or now < self._due:
            return []
        self._due = None
        self._look_at_shared(now)
        due = list(islice((lines for lines in self._active if lines.due <= now), AT_ONCE))
        called: list[RateMeter] = []
        for lines in due:
            called += lines.look(AT_ONCE // len(due), now, self._used_up)
            del self._active[lines]
            if lines:
                self._active[lines] = None  # another one comes first the next time
        if self._active:
            soonest = min(lines.due for lines in self._active)
            self._set(soonest if soonest > now else now + PAUSE)
        if self.debtors.due < inf:
            self._set(self.debtors.due)
        return called

    def want(self, bucket: TokenBucket, now: float) -> None:
        """Note that a link waits for a bucket: workers divide its rate by what their links ask for."""
        if self.shared.want(bucket, now):
            self._set(self.shared.due)

    def _look_at_shared(self, now: float) -> None:
        if now >= self.shared.due:
            grown = self.shared.look(now)
            for lines in self._active:
                if any(bucket in lines.wanted for bucket in grown):
                    lines.due = now
        if self.shared.due < inf:
            self._set(self.shared.due)

    def owe(self, meter: RateMeter) -> None:
        """Have a link looked at that owes octets, until it has paid."""
        self.debtors.enter(meter)
        self._set(self.debtors.due)

    def paid(self, meters: list[RateMeter], now: float) -> None:
        """Open the windows of links that were settled and owe nothing; the others are looked at again later."""
        for meter in meters:
            self.debtors.look(meter, now)
        if self.debtors.due < inf:
            self._set(self.debtors.due)

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

    def enter(self, lines: TenantLines) -> None:
        """Have lines looked at when they are due."""
        self._active[lines] = None
        self._set(lines.due)

    @property
    def each(self) -> float:
        """The seconds by which the interval of a tenant's lines is longer for each link that is looked at."""
        return EACH * len(self._active)

    def _set(self, at: float) -> None:
        if self._due is None or at < self._due:
            self._due = at
            self._wake(at)

    def limit(self, meter: RateMeter, rates: Iterable[Rate], credit: int, now: float) -> None:
        """Have a link limited by some rates, and by no other ones any more. Args: credit: that it has."""
        self.debtors.leave(meter)
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
            self._discard(bucket)
        for bucket in before:
            if not bucket.users:
                self.shared.release(bucket)
                self._add(bucket)
        meter.settle(credit, now)
        self._forget_full({self._rooms[bucket]: None for bucket in (*before, *meter.buckets)}, now)

    def spend(self, rates: Sequence[Rate], now: float) -> Rate | None:
        """Take one token of each of some rates, which limit no link. Returns: a rate that has none: all keep theirs.

        Nothing waits for them. So workers take them from the same buckets if they can, else from equal parts.
        """
        tokens = None if self.tokens is None else self.tokens.take(rates)
        parts = rates if tokens is None else [each._replace(workers=1) for each in rates]
        buckets = [self._bucket(each, now, is_claimed=False) for each in parts]
        for at, bucket in enumerate(buckets):
            bucket.fill(now)
            if tokens is not None:
                bucket.tokens = tokens[at]
        lacking = next((rate for rate, each in zip(rates, buckets, strict=True) if each.tokens < TOKEN), None)
        for bucket in buckets:
            if lacking is None:
                bucket.tokens -= 1
                bucket.count(1, 0.0, now)
            self._add(bucket)
        self._forget_full({self._rooms[bucket]: None for bucket in buckets}, now)
        return lacking

    def _bucket(self, rate: Rate, now: float, *, is_claimed: bool = True) -> TokenBucket:
        """Return the bucket of a rate. Args: is_claimed: if workers share it, each has what its links ask for."""
        bucket = self._buckets.get(rate.owner)
        part = rate.rate / rate.workers
        burst = max(1.0, rate.burst / rate.workers)
        if bucket is None:
            bucket = self._buckets[rate.owner] = TokenBucket(rate.owner, part, burst, rate.of_octets, now)
            self._rooms[bucket] = (self._unused_names if rate.by_name else self._unused).of(rate.tenant)
        if (
            is_claimed
            and rate.workers > 1
            and self.shared.limit(bucket, rate.owner, rate.rate, rate.burst, rate.workers, now)
        ):
            return bucket
        if (bucket.rate, bucket.burst) != (part, burst):
            set_rate(bucket, part, burst, now)
        return bucket

    def _add(self, bucket: TokenBucket) -> None:
        room = self._rooms[bucket]
        room.kind.add(room, bucket)

    def _discard(self, bucket: TokenBucket) -> None:
        room = self._rooms[bucket]
        room.kind.discard(room, bucket)

    def _forget_full(self, rooms: dict[Room, None], now: float) -> None:
        """Forget some of the buckets that limit no link and are full, and those that are too many.

        Args: rooms: that buckets were added to, or taken from.
        """
        for kind in (self._unused, self._unused_names):
            another = kind.another()
            if another is not None:
                self._forget_idle(another, now)
        for room in rooms:
            self._forget_idle(room, now)
            while (surplus := room.kind.surplus()) is not None:
                self._forget(surplus)

    def _forget_idle(self, room: Room, now: float) -> None:
        for bucket in [bucket for bucket, _ in zip(room.buckets, range(FORGOTTEN), strict=False)]:
            if is_idle(bucket, now):
                self._forget(bucket)
            else:
                room.buckets[bucket] = room.buckets.pop(bucket)

    def _forget(self, bucket: TokenBucket) -> None:
        self._discard(bucket)
        del self._buckets[bucket.key], self._rooms[bucket]


class RateLine:
    """The links of one user that wait for a rate."""

    def __init__(self, rates: RateLines, lines: TenantLines) -> None:
        """Args: lines: of its tenant."""
        self._rates = rates
        self.lines = lines
        #: The buckets that each link waits for, in the order of the line.
        self.waiting: dict[RateMeter, list[TokenBucket]] = {}
        #: How many links of the line wait for a bucket.
        self.wanted: Counter[TokenBucket] = Counter()

    def limit(self, meter: RateMeter, rates: Iterable[Rate], credit: int, now: float) -> None:
        """Have a link limited by some rates, and by no other ones any more. Args: credit: that it has."""
        self.leave(meter)
        self._rates.limit(meter, rates, credit, now)

    def owe(self, meter: RateMeter) -> None:
        """Note that places of a session's window are withheld for a link."""
        self._rates.owe(meter)

    def short(self, meter: RateMeter) -> list[TokenBucket]:
        """Return the buckets that a link waits for; none: it does not wait."""
        return self.waiting.get(meter, [])

    def join(self, meter: RateMeter, wanted: int, now: float) -> None:
        """Have a link wait that wants more credit than its buckets have tokens for. Args: wanted: deliveries."""
        if meter.waits:
            return
        short = [each for each in meter.buckets if each.waiting or meter.most(each, each.tokens) < wanted]
        if short:
            meter.waits = True
            meter.quota = -1
            self.waiting[meter] = short
            for each in short:
                self.want(each, now)
            self.lines.enter(self, meter, short, now)

    def want(self, bucket: TokenBucket, now: float) -> None:
        """Count one more link that waits for a bucket."""
        self._rates.want(bucket, now)
        bucket.waiting += 1
        self.wanted[bucket] += 1
        if self.wanted[bucket] == 1:
            self.lines.wanted[bucket] += 1

    def leave(self, meter: RateMeter) -> None:
        """Take a link out of the line, if it waits."""
        short = self.waiting.pop(meter, None)
        meter.waits = False
        if short is None:
            return
        for each in short:
            each.waiting -= 1
            _decrease(self.wanted, each)
            if each not in self.wanted:
                _decrease(self.lines.wanted, each)
        self.lines.leave(self)


class TenantLines:
    """The lines of the users of one tenant."""

    def __init__(self, rates: RateLines) -> None:
        self._rates = rates
        #: The lines in which links wait, in the order in which they are looked at, and the number of these links.
        self._lines: dict[RateLine, None] = {}
        self._waiting = 0
        #: How many lines wait for a bucket.
        self.wanted: Counter[TokenBucket] = Counter()
        #: The links that had their turn in the last look.
        self._called: list[RateMeter] = []
        self.due = inf
        """The time of the next look, seconds."""
        self._soonest = inf  # when the first link of those that this look has come to can have its turn

    def __len__(self) -> int:
        """Return how many links wait."""
        return self._waiting

    def enter(self, line: RateLine, meter: RateMeter, short: list[TokenBucket], now: float) -> None:
        """Have a link looked at that waits in a line from now on. Args: short: the buckets that it waits for."""
        self._waiting += 1
        self._lines[line] = None
        self._expect(meter, short, now)
        self.due = min(self.due, max(now + self._interval(), self._soonest))
        self._rates.enter(self)

    def leave(self, line: RateLine) -> None:
        """Count a link no more that has left a line."""
        self._waiting -= 1
        if not line.waiting:
            del self._lines[line]

    def look(self, most: int, now: float, used_up: dict[TokenBucket, None]) -> list[RateMeter]:
        """Look at links that wait, one of each line in turn. Returns: the links whose turn it is.

        Args: most: links to look at now. used_up: buckets are added that links wait for, and others hold.
        """
        for meter in self._called:
            meter.quota = -1
        self._called = []
        self._soonest = inf
        left = min(most, self._waiting)
        is_whole = left == self._waiting
        #: What is left of each bucket in this turn.
        tokens: dict[TokenBucket, float] = {}
        order = deque(islice(self._lines, left))
        links: dict[RateLine, deque[RateMeter]] = {}
        served: dict[RateLine, None] = {}
        while left:
            line = order.popleft()
            if line not in links:
                links[line] = deque(islice(line.waiting, left))
            meter = links[line].popleft()
            left -= 1
            if self._call(line, meter, tokens, now, used_up):
                self._called.append(meter)
                served[line] = None
            else:
                line.waiting[meter] = line.waiting.pop(meter)  # others are looked at the next time
            if links[line]:
                order.append(line)
        # The next look begins with lines that this one has not come to, then those that got nothing.
        for line in (*(each for each in links if each not in served), *served):
            if line in self._lines:
                del self._lines[line]
                self._lines[line] = None
        at = now + self._interval()
        self.due = max(at, self._soonest) if is_whole else at
        return self._called

    def _interval(self) -> float:
        return max(INTERVAL, self._rates.each * min(AT_ONCE, self._waiting))

    def _call(
        self,
        line: RateLine,
        meter: RateMeter,
        tokens: dict[TokenBucket, float],
        now: float,
        used_up: dict[TokenBucket, None],
    ) -> bool:
        """Give a link its turn, if all its buckets have something. Returns: whether they have."""
        short = line.waiting[meter]
        quota: int | None = None
        for bucket in meter.buckets:
            if bucket not in tokens:
                bucket.fill(now)
                tokens[bucket] = bucket.tokens
            if bucket.waiting and bucket not in short:
                short.append(bucket)
                line.want(bucket, now)
            most = meter.most(bucket, tokens[bucket])
            if bucket in short and most > 1:
                most = max(1, most // self.wanted[bucket] // line.wanted[bucket])
            quota = most if quota is None else min(quota, most)
        if quota == 0:
            used_up.update((bucket, None) for bucket in short if bucket.burst - bucket.held < 1)
            self._expect(meter, short, now)
            return False
        line.leave(meter)
        meter.quota = quota or 1
        for bucket in meter.buckets:
            tokens[bucket] -= meter.quota * (meter.size if bucket.of_octets else 1)
        return True

    def _expect(self, meter: RateMeter, short: list[TokenBucket], now: float) -> None:
        """Note when a link can have its turn, if no other link takes what comes meanwhile."""
        need = 0.0
        for bucket in short:
            unit = min(meter.size, bucket.burst - bucket.held) if bucket.of_octets else 1.0
            need = max(need, (unit - bucket.tokens) / bucket.rate)
        self._soonest = min(self._soonest, now + need)


def _decrease(counts: Counter[TokenBucket], bucket: TokenBucket) -> None:
    counts[bucket] -= 1
    if not counts[bucket]:
        del counts[bucket]
