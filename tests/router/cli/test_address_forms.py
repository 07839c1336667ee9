"""Forms of an address on the command line, and of links within the process, in a mesh of two routers."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from amqpmesh.router.config.file import AddressConfig, ConnectorConfig, ListenerConfig, MeshConfig
from amqpmesh.router.message.content import Message
from tests.support.processes.router_thread import Command, Serve, Served

INSECURE = MeshConfig(insecure=True)


class Pair(NamedTuple):
    """Two routers, A and B."""

    near: Served
    far: Served


@pytest.fixture
def pair(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """Neighbours; the commands take the URL of the near one from the environment."""
    neighbours = ListenerConfig(url="amqp://127.0.0.1:0", role="mesh", name="mesh")
    far = serve(id="B", mesh=INSECURE, listeners=[ListenerConfig(url="amqp://127.0.0.1:0", name="clients"), neighbours])
    there = next(each.url for each in far.router.listeners if each.config.is_mesh)
    near = serve(
        id="A",
        mesh=INSECURE,
        connectors=[ConnectorConfig(url=there, role="mesh")],
        addresses=[AddressConfig(pattern="all of it", alias="@B")],
    )
    for each in (near, far):
        each.until(lambda it=each: [route.distance for route in it.router.statistics().routes] == [1])  # type: ignore[misc]  # of this turn
    monkeypatch.setenv("AMQPMESH_URL", near.url)
    return Pair(near, far)


def bodies(came: list[Message]) -> list[object]:
    """Of what has come."""
    return [message.body for message in came]


@pytest.mark.parametrize("address", ["q", "q@B"])
def test_a_message_to_a_name_at_another_router_reaches_its_receiver_there(
    pair: Pair, command: Command, address: str
) -> None:
    came = pair.far.receive("q")
    said = command("send", address, "--body", "hi")
    assert said.status == 0
    assert said.err.startswith("accepted by receiver in ")
    assert bodies(came) == ["hi"]


def test_a_message_to_a_name_here_reaches_its_receiver_here_and_no_other(pair: Pair, command: Command) -> None:
    here, there = pair.near.receive("q"), pair.far.receive("q")
    assert command("send", "q@A", "--body", "hi").status == 0
    assert (bodies(here), bodies(there)) == (["hi"], [])


def test_a_receiver_from_a_name_at_another_router_takes_messages_that_are_sent_there(
    pair: Pair, command: Command
) -> None:
    outcomes = pair.far.send("q", "one", "two")
    said = command("receive", "q@B", "--count", "2")
    assert (said.status, said.out) == (0, "one\ntwo\n")
    assert [str(each) for each in pair.far.first(2, outcomes)] == ["Accepted()", "Accepted()"]


def test_links_within_the_process_know_names_of_other_routers(pair: Pair) -> None:
    came = pair.near.receive("r@B")
    outcomes = pair.far.send("r", "there")
    pair.far.first(1, outcomes)
    back = pair.far.receive("s")
    pair.near.first(1, pair.near.send("s@B", "back"))
    assert (bodies(came), bodies(back)) == (["there"], ["back"])


def test_a_sender_that_waits_for_a_name_at_another_router_is_told_so(pair: Pair, command: Command) -> None:
    said = command("send", "nobody/receives@B", "--body", "hi", "--timeout", "1.5")
    assert said.status == 4
    assert 'waiting for credit on "nobody/receives@B"' in said.err


@pytest.mark.parametrize(
    ("verb", "address", "reason"),
    [
        ("send", "q@C", "amqp:not-found: no container 'C' is known here"),
        ("receive", "q@C", "amqp:not-found: no container 'C' is known here"),
        ("send", "@C", "amqp:not-found: no container 'C' is known here"),
        ("receive", "@B", "amqp:not-implemented: the whole of a container can be sent to, and not received from"),
        ("send", "q@", "amqp:invalid-field: the address must name a container behind its @"),
        ("receive", "@", "amqp:invalid-field: the address must name a container behind its @"),
        ("receive", "$management@B", "amqp:unauthorized-access: this address is a router's own"),
    ],
)
def test_an_address_that_cannot_be_is_refused_with_the_reason(
    pair: Pair, command: Command, verb: str, address: str, reason: str
) -> None:
    body = ["--body", "hi"] if verb == "send" else []
    said = command(verb, address, *body)
    assert said.status == 3
    assert reason in said.err
    assert pair.near.router.statistics().links == ()


def test_a_message_for_a_whole_router_without_to_is_rejected_with_the_reason(pair: Pair, command: Command) -> None:
    said = command("send", "@B", "--body", "hi")
    assert said.status == 1
    assert "an anonymous terminus needs messages with `to`" in said.err


@pytest.mark.parametrize("whole", ["@B", "all of it"])
@pytest.mark.parametrize("to", ["q", "q@B"])
def test_a_message_for_a_whole_router_goes_there_by_its_to(pair: Pair, command: Command, whole: str, to: str) -> None:
    here, there = pair.near.receive("q"), pair.far.receive("q")
    said = command("send", whole, "--to", to, "--body", "hi")
    assert said.status == 0
    assert said.err.startswith("accepted by receiver in ")
    assert (bodies(here), bodies(there)) == ([], ["hi"])
    assert there[0].to == to


def test_a_message_for_a_whole_router_whose_to_is_at_another_is_rejected_with_the_reason(
    pair: Pair, command: Command
) -> None:
    said = command("send", "@B", "--to", "q@A", "--body", "hi")
    assert said.status == 1
    assert "amqp:not-allowed" in said.err
