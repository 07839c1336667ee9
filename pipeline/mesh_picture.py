"""The picture of the mesh: its routers, and the load of its links. It takes plain data and returns a figure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, Final, NamedTuple

import networkx as nx
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from amqpmesh.pipeline.drawing import BLUES, INK, name, nothing, octets, picture, sheet

LABELLED: Final = 60
"""Routers up to which all are named; of more, only those at the busiest links."""

BUSIEST: Final = 6
"""Links labelled with their load."""

DRAWN: Final = 1_000
"""Routers drawn at most, those with most traffic; the picture has the number of the others."""


class Carried(NamedTuple):
    """The load of a link in one direction, in octets."""

    router: str
    peer: str
    octets: float


@picture
def mesh(routers: Sequence[str], links: Sequence[Carried]) -> Figure:
    """Draw the routers and their links: the wider and darker a link, the more it carried.

    Args: links: both directions of each.
    """
    carried: dict[tuple[str, str], float] = {}
    through = dict.fromkeys(routers, 0.0)
    for each in links:
        pair = (min(each.router, each.peer), max(each.router, each.peer))
        carried[pair] = carried.get(pair, 0.0) + each.octets
        for end in pair:
            through[end] = through.get(end, 0.0) + each.octets
    if not through:
        return nothing()
    drawn = sorted(sorted(through, key=lambda each: (-through[each], each))[:DRAWN])
    undrawn = len(through) - len(drawn)
    shown = {*drawn}
    ordered = sorted((pair for pair in carried if shown.issuperset(pair)), key=lambda pair: (carried[pair], pair))
    busiest = [pair for pair in ordered[::-1][:BUSIEST] if carried[pair] > 0]
    places = _places(drawn, ordered)
    figure = sheet(1.5 if len(drawn) == 1 else 3.0 + 3.6 * min(1.0, len(drawn) / 40))
    axes = figure.subplots()
    axes.set_axis_off()
    axes.margins(0.1, 0.12)
    most = max(carried.values(), default=0.0)
    scale = Normalize(0, most or 1.0)
    few = len(drawn) <= LABELLED
    for pair in ordered:
        (x1, y1), (x2, y2) = (places[each] for each in pair)
        share = carried[pair] / (most or 1.0)
        color = BLUES(scale(carried[pair])) if carried[pair] else "#D5D5D5"
        axes.plot([x1, x2], [y1, y2], color=color, linewidth=(1.0 if few else 0.5) + 6 * share, zorder=1,
                  solid_capstyle="round")  # fmt: skip
    xs, ys = ([places[each][axis] for each in drawn] for axis in (0, 1))
    axes.scatter(xs, ys, s=90 if few else 14, color="white" if few else INK, edgecolors=INK, linewidths=1.2, zorder=2)
    _label(axes, drawn if few else [each for pair in busiest for each in pair], busiest, carried, places)
    if most:
        bar = figure.colorbar(ScalarMappable(scale, BLUES), ax=axes, shrink=0.6, aspect=30, pad=0.01)
        bar.set_label("payload carried, both directions")
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: octets(value)))
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=0)
    if undrawn:
        axes.set_title(f"{undrawn:,} routers that carry less are not drawn")
    return figure


def _places(routers: Sequence[str], links: Sequence[tuple[str, str]]) -> Mapping[str, tuple[float, float]]:
    """Return the position of each router, the same each time."""
    graph = nx.Graph()
    graph.add_nodes_from(routers)
    graph.add_edges_from(sorted(links))
    if len(graph) == 1:
        return dict.fromkeys(graph, (0.0, 0.0))
    if len(graph) > LABELLED:
        return _as_floats(_spring_layout(graph))
    is_planar, embedding = nx.check_planarity(graph)
    begins = [nx.circular_layout([*nx.dfs_preorder_nodes(graph)]) if nx.is_connected(graph) else _spring_layout(graph)]
    if is_planar:
        flat = nx.combinatorial_embedding_to_pos(embedding)
        begins.append(nx.rescale_layout_dict({each: np.array(at, float) for each, at in flat.items()}))
    # This layout is clearer, needs a connected graph, and takes time in the cube of its size. Its start decides which
    # links cross; if every start has crossings, the layout without any is good enough.
    found = [nx.kamada_kawai_layout(graph, pos=each) for each in begins] if nx.is_connected(graph) else []
    found += begins[-1:] if found and is_planar else begins
    return _as_floats(min(found, key=lambda places: _crossings(graph.edges, places)) if is_planar else found[0])


def _spring_layout(graph: nx.Graph) -> Mapping[str, Any]:
    places: Mapping[str, Any] = nx.spring_layout(
        graph, seed=1, k=1.6 / math.sqrt(len(graph)), iterations=100, method="force"
    )
    return places


def _as_floats(places: Mapping[str, Any]) -> Mapping[str, tuple[float, float]]:
    return {each: (float(x), float(y)) for each, (x, y) in places.items()}


def _crossings(links: Iterable[tuple[str, str]], places: Mapping[str, Any]) -> int:
    """Return how many pairs of links cross each other."""

    def side(one: str, other: str, third: str) -> float:
        """Return a number whose sign is the side of the line through two routers that the third one lies on."""
        (ax, ay), (bx, by), (cx, cy) = (places[each] for each in (one, other, third))
        turn: float = (bx - ax) * (cy - ay) - (by - ay) * (cx - ax)
        return turn

    return sum(
        side(a, b, c) * side(a, b, d) < 0 and side(c, d, a) * side(c, d, b) < 0
        for (a, b), (c, d) in combinations(links, 2)
        if len({a, b, c, d}) == 4
    )


def _label(
    axes: Axes,
    routers: Sequence[str],
    links: Sequence[tuple[str, str]],
    carried: Mapping[tuple[str, str], float],
    places: Mapping[str, tuple[float, float]],
) -> None:
    """Write the names of routers and the loads of links, without overlaps."""
    middle = np.mean(list(places.values()), axis=0)
    around = np.ptp(list(places.values()), axis=0)
    near = np.maximum(around, 1e-9) * (0.05, 0.035)
    taken: list[Any] = []

    def is_free(at: tuple[float, float]) -> bool:
        free = not any((np.abs(np.subtract(at, each)) < near).all() for each in taken)
        if free:
            taken.append(at)
        return free

    for each in dict.fromkeys(routers):
        if len(places) > LABELLED and not is_free(places[each]):
            continue
        above = places[each][1] >= middle[1]
        axes.annotate(
            name(each, 20), places[each], (0, 8 if above else -8), textcoords="offset points", ha="center",
            va="bottom" if above else "top", fontsize=8, fontweight="bold", zorder=4,
            bbox={"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.7},
        )  # fmt: skip
    for pair in links:
        (x1, y1), (x2, y2) = (places[each] for each in pair)
        at = (x1 + x2) / 2, (y1 + y2) / 2
        if is_free(at):
            axes.annotate(
                octets(carried[pair]), at, ha="center", va="center", fontsize=7.5, zorder=3,
                bbox={"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.85},
            )  # fmt: skip
