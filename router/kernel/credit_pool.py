"""The pool of a node: it divides downstream credit among the senders, and never grants more than is there (§2.6.7).

A pool has *sources* and *sinks* of credit. Sources are the links by which deliveries leave: their receivers give
credit. Sinks are the links by which deliveries come: their senders use it. Whenever a pool grants credit,

    demand + overcommit  >=  waiting + granted

holds: `demand` is how many deliveries the sources can take now, `overcommit` one delivery for each sink and those by
which the sinks go ahead of sources with little credit (`going_ahead.py`), `waiting` the deliveries that have come and
not left, and `granted` the unused credit of the sinks. Credit for a delivery is granted again when its first frame has
left. If it were granted when the delivery came, a stopped consumer would fill this router; if it were granted at
settlement, the link would pause for a round trip.

The overcommitted delivery has two uses. A sink without credit does not wait for ever behind idle sinks that hold all
of it. And a consumer that takes one message at a time does not cost a flow in each direction for each producer. The
pool grants nothing else beyond the demand, but a consumer that leaves or lowers its credit makes earlier grants
exceed it. Without a consumer there is no overcommit, and no credit. A sink that usually gets large shares is granted
its overcommitted delivery only when nothing else came for a while: otherwise each round of a fast consumer would cost
one more flow, and a wait.

A sink of one router's pool is a source of the pool of the router before it. So the same rule holds on every hop, and
routers exchange nothing but ordinary flows. Time comes in as `now`, seconds of any monotonic clock. The pool does no
I/O.
"""

from __future__ import annotations

from math import inf
from typing import Final

from amqpmesh.router.kernel.credit_sinks import _MANY_GRANTED, CreditSink, Grant, _announce, _credit_of, _slack_of
from amqpmesh.router.kernel.credit_sums import PoolState, pool_settings
from amqpmesh.router.kernel.going_ahead import _is_ahead, _look_ahead, _shared
from amqpmesh.router.kernel.small_sets import SmallSet, first, with_item, without_item
from amqpmesh.router.kernel.weighted_credit import _grant_by_weight, _is_divided, _needs_of_all

#: Sinks of a pool that are looked at one by one while they wait for the overcommitted delivery.
_MANY_SINKS: Final = 32

#: Sinks of a pool that are looked at one by one whenever one of them has used credit.
_WATCHED: Final = 8

#: Deliveries that a sink of large messages may hold while sinks of other messages use their credit. With two frames or
#: more each, these are as many as the window of its session lets be on their way (`bulk_window`).
_LARGE_SHARE: Final = 32


