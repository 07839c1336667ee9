"""The library's client with containers of proton and rhea that listen."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager

import pytest
import trio

from amqpmesh import (
    Accepted,
    ConnectionClosedError,
    Error,
    InDoubtError,
    LinkDetachedError,
    Message,
    Modified,
    ReceiverSettleMode,
    Rejected,
    Released,
    SaslError,
    SessionEndedError,
    Symbol,
    UInt,
    ULong,
    connect,
)
from tests.support.data.typed import typed

pytestmark = pytest.mark.interop

MEBIBYTE = 2**20
BIG = {"size": 10 * MEBIBYTE, "seed": "ten"}
OUTCOMES = """[
    {"outcome": "accepted"},
    {"outcome": "rejected", "condition": "amqp:not-allowed", "description": "spam", "info":
        ["map", [[["symbol", "why"], ["uint", "1"]]]]},
    {"outcome": "released"},
    {"outcome": "modified", "failed": true, "undeliverable": true, "annotations":
        ["map", [[["symbol", "x-opt-n"], ["ulong", "2"]]]]}
]"""

both = pytest.mark.parametrize("family", ["proton", "rhea"])


@pytest.fixture
def listener(program):
    """Yield `listener("proton", *arguments, messages=[...])`: it starts a container that listens, at `.url`."""

    def start(family, *arguments, messages=None):
        peer = program(f"{family}_listen", *arguments, messages=messages)
        peer.url = peer.expect("listening")["url"]
        return peer

    return start


async def said(program, name):
    """Return the program's next event of that name."""
    return await trio.to_thread.run_sync(program.expect, name)


def texts(*bodies):
    return [{"sections": [[0x77, ["string", body]]]} for body in bodies]


def shake(document):
    return hashlib.shake_128(document["seed"].encode()).digest(document["size"])


# ------------------------------------------------------------------------------------------------------------- sending


@both
async def test_every_outcome_of_what_is_sent(family, listener):
    peer = listener(family, "--outcomes", OUTCOMES)
    async with connect(peer.url) as connection, connection.sender("a") as sender:
        sent = [await sender.transfer(f"message {number}") for number in range(8)]
        outcomes = [await each.outcome() for each in sent]
    assert outcomes == 2 * [
        Accepted(),
        Rejected(error=Error(condition=Symbol("amqp:not-allowed"), description="spam", info={Symbol("why"): UInt(1)})),
        Released(),
        Modified(delivery_failed=True, undeliverable_here=True, message_annotations={Symbol("x-opt-n"): ULong(2)}),
    ]


@both
async def test_a_thousand_are_sent_with_a_credit_of_ten(family, listener):
    peer = listener(family, "--credit", "10")
    async with connect(peer.url) as connection, connection.sender("a") as sender:
        assert sender.credit <= 10
        sent = [await sender.transfer(str(number), settled=number % 10 == 9) for number in range(1000)]
        assert [await each.outcome() for each in sent if not each.settled] == [Accepted()] * 900
    await said(peer, "closed")
    came = peer.of("message")
    assert [event["sections"][-1] for event in came] == [[0x77, ["string", str(number)]] for number in range(1000)]
    assert [event["settled"] for event in came] == ([False] * 9 + [True]) * 100


@both
async def test_ten_mebibytes_are_sent(family, listener):
    peer = listener(family)
    async with connect(peer.url) as connection, connection.sender("a") as sender:
        message = Message(shake(BIG), message_id="big")
        await sender.send(message)
        await sender.send(b"small")
    await said(peer, "closed")
    assert [event["sha256"] for event in peer.of("message")] == [
        hashlib.sha256(each.encode()).hexdigest() for each in (message, Message(b"small"))
    ]


async def test_a_send_that_is_cancelled_in_the_middle_is_aborted(listener):
    peer = listener("proton")  # rhea takes the part that arrived for a whole message
    async with connect(peer.url) as connection, connection.sender("a") as sender:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(sender.send, bytes(64 * MEBIBYTE))
                await said(peer, "partial")
                scope.cancel()
        await sender.send("afterwards")
    await said(peer, "closed")
    assert [event["event"] for event in peer.events if event["event"] in ("aborted", "message")] == [
        "aborted",
        "message",
    ]
    assert peer.of("message")[0]["sections"][-1] == [0x77, ["string", "afterwards"]]


# ----------------------------------------------------------------------------------------------------------- receiving


