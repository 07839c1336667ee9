"""Rates of links, kept by credit: token buckets, and what a link may be granted out of those that limit it (§2.6.7)."""

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from amqpmesh.router.kernel.link_endpoint import KernelLink
    from amqpmesh.router.kernel.session_endpoint import KernelSession

#: Seconds over which the rate that is shown is a mean; what was longer ago counts ever less.
_MEAN: Final = 5.0
#: More deliveries than any grant has.
_NO_LIMIT: Final = 2**31 - 1
#: The part of a token that sums of fractions may be wrong by.
_ERROR: Final = 1e-6
#: A new size below the expected one counts as 1 / n of it.
_SLOWLY: Final = 8.0


class TokenBucket:
    """A rate, and what may be used of it now: its tokens are deliveries, or octets.

    Granted credit is a promise, so its tokens are spent when it is granted. What is promised and what may be granted
    together are never more than the burst: the rate holds even if all credit is used at once. If messages are larger
    than expected, the bucket has less than nothing, and the next credit waits until the debt is paid.
    """

    __slots__ = (
        "at",
        "burst",
        "came",
        "came_at",
        "held",
        "key",
        "meters",
        "of_octets",
        "rate",
        "tokens",
        "users",
        "waiting",
    )

    def __init__(self, key: object, rate: float, burst: float, of_octets: bool, now: float) -> None:
        """Args: key: the owner's name for it. rate: tokens in a second. burst: the tokens of a full bucket."""
        self.key = key
        self.rate = rate
        self.burst = burst
        self.of_octets = of_octets
        self.tokens = burst
        #: Tokens of credit that is granted and unused, which count against the burst.
        self.held = 0.0
        self.at = now
        #: The links that it limits, and their number; and how many of them wait for its tokens.
        self.meters: dict[RateMeter, None] = {}
        self.users = 0
        self.waiting = 0
        #: Deliveries or octets that came, those of long ago counted for less and less, and the time of this sum.
        self.came = 0.0
        self.came_at = now

    def count(self, number: float, seconds: float, now: float) -> None:
        """Count what came, for `mean`. Args: number: deliveries or octets. seconds: in which they came."""
        if seconds > 0:
            number *= _MEAN / seconds * (1 - exp(-seconds / _MEAN))
        self.came = self.mean(now) * _MEAN + number
        self.came_at = now

    def mean(self, now: float) -> float:
        """Return the deliveries or octets in a second that have come lately."""
        return self.came / _MEAN * exp((self.came_at - now) / _MEAN)

    def fill(self, now: float) -> None:
        """Add the tokens of the time since the last call."""
        if now > self.at:
            room = self.burst - self.held - self.tokens
            if room > 0:
                self.tokens += min(room, self.rate * (now - self.at))
            self.at = now


