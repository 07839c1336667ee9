"""Requests of qdstat and qdmanage of Qpid Dispatch 1.19, as recorded from their processes, and what they do with the
answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from amqpmesh.router.address_syntax import of_tools
from amqpmesh.router.amqp.codec.values import decode, encode
from amqpmesh.router.incremental import run_to_end
from amqpmesh.router.management.known_tools import requests
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.management.views import whole
from amqpmesh.router.message.content import Message
from amqpmesh.router.statistics.common import Direction
from amqpmesh.router.statistics.configured import ContainerLinkState, ContainerLinkStatistics, TableStatistics
from amqpmesh.router.statistics.router_statistics import Statistics
from tests.support.worlds.meshes import World

LOG = {"level": "info"}
NODE = {"name": "self", "type": "org.amqp.management"}
PAGE = {"offset": 0, "count": 500}
DISPATCH = "org.apache.qpid.dispatch."

LINKS = [
    *("linkType", "linkDir", "connectionId", "identity", "peer", "owningAddr", "capacity", "undeliveredCount"),
    *("unsettledCount", "deliveryCount", "presettledCount", "droppedPresettledCount", "acceptedCount"),
    *("rejectedCount", "releasedCount", "modifiedCount", "deliveriesDelayed1Sec", "deliveriesDelayed10Sec"),
    *("deliveriesStuck", "creditAvailable", "zeroCreditSeconds", "adminStatus", "operStatus", "linkName"),
    *("priority", "settleRate"),
]
ADDRESSES = [
    *("distribution", "inProcess", "subscriberCount", "remoteCount", "containerCount", "deliveriesIngress"),
    *("deliveriesEgress", "deliveriesRedirectedToFallback", "deliveriesTransit", "deliveriesToContainer"),
    *("deliveriesFromContainer", "name", "priority"),
]
AUTO_LINKS = ["address", "direction", "phase", "externalAddress", "linkRef", "operStatus", "lastError"]
LINK_ROUTES = [
    *("prefix", "direction", "distribution", "operStatus", "pattern", "addExternalPrefix", "delExternalPrefix")
]
MEMORY = [
    *("identity", "typeSize", "transferBatchSize", "localFreeListMax", "totalAllocFromHeap", "heldByThreads"),
    *("batchesRebalancedToThreads", "batchesRebalancedToGlobal"),
]
CONNECTION = [
    *("identity", "host", "container", "role", "protocol", "dir", "isAuthenticated", "sasl", "user", "isEncrypted"),
    *("sslProto", "sslCipher", "tenant", "lastDlvSeconds", "uptimeSeconds"),
]
ROUTER = [
    *("version", "mode", "id", "uptimeSeconds", "area", "linkRouteCount", "autoLinkCount", "linkCount", "nodeCount"),
    *("addrCount", "connectionCount", "presettledDeliveries", "droppedPresettledDeliveries", "acceptedDeliveries"),
    *("rejectedDeliveries", "releasedDeliveries", "modifiedDeliveries", "deliveriesIngress", "deliveriesEgress"),
    *("deliveriesTransit", "deliveriesIngressRouteContainer", "deliveriesEgressRouteContainer"),
]
POLICY = [
    *("maxConnections", "enableVhostPolicy", "enableVhostNamePatterns", "policyDir", "defaultVhost"),
    *("connectionsProcessed", "connectionsDenied", "connectionsCurrent", "linksDenied", "totalDenials"),
]

TABLES: dict[str, tuple[str, list[str], list[str], set[str]]] = {
    "-g": ("router", [], ROUTER, set()),
    "-c": ("connection", [], CONNECTION, set()),
    "-l": ("router.link", LINKS, LINKS, {"droppedPresettledCount", "priority", "settleRate", *LINKS[16:19]}),
    "-a": ("router.address", ADDRESSES, ADDRESSES, {"deliveriesRedirectedToFallback", "priority"}),
    "-n": ("router.node", [], ["id", "nextHop", "routerLink", "lastTopoChange", "linkState", "validOrigins"], set()),
    "-p": ("policy", [], POLICY, set()),
    "--autolinks": ("router.config.autoLink", AUTO_LINKS, AUTO_LINKS, set()),
    "--linkroutes": ("router.config.linkRoute", LINK_ROUTES, [], set()),
    "-m": ("allocator", MEMORY, [], set()),
    "--vhosts": ("vhost", [], [], set()),
    "--vhoststats": ("vhostStats", [], [], set()),
}
"""Of each option: the type, the attributes that are asked for, those that the tool reads from each row, and those whose
column it leaves out or shows as `-` if they are not there.
"""


@pytest.fixture(scope="module")
def told() -> Statistics:
    """Of A in a mesh of two, with a link each way, a lane, and a link to a container."""
    mesh = World("AB", [("A", "B")])
    mesh["B"].client().receiver("orders")
    sender = mesh["A"].client()
    link = sender.sender("orders")
    mesh["A"].client().receiver("here")
    mesh.advance(0.2)
    sender.send(link)
    mesh.advance(1.0)
    auto_link = ContainerLinkStatistics(
        name="al",
        connector="broker",
        direction=Direction.INCOMING,
        node="q",
        address="q",
        state=ContainerLinkState.ATTACHED,
        since=0.0,
        link=7,
        connection=1,
        failures=0,
        stolen=0,
        retry_at=None,
        reason=None,
        unwatched=None,
    )
    return replace(
        snapshot(mesh["A"].core), container_links=(auto_link,), tables=(TableStatistics(name="log", settings=LOG),)
    )


def ask(told: Statistics, properties: Mapping[str, Any], body: object = None) -> Any:
    request = Message({} if body is None else body, application_properties=dict(properties))
    assert requests.asks(request)
    answer = run_to_end(requests.respond(request, whole(told)))
    assert answer.application_properties["statusCode"] == 200, answer.application_properties
    return decode(encode(answer.body))[0]


def rows(told: Statistics, option: str) -> list[dict[str, Any]]:
    kind, names, _, _ = TABLES[option]
    properties = {"operation": "QUERY", "entityType": f"{DISPATCH}{kind}", **NODE, **PAGE}
    body = ask(told, properties, {"attributeNames": names})
    return [dict(zip(body["attributeNames"], row, strict=True)) for row in body["results"]]


@pytest.mark.parametrize("option", TABLES)
def test_each_row_has_what_the_tool_reads_of_it(told: Statistics, option: str) -> None:
    _, _, read, may_be_missing = TABLES[option]
    found = rows(told, option)
    assert bool(found) is bool(read)
    for row in found:
        assert set(read) - set(row) == may_be_missing


def addr_text(address: str) -> str:
    """Cut an address as qdstat does: behind the class of a mobile one is its phase, which others do not have."""
    return address[2:] if address[0] == "M" else address[1:]


@pytest.mark.parametrize(("option", "attribute"), [("-a", "name"), ("-l", "owningAddr")])
def test_addresses_are_shown_whole_and_in_phase_0(told: Statistics, option: str, attribute: str) -> None:
    found = [row[attribute] for row in rows(told, option)]
    assert {"orders", "here"} <= {addr_text(each) for each in found}
    assert {each[1] for each in found if each[0] == "M"} == {"0"}


def test_skstat_is_told_addresses_without_a_phase(told: Statistics) -> None:
    properties = {"operation": "QUERY", "entityType": "io.skupper.router.router.address", **NODE, **PAGE}
    body = ask(told, properties, {"attributeNames": ["name"]})
    assert {"Morders", "Mhere"} <= {row[0] for row in body["results"]}


READERS: Mapping[str, Callable[[dict[str, Any]], object]] = {
    "-c": lambda row: row["uptimeSeconds"] // 3600,
    "-l": lambda row: row["zeroCreditSeconds"] > 0,
    "--autolinks": lambda row: f"{row['phase']:d}",
    "-p": lambda row: len(row["policyDir"]) + len(row["defaultVhost"]),
}


@pytest.mark.parametrize("option", READERS)
def test_values_are_of_the_kind_that_the_tool_computes_with(told: Statistics, option: str) -> None:
    for row in rows(told, option):
        READERS[option](row)


@pytest.mark.parametrize(
    ("operation", "found"),
    [
        ("get-schema", lambda body: body["entityTypes"]["vhostUserGroupSettings"]["attributes"] == {}),
        ("get-json-schema", lambda body: '"entityTypes"' in body),
        ("get-log", lambda body: isinstance(body, list)),
        ("get-mgmt-nodes", lambda body: body == [f"amqp:/_topo/0/{each}/$management" for each in "AB"]),
    ],
)
def test_operations_that_are_not_built_in_come_as_they_were_typed(
    told: Statistics, operation: str, found: Callable[[Any], bool]
) -> None:
    assert found(ask(told, {"operation": operation}))
    assert found(ask(told, {"operation": operation.upper(), **NODE}))


def test_the_log_and_patterns_are_shown(told: Statistics) -> None:
    properties = {"operation": "QUERY", "entityType": f"{DISPATCH}log", **NODE, **PAGE}
    body = ask(told, properties, {"attributeNames": ["module", "enable"]})
    assert body["results"] == [["DEFAULT", "info+"]]


def test_a_table_of_another_router_is_asked_for_at_its_node() -> None:
    assert of_tools("_topo/0/B/$management") == "$management@B"
