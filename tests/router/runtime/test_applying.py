"""A changed configuration, put in force in a router that runs."""

from __future__ import annotations

import errno
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from amqpmesh import ConnectionClosedError, LinkDetachedError, ListenerConfig, Message, Router, SaslError, connect
from amqpmesh.router.amqp.errors import CommandError, ConfigError
from amqpmesh.router.amqp.standard.performatives import Open
from amqpmesh.router.config.address import AddressConfig
from amqpmesh.router.config.file import ConnectorConfig, LinkConfig, MeshConfig, RouterConfig
from amqpmesh.router.config.observability import LogConfig
from amqpmesh.router.config.tables import Effect
from amqpmesh.router.config.users import add_user, remove_user
from amqpmesh.router.management.config_requests import config_request
from amqpmesh.router.management.service import ADDRESS
from amqpmesh.router.runtime import applying
from amqpmesh.router.runtime.applying import Applied
from amqpmesh.router.runtime.listeners import listening_at
from amqpmesh.router.runtime.reload import ConfigSource
from tests.support.peers.scripted_stream import AMQP, frame
from tests.support.worlds.sockets import EITHER_WAY

pytestmark = EITHER_WAY

LOOPBACK = "amqp://127.0.0.1:0"


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def config(*urls: str, **settings: object) -> RouterConfig:
    return RouterConfig(id="A", **settings).with_listeners(*urls)  # type: ignore[arg-type]


