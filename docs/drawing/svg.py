"""The shapes of the pictures, as SVG: boxes, arrows and texts.

A picture has its own background, so that it can be read on any page. The background is dark if the reader prefers dark
pages.
"""

from collections.abc import Sequence
from html import escape
from itertools import pairwise
from math import hypot
from typing import NamedTuple

STYLE = """
svg { --paper: #ffffff; --edge: #d9dee5; --ink: #1d2733; --faint: #5b6878; --fill: #eef3f9; --stroke: #8fa3b8;
  --ours: #0a5fc2; --theirs: #a8500a; --error: #b5202c; }
@media (prefers-color-scheme: dark) {
  svg { --paper: #14181d; --edge: #2c343d; --ink: #e4eaf0; --faint: #9aa8b6; --fill: #222b35; --stroke: #5c7086;
    --ours: #6cb2ff; --theirs: #f0a35e; --error: #ff7b82; } }
text { font: 13px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: var(--ink); text-anchor: middle; }
.paper { fill: var(--paper); stroke: var(--edge); }
.box { fill: var(--fill); stroke: var(--stroke); stroke-width: 1.4; }
.rest { fill: var(--paper); stroke-width: 2.6; }
.frame { fill: none; stroke: var(--stroke); stroke-dasharray: 2 4; }
.name { font-weight: 600; }
.code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 12px; }
.faint { fill: var(--faint); font-size: 12px; }
.left { text-anchor: start; }
.right { text-anchor: end; }
.line { fill: none; stroke: var(--faint); stroke-width: 1.6; }
.life { stroke: var(--stroke); stroke-width: 1.4; stroke-dasharray: 3 4; }
.ours { stroke: var(--ours); } .theirs { stroke: var(--theirs); }
.error { stroke: var(--error); stroke-dasharray: 6 3; }
.plain { stroke: var(--faint); }
.thin { stroke-width: 0.9; }
.head { stroke: none; fill: var(--faint); } .head.ours { fill: var(--ours); } .head.theirs { fill: var(--theirs); }
.head.error { fill: var(--error); }
.label { font-size: 12px; } .label.ours { fill: var(--ours); stroke: none; }
.label.theirs { fill: var(--theirs); stroke: none; } .label.error { fill: var(--error); stroke: none; }
.behind { fill: var(--paper); }
"""

HEAD = 8.0
"""Length of an arrow's head, in the picture's units."""

LETTER = 6.4
"""The approximate width of a letter in a label. The reader's system chooses the font."""


class Point(NamedTuple):
    """A place in a picture: to the right, and down."""

    x: float
    y: float


