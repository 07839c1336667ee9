"""`amqpmesh top [ROUTER]`: the busiest addresses and links of a router, live."""

import argparse
import shutil
import sys
import time
from dataclasses import asdict
from typing import Final

from amqpmesh.router.cli import arguments, client_peer, watching
from amqpmesh.router.cli.exit_status import EPILOG
from amqpmesh.router.cli.output.bodies import dump
from amqpmesh.router.cli.output.listing import OWN, Entities, Entity
from amqpmesh.router.cli.output.rates import ORDERS, Rates, lines
from amqpmesh.router.cli.router_state import width

_OTHER_LINES: Final = 8
"""Lines of a screen that are no rows: headings, blank lines, and the first line."""


def declare(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    command.description = (
        "Show the busiest addresses and links of a router: deliveries and octets a second, deliveries that wait, "
        f"deliveries that are not settled, and why receivers or senders are blocked. Those of {OWN} are left out. The "
        "first view comes after two readings. End it by an interrupt (Ctrl-C)."
    )
    command.epilog = EPILOG
    watching.add_options(command)
    command.add_argument(
        "--interval",
        metavar="S",
        type=arguments.seconds,
        default=watching.INTERVAL,
        help=f"seconds between two views; default: {watching.INTERVAL:g}",
    )
    command.add_argument("--count", metavar="N", type=arguments.count, help="end after N views")
    command.add_argument("--sort", choices=ORDERS, default=ORDERS[0], help=f"the order of rows; default: {ORDERS[0]}")
    command.add_argument(
        "--rows",
        metavar="N",
        type=arguments.count,
        help="rows of each table at most; default: as many as the terminal has, or all",
    )
    command.add_argument("--json", action="store_true", help="print a line with a JSON object for each view")
    client_peer.add_options(command, reconnect=None)
    command.set_defaults(command=top)


def top(given: argparse.Namespace) -> int:
    """Show the busiest addresses and links. Returns: 0. Raises: AmqpMeshError: there is no answer."""
    connection = client_peer.connection(given, "top")
    rates = Rates()

    def shown(entities: Entities) -> list[str] | None:
        own = {each["number"] for each in entities["connection"] if each["container_id"] == connection.id}
        links = [each for each in entities["link"] if each["connection"] not in own]
        # A user may be permitted to read other types than `router`, which tells the time.
        blank: Entity = {"id": "?", "now": time.monotonic()}
        router = next(iter(entities["router"]), blank)
        rows = rates.take({**entities, "link": links}, router["now"])
        if rows is None:
            return None
        if given.json:
            return [dump({"now": router["now"], "rows": [asdict(row) for row in rows]})]
        return [f"router {router['id']}", *lines(rows, given.sort, given.rows or _rows(), width())]

    return watching.watch(connection, given, shown, given.interval, given.count)


def _rows() -> int | None:
    """Return the rows of each table for which the terminal has room; None: there is no terminal."""
    if not sys.stdout.isatty():
        return None
    return max(1, (shutil.get_terminal_size().lines - _OTHER_LINES) // 2)