@both
async def test_every_decision_about_what_came(family, listener):
    peer = listener(family, messages=texts("accept", "reject", "release", "modify", "nothing", "raise"))
    async with connect(peer.url) as connection:
        async with connection.receiver("a", credit=6) as receiver:
            accept, reject, release, modify, nothing, fail = [await receiver.receive() for _ in range(6)]
            assert nothing.message.body == "nothing"
            assert accept.accept()
            assert reject.reject("amqp:not-allowed", "spam", {"why": UInt(1)})
            assert release.release()
            assert modify.modify(undeliverable_here=True, message_annotations={"x-opt-n": ULong(2)})
            with pytest.raises(ZeroDivisionError):
                async with fail:
                    raise ZeroDivisionError
        for _ in range(6):
            await said(peer, "outcome")
    by_index = {event.pop("index"): event for event in peer.of("outcome")}
    assert all(event.pop("settled") for event in by_index.values())
    assert [{key: value for key, value in by_index[index].items() if key != "event"} for index in range(6)] == [
        {"outcome": "accepted"},
        {
            "outcome": "rejected",
            "condition": "amqp:not-allowed",
            "description": "spam",
            "info": ["map", [[["symbol", "why"], ["uint", "1"]]]],
        },
        {"outcome": "released"},
        {
            "outcome": "modified",
            "failed": False,
            "undeliverable": True,
            "annotations": ["map", [[["symbol", "x-opt-n"], ["ulong", "2"]]]],
        },
        {"outcome": "modified", "failed": True, "undeliverable": False},
        {"outcome": "modified", "failed": True, "undeliverable": False},
    ]


@both
async def test_credit_is_for_what_is_not_decided(family, listener):
    peer = listener(family, messages=texts(*map(str, range(10))))
    async with connect(peer.url) as connection, connection.receiver("a", credit=2) as receiver:
        held = [await receiver.receive() for _ in range(2)]
        with trio.move_on_after(0.1) as scope:
            await receiver.receive()
        assert scope.cancelled_caught
        assert len(peer.of("sent")) <= 2
        for delivery in held:
            delivery.accept()
        bodies = []
        for _ in range(8):
            async with await receiver.receive() as message:
                bodies.append(message.body)
    assert bodies == [str(number) for number in range(2, 10)]


@both
async def test_a_drain_brings_what_there_is_and_takes_the_rest_of_the_credit_back(family, listener):
    peer = listener(family, messages=texts("1", "2", "3"))
    async with connect(peer.url) as connection, connection.receiver("a", credit=0) as receiver:
        receiver.flow(1)
        await receiver.drain()
        receiver.flow(5)
        await receiver.drain()
        assert receiver.credit == 0
        bodies = []
        for _ in range(receiver.undecided):
            async with await receiver.receive() as message:
                bodies.append(message.body)
    assert bodies == ["1", "2", "3"]


@both
async def test_ten_mebibytes_are_received(family, listener):
    peer = listener(family, messages=[BIG, *texts("small")])
    async with connect(peer.url) as connection, connection.receiver("a", credit=1) as receiver:
        for body in (shake(BIG), "small"):
            async with await receiver.receive() as message:
                assert message.body == body


@both
async def test_a_message_is_received_as_it_comes(family, listener):
    # One MiB: proton moves the rest of a message in memory each time that the window opens.
    large = {"size": MEBIBYTE, "seed": "one"}
    peer = listener(family, messages=[large, *texts("small")])
    async with (
        connect(peer.url) as connection,
        connection.receiver("a", credit=2, streaming=True, buffer=128 * 1024) as receiver,
    ):
        delivery = await receiver.receive()
        parts = [part async for part in delivery]
        assert delivery.accept()
        small = await receiver.receive()
        assert (await small.read()).body == "small"
        assert small.accept()
    assert len(parts) > 10
    assert b"".join(parts) == shake(large)


@both
async def test_types_of_what_came(family, listener):
    body = ["list", [["uint", "1"], ["ulong", "1"], ["symbol", "s"], ["string", "s"], ["null"]]]
    peer = listener(family, messages=[{"sections": [[0x77, body]]}])
    async with connect(peer.url) as connection, connection.receiver("a") as receiver:
        delivery = await receiver.receive()
        assert delivery.accept()
    assert typed(delivery.message.body) == typed([UInt(1), ULong(1), Symbol("s"), "s", None])


async def test_the_three_steps_of_mode_second(listener):
    peer = listener("proton", messages=texts("exactly once"))
    async with connect(peer.url) as connection:
        async with connection.receiver("a", rcv_settle_mode=ReceiverSettleMode.SECOND) as receiver:
            delivery = await receiver.receive()
            assert delivery.accept()
            assert await delivery.settled()
        async with connection.sender("a", rcv_settle_mode=ReceiverSettleMode.SECOND) as sender:
            await sender.send("exactly once")
        await said(peer, "settled")


