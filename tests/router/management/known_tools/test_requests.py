"""Requests as skstat, skmanage and qdstat send them, and the answers, compared with the statistics."""

from __future__ import annotations

import io
import json
import logging
from dataclasses import replace
from typing import Any

import pytest

from amqpmesh import ListenerConfig, Router, connect
from amqpmesh.router.address_syntax import of_tools
from amqpmesh.router.amqp.codec.values import decode, encode
from amqpmesh.router.amqp.standard.messaging import Source
from amqpmesh.router.incremental import run_to_end
from amqpmesh.router.logs.event_log import EventLog, configure
from amqpmesh.router.management.entities import TYPES
from amqpmesh.router.management.known_tools import requests
from amqpmesh.router.management.known_tools.tables import PREFIXES, TABLES
from amqpmesh.router.management.requested_changes import NoClientError
from amqpmesh.router.management.service import ADDRESS, Changes
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.management.views import Numbers, TenantViews, of_tenant, whole
from amqpmesh.router.message.content import Message
from amqpmesh.router.statistics.configured import TableStatistics
from amqpmesh.router.statistics.router_statistics import Removable, Statistics
from tests.support.worlds.meshes import World

SKUPPER, DISPATCH = PREFIXES
CONFIGURED = ("listener", "connector", "router.config.autoLink")  # simulated routers have none
LINK_COLUMNS = [
    *("linkType", "linkDir", "connectionId", "identity", "owningAddr", "capacity", "undeliveredCount"),
    *("unsettledCount", "deliveryCount", "presettledCount", "droppedPresettledCount", "acceptedCount"),
    *("rejectedCount", "releasedCount", "modifiedCount", "deliveriesDelayed1Sec", "deliveriesDelayed10Sec"),
    *("deliveriesStuck", "creditAvailable", "zeroCreditSeconds", "adminStatus", "operStatus", "linkName"),
    *("priority", "settleRate"),
]
ADDRESS_COLUMNS = [
    *("distribution", "inProcess", "subscriberCount", "remoteCount", "deliveriesIngress", "deliveriesEgress"),
    *("deliveriesTransit", "deliveriesToContainer", "deliveriesFromContainer", "name", "priority", "watch"),
]


@pytest.fixture(scope="module")
def told() -> Statistics:
    """Of A in a line of three routers: a sender there, its receiver at C, and a receiver at A."""
    mesh = World("ABC", [("A", "B"), ("B", "C")])
    receiver = mesh["C"].client()
    receiver.receiver("q")
    sender = mesh["A"].client()
    link = sender.sender("q")
    mesh["A"].client().receiver("here")
    mesh.advance(0.2)
    sender.send(link)
    mesh.advance(0.1)
    receiver.take(1)[0].accept()
    mesh.advance(30.0)
    return snapshot(mesh["A"].core)


def ask(
    told: Statistics, operation: str, body: Any = None, changes: Changes | None = None, **properties: Any
) -> Message:
    request = Message(body, application_properties={"operation": operation, **properties})
    assert requests.asks(request)
    return run_to_end(requests.respond(request, whole(told), changes))


def query(told: Statistics, kind: str, names: list[str] | None = None, **more: Any) -> list[dict[str, Any]]:
    """Query as the tools do, which read the answer from the wire."""
    own = {"name": "self", "type": "org.amqp.management", "entityType": kind, "offset": 0, "count": 500, **more}
    answer = ask(told, "QUERY", {"attributeNames": names or []}, **own)
    assert answer.application_properties["statusCode"] == 200, answer.application_properties
    body: Any = decode(encode(answer.body))[0]
    return [dict(zip(body["attributeNames"], row, strict=True)) for row in body["results"]]


def failure(answer: Message) -> int:
    status = answer.application_properties["statusCode"]
    assert isinstance(status, int)
    return status


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("name", TABLES)
def test_each_type_can_be_asked_for_by_both_names(told: Statistics, prefix: str, name: str) -> None:
    rows = query(told, f"{prefix}{name}")
    assert all(tuple(row) == tuple(TABLES[name].attributes) for row in rows)
    assert all(row["type"] == f"{prefix}{name}" for row in rows)
    assert len({row["identity"] for row in rows}) == len(rows)
    assert (
        bool(rows) is bool(name in ("connector", "router.config.autoLink", "listener") or TABLES[name].columns)
        or not rows
    )


