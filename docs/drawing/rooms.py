"""The rooms, and which of them looks into which; `tests/docs/test_pictures.py` compares it with the imports."""

from typing import NamedTuple

from docs.drawing.svg import Picture, Point, border

WIDTH, HEIGHT = 212.0, 58.0


class Room(NamedTuple):
    """A room, and where it stands."""

    name: str
    words: str
    x: float
    y: float


ROOMS = {
    room.name: room
    for room in (
        Room("router.cli", "the command line", 250, 76),
        Room("pipeline", "jobs on what was recorded", 540, 76),
        Room("router.io", "sockets, TLS, clocks, Trio", 250, 176),
        Room("router", "the relay, without I/O", 250, 276),
        Room("router.amqp", "the protocol, without I/O", 130, 376),
        Room("policies", "small pure decisions", 370, 376),
        Room("topology", "the routing graph", 610, 376),
        Room("router.kernel", "once per transfer", 130, 476),
    )
}

#: From whom to whom: who may import, directly or through those in between.
ARROWS = (
    ("router.cli", "router.io"),
    ("router.cli", "pipeline"),
    ("pipeline", "router.io"),
    ("router.io", "router"),
    ("router", "router.amqp"),
    ("router", "policies"),
    ("router", "topology"),
    ("router.amqp", "router.kernel"),
)


def drawn() -> str:
    """As SVG."""
    title = "The rooms: the command line above the edge, the relay below it, the protocol at the bottom"
    picture = Picture(736, 530, title)
    picture.box(Point(368, 425), 716, 190, style="frame", radius=12)
    picture.text(Point(716, 504), "no socket, no clock, no thread", "faint right")
    for source, target in ARROWS:
        start, end = (Point(ROOMS[name].x, ROOMS[name].y) for name in (source, target))
        path = [start, *((Point(end.x, start.y),) if abs(end.x - start.x) > 300 and end.y != start.y else ()), end]
        path[0] = border(start, path[1], WIDTH, HEIGHT)
        path[-1] = border(end, path[-2], WIDTH, HEIGHT)
        picture.arrow(path, "plain")
    for room in ROOMS.values():
        picture.box(Point(room.x, room.y), WIDTH, HEIGHT)
        picture.text(Point(room.x, room.y - 10), room.name.replace(".", "/"), "name code")
        picture.text(Point(room.x, room.y + 12), room.words, "faint")
    picture.text(Point(18, 26), "an arrow: may import, as may whoever stands above", "faint left")
    return str(picture)
