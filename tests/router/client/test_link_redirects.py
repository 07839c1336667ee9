"""Redirects of links that the client follows over another connection (§2.8.18)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh.router.amqp.codec.types import Int, Symbol
from amqpmesh.router.amqp.errors import (
    CommandError,
    ConnectionClosedError,
    InDoubtError,
    LinkRedirectError,
)
from amqpmesh.router.amqp.standard.definitions import Error, LinkCondition, Role
from amqpmesh.router.amqp.standard.messaging import Source, Target
from amqpmesh.router.amqp.standard.performatives import Attach, Close, Detach, End, Open, Transfer
from amqpmesh.router.client.connect import connect
from amqpmesh.router.client.receiver import Receiver
from amqpmesh.router.client.sender import Sender
from amqpmesh.router.config.file import AddressConfig, ListenerConfig, RedirectConfig, RouterConfig
from amqpmesh.router.config.urls import Endpoint
from amqpmesh.router.config.users import add_user
from amqpmesh.router.io.dialing import open_tcp
from amqpmesh.router.message.content import Message
from amqpmesh.router.message.outcomes import RejectedError
from amqpmesh.router.runtime.router import Router
from tests.support.peers.library_client import URL, Roads, enter, joined
from tests.support.peers.scripted_server import Counterpart
from tests.support.tasks.calls import Call

B = "amqp://b.example:5672"
C = "amqp://c.example:5672"

TO_B = AddressConfig(pattern="elsewhere/#", redirect=RedirectConfig(hostname="b.example"))
RENAMED = AddressConfig(pattern="renamed", redirect=RedirectConfig(hostname="b.example", address="there"))


def elsewhere(**info: Any) -> Error:
    """Return the error of a redirect."""
    told = {Symbol(key.replace("_", "-")): Int(value) if key == "port" else value for key, value in info.items()}
    return Error(condition=LinkCondition.REDIRECT, description="it moved", info=told)


def two(nursery: trio.Nursery, error: Error | None = None, **fields: Any) -> tuple[Counterpart, Counterpart]:
    """Return a peer that redirects all links to another peer, and that other peer. The first one has the roads."""
    told = elsewhere(hostname="b.example") if error is None else error
    a = Counterpart(nursery, refuse={Role.SENDER: told, Role.RECEIVER: told})
    b = Counterpart(nursery, credit=10, **fields)
    a.roads.lead_to(b.serve, B)
    return a, b


async def delivered(nursery: trio.Nursery, sender: Sender, receiver: Receiver) -> None:
    """Send a message, and check that it arrives and that its outcome returns."""
    sending = Call(nursery, sender.send, "x")
    async with await receiver.receive() as message:
        assert message.body == "x"
    await sending.result()


def tried(a: Counterpart) -> list[str]:
    return [url for _, url in a.roads.tries]


@pytest.mark.parametrize(("address", "there"), [("elsewhere/a", "elsewhere/a"), ("renamed", "there")])
async def test_senders_and_receivers_go_on_where_their_address_is(
    address: str, there: str, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router(RouterConfig(addresses=(TO_B, RENAMED))) as a, Router() as b:
        roads = Roads(nursery)
        roads.lead_to(a)
        roads.lead_to(b, B)
        async with roads.connect(redirects=["b.example"]) as connection, connection.sender(address) as sender:
            assert sender.address == there
            async with b.receiver(there) as consumer:
                await delivered(nursery, sender, consumer)
            async with connection.receiver(address) as receiver, b.sender(there) as producer:
                assert receiver.address == there
                await delivered(nursery, producer, receiver)
                await delivered(nursery, sender, receiver)
            # Links that are redirected to the same place share a connection.
            assert [url for _, url in roads.tries] == [URL, B]
    assert a.statistics().is_empty
    assert b.statistics().is_empty


async def test_the_second_connection_is_there_while_a_link_is_on_it(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    a, b = two(nursery)
    b.mute = {Close}
    async with a.connect(redirects=["b.example"]) as connection:
        async with connection.sender("q"):
            async with connection.receiver("r"):
                assert tried(a) == [URL, B]
                assert [each.attach.name for each in b.links] == [each.attach.name for each in a.links]
            assert await b.rest() == []
        assert isinstance((await b.rest())[0], Close)
        assert connection.is_connected
        # The next link makes a new connection, though the peer has not answered `close`.
        await trio.sleep(2)
        async with connection.sender("q"):
            assert tried(a) == [URL, B, B]


async def test_what_is_asked_for_is_asked_for_there_by_the_address_there(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    a, b = two(nursery, elsewhere(hostname="b.example", address="there"))
    async with (
        a.connect(redirects=["b.example"]) as connection,
        connection.sender(None, target=Target(address="q", timeout=9)),
        connection.receiver(None, source=Source(address="r", timeout=7)),
        connection.receiver(None) as dynamic,
    ):
        sender, receiver, node = (each.attach for each in b.links)
        assert sender.target == Target(address="there", timeout=9)
        assert receiver.source == Source(address="there", timeout=7)
        # A dynamic node has the address that the peer there gives it.
        assert node.source == Source(dynamic=True)
        assert dynamic.address == "dynamic-0"


async def test_the_host_that_is_wanted_is_named_there(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    a, b = two(nursery, elsewhere(hostname="tenant.example", network_host="b.example", port=5672))
    b.mute = {Open}
    async with a.connect(redirects=["*.example"]) as connection:
        entering = Call(nursery, enter, connection.sender("q"))
        assert (await b.expect(Open)).hostname == "tenant.example"
        await entering.cancel()


async def test_a_redirect_to_another_address_of_the_same_peer_needs_no_second_connection(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    a = Counterpart(nursery)
    async with a.connect() as connection, connection.receiver("q") as receiver:
        await a.links[0].detach(elsewhere(hostname="router.example", address="there"))
        await wait_all_tasks_blocked()
        assert receiver.is_attached
        assert receiver.address == "there"
    assert tried(a) == [URL]


async def test_a_link_that_is_redirected_later_goes_on_with_what_waits(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    a, b = two(nursery)
    a.refuse = {}
    async with a.connect(redirects=["b.example"]) as connection, connection.sender("q") as sender:
        await a.links[0].flow(1)
        doubtful = Call(nursery, sender.send, b"sent")
        await a.expect(Transfer)
        waiting = Call(nursery, sender.send, b"waiting")
        await wait_all_tasks_blocked()
        await a.links[0].detach(elsewhere(hostname="b.example"))
        assert isinstance(await doubtful.failure(), InDoubtError)
        transfer = await b.expect(Transfer)
        assert b.payload.endswith(b"waiting")
        await b.links[0].accept(transfer.delivery_id or 0)
        await waiting.result()
        assert connection.reconnections == 0


async def test_a_requester_goes_there_with_the_node_for_its_answers(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router(RouterConfig(id="A", addresses=(TO_B,))) as a, Router(RouterConfig(id="B")) as b:
        roads = Roads(nursery)
        roads.lead_to(a)
        roads.lead_to(b, B)

        async def answer() -> None:
            async with b.receiver("elsewhere/quotes") as questions:
                async for question in questions:
                    async with question:
                        await question.reply(f"to {question.message.body}")

        nursery.start_soon(answer)
        async with (
            roads.connect(redirects=["b.example"]) as connection,
            connection.requester("elsewhere/quotes") as requester,
        ):
            for number in range(3):
                assert (await requester.request(number)).body == f"to {number}"
        nursery.cancel_scope.cancel()
    assert a.statistics().is_empty
    assert b.statistics().is_empty


async def test_a_node_for_answers_that_is_said_to_be_elsewhere_is_refused(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    a, _ = two(nursery)
    async with a.connect(redirects=["b.example"]) as connection:
        with pytest.raises(LinkRedirectError):
            await enter(connection.requester("q"))
    assert tried(a) == [URL]


async def test_answers_go_the_way_that_the_questions_came(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async with Router(RouterConfig(addresses=(TO_B,))) as a, Router() as b:
        roads = Roads(nursery)
        roads.lead_to(a)
        roads.lead_to(b, B)
        async with (
            roads.connect(redirects=["b.example"]) as connection,
            connection.receiver("elsewhere/q") as questions,
            b.requester("elsewhere/q") as requester,
        ):
            asking = Call(nursery, requester.request, "?")
            question = await questions.receive()
            async with question:
                await question.reply("!")
            assert (await asking.result()).body == "!"
        assert [url for _, url in roads.tries] == [URL, B]
    assert b.statistics().is_empty


# ------------------------------------------------------------------------------------------------------ not followed


@pytest.mark.parametrize(
    "info",
    [
        {"hostname": "evil.example"},
        {"network_host": "evil.example"},
        {"hostname": "b.example", "network_host": "10.0.0.1", "port": 5672},
        {"hostname": "evil.example", "network_host": "router.example"},
    ],
)
async def test_a_host_that_nobody_named_is_not_even_connected_to(
    info: dict[str, Any], nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    a, _ = two(nursery, elsewhere(**info))
    for reconnect in (False, True):
        async with a.connect(redirects=["b.example"], reconnect=reconnect) as connection:
            for kind in (connection.sender, connection.receiver):
                with pytest.raises(LinkRedirectError, match="is not allowed.*it moved") as raised:
                    await enter(kind("q"))
                assert raised.value.hostname == info.get("hostname")
                assert raised.value.network_host == info.get("network_host")
            assert connection.is_connected
    assert tried(a) == [URL] * 2


async def test_a_client_without_a_list_of_hosts_follows_no_redirect(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    a, _ = two(nursery, elsewhere(port=5673))
    async with a.connect(redirects=None) as connection:
        with pytest.raises(LinkRedirectError, match="^the link was detached: amqp:link:redirect: it moved$") as raised:
            await enter(connection.sender("q"))
    assert raised.value.port == 5673
    assert tried(a) == [URL]


async def test_hosts_of_the_urls_need_no_naming(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    a, b = two(nursery)
    async with a.roads.connect([URL, B], mechanisms=(), hostname="tenant") as connection, connection.sender("q"):
        assert len(b.links) == 1
        c = Counterpart(nursery)
        a.roads.lead_to(c.serve, B)
        a.refuse[Role.RECEIVER] = elsewhere(hostname="tenant", network_host="b.example")
        async with connection.receiver("q"):
            assert tried(a) == [URL, B, B]


@pytest.mark.parametrize(("redirects", "desired"), [(None, False), ([], False), (["b.example"], True)])
async def test_a_client_that_names_hosts_asks_for_redirects(
    redirects: list[str] | None, desired: bool, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    a = Counterpart(nursery)
    a.mute = {Open}
    connecting = Call(nursery, enter, a.connect(redirects=redirects))
    opened = await a.expect(Open)
    assert ("amqpmesh:redirect" in opened.desired_capabilities) is desired
    await connecting.cancel()


async def test_redirects_that_go_in_circles_end(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    a, b = two(nursery)
    b.refuse = {Role.SENDER: elsewhere(hostname="c.example")}
    c = Counterpart(nursery, refuse={Role.SENDER: elsewhere(hostname="b.example")})
    a.roads.lead_to(c.serve, C)
    async with a.connect(redirects=["*"]) as connection:
        with pytest.raises(LinkRedirectError, match="circle, back to amqp://b.example:5672"):
            await enter(connection.sender("q"))
        assert tried(a) == [URL, B, C]


async def test_no_more_than_five_in_a_row_are_followed(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    roads = Roads(nursery)
    for number in range(9):
        peer = Counterpart(nursery, refuse={Role.RECEIVER: elsewhere(port=number + 1)})
        roads.lead_to(peer.serve, f"amqp://router.example:{number}" if number else URL)
    async with roads.connect(mechanisms=()) as connection:
        with pytest.raises(LinkRedirectError, match="more than the 5 in a row"):
            await enter(connection.receiver("q"))
    assert [url for _, url in roads.tries] == [URL, *(f"amqp://router.example:{number}" for number in range(1, 6))]


async def test_a_link_that_lasted_begins_a_new_row(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    a, b = two(nursery)
    a.refuse = {}
    redirect = {"a": elsewhere(hostname="router.example"), "b": elsewhere(hostname="b.example")}
    async with a.connect(redirects=["b.example"]) as connection, connection.receiver("q") as receiver:
        for _ in range(10):
            for far, there in ((a, "b"), (b, "a")):
                assert receiver.is_attached
                await trio.sleep(6)
                await far.links[-1].detach(redirect[there])
                await wait_all_tasks_blocked()
        await a.links[-1].detach(redirect["b"])
        with pytest.raises(LinkRedirectError, match="circle"):
            await receiver.receive()


@pytest.mark.parametrize("redirects", ["b.example", ["b.example:5672"], ["amqp://b.example"], [""]])
async def test_what_is_no_list_of_hosts_is_said_at_once(redirects: Any, nursery: trio.Nursery) -> None:
    with pytest.raises(CommandError, match="host"):
        Roads(nursery).connect(redirects=redirects)


async def test_a_password_that_would_go_without_tls_beyond_this_machine_stays_here(tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    add_user(users, "ada", "secret")
    listener = ListenerConfig(url="amqp://127.0.0.1:0", sasl=("PLAIN",), insecure=True, users=users)
    async with Router(RouterConfig(listeners=(listener,), addresses=(TO_B,))) as router:
        tries = []

        async def open_stream(endpoint: Endpoint) -> trio.abc.Stream:
            tries.append(str(endpoint))
            return await open_tcp(endpoint)

        url = router.listeners[0].url
        async with connect(
            url, user="ada", password="secret", mechanisms=["PLAIN"], redirects=["*"], open_stream=open_stream
        ) as connection:
            with pytest.raises(
                LinkRedirectError, match="not followed: where a redirect leads, PLAIN is used only under TLS"
            ):
                await enter(connection.sender("elsewhere/q"))
        assert tries == [url]


# ---------------------------------------------------------------------------------------------- lost, cancelled, left


async def test_a_place_that_cannot_be_reached_fails_the_link_alone(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    a, _ = two(nursery)
    a.roads.close(B)
    async with a.connect(redirects=["b.example"]) as connection:
        with pytest.raises(ConnectionClosedError, match="amqp://b.example:5672: Connection refused"):
            await enter(connection.sender("q"))
        assert connection.is_connected
        a.refuse = {}
        async with connection.sender("q") as sender:
            assert sender.is_attached


async def test_after_a_loss_it_begins_again_where_the_program_said(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    a, b = two(nursery)
    async with a.connect(redirects=["b.example"], reconnect=True) as connection, connection.receiver("q") as receiver:
        assert len(a.links) == len(b.links) == 1
        for number in range(2, 5):
            await trio.aclose_forcefully(b.peer.stream)
            await trio.sleep(30)
            assert receiver.is_attached
            assert len(a.links) == len(b.links) == number
        assert connection.reconnections == 0
        # The redirect may be gone by now.
        a.refuse = {}
        await b.links[-1].detach(Error(condition=LinkCondition.DETACH_FORCED))
        await trio.sleep(30)
        assert receiver.is_attached
        assert len(a.links) == 5
        assert len(b.links) == 4


async def test_a_place_that_cannot_be_reached_is_tried_with_pauses(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    a, _ = two(nursery)
    a.roads.close(B)
    async with a.connect(redirects=["b.example"], reconnect=True) as connection:
        with trio.move_on_after(60):
            await enter(connection.sender("q"))
        assert 8 <= tried(a).count(B) <= 20
        assert tried(a).count(URL) == 1


async def test_a_requester_that_lost_its_way_goes_it_again(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    a, _ = two(nursery)
    del a.refuse[Role.RECEIVER]
    made: list[Counterpart] = []

    async def serve(stream: trio.abc.Stream) -> None:
        made.append(Counterpart(nursery, credit=10))
        await made[-1].serve(stream)

    a.roads.lead_to(serve, B)

    async def lose_the_connection() -> None:
        await trio.aclose_forcefully(made[-1].peer.stream)

    async def lose(role: Role) -> None:
        [link] = [each for each in made[-1].links if each.attach.role is role]
        await link.detach(Error(condition=LinkCondition.DETACH_FORCED))

    async with a.connect(redirects=["b.example"], reconnect=True) as connection, connection.requester("q") as requester:
        for cut in (lose_the_connection, partial(lose, Role.RECEIVER), partial(lose, Role.SENDER)):
            for _ in range(3):
                asking = Call(nursery, requester.request, "?")
                await made[-1].expect(Transfer)
                # The node for replies is always at the peer that the requests go to.
                assert [each.attach.role for each in made[-1].links] == [Role.SENDER, Role.RECEIVER]
                await cut()
                assert isinstance(await asking.failure(), InDoubtError)
                await trio.sleep(30)
        assert len(made) == 10


async def test_the_links_elsewhere_live_on_when_the_first_connection_is_lost(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    a, b = two(nursery)
    async with a.connect(redirects=["b.example"]) as connection, connection.sender("q") as sender:
        await trio.aclose_forcefully(a.peer.stream)
        await wait_all_tasks_blocked()
        assert not connection.is_connected
        sending = Call(nursery, sender.send, b"x")
        transfer = await b.expect(Transfer)
        await b.links[0].accept(transfer.delivery_id or 0)
        await sending.result()
        await trio.aclose_forcefully(b.peer.stream)
        with pytest.raises(ConnectionClosedError):
            await sender.send(b"x")


@pytest.mark.parametrize("deaf", ["a stream that nobody reads", "no answer to open", "no answer to attach"])
@pytest.mark.parametrize("reconnect", [False, True])
async def test_a_call_that_is_cancelled_on_the_way_leaves_nothing_behind(
    deaf: str, reconnect: bool, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    a, b = two(nursery)
    if deaf.startswith("a stream"):

        async def ignore(stream: trio.abc.Stream) -> None:
            await trio.sleep_forever()

        a.roads.lead_to(ignore, B)
    else:
        b.mute = {Open} if deaf.endswith("open") else {Attach}
    async with a.connect(redirects=["b.example"], reconnect=reconnect) as connection:
        entering = Call(nursery, enter, connection.receiver("q"))
        await wait_all_tasks_blocked()
        assert tried(a) == [URL, B]
        began = trio.current_time()
        await entering.cancel()
        assert trio.current_time() - began <= 1
        a.refuse = {}
        async with connection.receiver("q") as receiver:
            assert receiver.is_attached


async def test_leaving_a_connection_leaves_those_that_redirects_led_to_in_a_second(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    a, b = two(nursery)
    b.mute = {Close, Detach, End}
    async with a.connect(redirects=["b.example"]) as connection:
        receiver = connection.receiver("q")
        await receiver.__aenter__()
        began = trio.current_time()
    assert trio.current_time() - began <= 1
    kinds = [type(each) for each in await b.rest()]
    assert Close in kinds
    with pytest.raises(CommandError, match="was left"):
        await receiver.receive()


async def test_a_message_of_an_anonymous_sender_is_rejected_with_where(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with (
        Router(RouterConfig(addresses=(TO_B,))) as a,
        joined(nursery, a, redirects=["*"]) as connection,
        connection.sender(None) as anonymous,
    ):
        with pytest.raises(RejectedError, match="amqp:link:redirect"):
            await anonymous.send(Message("x", to="elsewhere/a"))