def test_the_router_is_shown(told: Statistics) -> None:
    for kind in (f"{SKUPPER}routerMetrics", f"{DISPATCH}router"):
        (row,) = query(told, kind)
        router = told.router
        assert (row["id"], row["name"]) == ("A", "A")
        assert row["uptimeSeconds"] == int(router.now - router.started_at) >= 30
        assert row["connectionCount"] == router.connections == row["connectionCounters"]["amqp"]
        assert row["linkCount"] == len(told.links) + len(told.lanes)
        assert row["addrCount"] == router.addresses
        assert row["nodeCount"] == 2
        assert row["deliveriesIngress"] == router.deliveries_in == 1
        assert row["deliveriesTransit"] == 1
        assert row["acceptedDeliveries"] == router.accepted
        assert row["memoryUsage"] is None
    (row,) = query(told, f"{SKUPPER}router")
    assert row["mode"] == "interior"


def test_connections_are_shown_with_their_last_delivery(told: Statistics) -> None:
    rows = query(told, f"{SKUPPER}connection")
    assert [row["identity"] for row in rows] == [str(each.number) for each in told.connections]
    for row, each in zip(rows, told.connections, strict=True):
        assert row["container"] == each.container_id
        assert row["role"] == {"mesh": "inter-router"}.get(each.role, each.role)
        assert row["uptimeSeconds"] == int(told.router.now - each.connected_at)
        moved = [
            link.last_delivery_at
            for link in (*told.links, *told.lanes)
            if link.connection == each.number and link.last_delivery_at is not None
        ]
        assert row["lastDlvSeconds"] == (int(told.router.now - max(moved)) if moved else None)
    assert sum(row["lastDlvSeconds"] is not None for row in rows) == 2


def test_links_and_lanes_are_shown_without_columns_that_nothing_is_like(told: Statistics) -> None:
    rows = query(told, f"{SKUPPER}router.link", LINK_COLUMNS)
    assert len(rows) == len(told.links) + len(told.lanes)
    assert {"endpoint", "inter-router"} == {row["linkType"] for row in rows}
    # The tools add these up, or leave out their columns if they are not there.
    missing = {"droppedPresettledCount", "deliveriesDelayed1Sec", "deliveriesDelayed10Sec", "deliveriesStuck"}
    assert set(LINK_COLUMNS) - set(rows[0]) == missing | {"priority", "settleRate"}
    for row, each in zip(rows, told.links, strict=False):
        assert row["owningAddr"] == f"M{each.address}"
        assert row["deliveryCount"] == each.deliveries
        assert row["acceptedCount"] == each.accepted
        assert row["creditAvailable"] == each.credit
        assert row["zeroCreditSeconds"] >= 0
        assert row["linkDir"] == {"incoming": "in", "outgoing": "out"}[each.direction]


def test_addresses_are_shown_with_what_came_left_and_went_on(told: Statistics) -> None:
    rows = {row["name"]: row for row in query(told, f"{SKUPPER}router.address", ADDRESS_COLUMNS)}
    assert set(rows) == {f"M{each.name}" for each in told.addresses}
    (of_q,) = (each for each in told.addresses if each.name == "q")
    row = rows["Mq"]
    assert (row["subscriberCount"], row["remoteCount"]) == (0, 1)
    assert row["deliveriesIngress"] == of_q.deliveries_in - of_q.transit_in == 1
    assert row["deliveriesEgress"] == 0
    assert row["deliveriesTransit"] == of_q.transit_out == 1
    assert "priority" not in row


def test_routers_are_shown_with_their_next_hops(told: Statistics) -> None:
    rows = {row["id"]: row for row in query(told, f"{SKUPPER}router.node")}
    assert [rows[name]["nextHop"] for name in "ABC"] == ["(self)", None, "B"]
    (neighbour,) = told.neighbours
    assert [rows[name]["routerLink"] for name in "ABC"] == [None, neighbour.connection, None]
    assert [rows[name]["cost"] for name in "ABC"] == [None, 1, 2]


