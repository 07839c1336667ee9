"""The picture of the first page: message, outcome and credit through a router."""

from docs.drawing.svg import Picture, Point


def drawn() -> str:
    """Return the picture as SVG."""
    picture = Picture(720, 190, "A sender, a router and a receiver: messages go forward, outcomes and credit come back")
    client = "any AMQP 1.0 client"
    for x, name, words in ((95, "sender", client), (360, "router", "keeps nothing"), (625, "receiver", client)):
        picture.box(Point(x, 95), 136, 130)
        picture.text(Point(x, 86), name, "name")
        picture.text(Point(x, 108), words, "faint")
    for left, right in ((160, 295), (425, 560)):
        centre = (left + right) / 2
        for y, text, style in ((55, "message", "ours"), (95, "outcome", "theirs"), (135, "credit", "theirs")):
            ends = [Point(left + 8, y + 8), Point(right - 8, y + 8)]
            picture.arrow(ends if style == "ours" else ends[::-1], style)
            picture.text(Point(centre, y - 6), text, f"label {style}")
    return str(picture)
