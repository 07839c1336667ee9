"""`amqpmesh status [ROUTER]`: the state of a running router."""

import argparse
from typing import Any, Final

from amqpmesh.router.cli import arguments, client_peer, watching
from amqpmesh.router.cli.exit_status import EPILOG
from amqpmesh.router.cli.output.bodies import dump
from amqpmesh.router.cli.output.listing import OWN, Entities, lines
from amqpmesh.router.cli.router_state import width
from amqpmesh.router.config.edits import KINDS
from amqpmesh.router.management.service import ADDRESS

USERS: Final = "user"
"""The type of entities that a router tells to those alone who ask for it."""

_ONCE: Final = frozenset({"router", "mesh", "policy", *(each.kind for each in KINDS.values() if each.key is None)})
"""The types of which a router has one entity at most."""


def declare(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    command.description = (
        f"Show the state of a router, from its {ADDRESS}: listeners, connectors, connections, addresses, and links, "
        "with the reason why a link has no credit. In a mesh, also neighbours, routes to other routers, and lanes. "
        f"The connection and the links of {OWN} are shown, too, because the router counts them."
    )
    command.epilog = EPILOG
    watching.add_options(command)
    command.add_argument(
        "--json",
        action="store_true",
        help="print all attributes as one JSON object; times are seconds of the router's clock; own_connection is the "
        "number of this command's connection",
    )
    command.add_argument(
        "--tenants",
        action="store_true",
        help="show the limits of tenants, users and hosts, too, with what they use; --json has them always",
    )
    command.add_argument(
        "--users",
        action="store_true",
        help="show the password users of listeners, too; for those who may read or change them",
    )
    command.add_argument(
        "--suspended",
        action="store_true",
        help="show the links of clients that are away and may resume them, too; --json has them always",
    )
    command.add_argument(
        "--watch",
        metavar="S",
        type=arguments.seconds,
        nargs="?",
        const=watching.INTERVAL,
        help="show it again and again, each S seconds, until it is interrupted; a line for each with --json; "
        f"default: {watching.INTERVAL:g}",
    )
    client_peer.add_options(command, reconnect=None)
    command.set_defaults(command=status)


def status(given: argparse.Namespace) -> int:
    """Print the state of a router. Returns: 0. Raises: AmqpMeshError: there is no answer."""
    connection = client_peer.connection(given, "status")

    def shown(entities: Entities) -> list[str]:
        own = next((each["number"] for each in entities["connection"] if each["container_id"] == connection.id), None)
        if given.json:
            return [dump({**_object(entities), "own_connection": own})]
        return list(lines(entities, width(), own, tenants=given.tenants, suspended=given.suspended))

    return watching.watch(connection, given, shown, given.watch, more=(USERS,) if given.users else ())


def _object(entities: Entities) -> dict[str, Any]:
    """Return all entities by type: a list, or one object if there is never more than one of the type."""
    told: dict[str, Any] = {}
    for kind, found in entities.items():
        if kind in _ONCE:
            told[kind] = found[0] if found else None
        else:
            told[_plural(kind)] = found
    return told


def _plural(kind: str) -> str:
    if kind == "terminus":
        return "termini"
    return f"{kind}es" if kind.endswith("s") else f"{kind}s".replace("-", "_")
