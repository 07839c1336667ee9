"""The state of a router, read from its `$management` page by page, once or again and again."""

import os
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from amqpmesh.router.amqp.codec.types import Value
from amqpmesh.router.amqp.errors import LinkDetachedError
from amqpmesh.router.cli.exit_status import RefusedError
from amqpmesh.router.cli.output.listing import Entities, Entity
from amqpmesh.router.cli.process.interruptible import PeerTimeout
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

Read = Callable[[], Awaitable[Entities]]
"""A function that reads all entities of a router, by type without its prefix."""


def width() -> int:
    """Return the columns of a line: in pipes and files names are not cut, unless `COLUMNS` is set."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS"):
        return shutil.get_terminal_size((WIDTH, 0)).columns
    return sys.maxsize


@asynccontextmanager
async def state_of(
    connection: Connection, router: str | None, patience: PeerTimeout, more: Sequence[str] = ()
) -> AsyncIterator[Read]:
    """Connect, and give a function that reads the state of a router; its time limit is that of `patience`.

    Args: router: anywhere in the mesh; None: the connected router. more: as of `all_pages`.
    Raises: AmqpMeshError: there is no connection, no path, or no answer.
    """
    who = "the router" if router is None else router

    def wait() -> None:
        patience.wait("an answer" if router is None else f"an answer of {router}")

    wait()
    # No other task of this thread waits while an answer is decoded.
    requester = connection.requester(ADDRESS if router is None else f"{ADDRESS}@{router}", max_message_size=MAX_ANSWER)
    async with connection:
        if router is not None:
            await look_for_path(connection, router)
        async with requester as management:

            async def answered(request: Message) -> Message:
                answer = await management.request(request)
                patience.progress()  # there may be many pages
                return answer

            async def read() -> Entities:
                wait()
                try:
                    return await all_pages(answered, more)
                except OutcomeError as error:
                    raise RefusedError(f"{who} cannot be reached: the request was {error}") from None
                finally:
                    patience.rest()

            yield read


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


async def all_pages(
    request: Callable[[Message], Awaitable[Message]], more: Sequence[str] = ()
) -> dict[str, list[Entity]]:
    """Read all pages. Entities that come or go meanwhile shift later ones: an entity that is sent twice counts once.

    A user without the right to read the type `router` gets none of that type.

    Args: more: types, without prefix, that are told to those alone who name them.
    Raises: RefusedError: as `entities_of`, or the pages describe more than one router.
    """
    found: dict[str, dict[str, Entity]] = {
        each.kind: {} for each in TYPES.values() if not each.by_type or each.kind in more
    }
    for wanted in (None, *more):
        offset = 0
        while True:
            page = await request(query(wanted, offset=offset, count=PAGE))
            before = sum(map(len, found.values()))
            for kind, entities in entities_of(page).items():
                if kind in found:
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
