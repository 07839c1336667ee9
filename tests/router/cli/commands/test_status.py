"""`amqpmesh status`, beside a router."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import trio

from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.messaging import Target
from amqpmesh.router.amqp.standard.performatives import Attach, Begin
from amqpmesh.router.cli.exit_status import RefusedError
from amqpmesh.router.cli.process.interruptible import PeerTimeout
from amqpmesh.router.cli.router_state import all_pages
from amqpmesh.router.client.connect import connect
from amqpmesh.router.config.file import ConnectorConfig, ListenerConfig, PlaceConfig, PolicyConfig
from amqpmesh.router.config.users import add_user, group_user
from amqpmesh.router.message.content import Message
from amqpmesh.router.statistics.configured import ConnectorState
from tests.support.peers.scripted_stream import Peer, attached
from tests.support.processes.router_thread import Command, Serve, Served


@pytest.fixture(autouse=True)
def hundred_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


def waits(served: Served, address: str) -> None:
    """Attach a sender that waits for credit."""

    async def send(*, task_status: trio.TaskStatus[None]) -> None:
        async with served.router.sender(address) as sender:
            task_status.started()
            await sender.send("hi")

    served.begin(send)


def row(said: str, *beginning: str) -> str:
    """Return the first line that begins with these words."""
    pattern = r"\s+".join(map(re.escape, beginning))
    found = re.search(rf"^{pattern}.*$", said, re.MULTILINE)
    assert found is not None, said
    return found.group()


def test_it_shows_why_a_sender_has_no_credit(served: Served, command: Command) -> None:
    served.receive("hello", credit=3)
    waits(served, "other")
    said = command("status")
    assert (said.status, said.err) == (0, "")
    assert said.out.startswith("router A, up ")
    assert re.search(r"^amqp +amqp://127\.0\.0\.1:\d+ +1 +0$", said.out, re.MULTILINE)
    assert row(said.out, "hello", "balanced").split() == ["hello", "balanced", "0", "1", "0", "0", "0", "-"]
    assert row(said.out, "in-process", "receiver", "hello").split() == [
        "in-process",
        "receiver",
        "hello",
        *["0", "0", "3", "-"],
    ]
    assert re.fullmatch(
        r"in-process  +sender  +other +0 +0 +none, \d\.\d s +no receiver anywhere",
        row(said.out, "in-process", "sender", "other"),
    )


def test_its_own_connection_and_links_are_marked(
    served: Served, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amqpmesh.router.runtime.management_node.SNAPSHOT_TIME", 0.0)
    said = command("status").out
    assert "connections 1, links 2," in said, "as many as there are rows"
    row(said, "(this command)", "127.0.0.1", "-", "in", "amqp", "normal", "-", "2")
    row(said, "(this command)", "sender", "$management")
    assert said.count("(this command)") == 3
    assert not re.search(r"^amqpmesh-status", said, re.MULTILINE)
    told = json.loads(command("status", "--json").out)
    (own,) = (each for each in told["connections"] if each["number"] == told["own_connection"])
    assert own["container_id"].startswith("amqpmesh-status-")
    assert "$management" in {link["address"] for link in told["links"] if link["connection"] == own["number"]}


def test_an_answer_may_be_older_than_its_connection(
    served: Served, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amqpmesh.router.runtime.management_node.SNAPSHOT_TIME", 60.0)
    command("status")
    assert json.loads(command("status", "--json").out)["own_connection"] is None
    assert re.search("^amqpmesh-status-", command("status").out, re.MULTILINE)


def test_another_command_of_the_kind_is_not_taken_for_this_one(served: Served, command: Command) -> None:
    async def other(*, task_status: trio.TaskStatus[None]) -> None:
        async with connect(served.url, id="amqpmesh-status-other"):
            task_status.started()
            await trio.sleep_forever()

    served.begin(other)
    said = command("status").out
    row(said, "amqpmesh-status-other", "127.0.0.1")
    row(said, "(this command)", "127.0.0.1")


def test_names_give_way_to_reasons_in_a_hundred_columns(served: Served, command: Command) -> None:
    waits(served, "a-very-long-address/" * 10)
    said = command("status")
    assert max(map(len, said.out.splitlines())) <= 100
    assert row(said.out, "in-process", "sender", "a-very-long").endswith("  no receiver anywhere")


def test_into_what_is_no_terminal_nothing_is_cut(
    served: Served, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS")
    name = "a-very-long-address/" * 10
    waits(served, name)
    said = command("status")
    assert row(said.out, "in-process", "sender", name).endswith("  no receiver anywhere")
    assert "…" not in said.out


def test_a_name_cannot_control_the_terminal(served: Served, command: Command) -> None:
    served.receive("\x1b[31mred\x07")
    said = command("status")
    assert r"\u001b[31mred\u0007" in said.out
    assert "\x1b" not in said.out


def test_a_connector_says_where_it_was_sent_or_why_it_did_not_go(
    serve: Serve, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    there = serve(id="B")
    port = int(there.url.rpartition(":")[2])

    def sent_to(host: str) -> tuple[str, str]:
        place = PlaceConfig(hostname=host, port=port)
        first = serve(listeners=[ListenerConfig(url="amqp://127.0.0.1:0", redirect=place)])
        connector = ConnectorConfig(url=first.url, name="broker", role="container", redirects=("localhost",))
        near = serve(id="N", connectors=[connector])

        def has_arrived() -> bool:
            [told] = near.router.statistics().connectors
            waits = told.state is ConnectorState.WAITING and told.failures > 2  # for a fifth of a second at least
            return waits or bool(told.redirected_from and told.connection is not None)

        near.until(has_arrived)
        return first.url, row(command("status", "--url", near.url).out, "broker", "container")

    _, line = sent_to("b.example")
    assert line.endswith("not followed: the host 'b.example' is not allowed")
    url, line = sent_to("localhost")
    assert re.search(rf" amqp://localhost:{port} \(redirected from {url}\) +0 +-$", line)


def test_it_shows_which_share_of_an_addresss_deliveries_was_decided_and_why(served: Served, command: Command) -> None:
    served.receive("idle")
    served.receive("hello")
    assert command("send", "hello", "--body", "hi", "--count", "1000", "--settled").status == 0
    (told,) = (each for each in served.router.statistics().addresses if each.name == "hello")
    assert told.relayed + told.decided == 1000
    said = command("status").out
    pattern = r"^hello +1,000 +(\d+|< 1) % +\D.* (\d+|< 1) %$"
    table = said[said.index("DECISIONS") :].partition("LINKS")[0]
    assert re.search(pattern, table, re.MULTILINE), said
    assert "idle" not in table
    (address,) = (each for each in json.loads(command("status", "--json").out)["addresses"] if each["name"] == "hello")
    assert (address["relayed"], address["decided"]) == (told.relayed, told.decided)
    assert address["decisions"] == told.decisions


def test_the_routers_own_messages_are_decided_and_say_so(served: Served) -> None:
    async def ask() -> list[Mapping[str, int]]:
        async with served.router.requester("$management") as requester:
            for _ in range(2):
                await requester.request(Message(None, application_properties={"operation": "QUERY", "entityType": ""}))
            return [each.decisions for each in served.router.statistics().addresses]

    assert any("router's own message" in each for each in served.do(ask))


def test_all_may_be_json(served: Served, command: Command) -> None:
    served.receive("hello", credit=3)
    told = json.loads(command("status", "--json").out)
    statistics = served.router.statistics()
    assert sorted(told) == [
        *(
            "address_patterns",
            "addresses",
            "adverts",
            "connections",
            "connectors",
            "container_links",
            "disagreements",
            "elsewhere",
            "lanes",
            "limits",
            "links",
            "listeners",
            "log",
            "mesh",
            "metrics",
            "neighbours",
            "nodes",
        ),
        *("own_connection", "policy", "rates", "resumption", "router", "routes", "telemetry", "termini", "tracing"),
    ]
    assert (told["mesh"], told["policy"], told["neighbours"]) == (None, None, [])
    assert told["router"]["id"] == "A"
    assert told["router"]["started_at"] == statistics.router.started_at
    listener = dict(told["listeners"][0])
    assert [listener.pop(name) for name in ("type", "identity")] == ["org.amqpmesh.listener", "listener/amqp"]
    assert listener == asdict(statistics.listeners[0]) | {"connections": 1}
    (link,) = (link for link in told["links"] if link["address"] == "hello")
    assert (link["direction"], link["credit"], link["reason"]) == ("outgoing", 3, None)


def test_limits_are_shown_if_they_are_asked_for(
    serve: Serve, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tmp_path / "policy.toml"
    limits = "connections = 5, links = 9, sessions = 1_000, message = 5_000, frame = 4_096, session_window = 64"
    policy.write_text(f'[[group]]\nname = "g"\nmay = ["dynamic"]\nmanage = ["read"]\nlimits = {{ {limits} }}')
    monkeypatch.setenv("AMQPMESH_URL", serve(policy=PolicyConfig(file=policy)).url)
    said = command("status", "--tenants")
    assert said.status == 0, said.err
    for name, used, allowed in (
        ("connections", "1", "5"),
        ("links", "2", "9"),
        ("sessions", "2", "1,000"),
        ("message", "5,000", "5,000"),
        ("frame", "4,096", "4,096"),
        ("session_window", "64", "64"),
    ):
        assert row(said.out, "-", "127.0.0.1", name).split()[3:] == [used, allowed, "0"]
    assert "LIMITS" not in command("status").out
    told = json.loads(command("status", "--json").out)["limits"]
    assert [(each["limit"], each["used"], each["allowed"]) for each in told] == [
        ("connections", 1, 5),
        ("sessions", 2, 1000),
        ("links", 2, 9),
        ("message", 5000, 5000),
        ("frame", 4096, 4096),
        ("session_window", 64, 64),
    ]


def test_a_router_may_be_named(served: Served, command: Command) -> None:
    assert command("status", "A").out.startswith("router A, up ")


def test_a_router_that_is_not_known_ends_with_3(served: Served, command: Command) -> None:
    said = command("status", "elsewhere")
    assert (said.status, said.out) == (3, "")
    assert "elsewhere" in said.err


def test_nobody_there_ends_with_3(command: Command) -> None:
    assert command("status", "--url", "amqp://127.0.0.1:1").status == 3


def answer(body: Any, code: int = 200) -> Message:
    return Message(body, application_properties={"statusCode": code, "statusDescription": "Not Implemented"})


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (answer({}, 501), "answers 501: Not Implemented"),
        (Message("hi"), "answers None: None"),
        (answer("hi"), "not understood"),
        (answer({"attributeNames": [], "results": [["x"]]}), "not understood"),
        (answer({"attributeNames": ["type"], "results": [["org.amqpmesh.link"]]}), "not understood"),
    ],
)
async def test_what_is_no_answer_is_said_to_be_none(message: Message, reason: str) -> None:
    async def ask(_: Message) -> Message:
        return message

    with pytest.raises(RefusedError, match=reason):
        await all_pages(ask)


def test_a_router_that_has_more_than_an_answer_is_asked_again(
    served: Served, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in range(5):
        served.receive(f"q{index}")
    for name in ("router.management.service.PAGE", "router.cli.router_state.PAGE"):
        monkeypatch.setattr(f"amqpmesh.{name}", 2)
    heard = []

    class Watched(PeerTimeout):
        def progress(self) -> None:
            heard.append(self)
            super().progress()

    monkeypatch.setattr("amqpmesh.router.cli.watching.PeerTimeout", Watched)
    told = json.loads(command("status", "--json").out)
    assert len(heard) > 2, "each answer is waited for anew"
    addresses = [link["address"] for link in told["links"]]
    assert [f"q{index}" for index in range(5)] == sorted(each for each in addresses if each.startswith("q"))


def test_the_command_shows_users_to_those_who_may_read_them(
    serve: Serve, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "users.toml"
    add_user(file, "eve", "secret", 4096)
    group_user(file, "eve", ["readers"])
    door = ListenerConfig(url="amqp://127.0.0.1:0", name="door", sasl=("SCRAM-SHA-256",), users=file)
    own = ListenerConfig(url="amqp://127.0.0.1:0", name="own", manage=True)
    monkeypatch.setenv("AMQPMESH_URL", serve(listeners=[own, door]).url)
    assert "USERS" not in command("status").out
    shown = command("status", "--users").out.split("USERS\n")[1]
    assert shown.split("\n")[1].split() == ["eve", "door", "enabled", "readers"]
    (eve,) = json.loads(command("status", "--users", "--json").out)["users"]
    assert eve["listeners"] == ["door"]
    assert "users" not in json.loads(command("status", "--json").out)


def test_links_of_clients_that_are_away_are_shown_if_they_are_asked_for(served: Served, command: Command) -> None:
    async def leave() -> None:
        stream = await trio.open_tcp_stream("127.0.0.1", int(served.url.rpartition(":")[2]))
        peer = Peer(stream)
        await peer.open()
        target = Target(address="orders", timeout=30)
        await peer.write(Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9))
        await peer.write(attached(Role.SENDER, name="till-out", target=target))
        await peer.expect(Begin)
        await peer.expect(Attach)
        await stream.aclose()
        while not served.router.statistics().termini:
            await trio.lowlevel.checkpoint()

    served.do(leave)
    assert "SUSPENDED" not in command("status").out
    said = command("status", "--suspended").out
    assert row(said, "resumption: resumable 1, suspended 1, ")
    shown = said.split("SUSPENDED LINKS\n")[1].splitlines()[1].split()
    assert shown[1:6] == ["127.0.0.1", "-", "till-out", "sender", "orders"]
    assert shown[6] == "0"
    assert shown[8] == "KiB"
    (told,) = json.loads(command("status", "--json").out)["termini"]
    assert (told["name"], told["address"], told["timeout"]) == ("till-out", "orders", 30)
