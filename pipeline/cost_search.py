"""A search for link costs that lower the use of the busiest link: a local search, as Fortz and Thorup do it for OSPF.

Bernard Fortz, Mikkel Thorup: Internet Traffic Engineering by Optimizing OSPF Weights. INFOCOM 2000.

The search takes the busiest direction of a link and tries changes that can relieve it: a higher cost of it, or of a
link before it, until another path is as good (then both share the traffic) or better; or a lower cost of a link with
room. The best change is kept; without an improvement, some random changes are made. Of all results, with few and with
many changes, it proposes one whose changes are worth making.
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
"""The highest cost of a link; the lowest is 1."""

EVALUATIONS: Final = 4_000
"""Trials at most."""

LOOKS: Final = 200_000
"""Shortest-path computations at most, one for each router in all trials: they take most of the time on large graphs."""

WORTH: Final = 0.01
"""The improvement that each change must bring, as a share of the busiest link's use before: few changes are better than
many.
"""

GAIN: Final = 0.05
"""A share by which the most used link has to be used less; for less nothing is changed."""

_TRIED: Final = 12
"""Changes that are tried to relieve a link, before the best of them is made."""

_CAREFUL: Final = 10
"""Changes that are each the best of their candidates; of later ones the first improvement is made."""

_PRUNED: Final = 30
"""The least needed changes are taken back: one at a time while there are no more than this, else a quarter at once."""

_HOT: Final = 4
"""The busiest links that are tried before a random change."""

_SHAKEN: Final = 3
"""Random changes made at once at most."""

_PATIENCE: Final = 150
"""Trials without a new best result, after which the search continues from the best one."""

_PIECES: Final = ((0.0, 1.0), (1 / 3, 2.0), (2 / 3, 7.0), (0.9, 60.0), (1.0, 430.0), (1.1, 4500.0))
"""The slopes of a link's congestion, from each use on: 1, 3, 10, 70, 500 and 5,000."""

_SAME: Final = 1e-9
"""The relative difference up to which amounts are equal."""

Edge = tuple[str, str]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Effort:
    """The limits of the search. Args: as the constants of these names; seed: of the random numbers."""

    evaluations: int = EVALUATIONS
    looks: int = LOOKS
    worth: float = WORTH
    gain: float = GAIN
    seed: int = 0


USUAL: Final = Effort()


@dataclass(frozen=True)
class Proposal:
    """The result of the search.

    Args: changes: from -> to, and the new cost; in an order that keeps the use of links low in between. before, after:
        the use of the busiest link; between: the greatest use while the changes are made one by one. least: a lower
        bound of the busiest link's use for any costs. evaluations: trials made. is_exhausted: the search ended at its
        limits, not because no improvement was possible.
    """

    changes: Mapping[Edge, int]
    before: float
    after: float
    between: float
    least: float
    evaluations: int
    is_exhausted: bool


def capacities(network: Network, known: Mapping[Edge, float], load: Amounts) -> Amounts:
    """Return the capacity of each edge; an unknown one is the load of the busiest edge without a known capacity.

    Args: known: from -> to, and a capacity above 0, in the unit of `load`.
    """
    edges = edges_of(network)
    unknown = np.array([edge not in known for edge in edges], dtype=bool)
    most = float(load[unknown].max(initial=0.0)) or 1.0
    return np.array([known.get(edge, most) for edge in edges], dtype=np.float64)


