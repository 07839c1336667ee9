"""Programs with rhea that ask the router to keep its end of a link, and detach the link without closing it.

rhea keeps no unsettled map, and has no command that resumes a delivery. A program can write both by hand.
"""

from __future__ import annotations

import signal

import pytest
import trio

from amqpmesh import Accepted, Modified, connect

pytestmark = pytest.mark.interop

PATIENCE = 60.0  # seconds for all of a test


async def said(program, name):
    """Return the program's next event of that name."""
    return await trio.to_thread.run_sync(program.expect, name)


async def detached(program):
    """Have it detach its link. The router must answer in kind."""
    program.kill(signal.SIGUSR2)
    assert (await said(program, "detached"))["closed"] is False


async def attached(program):
    """Return the tags in the unsettled map of the router's next answer; None: it has none."""
    answer = await said(program, "attached")
    assert answer["kept"] == 60
    return answer["unsettled"]


@pytest.fixture
def resume(router, client):
    """Yield `resume(*arguments)`: it starts the program."""

    async def start(*arguments):
        command = ("rhea_resume", router.url, *arguments, "--timeout", str(PATIENCE))
        return await trio.to_thread.run_sync(client, *command)

    return start


async def concluded(program):
    """End it, once it has closed its link."""
    program.kill(signal.SIGTERM)
    await trio.to_thread.run_sync(program.finish)


@pytest.mark.parametrize(
    ("map", "outcome"),
    [
        pytest.param("none", Modified(delivery_failed=True), id="without a map nothing is known of it"),
        pytest.param("accepted", Accepted(), id="with its outcome in the map, the sender hears that"),
    ],
)
async def test_what_a_receiver_has_got_is_its_own_until_it_is_back(router, resume, map, outcome):
    with trio.fail_after(PATIENCE):
        async with connect(router.url) as connection, connection.sender("rhea") as sender:
            rhea = await resume("--receive", "--address", "rhea", "--map", map)
            assert await attached(rhea) is None
            first = await sender.transfer("first")
            await said(rhea, "message")
            await detached(rhea)
            async with connection.receiver("rhea") as other:
                second = await sender.transfer("second")
                (await other.receive()).accept()
                assert await second.outcome() == Accepted()
            assert sender.unsettled == 1, "the first is not the other receiver's, and its sender has heard nothing"
            rhea.kill(signal.SIGUSR2)
            assert await attached(rhea) == (None if map == "none" else [rhea.of("message")[0]["tag"]])
            if map == "accepted":
                assert await first.outcome() == outcome
            await sender.send("third")
            await concluded(rhea)
            assert await first.outcome() == outcome
    states = [event["has_state"] for event in rhea.of("message")]
    assert states == ([False, False] if map == "none" else [False, True, False]), "it is resumed before anything new"


@pytest.mark.parametrize(
    ("map", "common", "outcomes"),
    [
        pytest.param("none", None, 2, id="without a map, in the same session, deliveries have their ids still"),
        pytest.param("empty", [], 1, id="what an empty map lacks it has settled"),
        pytest.param("named", ["first"], 2, id="what it names is resumed, and its outcome is heard"),
    ],
)
async def test_a_sender_that_comes_back_hears_the_outcomes_of_what_it_has_not_settled(
    router, resume, map, common, outcomes
):
    with trio.fail_after(PATIENCE):
        async with connect(router.url) as connection, connection.receiver("rhea", credit=10) as receiver:
            rhea = await resume("--address", "rhea", "--map", map)
            assert await attached(rhea) is None
            first = await receiver.receive()
            await detached(rhea)
            rhea.kill(signal.SIGUSR2)
            assert await attached(rhea) == common
            second = await receiver.receive()
            assert [first.message.body, second.message.body] == ["first", "second"], "the first does not come again"
            assert first.accept() is (outcomes == 2)
            second.accept()
            for _ in range(outcomes):
                await said(rhea, "outcome")
            await concluded(rhea)
    heard = [(each["tag"], each["outcome"]) for each in rhea.of("outcome")]
    assert sorted(heard) == [("first", "accepted"), ("second", "accepted")][-outcomes:]
