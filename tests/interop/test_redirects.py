"""Redirects to clients of other makes, and our clients that follow theirs (§2.8.16, §2.8.18)."""

from __future__ import annotations

import json

import pytest
import trio

from amqpmesh import (
    ConnectionClosedError,
    ConnectorConfig,
    LinkConfig,
    LinkRedirectError,
    Message,
    RejectedError,
    Router,
    connect,
)

pytestmark = pytest.mark.interop

ELSEWHERE = """
[router]
id = "A"
drain = 0.2
[[listener]]
url = "amqp://127.0.0.1:0"
[[listener]]
url = "amqp://127.0.0.1:0"
redirect = { hostname = "b.example", network-host = "127.0.0.1", port = 5672 }
[[address]]
pattern = "elsewhere/#"
redirect = { hostname = "b.example", network-host = "127.0.0.1", port = 5672, address = "there" }
"""
PLACE = {"hostname": "b.example", "network-host": "127.0.0.1", "port": 5672}

MESSAGE = {"sections": [[0x77, ["string", "x"]]]}
ADDRESSED = {"sections": [[0x73, ["list", [["null"], ["null"], ["string", "elsewhere/a"]]]], *MESSAGE["sections"]]}


@pytest.fixture(scope="module")
def elsewhere(start_shared_router):
    return start_shared_router(ELSEWHERE)


def plain(typed):
    """Return a map of `values.to_json` with Python's values; its keys are symbols."""
    kind, pairs = typed
    assert kind == "map"
    assert all(key[0] == "symbol" for key, _ in pairs)
    return {key[1]: int(value[1]) if value[0] == "int" else value[1] for key, value in pairs}


@pytest.mark.parametrize("role", ["send", "receive"])
def test_a_link_of_proton_is_told_where_its_address_is(role, elsewhere, client):
    program = client(f"proton_{role}", elsewhere.url, "--address", "elsewhere/a", messages=[MESSAGE])
    program.finish(status=1)
    [error] = program.of("link-error")
    assert error["condition"] == "amqp:link:redirect"
    assert plain(error["info"]) == PLACE | {"address": "there"}
    assert program.of("attached")[0]["address"] is None


def test_a_message_of_an_anonymous_sender_of_proton_is_rejected_with_where(elsewhere, client):
    program = client("proton_send", elsewhere.url, messages=[ADDRESSED])
    program.finish()
    [outcome] = program.of("outcome")
    assert (outcome["outcome"], outcome["condition"]) == ("rejected", "amqp:link:redirect")
    # The redirect that a link would get, and the message that it concerns.
    assert plain(outcome["info"]) == PLACE | {"address": "there", "delivery-tag": b"tag-0".hex()}


def test_a_connection_of_proton_is_told_where_it_belongs(elsewhere, client):
    program = client("proton_send", elsewhere.urls[1], "--address", "a", messages=[MESSAGE])
    program.finish(status=1)
    [error] = program.of("connection-error")
    assert error["condition"] == "amqp:connection:redirect"
    assert plain(error["info"]) == PLACE


async def test_the_library_is_told_all_of_it_by_a_router_in_another_process(elsewhere):
    async with connect(elsewhere.url) as connection:
        for door in (connection.sender, connection.receiver):
            with pytest.raises(LinkRedirectError) as moved:
                async with door("elsewhere/a"):
                    raise AssertionError("it is elsewhere")
            assert moved.value.error.info == PLACE | {"address": "there"}
            assert (moved.value.network_host, moved.value.port) == ("127.0.0.1", 5672)
        async with connection.sender(None) as sender:
            with pytest.raises(RejectedError) as rejected:
                await sender.send(Message("x", to="elsewhere/a"))
        assert rejected.value.error.info == PLACE | {"address": "there", "delivery-tag": b"\x00"}
    with pytest.raises(ConnectionClosedError) as closed:
        async with connect(elsewhere.urls[1]) as connection, connection.sender("a"):
            raise AssertionError("it is elsewhere")
    assert closed.value.error.condition == "amqp:connection:redirect"
    assert closed.value.error.info == PLACE


@pytest.fixture
def listener(program):
    """Yield `listener("proton", *arguments, messages=[...])`: it starts a container that listens, at `.url`."""

    def start(family, *arguments, messages=None):
        peer = program(f"{family}_listen", *arguments, messages=messages)
        peer.url = peer.expect("listening")["url"]
        return peer

    return start


def place_of(there, **more):
    """Return the fields of a redirect to another peer, in JSON."""
    return json.dumps(
        {"hostname": "b.example", "network-host": "127.0.0.1", "port": int(there.url.rpartition(":")[2]), **more}
    )


both = pytest.mark.parametrize("family", ["proton", "rhea"])


@both
async def test_the_library_goes_where_a_link_is_sent(family, listener):
    there = listener(family, "--credit", "10", messages=[MESSAGE])
    here = listener(family, "--elsewhere", place_of(there, address="there"))
    with trio.fail_after(60):
        async with connect(here.url, redirects=["b.example"]) as connection:
            async with connection.sender("elsewhere") as sender:
                assert sender.address == "there"
                await sender.send("x")
            async with connection.receiver("elsewhere") as receiver, await receiver.receive() as message:
                assert message.body == "x"
            with pytest.raises(LinkRedirectError, match="'b.example' is not allowed"):
                async with connect(here.url) as other, other.sender("elsewhere"):
                    raise AssertionError("it is elsewhere")
    assert there.expect("opened")["hostname"] == "b.example"


@both
async def test_the_library_goes_where_a_connection_is_sent(family, listener):
    there = listener(family)
    here = listener(family, "--moved", place_of(there))
    with trio.fail_after(60):
        async with (
            connect(here.url, redirects=["b.example"]) as connection,
            connection.requester("q") as requester,
        ):
            assert (await requester.request("loud")).body == "LOUD"
    assert there.expect("opened")["hostname"] == "b.example"


@both
async def test_a_connector_goes_where_its_connection_is_sent(family, listener):
    there = listener(family)
    here = listener(family, "--moved", place_of(there))
    connector = ConnectorConfig(url=here.url, name="broker", role="container", redirects=("b.example",))
    link = LinkConfig(connector="broker", target="orders", address="q")
    with trio.fail_after(60):
        async with Router(id="A", connectors=[connector], container_links=[link], drain=0.5) as router:
            async with router.sender("q") as sender:
                await sender.send("x")
            [told] = router.statistics().connectors
            assert (told.url, told.redirected_from) == (there.url, here.url)
    assert there.expect("opened")["hostname"] == "b.example"
