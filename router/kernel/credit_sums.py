"""The state of a pool of credit: its sources and sinks, and the credit that each sink has (§2.6.7)."""

from __future__ import annotations

from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, Final

from amqpmesh.router.kernel.credit_lines import Waiters
from amqpmesh.router.kernel.credit_sinks import (
    CreditSink,
    _credit_of,
    _limit_of,
    allowed,
    credit_ahead,
    granted,
    release,
)
from amqpmesh.router.kernel.credit_sources import CreditSource, Demand
from amqpmesh.router.kernel.serial import _MASK
from amqpmesh.router.kernel.small_sets import SmallSet, with_item, without_item

if TYPE_CHECKING:
    from amqpmesh.router.kernel.held_back import HeldDelivery


class PoolSettings:
    """Settings that pools share; see `Pool`."""

    __slots__ = ("ahead", "drain_time", "max_credit", "reclaim_time", "starve_time")

    def __init__(self, max_credit: int, starve_time: float, reclaim_time: float, drain_time: float, ahead: int) -> None:
        self.max_credit = max_credit
        self.ahead = ahead
        self.starve_time = starve_time
        self.reclaim_time = reclaim_time
        self.drain_time = drain_time


pool_settings: Final = lru_cache(maxsize=64)(PoolSettings)
"""Return the one `PoolSettings` with these values, so that thousands of pools share it."""


