"""The parts that tenants have in the credit of one pool, by their weights.

Where senders of several tenants contend for the receivers of one address, each tenant gets credit in proportion to its
weight, however many links it has. What a tenant does not use, others get: a tenant counts while one of its sinks is
not idle.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import ceil

from amqpmesh.router.kernel.credit_sinks import CreditSink
from amqpmesh.router.kernel.small_sets import SmallSet


class CreditPart:
    """The sinks of one tenant in a pool, and those of them that wait for credit."""

    __slots__ = ("_is_listed", "empty", "low", "not_idle", "sinks", "spent", "weight")

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.sinks = 0
        """The number of its sinks."""
        self.not_idle = 0
        """The number of its sinks that are not idle."""
        self.empty: SmallSet[CreditSink] = ()
        """As `Waiters.empty`, of its sinks."""
        self.low: SmallSet[CreditSink] = ()
        """As `Waiters.low`, of its sinks."""
        self.spent = 0.0
        """Deliveries that it was granted, divided by its weight; of one that comes back, no less than of the last one
        that was granted credit."""
        self._is_listed = False


class CreditParts:
    """The parts of all tenants in a pool. The one with the fewest deliveries for its weight gets credit first."""

    __slots__ = ("_counting", "_listed", "_number", "_spent", "joined", "parts", "together", "weights")

    def __init__(self) -> None:
        self.parts: dict[str, CreditPart] = {}
        """By tenant."""
        self.weights = 0.0
        """The sum of the weights of those that count."""
        self.joined = 0
        """The number of sinks of all parts."""
        self.together = 0
        """The number of parts that have sinks."""
        self._counting = 0
        #: A heap of the parts that may have sinks that wait: what was spent, a number, and the part.
        self._listed: list[tuple[float, int, CreditPart]] = []
        self._number = 0
        self._spent = 0.0

    def part(self, tenant: str, weight: float) -> CreditPart:
        """Return the part of a tenant, with this weight from now on."""
        part = self.parts.get(tenant)
        if part is None:
            part = self.parts[tenant] = CreditPart(weight)
        elif part.weight != weight:
            if part.not_idle:
                self.weights += weight - part.weight
            part.weight = weight
        return part

    def enter(self, part: CreditPart, sink: CreditSink) -> None:
        """Count a sink as one of a part."""
        self.joined += 1
        part.sinks += 1
        if part.sinks == 1:
            self.together += 1
        sink.part = part
        if not sink._idle:
            self.count(part, 1)

    def leave(self, sink: CreditSink) -> None:
        """Count a sink no more, which has left all lines."""
        part = sink.part
        assert part is not None
        if not sink._idle:
            self.count(part, -1)
        self.joined -= 1
        part.sinks -= 1
        if not part.sinks:
            self.together -= 1
        sink.part = None

    def count(self, part: CreditPart, one: int) -> None:
        """Count a sink that is not idle any more, or that has become idle. Args: one: 1 or -1."""
        part.not_idle += one
        if one > 0 and part.not_idle == 1:
            self._counting += 1
            self.weights += part.weight
        elif not part.not_idle:
            self._counting -= 1
            self.weights = self.weights - part.weight if self._counting else 0.0  # no rest of fractions stays

    def wait(self, part: CreditPart) -> None:
        """Note that a sink of a part waits for credit."""
        if not part._is_listed:
            part._is_listed = True
            part.spent = max(part.spent, self._spent)
            self._number += 1
            heappush(self._listed, (part.spent, self._number, part))

    def share(self, part: CreditPart, deliveries: int) -> int:
        """Return what one sink of a part may have of all that a pool may grant, deliveries."""
        weights = self.weights if part.not_idle else self.weights + part.weight
        return ceil(deliveries * part.weight / (weights * max(1, part.not_idle)))

    def next(self) -> CreditPart | None:
        """Return the part whose turn it is, out of the line (`wait`); None: no sink waits."""
        while self._listed:
            part = heappop(self._listed)[2]
            part._is_listed = False
            if part.empty or part.low:
                self._spent = part.spent
                return part
        return None
