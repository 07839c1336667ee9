"""A router from start to end, with its clients and the program around it."""

import gc
import socket
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from amqpmesh.router.amqp.errors import CommandError, ConfigError
from amqpmesh.router.amqp.standard.definitions import ConnectionCondition, Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified
from amqpmesh.router.amqp.standard.performatives import Close, Detach, Disposition, Flow, Transfer
from amqpmesh.router.config.file import ListenerConfig, RouterConfig
from amqpmesh.router.io.streams import TcpStream
from amqpmesh.router.runtime.driver import TURNS
from amqpmesh.router.runtime.ending import HEARING_TIME
from amqpmesh.router.runtime.router import Router
from amqpmesh.router.runtime.transport import Transport
from tests.support.peers.scripted_stream import Peer, connect, connected, credit
from tests.support.worlds.sockets import EITHER_WAY

pytestmark = EITHER_WAY

LOOPBACK = "amqp://127.0.0.1:0"


def kept(router: Router) -> list[Transport | TcpStream]:
    """Return the transports and sockets of a router's connections that still exist."""
    found = gc.get_objects()
    transports = [each for each in found if isinstance(each, Transport) and each._driver is router._driver]
    return [*transports, *(each for each in found if isinstance(each, TcpStream))]


async def test_two_clients_exchange_a_message_and_nothing_is_left(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router(id="A") as router:
        receiver, sender = connected(nursery, router), connected(nursery, router)
        await receiver.attach(Role.RECEIVER, "q")
        await receiver.write(credit(10))
        await sender.attach(Role.SENDER, "q")
        await sender.send(0, b"hello")
        transfer = await receiver.expect(Transfer)
        assert receiver.payload.endswith(b"hello")
        assert router.statistics().router.relays == 1
        await receiver.accept(transfer)
        disposition = await sender.expect(Disposition)
        assert (disposition.state, disposition.settled) == (Accepted(), True)
        await sender.close()
        await receiver.close()
    assert router.statistics().is_empty


def test_a_router_can_be_made_before_the_loop_runs() -> None:
    router = Router(id="A", listeners=[LOOPBACK])

    async def run() -> int:
        async with router:
            return len(router.listeners)

    assert trio.run(run) == 1


async def test_sockets_are_served_as_streams_are() -> None:
    async with Router(listeners=[LOOPBACK, LOOPBACK], id="A") as router:
        assert [listener.name for listener in router.listeners] == ["amqp", "amqp-2"]
        assert router.listeners[0].url != router.listeners[1].url
        receiver, sender = await connect(router, 0), await connect(router, 1)
        await receiver.attach(Role.RECEIVER, "q")
        await receiver.write(credit(10))
        await sender.attach(Role.SENDER, "q")
        await sender.send(0, b"hello", settled=True)
        await receiver.expect(Transfer)
        await sender.close()
        await receiver.close()
    assert router.statistics().is_empty


async def test_a_router_keeps_nothing_of_the_last_peer_after_it_has_gone() -> None:
    async with Router(listeners=[LOOPBACK], id="A") as router:
        peer = await connect(router)
        await peer.attach(Role.RECEIVER, "q")
        gc.collect()
        assert len(kept(router)) == 2
        await peer.close()
        while router.statistics().router.connections:
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        gc.collect()
        assert not kept(router)


async def test_a_crowd_that_goes_at_once_leaves_the_others_their_turns(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    crowd = 500
    async with Router(id="A") as router:
        peers = [connected(nursery, router) for _ in range(crowd)]
        for peer in peers:
            await peer.open()
        for peer in peers:
            assert isinstance(peer.stream, trio.StapledStream)
            peer.stream.send_stream.close()  # all of them before any other task runs
        turns = 0
        while router.statistics().router.connections:
            await trio.lowlevel.checkpoint()
            turns += 1
        assert turns >= crowd / TURNS
    assert router.statistics().is_empty


async def test_a_silent_peer_is_closed_when_its_idle_time_out_has_passed(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router(id="A", idle_time_out=8.0) as router:
        peer = connected(nursery, router)
        assert (await peer.open()).idle_time_out == 4_000  # ms; we announce half of what we grant (§2.4.5)
        opened_at = trio.current_time()
        close = await peer.expect(Close)
        assert close.error is not None
        assert trio.current_time() - opened_at == 8.0
        await peer.expect_end()
        # The peer does not answer the `close`, and the router ends the connection.
        await trio.sleep(2.0)
        assert router.statistics().router.connections == 0
        assert trio.current_time() - opened_at <= 16.0
    assert router.statistics().is_empty


async def test_a_peer_that_connects_and_says_nothing_is_cut_off(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router(id="A") as router:
        peer = connected(nursery, router)
        await peer.expect_end()
        assert trio.current_time() <= 12.0
    assert router.statistics().is_empty


async def test_leaving_waits_for_what_is_unsettled_and_for_nothing_else(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router(id="A", drain=30.0) as router:
        receiver, sender, idle = (connected(nursery, router) for _ in range(3))
        await receiver.attach(Role.RECEIVER, "q")
        await receiver.write(credit(10))
        await sender.attach(Role.SENDER, "q")
        await idle.open()
        await sender.send(0)
        transfer = await receiver.expect(Transfer)
        left_at = trio.current_time()

        async def accept_later() -> None:
            await trio.sleep(2.0)
            with pytest.raises(CommandError, match="about to"):
                await router.serve_stream(trio.testing.memory_stream_pair()[0])
            await receiver.accept(transfer)
            assert (await receiver.answer_close()).error is not None

        async def hear_of_it() -> None:
            assert (await sender.expect(Disposition)).state == Accepted()
            close = await sender.answer_close()
            assert close.error is not None
            assert close.error.condition == ConnectionCondition.CONNECTION_FORCED

        for task in (accept_later, hear_of_it, idle.answer_close):
            nursery.start_soon(task)
    assert trio.current_time() - left_at == 2.0
    assert router.statistics().is_empty


async def test_what_is_sent_while_its_credit_is_taken_back_is_not_cut_off(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router(id="A", drain=30.0) as router:
        receiver, sender = connected(nursery, router), connected(nursery, router)
        await receiver.attach(Role.RECEIVER, "q")
        await receiver.write(credit(10))
        await sender.attach(Role.SENDER, "q")
        while not (await sender.expect(Flow)).link_credit:
            pass

        async def send_late() -> None:
            while not (await sender.expect(Flow)).drain:
                pass
            await trio.sleep(HEARING_TIME / 2)
            await sender.send(0)
            assert (await sender.expect(Disposition)).state == Accepted()
            await sender.answer_close()

        async def accept_later() -> None:
            transfer = await receiver.expect(Transfer)
            await trio.sleep(2.0)
            await receiver.accept(transfer)
            await receiver.answer_close()

        nursery.start_soon(send_late)
        nursery.start_soon(accept_later)
        assert await router.drain()
        assert 2.0 < trio.current_time() < 2.0 + HEARING_TIME
    assert router.statistics().is_empty


async def test_a_silent_receiver_with_credit_prolongs_a_drain_by_little(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router(id="A", drain=30.0) as router:
        receiver, sender = connected(nursery, router), connected(nursery, router)
        await receiver.attach(Role.RECEIVER, "q")
        await receiver.write(credit(10))
        await sender.attach(Role.SENDER, "q")
        nursery.start_soon(sender.answer_close)
        nursery.start_soon(receiver.answer_close)
        assert await router.drain()
        assert trio.current_time() == HEARING_TIME
    assert router.statistics().is_empty


async def test_the_time_to_drain_is_bounded_and_so_is_the_time_to_close(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router(id="A", drain=3.0) as router:
        receiver, sender = connected(nursery, router), connected(nursery, router)
        await receiver.attach(Role.RECEIVER, "q")
        await receiver.write(credit(10))
        await sender.attach(Role.SENDER, "q")
        await sender.send(0)
        await receiver.expect(Transfer)
        left_at = trio.current_time()
    assert trio.current_time() - left_at == 4.0  # 3 to drain, 1 for answers that never come
    # The receiver gave no outcome, so the sender gets none.
    while (found := await sender.next_frame()) is not None and not isinstance(found[0], Close):
        if isinstance(found[0], Disposition):
            assert isinstance(found[0].state, Modified)
    await receiver.expect(Close)
    assert router.statistics().is_empty


async def test_a_drained_router_takes_nobody_in_and_draining_twice_does_no_harm() -> None:
    async with Router(listeners=[LOOPBACK]) as router:
        await router.drain()
        await router.drain()
        with pytest.raises(OSError, match="connect"):
            await connect(router)
        with pytest.raises(CommandError, match="has ended"):
            await router.serve_stream(trio.testing.memory_stream_pair()[0])


async def test_a_cancelled_router_ends_at_once_and_says_so_to_its_peers() -> None:
    with trio.CancelScope() as scope:
        async with Router(listeners=[LOOPBACK]) as router:
            peer = await connect(router)
            await peer.attach(Role.RECEIVER, "q")
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert router.statistics().is_empty
    close = await peer.expect(Close)
    assert close.error is not None
    await peer.expect_end()


async def test_a_drain_that_is_cancelled_is_over_at_once() -> None:
    async with Router(listeners=[LOOPBACK], drain=60.0) as router:
        receiver, sender = await connect(router), await connect(router)
        await receiver.attach(Role.RECEIVER, "q")
        await receiver.write(credit(10))
        await sender.attach(Role.SENDER, "q")
        await sender.send(0)
        await receiver.expect(Transfer)
        with trio.CancelScope() as scope:
            scope.cancel()
            await router.drain()
        assert router.statistics().router.relays == 1
        await receiver.stream.aclose()
    assert router.statistics().is_empty


async def test_an_error_of_the_body_comes_out_as_it_is(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    router = Router()

    async def fail() -> None:
        async with router:
            await connected(nursery, router).open()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert router.statistics().is_empty


async def test_an_error_of_the_body_is_not_lost_when_leaving_is_cancelled(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async def fail() -> None:
        async with Router() as router:
            await connected(nursery, router).open()
            raise ZeroDivisionError

    with trio.move_on_after(0.5), pytest.raises(ZeroDivisionError):
        await fail()
    assert trio.current_time() == 0.5


async def test_streams_served_in_tasks_of_the_program_are_gone_when_the_router_is(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as outside:
        async with Router() as router:
            await connected(outside, router).open()
        assert router.statistics().is_empty


async def test_a_port_in_use_is_an_error_with_the_url_and_nothing_stays_bound() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
        probe.close()
        taken = f"amqp://127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(OSError, match=f"in use: '{taken}'"):
            async with Router(listeners=[f"amqp://127.0.0.1:{free}", taken]):
                pass
        socket.create_server(("127.0.0.1", free)).close()


async def test_a_host_that_is_not_ours_is_an_error_with_the_url() -> None:
    listener = ListenerConfig(url="amqp://192.0.2.1:0", insecure=True)
    with pytest.raises(OSError, match=r"amqp://192\.0\.2\.1:0"):
        async with Router(listeners=[listener]):
            pass


async def test_every_address_of_a_host_is_listened_at_with_one_port() -> None:
    async with Router(listeners=["amqp://localhost:0"]) as router:
        port = int(router.listeners[0].url.rpartition(":")[2])
        for *_, address in socket.getaddrinfo("localhost", port, type=socket.SOCK_STREAM):
            async with await trio.open_tcp_stream(str(address[0]), port) as stream:
                await Peer(stream).open()


async def test_a_configuration_may_be_a_file_an_object_or_keywords(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[router]\nid = 'A'\ndrain = 7.0\n[[listener]]\nurl = 'amqp://127.0.0.1:0'\nname = 'here'\n")
    router = Router(file, id="B", listeners=[LOOPBACK, ListenerConfig(url=LOOPBACK, name="there")])
    assert (router.id, router.config.drain) == ("B", 7.0)
    assert [listener.name for listener in router.config.listeners] == ["here", "amqp", "there"]
    assert Router(RouterConfig(id="C")).id == "C"
    with pytest.raises(ConfigError, match="without @"):
        Router(id="a@b")
    with pytest.raises(ConfigError, match="No such file"):
        Router(tmp_path / "absent.toml")
    with pytest.raises(TypeError, match="colour"):
        Router(colour="blue")


async def test_a_router_runs_once_and_does_nothing_before() -> None:
    router = Router()
    with pytest.raises(CommandError, match="not started"):
        router.statistics()
    with pytest.raises(CommandError, match="not started"):
        await router.drain()
    async with router:
        pass
    with pytest.raises(CommandError, match="runs once"):
        async with router:
            pass


async def test_a_detached_link_is_answered_while_the_router_runs_on(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router() as router:
        peer = connected(nursery, router)
        await peer.attach(Role.RECEIVER, "q")
        await peer.write(Detach(handle=0, closed=True))
        assert (await peer.expect(Detach)).closed
        assert router.statistics().router.links == 0
        await peer.close()
    assert router.statistics().is_empty