# ------------------------------------------------------------------------------------------------------------ requests


@both
async def test_many_callers_share_a_link_for_their_answers(family, listener):
    peer = listener(family)
    answers = {}
    async with connect(peer.url) as connection, connection.requester("a") as requester:
        assert requester.reply_to == "reply-0"

        async def ask(question):
            answers[question] = (await requester.request(question)).body

        async with trio.open_nursery() as nursery:
            for number in range(25):
                nursery.start_soon(ask, f"question {number}")
    assert answers == {f"question {number}": f"QUESTION {number}" for number in range(25)}


# --------------------------------------------------------------------------------------------------- refusals and ends


@both
@pytest.mark.parametrize("reconnect", [False, True])
async def test_a_node_that_is_not_there_is_refused_and_its_neighbours_stay(reconnect, family, listener):
    peer = listener(family)
    async with connect(peer.url, reconnect=reconnect) as connection, connection.sender("a") as sender:
        for link in (connection.sender("missing"), connection.receiver("missing")):
            with pytest.raises(LinkDetachedError) as caught:
                async with link:
                    # A peer may attach first, and detach then because it has no such node.
                    await (link.receive() if hasattr(link, "receive") else trio.sleep_forever())
            assert caught.value.error.condition == "amqp:not-found"
        await sender.send("alive")


@contextmanager
def ends(kind, what):
    """Run a body that fails because the peer does `what`, and check the error."""
    with pytest.raises(kind) as caught:
        yield
    assert caught.value.error.condition == "amqp:not-allowed"
    assert caught.value.error.description == f"{what} as asked"


@both
@pytest.mark.parametrize(
    ("what", "error"),
    [("detach", LinkDetachedError), ("end", SessionEndedError), ("close", ConnectionClosedError)],
)
async def test_the_peer_ends_it_and_says_why(what, error, family, listener):
    peer = listener(family)
    async with connect(peer.url) as connection, connection.sender("a") as sender:
        with ends(InDoubtError, what):
            await sender.send(what)
        with ends(error, what):
            await sender.send("more")
        if what != "close":
            async with connection.sender("a") as another:
                await another.send("alive")


@both
async def test_a_connection_that_the_peer_closes_comes_back(family, listener):
    peer = listener(family, messages=texts("again"))
    async with (
        connect(peer.url, reconnect=True) as connection,
        connection.sender("a") as sender,
        connection.receiver("b", credit=1) as receiver,
    ):
        lost = await receiver.receive()
        with ends(InDoubtError, "close"):
            await sender.send("close")
        await sender.send("alive")
        assert not lost.accept()
        async with await receiver.receive() as message:
            assert message.body == "again"
        assert connection.reconnections == 1


@both
async def test_a_peer_that_is_killed(family, listener):
    peer = listener(family, "--outcomes", '[{"outcome": "hold"}]')
    async with connect(peer.url) as connection, connection.sender("a") as sender:
        sent = await sender.transfer("in doubt")
        await said(peer, "message")
        peer.kill()
        with pytest.raises(InDoubtError):
            await sent.outcome()
        with pytest.raises(ConnectionClosedError):
            await sender.send("more")


# ------------------------------------------------------------------------------------------------------- who comes in


async def test_plain_under_tls(listener, credentials):
    files = ("--certificate", str(credentials.certificate), "--key", str(credentials.key))
    peer = listener("rhea", *files, "--user", "alice", "--password", "correct horse")
    trusted = {"trust": credentials.trust}
    async with connect(peer.url, user="alice", password="correct horse", **trusted) as connection:
        assert (await said(peer, "opened"))["hostname"] == "localhost"
        async with connection.sender("a") as sender:
            await sender.send("by alice")
    for refused in ({"user": "alice", "password": "wrong"}, {}):
        with pytest.raises(SaslError):
            async with connect(peer.url, reconnect=True, **refused, **trusted):
                pass
    with pytest.raises(ConnectionClosedError, match="TLS"):
        async with connect(peer.url, user="alice", password="correct horse"):
            pass


@both
@pytest.mark.parametrize("mechanisms", [None, ()])
async def test_without_a_name_with_and_without_sasl(mechanisms, family, listener):
    peer = listener(family)
    async with connect(peer.url, id="us", mechanisms=mechanisms) as connection:
        assert (await said(peer, "opened"))["container"] == "us"
        async with connection.sender("a") as sender:
            await sender.send("by nobody")