def test_a_name_of_a_dynamic_node_is_not_told(told: Statistics) -> None:
    mesh = World("A", [])
    link = mesh["A"].client().receiver(None, source=Source(dynamic=True))
    mesh.advance(0.1)
    seen = snapshot(mesh["A"].core)
    (each,) = seen.links
    assert each.address is not None
    secret = each.address.split("@")[0].rsplit("/", 1)[1]
    assert link is not None
    for kind in ("router.link", "router.address"):
        rows = query(seen, f"{SKUPPER}{kind}")
        assert rows
        assert secret not in repr(rows)


def test_pages_follow_each_other(told: Statistics) -> None:
    whole_table = query(told, f"{SKUPPER}router.link")
    pages = [query(told, f"{SKUPPER}router.link", offset=at, count=1) for at in range(len(whole_table) + 1)]
    assert [row for page in pages for row in page] == whole_table
    assert not pages[-1]


def test_an_entity_is_read_by_its_identity(told: Statistics) -> None:
    number = str(told.connections[0].number)
    answer = ask(told, "READ", {}, type=f"{SKUPPER}connection", identity=number)
    assert isinstance(answer.body, dict)
    assert answer.body["identity"] == number
    assert failure(ask(told, "READ", {}, type=f"{SKUPPER}connection", identity="999")) == 404
    assert failure(ask(told, "READ", {}, type=f"{SKUPPER}connection")) == 400
    assert failure(ask(told, "READ", {}, type=f"{SKUPPER}nothing", identity="1")) == 404


def test_a_connection_is_ended_by_its_admin_status(told: Statistics) -> None:
    ended: list[Removable] = []
    changes = Changes(lambda *_: None, ended.append)
    kind, number = f"{SKUPPER}connection", str(told.connections[1].number)
    answer = ask(told, "UPDATE", {"adminStatus": "deleted"}, changes, type=kind, identity=number)
    assert isinstance(answer.body, dict)
    assert answer.body["adminStatus"] == "deleted"
    assert failure(ask(told, "DELETE", {}, changes, type=kind, identity=number)) == 204
    assert ended == [told.connections[1]] * 2
    assert failure(ask(told, "UPDATE", {"adminStatus": "deleted"}, type=kind, identity=number)) == 403
    assert failure(ask(told, "UPDATE", {"role": "x"}, changes, type=kind, identity=number)) == 405
    assert failure(ask(told, "DELETE", {}, changes, type=f"{SKUPPER}listener", name="amqp")) == 405
    assert failure(ask(told, "CREATE", {}, changes, type=f"{SKUPPER}listener", name="x")) == 405

    def refuse(_: Removable) -> None:
        raise NoClientError

    assert failure(ask(told, "DELETE", {}, Changes(lambda *_: None, refuse), type=kind, identity=number)) == 405


def test_management_nodes_are_those_that_can_be_reached(told: Statistics) -> None:
    nodes = ask(told, "GET-MGMT-NODES", name="self", type="org.amqp.management").body
    assert nodes == [f"amqp:/_topo/0/{name}/$management" for name in "ABC"]
    assert ask(snapshot(World("A", [])["A"].core), "GET-MGMT-NODES").body in ([], ["amqp:/_topo/0/A/$management"])


def test_the_schema_has_all_types_and_the_one_that_skstat_looks_up(told: Statistics) -> None:
    schema: Any = ask(told, "GET-SCHEMA").body
    assert schema["prefix"] == "io.skupper.router"
    assert {*TABLES, *TYPES, "vhostUserGroupSettings"} == set(schema["entityTypes"])
    assert schema["entityTypes"]["connection"]["attributes"]["opened"] == {"type": "boolean"}
    assert json.loads(str(ask(told, "GET-JSON-SCHEMA", indent=2).body)) == schema
    decode(encode(schema))
    some: Any = ask(told, "GET-SCHEMA", entityType=f"{DISPATCH}connection").body
    assert list(some["entityTypes"]) == ["connection"]
    own: Any = json.loads(str(ask(told, "GET-JSON-SCHEMA", entityType="listener").body))
    assert list(own["entityTypes"]) == ["org.amqpmesh.listener"]
    properties = {"operation": "GET-SCHEMA", "entityType": "listener"}
    assert not requests.asks(Message({}, application_properties=properties))


