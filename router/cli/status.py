"""`amqpmesh status [ROUTER]`: what a running router tells of itself."""

import argparse
import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import trio

from amqpmesh.router.cli import arguments, peer
from amqpmesh.router.cli.attempt import Patience, attempt
from amqpmesh.router.cli.bodies import dump
from amqpmesh.router.cli.columns import Cell, table
from amqpmesh.router.cli.exits import EPILOG, Exit, RefusedError
from amqpmesh.router.cli.terminal import printable
from amqpmesh.router.entities import PREFIX, TYPES
from amqpmesh.router.io.client.connection import Connection
from amqpmesh.router.management import ADDRESS, OK, PAGE
from amqpmesh.router.message import Message

TIME_OUT: Final = 10.0
"""Seconds to wait for the answer, if nothing else is said."""

MAX_ANSWER: Final = 16 * 2**20
"""Octets of one page; a router's have a quarter of a million, unless a name is longer than that."""

WIDTH: Final = 100
"""Columns, where no terminal says how many it has."""

OWN: Final = "this command"
"""What stands for the container of the connection that we ask by."""

Entity = Mapping[str, Any]
Entities = Mapping[str, Sequence[Entity]]


def declare(command: argparse.ArgumentParser) -> None:
    """Tell what its arguments are."""
    command.description = (
        f"Asks a router's {ADDRESS} how it stands: its listeners, connectors, connections, addresses, and links, with "
        f"the reason why one has no credit. What {OWN} itself has there is told, too, since the router counts it."
    )
    command.epilog = EPILOG
    command.add_argument(
        "router",
        metavar="ROUTER",
        type=arguments.name,
        nargs="?",
        help="the id of the router to ask; default: the one at --url",
    )
    command.add_argument(
        "--timeout",
        metavar="S",
        type=arguments.seconds,
        default=TIME_OUT,
        help=f"seconds to wait; default: {TIME_OUT:g}",
    )
    command.add_argument(
        "--json",
        action="store_true",
        help="all that it tells, as one JSON object; times are seconds of its clock, own_connection is the number of "
        "the connection that it was asked by",
    )
    peer.add_options(command, lasting=False)
    command.set_defaults(command=status)


def status(given: argparse.Namespace) -> int:
    """Returns: 0. Raises: AmqpMeshError: why there is nothing to show."""
    connection = peer.connection(given, "status")
    entities = trio.run(
        _ask, connection, ADDRESS if given.router is None else f"{ADDRESS}@{given.router}", given.timeout
    )
    own = next((each["number"] for each in entities["connection"] if each["container_id"] == connection.id), None)
    if given.json:
        told = {_plural(kind): found if kind != "router" else found[0] for kind, found in entities.items()}
        print(dump({**told, "own_connection": own}))
    else:
        width = shutil.get_terminal_size((WIDTH, 0)).columns
        print("\n".join(printable(line) for line in lines(entities, width, own)))
    return Exit.DONE


async def _ask(connection: Connection, address: str, timeout: float) -> Entities:
    patience = Patience(timeout)
    entities: dict[str, list[Entity]] = {}

    async def ask() -> None:
        patience.wait("an answer")
        # There is nobody else on this thread who would have to wait while it is decoded.
        requester = connection.requester(address, max_message_size=MAX_ANSWER)
        async with connection, requester as management:
            entities.update(await all_pages(management.request))

    await attempt(ask, patience)
    return entities


async def all_pages(request: Callable[[Message], Awaitable[Message]]) -> dict[str, list[Entity]]:
    """All that there is. What comes or goes meanwhile may move what is behind it: an entity that is told twice counts
    once. Raises: RefusedError: as `entities_of`, or no page tells of one router.
    """
    found: dict[str, dict[str, Entity]] = {name.removeprefix(PREFIX): {} for name in TYPES}
    offset = 0
    while True:
        page = await request(
            Message(
                {"attributeNames": []}, application_properties={"operation": "QUERY", "offset": offset, "count": PAGE}
            )
        )
        before = sum(map(len, found.values()))
        for kind, entities in entities_of(page).items():
            found[kind].update((entity["identity"], entity) for entity in entities)
        # How much a page holds is the router's affair: the last is the one that tells nothing new.
        if sum(map(len, found.values())) == before:
            break
        offset += len(page.body["results"])
    if len(found["router"]) != 1:
        raise RefusedError("the router's answer does not tell of one router")
    return {kind: list(entities.values()) for kind, entities in found.items()}


def entities_of(answer: Message) -> Entities:
    """What a page tells of, by type without its prefix; types that are not known here are left out.

    Raises: RefusedError: it is an error, or no answer to a QUERY.
    """
    code = answer.application_properties.get("statusCode")
    if code != OK:
        raise RefusedError(f"the router answers {code}: {answer.application_properties.get('statusDescription')}")
    found: dict[str, list[Entity]] = {name.removeprefix(PREFIX): [] for name in TYPES}
    try:
        for row in answer.body["results"]:
            values = dict(zip(answer.body["attributeNames"], row, strict=True))
            kind = TYPES.get(values["type"])
            if kind is not None:
                found[kind.name.removeprefix(PREFIX)].append({name: values[name] for name in kind.attributes})
    except (KeyError, TypeError, ValueError) as error:
        raise RefusedError(f"the router's answer is not understood: {error!r}") from None
    return found


