"""`amqpmesh status [ROUTER]`: the state of a running router."""

import argparse
import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import trio

from amqpmesh.router.amqp.codec.types import Value
from amqpmesh.router.amqp.errors import LinkDetachedError
from amqpmesh.router.cli import arguments, client_peer
from amqpmesh.router.cli.exit_status import EPILOG, Exit, RefusedError
from amqpmesh.router.cli.output.bodies import dump
from amqpmesh.router.cli.output.listing import OWN, Entities, Entity, lines
from amqpmesh.router.cli.output.terminal import printable
from amqpmesh.router.cli.process.interruptible import PeerTimeout, run_interruptible
from amqpmesh.router.client.connect import Connection
from amqpmesh.router.management import queries
from amqpmesh.router.management.entities import PREFIX, TYPES
from amqpmesh.router.management.queries import AnswerError, not_understood, query
from amqpmesh.router.management.service import ADDRESS, OK, PAGE
from amqpmesh.router.message.content import Message
from amqpmesh.router.message.outcomes import OutcomeError

TIME_OUT: Final = 10.0
"""Seconds to wait for the answer by default."""

MAX_ANSWER: Final = 16 * 2**20
"""Octets of one page at most; a router's pages have a quarter of a million, unless a name is longer."""

ROUTE: Final = f"{PREFIX}route"

WIDTH: Final = 100
"""Columns of a terminal that does not report its width."""


def declare(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    command.description = (
        f"Show the state of a router, from its {ADDRESS}: listeners, connectors, connections, addresses, and links, "
        "with the reason why a link has no credit. In a mesh, also neighbours, routes to other routers, and lanes. "
        f"The connection and the links of {OWN} are shown, too, because the router counts them."
    )
    command.epilog = EPILOG
    command.add_argument(
        "router",
        metavar="ROUTER",
        type=arguments.name,
        nargs="?",
        help="the id of a router anywhere in the mesh; default: the router at --url",
    )
    command.add_argument(
        "--timeout",
        metavar="S",
        type=arguments.seconds,
        default=TIME_OUT,
        help=f"seconds to wait for each page of the answer; default: {TIME_OUT:g}",
    )
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
    client_peer.add_options(command, reconnect=None)
    command.set_defaults(command=status)


def status(given: argparse.Namespace) -> int:
    """Print the state of a router. Returns: 0. Raises: AmqpMeshError: there is no answer."""
    connection = client_peer.connection(given, "status")
    entities = trio.run(_ask, connection, given.router, given.timeout)
    own = next((each["number"] for each in entities["connection"] if each["container_id"] == connection.id), None)
    if given.json:
        print(dump({**_object(entities), "own_connection": own}))
    else:
        print("\n".join(printable(line) for line in lines(entities, width(), own, tenants=given.tenants)))
    return Exit.DONE


def width() -> int:
    """Return the columns of a line: in pipes and files names are not cut, unless `COLUMNS` is set."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS"):
        return shutil.get_terminal_size((WIDTH, 0)).columns
    return sys.maxsize


def _object(entities: Entities) -> dict[str, Any]:
    """Return all entities by type: a list, or one object if there is never more than one of the type."""
    told: dict[str, Any] = {}
    for kind, found in entities.items():
        if kind in ("router", "mesh", "policy"):
            told[kind] = found[0] if found else None
        else:
            told[f"{kind}es" if kind.endswith("s") else f"{kind}s".replace("-", "_")] = found
    return told


async def _ask(connection: Connection, router: str | None, timeout: float) -> Entities:
    """Ask a router. Args: router: anywhere in the mesh; None: the connected router."""
    address = ADDRESS if router is None else f"{ADDRESS}@{router}"
    patience = PeerTimeout(timeout)
    entities: dict[str, list[Entity]] = {}

    async def ask() -> None:
        async def answered(request: Message) -> Message:
            answer = await management.request(request)
            patience.progress()  # there may be many pages
            return answer

        patience.wait("an answer" if router is None else f"an answer of {router}")
        # No other task of this thread waits while an answer is decoded.
        requester = connection.requester(address, max_message_size=MAX_ANSWER)
        async with connection:
            if router is not None:
                await look_for_path(connection, router)
            async with requester as management:
                try:
                    entities.update(await all_pages(answered))
                except OutcomeError as error:
                    who = "the router" if router is None else router
                    raise RefusedError(f"{who} cannot be reached: the request was {error}") from None

    await run_interruptible(ask, patience)
    return entities


async def look_for_path(connection: Connection, router: str) -> None:
    """Ask the connected router for a path. Raises: RefusedError: it knows that there is none."""
    properties: dict[str, Value] = {"operation": "READ", "type": ROUTE, "name": router}
    try:
        async with connection.requester(ADDRESS) as management:
            answer = await management.request(Message(None, application_properties=properties))
    except (LinkDetachedError, OutcomeError):
        return  # the router does not answer
    if not isinstance(answer.body, Mapping) or answer.application_properties.get("statusCode") != OK:
        return  # an unknown router, or not a router of ours
    if answer.body.get("distance", 0) is None:
        raise RefusedError(f"{router} cannot be reached: there is no path")


async def all_pages(request: Callable[[Message], Awaitable[Message]]) -> dict[str, list[Entity]]:
    """Read all pages. Entities that come or go meanwhile shift later ones: an entity that is sent twice counts once.

    A user without the right to read the type `router` gets none of that type.

    Raises: RefusedError: as `entities_of`, or the pages describe more than one router.
    """
    found: dict[str, dict[str, Entity]] = {name.removeprefix(PREFIX): {} for name in TYPES}
    offset = 0
    while True:
        page = await request(query(offset=offset, count=PAGE))
        before = sum(map(len, found.values()))
        for kind, entities in entities_of(page).items():
            found[kind].update((entity["identity"], entity) for entity in entities)
        # The router decides the size of a page: the last page is the one without new entities.
        if sum(map(len, found.values())) == before:
            break
        offset += len(page.body["results"])
    if len(found["router"]) > 1:
        raise RefusedError("the router's answer describes more than one router")
    return {kind: list(entities.values()) for kind, entities in found.items()}


def entities_of(answer: Message) -> Entities:
    """Return the entities of a page, by type without its prefix; types unknown to this version are omitted.

    Raises: RefusedError: the answer is an error, or no answer to a QUERY.
    """
    found: dict[str, list[Entity]] = {name.removeprefix(PREFIX): [] for name in TYPES}
    try:
        for values in queries.entities_of(answer):
            kind = TYPES.get(values["type"])
            if kind is not None:
                found[kind.name.removeprefix(PREFIX)].append({name: values[name] for name in kind.attributes})
    except AnswerError as error:
        raise RefusedError(f"the router {error}") from None
    except (KeyError, TypeError) as error:
        raise RefusedError(f"the router {not_understood(error)}") from None
    return found