class Pool(PoolState):
    """Division of the credit of a node's sources among its sinks.

    After each batch of events `grants` returns the flows to send. A delivery costs O(1). `grants` costs what has
    changed, so thousands of idle sinks cost nothing.

    A sink is *idle* once it has not used the credit that it holds for `idle_time`, or has returned some. Credit is
    granted in turn: first one to each sink without any; then, up to an equal share of the demand, to those that are
    not idle. A flow is sent for half a share or more, or when the sink held none.

    Args: max_credit: the most that one sink is granted, deliveries.
        starve_time: how long a sink waits without credit before other sinks are asked to return what they do not use
            or hold beyond a share; and how long the demand may be below the granted credit before limits are lowered.
            The demand falls for a moment whenever the buffers of a connection are full.
        reclaim_time: how long a peer may take to confirm that it returned credit. Then the pool assumes that it did:
            many clients answer neither drain nor echo.
        drain_time: how long a consumer's drain waits for the sinks.
        idle_time: see above. All times in seconds.
        ahead: the most deliveries by which the sinks go ahead together, beyond one each (`going_ahead.py`).
    """

    __slots__ = ("_looked", "_lower_at", "_next_check", "_overcommit_at", "_short_since")

    def __init__(
        self,
        distribution: str,
        *,
        max_credit: int = 500,
        starve_time: float = 0.02,
        reclaim_time: float = 1.0,
        drain_time: float = 0.25,
        idle_time: float = 0.1,
        ahead: int = 0,
    ) -> None:
        super().__init__(
            distribution, pool_settings(max_credit, starve_time, reclaim_time, drain_time, ahead), idle_time
        )
        self._short_since: float | None = None  # since when a sink has always waited
        self._looked = False  # since then, for credit that other sinks may return
        self._next_check = 0.0  # the earliest next look for it
        self._overcommit_at: float | None = None  # when a sink that was expected to get more gets its one delivery
        self._lower_at: float | None = None  # when limits are lowered, if that is still necessary then

    @property
    def watched(self) -> SmallSet[CreditSink]:
        """Return the sinks to update after each change: a single sink; or all of a few sinks, while one waits for more.

        With many sinks, the `credit_slack` of each is updated only when its own deliveries are counted.
        """
        return self._watched_now()

    def _watched_now(self) -> SmallSet[CreditSink]:
        waiters = self._waiters
        count = len(waiters.sinks)
        return waiters.sinks if count == 1 or (waiters.low and count <= _WATCHED) else ()

    def credit_slack(self, sink: CreditSink) -> int:
        """Return how many more deliveries of a sink may come and leave at once without a call of `grants`.

        A sink that waits for more is granted credit once the free credit is half a share or more. A delivery that comes
        and leaves at once keeps the free credit as it is, but lowers the demand, and so the shares. So `grants` has
        nothing to do until the shares are that small, whichever sink uses up the demand. A single sink competes with no
        other, so it may use up all of its credit until then. A few deliveries of the demand are reserved for each sink
        of large messages.
        """
        slack = _slack_of(sink)
        if sink._idle or sink.draining or sink._revoked:
            return slack
        waiters = self._waiters
        count = len(waiters.sinks)
        if (count > 1 and not waiters.low) or _is_divided(self):
            return slack
        free = self._free() + self._revoked
        large = waiters.large if waiters.large < waiters.not_idle else 0
        until_small = _shared(self, sink) - 2 * free * max(1, waiters.not_idle - large) - _LARGE_SHARE * large - 1
        if count > 1:
            return max(0, min(slack, until_small // count))
        if self._settings.max_credit * sink.times <= 2 * free:
            return slack
        return max(slack, min(sink.granted - 1, until_small))

    # Drains of a consumer.

    def drain(self, now: float) -> None:  # noqa: ARG002 - every event has its time
        """Start a drain for a consumer: ask each sink that holds credit, once, unless a drain is under way.

        The drain begins at the next `grants`. So a sink that waited for this consumer's credit gets the credit and is
        asked to use or return it in one flow.
        """
        if self._drain_until is None:
            self._drain_asked = True

    def drained(self, now: float) -> bool:
        """Return True if the last `drain` is over: no delivery waits, and all sinks answered or the time is over."""
        if self._waiting or self._drain_asked:
            return False
        return self._drain_until is None or now >= self._drain_until

    # Flows and timers.

    def grants(self, now: float) -> list[Grant]:
        """Return the flows to send now, at most one per sink. The router calls this once after each batch of events."""
        self._divide(now)
        if not self._changed:
            return []
        flows = [
            Grant(sink, _announce(sink), sink.draining, sink._revoked > 0 and not sink.firm) for sink in self._changed
        ]
        self._changed = ()
        return flows

    def _divide(self, now: float) -> None:
        """Grant what is free, or take back what exceeds the demand; the sinks that need a flow are `_changed`."""
        waiters = self._waiters
        self._overcommit_at = None
        if self.is_plain or self.ahead:
            _look_ahead(self, now)
        free = self._free() + self._revoked
        if free >= 0:
            self._lower_at = None
            self._lower_now = False
            self._held_until = 0.0
            if free and (waiters.empty or waiters.low):
                if _is_divided(self):
                    _grant_by_weight(self, now)
                else:
                    self._grant_free_credit(now)
        elif now < self._held_until:
            self._lower_at = self._held_until if self._held_until < inf else None
        elif not self._lowered_fully:
            if self._lower_now:
                self._lower_excess(now)
            elif self._lower_at is None:
                self._lower_at = now + self._settings.starve_time
        if self._drain_asked:
            self._start_drain(now)
        if not (waiters.empty or waiters.low):
            self._short_since = None
        elif self._short_since is None:
            self._short_since = now
            self._looked = False

    def _is_calm(self) -> bool:
        """Return whether credit is only to be granted: none is taken back, and nobody drains."""
        return (
            not (
                self._suspended
                or self._revoked
                or self._reclaiming
                or self._lowered
                or self._lower_now
                or self._lower_at is not None
                or self._held_until
                or self._drain_round
                or self._drain_asked
                or self._drain_until is not None
                or self._changed
            )
            and self._free() >= 0
        )

    def next_timer(self) -> float | None:
        """Return when to call `handle_timer`; None: nothing depends on time."""
        soonest = self._lower_at
        for at in (self._drain_until, self._starves_at(), self._overcommit_at):
            if at is not None and (soonest is None or at < soonest):
                soonest = at
        if self._reclaiming and (soonest is None or first(self._reclaiming)._answer_by < soonest):
            soonest = first(self._reclaiming)._answer_by
        if self._lowered and (soonest is None or first(self._lowered)._confirm_by < soonest):
            soonest = first(self._lowered)._confirm_by
        return soonest

    def handle_timer(self, now: float) -> None:
        """Do the work that is due by now. Call `grants` afterwards."""
        if self._drain_until is not None and now >= self._drain_until:
            for sink in self._drain_round:
                if sink not in self._reclaiming:
                    self._keep_credit(sink)
            self._drain_round = ()
            self._drain_until = None
        while self._reclaiming and first(self._reclaiming)._answer_by <= now:
            sink = first(self._reclaiming)
            self._drain_answered(sink)
            self._changed = with_item(self._changed, sink)  # the flow says that the drain is over
            keep = 1 if self._overcommit_now() else 0
            if _credit_of(sink) > keep:
                # No answer counts as consent. The lower limit makes that true, except for deliveries on their way. A
                # firm sink may use the credit all the same: its deliveries then wait here, or are released.
                self._lower_limit(sink, _credit_of(sink) - keep, now)
                self._write_off(sink)
            self._keep_credit(sink)
        while self._lowered and first(self._lowered)._confirm_by <= now:
            self._write_off(first(self._lowered))
        if self._overcommit_at is not None and now >= self._overcommit_at:
            self._overcommit_at = None
        if self._lower_at is not None and now >= self._lower_at:
            self._lower_at = None
            self._lower_now = True
        starves_at = self._starves_at()
        if starves_at is not None and now >= starves_at:
            self._reclaim(now)

    # Granting.

    def _share(self, times: int = 1, large: bool = False, sink: CreditSink | None = None) -> int:
        """Return an equal share of the demand. Sinks of large messages beside other sinks get a few deliveries."""
        return max(1, min(self._settings.max_credit * times, self._equal(large, sink)))

    def _equal(self, large: bool, sink: CreditSink | None = None) -> int:
        """Return an equal share of the demand, without the limit of one sink; for a tenant's sink, of its tenant's."""
        waiters = self._waiters
        if sink is not None and sink.part is not None and _is_divided(self):
            assert waiters.parts is not None
            return waiters.parts.share(sink.part, self._demand_now() + self._overcommit_now())
        demand = _shared(self, sink)
        share = -(-demand // max(1, waiters.not_idle))
        if 0 < waiters.large < waiters.not_idle:
            few = min(share, _LARGE_SHARE)
            share = few if large else -(-(demand - few * waiters.large) // (waiters.not_idle - waiters.large))
        return share

    def _grant_free_credit(self, now: float) -> None:
        """Grant the free credit: one to each sink without any, then a share to those with half of it or less."""
        waiters = self._waiters
        waiters.age(now)
        share = self._share()
        # First one for each. All sinks without credit wait in one line: if those that used theirs lately came first,
        # two busy sinks could keep out a third one for ever.
        passed: list[CreditSink] = []
        served: list[CreditSink] = []
        while waiters.empty and self._free() > 0:
            sink = first(waiters.empty)
            waiters._drop_empty(sink)
            if _is_ahead(self, sink, share):
                passed.append(sink)
            elif not self._expects_more(sink, now) and self._raise_limit(sink, 1, now):
                served.append(sink)
            elif sink.meter is None or not sink.meter.waits:
                passed.append(sink)
        for sink in tuple(self._lowered):  # credit not confirmed as returned may be granted again
            if not _credit_of(sink) and sink not in passed and self._raise_limit(sink, 1, now):
                waiters._drop_empty(sink)
                served.append(sink)
        for sink in reversed(passed):
            waiters._put_back(sink)
        waiters.served(served, share, now)
        # Then up to a share for each.
        while waiters.low and self._refill(first(waiters.low), now):
            pass
        if waiters.large and len(waiters.low) <= _MANY_SINKS:
            for sink in tuple(waiters.low):
                if sink.large:  # it needs few, and does not wait behind a sink that needs many
                    self._refill(sink, now)

    def _refill(self, sink: CreditSink, now: float) -> bool:
        """Grant a sink with half a share or less the rest of its share.

        Returns: True: the sink waits for nothing more.
        """
        waiters = self._waiters
        share = self._share(sink.times, sink.large, sink)
        if sink.meter is not None:
            share = min(share, sink.meter.limit())
        half = share // 2
        flow_due = sink in self._changed
        if flow_due or _credit_of(sink) <= half:  # else the share has become smaller meanwhile
            if not flow_due and self._free() + self._revoked < share - half:
                return False
            if self._raise_limit(sink, share - _credit_of(sink), now) >= _MANY_GRANTED:
                sink._plenty = True
            if sink.meter is not None and sink.meter.waits:
                half = 0  # until its turn comes, more credit is no use to look for
            elif _credit_of(sink) <= half:
                return False
        waiters._drop_low(sink)
        sink._low_at = half
        return True

    def _expects_more(self, sink: CreditSink, now: float) -> bool:
        """Return True if a sink does not get the one overcommitted delivery yet.

        The sink was granted large shares before, so more credit will probably be free soon. A single delivery now would
        cost a flow, and the sink would wait again.
        """
        if (
            not sink._plenty
            or len(self._waiters.sinks) > _MANY_SINKS
            or self._free() + self._revoked > len(self._waiters.sinks)
        ):
            return False
        until = sink._used_at + self._settings.starve_time
        if now >= until:
            sink._plenty = False
            return False
        self._overcommit_at = until if self._overcommit_at is None else min(until, self._overcommit_at)
        return True

    def _lower_excess(self, now: float) -> None:
        """Take back the credit that exceeds the demand, from idle sinks first.

        While there is a consumer, a firm sink is asked to return credit only if it is idle: a busy one uses it up soon.
        """
        waiters = self._waiters
        self._lower_now = False
        waiters.age(now)
        keep = 1 if self._overcommit_now() else 0
        asked = sum([_credit_of(sink) for sink in self._reclaiming if sink.firm])
        excess = -(self._free() + self._revoked) - asked
        steps: list[tuple[SmallSet[CreditSink], int]]
        steps = [(waiters.idle_rich, keep), (waiters.active, max(keep, self._share())), (waiters.active, keep)]
        if not keep:
            steps.append((self._waiters.sinks, 0))
        for those, floor in steps:
            for sink in list(those):
                if excess <= 0:
                    self._lowered_fully = asked > 0  # until the asked sinks have answered
                    return
                if _credit_of(sink) <= floor or (sink.firm and (sink.draining or (keep and not sink._idle))):
                    continue
                if sink.firm:
                    excess -= _credit_of(sink) - floor
                    asked += _credit_of(sink)
                    self._drain_or_lower(sink, _credit_of(sink) - floor, now)
                else:
                    taken = min(_credit_of(sink) - floor, excess)
                    self._lower_limit(sink, taken, now)
                    excess -= taken
        self._lowered_fully = excess > 0 or asked > 0

    def _reclaim(self, now: float) -> None:
        """While sinks wait without credit, take back what idle sinks hold beyond one, and busy ones beyond a share."""
        waiters = self._waiters
        self._looked = True
        self._next_check = now + self._settings.starve_time
        waiters.age(now)
        if _is_divided(self):
            need = _needs_of_all(self)
        else:
            need = self._needs(waiters.empty) + self._needs(waiters.low)
        need -= max(0, self._free() + self._revoked) + sum([_credit_of(sink) - 1 for sink in self._reclaiming])
        while need > 0 and waiters.idle_rich:
            sink = first(waiters.idle_rich)
            if _credit_of(sink) > 1:
                need -= self._drain_or_lower(sink, min(need, _credit_of(sink) - 1), now)
            else:
                waiters.idle_rich = without_item(waiters.idle_rich, sink)
        if need <= 0:
            return
        # A new sink has its overcommitted delivery. No busy sink is disturbed before that one is used.
        need -= self._share() * sum([sink.delivery_count == sink._began and not sink.large for sink in waiters.low])
        most, equal = self._settings.max_credit, (self._equal(large=False), self._equal(large=True))
        is_divided = _is_divided(self)
        for sink in tuple(waiters.active):
            if need <= 0:
                return
            share = max(1, min(most * sink.times, self._equal(False, sink) if is_divided else equal[sink.large]))
            excess = _credit_of(sink) - share
            # A drain takes all credit, so it is only for a sink that has twice its share.
            if excess > 0 and not sink.draining and (sink.lowers or excess >= share):
                need -= self._drain_or_lower(sink, min(need, excess), now)

    def _needs(self, line: SmallSet[CreditSink]) -> int:
        """Return the sum of the shares of all sinks in a waiting line, deliveries."""
        large = sum([sink.large for sink in line]) if self._waiters.large else 0
        return (len(line) - large) * self._share() + (large and large * self._share(1, True))

    def _drain_or_lower(self, sink: CreditSink, count: int, now: float) -> int:
        """Take unused credit back from a sink, by a drain or by a lower limit.

        A drain takes all credit back, whatever the `count`. The limit of a sink that `lowers`, or that cannot drain, is
        lowered by `count`.

        Returns: the deliveries of credit that become free for other sinks. After a drain the sink itself needs one.
        """
        if sink.drains and not sink.lowers:
            sink._answer_by = now + self._settings.reclaim_time
            self._reclaiming = with_item(self._reclaiming, sink)
            self._ask_to_drain(sink)
            return _credit_of(sink) - 1
        self._lower_limit(sink, count, now)
        return count

    def reclaim_unused(self, sink: CreditSink, now: float) -> bool:
        """Take credit back that a sink does not use: others wait for its rate. Returns: whether there was any."""
        if sink.draining or sink._revoked or not sink.granted or sink._used_at > now - self._waiters.idle_time:
            return False
        self._drain_or_lower(sink, sink.credit, now)
        return True

    def _starves_at(self) -> float | None:
        """Return when to look for credit of idle sinks, and of sinks with more than a share; None: not needed.

        A sink that has no other beside it has nobody to get more from.
        """
        if self._short_since is None or len(self._waiters.sinks) < 2:
            return None
        if not (self._demand_now() or self._overcommit_now()):
            return None
        at = max(self._short_since + self._settings.starve_time, self._next_check)
        if self._waiters.idle_rich or not self._looked:
            return at
        active = self._waiters.active
        return max(at, first(active)._placed_at + self._waiters.idle_time) if active else None

    def _start_drain(self, now: float) -> None:
        self._drain_asked = False
        for sink in self._waiters.sinks:
            if _credit_of(sink):
                self._drain_round = with_item(self._drain_round, sink)
                if sink.drains and not sink.draining:
                    self._ask_to_drain(sink)
        if self._drain_round:
            self._drain_until = now + self._settings.drain_time