def least(traffic: Traffic, capacity: Amounts) -> float:
    """Return a lower bound of the busiest link's use for any costs: all traffic from or to a router uses the router's
    own links.
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
    """Return the edges as from -> to."""
    routers = network.routers
    return [(routers[tail], routers[head]) for tail, head in zip(network.tails, network.heads, strict=True)]


def congestion(use: Amounts, scale: float) -> float:
    """Return the sum of all links' congestion, which grows steeply with their use. Args: scale: the use that counts as
    full.
    """
    share = use / (scale or 1.0)
    return float(sum(slope * np.maximum(share - start, 0.0).sum() for start, slope in _PIECES))


def search(traffic: Traffic, capacity: Amounts, effort: Effort = USUAL) -> Proposal:
    """Propose new costs. Args: capacity: of each edge, in the unit of the traffic."""
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
        self._before = _greatest_use(self._loads.load, self._capacity)
        self._least = least(traffic, capacity)
        #: The use that counts as full for congestion: the lowest maximum so far.
        self._scale = self._before
        self._best = self._start
        self._best_key = self._key(self._loads.load)
        #: For each number of changes, the lowest maximum and the costs.
        self._found: dict[int, tuple[float, Numbers]] = {0: (self._before, self._start)}

    def run(self) -> None:
        """Search until a limit is reached."""
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
        """Return the best result whose changes are worth making."""
        exhausted = self._best_key[0] > self._least * (1 + _SAME)
        self._prune(self._best)
        self._prune(self._worthy())
        costs = self._worthy()
        changes = {int(edge): int(costs[edge]) for edge in np.flatnonzero(costs != self._start)}
        after = self._found[len(changes)][0]
        if not changes or after > self._before * (1 - self._effort.gain):
            return Proposal({}, self._before, self._before, self._before, self._least, self._evaluations, exhausted)
        self._restore(self._start)
        ordered, between = _order_all(self._loads, self._capacity, changes)
        named = {self._edges[edge]: cost for edge, cost in ordered}
        return Proposal(named, self._before, after, between, self._least, self._evaluations, exhausted)

    # ------------------------------------------------------------------------------------------------ what can be tried

    def _relief(self, hot: int, now: tuple[float, float]) -> Trial | None:
        """Return the best of some changes that may relieve a busy edge.

        Args: hot: 0: the busiest one. now: the key of the current costs.
        """
        use = self._loads.load / self._capacity
        order = np.argsort(-use, kind="stable")
        if hot >= len(order) or use[order[hot]] <= 0:
            return None
        best: Trial | None = None
        best_key = (np.inf, np.inf)
        for edge, cost in self._sample(self._candidates(int(order[hot]), use), _TRIED):
            trial = self._try(edge, cost)
            key = self._key(trial.load)
            if _is_less(key, best_key):
                best, best_key = trial, key
            is_enough = len(self._found) > _CAREFUL and key[0] < now[0] * (1 - _SAME)
            if is_enough or self._is_exhausted():
                break
        return best

    def _shake(self) -> bool:
        """Make random changes. Returns: True if anything can be changed."""
        for _ in range(self._chance.randint(1, _SHAKEN)):
            use = self._loads.load / self._capacity
            order = np.argsort(-use, kind="stable")[: 2 * _HOT]
            candidates = list(self._candidates(int(self._chance.choice(list(order))), use))
            if not candidates:
                continue
            edge, cost = self._chance.choice(candidates)
            self._loads.accept(self._try(edge, cost))
        self._evaluations += 1  # counted, so that the search ends if nothing can be changed
        return bool(len(self._edges))

    def _candidates(self, hot: int, use: Amounts) -> Iterator[tuple[int, int]]:
        """Yield changes that may relieve an edge: an edge and its new cost."""
        loads = self._loads
        rows = loads.over(hot)
        yield from self._raised_costs(hot, rows, 6)
        carried = loads.carried(rows)
        before = [int(edge) for edge in np.flatnonzero(carried) if edge != hot]
        weights = [float(carried[edge]) for edge in before]
        for edge in dict.fromkeys(self._chance.choices(before, weights, k=4) if before else ()):
            yield from self._raised_costs(edge, rows[loads.on_path(edge)[rows]], 2)
        yield from self._lowered_costs(rows, carried, use, float(use[hot]))

    def _raised_costs(self, edge: int, rows: Numbers, count: int) -> Iterator[tuple[int, int]]:
        """Yield costs at which an edge shares some targets with the next best path, or loses them."""
        if not len(rows):
            return
        ties = self._loads.ties(edge, rows)
        found = np.unique(ties[np.isfinite(ties)]).astype(np.int64)
        costs = {int(cost) for tie in found for cost in (tie, tie + 1)}
        # If its advantage over other paths differs between targets, the edge can lose some and keep others.
        now = int(self._loads.network.costs[edge])
        possible = sorted(cost for cost in costs if now < cost <= HIGHEST)
        yield from ((edge, cost) for cost in _evenly_spread(possible, count))

    def _lowered_costs(self, rows: Numbers, carried: Amounts, use: Amounts, high: float) -> Iterator[tuple[int, int]]:
        """Yield costs at which edges with room get some or all of the traffic to these targets."""
        network, distances = self._loads.network, self._loads.distances
        through = np.unique(network.tails[np.flatnonzero(carried)])
        edges, _ = network.leaving(through)
        room = [int(edge) for edge in edges if use[edge] < 0.9 * high]
        found: list[tuple[int, int]] = []
        for edge in self._sample(room, 4 * _TRIED):
            tail, head, cost = network.tails[edge], network.heads[edge], network.costs[edge]
            ties = distances[rows, tail] - distances[rows, head]
            ties = ties[np.isfinite(ties) & (ties >= 1) & (ties <= cost)]
            costs = {int(each) for tie in np.unique(ties) for each in (tie, tie - 1) if 1 <= each < cost}
            found.extend((edge, each) for each in _evenly_spread(sorted(costs), 2))
        yield from self._sample(found, _TRIED // 2)

    def _sample(self, of: Iterable[T], count: int) -> list[T]:
        every = list(dict.fromkeys(of))
        return every if len(every) <= count else self._chance.sample(every, count)

    # --------------------------------------------------------------------------------------------------- how good it is

    def _try(self, edge: int, cost: int) -> Trial:
        self._evaluations += 1
        return self._loads.tried(edge, cost)

    def _key(self, load: Amounts) -> tuple[float, float]:
        """Return the key of a load, lower is better: the busiest edge's use, then the congestion."""
        use = load / self._capacity
        return float(use.max(initial=0.0)), congestion(use, self._scale)

    def _is_exhausted(self) -> bool:
        return self._evaluations >= self._effort.evaluations or self._loads.looked_at >= self._effort.looks

    # ------------------------------------------------------------------------------------------------ as few as will do

    def _restore(self, costs: Numbers) -> None:
        self._loads.set((int(edge), int(costs[edge])) for edge in np.flatnonzero(self._loads.network.costs != costs))

    def _note(self) -> None:
        """Remember the current costs if they are the best with so many changes."""
        costs = self._loads.costs
        count, use = int((costs != self._start).sum()), _greatest_use(self._loads.load, self._capacity)
        if count not in self._found or use < self._found[count][0]:
            self._found[count] = use, costs

    def _worthy(self) -> Numbers:
        """Return the costs with the most changes of which each is worth making."""
        worth = self._effort.worth * self._before
        _, best = min((use + worth * count, count) for count, (use, _) in self._found.items())
        return self._found[best][1]

    def _prune(self, costs: Numbers) -> None:
        """Take back the least needed changes, step by step, until none is left; see `_PRUNED`."""
        self._restore(costs)
        while changed := [int(edge) for edge in np.flatnonzero(self._loads.network.costs != self._start)]:
            trials = [self._loads.tried(edge, int(self._start[edge])) for edge in changed]
            needed = sorted((*self._key(each.load), each.edge) for each in trials)
            at_once = 1 if len(needed) <= _PRUNED else len(needed) // 4
            for _, _, edge in needed[:at_once]:
                self._loads.set([(edge, int(self._start[edge]))])
                self._note()


