"""Changes of the configuration that qdmanage and skmanage ask for by the names of their own types, as recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from amqpmesh import Message, Router, connect
from amqpmesh.router.config.file import ConnectorConfig, ListenerConfig
from amqpmesh.router.management.known_tools.changes import known_change
from amqpmesh.router.management.known_tools.tables import PREFIXES
from amqpmesh.router.management.service import ADDRESS, RequestError

SKUPPER, DISPATCH = PREFIXES
LOOPBACK = "amqp://127.0.0.1:0"


def request(operation: str, kind: str, body: object = None, /, **properties: str) -> Message:
    """Return a request as the tools send it: the attributes in the body, the name there and as a property."""
    return Message(
        {} if body is None else body, application_properties={"operation": operation, "type": kind} | properties
    )


def ours(asked: Message) -> tuple[Any, Any, Any]:
    change = known_change(asked)
    assert change is not None
    properties = change.request.application_properties
    return properties["type"].removeprefix("org.amqpmesh."), properties.get("name"), change.request.body


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(
    ("kind", "attributes", "name", "here"),
    [
        (
            "listener",
            {"name": "l", "host": "::1", "port": "amqps", "role": "inter-router", "cost": 3},
            "l",
            ("listener", "l", {"url": "amqp://[::1]:5671", "role": "mesh", "cost": 3}),
        ),
        (
            "listener",
            {"port": 5673, "saslMechanisms": "PLAIN, ANONYMOUS"},
            "l",
            ("listener", "l", {"url": "amqp://127.0.0.1:5673", "role": "normal", "sasl": ["PLAIN", "ANONYMOUS"]}),
        ),
        (
            "connector",
            {"name": "c", "host": "broker", "port": "5672", "role": "route-container"},
            "c",
            ("connector", "c", {"url": "amqp://broker:5672", "role": "container"}),
        ),
        (
            "router.config.address",
            {"prefix": "a", "distribution": "multicast"},
            None,
            ("address-pattern", "a/#", {"distribution": "multicast"}),
        ),
        ("router.config.address", {"pattern": "a/*"}, "label", ("address-pattern", "a/*", {})),
        (
            "router.config.autoLink",
            {"address": "q", "direction": "in", "phase": 0, "connection": "c"},
            None,
            ("container-link", "q.in", {"address": "q", "source": "q", "connector": "c"}),
        ),
        (
            "router.config.autoLink",
            {"name": "al", "address": "q", "direction": "out", "externalAddress": "there", "connection": "c"},
            "al",
            ("container-link", "al", {"address": "q", "target": "there", "connector": "c"}),
        ),
    ],
)
def test_an_entity_is_created_as_a_table(
    prefix: str, kind: str, attributes: Mapping[str, object], name: str | None, here: tuple[str, str, object]
) -> None:
    properties = {} if name is None else {"name": name}
    assert ours(request("CREATE", f"{prefix}{kind}", attributes, **properties)) == here


def test_an_entity_is_deleted_by_its_name_or_its_identity() -> None:
    kind = f"{DISPATCH}router.config.address"
    assert ours(request("DELETE", kind, name="a/#")) == ("address-pattern", "a/#", {})
    assert ours(request("DELETE", kind, identity="router.config.address/a/#")) == ("address-pattern", "a/#", {})
    with pytest.raises(RequestError) as refusal:
        known_change(request("DELETE", kind))
    assert refusal.value.status == 400


@pytest.mark.parametrize(
    ("enable", "level"), [("debug+", "debug"), ("TRACE+", "debug"), ("notice+", "info"), ("critical", "error")]
)
def test_the_log_has_one_level(enable: str, level: str) -> None:
    for properties in ({"name": "log/DEFAULT"}, {"identity": "log/DEFAULT"}, {"name": "DEFAULT"}):
        assert ours(request("UPDATE", f"{SKUPPER}log", {"enable": enable}, **properties)) == (
            "log",
            None,
            {"level": level},
        )


@pytest.mark.parametrize(
    ("operation", "kind", "body", "named"),
    [
        ("CREATE", "listener", {"port": "1", "sslProfile": "x"}, "sslProfile"),
        ("CREATE", "listener", {"port": "1", "role": "edge"}, "edge"),
        ("CREATE", "router.config.address", {"prefix": "a", "waypoint": True}, "waypoint"),
        ("CREATE", "router.config.autoLink", {"address": "a"}, "direction"),
        ("CREATE", "router.config.autoLink", {"address": "a", "direction": "in", "phase": 1}, "phase"),
        ("UPDATE", "log", {"enable": "debug-"}, "debug-"),
        ("UPDATE", "log", {"enable": "info+", "outputFile": "/tmp/x"}, "outputFile"),
        ("UPDATE", "log", {"enable": "info+", "module": "ROUTER"}, "DEFAULT"),
    ],
)
def test_what_has_no_counterpart_is_named_and_nothing_changes(
    operation: str, kind: str, body: Mapping[str, object], named: str
) -> None:
    with pytest.raises(RequestError, match=named):
        known_change(request(operation, f"{DISPATCH}{kind}", body))


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("CREATE", "org.amqpmesh.listener"),
        ("CREATE", "listener"),
        ("UPDATE", f"{SKUPPER}listener"),
        ("CREATE", f"{SKUPPER}vhost"),
        ("READ", f"{SKUPPER}listener"),
        ("DELETE", f"{SKUPPER}connection"),
    ],
)
def test_other_requests_are_left_alone(operation: str, kind: str) -> None:
    assert known_change(request(operation, kind)) is None


async def test_a_tool_makes_changes_that_hold_and_are_marked() -> None:
    door = ListenerConfig(url=LOOPBACK, name="door", manage=True)
    plain = ListenerConfig(url=LOOPBACK, name="plain")
    async with Router(id="C", listeners=[LOOPBACK], drain=0.1) as container:
        far = ConnectorConfig(url=container.listeners[0].url, name="far", role="container")
        async with Router(id="A", listeners=[door, plain], connectors=[far], drain=0.1) as router:
            async with connect(router.listeners[0].url) as client, client.requester(ADDRESS) as management:

                async def ask(operation: str, kind: str, body: object = None, /, **properties: str) -> tuple[Any, Any]:
                    answer = await management.request(request(operation, f"{DISPATCH}{kind}", body, **properties))
                    return answer.application_properties["statusCode"], answer.body

                given = {"prefix": "all", "distribution": "multicast"}
                status, body = await ask("CREATE", "router.config.address", given)
                assert status == 201
                assert body == {
                    "name": "all/#",
                    "identity": "router.config.address/all/#",
                    "type": f"{DISPATCH}router.config.address",
                    "prefix": "all",
                    "distribution": "multicast",
                }
                link = {"address": "q", "direction": "in", "connection": "far"}
                assert (await ask("CREATE", "router.config.autoLink", link, name="al"))[0] == 201
                # The log of an embedded router is its process's.
                assert (await ask("UPDATE", "log", {"enable": "error+"}, identity="log/DEFAULT"))[0] == 409
                told = router.statistics()
                assert [(each.name, each.runtime) for each in told.address_patterns] == [("all/#", True)]
                assert [(each.name, each.address, each.runtime) for each in told.container_links] == [("al", "q", True)]
                assert (await ask("CREATE", "router.config.address", {"pattern": "all/#"}))[0] == 409
                for kind, name in (("router.config.address", "all/#"), ("router.config.autoLink", "al")):
                    assert (await ask("DELETE", kind, name=name))[0] == 204
                    assert (await ask("DELETE", kind, name=name))[0] == 404
                told = router.statistics()
                assert not told.address_patterns
                assert not told.container_links
            async with connect(router.listeners[1].url) as client, client.requester(ADDRESS) as management:
                answer = await management.request(
                    request("CREATE", f"{SKUPPER}router.config.address", {"prefix": "other"})
                )
                assert answer.application_properties["statusCode"] == 403
