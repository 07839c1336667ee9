"""The state machines of connections, sessions and links, drawn from their tables (`router/amqp/states.py`).

The tables say what is drawn, and this module says where. A state or a step without a place is an error.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeVar

from amqpmesh.router.amqp.states import (
    CONNECTION,
    LINK,
    SESSION,
    ConnectionState,
    LinkEndpointState,
    SessionState,
    Step,
)
from docs.drawing.svg import Picture, Point, border, middle

COLUMN, ROW = 178.0, 84.0
MARGIN = Point(84.0, 44.0)
WIDTH, HEIGHT = 118.0, 34.0
LEGEND = 46.0
LOOP = 64.0

Cell = tuple[float, float]
Route = Sequence[Cell]
State = TypeVar("State", bound=Enum)


@dataclass(frozen=True, kw_only=True)
class Chart(Generic[State]):
    """A table, and the places of its states: column and row, in cells."""

    name: str
    title: str
    table: Mapping[State, Mapping[Step, State]]
    places: Mapping[State, Cell]
    #: The state of rest: it is drawn twice, at the start and, at `again`, at the end.
    rest: State | None = None
    again: Cell | None = None
    #: Corners of the arrows that do not go straight.
    corners: Mapping[tuple[State, State], Route] = field(default_factory=dict)
    #: The places of labels that are not in the middle of their arrows.
    labels: Mapping[tuple[State, State], Cell] = field(default_factory=dict)


C, S, L = ConnectionState, SessionState, LinkEndpointState

CHARTS: tuple[Chart[Any], ...] = (
    Chart(
        name="connection",
        title="The states of a connection, from START to END (§2.4.6)",
        table=CONNECTION,
        places={
            C.START: (1, 0),
            C.HDR_RCVD: (0, 1),
            C.HDR_SENT: (2, 1),
            C.OPEN_PIPE: (3.15, 1),
            C.OC_PIPE: (4.65, 1),
            C.HDR_EXCH: (1, 2),
            C.OPEN_RCVD: (0, 3),
            C.OPEN_SENT: (2, 3),
            C.CLOSE_PIPE: (4.65, 3),
            C.OPENED: (1, 4),
            C.DISCARDING: (3.15, 4),
            C.CLOSE_RCVD: (0, 5),
            C.CLOSE_SENT: (2, 5),
            C.END: (1, 6),
        },
        corners={(C.CLOSE_PIPE, C.CLOSE_SENT): [(4.65, 5)], (C.DISCARDING, C.END): [(3.15, 6)]},
        labels={(C.CLOSE_PIPE, C.CLOSE_SENT): (4.65, 4), (C.OPENED, C.DISCARDING): (1.75, 4)},
    ),
    Chart(
        name="session",
        title="The states of a session, from UNMAPPED to UNMAPPED (§2.5.5)",
        table=SESSION,
        places={
            S.UNMAPPED: (1, 0),
            S.BEGIN_RCVD: (0, 1),
            S.BEGIN_SENT: (2, 1),
            S.MAPPED: (1, 2),
            S.DISCARDING: (3, 2),
            S.END_RCVD: (0, 3),
            S.END_SENT: (2, 3),
        },
        rest=S.UNMAPPED,
        again=(1, 4),
        corners={(S.DISCARDING, S.UNMAPPED): [(3, 4)]},
        labels={(S.BEGIN_SENT, S.END_SENT): (2, 1.62), (S.MAPPED, S.DISCARDING): (1.62, 2)},
    ),
    Chart(
        name="link",
        title="The states of a link endpoint, from DETACHED to DETACHED (§2.6.2)",
        table=LINK,
        places={
            L.DETACHED: (1, 0),
            L.ATTACH_RCVD: (0, 1),
            L.ATTACH_SENT: (2, 1),
            L.ATTACHED: (1, 2),
            L.DISCARDING: (3, 2),
            L.DETACH_RCVD: (0, 3),
            L.DETACH_SENT: (2, 3),
        },
        rest=L.DETACHED,
        again=(1, 4),
        corners={(L.DISCARDING, L.DETACHED): [(3, 4)]},
        labels={(L.ATTACH_SENT, L.DETACH_SENT): (2, 1.62), (L.ATTACHED, L.DISCARDING): (1.62, 2)},
    ),
)


def drawn(chart: Chart[Any]) -> str:
    """Return a chart as SVG. Raises: ValueError: a state of the table has no place, or a place has no state."""
    if chart.places.keys() != chart.table.keys():
        odd = sorted(state.name for state in chart.places.keys() ^ chart.table.keys())
        raise ValueError(f"{chart.name}: in the table or in the drawing only: {odd}")
    arrows = _arrows(chart.table)
    if unknown := (chart.corners.keys() | chart.labels.keys()) - arrows.keys():
        raise ValueError(f"{chart.name}: the table has no step {unknown}")
    cells = [*chart.places.values(), *([chart.again] if chart.again else [])]
    # Everything moves to the right where an arrow loops on the left side.
    left = LOOP if any(start is end and not _outward(chart, start) for start, end in arrows) else 0.0
    edges = [
        _at(cell).x + WIDTH / 2 + (LOOP if (state, state) in arrows else 0) for state, cell in chart.places.items()
    ]
    width = left + max(edges) + MARGIN.x - WIDTH / 2
    bottom = _at((0, max(cell[1] for cell in cells))).y + MARGIN.y
    picture = Picture(width, bottom + LEGEND, chart.title, left=left)
    words = []
    for (start, end), steps in arrows.items():
        style = _style(steps)
        here = _at(chart.places[start])
        if start is end:
            at = _loop(picture, here, style, 1 if _outward(chart, start) else -1)
        else:
            there = _at(chart.again if end is chart.rest and chart.again else chart.places[end])
            path = [here, *(_at(corner) for corner in chart.corners.get((start, end), ())), there]
            path[0] = border(here, path[1], WIDTH, HEIGHT)
            path[-1] = border(there, path[-2], WIDTH, HEIGHT)
            picture.arrow(path, style)
            place = chart.labels.get((start, end))
            at = _at(place) if place else middle(path)
        words.append((at, steps, style))
    for at, steps, style in words:  # above all lines
        picture.label(at, _words(steps), style)
    for state, cell in [*chart.places.items(), *([(chart.rest, chart.again)] if chart.rest and chart.again else [])]:
        ends = state is chart.rest or not chart.table[state] or cell == (1, 0)
        picture.box(_at(cell), WIDTH, HEIGHT, style="box rest" if ends else "box")
        picture.text(_at(cell), state.name.replace("_", " "), "name")
    _legend(picture, width / 2 - left, bottom + LEGEND / 2 - 8)
    return str(picture)


def _outward(chart: Chart[Any], state: Enum) -> bool:
    """Tell whether the right side of a state is its outer side."""
    return chart.places[state][0] > 1


def _at(cell: Cell) -> Point:
    return Point(MARGIN.x + cell[0] * COLUMN, MARGIN.y + cell[1] * ROW)


def _arrows(table: Mapping[Enum, Mapping[Step, Enum]]) -> dict[tuple[Enum, Enum], list[Step]]:
    """Return the steps between each two states: they share an arrow."""
    arrows: dict[tuple[Enum, Enum], list[Step]] = {}
    for start, steps in table.items():
        for step, end in steps.items():
            arrows.setdefault((start, end), []).append(step)
    return arrows


def _style(steps: Sequence[Step]) -> str:
    if steps == [Step.SENT_ERROR]:
        return "error"
    return "theirs" if steps[0].name.startswith("RECEIVED_") else "ours"


def _words(steps: Sequence[Step]) -> str:
    names = [step.name.partition("_")[2].lower() for step in steps]
    return f"{'R' if steps[0].name.startswith('RECEIVED_') else 'S'}: {' or '.join(names)}"


def _loop(picture: Picture, here: Point, style: str, outward: int) -> Point:
    """Draw an arrow from a state to itself, on its outer side. Returns: the place of its label."""
    x = here.x + outward * WIDTH / 2
    far = x + outward * 46
    picture.loop([Point(x, here.y - 9), Point(far, here.y - 24), Point(far, here.y + 24), Point(x, here.y + 9)], style)
    return Point(x + outward * 48, here.y - 24)


def _legend(picture: Picture, x: float, y: float) -> None:
    for offset, style, text in (
        (-210, "ours", "S: this end sends"),
        (-30, "theirs", "R: it receives"),
        (132, "error", "it ends with an error"),
    ):
        picture.arrow([Point(x + offset, y), Point(x + offset + 30, y)], style)
        picture.text(Point(x + offset + 38, y), text, "faint left")
