"""Nodes of other containers that a router connects to in place of its clients."""

from __future__ import annotations

import pytest
import trio

from amqpmesh import (
    AddressConfig,
    LinkDetachedError,
    Message,
    RedirectConfig,
    RejectedError,
    ReleasedError,
    Router,
)

pytestmark = pytest.mark.interop

GIVEN = {"sections": [[0x77, ["string", "from there"]]]}


def elsewhere(url, **more):
    """Start a router whose `elsewhere` table has the node `there` at that URL."""
    port = int(url.rpartition(":")[2])
    redirect = RedirectConfig(network_host="127.0.0.1", port=port, follow="router", **{"address": "there", **more})
    return Router(id="A", addresses=(AddressConfig(pattern="elsewhere", redirect=redirect),), drain=0.5)


both = pytest.mark.parametrize("family", ["proton", "rhea"])


@pytest.fixture
def listener(program):
    """Yield `listener("proton", *arguments, messages=[...])`: it starts a container that listens, at `.url`."""

    def start(family, *arguments, messages=None):
        peer = program(f"{family}_listen", *arguments, messages=messages)
        peer.url = peer.expect("listening")["url"]
        return peer

    return start


@both
async def test_a_message_has_the_outcome_of_the_remote_node(family, listener):
    outcomes = '[{"outcome": "accepted"}, {"outcome": "rejected"}, {"outcome": "released"}]'
    peer = listener(family, "--credit", "10", "--outcomes", outcomes)
    async with elsewhere(peer.url) as router, router.sender("elsewhere") as sender:
        with trio.fail_after(60):
            await sender.send(Message("one"))
            with pytest.raises(RejectedError):
                await sender.send(Message("two"))
            with pytest.raises(ReleasedError):
                await sender.send(Message("three"))
    assert peer.expect("attached")["address"] == "there"


@both
async def test_a_message_of_the_remote_node_is_received_and_its_outcome_returned(family, listener):
    peer = listener(family, messages=[GIVEN])
    async with elsewhere(peer.url) as router, router.receiver("elsewhere", credit=1) as receiver:
        with trio.fail_after(60):
            (await receiver.receive()).reject("amqp:not-allowed", "so it is")
            outcome = await trio.to_thread.run_sync(peer.expect, "outcome")
    assert outcome["outcome"] == "rejected"


@both
async def test_what_is_not_there_is_not_here(family, listener):
    async with elsewhere(listener(family).url, address="missing") as router:
        with trio.fail_after(60), pytest.raises(LinkDetachedError, match="no such node"):
            async with router.sender("elsewhere") as sender:
                await sender.send("x")
