"""Costs of links by which the most used link is used less: a local search, as Fortz and Thorup do it for OSPF.

Bernard Fortz, Mikkel Thorup: Internet Traffic Engineering by Optimizing OSPF Weights. INFOCOM 2000.

It looks at the most used direction of a link, and tries what can take something off it: to raise its cost, or that of a
link before it, until another way is as good (then both share it) or better; to lower that of a link that has room. What
helps most is kept; where nothing helps, some changes are made by chance. Of all that it comes by, with few changes and
with many, that is proposed whose changes are worth making.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from amqpmesh.pipeline.link_loads import Loads, Trial
from amqpmesh.pipeline.routing import Amounts, Network, Numbers, Traffic

HIGHEST: Final = 65_535
"""What a link can cost at most; the least is 1."""

EVALUATIONS: Final = 4_000
"""Costs that are tried at most."""

LOOKS: Final = 200_000
"""Routers to which ways are found anew at most, of all trials together: on large graphs that is what takes time."""

WORTH: Final = 0.01
"""Each change has to bring so much, of what the most used link is used before: few changes are worth more than many."""

GAIN: Final = 0.05
"""A share by which the most used link has to be used less; for less nothing is changed."""

_TRIED: Final = 12
"""Changes that are tried to relieve a link, before the best of them is made."""

_CAREFUL: Final = 10
"""Changes of which each is the best of those that are tried; of later ones the first that helps is made."""

_PRUNED: Final = 30
"""Changes of which one after the other is taken back; of more, a quarter at once."""

_HOT: Final = 4
"""Links that are looked at, the most used first, before chance has a turn."""

_SHAKEN: Final = 3
"""Changes that chance makes at once, at most."""

_PATIENCE: Final = 150
"""Trials without a better result than the best, after which the search goes on from that."""

_PIECES: Final = ((0.0, 1.0), (1 / 3, 2.0), (2 / 3, 7.0), (0.9, 60.0), (1.0, 430.0), (1.1, 4500.0))
"""From what use on a link's congestion grows by how much more: slopes 1, 3, 10, 70, 500 and 5,000."""

_SAME: Final = 1e-9
"""Amounts that differ by no greater a share are the same."""

