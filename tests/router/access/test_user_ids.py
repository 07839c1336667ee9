"""User-ids that do not match: refused at each way into the mesh, and nothing else is disturbed."""

from __future__ import annotations

import logging
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Rejected
from amqpmesh.router.amqp.standard.messaging import AmqpValue, Data, Header, Properties, Source
from amqpmesh.router.config.policy_file import parse_policy
from tests.support.worlds.meshes import World
from tests.support.worlds.network import Client, Network, Sent

if TYPE_CHECKING:
    from amqpmesh.policies.policy import Policy
    from amqpmesh.router.amqp.link import Sender

BODY = encode_composite(AmqpValue(value="x"))
ALL = 'send = ["#"]\nreceive = ["#"]\nmay = ["anonymous", "dynamic"]'


def policy(*user_ids: str) -> Policy:
    """Return a policy with a group for each text: further keys."""
    groups = "".join(f'[[group]]\nname = "g{number}"\n{keys}\n' for number, keys in enumerate(user_ids))
    return parse_policy(tomllib.loads(f'[[group]]\nname = "all"\n{ALL}\n{groups}'), Path("policy.toml"))


def network(*user_ids: str) -> Network:
    made = Network()
    made.core.set_policy(policy(*user_ids), made.now)
    return made


def message(user_id: bytes | None, to: str | None = None) -> bytes:
    head = encode_composite(Header(durable=True))
    return head + encode_composite(Properties(message_id="m", user_id=user_id, to=to)) + BODY


def is_refused(client: Client, sent: Sent) -> bool:
    """Return whether a message was refused, and not accepted."""
    if isinstance(sent.outcome, Accepted):
        return False
    assert isinstance(sent.outcome, Rejected), sent.outcome
    assert sent.outcome.error is not None
    assert sent.outcome.error.condition == "amqp:unauthorized-access"
    assert sent.outcome.error.description == "not permitted", "it says nothing of the policy"
    assert sent.link.is_attached, "the link stays"
    assert not client.detached
    return True


def try_to_send(world: Network, user: str | None, payload: bytes, address: str | None = "q") -> bool:
    """Return whether a message was refused by the router, or else came to its receiver and was accepted."""
    receiver, client = world.client(user="receiver"), world.client(user=user)
    receiver.receiver("q")
    link = client.sender(address)
    sent = client.send(link, payload)
    for arrival in receiver.take():
        assert bytes(arrival.payload).endswith(BODY)
        arrival.accept()
    world.run()
    assert not receiver.take()
    return is_refused(client, sent)


MATCH, REQUIRED, NONE, ANY = (f'user_id = "{each}"' for each in ("match", "required", "none", "any"))


@pytest.mark.parametrize("address", ["q", None])
@pytest.mark.parametrize(
    ("rules", "user", "user_id", "refused"),
    [
        ([], "alice", b"bob", False),
        ([MATCH], "alice", b"alice", False),
        ([MATCH], "alice", None, False),
        ([MATCH], "alice", b"", False),
        ([MATCH], "alice", b"bob", True),
        ([MATCH], "alice", b"Alice", True),
        ([MATCH], None, b"alice", True),
        ([MATCH], None, None, False),
        ([REQUIRED], "alice", b"alice", False),
        ([REQUIRED], "alice", None, True),
        ([REQUIRED], "alice", b"bob", True),
        ([NONE], "alice", b"alice", True),
        ([NONE], "alice", None, False),
        ([MATCH, ANY + '\nusers = ["alice"]'], "alice", b"bob", False),
        ([MATCH, ANY + '\nusers = ["alice"]'], "bert", b"bob", True),
        ([NONE, REQUIRED], "alice", b"alice", False),
        ([NONE, REQUIRED], "alice", None, False),
        ([NONE, REQUIRED], "alice", b"bob", True),
    ],
)
def test_a_message_has_a_user_id_that_a_group_permits(
    rules: list[str], user: str | None, user_id: bytes | None, refused: bool, address: str | None
) -> None:
    assert try_to_send(network(*rules), user, message(user_id, "q"), address) is refused


def sender(world: Network, *, address: str | None = "q", user: str = "alice") -> tuple[Client, Sender]:
    world.client(user="receiver").receiver("q", credit=20)
    client = world.client(user=user)
    return client, client.sender(address)


@pytest.mark.parametrize("address", ["q", None])
def test_a_settled_message_ends_its_link_since_no_outcome_can_tell(address: str | None) -> None:
    client, link = sender(network(MATCH), address=address)
    client.send(link, message(b"bob", "q"), settled=True)
    error = client.detached[link]
    assert error is not None
    assert error.condition == "amqp:unauthorized-access"
    assert error.description == "not permitted"
    other = client.sender("q")
    client.send(other, message(b"alice", "q"), settled=True)
    assert other.is_attached, "the connection is not disturbed"


def test_the_log_has_the_user_id_and_the_groups_and_refusals_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    world = network(MATCH)
    client, link = sender(world)
    with caplog.at_level(logging.INFO, "amqpmesh"):
        client.send(link, message(b"bob"))
    assert "message refused" in caplog.text
    assert "no group permits the user-id bob; its groups: all, g0" in caplog.text
    assert "address=q" in caplog.text
    assert world.core.context.denied == 1


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_user_id_beyond_the_first_frame_is_found(cut: int) -> None:
    world = network(MATCH)
    client, link = sender(world)
    for user_id, refused in ((b"bob", True), (b"alice", False)):
        data = message(user_id)
        sent = client.send(link, data[:cut], more=True)
        client.resume(sent, data[cut:])
        arrivals = world.clients[0].take()
        assert len(arrivals) == (not refused)
        for arrival in arrivals:
            assert bytes(arrival.payload).endswith(data[-len(BODY) :])
            arrival.accept()
        world.run()
        assert is_refused(client, sent) is refused


