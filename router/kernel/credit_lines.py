"""The waiting lines of a pool: sinks without credit, sinks that use theirs, and idle sinks."""

from __future__ import annotations

from amqpmesh.router.kernel.credit_parts import CreditParts
from amqpmesh.router.kernel.credit_sinks import CreditSink, _credit_of
from amqpmesh.router.kernel.small_sets import SmallSet, first, shared, with_item, with_item_first, without_item


class Waiters:
    """Sets of a pool's sinks: each sink is in `empty` if it holds no credit, otherwise in `active` unless it is idle.

    A sink is *idle* once it has not used the credit that it holds for `idle_time`, seconds, or has returned some.
    """

    __slots__ = ("active", "empty", "idle_rich", "idle_time", "large", "low", "not_idle", "parts", "sinks")

    def __init__(self, idle_time: float) -> None:
        self.idle_time = idle_time
        self.sinks: SmallSet[CreditSink] = ()
        """All sinks."""
        self.empty: SmallSet[CreditSink] = ()
        """Sinks without credit, in the order in which they used up theirs."""
        self.active: SmallSet[CreditSink] = ()
        """Sinks with credit that are not idle, in the order in which they were found to be busy."""
        self.low: SmallSet[CreditSink] = ()
        """Sinks of `active` with half a share or less."""
        self.idle_rich: SmallSet[CreditSink] = ()
        """Idle sinks that hold more than one delivery's credit and were not asked to return it."""
        self.not_idle = 0
        """The number of sinks that are not idle."""
        self.large = 0
        """The number of sinks that are not idle and carry large messages beside others."""
        self.parts: CreditParts | None = None
        """The parts of tenants; None: the sinks are all of one tenant."""

    def enter(self, sink: CreditSink) -> None:
        """Add a sink without credit."""
        self.sinks = with_item(self.sinks, sink)
        if self.parts is not None:
            self.parts.enter(self.parts.part("", 1.0), sink)
        self._add_empty(sink)
        self.not_idle += 1
        if sink.large:
            self.large += 1

    def leave(self, sink: CreditSink) -> None:
        """Remove a sink."""
        self.sinks = without_item(self.sinks, sink)
        self._drop_empty(sink)
        self._forget(sink)
        if sink.part is not None and self.parts is not None:
            self.parts.leave(sink)
        if not sink._idle:
            self._count(sink, -1)

    def join(self, sink: CreditSink, tenant: str, weight: float) -> None:
        """Count a sink as one of a tenant."""
        if self.parts is None:
            self.parts = CreditParts()
        part = self.parts.part(tenant, weight)
        if sink.part is part:
            return
        is_empty, is_low = sink in self.empty, sink in self.low
        if sink.part is not None:
            self._drop_empty(sink)
            self._drop_low(sink)
            self.parts.leave(sink)
        self.parts.enter(part, sink)
        if is_empty:
            self._add_empty(sink)
        if is_low:
            self._add_low(sink)

    def served(self, sinks: list[CreditSink], share: int, now: float) -> None:
        """Move sinks that were in `empty` and got one delivery each. The busy ones wait for more, up to a share."""
        for sink in sinks:
            sink._used_at = now
            sink._low_at = 0
            if not sink._idle:
                self._place(sink, now)
        if share > 1:
            for sink in reversed(sinks):  # in front, in their order, since they hold the least
                if not sink._idle:
                    self.low = with_item_first(self.low, sink)
                    if sink.part is not None:
                        sink.part.low = with_item_first(sink.part.low, sink)
                        self._list(sink)

    def used(self, sink: CreditSink, now: float) -> None:
        """Note that a sink used credit, or has deliveries ready: it is not idle."""
        if sink._idle:
            sink._idle = False
            self._count(sink, 1)
            self.idle_rich = without_item(self.idle_rich, sink)
            if _credit_of(sink):
                self._place(sink, now)
        self.credit_fell(sink)

    def credit_fell(self, sink: CreditSink) -> None:
        """Move a sink whose credit fell to the line where it waits for more, if it needs more."""
        left = _credit_of(sink)
        if not left:
            self._forget(sink)
            self._add_empty(sink)
        elif left <= sink._low_at and not sink._idle and not sink.draining:
            self._add_low(sink)

    def age(self, now: float) -> None:
        """Find the sinks that have become idle. Each sink is looked at once in `idle_time` at most."""
        before = now - self.idle_time
        while self.active:
            sink = first(self.active)
            if sink._placed_at > before:
                break
            if sink._used_at > sink._placed_at:
                self.active = without_item(self.active, sink)
                self._place(sink, sink._used_at)
            else:
                self.rest(sink)

    def rest(self, sink: CreditSink) -> None:
        """Mark a sink as idle."""
        if not sink._idle:
            sink._idle = True
            self._count(sink, -1)
            self.active = without_item(self.active, sink)
            self._drop_low(sink)
        if _credit_of(sink) > 1 and not sink.draining:
            self.idle_rich = shared(with_item(self.idle_rich, sink), self.sinks)

    def _count(self, sink: CreditSink, one: int) -> None:
        self.not_idle += one
        if sink.large:
            self.large += one
        if sink.part is not None and self.parts is not None:
            self.parts.count(sink.part, one)

    # A sink that waits does so in the line of its tenant, too.

    def _add_empty(self, sink: CreditSink) -> None:
        self.empty = with_item(self.empty, sink)
        if sink.part is not None:
            sink.part.empty = with_item(sink.part.empty, sink)
            self._list(sink)

    def _put_back(self, sink: CreditSink) -> None:
        """Have a sink without credit wait before all others."""
        self.empty = with_item_first(self.empty, sink)
        if sink.part is not None:
            sink.part.empty = with_item_first(sink.part.empty, sink)
            self._list(sink)

    def _drop_empty(self, sink: CreditSink) -> None:
        self.empty = without_item(self.empty, sink)
        if sink.part is not None:
            sink.part.empty = without_item(sink.part.empty, sink)

    def _add_low(self, sink: CreditSink) -> None:
        self.low = with_item(self.low, sink)
        if sink.part is not None:
            sink.part.low = with_item(sink.part.low, sink)
            self._list(sink)

    def _drop_low(self, sink: CreditSink) -> None:
        self.low = without_item(self.low, sink)
        if sink.part is not None:
            sink.part.low = without_item(sink.part.low, sink)

    def _list(self, sink: CreditSink) -> None:
        if sink.part is not None and self.parts is not None:
            self.parts.wait(sink.part)

    def _place(self, sink: CreditSink, now: float) -> None:
        sink._placed_at = now
        self.active = with_item(self.active, sink)

    def _forget(self, sink: CreditSink) -> None:
        self.active = without_item(self.active, sink)
        self._drop_low(sink)
        self.idle_rich = without_item(self.idle_rich, sink)
