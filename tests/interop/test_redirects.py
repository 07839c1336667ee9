"""What lives elsewhere: clients that we did not write hear where (§2.8.16, §2.8.18)."""

from __future__ import annotations

import pytest

from amqpmesh import ConnectionClosedError, LinkRedirectError, Message, RejectedError, connect

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


@pytest.fixture
def elsewhere(start_router):
    return start_router(ELSEWHERE)


def plain(typed):
    """A map of `values.to_json`, with Python's values; its keys are symbols."""
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
    assert plain(outcome["info"]) == PLACE | {"address": "there"}


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
        assert rejected.value.error.info == PLACE | {"address": "there"}
    with pytest.raises(ConnectionClosedError) as closed:
        async with connect(elsewhere.urls[1]) as connection, connection.sender("a"):
            raise AssertionError("it is elsewhere")
    assert closed.value.error.condition == "amqp:connection:redirect"
    assert closed.value.error.info == PLACE