# ------------------------------------------------------------------------------------------------------------ as text


def lines(entities: Entities, width: int, own: int | None) -> Iterator[str]:
    """As people read it. Args: width: columns that there are. own: the number of the connection that we ask by."""
    (router,) = entities["router"]
    yield from _router(router)
    containers = {each["number"]: _container(each, own) for each in entities["connection"]}
    for kind, title, columns in _TABLES:
        if entities[kind]:
            rows = [[column(each, router["now"], containers) for column in columns.values()] for each in entities[kind]]
            yield from ("", title, *table(tuple(columns), rows, width, _NAMES))


def _router(router: Entity) -> Iterator[str]:
    state = ", draining" if router["draining"] else ""
    yield f"router {router['id']}, up {_age(router['now'] - router['started_at'])}{state}"
    for names in (
        ("connections", "links", "addresses", "relays"),
        ("deliveries_in", "deliveries_out", "undelivered", "expired"),
        ("accepted", "rejected", "released", "modified", "presettled"),
    ):
        yield ", ".join(f"{name.replace('_', ' ')} {router[name]:,}" for name in names)
    used_up = ", used up" if router["memory_used_up"] else ""
    yield f"buffered {_octets(router['buffered'])} of {_octets(router['memory'])}{used_up}"


def _plural(kind: str) -> str:
    return {"router": "router", "address": "addresses"}.get(kind, f"{kind}s")


def _container(connection: Entity, own: int | None) -> str:
    number = connection["number"]
    return f"({OWN})" if number == own else connection["container_id"] or f"#{number}"


def _age(seconds: float) -> str:
    """A time in its two largest units."""
    whole = int(seconds)
    for name, unit, below, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= unit:
            return f"{whole // unit} {name} {whole % unit // part} {below}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"


def _octets(number: int) -> str:
    if number < 1024:
        return f"{number} B"
    size, units = number / 1024, ["KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        del units[0]
    return f"{size:.1f} {units[0]}" if size < 10 else f"{size:,.0f} {units[0]}"


def _credit(link: Entity, now: float, _containers: Mapping[int, str]) -> Cell:
    since = _since(link["zero_credit_since"], now)
    return f"{link['credit']:,}" if since is None else f"none, {since}"


def _since(at: float | None, now: float) -> str | None:
    return None if at is None else _age(now - at)


_NAMES: Final = frozenset({"name", "container", "address", "host", "user", "url", "by"})

Column = Callable[[Entity, float, Mapping[int, str]], Cell]


def _plain(name: str) -> Column:
    return lambda entity, _now, _containers: entity[name]


_TABLES: Final[tuple[tuple[str, str, Mapping[str, Column]], ...]] = (
    (
        "listener",
        "LISTENERS",
        {
            "name": _plain("name"),
            "url": _plain("url"),
            "connections": _plain("connections"),
            "refused": _plain("refused"),
        },
    ),
    (
        "connector",
        "CONNECTORS",
        {
            "name": _plain("name"),
            "role": _plain("role"),
            "state": _plain("state"),
            "url": _plain("url"),
            "failures": _plain("failures"),
            "why not connected": _plain("reason"),
        },
    ),
    (
        "connection",
        "CONNECTIONS",
        {
            "container": lambda entity, _now, containers: containers[entity["number"]],
            "host": _plain("host"),
            "user": _plain("user"),
            "way": _plain("direction"),
            "by": lambda entity, _now, _containers: entity["connector"] or entity["listener"],
            "role": _plain("role"),
            "tls": _plain("tls"),
            "links": _plain("links"),
            "in": lambda entity, _now, _containers: _octets(entity["octets_in"]),
            "out": lambda entity, _now, _containers: _octets(entity["octets_out"]),
            "age": lambda entity, now, _containers: _since(entity["connected_at"], now),
        },
    ),
    (
        "address",
        "ADDRESSES",
        {
            "address": _plain("name"),
            "distribution": _plain("distribution"),
            "senders": _plain("producers"),
            "receivers": _plain("consumers"),
            "in": _plain("deliveries_in"),
            "out": _plain("deliveries_out"),
            "waiting": _plain("waiting"),
            "why nothing goes": _plain("reason"),
        },
    ),
    (
        "link",
        "LINKS",
        {
            "container": lambda entity, _now, containers: containers.get(entity["connection"]),
            "is": lambda entity, _now, _containers: "sender" if entity["direction"] == "incoming" else "receiver",
            "address": _plain("address"),
            "deliveries": _plain("deliveries"),
            "unsettled": _plain("unsettled"),
            "credit": _credit,
            "why none is used": _plain("reason"),
        },
    ),
)
