"""Downstream credit becomes upstream credit: divided among the senders, never promised twice (§2.6.7).

A *pool* stands between the links that deliveries of an address come in by, its *inputs*, and the places they leave to,
its *branches*. For every pool

    demand + spare  >=  waiting + granted

holds whenever it promises credit: `demand` is what the branches can take now, `spare` one delivery for each input,
`waiting` the deliveries that have come and not left, and `granted` the credit that inputs hold unspent. Credit
is promised again when a delivery's first frame has left: not when it came, or a stopped consumer would fill this
router, and not when it is settled, or the link would pause for a round trip.

The spare delivery keeps an input that holds nothing from waiting for ever behind idle ones that hold everything, and a
consumer that takes one message at a time from costing a flow in each direction and for each producer. It is the
whole overcommitment, besides grants that a consumer outdated when it left or lowered its credit: no more deliveries
than there are inputs wait here for that. Without a consumer there is no spare either, and no credit at all. Who is used
to large shares is given it only when no other has come for a while: else it would cost a flow and a wait in each round
of a consumer that takes all that comes.

Chained, an input of one router's pool being a branch of another's, the same rule holds on every hop, and nothing but
ordinary flows is exchanged. Time comes in as `now`, seconds of any monotonic clock; nothing here does I/O.
"""

from collections.abc import Iterable
from functools import lru_cache
from math import inf
from typing import Final, NamedTuple

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.credit.sinks import SERIAL, FixedCredit, Grant, Input, ahead
from amqpmesh.router.credit.sources import Branch, Demand
from amqpmesh.router.credit.waiters import Lines
from amqpmesh.router.small_set import SmallSet, first, with_item, with_item_first, without_item

__all__ = ["Branch", "FixedCredit", "Grant", "Input", "Pool"]


PLENTY: Final = 32
"""Deliveries that are many to be given at a time: who was is expected to be given more."""

FEW: Final = 32
"""Inputs of a pool that are looked at one by one while they wait for what is spare."""

WATCHED: Final = 8
"""Inputs of a pool that are looked at one by one whenever one of them has used credit."""


LARGE_SHARE: Final = 32
"""Deliveries that an input may hold which carries what is large, while others use theirs that carry the rest: with two
frames or more each, as many as its session's window lets under way (`bulk_window`)."""


class Pace(NamedTuple):
    """What pools have in common; see `Pool`."""

    max_credit: int
    starve_time: float
    reclaim_time: float
    drain_time: float


_pace: Final = lru_cache(maxsize=64)(Pace)


