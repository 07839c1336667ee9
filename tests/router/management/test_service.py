"""Answers of `$management`: queries, reads, and refusals with reasons."""

from dataclasses import fields, replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.address_syntax import without_secret
from amqpmesh.router.amqp.codec.types import Array, Int, Primitive, Symbol, UInt, ULong, Value
from amqpmesh.router.amqp.standard.messaging import Source, Target
from amqpmesh.router.config.file import AddressConfig
from amqpmesh.router.config.plain_settings import PlainSettings
from amqpmesh.router.incremental import run_to_end
from amqpmesh.router.management.entities import TYPES
from amqpmesh.router.management.requested_changes import NoClientError
from amqpmesh.router.management.service import (
    MAX_ATTRIBUTE_NAMES,
    NODE,
    PAGE,
    PAGE_SIZE,
    Change,
    Changes,
    Remove,
    respond,
)
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.management.views import whole
from amqpmesh.router.message.content import Message
from amqpmesh.router.statistics.common import Direction
from amqpmesh.router.statistics.configured import (
    ConnectorState,
    ConnectorStatistics,
    ContainerLinkState,
    ContainerLinkStatistics,
    ListenerStatistics,
    PolicyStatistics,
    TableStatistics,
)
from amqpmesh.router.statistics.router_statistics import LimitStatistics, RateStatistics, Removable, Statistics
from tests.support.worlds.meshes import World
from tests.support.worlds.network import Network


def statistics() -> Statistics:
    """Of a router with all kinds of entities: two connections, three links, two addresses, one of a dynamic node, and a
    link whose client is away.

    It has a neighbour B behind which is C, and a lane to C, which distributes its address in another way.
    """
    network = Network()
    one, other = network.client("one"), network.client("other")
    one.sender("q", name="out")
    other.receiver("q", name="in")
    other.receiver(None, name="mine", source=Source(dynamic=True))
    one.send(one.sender("q", name="second"))
    other.take(1)[0].accept()
    network.run()
    gone = network.client("gone")
    gone.sender(None, target=Target(address="q", timeout=30), name="kept")
    gone.lose()
    mesh = World(
        "ABC", [("A", "B"), ("B", "C")], own={"A": AddressConfig(pattern="q", distribution=Distribution.CLOSEST)}
    )
    mesh["C"].client().receiver("q")
    mesh["A"].client().sender("q")
    mesh.advance(0.2)
    settings = PlainSettings(AddressConfig(pattern="news/#", max_credit=7))
    listener = ListenerStatistics(
        name="amqp", url="amqp://127.0.0.1:5672", connections=2, refused=0, role="normal", cost=1
    )
    connector = ConnectorStatistics(
        name="broker",
        role="container",
        cost=1,
        state=ConnectorState.WAITING,
        url=None,
        redirected_from=None,
        connection=None,
        failures=3,
        reason="Connection refused",
    )
    link = ContainerLinkStatistics(
        name="broker-orders",
        connector="broker",
        connection=None,
        direction=Direction.INCOMING,
        node="orders",
        address="q",
        state=ContainerLinkState.DISCONNECTED,
        since=1.0,
        link=None,
        failures=0,
        stolen=0,
        retry_at=None,
        reason=None,
        unwatched=None,
    )
    rate = RateStatistics(
        tenant="t",
        limit="messages_per_address",
        user=None,
        host=None,
        address="q/1",
        used=1.5,
        allowed=20.0,
        burst=10.0,
        left=8.5,
        waiting=0,
    )
    limit = LimitStatistics(tenant="t", limit="connections", user="u/v", host=None, used=1, allowed=2, refused=3)
    seen = snapshot(mesh.nodes["A"].core)
    return replace(
        snapshot(network.core),
        listeners=(listener,),
        connectors=(connector,),
        container_links=(link,),
        limits=(limit,),
        rates=(rate,),
        policies=(
            PolicyStatistics(
                file="policy.toml",
                version=1,
                digest="00",
                tenants=2,
                groups=3,
                push=False,
                refused_version=None,
                refused_digest=None,
                refused_reason=None,
            ),
        ),
        address_patterns=(TableStatistics(name="news/#", runtime=True, settings=settings),),
        tables=tuple(
            TableStatistics(name=name) for name in ("elsewhere", "log", "telemetry", "metrics", "tracing", "resumption")
        ),
        mesh=seen.mesh,
        neighbours=seen.neighbours,
        routes=seen.routes,
        lanes=seen.lanes,
        adverts=seen.adverts,
        disagreements=seen.disagreements,
    )