def test_types_attributes_and_operations_are_told(told: Statistics) -> None:
    kind = f"{SKUPPER}connection"
    for operation, found in (
        ("GET-TYPES", []),
        ("GET-ANNOTATIONS", []),
        ("GET-OPERATIONS", ["READ", "UPDATE", "DELETE"]),
        ("GET-ATTRIBUTES", list(TABLES["connection"].attributes)),
    ):
        assert ask(told, operation, entityType=kind).body == {kind: found}


def test_the_log_is_for_operators(told: Statistics) -> None:
    view = of_tenant({"router": (told.router,)})
    request = Message({}, application_properties={"operation": "GET-LOG"})
    assert failure(run_to_end(requests.respond(request, view))) == 403


async def test_without_a_policy_the_log_is_for_those_alone_who_may_change_the_router() -> None:
    request = Message({}, application_properties={"operation": "GET-LOG"})
    listeners = [ListenerConfig(url="amqp://127.0.0.1:0", name=str(manage), manage=manage) for manage in (False, True)]
    async with Router(id="A", listeners=listeners) as router:
        for each, status in zip(router.listeners, (403, 200), strict=True):
            async with connect(each.url) as client, client.requester(ADDRESS) as requester:
                assert failure(await requester.request(request)) == status, "its lines name users and hosts"


@pytest.mark.parametrize("name", TABLES)
def test_a_tenant_sees_its_own_part_alone(told: Statistics, name: str) -> None:
    part = run_to_end(TenantViews(told, Numbers(bytes(16))).of("billing"))
    request = Message({}, application_properties={"operation": "QUERY", "entityType": f"{SKUPPER}{name}"})
    answer: Any = run_to_end(requests.respond(request, of_tenant(part)))
    assert failure(answer) == 200
    is_one = name in ("router", "routerMetrics", "policy", "network")
    assert len(answer.body["results"]) == is_one
    nodes = Message({}, application_properties={"operation": "GET-MGMT-NODES"})
    assert run_to_end(requests.respond(nodes, of_tenant(part))).body == []


def test_types_that_may_not_be_read_are_refused(told: Statistics) -> None:
    view = whole(told, lambda kind: kind == "link")
    for kind, status in (("router.link", 200), ("connection", 403)):
        properties = {"operation": "QUERY", "entityType": f"{SKUPPER}{kind}"}
        request = Message({"attributeNames": []}, application_properties=properties)
        assert failure(run_to_end(requests.respond(request, view))) == status


@pytest.mark.parametrize(
    ("address", "here"),
    [
        ("_topo/0/B/$management", "$management@B"),
        ("_topo/area/router-1.example/$management", "$management@router-1.example"),
        ("_topo/0//$management", "_topo/0//$management"),
        ("_topo/0/B/q", "_topo/0/B/q"),
        ("x/_topo/0/B/$management", "x/_topo/0/B/$management"),
        ("q", "q"),
    ],
)
def test_the_tools_name_of_a_management_node_is_the_routers(address: str, here: str) -> None:
    assert of_tools(address) == here
    assert World("A", [])["A"].core.lookup.place(address).address == here


def test_the_log_has_its_last_lines_on_request(told: Statistics) -> None:
    root = logging.getLogger("amqpmesh")
    before = root.handlers[:], root.level, root.propagate, EventLog.only
    try:
        configure("info", "text", io.StringIO())
        for number in range(3):
            EventLog("amqpmesh.test").info("seen", number=number)
        told = replace(told, tables=(TableStatistics(name="log"),))
        lines: Any = ask(told, "GET-LOG", name="self", type="org.amqp.management", limit="2").body
    finally:
        root.handlers[:], root.level, root.propagate, EventLog.only = before
    assert [(line[0], line[1], line[2].split(" INFO ")[1]) for line in lines] == [
        ("amqpmesh.test", "INFO", "seen number=1"),
        ("amqpmesh.test", "INFO", "seen number=2"),
    ]
    assert failure(ask(told, "GET-LOG", limit=-1)) == 400


@pytest.mark.parametrize("name", ["org.amqpmesh.connection", "connection", "router", None, 7, "org.amqp.management"])
def test_other_requests_are_not_the_tools(name: object) -> None:
    assert not requests.asks(Message({}, application_properties={"operation": "QUERY", "entityType": name}))  # type: ignore[dict-item]
    assert requests.asks(Message({}, application_properties={"operation": "QUERY", "entityType": "router.link"}))