Edge = tuple[str, str]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is done. Args: as the constants of these names; seed: of all chance."""

    evaluations: int = EVALUATIONS
    looks: int = LOOKS
    worth: float = WORTH
    gain: float = GAIN
    seed: int = 0


USUAL: Final = Effort()


@dataclass(frozen=True)
class Proposal:
    """What the search has found.

    Args: changes: from -> to, and what it is to cost; in an order in which the links are used little on the way.
        before, after: the use of the most used link; between: of all that there is while one change after the other is
        made. least: what the most used link is used at least, whatever links cost. evaluations: costs that were tried.
        is_exhausted: the search ended since it may do no more, and not since nothing better is possible.
    """

    changes: Mapping[Edge, int]
    before: float
    after: float
    between: float
    least: float
    evaluations: int
    is_exhausted: bool


def capacities(network: Network, known: Mapping[Edge, float], load: Amounts) -> Amounts:
    """What each edge can carry. Where that is unknown, as much as the most used one of these carries.

    Args: known: from -> to, and how much, more than 0, of the same unit as `load`.
    """
    edges = edges_of(network)
    unknown = np.array([edge not in known for edge in edges], dtype=bool)
    most = float(load[unknown].max(initial=0.0)) or 1.0
    return np.array([known.get(edge, most) for edge in edges], dtype=np.float64)


def least(traffic: Traffic, capacity: Amounts) -> float:
    """A use that the most used link has at least, whatever links cost: what begins or ends at a router has to leave it,
    or come to it, by its own links.
    """
    network, demand = traffic.network, traffic.demand * np.isfinite(traffic.distances)
    leaving, coming = demand.sum(axis=0), np.zeros(len(network))
    coming[traffic.targets] = demand.sum(axis=1)
    bounds = [0.0]
    for amount, ends in ((leaving, network.tails), (coming, network.heads)):
        can = np.bincount(ends, weights=capacity, minlength=len(network))
        bounds.extend(amount[can > 0] / can[can > 0])
    return float(max(bounds))


def edges_of(network: Network) -> list[Edge]:
    """From -> to, of each edge."""
    routers = network.routers
    return [(routers[tail], routers[head]) for tail, head in zip(network.tails, network.heads, strict=True)]


def congestion(use: Amounts, scale: float) -> float:
    """The sum of what links suffer, each the more the more it is used. Args: scale: the use that counts as full."""
    share = use / (scale or 1.0)
    return float(sum(slope * np.maximum(share - start, 0.0).sum() for start, slope in _PIECES))


def search(traffic: Traffic, capacity: Amounts, effort: Effort = USUAL) -> Proposal:
    """Propose other costs. Args: capacity: of each edge, of the same unit as the traffic."""
    found = _Search(traffic, capacity, effort)
    found.run()
    return found.proposal()


class _Search:
    def __init__(self, traffic: Traffic, capacity: Amounts, effort: Effort) -> None:
        self._capacity = capacity
        self._effort = effort
        self._chance = random.Random(effort.seed)  # noqa: S311 - nothing is guessed
        self._loads = Loads(traffic)
        self._start = self._loads.costs
        self._edges = edges_of(traffic.network)
        self._evaluations = 0
        self._before = _most(self._loads.load, self._capacity)
        self._least = least(traffic, capacity)
        #: What counts as full where congestion is measured: the least maximum so far.
        self._scale = self._before
        self._best = self._start
        self._best_key = self._key(self._loads.load)
        #: With each number of changes, the least maximum, and the costs.
        self._found: dict[int, tuple[float, Numbers]] = {0: (self._before, self._start)}

    def run(self) -> None:
        """Look for better costs as long as it may."""
        now, waited, hot = self._key(self._loads.load), self._evaluations, 0
        while not self._is_exhausted() and self._best_key[0] > self._least * (1 + _SAME):
            trial = self._relief(hot, now)
            key = None if trial is None else self._key(trial.load)
            if trial is not None and key is not None and _is_less(key, now):
                self._loads.accept(trial)
                now, hot = self._key(self._loads.load), 0
                self._note()
                if _is_less(now, self._best_key):
                    self._best, waited = self._loads.costs, self._evaluations
                    self._scale = min(self._scale, now[0])
                    now = self._best_key = self._key(self._loads.load)
                continue
            hot += 1
            if hot < _HOT:
                continue
            if self._evaluations - waited > _PATIENCE:
                self._restore(self._best)
                waited = self._evaluations
            if not self._shake():
                break
            now, hot = self._key(self._loads.load), 0

    def proposal(self) -> Proposal:
        """The best that was found, whose changes are worth making."""
        exhausted = self._best_key[0] > self._least * (1 + _SAME)
        self._prune(self._best)
        self._prune(self._worthy())
        costs = self._worthy()
        changes = {int(edge): int(costs[edge]) for edge in np.flatnonzero(costs != self._start)}
        after = self._found[len(changes)][0]
        if not changes or after > self._before * (1 - self._effort.gain):
            return Proposal({}, self._before, self._before, self._before, self._least, self._evaluations, exhausted)
        self._restore(self._start)
        ordered, between = _in_order(self._loads, self._capacity, changes)
        named = {self._edges[edge]: cost for edge, cost in ordered}
        return Proposal(named, self._before, after, between, self._least, self._evaluations, exhausted)

    # ------------------------------------------------------------------------------------------------ what can be tried

    def _relief(self, hot: int, now: tuple[float, float]) -> Trial | None:
        """The best of some changes that may take something off a much used edge.

        Args: hot: 0: the most used one. now: the key of what is so.
        """
        use = self._loads.load / self._capacity
        order = np.argsort(-use, kind="stable")
        if hot >= len(order) or use[order[hot]] <= 0:
            return None
        best: Trial | None = None
        best_key = (np.inf, np.inf)
        for edge, cost in self._some(self._candidates(int(order[hot]), use), _TRIED):
            trial = self._try(edge, cost)
            key = self._key(trial.load)
            if _is_less(key, best_key):
                best, best_key = trial, key
            is_enough = len(self._found) > _CAREFUL and key[0] < now[0] * (1 - _SAME)
            if is_enough or self._is_exhausted():
                break
        return best

    def _shake(self) -> bool:
        """Change something by chance. Returns: whether there is anything to change."""
        for _ in range(self._chance.randint(1, _SHAKEN)):
            use = self._loads.load / self._capacity
            order = np.argsort(-use, kind="stable")[: 2 * _HOT]
            candidates = list(self._candidates(int(self._chance.choice(list(order))), use))
            if not candidates:
                continue
            edge, cost = self._chance.choice(candidates)
            self._loads.accept(self._try(edge, cost))
        self._evaluations += 1  # so that it ends where nothing can be changed
        return bool(len(self._edges))

    def _candidates(self, hot: int, use: Amounts) -> Iterator[tuple[int, int]]:
        """Changes that may take something off an edge: the edge, and what it would cost."""
        loads = self._loads
        rows = loads.over(hot)
        yield from self._raised(hot, rows, 6)
        carried = loads.carried(rows)
        before = [int(edge) for edge in np.flatnonzero(carried) if edge != hot]
        weights = [float(carried[edge]) for edge in before]
        for edge in dict.fromkeys(self._chance.choices(before, weights, k=4) if before else ()):
            yield from self._raised(edge, rows[loads.on_path(edge)[rows]], 2)
        yield from self._lowered(rows, carried, use, float(use[hot]))

    def _raised(self, edge: int, rows: Numbers, count: int) -> Iterator[tuple[int, int]]:
        """Costs at which an edge shares with the next best way, or leaves all to it, to some targets."""
        if not len(rows):
            return
        ties = self._loads.ties(edge, rows)
        found = np.unique(ties[np.isfinite(ties)]).astype(np.int64)
        costs = {int(cost) for tie in found for cost in (tie, tie + 1)}
        # To what is cheaper than other ways by different amounts the edge may leave some, and keep some.
        now = int(self._loads.network.costs[edge])
        possible = sorted(cost for cost in costs if now < cost <= HIGHEST)
        yield from ((edge, cost) for cost in _spread(possible, count))

    def _lowered(self, rows: Numbers, carried: Amounts, use: Amounts, high: float) -> Iterator[tuple[int, int]]:
        """Costs at which edges that have room get some of what goes to these targets, or all."""
        network, distances = self._loads.network, self._loads.distances
        through = np.unique(network.tails[np.flatnonzero(carried)])
        edges, _ = network.leaving(through)
        room = [int(edge) for edge in edges if use[edge] < 0.9 * high]
        found: list[tuple[int, int]] = []
        for edge in self._some(room, 4 * _TRIED):
            tail, head, cost = network.tails[edge], network.heads[edge], network.costs[edge]
            ties = distances[rows, tail] - distances[rows, head]
            ties = ties[np.isfinite(ties) & (ties >= 1) & (ties <= cost)]
            costs = {int(each) for tie in np.unique(ties) for each in (tie, tie - 1) if 1 <= each < cost}
            found.extend((edge, each) for each in _spread(sorted(costs), 2))
        yield from self._some(found, _TRIED // 2)

    def _some(self, of: Iterable[T], count: int) -> list[T]:
        every = list(dict.fromkeys(of))
        return every if len(every) <= count else self._chance.sample(every, count)

    # --------------------------------------------------------------------------------------------------- how good it is

    def _try(self, edge: int, cost: int) -> Trial:
        self._evaluations += 1
        return self._loads.tried(edge, cost)

    def _key(self, load: Amounts) -> tuple[float, float]:
        """The less the better: the most used edge, then what all suffer."""
        use = load / self._capacity
        return float(use.max(initial=0.0)), congestion(use, self._scale)

    def _is_exhausted(self) -> bool:
        return self._evaluations >= self._effort.evaluations or self._loads.looked_at >= self._effort.looks

    # ------------------------------------------------------------------------------------------------ as few as will do

    def _restore(self, costs: Numbers) -> None:
        self._loads.set((int(edge), int(costs[edge])) for edge in np.flatnonzero(self._loads.network.costs != costs))

    def _note(self) -> None:
        """Remember what is so now, if it is the best with so many changes."""
        costs = self._loads.costs
        count, use = int((costs != self._start).sum()), _most(self._loads.load, self._capacity)
        if count not in self._found or use < self._found[count][0]:
            self._found[count] = use, costs

    def _worthy(self) -> Numbers:
        """The costs of which each change brings what it has to."""
        worth = self._effort.worth * self._before
        _, best = min((use + worth * count, count) for count, (use, _) in self._found.items())
        return self._found[best][1]

    def _prune(self, costs: Numbers) -> None:
        """Take back one change after the other, each time the one that is needed least."""
        self._restore(costs)
        while changed := [int(edge) for edge in np.flatnonzero(self._loads.network.costs != self._start)]:
            trials = [self._loads.tried(edge, int(self._start[edge])) for edge in changed]
            needed = sorted((*self._key(each.load), each.edge) for each in trials)
            at_once = 1 if len(needed) <= _PRUNED else len(needed) // 4
            for _, _, edge in needed[:at_once]:
                self._loads.set([(edge, int(self._start[edge]))])
                self._note()


def arranged(traffic: Traffic, capacity: Amounts, changes: Mapping[Edge, int]) -> tuple[dict[Edge, int], float, float]:
    """Changes in an order in which links are used little on the way.

    Returns: these; the use of the most used link with all of them; and the greatest that there is on the way.
    """
    edges = edges_of(traffic.network)
    numbers = {edge: number for number, edge in enumerate(edges)}
    loads = Loads(traffic)
    ordered, between = _in_order(loads, capacity, {numbers[edge]: cost for edge, cost in changes.items()})
    return {edges[edge]: cost for edge, cost in ordered}, _most(loads.load, capacity), between


def _in_order(loads: Loads, capacity: Amounts, changes: Mapping[int, int]) -> tuple[list[tuple[int, int]], float]:
    """The better of two: made one after the other, or found by taking back one after the other. All are made then.

    Returns: the changes, and the greatest use on the way.
    """
    before = {edge: int(loads.network.costs[edge]) for edge in changes}
    there, between = _one_by_one(loads, capacity, changes)
    back, other = _one_by_one(loads, capacity, before)
    loads.set(changes)
    order, between = (there, between) if between <= other else (back[::-1], other)
    return [(edge, changes[edge]) for edge in order], between


def _one_by_one(loads: Loads, capacity: Amounts, changes: Mapping[int, int]) -> tuple[list[int], float]:
    """Each time the change after which the links are used least; and the greatest use."""
    left, order, between = dict(changes), [], _most(loads.load, capacity)
    while left:
        trials = [loads.tried(edge, cost) for edge, cost in left.items()]
        trial = min(trials, key=lambda each: (_most(each.load, capacity), each.edge))
        loads.accept(trial)
        between = max(between, _most(loads.load, capacity))
        order.append(trial.edge)
        del left[trial.edge]
    return order, between


def _most(load: Amounts, capacity: Amounts) -> float:
    return float((load / capacity).max(initial=0.0))


def _is_less(one: tuple[float, float], other: tuple[float, float]) -> bool:
    if abs(one[0] - other[0]) > _SAME * max(abs(one[0]), _SAME) and one[0] != other[0]:
        return one[0] < other[0]
    return one[1] < other[1] * (1 - _SAME)


def _spread(ordered: Sequence[int], count: int) -> list[int]:
    """Some of these numbers, the first and the last among them."""
    if len(ordered) <= count:
        return list(ordered)
    return [ordered[round(at * (len(ordered) - 1) / (count - 1))] for at in range(count)]