STATISTICS = statistics()


def ask(operation: str | None, body: Any = None, /, **properties: Value) -> Message:
    """Make a request. Returns: the response, encoded and decoded again."""
    if operation is not None:
        properties["operation"] = operation
    request = Message(body, application_properties=properties, message_id="m", reply_to="replies")
    return Message.decode(run_to_end(respond(Message.decode(request.encode()), whole(STATISTICS))).encode())


def query(names: list[str] | None = None, **properties: Value) -> list[dict[str, Any]]:
    response = ask("QUERY", {"attributeNames": names or []}, name="self", type=NODE, **properties)
    assert status(response) == 200
    table = response.body
    return [dict(zip(table["attributeNames"], row, strict=True)) for row in table["results"]]


def status(response: Message) -> int:
    code = response.application_properties["statusCode"]
    assert isinstance(code, Int)
    assert isinstance(response.application_properties["statusDescription"], str)
    return int(code)


# Responses.


@pytest.mark.parametrize("identifier", ["text", 7, b"octets", UUID(int=5)])
@pytest.mark.parametrize("field", ["message_id", "correlation_id"])
def test_a_response_bears_the_requests_correlation_id_else_its_message_id(identifier: Any, field: str) -> None:
    request = Message(reply_to="replies", **{"message_id": "m", field: identifier})
    response = run_to_end(respond(Message.decode(request.encode()), whole(STATISTICS)))
    assert response.correlation_id == identifier
    assert response.to == "replies"
    assert Message.decode(response.encode()).correlation_id == identifier


# QUERY.


def test_a_query_for_a_type_has_a_row_for_each_of_its_entities() -> None:
    links = query(entityType="org.amqpmesh.link")
    assert [link["name"] for link in links] == ["out", "second", "in", "mine"]
    for row, told in zip(links, STATISTICS.links, strict=True):
        assert row == {
            "identity": f"link/{told.number}",
            "type": "org.amqpmesh.link",
            **{item.name: getattr(told, item.name) for item in fields(told)},
            "address": without_secret(str(told.address)),
        }


def test_a_connector_tells_why_it_is_not_connected() -> None:
    (connector,) = query(entityType="connector")
    assert (connector["identity"], connector["name"]) == ("connector/broker", "broker")
    assert (connector["state"], connector["failures"], connector["url"]) == ("waiting", 3, None)
    assert connector["reason"] == "Connection refused"


def test_a_table_of_the_configuration_tells_its_keys() -> None:
    (pattern,) = query(entityType="address-pattern")
    assert (pattern["identity"], pattern["name"], pattern["runtime"]) == ("address-pattern/news/#", "news/#", True)
    assert pattern["settings"]["max_credit"] == ULong(7)
    assert pattern["settings"]["distribution"] == "balanced"
    (log,) = query(entityType="log")
    assert (log["identity"], log["name"], log["runtime"]) == ("log/log", "log", False)


def test_a_limit_is_named_after_its_owner() -> None:
    (limit,) = query(entityType="limit")
    assert (limit["name"], limit["identity"]) == ("connections", "limit@t/connections/user/u%2Fv")
    assert (limit["used"], limit["allowed"], limit["refused"]) == (1, 2, 3)


def test_a_rate_is_named_after_its_owner() -> None:
    (rate,) = query(entityType="rate")
    assert (rate["name"], rate["identity"]) == ("messages_per_address", "rate@t/messages_per_address/address/q%2F1")
    assert (rate["used"], rate["allowed"], rate["burst"], rate["left"], rate["waiting"]) == (1.5, 20.0, 10.0, 8.5, 0)


def test_the_prefix_of_a_type_may_be_left_out() -> None:
    assert query(entityType="link") == query(entityType="org.amqpmesh.link")


def test_a_query_without_a_type_has_every_entity_with_null_for_what_it_has_not() -> None:
    rows = query()
    assert [row["type"] for row in rows].count("org.amqpmesh.connection") == 2
    assert {row["type"] for row in rows} == {kind.name for kind in TYPES.values() if not kind.by_type}
    assert len({row["identity"] for row in rows}) == len(rows)
    (router,) = (row for row in rows if row["type"] == "org.amqpmesh.router")
    assert router["credit"] is None
    assert router["accepted"] == 1