@asynccontextmanager
async def relayed(url: str, address: str = "q") -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Provide a function that sends and receives, on links that stay while the configuration changes."""
    async with (
        connect(url) as client,
        client.receiver(address, credit=10) as receiver,
        client.sender(address) as sender,
    ):

        async def send(count: int = 5) -> None:
            for number in range(count):
                outcome = await sender.transfer(number)
                delivery = await receiver.receive()
                assert delivery.message.body == number
                delivery.accept()
                await outcome.outcome()

        yield send


async def test_a_link_that_no_change_concerns_notices_nothing() -> None:
    async with Router(config(LOOPBACK)) as router, relayed(router.listeners[0].url) as send:
        await send()
        other = AddressConfig(pattern="other", max_credit=7)
        more = replace(router.config, addresses=(other,), drain=1.0).with_listeners("amqp://127.0.0.1:0")
        applied = await router.apply(more)
        assert [each.key for each in applied.differences] == ["router.drain", "listener[amqp-2]", "address[other]"]
        assert not applied.waiting
        await send()
        async with relayed(router.listeners[1].url, "other") as send_there:
            await send_there()
        assert (await router.apply(config(LOOPBACK))).differences
        await send()
        assert [each.name for each in router.listeners] == ["amqp"]
        assert router.config == config(LOOPBACK)
    assert router.statistics().is_empty


async def test_a_trial_changes_nothing() -> None:
    async with Router(config(LOOPBACK)) as router:
        before = router.config
        tried = await router.apply(replace(before, drain=2.0, id="B"), dry_run=True)
        assert [(each.key, each.needs_restart) for each in tried.differences] == [
            ("router.id", True),
            ("router.drain", False),
        ]
        assert router.config is before
        done = await router.apply(replace(before, drain=2.0, id="B"))
        assert done == tried
        assert router.config == replace(before, drain=2.0)
        # What waits for a restart stays a difference.
        assert (await router.apply(replace(before, drain=2.0, id="B"))).differences == done.waiting


async def test_the_addresses_in_use_follow_at_once() -> None:
    async with Router(config(LOOPBACK)) as router, connect(router.listeners[0].url) as client:
        async with client.sender("q") as sender, client.receiver("q", credit=0) as receiver:
            await router.apply(replace(router.config, addresses=(AddressConfig(pattern="q", max_credit=2),)))
            receiver.flow(10)
            for number in range(2):
                await sender.transfer(number)
            for _ in range(2):
                (await receiver.receive()).accept()
            node = next(each for each in router.statistics().addresses if each.name == "q")
            assert node.granted <= 2
        dead = AddressConfig(pattern="q", redeliver=True, attempts=1, dead_letter="dead")
        async with client.sender("q") as sender, client.receiver("q") as receiver, client.receiver("dead") as letters:
            await router.apply(replace(router.config, addresses=(dead,)))
            sent = await sender.transfer("x")
            (await receiver.receive()).modify(delivery_failed=True)
            letter = await letters.receive()
            letter.accept()
            assert letter.message.body == "x"
            await sent.outcome()


async def test_a_node_in_use_keeps_its_distribution_until_it_is_forgotten() -> None:
    multicast = AddressConfig(pattern="q", distribution="multicast")  # type: ignore[arg-type]
    async with Router(config(LOOPBACK)) as router, connect(router.listeners[0].url) as client:

        def distribution() -> str:
            return next(str(each.distribution) for each in router.statistics().addresses if each.name == "q")

        async with client.receiver("q"):
            await router.apply(replace(router.config, addresses=(multicast,)))
            assert distribution() == "balanced"
        async with client.receiver("q"):
            assert distribution() == "multicast"


async def test_the_clients_of_a_listener_that_is_removed_are_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with Router(config(LOOPBACK, LOOPBACK)) as router, relayed(router.listeners[0].url) as send:
        gone = router.listeners[1].url
        with pytest.raises(ConnectionClosedError, match="the configuration has changed"):
            async with connect(gone) as client, client.receiver("x") as receiver:
                await router.apply(config(LOOPBACK))
                await receiver.receive()
        await send()
        with pytest.raises(OSError, match="all attempts"):
            await trio.open_tcp_stream("127.0.0.1", int(gone.rpartition(":")[2]))
    assert router.statistics().is_empty


async def test_a_listener_moves_and_keeps_its_clients() -> None:
    port = free_port()
    async with Router(config(f"amqp://127.0.0.1:{port}")) as router, relayed(router.listeners[0].url) as send:
        # The port is the same, and no moment comes in which nothing listens there.
        applied = await router.apply(config(f"amqp://localhost:{port}"))
        assert [(each.key, each.effect) for each in applied.differences] == [("listener[amqp].url", Effect.BOUND_ANEW)]
        await send()
        async with relayed(f"amqp://localhost:{port}", "there") as send_there:
            await send_there()
        other = free_port()
        await router.apply(config(f"amqp://127.0.0.1:{other}"))
        await send()
        async with relayed(router.listeners[0].url, "there") as send_there:
            await send_there()
        assert router.listeners[0].url == f"amqp://127.0.0.1:{other}"
    assert router.statistics().is_empty


async def test_clients_that_wait_while_their_listener_moves_are_those_of_the_listener_as_it_is_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port, waiting = free_port(), []

    async def listen(*given: Any, **named: Any) -> list[socket.socket]:
        found = await listening_at(*given, **named)
        waiting.append(socket.create_connection(("127.0.0.1", port)))  # nothing accepts it before the listener moves
        return found

    monkeypatch.setattr(applying, "listening_at", listen)
    async with Router(config(f"amqp://127.0.0.1:{port}", close_time_out=0.1)) as router:
        moved = replace(router.config.listeners[0], url=f"amqp://127.0.0.1:{free_port()}")
        await router.apply(replace(router.config, listeners=(moved,)))
        with waiting[0] as early, trio.fail_after(60):
            early.sendall(AMQP + frame(Open(container_id="early")))
            while not router.statistics().connections:
                await trio.sleep(0.001)
            await router.apply(replace(router.config, listeners=()))
            while router.statistics().connections:
                await trio.sleep(0.001)


async def test_a_port_in_use_undoes_all_and_takes_no_rights_away(tmp_path: Path) -> None:
    for name in ("old", "new"):
        add_user(tmp_path / f"{name}.toml", "alice", "secret", 4096)
    add_user(tmp_path / "old.toml", "bob", "secret", 4096)
    listener = ListenerConfig(url=LOOPBACK, name="x", sasl=("SCRAM-SHA-256",), users=tmp_path / "old.toml", manage=True)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        url = f"amqp://127.0.0.1:{taken.getsockname()[1]}"
        async with Router(id="A", listeners=[listener]) as router:
            there = router.listeners[0].url
            before = router.config
            wanted = replace(
                before,
                drain=1.0,
                listeners=(
                    replace(listener, users=tmp_path / "new.toml", manage=False, connections=3),
                    ListenerConfig(url="amqp://127.0.0.1:0", name="free"),
                    ListenerConfig(url=url, name="taken"),
                ),
            )
            async with (
                connect(there, user="alice", password="secret") as alice,
                alice.receiver("q") as receiver,
                connect(there, user="bob", password="secret") as bob,
            ):
                with pytest.raises(OSError, match="in use") as failure:
                    await router.apply(wanted)
                assert failure.value.errno == errno.EADDRINUSE
                assert failure.value.filename == url
                assert router.config == before
                assert [each.name for each in router.listeners] == ["x"]
                async with bob.receiver("r"):
                    pass
                async with connect(there, user="bob", password="secret") as again, again.receiver("r"):
                    pass
                # Once the port is free, the same file is applied.
                taken.close()
                await router.apply(wanted)
                assert [each.name for each in router.listeners] == ["x", "free", "taken"]
                with pytest.raises((ConnectionClosedError, LinkDetachedError)):
                    async with bob.receiver("r") as his:
                        await his.receive()
                with pytest.raises(SaslError):
                    async with connect(there, user="bob", password="secret") as again, again.receiver("r"):
                        pass
                async with alice.sender("q") as sender:
                    sent = await sender.transfer("x")
                    (await receiver.receive()).accept()
                    await sent.outcome()
    assert router.statistics().is_empty


async def test_the_right_to_change_ends_at_once() -> None:
    listener = ListenerConfig(url=LOOPBACK, name="x", manage=True)
    async with Router(id="A", listeners=[listener]) as router, connect(router.listeners[0].url) as client:

        async def status() -> int:  # of a request to close the connection
            properties = {"operation": "DELETE", "type": "connection", "identity": f"connection/{number}"}
            async with client.requester("$management") as requester:
                answer = await requester.request(Message(None, application_properties=properties))
            code = answer.application_properties["statusCode"]
            assert isinstance(code, int)
            return code

        async with connect(router.listeners[0].url) as other, other.receiver("q") as receiver:
            number = 2
            await router.apply(replace(router.config, listeners=(replace(listener, manage=False),)))
            assert await status() == 403
            await router.apply(replace(router.config, listeners=(listener,)))
            assert await status() == 204
            with pytest.raises(ConnectionClosedError):
                await receiver.receive()


async def test_bad_files_change_nothing(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    add_user(file, "alice", "secret", 4096)
    listener = ListenerConfig(url=LOOPBACK, name="x", sasl=("SCRAM-SHA-256",), users=file)
    async with Router(id="A", listeners=[listener]) as router:
        before = router.config
        with pytest.raises(ConfigError):
            await router.apply(replace(before, drain=1.0, listeners=(replace(listener, users=tmp_path / "none.toml"),)))
        broken = tmp_path / "a.toml"
        broken.write_text("[router]\ndrain = 'x'")
        with pytest.raises(ConfigError, match=r"router\.drain"):
            await router.apply(broken)
        assert router.config is before
        async with connect(router.listeners[0].url, user="alice", password="secret") as alice, alice.receiver("q"):
            pass


async def test_users_that_change_are_told(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    for name in ("alice", "bob"):
        add_user(file, name, "secret", 4096)
    listener = ListenerConfig(url=LOOPBACK, name="x", sasl=("SCRAM-SHA-256",), users=file)
    async with Router(id="A", listeners=[listener]) as router:
        remove_user(file, "bob")
        tried = await router.apply(dry_run=True)
        assert [(each.event, each.user) for each in tried.users] == [("user removed", "bob")]
        assert tried == await router.apply()
        assert await router.apply() == Applied((), ())


async def test_costs_and_connectors_follow() -> None:
    mesh = MeshConfig(insecure=True, hello=0.1, hold=2.0)
    near = RouterConfig(id="A", mesh=mesh, listeners=(ListenerConfig(url=LOOPBACK, role="mesh", name="m"),))
    async with Router(near) as a, Router(RouterConfig(id="B", mesh=mesh)) as b, Router(replace(near, id="C")) as c:
        to_a = ConnectorConfig(url=a.listeners[0].url, name="there", cost=3)

        async def neighbours(router: Router, wanted: dict[str, int]) -> None:
            with trio.fail_after(60):
                while {each.router: each.cost for each in router.statistics().neighbours} != wanted:
                    await trio.sleep(0.01)

        await b.apply(replace(b.config, connectors=(to_a,)))
        await neighbours(b, {"A": 3})
        number = b.statistics().connectors[0].connection
        applied = await b.apply(replace(b.config, connectors=(replace(to_a, cost=5, redirects=("x.example",)),)))
        assert [(each.key, each.before, each.after) for each in applied.differences] == [
            ("connector[there].cost", "3", "5"),
            ("connector[there].redirects", "[]", '["x.example"]'),
        ]
        await neighbours(b, {"A": 5})
        # The place is one of two now: the connection stays.
        both = replace(to_a, url=(c.listeners[0].url, a.listeners[0].url))
        await b.apply(replace(b.config, connectors=(both,)))
        await neighbours(b, {"A": 3})
        assert b.statistics().connectors[0].connection == number
        await b.apply(replace(b.config, connectors=(replace(both, url=c.listeners[0].url),)))
        await neighbours(b, {"C": 3})
        await b.apply(replace(b.config, connectors=()))
        await neighbours(b, {})
        await neighbours(a, {})
        assert b.connectors == ()


async def test_links_to_another_container_come_and_go() -> None:
    async with Router(config(LOOPBACK)) as broker, Router(config(LOOPBACK)) as router:
        to_broker = ConnectorConfig(url=broker.listeners[0].url, name="broker", role="container")
        feeds = LinkConfig(connector="broker", source="queue", address="in")
        await router.apply(replace(router.config, id="A", connectors=(to_broker,), container_links=(feeds,)))
        with trio.fail_after(60):
            async with (
                connect(router.listeners[0].url) as here,
                connect(broker.listeners[0].url) as there,
                here.receiver("in") as receiver,
                there.sender("queue") as sender,
            ):
                sent = await sender.transfer("x")
                (await receiver.receive()).accept()
                await sent.outcome()
                await router.apply(replace(router.config, container_links=()))
                assert router.statistics().container_links == ()
            await router.apply(replace(router.config, connectors=()))
            assert router.connectors == ()


async def test_the_log_follows_where_the_program_says_so() -> None:
    seen: list[LogConfig] = []
    async with Router(config(LOOPBACK)) as router:
        router.source = ConfigSource(None, lambda: router.config, seen.append)
        await router.apply(replace(router.config, log=LogConfig(level="debug")))
        await router.apply(replace(router.config, drain=1.0))
    assert seen == [LogConfig(level="debug")]


async def test_the_configuration_of_one_that_stands_in_is_told_as_the_file_has_it() -> None:
    door = ListenerConfig(url=LOOPBACK, manage=True)
    async with (
        Router(id="A.old", listeners=[door]) as router,
        connect(router.listeners[0].url) as client,
        client.requester(ADDRESS) as management,
    ):
        router.source = ConfigSource(
            None, lambda: router.config, lambda _: None, as_in_file=lambda running: replace(running, id="A")
        )
        told = await management.request(config_request())
        assert isinstance(told.body, dict)
        assert 'id = "A"' in str(told.body["text"])


async def test_a_router_that_has_ended_takes_no_configuration() -> None:
    router = Router(config(LOOPBACK))
    with pytest.raises(CommandError):
        await router.apply()
    async with router:
        pass
    with pytest.raises(CommandError):
        await router.apply()
