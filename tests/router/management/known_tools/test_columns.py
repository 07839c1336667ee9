"""All columns of known tools, read from a router under load and after it, compared with its statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio

from amqpmesh import Connection, Message, Router, connect
from amqpmesh.router.address_syntax import without_secret
from amqpmesh.router.client.requester import Requester
from amqpmesh.router.config.address import AddressConfig
from amqpmesh.router.config.file import ConnectorConfig, LinkConfig, ListenerConfig, MeshConfig, PolicyConfig
from amqpmesh.router.config.users import add_user
from amqpmesh.router.management.known_tools.tables import PREFIXES, TABLES, null
from amqpmesh.router.management.queries import entities_of, query
from amqpmesh.router.management.service import ADDRESS
from amqpmesh.router.message.outcomes import OutcomeError
from amqpmesh.router.runtime import management_node
from amqpmesh.router.statistics.configured import ContainerLinkState
from amqpmesh.router.statistics.router_statistics import Statistics

LOOPBACK = "amqp://127.0.0.1:0"
PATIENCE = 60.0
ROUNDS = 2

POLICY = """
[[tenant]]
name = "operator"
default = true

[[group]]
tenant = "operator"
name = "all"
send = ["#"]
receive = ["#"]
may = ["dynamic", "anonymous", "copy"]
manage = ["read"]
"""

Row = dict[str, Any]


class Seen(NamedTuple):
    """An entity among the statistics of one moment."""

    all: Statistics
    it: Any

    def seconds_since(self, time: float | None) -> int | None:
        return None if time is None else int(self.all.router.now - time)


def of(name: str) -> Callable[[Seen], object]:
    """Return a column that is an attribute of the entity."""

    def read(seen: Seen) -> object:
        value = getattr(seen.it, name)
        return value if isinstance(value, bool | int) or value is None else str(value)

    return read


def total(name: str) -> Callable[[Seen], object]:
    """Return a column that is a sum over all addresses."""
    return lambda seen: sum(getattr(each, name) for each in seen.all.addresses)


def always(value: object) -> Callable[[Seen], object]:
    return lambda _: value


OUTCOMES = {f"{name}Count": of(name) for name in ("presettled", "accepted", "rejected", "released", "modified")}

METRICS = {
    "version": always(version("amqpmesh")),
    "id": of("id"),
    "uptimeSeconds": lambda seen: seen.seconds_since(seen.it.started_at),
    "linkRouteCount": always(0),
    "autoLinkCount": lambda seen: len(seen.all.container_links),
    "linkCount": lambda seen: seen.it.links + len(seen.all.lanes),
    "nodeCount": lambda seen: len(seen.all.routes),
    "addrCount": of("addresses"),
    "connectionCount": of("connections"),
    "connectionCounters": lambda seen: {"amqp": seen.it.connections},
    **{f"{name}Deliveries": of(name) for name in ("presettled", "accepted", "rejected", "released", "modified")},
    "deliveriesDelayed1Sec": total("delayed_1s"),
    "deliveriesDelayed10Sec": total("delayed_10s"),
    "deliveriesIngress": of("deliveries_in"),
    "deliveriesEgress": of("deliveries_out"),
    "deliveriesTransit": total("transit_out"),
}

ROLES = {"normal": "normal", "mesh": "inter-router", "container": "route-container"}

DOOR: dict[str, Callable[[Seen], object]] = {
    "host": always("127.0.0.1"),
    "port": lambda seen: seen.it.url.rsplit(":", 1)[1],
    "role": lambda seen: ROLES[seen.it.role],
    "cost": of("cost"),
}


def last_delivery(seen: Seen) -> object:
    found = [
        link.last_delivery_at
        for link in (*seen.all.links, *seen.all.lanes)
        if link.connection == seen.it.number and link.last_delivery_at is not None
    ]
    return seen.seconds_since(max(found)) if found else None


def classed(address: str) -> str:
    return f"{'L' if address.startswith('$') else 'M'}{without_secret(address)}"


def phased(value: object) -> object:
    """Return a value as Dispatch has it: with the phase of a mobile address behind its class."""
    return f"M0{value[1:]}" if isinstance(value, str) and value.startswith("M") else value


def named(entities: Sequence[Any], prefix: str, attribute: str = "name") -> dict[str, Any]:
    return {f"{prefix}/{getattr(each, attribute)}": each for each in entities}


def owner(seen: Seen) -> object:
    if seen.it.address is None:
        return f"R{seen.it.far}" if seen.it in seen.all.lanes else None
    return classed(seen.it.address)


def neighbour(seen: Seen) -> object:
    return next((each.connection for each in seen.all.neighbours if each.router == seen.it.router), None)


def next_hop(seen: Seen) -> object:
    return None if seen.it.next_hops == (seen.it.router,) else ",".join(seen.it.next_hops)


EXPECTED: dict[str, dict[str, Callable[[Seen], object]]] = {
    "router": {"mode": always("interior"), "area": always("0"), "timestampsInUTC": always(True), **METRICS},
    "routerMetrics": METRICS,
    "connection": {
        "host": of("host"),
        "container": of("container_id"),
        "role": lambda seen: ROLES.get(seen.it.role, seen.it.role),
        "dir": of("direction"),
        "protocol": always("amqp"),
        "opened": lambda seen: seen.it.state == "OPENED",
        "isAuthenticated": lambda seen: seen.it.mechanism is not None,
        "sasl": of("mechanism"),
        "user": of("user"),
        "tenant": of("tenant"),
        "isEncrypted": lambda seen: seen.it.tls is not None,
        "ssl": lambda seen: seen.it.tls is not None,
        "sslProto": of("tls"),
        "sslCipher": of("cipher"),
        "adminStatus": always("enabled"),
        "operStatus": always("up"),
        "uptimeSeconds": lambda seen: seen.seconds_since(seen.it.connected_at),
        "lastDlvSeconds": last_delivery,
    },
    "router.link": {
        "linkName": of("name"),
        "linkType": lambda seen: "inter-router" if seen.it in seen.all.lanes else "endpoint",
        "linkDir": lambda seen: {"incoming": "in", "outgoing": "out"}[seen.it.direction],
        "connectionId": lambda seen: str(seen.it.connection),
        "owningAddr": owner,
        "undeliveredCount": lambda seen: seen.it.waiting if seen.it in seen.all.lanes else seen.it.undelivered,
        "unsettledCount": of("unsettled"),
        "deliveryCount": of("deliveries"),
        **OUTCOMES,
        "creditAvailable": of("credit"),
        "zeroCreditSeconds": lambda seen: seen.seconds_since(seen.it.zero_credit_since) or 0,
        "adminStatus": always("enabled"),
        "operStatus": lambda seen: "up" if seen.it in seen.all.lanes or seen.it.attached else "down",
    },
    "router.address": {
        "distribution": of("distribution"),
        "subscriberCount": of("consumers"),
        "remoteCount": lambda seen: len(seen.it.consumers_at),
        "deliveriesIngress": lambda seen: seen.it.deliveries_in - seen.it.transit_in,
        "deliveriesEgress": lambda seen: seen.it.deliveries_out - seen.it.transit_out,
        "deliveriesTransit": of("transit_out"),
    },
    "router.node": {
        "id": of("router"),
        "address": lambda seen: f"amqp:/_topo/0/{seen.it.router}/$management",
        "nextHop": next_hop,
        "routerLink": neighbour,
        "cost": of("distance"),
    },
    "listener": {**DOOR, "connections": of("connections"), "operStatus": always("up")},
    "connector": {
        **DOOR,
        "connectionStatus": lambda seen: "SUCCESS" if seen.it.state == "connected" else "CONNECTING",
        "connectionMsg": of("reason"),
    },
    "router.config.autoLink": {
        "address": of("address"),
        "externalAddress": of("node"),
        "direction": lambda seen: {"incoming": "in", "outgoing": "out"}[seen.it.direction],
        "phase": always(0),
        "connection": of("connector"),
        "linkRef": lambda seen: str(seen.it.link),
        "operStatus": lambda seen: "active" if seen.it.state == "attached" else "inactive",
        "lastError": of("reason"),
    },
    "router.config.address": {
        "pattern": of("name"),
        "distribution": lambda seen: seen.it.settings["distribution"],
        "waypoint": always(False),
    },
    "log": {
        "module": always("DEFAULT"),
        "enable": lambda seen: f"{seen.it.settings['level']}+",
        "includeTimestamp": always(True),
    },
    "policy": {
        "enableVhostPolicy": always(True),
        "enableVhostNamePatterns": always(True),
        "policyDir": lambda seen: seen.all.policies[0].file,
        "defaultVhost": always(""),
        "connectionsCurrent": of("connections"),
        "totalDenials": of("denied"),
    },
    "network": {},
}
"""The counterpart of each column; the columns that are not here are null, since nothing here is like them."""

ENTITIES: dict[str, Callable[[Statistics], dict[str, Any]]] = {
    "router": lambda told: {f"router/{told.router.id}": told.router},
    "routerMetrics": lambda told: {f"routerMetrics/{told.router.id}": told.router},
    "connection": lambda told: {str(each.number): each for each in told.connections},
    "router.link": lambda told: {str(each.number): each for each in (*told.links, *told.lanes)},
    "router.address": lambda told: {classed(each.name): each for each in told.addresses},
    "router.node": lambda told: named(told.routes, "router.node", "router"),
    "listener": lambda told: named(told.listeners, "listener"),
    "connector": lambda told: named(told.connectors, "connector"),
    "router.config.autoLink": lambda told: named(told.container_links, "router.config.autoLink"),
    "router.config.address": lambda told: named(told.address_patterns, "router.config.address"),
    "log": lambda told: {f"{each.name}/DEFAULT": each for each in told.tables if each.name == "log"},
    "policy": lambda told: {"policy": told.router},
    "network": lambda told: {f"network/{told.router.id}": told.router},
}
"""The entities of each type by their identities."""

MOVING = {"unsettledCount", "creditAvailable", "zeroCreditSeconds", "undeliveredCount", "lastDlvSeconds"}
"""Columns that rise and fall under load: two readings around a third one do not bound it."""


def test_each_column_has_a_counterpart_or_is_null() -> None:
    for name, table in TABLES.items():
        nulls = {each for each, read in table.columns.items() if read is null}
        assert table.columns.keys() - nulls - {"name", "identity"} == EXPECTED.get(name, {}).keys(), name
    assert ENTITIES.keys() == EXPECTED.keys() == {name for name, table in TABLES.items() if table.columns}


class Load(NamedTuple):
    """Two routers of a mesh and a container, and clients of the first one."""

    router: Router
    client: Connection
    management: Requester
    clients: tuple[Connection, ...]


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[Load]:
    """Provide a router with a row in each table."""
    (folder / "policy.toml").write_text(POLICY)
    add_user(folder / "users.toml", "ada", "secret", 4096)
    mesh = ListenerConfig(url=LOOPBACK, name="mesh", role="mesh")
    door = ListenerConfig(url=LOOPBACK, name="door", sasl=("SCRAM-SHA-256",), users=folder / "users.toml")
    async with AsyncExitStack() as stack:
        far = await stack.enter_async_context(
            Router(id="B", mesh=MeshConfig(insecure=True), listeners=[LOOPBACK, mesh], drain=0.1)
        )
        container = await stack.enter_async_context(Router(id="C", listeners=[LOOPBACK], drain=0.1))
        url = container.listeners[0].url
        links = [
            LinkConfig(connector="container", name="feeds", source="queue", address="fed"),
            LinkConfig(connector="container", name="drains", target="sink", address="drained"),
        ]
        router = await stack.enter_async_context(
            Router(
                id="A",
                drain=0.1,
                mesh=MeshConfig(insecure=True),
                listeners=[ListenerConfig(url=LOOPBACK, name="plain"), door],
                connectors=[
                    ConnectorConfig(url=far.listeners[1].url, name="far", role="mesh"),
                    ConnectorConfig(url=url, name="container", role="container"),
                ],
                container_links=links,
                addresses=[AddressConfig(pattern="all/#", distribution="multicast")],  # type: ignore[arg-type]
                policy=PolicyConfig(file=folder / "policy.toml"),
            )
        )
        clients = [
            await stack.enter_async_context(each)
            for each in (
                connect(router.listeners[0].url),
                connect(router.listeners[1].url, user="ada", password="secret"),
                connect(far.listeners[0].url),
                connect(url),
            )
        ]
        management = await stack.enter_async_context(clients[0].requester(ADDRESS))
        yield Load(router, clients[0], management, tuple(clients))


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(PATIENCE):
        while not condition():
            await trio.sleep(0.01)


async def receive(client: Connection, address: str, *, task_status: trio.TaskStatus[None]) -> None:
    """Give messages all outcomes in turns."""
    async with client.receiver(address, credit=10) as receiver:
        task_status.started()
        number = 0
        async for delivery in receiver:
            number += 1
            if number % 5 == 1:
                delivery.reject("amqp:not-allowed", "no")
            elif number % 5 == 2:
                delivery.release()
            elif number % 5 == 3:
                delivery.modify(delivery_failed=True)
            else:
                delivery.accept()


async def send(
    client: Connection, address: str, over: trio.Event, done: Callable[[], object], *, settled: bool
) -> None:
    """Send until `over` is set."""
    async with client.sender(address) as sender:
        while not over.is_set():
            with suppress(OutcomeError):
                await sender.send(Message(b"x" * 100), settled=settled)
            done()
        await trio.sleep_forever()


def asking(told: Statistics, client: Connection) -> int:
    return next(each.number for each in told.connections if each.container_id == client.id)


async def compare(load: Load, *, at_rest: bool) -> int:
    """Compare all columns with the statistics before and after. Returns: the number of values."""
    count = 0
    for name, prefix in product(EXPECTED, PREFIXES):
        columns = EXPECTED[name]
        has_phases = prefix == PREFIXES[1] and name in ("router.link", "router.address")
        before = load.router.statistics()
        rows: list[Row] = entities_of(await load.management.request(query(f"{prefix}{name}")))
        after = load.router.statistics()
        known, later = ENTITIES[name](before), ENTITIES[name](after)
        if has_phases and name == "router.address":
            known = {str(phased(identity)): each for identity, each in known.items()}
            later = {str(phased(identity)): each for identity, each in later.items()}
        by_identity = {each["identity"]: each for each in rows}
        if name == "router.node":
            assert by_identity.pop("router.node/A")["nextHop"] == "(self)"
        assert by_identity.keys() == known.keys(), name
        for identity, row in by_identity.items():
            # Links of the client that asks carry the request and the answer.
            is_still = at_rest and getattr(known[identity], "connection", None) != asking(before, load.client)
            for column in TABLES[name].columns:
                if column in ("name", "identity"):
                    continue
                read = columns.get(column)
                if read is None:
                    assert row[column] is None, (name, column)
                    continue
                low, high = read(Seen(before, known[identity])), read(Seen(after, later[identity]))
                if has_phases and column == "owningAddr":
                    low, high = phased(low), phased(high)
                where = name, identity, column, low, row[column], high
                if isinstance(low, int) and isinstance(high, int) and not isinstance(low, bool):
                    if is_still or column not in MOVING:
                        assert low <= row[column] <= high, where
                elif column not in MOVING:
                    assert row[column] in (low, high), where
                count += 1
    return count


WAYS = [(0, 1, "local"), (1, 2, "there"), (2, 0, "here"), (3, 3, "sink"), (0, 1, "all/1")]
"""The clients that send and receive, by their places, and the address. Those of the container have its link's node."""