def test_only_the_attributes_that_are_asked_for_are_there_in_that_order() -> None:
    response = ask("QUERY", {"attributeNames": ["accepted", "nonsense", "name"]}, entityType="link")
    assert response.body["attributeNames"] == ["accepted", "nonsense", "name"]
    assert response.body["results"] == [[0, None, "out"], [1, None, "second"], [1, None, "in"], [0, None, "mine"]]


@pytest.mark.parametrize("body", [None, b"", "", {}, {"attributeNames": None}, {"attributeNames": []}])
def test_a_query_that_names_no_attributes_has_all(body: Any) -> None:
    assert ask("QUERY", body, entityType="router").body["attributeNames"] == list(
        TYPES["org.amqpmesh.router"].attributes
    )


def test_attribute_names_may_be_an_array_or_symbols() -> None:
    names = Array(Primitive.SYMBOL, [Symbol("name"), Symbol("id")])
    assert ask("QUERY", {"attributeNames": names}, entityType="router").body["results"] == [["A", "A"]]


@given(st.integers(0, 6), st.none() | st.integers(0, 6))
def test_offset_and_count_cut_a_page_out_of_the_whole(offset: int, count: int | None) -> None:
    whole = query(["identity"])
    page = query(["identity"], offset=UInt(offset), **({} if count is None else {"count": count}))
    assert page == whole[offset:][: len(whole) if count is None else count]


def many(count: int, name: str = "") -> Statistics:
    return replace(STATISTICS, links=tuple(replace(STATISTICS.links[0], number=i, name=name) for i in range(count)))


def identities(told: Statistics, **properties: Value) -> list[str]:
    properties |= {"operation": "QUERY", "entityType": "link"}
    request = Message({"attributeNames": ["identity", "name"]}, application_properties=properties, reply_to="r")
    return [row[0] for row in Message.decode(run_to_end(respond(request, whole(told))).encode()).body["results"]]


@pytest.mark.parametrize("asked", [{}, {"count": PAGE + 1}, {"count": ULong(2**64 - 1)}])
def test_an_answer_is_a_page_however_much_is_asked_for(asked: dict[str, Value]) -> None:
    told = many(PAGE + 3)
    assert identities(told, **asked) == [f"link/{number}" for number in range(PAGE)]
    assert identities(told, offset=PAGE, **asked) == [f"link/{PAGE + each}" for each in range(3)]
    assert identities(told, offset=PAGE + 3, **asked) == []


@pytest.mark.parametrize("names", [[], ["name"] * MAX_ATTRIBUTE_NAMES])
def test_a_peer_that_asks_for_nothing_special_can_decode_a_page(names: list[str]) -> None:
    request = Message({"attributeNames": names}, application_properties={"operation": "QUERY"}, reply_to="r")
    assert Message.decode(run_to_end(respond(request, whole(many(2 * PAGE)))).encode()).body["results"]


def test_a_peer_that_asks_for_nothing_special_can_decode_a_page_of_long_lists() -> None:
    hops = tuple(f"R{number}" for number in range(1000))
    told = replace(STATISTICS, routes=tuple(replace(STATISTICS.routes[0], next_hops=hops) for _ in range(100)))
    properties: dict[str, Value] = {"operation": "QUERY", "entityType": "route"}
    request = Message({"attributeNames": ["next_hops"]}, application_properties=properties, reply_to="r")
    found = Message.decode(run_to_end(respond(request, whole(told))).encode()).body["results"]
    assert len(found) > 1
    assert found[0] == [list(hops)]


