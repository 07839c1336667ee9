"""The load of links after a change of one cost: only targets whose paths it can change are computed again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from amqpmesh.pipeline.routing import Amounts, Flags, Network, Numbers, Shares, Traffic, hops, repaired, share


@dataclass(frozen=True, eq=False)
class Trial:
    """The effect of a new cost of one edge.

    Args: edge, cost: the change. rows: the places of the targets whose paths may change. distances: of these. shares:
        the traffic to these over edges. load: of each edge.
    """

    edge: int
    cost: int
    rows: Numbers
    distances: Amounts
    shares: Shares
    load: Amounts


class Loads:
    """A graph and its traffic, whose costs change one by one.

    Args: traffic: routed by the costs of its network, which are not modified.
    """

    def __init__(self, traffic: Traffic) -> None:
        self.targets = traffic.targets
        #: With its own costs.
        self.network: Network = replace(traffic.network, costs=traffic.network.costs.copy())
        self.load: Amounts = traffic.load.copy()
        #: Targets x routers: the costs of the paths.
        self.distances: Amounts = traffic.distances.copy()
        #: Targets computed again so far: the measure of the trials' work.
        self.looked_at = 0
        self._demand = traffic.demand
        everything = share(self.network, self.targets, self._demand, self.distances)
        # For each target: the edges that carry its traffic, and the amounts; an edge may occur several times.
        self._edges: list[Numbers] = [np.array([], np.int64)] * len(self.targets)
        self._amounts: list[Amounts] = [np.array([], np.float64)] * len(self.targets)
        self._put(np.arange(len(self.targets)), everything)

    @property
    def costs(self) -> Numbers:
        """The current cost of each edge."""
        return self.network.costs.copy()

    def over(self, edge: int) -> Numbers:
        """Return the places of the targets whose traffic uses an edge."""
        return np.array([row for row, edges in enumerate(self._edges) if (edges == edge).any()], dtype=np.int64)

    def carried(self, rows: Numbers) -> Amounts:
        """Return the traffic of each edge to some targets."""
        found = np.zeros(len(self.load))
        for row in rows:
            np.add.at(found, self._edges[row], self._amounts[row])
        return found

    def ties(self, edge: int, rows: Numbers) -> Amounts:
        """Return for each target the cost at which an edge would be as good as the next best path.

        Args: rows: targets with a cheapest path by the edge from the edge's router.
        Returns: infinite if there is no other path.
        """
        self.looked_at += len(rows)
        tail, head = self.network.tails[edge], self.network.heads[edge]
        found: Amounts = self._repaired(edge, rows)[:, tail] - self.distances[rows, head]
        return found

    def tried(self, edge: int, cost: int) -> Trial:
        """Return the effect of a new cost of an edge."""
        network, distances = self.network, self.distances
        tail, head, before = network.tails[edge], network.heads[edge], network.costs[edge]
        by_edge, finite = distances[:, head] + min(before, cost), np.isfinite(distances[:, head])
        rows = np.flatnonzero(finite & (by_edge <= distances[:, tail]))
        self.looked_at += len(rows)
        left = self._repaired(edge, rows) if cost > before else distances[rows]
        # No cheapest path to the edge's tail, and none from its head, uses the edge: these hold at any cost.
        to_tail = network.distances(np.array([tail]))[0]
        now: Amounts = np.minimum(left, to_tail + (distances[rows, head] + cost)[:, None])
        try:
            network.costs[edge] = cost
            shares = share(network, self.targets[rows], self._demand[rows], now)
        finally:
            network.costs[edge] = before
        load = self.load + np.bincount(shares.edge, weights=shares.amount, minlength=len(self.load))
        if len(rows):
            gone = np.concatenate([self._edges[row] for row in rows])
            amounts = np.concatenate([self._amounts[row] for row in rows])
            load -= np.bincount(gone, weights=amounts, minlength=len(load))
        return Trial(edge, cost, rows, now, shares, load)

    def accept(self, trial: Trial) -> None:
        """Make a trial's change. Args: trial: of the current state."""
        self.network.costs[trial.edge] = trial.cost
        self.distances[trial.rows] = trial.distances
        self._put(trial.rows, trial.shares)
        # Computed afresh: repeated additions and subtractions would leave rounding errors.
        self.load = np.zeros(len(self.load))
        if len(self.targets):
            edges, amounts = np.concatenate(self._edges), np.concatenate(self._amounts)
            self.load = np.bincount(edges, weights=amounts, minlength=len(self.load)).astype(np.float64)

    def set(self, changes: Mapping[int, int] | Iterable[tuple[int, int]]) -> None:
        """Set the costs of edges."""
        for edge, cost in dict(changes).items():
            if self.network.costs[edge] != cost:
                self.accept(self.tried(edge, cost))

    def on_path(self, edge: int) -> Flags:
        """Return for each target whether a cheapest path from the edge's tail uses the edge."""
        tail, head, cost = self.network.tails[edge], self.network.heads[edge], self.network.costs[edge]
        found: Flags = np.isfinite(self.distances[:, head]) & (
            self.distances[:, tail] == self.distances[:, head] + cost
        )
        return found

    def _repaired(self, edge: int, rows: Numbers) -> Amounts:
        """Return the costs of the paths to some targets without an edge."""
        distances = self.distances[rows]
        return repaired(self.network, distances, hops(self.network, distances), np.array([edge]))

    def _put(self, rows: Numbers, shares: Shares) -> None:
        order = np.argsort(shares.which, kind="stable")
        bounds = np.searchsorted(shares.which[order], np.arange(len(rows) + 1))
        edges, amounts = shares.edge[order], shares.amount[order]
        for at, row in enumerate(rows):
            self._edges[row] = edges[bounds[at] : bounds[at + 1]]
            self._amounts[row] = amounts[bounds[at] : bounds[at + 1]]