@pytest.mark.parametrize(
    ("payload", "message_format"),
    [
        (message(None), 1),
        (message(b"alice"), 1),
        (encode_composite(Header()) * 2 + message(b"bob"), 0),
        (message(b"alice") + message(b"bob"), 0),
        (encode_composite(Properties(user_id=b"alice")) + encode_composite(Properties(user_id=b"bob")) + BODY, 0),
        (bytes.fromhex("005374c10702a1016ba10176") + encode_composite(Properties(user_id=b"bob")) + BODY, 0),
        (bytes.fromhex("005373c0060240a103626f62") + BODY, 0),
        (bytes.fromhex("005373c0040240a005"), 0),
        (message(b"alice") + encode_composite(Properties(user_id=b"bob")), 0),
        (encode_composite(Data(value=b"x")) + encode_composite(Properties(user_id=b"bob")), 0),
        (bytes.fromhex("005374c10e00") + encode_composite(Properties(user_id=b"bob")) + BODY, 0),
        (bytes.fromhex("005373c0090140a003626f62") + BODY, 0),
        (bytes.fromhex("005277") + encode_composite(Properties(user_id=b"bob")), 0),
    ],
)
def test_a_message_in_which_a_user_id_could_hide_is_refused(payload: bytes, message_format: int) -> None:
    world = network(MATCH)
    client, link = sender(world)
    sent = client.send(link, payload, message_format=message_format)
    assert not world.clients[0].take()
    assert is_refused(client, sent)


@pytest.mark.parametrize("address", ["q", None])
@pytest.mark.parametrize("settled", [False, True])
def test_a_user_id_that_hides_in_a_later_frame_ends_the_link(address: str | None, settled: bool) -> None:
    first = encode_composite(Properties(message_id="m", to="q"))
    for cut in range(len(first), len(first) + len(BODY) + 2):
        world = network(MATCH)
        client, link = sender(world, address=address)
        data = first + BODY + encode_composite(Properties(user_id=b"bob"))
        sent = client.send(link, data[:cut], more=True, settled=settled)
        client.resume(sent, data[cut:])
        assert not world.clients[0].take(), "what was sent of it is aborted"
        error = client.detached[link]
        assert error is not None
        assert error.condition == "amqp:unauthorized-access"
        assert world.core.context.denied == 1
        assert client.sender("q").is_attached


def test_the_kernel_relays_the_parts_of_a_body_that_cannot_hide_anything() -> None:
    world = network(MATCH)
    client, link = sender(world)
    body = encode_composite(Data(value=bytes(50_000)))
    for user_id in (b"alice", None):
        data = message(user_id)[: -len(BODY)] + body * 2
        sent = client.send(link, data[:1000], more=True)
        decided = world.core.context.legs_seen
        for at in range(1000, len(data) - 1000, 1000):
            client.resume(sent, data[at : at + 1000], more=True)
        assert world.core.context.legs_seen == decided
        client.resume(sent, data[at + 1000 :])
        (arrival,) = world.clients[0].take()
        assert bytes(arrival.payload).endswith(body * 2)
        arrival.accept()
        world.run()
        assert not is_refused(client, sent)


def test_a_changed_policy_holds_for_links_that_are_attached() -> None:
    world = network()
    client, link = sender(world)
    client.send(link, message(b"bob"))
    world.clients[0].take(1)
    world.core.set_policy(policy(MATCH), world.now)
    world.run()
    assert is_refused(client, client.send(link, message(b"bob")))
    world.core.set_policy(policy(ANY), world.now)
    world.run()
    client.send(link, message(b"bob"))
    world.clients[0].take(1)


def test_the_kernel_relays_what_matches_without_a_decision() -> None:
    world = network(MATCH)
    client, link = sender(world)
    seen = world.core.context.seen_as(world.core.context.nodes.find("", "q"))  # type: ignore[arg-type]  # it is there
    client.send(link, message(b"alice"))
    decided = seen.decided().named
    for _ in range(5):
        client.send(link, message(b"alice"))
        client.send(link, BODY)
    assert seen.decided().named == decided
    client.send(link, message(b"bob"))
    assert seen.decided().named == decided + 1


def test_the_router_where_a_message_enters_the_mesh_checks_it() -> None:
    mesh = World("AB", [("A", "B")])
    mesh["A"].core.set_policy(policy(MATCH), mesh["A"].now)
    mesh["B"].core.set_policy(policy(NONE), mesh["B"].now)
    receiver = mesh["B"].client(user="receiver")
    receiver.receiver("q")
    mesh.advance(0.5)
    client = mesh["A"].client(user="alice")
    for address in ("q", None):
        link = client.sender(address)
        assert is_refused(client, client.send(link, message(b"bob", "q")))
        client.send(link, message(b"alice", "q"))
        mesh.run()
        receiver.take(1)


def test_dynamic_nodes_are_no_way_round() -> None:
    world = network(MATCH)
    maker, client = world.client(user="maker"), world.client(user="alice")
    made = maker.receiver(None, source=Source(dynamic=True))
    assert made.remote is not None
    assert isinstance(made.remote.source, Source)
    name = made.remote.source.address
    assert is_refused(client, client.send(client.sender(name), message(b"bob")))
    assert is_refused(client, client.send(client.sender(None), message(b"bob", name)))
    assert not maker.take()