@given(st.integers(1, 2 * PAGE_SIZE))
def test_a_page_of_long_names_is_shorter_and_never_empty(size: int) -> None:
    told = many(5, "x" * size)
    found = identities(told)
    assert found == [f"link/{number}" for number in range(len(found))]
    assert 1 <= len(found) <= max(1, PAGE_SIZE // size)


def test_the_random_part_of_a_dynamic_nodes_address_is_told_to_nobody() -> None:
    (node,) = (node for node in STATISTICS.nodes if node.dynamic)
    made_for, _, secret = node.name.rpartition("/")
    for asked in (ask("QUERY"), *(ask("READ", identity=row["identity"]) for row in query())):
        assert secret not in repr(asked)
    named = {row["name"] for row in query() if row["type"] != "org.amqpmesh.link" and made_for in row["name"]}
    assert named == {without_secret(node.name)}
    assert without_secret(node.name).startswith(made_for)


def test_values_have_the_types_of_their_attributes() -> None:
    classes = {
        Primitive.STRING: str,
        Primitive.ULONG: ULong,
        Primitive.DOUBLE: float,
        Primitive.BOOLEAN: bool,
        Primitive.LIST: list,
        Primitive.MAP: dict,
    }
    seen = set()
    for row in query():
        for name, primitive in TYPES[row["type"]].attributes.items():
            if row[name] is not None:
                assert type(row[name]) is classes[primitive], name
                seen.add(primitive)
    assert seen == set(classes)


# READ.


@pytest.mark.parametrize("with_type", [False, True])
def test_an_entity_is_read_by_its_identity(with_type: bool) -> None:
    for row in query():
        properties = {"identity": row["identity"], **({"type": row["type"]} if with_type else {})}
        response = ask("READ", **properties)
        assert status(response) == 200
        assert response.body == {name: row[name] for name in TYPES[row["type"]].attributes}


def test_an_entity_is_read_by_its_name() -> None:
    assert ask("READ", name="out").body["identity"] == "link/1"
    assert ask("READ", name="A", type="org.amqpmesh.router").body["identity"] == "router/A"
    assert ask("READ", name="connection/1").body["container_id"] == "one"
    assert ask("READ", name="q", identity="address/q").body["producers"] == 2


def test_the_management_node_reads_itself() -> None:
    itself = {"name": "self", "identity": "self", "type": NODE}
    assert ask("READ", identity="self").body == itself
    assert ask("READ", name="self", type=NODE).body == itself


def test_a_name_that_several_entities_have_needs_a_type() -> None:
    name = without_secret(STATISTICS.nodes[0].name)
    refused = ask("READ", name=name)
    assert status(refused) == 400
    assert "identity" in refused.application_properties["statusDescription"]
    assert ask("READ", name=name, type="node").body["dynamic"] is True


# What it can be asked.


def test_types_attributes_and_operations_are_told() -> None:
    everything = [NODE, *TYPES]
    assert ask("GET-TYPES").body == {name: [] for name in everything}
    assert ask("GET-ANNOTATIONS").body == {name: [] for name in everything}
    assert list(ask("GET-ATTRIBUTES").body) == everything
    assert ask("GET-ATTRIBUTES", entityType="listener").body == {
        "org.amqpmesh.listener": [
            *("name", "identity", "type", "url", "connections", "refused", "role", "cost"),
            *("runtime", "settings"),
        ]
    }
    assert ask("GET-OPERATIONS", entityType="listener").body == {
        "org.amqpmesh.listener": {
            "READ": ["name", "identity"],
            "CREATE": ["name"],
            "UPDATE": ["name", "identity"],
            "DELETE": ["name", "identity"],
        }
    }
    assert ask("GET-OPERATIONS", entityType="link").body == {
        "org.amqpmesh.link": {
            "READ": ["name", "identity"],
            "UPDATE": ["name", "identity"],
            "DELETE": ["name", "identity"],
        }
    }
    assert ask("GET-ATTRIBUTES", entityType=NODE).body == {NODE: ["name", "identity", "type"]}
    operations = ask("GET-OPERATIONS", entityType=NODE).body[NODE]
    for operation in operations.keys() - {"GET-MGMT-NODES"}:  # known tools ask for that
        assert status(ask(operation, identity="self")) == 200


def test_the_schema_tells_what_requests_may_change() -> None:
    told = ask("GET-SCHEMA").body["entityTypes"]
    assert list(told) == list(TYPES)
    for name, kind in TYPES.items():
        assert {each: of["type"] for each, of in told[name]["attributes"].items()} == {
            attribute: primitive.value for attribute, primitive in kind.attributes.items()
        }
        assert told[name]["operations"] == ask("GET-OPERATIONS", entityType=name).body[name]
        changes = [each for each, of in told[name]["attributes"].items() if of["update"]]
        assert bool(changes) == bool(kind.changeable or kind.table is not None)
    keys = ask("GET-SCHEMA", entityType="listener").body["entityTypes"]["org.amqpmesh.listener"]["attributes"]
    listener = keys["settings"]["keys"]
    assert listener["url"] == {
        "type": "string",
        "create": True,
        "update": True,
        "required": True,
        "default": None,
        "effect": "listener is bound anew",
    }
    assert (listener["role"]["type"], listener["links"]["type"]) == (["normal", "mesh", "http"], "integer")
    # The name stays, files come from the configuration file, and other keys need a restart.
    assert not any(listener[key]["update"] for key in ("name", "users"))
    router = ask("GET-SCHEMA", entityType="router").body["entityTypes"]["org.amqpmesh.router"]["attributes"]
    assert [router["settings"]["keys"][key]["update"] for key in ("id", "drain")] == [False, True]
    assert not listener["users"]["create"]


# UPDATE.


def update(body: Any, change: Change | None, **properties: Value) -> Message:
    request = Message(body, application_properties={"operation": "UPDATE", **properties}, reply_to="replies")
    changes = None if change is None else Changes(change, removing_nothing)
    return Message.decode(run_to_end(respond(Message.decode(request.encode()), whole(STATISTICS), changes)).encode())


def removing_nothing(_told: Removable) -> None:
    raise LookupError("it is gone")


@pytest.mark.parametrize("identity", ["listener/amqp", "connector/broker", "neighbour/1"])
def test_a_permitted_peer_changes_a_cost(identity: str) -> None:
    changed = []
    answer = update({"cost": 7}, lambda *change: changed.append(change), identity=identity)
    assert status(answer) == 200
    (entity,) = (row for row in query() if row["identity"] == identity)
    assert answer.body == {name: entity[name] for name in TYPES[entity["type"]].attributes} | {"cost": 7}
    ((who, told, cost),) = changed
    assert (who, cost) == (identity, 7)
    assert told in (*STATISTICS.listeners, *STATISTICS.connectors, *STATISTICS.neighbours)


@pytest.mark.parametrize(
    "body",
    [
        *(None, {}, "cost", {"url": "amqp://b"}, {"cost": 7, "url": "amqp://b"}),
        *({"cost": each} for each in (0, -1, 65_536, "7", True, None, 1.0)),
    ],
)
def test_what_is_no_cost_changes_nothing(body: Any) -> None:
    changed: list[object] = []
    answer = update(body, lambda *change: changed.append(change), identity="connector/broker")
    assert (status(answer), answer.body, changed) == (400, {}, [])


@pytest.mark.parametrize("identity", ["connection/1", "link/1"])
def test_a_connection_or_link_whose_status_is_to_be_deleted_ends(identity: str) -> None:
    removed: list[Removable] = []
    properties: dict[str, Value] = {"operation": "UPDATE", "identity": identity}
    request = Message({"adminStatus": "deleted"}, application_properties=properties, reply_to="replies")
    changes = Changes(lambda *_: None, removed.append)
    answer = run_to_end(respond(request, whole(STATISTICS), changes))
    assert (status(answer), answer.body["adminStatus"], answer.body["identity"]) == (200, "deleted", identity)
    assert [f"{identity.partition('/')[0]}/{each.number}" for each in removed] == [identity]
    forbidden = run_to_end(respond(request, whole(STATISTICS), None))
    assert status(forbidden) == 403
    other = Message({"adminStatus": "enabled"}, application_properties=properties, reply_to="replies")
    assert status(run_to_end(respond(other, whole(STATISTICS), changes))) == 405


def test_what_cannot_have_a_cost_is_refused_with_the_reason() -> None:
    def change(*_: object) -> None:
        raise LookupError("its role is not mesh")

    answer = update({"cost": 7}, change, identity="connector/broker")
    assert status(answer) == 404
    assert answer.application_properties["statusDescription"] == "Not Found: its role is not mesh"


# DELETE.


def delete(remove: Remove, **properties: Value) -> Message:
    request = Message(application_properties={"operation": "DELETE", **properties}, reply_to="replies")
    changes = Changes(lambda *_: None, remove)
    return Message.decode(run_to_end(respond(Message.decode(request.encode()), whole(STATISTICS), changes)).encode())


@pytest.mark.parametrize("identity", ["connection/1", "link/1"])
def test_a_permitted_peer_removes_a_connection_or_a_link(identity: str) -> None:
    removed: list[Removable] = []
    answer = delete(removed.append, identity=identity)
    assert (status(answer), answer.body) == (204, {})
    (told,) = removed
    assert told in (*STATISTICS.connections, *STATISTICS.links)
    assert told.number == 1


@pytest.mark.parametrize(("error", "expected"), [(LookupError("it is gone"), 404), (NoClientError(), 405)])
def test_what_cannot_be_removed_is_refused_with_the_reason(error: Exception, expected: int) -> None:
    def remove(_told: Removable) -> None:
        raise error

    answer = delete(remove, identity="connection/1")
    assert (status(answer), answer.body) == (expected, {})


# Refusals.


@pytest.mark.parametrize(
    ("operation", "body", "properties", "expected"),
    [
        (None, None, {}, 400),
        ("READ", None, {}, 400),
        ("READ", None, {"identity": "link/99"}, 404),
        ("READ", None, {"name": "q", "identity": "link/1"}, 404),
        ("READ", None, {"identity": "link/1", "type": "org.amqpmesh.connection"}, 404),
        ("READ", None, {"identity": "link/1", "type": "org.example"}, 404),
        ("READ", None, {"identity": "self", "type": "link"}, 404),
        ("READ", None, {"identity": 3}, 400),
        ("QUERY", None, {"entityType": "org.example"}, 404),
        ("QUERY", None, {"entityType": 7}, 400),
        ("QUERY", ["name"], {}, 400),
        ("QUERY", {"attributeNames": "name"}, {}, 400),
        ("QUERY", {"attributeNames": [1]}, {}, 400),
        ("QUERY", {"attributeNames": ["name"] * (MAX_ATTRIBUTE_NAMES + 1)}, {}, 400),
        ("QUERY", None, {"offset": -1}, 400),
        ("QUERY", None, {"count": "1"}, 400),
        ("QUERY", None, {"count": True}, 400),
        ("CREATE", None, {"type": "org.amqpmesh.address"}, 405),
        ("UPDATE", None, {}, 400),
        ("UPDATE", None, {"identity": "link/99"}, 404),
        ("UPDATE", {"credit": 7}, {"identity": "link/1"}, 405),
        ("UPDATE", {"cost": 7}, {"identity": "neighbour/1"}, 403),
        ("DELETE", None, {}, 400),
        ("DELETE", None, {"identity": "link/99"}, 404),
        ("DELETE", None, {"identity": "connection/1"}, 403),
        ("DELETE", None, {"identity": "address/q"}, 405),
        ("DELETE", None, {"identity": "listener/amqp"}, 405),
        ("REGISTER", None, {}, 405),
        ("query", None, {}, 501),
        ("PURGE", None, {}, 501),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_reason(
    operation: str | None, body: Any, properties: dict[str, Value], expected: int
) -> None:
    response = ask(operation, body, **properties)
    assert status(response) == expected
    assert len(response.application_properties["statusDescription"]) > len("Method Not Allowed: ")
    assert (response.to, response.correlation_id, response.body) == ("replies", "m", {})


PLAIN = st.none() | st.booleans() | st.integers(-(2**31), 2**31) | st.text(max_size=5) | st.binary(max_size=5)


@given(
    st.sampled_from(["QUERY", "READ", "UPDATE", "GET-TYPES", "GET-ATTRIBUTES", "DELETE", ""]) | PLAIN,
    st.dictionaries(st.sampled_from(["entityType", "type", "name", "identity", "offset", "count"]), PLAIN),
    PLAIN | st.dictionaries(st.just("attributeNames") | PLAIN, PLAIN | st.lists(PLAIN, max_size=3), max_size=3),
)
def test_whatever_is_asked_there_is_an_answer(operation: Any, properties: dict[str, Any], body: Any) -> None:
    request = Message(body, application_properties={"operation": operation, **properties}, reply_to="r")
    answer = run_to_end(respond(request, whole(STATISTICS), Changes(lambda *_: None, lambda _: None)))
    assert status(Message.decode(answer.encode())) in (200, 204, 400, 404, 405, 501)
