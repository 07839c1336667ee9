"""The rooms of the project and of the router, one below the other, with arrows from the imports."""

import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import grimp
import networkx

from docs.drawing.svg import Picture, Point, border

WIDTH, HEIGHT, ROW = 168.0, 34.0, 62.0
PAPER = 760.0
#: The horizontal offsets of rooms that are alone in their rows. Rows take turns, so that arrows pass beside rooms.
COLUMNS = (0.0, -185.0, 185.0)

PROJECT = (
    ("router/cli",),
    ("pipeline",),
    ("topology/simulation",),
    ("router/runtime",),
    ("router/client",),
    ("router/io",),
    ("router",),
    ("topology", "policies"),
    ("router/amqp",),
    ("router/kernel",),
)
"""The rooms of the project from top to bottom. `router` stands for all rooms of the router that have no row."""


class Rooms(NamedTuple):
    """Rooms in rows from top to bottom, and their arrows: a room imports another."""

    rows: tuple[tuple[str, ...], ...]
    arrows: frozenset[tuple[str, str]]

    @property
    def upward(self) -> frozenset[tuple[str, str]]:
        """The arrows that do not lead to a lower row."""
        rank = {room: row for row, rooms in enumerate(self.rows) for room in rooms}
        return frozenset(arrow for arrow in self.arrows if rank[arrow[0]] >= rank[arrow[1]])

    def __str__(self) -> str:
        count = sum(map(len, self.rows))
        return f"{count} rooms, {len(self.arrows)} arrows, {len(self.upward)} of them upward"


def project() -> Rooms:
    """Return the rooms of the project."""
    known = sorted((room for row in PROJECT for room in row), key=len, reverse=True)

    def room_of(module: str) -> str:
        path = module.replace(".", "/").removeprefix("amqpmesh").removeprefix("/") + "/"
        return next((room for room in known if path.startswith(f"{room}/")), "")

    return Rooms(PROJECT, _arrows(room_of))


def router() -> Rooms:
    """Return the rooms of the router, in the layers of its import contract."""
    settings = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    layers = next(each["layers"] for each in contracts if each["type"] == "layers")

    def room_of(module: str) -> str:
        path = module.split(".")
        return path[2] if path[:2] == ["amqpmesh", "router"] and len(path) > 2 else ""

    present = {room_of(module) for module in _imports().modules}
    rows = (tuple(room for each in layer.split("|") if (room := each.strip(" ()")) in present) for layer in layers)
    return Rooms(tuple(row for row in rows if row), _arrows(room_of))


@cache
def _imports() -> grimp.ImportGraph:
    """Return the imports of all modules, including those under TYPE_CHECKING. They are read once for both pictures."""
    return grimp.build_graph("amqpmesh")


def _arrows(room_of: Callable[[str], str]) -> frozenset[tuple[str, str]]:
    """Return the imports between rooms, also those under TYPE_CHECKING. A module without a room has the room ""."""
    graph = _imports()
    pairs = (
        (room_of(module), room_of(target))
        for module in graph.modules
        for target in graph.find_modules_directly_imported_by(module)
    )
    return frozenset((source, target) for source, target in pairs if source != target and source and target)


def _places(rows: Sequence[Sequence[str]]) -> Iterator[tuple[str, Point]]:
    columns = cycle(COLUMNS)
    for number, row in enumerate(rows):
        y = 86 + ROW * number
        if len(row) == 1:
            yield row[0], Point(PAPER / 2 + next(columns), y)
        else:
            for position, room in enumerate(row):
                yield room, Point(PAPER * (position + 0.5) / len(row), y)


def drawn(rooms: Rooms, title: str) -> str:
    """Return the picture as SVG."""
    picture = Picture(PAPER, 86 + ROW * len(rooms.rows) - 20, title)
    places = dict(_places(rooms.rows))
    # A downward arrow that follows from other arrows is left out, to keep the picture readable.
    downward = networkx.transitive_reduction(networkx.DiGraph(rooms.arrows - rooms.upward))
    for style, arrows in (("plain thin", downward.edges), ("error", rooms.upward)):
        for source, target in sorted(arrows):
            start, end = places[source], places[target]
            picture.arrow([border(start, end, WIDTH, HEIGHT), border(end, start, WIDTH, HEIGHT)], style)
    for room, place in places.items():
        picture.box(place, WIDTH, HEIGHT)
        picture.text(place, room, "name code")
    picture.text(Point(18, 24), f"{rooms}", "left")
    picture.text(Point(18, 44), "an arrow is an import; arrows that follow from others are left out", "faint left")
    return str(picture)
