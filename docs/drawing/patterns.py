"""The patterns of traffic, drawn from the committed figures of the benchmarks: our router beside another one."""

from math import log10

from benchmarks.figures import committed
from benchmarks.patterns import PART, names, said
from docs.drawing.svg import Picture, Point

TITLE = "CPU of a router for each message that leaves it, in each pattern of traffic"
ROW = 19.0
LABELS, SCALE, MARGIN = 410.0, 420.0, 24.0
TOP = 62.0
DOT = 9.0
LEAST, MOST = 0.1, 10_000.0


def drawn() -> str:
    """Return the picture as SVG: a row for each pattern, a dot for each router, on a logarithmic scale."""
    results = committed()["results"][PART]
    rows = names()
    bottom = TOP + ROW * len(rows)
    picture = Picture(LABELS + SCALE + 3 * MARGIN, bottom + MARGIN / 2, TITLE)
    _legend(picture)
    decade = LEAST
    while decade <= MOST:
        x = _at(decade)
        picture.line([Point(x, TOP - ROW / 2), Point(x, bottom - ROW / 2)], "life")
        picture.text(Point(x, TOP - ROW), f"{decade:,g}", "faint")
        decade *= 10
    for place, name in enumerate(rows):
        y = TOP + ROW * place
        picture.text(Point(LABELS, y), name, "faint right")
        found = results[name]
        ours = found["router"]["cpu_us"]
        points = [(ours, "ours")]
        if "other" in found:
            # As the table has it: scaled by what the forwarder took in either run.
            scale = found["forwarder"]["cpu_us"] / found["other"]["forwarder_us"]
            points.append((found["other"]["cpu_us"] * scale, "theirs"))
            picture.line([Point(_at(us), y) for us, _ in points], "line")
        for us, style in points:
            picture.box(Point(_at(us), y), DOT, DOT, style=f"head {style}", radius=DOT / 2)
        picture.text(Point(_at(max(points)[0]) + DOT, y), said(max(points)[0]), "faint left")
        if len(points) > 1:
            picture.text(Point(_at(min(points)[0]) - DOT, y), said(min(points)[0]), "faint right")
    return str(picture)


def _legend(picture: Picture) -> None:
    for x, style, text in ((LABELS + MARGIN, "ours", "amqpmesh"), (LABELS + 5.5 * MARGIN, "theirs", "skrouterd")):
        picture.box(Point(x, MARGIN - 4), DOT, DOT, style=f"head {style}", radius=DOT / 2)
        picture.text(Point(x + DOT, MARGIN - 4), text, "left")
    picture.text(Point(LABELS + 10 * MARGIN, MARGIN - 4), "microseconds, on a logarithmic scale", "faint left")


def _at(us: float) -> float:
    """Return the place of a figure on the scale."""
    return LABELS + MARGIN + SCALE * (log10(us) - log10(LEAST)) / (log10(MOST) - log10(LEAST))
