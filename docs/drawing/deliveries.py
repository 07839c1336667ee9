"""Pictures of a delivery: the frames that sender, router and receiver exchange, from top to bottom.

`tests/docs/test_pictures.py` plays the exchanges with a router and compares the frames.
"""

from typing import NamedTuple

from docs.drawing.svg import Picture, Point

SENDER, ROUTER, RECEIVER = "sender", "router", "receiver"
LIVES = {SENDER: 90.0, ROUTER: 390.0, RECEIVER: 690.0}
WIDTH, TOP, STEP = 780.0, 88.0, 58.0


class Message(NamedTuple):
    """A frame from one party to another, with its important fields."""

    source: str
    target: str
    frame: str
    text: str


class Exchange(NamedTuple):
    """The frames of a picture, in their order."""

    name: str
    title: str
    frames: tuple[Message, ...]


FIRST = (
    Message(RECEIVER, ROUTER, "flow", "link-credit 10"),
    Message(ROUTER, SENDER, "flow", "link-credit 10: shared among the senders"),
    Message(SENDER, ROUTER, "transfer", "delivery-id 0"),
    Message(ROUTER, RECEIVER, "transfer", "delivery-id 0: the router's own number"),
)

EXCHANGES = (
    Exchange(
        "delivery",
        "A delivery: credit goes back to the sender, the message forward, the outcome back",
        (
            *FIRST,
            Message(RECEIVER, ROUTER, "disposition", "accepted, settled"),
            Message(ROUTER, SENDER, "disposition", "accepted, settled"),
        ),
    ),
    Exchange(
        "delivery-second",
        "A delivery of rcv-settle-mode second: the receiver settles last",
        (
            *FIRST,
            Message(RECEIVER, ROUTER, "disposition", "accepted"),
            Message(ROUTER, SENDER, "disposition", "accepted"),
            Message(SENDER, ROUTER, "disposition", "accepted, settled: outcome received"),
            Message(ROUTER, RECEIVER, "disposition", "accepted, settled: forget the delivery"),
        ),
    ),
)


def drawn(exchange: Exchange) -> str:
    """Return the picture of an exchange as SVG."""
    height = TOP + STEP * len(exchange.frames) - 4
    picture = Picture(WIDTH, height, exchange.title)
    for name, x in LIVES.items():
        picture.line([Point(x, 52), Point(x, height - 16)], "life")
        picture.box(Point(x, 34), 110, 36)
        picture.text(Point(x, 34), name, "name")
    for position, message in enumerate(exchange.frames):
        y = TOP + STEP * position + 4
        start, end = LIVES[message.source], LIVES[message.target]
        gap = 4 if end > start else -4
        style = "ours" if message.target == RECEIVER or message.source == SENDER else "theirs"
        picture.arrow([Point(start + gap, y), Point(end - gap, y)], style)
        centre = (start + end) / 2
        picture.text(Point(centre, y - 13), message.frame, f"label {style} code")
        picture.text(Point(centre, y + 14), message.text, "faint")
    return str(picture)