class PoolState:
    """The sources and sinks of a pool, and the sums of their credit. Each event that changes credit updates the sums.

    Each method costs O(1), whatever number of sinks the pool has. `Pool` decides from these sums which credit is
    granted and which is taken back.

    Args: see `Pool`.
    """

    __slots__ = (
        "_ahead_at",
        "_ahead_from",
        "_changed",
        "_counted_at",
        "_demand",
        "_drain_asked",
        "_drain_round",
        "_drain_until",
        "_granted",
        "_held_until",
        "_left",
        "_lower_now",
        "_lowered",
        "_lowered_fully",
        "_reclaiming",
        "_revoked",
        "_settings",
        "_suspended",
        "_waiters",
        "_waiting",
        "ahead",
        "ahead_most",
        "goes_ahead",
        "held",
        "is_due",
        "is_open",
        "is_plain",
        "is_undealt",
        "pace",
        "timer_at",
    )  # fmt: skip

    def __init__(self, distribution: str, settings: PoolSettings, idle_time: float) -> None:
        #: The kernel may divide the credit: nothing else than credit matters at the node. `is_due`: it will, once the
        #: batch is relayed. `is_undealt`: it has left the pool to the router.
        self.is_open = False
        self.is_due = False
        self.is_undealt = False
        #: The node has a timer for this time, seconds, or before.
        self.timer_at = inf
        #: Deliveries that wait for credit in the kernel, in order.
        self.held: list[HeldDelivery] | None = None
        self._settings = settings
        self._waiters = Waiters(idle_time)
        self._demand = Demand(distribution)
        self._suspended = False
        # Sums over the sinks, kept up to date with each of them.
        self._waiting = 0
        self._granted = 0
        self._revoked = 0
        # Sinks that were asked to drain because others starve, and sinks whose limit was lowered. Both are in the
        # order in which their answers are due.
        self._reclaiming: SmallSet[CreditSink] = ()
        self._lowered: SmallSet[CreditSink] = ()
        # Sinks that were asked to drain because a consumer drains.
        self._drain_round: SmallSet[CreditSink] = ()
        self._drain_asked = False
        self._drain_until: float | None = None
        self._changed: SmallSet[CreditSink] = ()  # sinks that need a flow
        self._lower_now = False  # lower limits without waiting for `starve_time`
        self._lowered_fully = False  # every limit is as low as it can be
        self._held_until = 0.0  # limits are not lowered before this time
        #: Deliveries that the sinks may send beyond one each and the demand (`going_ahead.py`). `ahead_most`: the most
        #: that the router permits. `is_plain`: nothing else than credit matters at the node, but for what happens there
        #: for a moment. `goes_ahead`: and its sinks may go ahead. `pace`: deliveries that left in the `AHEAD_PERIOD`
        #: before this one; of a multicast, in one of up to `AHEAD_OF_ALL`.
        self.ahead = 0
        self.ahead_most = 0
        self.is_plain = False
        self.goes_ahead = False
        self.pace = 0
        self._left = 0  # deliveries that have left since `_counted_at`
        self._counted_at = 0.0
        self._ahead_from = 0.0  # no sink goes ahead before this time
        self._ahead_at = 0.0  # when it last counted as a pool whose senders go ahead

    def change_settings(self, max_credit: int, drain_time: float, ahead: int) -> None:
        """Grant with other settings from now on. Credit that a sink has stays. Args: as of `Pool`."""
        settings = self._settings
        self._settings = pool_settings(max_credit, settings.starve_time, settings.reclaim_time, drain_time, ahead)

    # What a pool shows, to explain why a sender waits.

    @property
    def demand(self) -> int:
        """Return how many deliveries the sources can take now."""
        return self._demand_now()

    @property
    def overcommit(self) -> int:
        """Return how many deliveries the sinks may send beyond the demand, while there is a consumer."""
        return self._overcommit_now()

    @property
    def waiting(self) -> int:
        """Return the number of deliveries that have come and not left."""
        return self._waiting

    @property
    def granted(self) -> int:
        """Return the number of deliveries that the sinks may still send; see `CreditSink.granted`."""
        return self._granted

    @property
    def sinks(self) -> SmallSet[CreditSink]:
        """Return all sinks."""
        return self._waiters.sinks

    # Sources.

    def add_source(self, usable: int = 0, cost: int = 1, counts: bool = True, owner: object = None) -> CreditSource:
        """Add a link or a share of another node that deliveries leave by.

        Args: usable: deliveries that it can take now.
            cost: the cost of reaching it; `closest` uses the cheapest sources only.
            counts: False for a receiver of copies: its credit gives no sender credit.
        """
        source = CreditSource(usable, cost, counts, owner, self)  # type: ignore[arg-type]  # `Pool` is the only subclass
        self._demand.add(source)
        self._lowered_fully = False
        return source

    def remove_source(self, source: CreditSource, now: float) -> None:  # noqa: ARG002 - every event has its time
        """Remove a source. The next `grants` takes back the credit that was granted because of it."""
        self._demand.remove(source)
        source.pool = source.link = None
        self._lower_now = True
        self._lowered_fully = False

    def change_source(self, source: CreditSource, usable: int, cost: int, counts: bool, now: float) -> None:
        """Change how a source counts: as if it were removed, and added with these values (`add_source`)."""
        link = source.link
        self.remove_source(source, now)
        source.link = link
        source.pool = self  # type: ignore[assignment]  # `Pool` is the only subclass
        source.usable, source.cost, source.counts = usable, cost, counts
        self._demand.add(source)

    def set_usable(
        self,
        source: CreditSource,
        usable: int,
        now: float,  # noqa: ARG002 - every event has its time
        withdrawn: bool = False,
    ) -> None:
        """Set how many deliveries a source can take now: its credit, or less while its session or its buffer is full.

        Args: withdrawn: the receiver lowered its limit to nothing. It is no consumer until it gives credit again. A
            receiver that has used up its credit remains a consumer.
        """
        self._demand.set_usable(source, usable, withdrawn)
        if withdrawn:
            self._lower_now = True
            self._lowered_fully = False

    def hold(self, until: float) -> None:
        """Take back no credit before `until`, seconds: no delivery can leave, but the router looks for another route.

        The hold ends as soon as there is enough demand again. Args: until: infinite: until the next call.
        """
        self._held_until = until

    def set_suspended(self, suspended: bool, *, at_once: bool = False) -> None:
        """Suspend or resume the pool. While the router's memory is used up, it grants nothing and takes credit back.

        Args: at_once: without waiting for `starve_time`.
        """
        self._suspended = suspended
        self._lower_now = self._lower_now or (suspended and at_once)
        self._lowered_fully = False

    # Sinks.

    def add_sink(self, delivery_count: int, owner: object = None, large: bool = False) -> CreditSink:
        """Add a link that deliveries come in by. It has no credit yet.

        Args: delivery_count: the initial one, of the sender's attach (§2.7.3). large: the link carries large messages,
            while another link carries the rest of the same senders.
        """
        sink = CreditSink(delivery_count, owner, large)
        sink.pool = self  # type: ignore[assignment]  # `Pool` is the only subclass
        self._waiters.enter(sink)
        return sink

    def join(self, sink: CreditSink, tenant: str, weight: float) -> None:
        """Count a sink as one of a tenant's: credit is divided between tenants by their weights.

        Args: weight: of the tenant, from now on for all its sinks here; more than 0.
        """
        self._waiters.join(sink, tenant, weight)

    @property
    def weights(self) -> dict[str, float]:
        """Return the weights of the tenants that have sinks, by tenant; empty: no sink has joined."""
        parts = self._waiters.parts
        return {} if parts is None else {tenant: each.weight for tenant, each in parts.parts.items() if each.sinks}

    @property
    def contenders(self) -> dict[str, bool]:
        """Return whether a sink of each tenant was not idle when credit was last granted; as `weights`."""
        parts = self._waiters.parts
        if parts is None:
            return {}
        return {tenant: each.not_idle > 0 for tenant, each in parts.parts.items() if each.sinks}

    def weigh(self, tenant: str, weight: float) -> None:
        """Change the weight of a tenant that has joined."""
        if self._waiters.parts is not None:
            self._waiters.parts.part(tenant, weight)

    def let_resume(self, sink: CreditSink, count: int) -> None:
        """Let a firm sink's peer resume deliveries, whatever the demand: they have come before, and none of them waits.

        The next flow announces a limit that is `count` ahead, or more. Deliveries within it use the sink's credit as
        all do; those beyond that credit are permitted all the same, and use none.
        """
        sink.announce_ahead(count)
        self._changed = with_item(self._changed, sink)

    def remove_sink(self, sink: CreditSink, now: float) -> None:
        """Remove a sink. Its waiting deliveries count until `forwarded` is called for each of them."""
        sink.pool = sink.link = sink.source = sink.route = None
        self._spend(sink, sink.granted)
        self._waiters.leave(sink)
        self._changed = without_item(self._changed, sink)
        self._lowered = without_item(self._lowered, sink)
        self._drain_answered(sink)
        if sink.meter is not None:
            release(sink, now)

    def received(self, sink: CreditSink, now: float) -> None:
        """Record that the first frame of a delivery came. Runs per delivery."""
        sink.delivery_count = (sink.delivery_count + 1) & _MASK
        sink.waiting += 1
        self._waiting += 1
        sink._used_at = now
        if sink.available:
            sink.available -= 1
        if not sink.granted:  # beyond every limit, or within one that was written off
            return
        left = sink.granted - sink._revoked - 1
        sink.granted -= 1
        self._granted -= 1
        if left < 0:  # within the old limit: sent before the peer saw the lower one
            sink._revoked -= 1
            self._revoked -= 1
        elif left <= sink._low_at or sink._idle:
            self._waiters.used(sink, now)
            if not left and (sink.draining or not sink.drains):
                self._drain_answered(sink)

    def forwarded(self, sink: CreditSink, now: float) -> None:  # noqa: ARG002 - every event has its time
        """Record that the first frame of a delivery has left, or that the delivery will never leave. Runs per delivery.

        Raises: ValueError: no delivery of this sink waits.
        """
        if not sink.waiting:
            raise ValueError("forwarded: no delivery of this sink waits")
        sink.waiting -= 1
        self._waiting -= 1
        self._left += 1

    def relayed(self, sink: CreditSink, count: int, now: float) -> None:
        """Record `count` deliveries that came and left at once: as `received` and `forwarded` for each."""
        sink.delivery_count = (sink.delivery_count + count) & _MASK
        sink._used_at = now
        sink.available = max(0, sink.available - count)
        self._left += count
        spent = min(count, sink.granted)
        if not spent:
            return
        left = sink.granted - sink._revoked - spent
        sink.granted -= spent
        self._granted -= spent
        if left < 0:  # within the old limit: sent before the peer saw the lower one
            sink._revoked += left
            self._revoked += left
        if left <= sink._low_at or sink._idle:
            self._waiters.used(sink, now)
            if left <= 0 and (sink.draining or not sink.drains):
                self._drain_answered(sink)

    def flow_received(
        self, sink: CreditSink, delivery_count: int, link_credit: int | None, available: int | None, now: float
    ) -> None:
        """Record the peer's flow (§2.6.7).

        The sender may return credit, as drain asks it to. Its flow may also confirm that it has seen a lower limit.
        Args: delivery_count, link_credit, available: of the flow; None: the flow does not have the field.
        """
        if spent := credit_ahead(delivery_count, sink.delivery_count):
            sink.delivery_count = delivery_count
            self._spend(sink, spent)
            self._waiters.rest(sink)  # a sender that returns credit has nothing to send
            self._credit_fell(sink)
        shown = None if link_credit is None else (delivery_count + link_credit) & _MASK
        if sink._revoked and shown == _limit_of(sink) and not sink._doubtful:
            self._write_off(sink)
        if available is not None:
            sink.available = available
        if sink._idle and sink.available > _credit_of(sink):
            self._waiters.used(sink, now)  # it has more to send than it has credit for

    # Sums and entries that `Pool` uses.

    def _free(self) -> int:
        """Return how many deliveries may be granted now; below 0: the sources can take less than is granted."""
        return self._demand_now() + self._overcommit_now() - self._waiting - self._granted

    def _demand_now(self) -> int:
        return 0 if self._suspended else self._demand._credit_now()

    def _overcommit_now(self) -> int:
        return len(self._waiters.sinks) + self.ahead if not self._suspended and self._demand._is_open() else 0

    def _credit_fell(self, sink: CreditSink) -> None:
        self._waiters.credit_fell(sink)
        if not _credit_of(sink) and (sink.draining or not sink.drains):
            self._drain_answered(sink)

    def _ask_to_drain(self, sink: CreditSink) -> None:
        """Ask a sink to drain. It gets no more credit until it has answered."""
        sink.draining = True
        waiters = self._waiters
        waiters.idle_rich = without_item(waiters.idle_rich, sink)
        waiters._drop_low(sink)
        self._changed = with_item(self._changed, sink)

    def _drain_answered(self, sink: CreditSink) -> None:
        """End the wait for an answer to a drain: the sink has answered, or the pool stops waiting."""
        if sink.draining:
            sink.draining = False
            self._lowered_fully = False
        self._reclaiming = without_item(self._reclaiming, sink)
        self._drain_round = without_item(self._drain_round, sink)
        if not self._drain_round:
            self._drain_until = None

    def _keep_credit(self, sink: CreditSink) -> None:
        """Let a sink keep its credit after it did not answer a drain, and sort it among the others again."""
        sink.draining = False
        if sink._idle:
            self._waiters.rest(sink)
        self._waiters.credit_fell(sink)
        self._lowered_fully = False

    def _lower_limit(self, sink: CreditSink, count: int, now: float) -> None:
        """Lower the limit of a sink. Its credit counts until the peer has confirmed that, or `reclaim_time` is over."""
        sink._revoked += count
        self._revoked += count
        sink._doubtful = sink._doubtful or sink._raised
        # If doubtful, no answer confirms it; and a consumer that comes and goes must not delay the end.
        if not sink._doubtful:
            sink._confirm_by = now + self._settings.reclaim_time
            self._lowered = with_item(without_item(self._lowered, sink), sink)
        if not sink.firm:
            self._changed = with_item(self._changed, sink)
        if _credit_of(sink) <= 1:
            self._waiters.idle_rich = without_item(self._waiters.idle_rich, sink)
        self._credit_fell(sink)

    def _write_off(self, sink: CreditSink) -> None:
        """Stop counting the credit that was taken back from a sink: it will not be used."""
        self._lowered = without_item(self._lowered, sink)
        sink.granted -= sink._revoked
        self._granted -= sink._revoked
        self._revoked -= sink._revoked
        sink._revoked = 0
        sink._raised = sink._doubtful = False

    def _spend(self, sink: CreditSink, count: int) -> None:
        granted = max(0, sink.granted - count)
        revoked = granted - max(0, _credit_of(sink) - count)
        self._granted += granted - sink.granted
        self._revoked += revoked - sink._revoked
        sink.granted, sink._revoked = granted, revoked

    def resume(self, sink: CreditSink) -> None:
        """Note that a sink that waited for a rate may be granted credit."""
        waiters = self._waiters
        if sink in waiters.sinks:
            if not sink.credit:
                waiters._add_empty(sink)
            elif not (sink._idle or sink.draining):
                waiters._add_low(sink)

    def _raise_limit(self, sink: CreditSink, most: int, now: float) -> int:
        """Raise the limit of a sink by the free credit, at most by `most`. Returns: by how much.

        If a rate of the sink permits less, the sink waits for that (`resume`).
        """
        free = self._free()
        # Credit that was taken back and is not confirmed is counted still. Granting it again costs nothing, and is
        # right as soon as it would be free once confirmed.
        again = max(0, min(most, sink._revoked, free + self._revoked))
        sink._revoked -= again
        self._revoked -= again
        fresh = 0 if sink._revoked else max(0, min(most - again, free))
        wanted = fresh
        if fresh and sink.meter is not None:
            fresh = allowed(sink, wanted, now)
        sink.granted += fresh
        self._granted += fresh
        if wanted and sink.meter is not None:
            granted(sink, fresh, wanted - fresh, now)
        if again + fresh:
            sink._raised = sink in self._lowered
            self._changed = with_item(self._changed, sink)
            self._lowered_fully = False
        return again + fresh