class RateMeter:
    """The buckets that limit a link by which deliveries come, and what the link has of them."""

    __slots__ = (
        "at",
        "buckets",
        "deliveries",
        "held",
        "line",
        "link",
        "octets",
        "part",
        "quota",
        "size",
        "spent",
        "waits",
        "withheld",
    )

    def __init__(self, link: KernelLink, line: object) -> None:
        """Args: line: in which the link waits for tokens."""
        self.link = link
        self.line = line
        self.buckets: list[TokenBucket] = []
        #: Tokens of each bucket that the unused credit has: spent, and those that count against the burst.
        self.spent: list[float] = []
        self.held: list[float] = []
        #: The counts of the link that were paid for.
        self.deliveries = link.deliveries
        self.octets = link.octets
        #: When they were paid for; 0: never.
        self.at = 0.0
        #: The octets that a delivery is expected to have; 0: none came yet. `part`: of the last one, so far.
        self.size = 0.0
        self.part = 0
        #: The link stands in the line. `quota`: the deliveries that its turn still allows; -1: it has none.
        self.waits = False
        self.quota = -1
        #: Places of the session's window that wait for the rest of a message to be paid for.
        self.withheld = 0

    def settle(self, credit: int, now: float) -> None:
        """Pay for all deliveries that came, and for the credit that the link has now.

        Args: credit: that the peer may still use. What it has returned is paid back.
        """
        link = self.link
        count = link.deliveries - self.deliveries
        octets = link.octets - self.octets
        if count or octets:
            self.deliveries += count
            self.octets += octets
            if count > 0:
                self.part = octets // count
                self.size = max(float(self.part), self.size - (self.size - self.part) / _SLOWLY)
            else:
                self.part += octets  # further frames of a large message
                self.size = max(self.size, float(self.part))
        seconds = now - self.at if self.at else 0.0
        self.at = now
        for at in range(len(self.buckets)):
            bucket = self.buckets[at]
            bucket.fill(now)
            if octets:
                bucket.count(octets if bucket.of_octets else count, seconds, now)
            # Of a message larger than the burst, the rest is paid for while it comes (`withhold`).
            unit = min(self.size, bucket.burst) if bucket.of_octets else 1.0
            spent = credit * unit
            bucket.tokens += self.spent[at] - spent - (octets if bucket.of_octets else count)
            self.spent[at] = spent
            # With more links than its burst is worth, one delivery of each does not count against the burst: links
            # that send nothing would keep all tokens for themselves.
            if credit and 2 * unit * bucket.users > bucket.burst:
                spent -= unit
            bucket.held += spent - self.held[at]
            self.held[at] = spent
            # Such deliveries may come back all at once.
            free = bucket.burst - bucket.held
            if bucket.tokens > free > 0:
                bucket.tokens = free

    def withhold(self, session: KernelSession) -> None:
        """Keep the place of a frame in the window of its session, if the octets of its message are not paid for yet.

        It is a later frame of its message, which no credit can stop. `give_back` frees the place, once that is paid.
        """
        if session.withheld < session.window_size and self.owes(self.link.octets - self.octets):
            session.held += 1
            session.withheld += 1
            self.withheld += 1
            if self.withheld == 1:
                self.line.owe(self)  # type: ignore[attr-defined]

    def owes(self, octets: int = 0) -> bool:
        """Tell whether the octets that came are more than was paid. Args: octets: that came since the last `settle`."""
        for at in range(len(self.buckets)):
            bucket = self.buckets[at]
            if bucket.of_octets and bucket.tokens + self.spent[at] < octets:
                return True
        return False

    def due(self) -> float:
        """Return in how many seconds all octets are paid for that came until the last `settle`."""
        seconds = 0.0
        for at in range(len(self.buckets)):
            bucket = self.buckets[at]
            if bucket.of_octets:
                seconds = max(seconds, -(bucket.tokens + self.spent[at]) / bucket.rate)
        return seconds

    def give_back(self) -> None:
        """Give the withheld places of the window back."""
        frames, self.withheld = self.withheld, 0
        session = self.link.session
        session.withheld -= frames
        if frames and session.channel != -1:
            session.release(frames)

    def room(self, credit: int, now: float) -> int:
        """Return how many deliveries may be granted beyond `credit`. Links that wait for the same tokens come first.

        Args: credit: see `settle`.
        """
        self.settle(credit, now)
        if self.waits:
            return 0
        room = _NO_LIMIT
        if not self.quota:
            self.quota = -1
        if self.quota > 0:
            room = self.quota
        for at in range(len(self.buckets)):
            bucket = self.buckets[at]
            if bucket.waiting and self.quota < 0:
                return 0
            room = min(room, self.most(bucket, bucket.tokens))
        return room

    def grant(self, count: int, credit: int, now: float) -> None:
        """Pay for credit that the link is granted. Args: count: deliveries. credit: with these."""
        if self.quota > 0:
            self.quota = max(0, self.quota - count)
        self.settle(credit, now)

    def most(self, bucket: TokenBucket, tokens: float) -> int:
        """Return how many deliveries a number of tokens of a bucket is enough for."""
        unit = self.size if bucket.of_octets else 1.0
        if unit <= 0:
            return _NO_LIMIT if tokens > 0 else 0
        if unit > bucket.burst:  # a message larger than the burst leaves a debt
            return 1 if tokens > 0 and tokens + bucket.held >= bucket.burst - _ERROR else 0
        return max(0, int((tokens + _ERROR) / unit))

    def limit(self) -> int:
        """Return the most credit that the link may have: what an equal part of each burst is worth, and at least 1."""
        limit = _NO_LIMIT
        for at in range(len(self.buckets)):
            bucket = self.buckets[at]
            unit = self.size if bucket.of_octets else 1.0
            if unit <= 0:  # the size of its messages is not known yet
                return 1
            limit = min(limit, int((bucket.burst + _ERROR) / (unit * max(1, bucket.users))))
        return max(1, limit)