class Picture:
    """A picture: shapes, in the order in which they are drawn."""

    def __init__(self, width: float, height: float, title: str, *, left: float = 0.0) -> None:
        """Args: width, height: of the background. left: how far it reaches to the left of 0.

        title: a description for readers who cannot see the picture.
        """
        view = f"{_number(0.0 - left)} 0 {_number(width)} {_number(height)}"
        self._open = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{view}" '
            f'width="{_number(width)}" height="{_number(height)}" role="img">\n'
            f"<title>{escape(title)}</title>\n<style>{STYLE}</style>"
        )
        self._shapes: list[str] = []
        self.box(Point(width / 2 - left, height / 2), width - 1, height - 1, style="paper", radius=10)

    def box(self, centre: Point, width: float, height: float, *, style: str = "box", radius: float = 8) -> None:
        """Add a rectangle with round corners."""
        x, y = centre.x - width / 2, centre.y - height / 2
        self._shapes.append(
            f'<rect class="{style}" x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" '
            f'height="{_number(height)}" rx="{_number(radius)}"/>'
        )

    def text(self, at: Point, text: str, style: str = "") -> None:
        """Add a text, with its middle at `at`."""
        kind = f' class="{style}"' if style else ""
        self._shapes.append(f'<text{kind} x="{_number(at.x)}" y="{_number(at.y + 4.5)}">{escape(text)}</text>')

    def label(self, at: Point, text: str, style: str = "") -> None:
        """Add a text on a line, with a background that hides the line."""
        self.box(at, len(text) * LETTER + 8, 16, style="behind", radius=2)
        self.text(at, text, f"label {style}".strip())

    def line(self, path: Sequence[Point], style: str = "line") -> None:
        """Add a line through points."""
        self._shapes.append(f'<path class="{style}" d="{_path(path)}"/>')

    def arrow(self, path: Sequence[Point], style: str = "") -> None:
        """Add a line through points, with a head at its end and round corners."""
        tip, before = path[-1], path[-2]
        length = hypot(tip.x - before.x, tip.y - before.y)
        along = Point((tip.x - before.x) / length, (tip.y - before.y) / length)
        base = Point(tip.x - along.x * HEAD, tip.y - along.y * HEAD)
        across = Point(-along.y * HEAD * 0.45, along.x * HEAD * 0.45)
        self.line([*path[:-1], base], f"line {style}".strip())
        corners = (tip, Point(base.x + across.x, base.y + across.y), Point(base.x - across.x, base.y - across.y))
        self._shapes.append(f'<path class="{f"head {style}".strip()}" d="{_path(corners)}Z"/>')

    def loop(self, path: Sequence[Point], style: str = "") -> None:
        """Add an arrow from a box back to the same box: a curve with two control points."""
        start, first, second, end = path
        base = Point(end.x + (HEAD if first.x > start.x else -HEAD), end.y)
        curve = f"M{_pair(start)}C{_pair(first)} {_pair(second)} {_pair(base)}"
        self._shapes.append(f'<path class="{f"line {style}".strip()}" d="{curve}"/>')
        corners = (end, Point(base.x, end.y - HEAD * 0.45), Point(base.x, end.y + HEAD * 0.45))
        self._shapes.append(f'<path class="{f"head {style}".strip()}" d="{_path(corners)}Z"/>')

    def __str__(self) -> str:
        return "\n".join([self._open, *self._shapes, "</svg>", ""])


def middle(path: Sequence[Point]) -> Point:
    """Return the middle of a path."""
    pieces = list(pairwise(path))
    rest = sum(hypot(b.x - a.x, b.y - a.y) for a, b in pieces) / 2
    for a, b in pieces:
        length = hypot(b.x - a.x, b.y - a.y)
        if rest <= length:
            return Point(a.x + (b.x - a.x) * rest / length, a.y + (b.y - a.y) * rest / length)
        rest -= length
    return path[-1]


def border(centre: Point, towards: Point, width: float, height: float) -> Point:
    """Return the point where a line from the centre of a box leaves the box."""
    x, y = towards.x - centre.x, towards.y - centre.y
    scale = min(width / 2 / abs(x) if x else float("inf"), height / 2 / abs(y) if y else float("inf"))
    return Point(centre.x + x * scale, centre.y + y * scale)


def _path(points: Sequence[Point], radius: float = 10) -> str:
    """Return the path through the points, with round corners. A triangle, the head of an arrow, keeps its corners."""
    if len(points) == 2 or _is_head(points):
        return "M" + "L".join(_pair(point) for point in points)
    parts = [f"M{_pair(points[0])}"]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        into, out = _towards(corner, before, radius), _towards(corner, after, radius)
        parts.append(f"L{_pair(into)}Q{_pair(corner)} {_pair(out)}")
    return "".join([*parts, f"L{_pair(points[-1])}"])


def _is_head(points: Sequence[Point]) -> bool:
    return len(points) == 3 and all(hypot(a.x - b.x, a.y - b.y) < 2 * HEAD for a, b in pairwise(points))


def _towards(start: Point, end: Point, distance: float) -> Point:
    length = hypot(end.x - start.x, end.y - start.y)
    distance = min(distance, length / 2)
    return Point(start.x + (end.x - start.x) * distance / length, start.y + (end.y - start.y) * distance / length)


def _pair(point: Point) -> str:
    return f"{_number(point.x)} {_number(point.y)}"


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
