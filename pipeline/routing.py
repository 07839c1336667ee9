"""Routing of traffic on a graph as routers share it, and its rerouting after failures.

A router sends equal shares of the traffic to another router over all next hops on its cheapest paths. Lanes choose one
next hop each; with many links and destinations the sum is the same. Costs are whole numbers from 1, different in each
direction.
Everything is by destination: a failure concerns only destinations whose traffic used the failed element.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.sparse import csc_matrix, csr_matrix
from scipy.sparse.csgraph import dijkstra

Numbers = npt.NDArray[np.int64]
Amounts = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Network:
    """A graph. Args: routers: their ids. tails, heads: of each edge, places in `routers`; sorted. costs: of
    each edge.
    """

    routers: tuple[str, ...]
    tails: Numbers
    heads: Numbers
    costs: Numbers

    @staticmethod
    def of(edges: Mapping[tuple[str, str], int], routers: Iterable[str] = ()) -> Network:
        """Args: edges: from -> to, and the cost. routers: including those without edges."""
        ids = tuple(sorted({*routers, *(router for edge in edges for router in edge)}))
        place = {router: at for at, router in enumerate(ids)}
        ordered = sorted(edges)
        return Network(
            ids,
            np.array([place[tail] for tail, _ in ordered], dtype=np.int64),
            np.array([place[head] for _, head in ordered], dtype=np.int64),
            np.array([edges[edge] for edge in ordered], dtype=np.int64),
        )

    def __len__(self) -> int:
        return len(self.routers)

    @cached_property
    def place(self) -> Mapping[str, int]:
        """The place of each router in `routers`."""
        return {router: at for at, router in enumerate(self.routers)}

    @cached_property
    def first(self) -> Numbers:
        """The first edge of each router, since edges are sorted by their tails; and one more, the number of edges."""
        return np.searchsorted(self.tails, np.arange(len(self) + 1))

    @cached_property
    def _edges_by_head(self) -> tuple[Numbers, Numbers]:
        """The edges sorted by their heads, and the first one of each router."""
        order = np.argsort(self.heads, kind="stable")
        return order, np.searchsorted(self.heads[order], np.arange(len(self) + 1))

    def leaving(self, routers: Numbers) -> tuple[Numbers, Numbers]:
        """Return the edges that begin at some routers, and for each the place of its router in `routers`."""
        return _ranges(self.first, routers)

    def entering(self, routers: Numbers) -> tuple[Numbers, Numbers]:
        """Return the edges that end at some routers, as `leaving`."""
        order, first = self._edges_by_head
        found, which = _ranges(first, routers)
        return order[found], which

    def distances(self, targets: Numbers) -> Amounts:
        """Return the cost from each router to each target: targets x routers; infinite: there is no path."""
        reverse = csr_matrix((self.costs.astype(np.float64), (self.heads, self.tails)), shape=(len(self),) * 2)
        found: Amounts = dijkstra(reverse, indices=targets)
        return found

    def links(self) -> list[tuple[str, str]]:
        """Return pairs of routers with an edge between them, sorted, each once."""
        pairs = {tuple(sorted((self.routers[a], self.routers[b]))) for a, b in zip(self.tails, self.heads, strict=True)}
        return sorted((one, other) for one, other in pairs)

    def edges_between(self, one: str, other: str) -> Numbers:
        """Return the edges between two routers, in both directions."""
        a, b = self.place[one], self.place[other]
        either = ((self.tails == a) & (self.heads == b)) | ((self.tails == b) & (self.heads == a))
        return np.flatnonzero(either)

    def edges_at(self, router: str) -> Numbers:
        """Return the edges that begin or end at a router."""
        at = self.place[router]
        return np.flatnonzero((self.tails == at) | (self.heads == at))


def _ranges(first: Numbers, routers: Numbers) -> tuple[Numbers, Numbers]:
    """Return the places of all edges of some routers, and for each edge the place of its router in `routers`.

    Args: first: the place of the first edge of each router, and the number of edges.
    """
    begin, count = first[routers], first[routers + 1] - first[routers]
    end = np.cumsum(count)
    total = int(end[-1]) if len(end) else 0
    return np.repeat(begin - end + count, count) + np.arange(total), np.repeat(np.arange(len(routers)), count)


@dataclass(frozen=True, eq=False)
class Shares:
    """The traffic over edges to some targets.

    Args: which, edge, amount: pairs of a target, as its place among them, and an edge, with the amount of traffic. A
        pair may occur several times.
    """

    which: Numbers
    edge: Numbers
    amount: Amounts


def share(
    network: Network, targets: Numbers, demand: Amounts, distances: Amounts, there: Flags | None = None
) -> Shares:
    """Route traffic to each target; traffic without a path stays where it is.

    Args: demand: targets x routers, the amounts from each router to each target. distances: of the same. there: for
        each edge, True if it exists; None: all exist.
    """
    routers = len(network)
    nearness = distances.ravel()
    places = np.arange(len(targets)) * routers
    pairs, edges, amounts = [], [], []
    here: Amounts = demand.ravel() * np.isfinite(nearness)
    here[places + targets] = 0.0  # arrived
    at = np.flatnonzero(here)
    # Each turn moves all traffic by one hop. No path has more hops than there are routers.
    while len(at):
        amount = here[at]
        router = at % routers
        edge, pair = network.leaving(router)
        to = (at - router)[pair] + network.heads[edge]
        # An edge is on a cheapest path if the distance falls by exactly its cost.
        on_path = nearness[at][pair] == nearness[to] + network.costs[edge]
        if there is not None:
            on_path &= there[edge]
        pair, edge, to = pair[on_path], edge[on_path], to[on_path]
        moved = (amount / np.bincount(pair, minlength=len(at)))[pair]
        pairs.append(at[pair] // routers)
        edges.append(edge)
        amounts.append(moved)
        here = np.bincount(to, weights=moved, minlength=len(nearness)).astype(np.float64)
        here[places + targets] = 0.0
        at = np.flatnonzero(here)
    if not pairs:
        return Shares(np.array([], np.int64), np.array([], np.int64), np.array([], np.float64))
    return Shares(np.concatenate(pairs), np.concatenate(edges), np.concatenate(amounts))


def hops(network: Network, distances: Amounts) -> Numbers:
    """Return the number of next hops on cheapest paths, for each target and router: targets x routers."""
    found = np.zeros(distances.shape, dtype=np.int64)
    for row, near in enumerate(distances):
        on_path = (near[network.tails] == near[network.heads] + network.costs) & np.isfinite(near[network.heads])
        found[row] = np.bincount(network.tails[on_path], minlength=len(network))
    return found


def repaired(network: Network, distances: Amounts, ways: Numbers, gone: Numbers) -> Amounts:
    """Return the distances without some edges; only those whose next hops were all lost are computed again.

    Args: distances: targets x routers, with those edges. ways: the result of `hops` for them. gone: the edges.
    """
    routers = len(network)
    far = distances.flatten()
    left = ways.flatten()
    there = np.ones(len(network.costs), dtype=bool)
    there[gone] = False
    rows = np.arange(len(distances))[:, None] * routers
    tails, heads = rows + network.tails[gone], rows + network.heads[gone]
    nodes = tails[(far[tails] == far[heads] + network.costs[gone]) & np.isfinite(far[heads])]
    lost = []
    while len(nodes):
        nodes, count = np.unique(nodes, return_counts=True)
        left[nodes] -= count
        nodes = nodes[left[nodes] == 0]
        lost.append(nodes)
        edge, which = network.entering(nodes % routers)
        behind = (nodes - nodes % routers)[which] + network.tails[edge]
        nodes = behind[there[edge] & (far[behind] == far[nodes][which] + network.costs[edge])]
    if lost:
        nodes = np.concatenate(lost)
        far[nodes] = np.inf
        edge, which = network.leaving(nodes % routers)
        which, edge = which[there[edge]], edge[there[edge]]
        ahead, costs = (nodes - nodes % routers)[which] + network.heads[edge], network.costs[edge]
        # Each turn extends the paths by one hop.
        while True:
            best = np.full(len(nodes), np.inf)
            np.minimum.at(best, which, far[ahead] + costs)
            if not (best < far[nodes]).any():
                break
            far[nodes] = best
    return far.reshape(distances.shape)


class Traffic:
    """Traffic between routers on a graph, and the edges that it uses.

    Args: flows: from, to, and amount. A flow from or to a router that the graph does not have is ignored.
    """

    def __init__(self, network: Network, flows: Sequence[tuple[str, str, float]]) -> None:
        self.network = network
        place = network.place
        known = [(place[a], place[b], amount) for a, b, amount in flows if a in place and b in place and a != b]
        #: The destinations, and the traffic from each router to each.
        self.targets = np.array(sorted({to for _, to, _ in known}), dtype=np.int64)
        row = {int(target): at for at, target in enumerate(self.targets)}
        self.demand = np.zeros((len(self.targets), len(network)))
        for begin, to, amount in known:
            self.demand[row[to], begin] += amount
        #: Targets x routers: the cost of the path, and the number of its next hops.
        self.distances = network.distances(self.targets)
        self._ways = hops(network, self.distances)
        shares = share(network, self.targets, self.demand, self.distances)
        self._amounts = csr_matrix(
            (shares.amount, (shares.which, shares.edge)), shape=(len(self.targets), len(network.costs))
        )
        self._by_edge = csc_matrix(self._amounts)
        #: The load of each edge.
        self.load: Amounts = np.asarray(self._amounts.sum(axis=0)).ravel()

    def touched(self, edges: Numbers) -> Numbers:
        """Return the places in `targets` of those whose traffic uses some edges."""
        rows = [self._by_edge.indices[self._by_edge.indptr[e] : self._by_edge.indptr[e + 1]] for e in edges]
        return np.unique(np.concatenate(rows)) if rows else np.array([], dtype=np.int64)

    def without(self, edges: Numbers, routers: Numbers) -> tuple[Numbers, Amounts, Amounts]:
        """Return the effect of failing edges and routers.

        Args: edges: the failing ones, including all edges of the failing routers.
        Returns: the places in `targets` whose paths may have changed; the costs of the paths to them from each router;
            and the load of each edge.
        """
        network = self.network
        rows = np.union1d(self.touched(edges), np.flatnonzero(np.isin(self.targets, routers)))
        targets = self.targets[rows]
        stand = ~np.isin(targets, routers)
        distances = np.full((len(rows), len(network)), np.inf)
        distances[stand] = repaired(network, self.distances[rows[stand]], self._ways[rows[stand]], edges)
        demand = self.demand[rows]
        demand[:, routers] = 0.0
        there = np.ones(len(network.costs), dtype=bool)
        there[edges] = False
        now = share(network, targets, demand, distances, there)
        load: Amounts = self.load + np.bincount(now.edge, weights=now.amount, minlength=len(self.load))
        for row in rows:
            begin, end = self._amounts.indptr[row], self._amounts.indptr[row + 1]
            load[self._amounts.indices[begin:end]] -= self._amounts.data[begin:end]
        load[edges] = 0.0
        return rows, distances, load
