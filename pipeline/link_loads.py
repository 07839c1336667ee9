"""What other costs make of the load: of one change only those targets are looked at whose ways it can change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from amqpmesh.pipeline.routing import Amounts, Flags, Network, Numbers, Shares, Traffic, hops, repaired, share


@dataclass(frozen=True, eq=False)
class Trial:
    """What another cost of one edge would make of it.

    Args: edge, cost: what was tried. rows: the places of the targets whose ways it may change. distances: of these.
        shares: what goes over edges to these. load: of each edge.
    """

    edge: int
    cost: int
    rows: Numbers
    distances: Amounts
    shares: Shares
    load: Amounts


class Loads:
    """A graph and what goes over it, whose costs change one by one.

    Args: traffic: as it goes by the costs of its network, which are left as they are.
    """

    def __init__(self, traffic: Traffic) -> None:
        self.targets = traffic.targets
        #: With costs of its own.
        self.network: Network = replace(traffic.network, costs=traffic.network.costs.copy())
        self.load: Amounts = traffic.load.copy()
        #: Targets x routers: what the way costs.
        self.distances: Amounts = traffic.distances.copy()
        #: How many targets were looked at anew: what trials take grows with that.
        self.looked_at = 0
        self._demand = traffic.demand
        everything = share(self.network, self.targets, self._demand, self.distances)
        # Of each target: the edges by which something goes there, and how much; an edge may be there several times.
        self._edges: list[Numbers] = [np.array([], np.int64)] * len(self.targets)
        self._amounts: list[Amounts] = [np.array([], np.float64)] * len(self.targets)
        self._put(np.arange(len(self.targets)), everything)

    @property
    def costs(self) -> Numbers:
        """Of each edge, now."""
        return self.network.costs.copy()

    def over(self, edge: int) -> Numbers:
        """The places of the targets to which something goes over an edge."""
        return np.array([row for row, edges in enumerate(self._edges) if (edges == edge).any()], dtype=np.int64)

    def carried(self, rows: Numbers) -> Amounts:
        """What each edge carries to some targets."""
        found = np.zeros(len(self.load))
        for row in rows:
            np.add.at(found, self._edges[row], self._amounts[row])
        return found

    def ties(self, edge: int, rows: Numbers) -> Amounts:
        """What the edge would have to cost to be just as good as the next best way, for each target.

        Args: rows: those that a cheapest way of the edge's router leads to by the edge.
        Returns: infinite where there is no other way.
        """
        self.looked_at += len(rows)
        tail, head = self.network.tails[edge], self.network.heads[edge]
        found: Amounts = self._repaired(edge, rows)[:, tail] - self.distances[rows, head]
        return found

    def tried(self, edge: int, cost: int) -> Trial:
        """What another cost of an edge would make of it."""
        network, distances = self.network, self.distances
        tail, head, before = network.tails[edge], network.heads[edge], network.costs[edge]
        by_edge, finite = distances[:, head] + min(before, cost), np.isfinite(distances[:, head])
        rows = np.flatnonzero(finite & (by_edge <= distances[:, tail]))
        self.looked_at += len(rows)
        left = self._repaired(edge, rows) if cost > before else distances[rows]
        # No cheapest way to the edge's tail, and none from its head, goes over the edge: so these hold at any cost.
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
        """Let it be so. Args: trial: of how it is now."""
        self.network.costs[trial.edge] = trial.cost
        self.distances[trial.rows] = trial.distances
        self._put(trial.rows, trial.shares)
        # Not the trial's: what was added and taken away often would leave something behind.
        self.load = np.zeros(len(self.load))
        if len(self.targets):
            edges, amounts = np.concatenate(self._edges), np.concatenate(self._amounts)
            self.load = np.bincount(edges, weights=amounts, minlength=len(self.load)).astype(np.float64)

    def set(self, changes: Mapping[int, int] | Iterable[tuple[int, int]]) -> None:
        """Let edges have these costs."""
        for edge, cost in dict(changes).items():
            if self.network.costs[edge] != cost:
                self.accept(self.tried(edge, cost))

    def on_path(self, edge: int) -> Flags:
        """Of each target, whether a cheapest way of the edge's tail leads there by the edge."""
        tail, head, cost = self.network.tails[edge], self.network.heads[edge], self.network.costs[edge]
        found: Flags = np.isfinite(self.distances[:, head]) & (
            self.distances[:, tail] == self.distances[:, head] + cost
        )
        return found

    def _repaired(self, edge: int, rows: Numbers) -> Amounts:
        """What ways to some targets cost without an edge."""
        distances = self.distances[rows]
        return repaired(self.network, distances, hops(self.network, distances), np.array([edge]))

    def _put(self, rows: Numbers, shares: Shares) -> None:
        order = np.argsort(shares.which, kind="stable")
        bounds = np.searchsorted(shares.which[order], np.arange(len(rows) + 1))
        edges, amounts = shares.edge[order], shares.amount[order]
        for at, row in enumerate(rows):
            self._edges[row] = edges[bounds[at] : bounds[at + 1]]
            self._amounts[row] = amounts[bounds[at] : bounds[at + 1]]