async def test_all_columns_are_those_of_the_statistics_under_load_and_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(management_node, "SNAPSHOT_TIME", 0.0)  # each answer is as new as it can be
    sent = Counter[str]()
    over = trio.Event()
    async with world(tmp_path) as load, trio.open_nursery() as nursery:
        clients = load.clients
        attached = lambda: all(  # noqa: E731
            each.state is ContainerLinkState.ATTACHED for each in load.router.statistics().container_links
        )
        for _, there, address in WAYS:
            await nursery.start(receive, clients[there], address)
        await nursery.start(receive, clients[1], "all/1")
        await nursery.start(receive, clients[0], "fed")
        await until(attached)
        for here, address, settled in (
            *((here, address, False) for here, _, address in WAYS if address != "sink"),
            (0, "drained", False),
            (3, "queue", False),
            (1, "local", True),
        ):
            note = partial(sent.update, [f"{address} {settled}"])
            nursery.start_soon(partial(send, clients[here], address, over, note, settled=settled))
        nursery.start_soon(partial(send, clients[0], "nobody", over, partial(sent.update, ["nobody"]), settled=False))
        await until(lambda: len(sent) == 7 and min(sent.values()) >= 20)
        for _ in range(ROUNDS):
            so_far = sent.total()
            assert await compare(load, at_rest=False) > 500
            await until(lambda: sent.total() > so_far + 100)  # noqa: B023
        over.set()
        await until(lambda: not load.router.statistics().router.relays)
        await compare(load, at_rest=True)
        told = load.router.statistics()
        whole = told.router
        assert all((whole.presettled, whole.accepted, whole.rejected, whole.released, whole.modified))
        assert sum(each.transit_out for each in told.addresses)
        nursery.cancel_scope.cancel()