def arranged(traffic: Traffic, capacity: Amounts, changes: Mapping[Edge, int]) -> tuple[dict[Edge, int], float, float]:
    """Order changes so that the use of links stays low in between.

    Returns: the changes; the use of the busiest link after them; and the greatest use in between.
    """
    edges = edges_of(traffic.network)
    numbers = {edge: number for number, edge in enumerate(edges)}
    loads = Loads(traffic)
    ordered, between = _order_all(loads, capacity, {numbers[edge]: cost for edge, cost in changes.items()})
    return {edges[edge]: cost for edge, cost in ordered}, _greatest_use(loads.load, capacity), between


def _order_all(loads: Loads, capacity: Amounts, changes: Mapping[int, int]) -> tuple[list[tuple[int, int]], float]:
    """Order all changes in two ways, forwards and backwards from the end, and return the better order.

    Returns: the changes, and the greatest use in between.
    """
    before = {edge: int(loads.network.costs[edge]) for edge in changes}
    there, between = _order_greedily(loads, capacity, changes)
    back, other = _order_greedily(loads, capacity, before)
    loads.set(changes)
    order, between = (there, between) if between <= other else (back[::-1], other)
    return [(edge, changes[edge]) for edge in order], between


def _order_greedily(loads: Loads, capacity: Amounts, changes: Mapping[int, int]) -> tuple[list[int], float]:
    """Choose each time the change with the lowest use after it. Returns: the order, and the greatest use."""
    left, order, between = dict(changes), [], _greatest_use(loads.load, capacity)
    while left:
        trials = [loads.tried(edge, cost) for edge, cost in left.items()]
        trial = min(trials, key=lambda each: (_greatest_use(each.load, capacity), each.edge))
        loads.accept(trial)
        between = max(between, _greatest_use(loads.load, capacity))
        order.append(trial.edge)
        del left[trial.edge]
    return order, between


def _greatest_use(load: Amounts, capacity: Amounts) -> float:
    return float((load / capacity).max(initial=0.0))


def _is_less(one: tuple[float, float], other: tuple[float, float]) -> bool:
    if abs(one[0] - other[0]) > _SAME * max(abs(one[0]), _SAME) and one[0] != other[0]:
        return one[0] < other[0]
    return one[1] < other[1] * (1 - _SAME)


def _evenly_spread(ordered: Sequence[int], count: int) -> list[int]:
    """Return some of these numbers, including the first and the last."""
    if len(ordered) <= count:
        return list(ordered)
    return [ordered[round(at * (len(ordered) - 1) / (count - 1))] for at in range(count)]