class Pool:
    """Divides what branches can take among the inputs of an address.

    After each batch of events `grants` says which flows to send. What happens per delivery costs O(1); `grants` costs
    what changes, so that thousands of idle inputs are free.

    An input is *idle* once it has not used the credit that it holds for `idle_time`, or has given some back. Credit is
    dealt in turn: to inputs that hold none, one each; then, up to an equal share of the demand, to those that are not
    idle. A flow is sent for half a share or more, or when the input held none.

    Args: max_credit: the most that one input is given, deliveries.
        starve_time: how long an input waits for credit that others hold, idle or beyond their share, before they are
            asked to give it back, and how long the demand may stay below what was promised before limits are lowered:
            it does so for a moment whenever the buffers of a connection are full.
        reclaim_time: how long a peer may take to confirm that it gave credit back. Then it is believed: many clients
            answer neither drain nor echo.
        drain_time: how long a consumer's drain waits for the inputs.
        idle_time: see above. All times in seconds.
    """

    __slots__ = ("_changed", "_demand", "_floored", "_granted", "_hasty", "_held_until", "_lines",
                 "_looked", "_lower_at", "_lowered", "_next_check", "_pace", "_reclaiming", "_revoked", "_round",
                 "_round_asked", "_round_until", "_short_since", "_spare_at", "_suspended", "_waiting")  # fmt: skip

    def __init__(
        self,
        distribution: Distribution,
        *,
        max_credit: int = 500,
        starve_time: float = 0.02,
        reclaim_time: float = 1.0,
        drain_time: float = 0.25,
        idle_time: float = 0.1,
    ) -> None:
        self._pace = _pace(max_credit, starve_time, reclaim_time, drain_time)
        self._lines = Lines(idle_time)
        self._demand = Demand(distribution)
        self._suspended = False
        # Sums over the inputs, kept up to date with each of them.
        self._waiting = 0
        self._granted = 0
        self._revoked = 0
        self._short_since: float | None = None  # since when there was never enough for everybody who waits
        self._looked = False  # since then, for credit that others may give back
        # Asked to drain because others starve, and told a lower limit: in the order in which we wait for their answer.
        self._reclaiming: SmallSet[Input] = ()
        self._lowered: SmallSet[Input] = ()
        # Asked to drain because a consumer drains.
        self._round: SmallSet[Input] = ()
        self._round_asked = False
        self._round_until: float | None = None
        self._changed: SmallSet[Input] = ()  # whom a flow must be sent
        self._next_check = 0.0  # when starving is looked at again, at the earliest
        self._spare_at: float | None = None  # when the spare delivery is given to who expected more
        self._lower_at: float | None = None  # when limits are lowered, if it is still necessary then
        self._hasty = False  # lower them without waiting
        self._held_until = 0.0  # not before that, whatever else
        self._floored = False  # all of them are as low as they can be

    # What others ask for, to explain why a sender waits.

    @property
    def demand(self) -> int:
        """How many deliveries the branches can take now."""
        return 0 if self._suspended else self._demand.credit

    @property
    def spare(self) -> int:
        """How many deliveries beyond the demand inputs may send: one each while there is a consumer."""
        return len(self._lines.inputs) if self._demand.open and not self._suspended else 0

    @property
    def waiting(self) -> int:
        """Deliveries that have come and not left."""
        return self._waiting

    @property
    def granted(self) -> int:
        """Deliveries that inputs may still send; see `Input.granted`."""
        return self._granted

    # Branches.

    def add_branch(self, usable: int = 0, cost: int = 1, counts: bool = True, owner: object = None) -> Branch:
        """A place that deliveries leave to.

        Args: usable: deliveries that it can take now.
            cost: what reaching it costs; `closest` looks at the cheapest branches only.
            counts: False for receivers that only see copies: their credit gives nobody credit.
        """
        branch = Branch(usable, cost, counts, owner)
        self._demand.add(branch)
        self._floored = False
        return branch

    def remove_branch(self, b: Branch, now: float) -> None:  # noqa: ARG002 - every event has its time
        """It is gone; what was promised for its sake is taken back."""
        self._demand.remove(b)
        self._hasty = True
        self._floored = False

    def change_branch(self, b: Branch, usable: int, cost: int, counts: bool, now: float) -> None:
        """It counts otherwise from now on: as if it had gone and another had come, see `add_branch`."""
        self.remove_branch(b, now)
        b.usable, b.cost, b.counts = usable, cost, counts
        self._demand.add(b)

    def set_usable(
        self,
        b: Branch,
        usable: int,
        now: float,  # noqa: ARG002 - every event has its time
        *,
        withdrawn: bool = False,
    ) -> None:
        """How many deliveries a branch can take now: its credit, or less while something else holds it back.

        Args: withdrawn: the receiver lowered its limit to nothing: until it gives credit again it is no consumer,
            while one whose credit is merely spent is.
        """
        self._demand.set_usable(b, usable, withdrawn)
        if withdrawn:
            self._hasty = True
            self._floored = False

    def hold(self, until: float) -> None:
        """What was promised is not taken back before `until`, seconds, though nothing leaves here any more: another way
        is looked for. That ends when there is enough again. Args: until: infinite, until the next call."""
        self._held_until = until

    def set_suspended(self, suspended: bool) -> None:
        """Whether this router's memory is used up: then nobody gets credit, and what is unused is taken back."""
        self._suspended = suspended
        self._floored = False

    # Inputs.

    def add_input(self, delivery_count: int, owner: object = None, large: bool = False) -> Input:
        """A link that deliveries come in by, without credit yet.

        Args: delivery_count: the initial one, of the sender's attach (§2.7.3). large: it carries what is large, and
            another one the rest of the same senders'.
        """
        i = Input(delivery_count, owner, large)
        self._lines.enter(i)
        return i

    def remove_input(self, i: Input, now: float) -> None:  # noqa: ARG002 - every event has its time
        """It is gone. Its waiting deliveries still count until `forwarded` is told of each."""
        self._spend(i, i.granted)
        self._lines.leave(i)
        self._changed = without_item(self._changed, i)
        self._lowered = without_item(self._lowered, i)
        self._answered(i)

    def received(self, i: Input, now: float) -> None:
        """The first frame of a delivery came. Runs per delivery."""
        i.delivery_count = (i.delivery_count + 1) & SERIAL
        i.waiting += 1
        self._waiting += 1
        i._used_at = now
        if i.available:
            i.available -= 1
        if not i.granted:  # beyond all limits, or within one that we had stopped believing in
            return
        left = i.granted - i._revoked - 1
        i.granted -= 1
        self._granted -= 1
        if left < 0:  # within the old limit, sent before the lower one was seen
            i._revoked -= 1
            self._revoked -= 1
        elif left <= i._renew_at or i._idle:
            self._lines.used(i, now)
            if not left and (i.draining or not i.drains):
                self._answered(i)

    def forwarded(self, i: Input, now: float) -> None:  # noqa: ARG002 - every event has its time
        """The first frame of a delivery has left, or the delivery will never leave. Runs per delivery.

        Raises: CommandError: none of this input's waits.
        """
        if not i.waiting:
            raise CommandError("forwarded: no delivery of this input waits")
        i.waiting -= 1
        self._waiting -= 1

    def relayed(self, i: Input, count: int, now: float) -> None:
        """So many deliveries came, and left in the same moment: as `received` and `forwarded` for each."""
        i.delivery_count = (i.delivery_count + count) & SERIAL
        i._used_at = now
        i.available = max(0, i.available - count)
        spent = min(count, i.granted)
        if not spent:
            return
        left = i.granted - i._revoked - spent
        i.granted -= spent
        self._granted -= spent
        if left < 0:  # within the old limit, sent before the lower one was seen
            i._revoked += left
            self._revoked += left
        if left <= i._renew_at or i._idle:
            self._lines.used(i, now)
            if left <= 0 and (i.draining or not i.drains):
                self._answered(i)

    def flow_received(
        self, i: Input, delivery_count: int, link_credit: int | None, available: int | None, now: float
    ) -> None:
        """The peer's flow: it may give credit back, as drain asks, or show that it saw a lower limit (§2.6.7).

        Args: delivery_count, link_credit, available: of the flow; None where it says nothing.
        """
        if spent := ahead(delivery_count, i.delivery_count):
            i.delivery_count = delivery_count
            self._spend(i, spent)
            self._lines.rest(i)  # what gives credit back has nothing to send
            self._sank(i)
        shown = None if link_credit is None else (delivery_count + link_credit) & SERIAL
        if i._revoked and shown == i.limit and not i._doubtful:
            self._write_off(i)
        if available is not None:
            i.available = available
        if i._idle and i.available > i.credit:
            self._lines.used(i, now)  # it would use more than it holds

    @property
    def watched(self) -> SmallSet[Input]:
        """The inputs of which `quiet` changes with what becomes of others: one that is alone, or a few of whom one
        waits for more. Many are not looked at whenever one changes; each is as soon as it is known what came by it.
        """
        lines = self._lines
        count = len(lines.inputs)
        return lines.inputs if count == 1 or (lines.renewing and count <= WATCHED) else ()

    def quiet(self, i: Input) -> int:
        """How many more deliveries of an input may come and leave at once before anybody has to know: they change sums
        alone.

        Nobody is given less than half a share, and what is free stays as it is, while the demand sinks, and shares with
        it: so whoever waits for more gets nothing before a share is that small, whoever makes it so. One that is alone
        waits for nobody else, and may use up all that it holds until then. Those that carry what is large keep few
        of what is divided among the others.
        """
        quiet = i.quiet
        if i._idle or i.draining or i._revoked:
            return quiet
        lines = self._lines
        count = len(lines.inputs)
        if count > 1 and not lines.renewing:
            return quiet
        free = self._free() + self._revoked
        large = lines.large if lines.large < lines.active else 0
        sinks = self.demand - 2 * free * max(1, lines.active - large) - LARGE_SHARE * large - 1
        if count > 1:
            return max(0, min(quiet, sinks // count))
        if self._pace.max_credit * i.times <= 2 * free:
            return quiet
        return max(quiet, min(i.granted - 1, sinks))

    # A consumer drains.

    def drain(self, now: float) -> None:  # noqa: ARG002 - every event has its time
        """A consumer asked to drain: ask all inputs that hold credit, once, unless that is under way already.

        It begins with the next `grants`, so that an input that waited for this consumer's credit is given it first, and
        told to use it or give it back in the same flow.
        """
        if self._round_until is None:
            self._round_asked = True

    def drained(self, now: float) -> bool:
        """Whether nothing more will come of the last `drain`: all answered or the time is over, and nothing waits."""
        if self._waiting or self._round_asked:
            return False
        return self._round_until is None or now >= self._round_until

    # The flows to send, and when to look again.

    def grants(self, now: float) -> list[Grant]:
        """The flows to send now, one per input at most; call it once after each batch of events."""
        lines = self._lines
        self._spare_at = None
        free = self._free() + self._revoked
        if free >= 0:
            self._lower_at = None
            self._hasty = False
            self._held_until = 0.0
            if free and (lines.hungry or lines.renewing):
                self._deal(now)
        elif now < self._held_until:
            self._lower_at = self._held_until if self._held_until < inf else None
        elif not self._floored:
            if self._hasty:
                self._lower(now)
            elif self._lower_at is None:
                self._lower_at = now + self._pace.starve_time
        if self._round_asked:
            self._start_round(now)
        if not (lines.hungry or lines.renewing):
            self._short_since = None
        elif self._short_since is None:
            self._short_since = now
            self._looked = False
        if not self._changed:
            return []
        flows = [Grant(i, i.announce(), i.draining, i._revoked > 0 and not i.firm) for i in self._changed]
        self._changed = ()
        return flows

    def next_timer(self) -> float | None:
        """When `handle_timer` wants to be called, None if nothing depends on time."""
        soonest = self._lower_at
        for at in (self._round_until, self._starves_at(), self._spare_at):
            if at is not None and (soonest is None or at < soonest):
                soonest = at
        if self._reclaiming and (soonest is None or first(self._reclaiming)._answer_by < soonest):
            soonest = first(self._reclaiming)._answer_by
        if self._lowered and (soonest is None or first(self._lowered)._confirm_by < soonest):
            soonest = first(self._lowered)._confirm_by
        return soonest

    def handle_timer(self, now: float) -> None:
        """Does what is due; `grants` may have something to send afterwards."""
        if self._round_until is not None and now >= self._round_until:
            for i in self._round:
                if i not in self._reclaiming:
                    self._settle_down(i)
            self._round = ()
            self._round_until = None
        while self._reclaiming and first(self._reclaiming)._answer_by <= now:
            i = first(self._reclaiming)
            self._answered(i)
            self._changed = with_item(self._changed, i)  # it drains no more
            keep = 1 if self.spare else 0
            if i.credit > keep:
                # Its silence is taken for consent. Lowering its limit makes that true, of all but what is on its way.
                # A firm one may use it all the same: then it waits here, or is released.
                self._take_back(i, i.credit - keep, now)
                self._write_off(i)
            self._settle_down(i)
        while self._lowered and first(self._lowered)._confirm_by <= now:
            self._write_off(first(self._lowered))
        if self._spare_at is not None and now >= self._spare_at:
            self._spare_at = None
        if self._lower_at is not None and now >= self._lower_at:
            self._lower_at = None
            self._hasty = True
        starves_at = self._starves_at()
        if starves_at is not None and now >= starves_at:
            self._reclaim(now)

    # Dealing.

    def _free(self) -> int:
        taken = self._waiting + self._granted
        demand = self._demand
        if self._suspended or not demand.open:
            return (0 if self._suspended else demand.credit) - taken
        return demand.credit + len(self._lines.inputs) - taken

    def _share(self, times: int = 1, large: bool = False) -> int:
        """An equal share of the demand; who carries what is large, beside others that carry the rest, needs few."""
        return max(1, min(self._pace.max_credit * times, self._equal(large)))

    def _equal(self, large: bool) -> int:
        """The same, whatever its sender takes at most."""
        lines = self._lines
        demand = self.demand
        share = -(-demand // max(1, lines.active))
        if 0 < lines.large < lines.active:
            few = min(share, LARGE_SHARE)
            share = few if large else -(-(demand - few * lines.large) // (lines.active - lines.large))
        return share

    def _deal(self, now: float) -> None:
        lines = self._lines
        lines.age(now)
        share = self._share()
        # One each first. Everybody who holds none stands in the same line: preferring those that used theirs
        # lately would let two busy inputs keep a third one out for ever.
        passed: list[Input] = []
        served: list[Input] = []
        while lines.hungry and self._free() > 0:
            i = first(lines.hungry)
            lines.hungry = without_item(lines.hungry, i)
            (served if not self._expects_more(i, now) and self._give(i, 1) else passed).append(i)
        for i in tuple(self._lowered):  # what they have not confirmed to have given back they may have again
            if not i.credit and i not in passed and self._give(i, 1):
                lines.hungry = without_item(lines.hungry, i)
                served.append(i)
        for i in reversed(passed):
            lines.hungry = with_item_first(lines.hungry, i)
        lines.served(served, share, now)
        # Then up to a share each.
        while lines.renewing and self._renew(first(lines.renewing)):
            pass
        if lines.large and len(lines.renewing) <= FEW:
            for i in tuple(lines.renewing):
                if i.large:  # it needs few, and does not wait behind who needs many
                    self._renew(i)

    def _renew(self, i: Input) -> bool:
        """Gives one of those that hold half a share or less what is missing; whether it waits for nothing more."""
        lines = self._lines
        share = self._share(i.times, i.large)
        half = share // 2
        told = i in self._changed  # a flow goes out anyway
        if told or i.credit <= half:  # else the share has shrunk meanwhile
            if not told and self._free() + self._revoked < share - half:
                return False
            if self._give(i, share - i.credit) >= PLENTY:
                i._plenty = True
            if i.credit <= half:
                return False
        lines.renewing = without_item(lines.renewing, i)
        i._renew_at = half
        return True

    def _expects_more(self, i: Input, now: float) -> bool:
        """Whether an input that may have the spare delivery is not given it yet: it was given much before, so more is
        likely to come soon, and this one would only cost a flow, and wait here."""
        if not i._plenty or len(self._lines.inputs) > FEW or self._free() + self._revoked > self.spare:
            return False
        until = i._used_at + self._pace.starve_time
        if now >= until:
            i._plenty = False
            return False
        self._spare_at = until if self._spare_at is None else min(until, self._spare_at)
        return True

    def _give(self, i: Input, most: int) -> int:
        """Raises the limit of an input by what is free, at most `most`: by how much."""
        free = self._free()
        # What was taken back and not confirmed it may use as it is: it is counted already, so promising it anew costs
        # nothing, and there is a reason to as soon as it would be free once confirmed.
        again = max(0, min(most, i._revoked, free + self._revoked))
        i._revoked -= again
        self._revoked -= again
        fresh = 0 if i._revoked else max(0, min(most - again, free))
        i.granted += fresh
        self._granted += fresh
        if again + fresh:
            i._raised = i in self._lowered
            self._changed = with_item(self._changed, i)
            self._floored = False
        return again + fresh

    def _lower(self, now: float) -> None:
        """Takes back what exceeds the demand, of idle inputs first. Of firm ones only those are asked that do not use
        theirs: others soon have."""
        lines = self._lines
        self._hasty = False
        lines.age(now)
        keep = 1 if self.spare else 0
        asked = sum(i.credit for i in self._reclaiming if i.firm)
        excess = -(self._free() + self._revoked) - asked
        steps: list[tuple[Iterable[Input], int]]
        steps = [(lines.rich, keep), (lines.recent, max(keep, self._share())), (lines.recent, keep)]
        if not keep:
            steps.append((self._lines.inputs, 0))
        for those, floor in steps:
            for i in list(those):
                if excess <= 0:
                    self._floored = asked > 0  # until they have answered
                    return
                if i.credit <= floor or (i.firm and (i.draining or (keep and not i._idle))):
                    continue
                if i.firm:
                    excess -= i.credit - floor
                    asked += i.credit
                    self._ask_back(i, i.credit - floor, now)
                else:
                    taken = min(i.credit - floor, excess)
                    self._take_back(i, taken, now)
                    excess -= taken
        self._floored = excess > 0 or asked > 0

    def _reclaim(self, now: float) -> None:
        """While others starve, has inputs give back what they hold beyond one if they are idle, else beyond a share."""
        lines = self._lines
        self._looked = True
        self._next_check = now + self._pace.starve_time
        lines.age(now)
        need = self._needs(lines.hungry) + self._needs(lines.renewing)
        need -= max(0, self._free() + self._revoked) + sum(i.credit - 1 for i in self._reclaiming)
        while need > 0 and lines.rich:
            i = first(lines.rich)
            if i.credit > 1:
                need -= self._ask_back(i, min(need, i.credit - 1), now)
            else:
                lines.rich = without_item(lines.rich, i)
        if need <= 0:
            return
        # Those who have just come have what is spare, and nobody who uses its own is disturbed before that is used.
        need -= self._share() * sum(i.delivery_count == i._began and not i.large for i in lines.renewing)
        most, equal = self._pace.max_credit, (self._equal(large=False), self._equal(large=True))
        for i in tuple(lines.recent):
            if need <= 0:
                return
            share = max(1, min(most * i.times, equal[i.large]))
            excess = i.credit - share
            # A drain takes all: it is for who has twice what it should.
            if excess > 0 and not i.draining and (i.lowers or excess >= share):
                need -= self._ask_back(i, min(need, excess), now)

    def _needs(self, line: SmallSet[Input]) -> int:
        """What inputs that wait need for a share each, deliveries."""
        large = sum(i.large for i in line) if self._lines.large else 0
        return (len(line) - large) * self._share() + (large and large * self._share(large=True))

    def _ask_back(self, i: Input, count: int, now: float) -> int:
        """Has an input give back what it holds: by a lower limit if it `lowers` or never drains, else everything.

        Returns: how much it is to give back.
        """
        if i.drains and not i.lowers:
            i._answer_by = now + self._pace.reclaim_time
            self._reclaiming = with_item(self._reclaiming, i)
            self._ask(i)
            return i.credit - 1
        self._take_back(i, count, now)
        return count

    def _starves_at(self) -> float | None:
        """When it is time to look for credit that lies idle, or with who has more than a share."""
        if self._short_since is None or not (self.demand or self.spare):
            return None
        at = max(self._short_since + self._pace.starve_time, self._next_check)
        if self._lines.rich or not self._looked:
            return at
        recent = self._lines.recent
        return max(at, first(recent)._placed_at + self._lines.idle_time) if recent else None

    # What an input goes through.

    def _sank(self, i: Input) -> None:
        self._lines.sank(i)
        if not i.credit and (i.draining or not i.drains):
            self._answered(i)

    def _start_round(self, now: float) -> None:
        self._round_asked = False
        for i in self._lines.inputs:
            if i.credit:
                self._round = with_item(self._round, i)
                if i.drains and not i.draining:
                    self._ask(i)
        if self._round:
            self._round_until = now + self._pace.drain_time

    def _ask(self, i: Input) -> None:
        """Asks it to drain; until it has, it gets no more."""
        i.draining = True
        lines = self._lines
        lines.rich = without_item(lines.rich, i)
        lines.renewing = without_item(lines.renewing, i)
        self._changed = with_item(self._changed, i)

    def _answered(self, i: Input) -> None:
        """It has drained, or is no longer waited for."""
        if i.draining:
            i.draining = False
            self._floored = False
        self._reclaiming = without_item(self._reclaiming, i)
        self._round = without_item(self._round, i)
        if not self._round:
            self._round_until = None

    def _settle_down(self, i: Input) -> None:
        """It did not answer, and keeps what it holds: back to where inputs like it are."""
        i.draining = False
        if i._idle:
            self._lines.rest(i)
        self._lines.sank(i)
        self._floored = False

    def _take_back(self, i: Input, count: int, now: float) -> None:
        """Lowers its limit. What it was granted counts until it has seen that, or was given time to."""
        i._revoked += count
        self._revoked += count
        i._doubtful = i._doubtful or i._raised
        if not i._doubtful:  # else no answer can end it, and a consumer that comes and goes must not put off the end
            i._confirm_by = now + self._pace.reclaim_time
            self._lowered = with_item(without_item(self._lowered, i), i)
        if not i.firm:
            self._changed = with_item(self._changed, i)
        if i.credit <= 1:
            self._lines.rich = without_item(self._lines.rich, i)
        self._sank(i)

    def _write_off(self, i: Input) -> None:
        """It will not use what was taken back."""
        self._lowered = without_item(self._lowered, i)
        i.granted -= i._revoked
        self._granted -= i._revoked
        self._revoked -= i._revoked
        i._revoked = 0
        i._raised = i._doubtful = False

    def _spend(self, i: Input, count: int) -> None:
        granted = max(0, i.granted - count)
        revoked = granted - max(0, i.credit - count)
        self._granted += granted - i.granted
        self._revoked += revoked - i._revoked
        i.granted, i._revoked = granted, revoked
