"""All pictures of the pages."""

from collections.abc import Iterator

from docs.drawing import deliveries, patterns, relay, rooms, states


def all_of_them() -> Iterator[tuple[str, str]]:
    """Yield the file name and the SVG of each picture. Raises: ValueError: a table has a state without a place."""
    for chart in states.CHARTS:
        yield f"{chart.name}.svg", states.drawn(chart)
    for exchange in deliveries.EXCHANGES:
        yield f"{exchange.name}.svg", deliveries.drawn(exchange)
    yield (
        "rooms.svg",
        rooms.drawn(rooms.project(), "The rooms of the project: the command line above, the kernel below"),
    )
    yield "router.svg", rooms.drawn(rooms.router(), "The rooms of the router: each imports those below it")
    yield "relay.svg", relay.drawn()
    yield "patterns.svg", patterns.drawn()
