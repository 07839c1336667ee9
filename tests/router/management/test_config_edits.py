"""Tables of the configuration that clients create, change and delete by `$management`, and the clients that may."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh import ConnectionClosedError, InDoubtError, ListenerConfig, Message, Router, connect
from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.client.requester import Requester
from amqpmesh.router.config.edits import KINDS, MAX_NAME, MAX_TEXT, EditError
from amqpmesh.router.config.file import (
    AddressConfig,
    ConnectorConfig,
    MeshConfig,
    PasswordConfig,
    PolicyConfig,
    RouterConfig,
)
from amqpmesh.router.config.observability import AuditConfig, LogConfig, TelemetryConfig
from amqpmesh.router.management.edit_requests import config_edit
from amqpmesh.router.management.service import ADDRESS, RequestError

LOOPBACK = "amqp://127.0.0.1:0"


@asynccontextmanager
async def managed(**settings: Any) -> AsyncIterator[tuple[Router, Requester]]:
    """Provide a router, and a client that may change it."""
    config = {"id": "A", "listeners": [ListenerConfig(url=LOOPBACK, name="own", manage=True)], **settings}
    async with (
        Router(**config) as router,
        connect(router.listeners[0].url) as client,
        client.requester(ADDRESS) as requester,
    ):
        yield router, requester


async def ask(requester: Requester, operation: str, body: Any = None, **named: Any) -> tuple[int, Any]:
    """Make a request. Returns: the status, and the body, or the reason of a refusal."""
    answer = await requester.request(Message(body, application_properties={"operation": operation, **named}))
    status = int(answer.application_properties["statusCode"])
    return status, answer.body if status < 400 else str(answer.application_properties["statusDescription"])


async def read(requester: Requester, kind: str, name: str) -> dict[str, Any]:
    status, body = await ask(requester, "READ", type=kind, name=name)
    assert status == 200, body
    found: dict[str, Any] = body
    return found


# ---------------------------------------------------------------------------------------------------- what can be done


async def test_a_recording_is_ended_and_comes_back_with_the_file(tmp_path: Path) -> None:
    async with managed(telemetry=TelemetryConfig(directory=tmp_path / "t")) as (router, requester):
        given = router.config
        for kind, keys in (("telemetry", {"sample": 0.5}), ("resumption", {"links": 7})):
            assert (await ask(requester, "UPDATE", keys, type=kind))[0] == 200
            assert (await read(requester, kind, kind))["settings"].items() >= keys.items()
        assert (await ask(requester, "DELETE", type="telemetry", name="telemetry"))[0] == 204
        assert router.config.telemetry is None
        assert (await ask(requester, "READ", type="telemetry", name="telemetry"))[0] == 404
        assert "telemetry" in (await read(requester, "router", "A"))["changed"]
        # The folder is a file's to name: a client could have the router write anywhere.
        folder = {"directory": str(tmp_path / "t")}
        assert (await ask(requester, "CREATE", folder, type="telemetry"))[0] == 403
        applied = await router.apply(given)
        assert {each.key for each in applied.differences} == {"telemetry", "resumption.links"}
        assert router.config == given


async def test_a_pattern_is_created_changed_and_deleted_and_marked_while_it_is_there() -> None:
    async with managed() as (router, requester):
        status, created = await ask(requester, "CREATE", {"max_credit": 3}, type="address-pattern", name="news/#")
        assert status == 201
        assert (created["name"], created["identity"], created["type"], created["runtime"]) == (
            "news/#",
            "address-pattern/news/#",
            "org.amqpmesh.address-pattern",
            True,
        )
        assert created["settings"]["max_credit"] == 3
        assert created["changes"] == [
            {
                "key": "address[news/#]",
                "effect": "at once",
                "from": None,
                "to": '{ pattern = "news/#", max_credit = 3 }',
                "reason": None,
            }
        ]
        assert router.config.addresses == (AddressConfig(pattern="news/#", max_credit=3),)
        found = await read(requester, "address-pattern", "news/#")
        assert (found["runtime"], found["settings"]) == (True, created["settings"])
        status, changed = await ask(
            requester, "UPDATE", {"max_credit": None, "attempts": 9}, identity="address-pattern/news/#"
        )
        assert (status, changed["settings"]["max_credit"], changed["settings"]["attempts"]) == (200, 500, 9)
        assert router.statistics().router.changed == ("address[news/#]",)
        assert await ask(requester, "DELETE", type="org.amqpmesh.address-pattern", name="news/#") == (204, {})
        assert router.config.addresses == ()
        assert router.statistics().router.changed == ()
        assert (await ask(requester, "READ", type="address-pattern", name="news/#"))[0] == 404


async def test_a_pattern_holds_for_links_that_exist() -> None:
    async with (
        managed() as (router, requester),
        connect(router.listeners[0].url) as client,
        client.receiver("q", credit=0) as receiver,
        client.sender("q") as sender,
    ):
        await ask(requester, "CREATE", {"max_credit": 2}, type="address-pattern", name="q")
        receiver.flow(10)
        for number in range(2):
            await sender.transfer(number)
        (told,) = (each for each in router.statistics().addresses if each.name == "q")
        assert told.granted <= 2
        for _ in range(2):
            (await receiver.receive()).accept()


async def test_a_listener_comes_changes_and_goes_and_others_notice_nothing() -> None:
    async with (
        managed() as (router, requester),
        connect(router.listeners[0].url) as client,
        client.receiver("q") as receiver,
        client.sender("q") as sender,
    ):

        async def send() -> None:
            outcome = await sender.transfer("x")
            (await receiver.receive()).accept()
            await outcome.outcome()

        await send()
        status, created = await ask(
            requester, "CREATE", {"url": LOOPBACK, "connections": 1}, type="listener", name="guests"
        )
        assert status == 201, created
        await send()
        async with connect(router.listeners[1].url) as guest, guest.receiver("other") as other:
            (own, told) = router.statistics().listeners
            assert (own.runtime, told.runtime, told.settings["connections"]) == (False, True, 1)
            assert (await ask(requester, "UPDATE", {"links": 7}, type="listener", name="guests"))[0] == 200
            assert router.listeners[1].config.links == 7
            await send()
            assert (await ask(requester, "DELETE", type="listener", name="guests"))[0] == 204
            with pytest.raises(ConnectionClosedError, match="the configuration has changed"):
                await other.receive()
        await send()
        assert [each.name for each in router.listeners] == ["own"]


async def test_a_client_may_delete_the_listener_that_it_came_by() -> None:
    own, other = (ListenerConfig(url=LOOPBACK, name=name, manage=name == "own") for name in ("own", "other"))
    async with Router(id="A", listeners=[own, other]) as router:
        url = router.listeners[0].url
        with pytest.raises((ConnectionClosedError, InDoubtError), match="the configuration has changed"):
            async with connect(url) as client, client.requester(ADDRESS) as requester:
                await ask(requester, "DELETE", type="listener", name="own")
                await ask(requester, "READ", type="listener", name="other")
        assert [each.name for each in router.listeners] == ["other"]
        async with connect(router.listeners[0].url):
            pass


async def test_a_connector_and_its_link_bring_messages_and_go_in_order() -> None:
    async with (
        Router(id="broker", listeners=[LOOPBACK]) as broker,
        managed() as (router, requester),
        connect(broker.listeners[0].url) as producer,
        connect(router.listeners[0].url) as client,
    ):
        url = broker.listeners[0].url
        body = {"url": url, "role": "container"}
        assert (await ask(requester, "CREATE", body, type="connector", name="b"))[0] == 201
        link = {"connector": "b", "source": "orders", "address": "q"}
        assert (await ask(requester, "CREATE", link, type="container-link", name="l"))[0] == 201
        async with client.receiver("q") as receiver, producer.sender("orders") as sender:
            sent = await sender.transfer("x")
            delivery = await receiver.receive()
            assert delivery.message.body == "x"
            delivery.accept()
            await sent.outcome()
        status, reason = await ask(requester, "DELETE", type="connector", name="b")
        assert (status, reason) == (400, "Bad Request: link[l].connector: there is no connector 'b'; known are none")
        assert [each.runtime for each in router.statistics().container_links] == [True]
        assert (await ask(requester, "DELETE", type="container-link", name="l"))[0] == 204
        assert (await ask(requester, "DELETE", type="connector", name="b"))[0] == 204
        assert (router.statistics().connectors, router.statistics().container_links) == ((), ())


async def test_a_limit_of_the_router_changes_where_it_is_the_default() -> None:
    other = ListenerConfig(url=LOOPBACK, name="other", max_frame_size=4096)
    own = ListenerConfig(url=LOOPBACK, name="own", manage=True)
    async with managed(listeners=[own, other]) as (router, requester):
        status, body = await ask(requester, "UPDATE", {"max_frame_size": 1024, "memory": 2**21}, type="router")
        assert (status, body["runtime"]) == (200, True)
        assert [each["key"] for each in body["changes"]] == [
            "router.max_frame_size",
            "router.memory",
            "listener[own].max_frame_size",
        ]
        assert [each.max_frame_size for each in router.config.listeners] == [1024, 4096]
        assert router.statistics().router.memory == 2**21
        assert (await read(requester, "router", "A"))["settings"]["memory"] == 2**21


async def test_a_change_is_taken_back_by_the_next_configuration_that_is_applied() -> None:
    async with managed() as (router, requester):
        given = router.config
        await ask(requester, "CREATE", {"max_credit": 3}, type="address-pattern", name="a")
        await ask(requester, "UPDATE", {"drain": 1.0}, type="router")
        applied = await router.apply(given)
        assert [each.key for each in applied.differences] == ["router.drain", "address[a]"]
        assert router.config == given
        assert router.statistics().router.changed == ()
        assert not (await router.apply(given, dry_run=True)).differences


async def test_a_file_that_is_read_again_keeps_what_management_has_changed() -> None:
    async with managed() as (router, requester):
        await ask(requester, "CREATE", {}, type="address-pattern", name="a")
        assert not (await router.apply()).differences
        assert router.statistics().router.changed == ("address[a]",)


async def test_a_cost_that_was_changed_stays_when_something_else_changes() -> None:
    door = ListenerConfig(url=LOOPBACK, name="door", role="mesh", cost=4)
    own = ListenerConfig(url=LOOPBACK, name="own", manage=True)
    async with managed(listeners=[own, door], mesh=MeshConfig(insecure=True)) as (router, requester):
        assert (await ask(requester, "UPDATE", {"cost": 9}, type="listener", name="door"))[0] == 200
        await ask(requester, "CREATE", {}, type="address-pattern", name="a")
        told = router.statistics()
        assert [(each.cost, each.runtime) for each in told.listeners] == [(1, False), (9, True)]
        assert told.router.changed == ("address[a]", "listener[door].cost")
        # A new cost beside other keys counts.
        assert (await ask(requester, "UPDATE", {"cost": 5, "links": 7}, type="listener", name="door"))[0] == 200
        assert [each.cost for each in router.statistics().listeners] == [1, 5]
        # Another listener of that name has its own.
        await ask(requester, "UPDATE", {"cost": 8}, type="listener", name="door")
        await ask(requester, "DELETE", type="listener", name="door")
        await ask(requester, "CREATE", {"url": LOOPBACK, "role": "mesh"}, type="listener", name="door")
        assert [each.cost for each in router.statistics().listeners] == [1, 1]


# ------------------------------------------------------------------------------------------------------ what is refused


SECRET = "/nowhere-secret-file"

REFUSED = [
    ("CREATE", "address-pattern", "q", {"max_credit": "many"}, 400, "max_credit: must be a whole number"),
    ("CREATE", "address-pattern", "q", {"max_credit": True}, 400, "max_credit: must be a whole number"),
    ("CREATE", "address-pattern", "q", {"max_credit": 0}, 400, "max_credit: must be at least 1"),
    ("CREATE", "address-pattern", "q", {"nothing": 1}, 400, "nothing: unknown key"),
    ("CREATE", "address-pattern", "q", {"max_credit": {"a": 1}}, 400, "max_credit: must be a whole number"),
    ("CREATE", "address-pattern", "q", {"max-credit": 1, "max_credit": 2}, 400, "given twice"),
    ("CREATE", "address-pattern", "q", {"overflow": "drop"}, 400, "overflow: does nothing unless"),
    ("CREATE", "address-pattern", "q", {"alias": "x\ny"}, 400, "alias: must be without control characters"),
    ("CREATE", "address-pattern", "q", {"alias": "x" * (MAX_TEXT + 1)}, 400, "alias: must have at most"),
    ("CREATE", "address-pattern", "q\0", {}, 400, "name: must be without control characters"),
    ("CREATE", "address-pattern", "q" * (MAX_NAME + 1), {}, 400, "name: must have 1 to 255 characters"),
    ("CREATE", "address-pattern", "q", {"pattern": "r"}, 400, "pattern: is another one than the name"),
    ("CREATE", "address-pattern", "q", {"redirect": [[[[[1]]]]]}, 400, "nested too deeply"),
    ("CREATE", "address-pattern", "q", {"alias": b"x"}, 400, "a value is no text"),
    ("CREATE", "address-pattern", "q", {1: 2}, 400, "a key is no string"),
    ("CREATE", "address-pattern", "q", None, 400, "the body is no map"),
    ("CREATE", "address-pattern", "q", "max_credit = 1", 400, "the body is no map"),
    ("CREATE", "address-pattern", "$management", {}, 400, "pattern: addresses that begin with"),
    ("CREATE", "address-pattern", "there", {}, 409, "there is one named 'there'"),
    ("CREATE", "address-pattern", None, {}, 400, "CREATE needs a `name`"),
    ("CREATE", "router", "A", {}, 409, "a router has one router"),
    ("CREATE", "log", "log", {}, 409, "a router has one log"),
    ("CREATE", "connection", "1", {}, 405, "nothing of that type is created"),
    ("CREATE", "user", "u", {"password": "p"}, 409, "no listener has a file of users"),
    ("CREATE", "nonsense", "1", {}, 404, "there is no such type"),
    ("CREATE", None, "1", {}, 400, "CREATE needs a `type`"),
    ("CREATE", "listener", "l", {}, 400, "Bad Request: url: is missing"),
    ("CREATE", "listener", "l", {"url": f"amqp://u:{SECRET[1:]}@h:1"}, 400, "url: takes no user and no password"),
    ("CREATE", "connector", "l", {"url": f"amqp://u:{SECRET[1:]}@h:1"}, 400, "url: 'amqp://h:1' takes no user"),
    ("CREATE", "listener", "l", {"url": "amqp://0.0.0.0:0"}, 400, "sasl: without authentication"),
    (
        "CREATE",
        "listener",
        "l",
        {"url": LOOPBACK, "role": "mesh"},
        400,
        'listener[l].role: "mesh" needs a table [mesh]',
    ),
    ("CREATE", "listener", "l", {"url": "amqp://127.0.0.1:{busy}"}, 400, "two listeners are at"),
    (
        "CREATE",
        "listener",
        "l",
        {"url": "amqps://127.0.0.1:0", "tls": {"certificate": SECRET, "key": SECRET}},
        403,
        "tls.certificate: no other table names this file",
    ),
    (
        "CREATE",
        "connector",
        "l",
        {"url": "amqp://127.0.0.1:9", "role": "container", "user": "u", "password": {"file": SECRET}},
        403,
        "password: no other table names this file",
    ),
    (
        "CREATE",
        "connector",
        "l",
        {"url": "amqp://127.0.0.1:9", "role": "container", "user": "u", "password": {"env": "HOME"}},
        403,
        "password: no other table names this file",
    ),
    ("UPDATE", "connector", "c", {"url": "amqp://127.0.0.1:10"}, 403, "url: the connector has a password"),
    ("UPDATE", "address-pattern", "nowhere", {"attempts": 1}, 404, "has no address 'nowhere'"),
    ("UPDATE", "address-pattern", "there", {"pattern": "elsewhere"}, 400, "pattern: names the row, and stays"),
    ("UPDATE", "connector", "c", {"url": None}, 400, "url: has no default"),
    ("UPDATE", "router", None, {"id": "B"}, 409, "router.id needs a restart: its peers know the router by it"),
    ("UPDATE", "router", "B", {"drain": 1.0}, 404, "has no router 'B'"),
    ("UPDATE", "metrics", None, {"series": 6}, 400, "series: must be at least 500"),
    ("UPDATE", "telemetry", None, {"sample": 0.5}, 404, "has no telemetry"),
    ("DELETE", "telemetry", None, None, 404, "has no telemetry"),
    ("CREATE", "telemetry", None, {"directory": "/tmp/x"}, 403, "directory: no other table names this file"),
    ("CREATE", "telemetry", None, {"sample": 2.0}, 400, "directory: is missing"),
    ("CREATE", "metrics", None, {}, 409, "a router has one metrics, which can be changed"),
    ("UPDATE", "log", None, {"level": "debug"}, 409, "a program has started this router"),
    ("UPDATE", None, "there", {"attempts": 1}, 400, "say its `type`"),
    ("DELETE", None, "there", None, 400, "say its `type`"),
    ("DELETE", "address-pattern", "nowhere", None, 404, "has no address 'nowhere'"),
    ("DELETE", "log", "log", None, 403, "a router always has its table log"),
    ("DELETE", "address-pattern", None, None, 400, "a `name` is missing"),
]


async def test_what_cannot_be_done_is_refused_with_the_reason_and_changes_nothing(tmp_path: Path) -> None:
    there = AddressConfig(pattern="there")
    (tmp_path / "password").write_text("p")
    connector = ConnectorConfig(
        url="amqp://127.0.0.1:9",
        name="c",
        role="container",
        user="u",
        password=PasswordConfig(file=tmp_path / "password"),
    )
    own = ListenerConfig(url="amqp://127.0.0.1:0", name="own", manage=True)
    async with managed(addresses=(there,), connectors=[connector], listeners=[own]) as (router, requester):
        busy = router.listeners[0].url.rpartition(":")[2]
        await router.apply(replace(router.config, listeners=(replace(own, url=f"amqp://127.0.0.1:{busy}"),)))
        before = router.config
        for operation, kind, name, body, status, reason in REFUSED:
            named = {key: value for key, value in (("type", kind), ("name", name)) if value is not None}
            if isinstance(body, dict) and "url" in body and body["url"] is not None:
                body = {**body, "url": body["url"].replace("{busy}", busy)}
            got, told = await ask(requester, operation, body, **named)
            assert (got, reason in told) == (status, True), (operation, kind, name, body, got, told)
            assert SECRET[1:] not in told
            assert router.config is before
            assert router.statistics().router.changed == ()


async def test_a_port_in_use_is_told_and_nothing_else_changes() -> None:
    with trio.socket.socket() as taken:
        await taken.bind(("127.0.0.1", 0))
        taken.listen()
        async with managed() as (router, requester):
            url = f"amqp://127.0.0.1:{taken.getsockname()[1]}"
            status, reason = await ask(requester, "CREATE", {"url": url}, type="listener", name="l")
            assert (status, url in reason) == (409, True)
            assert [each.name for each in router.listeners] == ["own"]
            assert router.statistics().router.changed == ()


async def test_management_adds_no_more_tables_than_it_may() -> None:
    async with managed(runtime_tables=2) as (_, requester):
        for name in "ab":
            assert (await ask(requester, "CREATE", {}, type="address-pattern", name=name))[0] == 201
        status, reason = await ask(requester, "CREATE", {}, type="address-pattern", name="c")
        assert (status, reason.partition(": ")[2]) == (
            409,
            "2 tables differ from the file already: see runtime_tables",
        )
        assert (await ask(requester, "UPDATE", {"attempts": 1}, type="address-pattern", name="b"))[0] == 200
        assert (await ask(requester, "DELETE", type="address-pattern", name="a"))[0] == 204
        assert (await ask(requester, "CREATE", {}, type="address-pattern", name="c"))[0] == 201


async def test_a_listener_that_permits_nothing_gives_no_right() -> None:
    guests = ListenerConfig(url=LOOPBACK, name="guests")
    async with managed(listeners=[guests]) as (router, requester):
        for operation in ("CREATE", "UPDATE", "DELETE"):
            status, reason = await ask(requester, operation, {"attempts": 1}, type="address-pattern", name="a")
            assert (status, reason) == (403, "Forbidden: not permitted")
        assert router.config.addresses == ()


async def test_a_group_writes_the_types_that_it_may(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    rights = '["write:address-pattern", "write:listener"]'
    policy.write_text(f'[[group]]\nname = "g"\nmay = ["dynamic"]\nmanage = {rights}\n')
    plain, own = (ListenerConfig(url=LOOPBACK, name=name, manage=name == "own") for name in ("plain", "own"))
    async with managed(listeners=[plain, own], policy=PolicyConfig(file=policy)) as (router, requester):
        assert (await ask(requester, "CREATE", {}, type="address-pattern", name="a"))[0] == 201
        assert (await ask(requester, "UPDATE", {"links": 7}, type="listener", name="plain"))[0] == 200
        for operation, kind, body in (
            ("CREATE", "connector", {"url": "amqp://127.0.0.1:9", "role": "container"}),
            ("UPDATE", "router", {"drain": 1.0}),
            # A listener with `manage` would let its clients change everything.
            ("UPDATE", "listener", {"manage": True}),
            ("CREATE", "listener", {"url": LOOPBACK, "manage": True}),
            ("UPDATE", "own", {"sasl": []}),
            ("DELETE", "own", None),
        ):
            name = "own" if kind == "own" else "plain" if operation == "UPDATE" else "new"
            name, kind = ("A", kind) if kind == "router" else (name, "listener" if kind == "own" else kind)
            got = await ask(requester, operation, body, type=kind, name=name)
            assert got == (403, "Forbidden: not permitted"), (operation, kind)
        # The configuration as a whole is for those who may read everything.
        assert (await ask(requester, "CONFIG", type="router"))[0] == 403
        policy.write_text('[[group]]\nname = "g"\nmay = ["dynamic"]\nmanage = ["read"]\n')
        await router.apply()
        status, told = await ask(requester, "CONFIG", type="router")
        assert (status, '[[address]]\npattern = "a"\n' in told["text"]) == (200, True)
        assert (await ask(requester, "CREATE", {}, type="address-pattern", name="b"))[0] == 403


async def test_a_tenant_changes_nothing_of_the_configuration(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(
        '[[tenant]]\nname = "t"\ndefault = true\n'
        '[[group]]\ntenant = "t"\nname = "g"\nmay = ["dynamic"]\nmanage = ["write"]\n'
    )
    listener = ListenerConfig(url=LOOPBACK, name="plain")
    async with managed(listeners=[listener], policy=PolicyConfig(file=policy)) as (router, requester):
        before = router.config
        for operation, kind, name, body in (
            ("CREATE", "address-pattern", "a", {}),
            ("UPDATE", "listener", "plain", {"links": 7}),
            ("DELETE", "listener", "plain", None),
            ("UPDATE", "router", "", {"drain": 1.0}),
        ):
            assert (await ask(requester, operation, body, type=kind, name=name))[0] == 403
        assert (await ask(requester, "CONFIG", type="router"))[0] == 403
        assert router.config is before


single = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text() | st.binary()
several = st.lists(single, max_size=3) | st.dictionaries(st.text(), single, max_size=3)
values = single | several | st.lists(several, max_size=2) | st.dictionaries(st.text(), several, max_size=2)


@given(
    st.sampled_from(["CREATE", "UPDATE", "DELETE"]),
    st.none() | st.sampled_from([*KINDS, "nothing"]),
    st.none() | st.text(),
    values | st.dictionaries(st.sampled_from(["url", "max_credit", "tls", "name", "cost", "sasl"]), values),
)
def test_whatever_is_asked_changes_a_valid_configuration_into_one_or_is_refused(
    operation: str, kind: str | None, name: str | None, body: Any
) -> None:
    properties = {"operation": operation, "type": kind, "name": name}
    config = RouterConfig(id="A", listeners=(ListenerConfig(url=LOOPBACK, name="own"),))
    try:
        edit = config_edit(Message(body, application_properties=properties))
        changed = config if edit is None else edit.edit(config)
    except (RequestError, ConfigError, EditError):
        return
    assert isinstance(changed, RouterConfig)
    json.dumps([str(each) for each in (changed.listeners, changed.addresses)])


async def test_the_audit_log_tells_who_has_changed_what(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    async with managed(audit=AuditConfig(file=file), log=LogConfig()) as (_, requester):
        await ask(requester, "CREATE", {"attempts": 2}, type="address-pattern", name="a")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    (line,) = (each for each in lines if each["event"] == "configuration changed")
    assert (line["source"], line["key"], line["to"], line["effect"]) == (
        "management",
        "address[a]",
        '{ pattern = "a", attempts = 2 }',
        "at once",
    )
    assert line["peer"] == "127.0.0.1"
