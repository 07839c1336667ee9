"""Users that are read again while the router runs: who may not log in any more is disconnected."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from amqpmesh import ConnectionClosedError, ListenerConfig, Router, SaslError, connect
from amqpmesh.router.config.users import add_user, remove_user, switch_user


@pytest.mark.parametrize("removed", [True, False])
async def test_a_user_that_may_not_log_in_any_more_is_disconnected(tmp_path: Path, *, removed: bool) -> None:
    file = tmp_path / "users.toml"
    for name in ("alice", "bob"):
        add_user(file, name, "secret", 4096)
    listener = ListenerConfig(url="amqp://127.0.0.1:0", sasl=("SCRAM-SHA-512",), users=file)
    async with (
        Router(id="A", listeners=[listener]) as router,
        connect(router.listeners[0].url, user="bob", password="secret") as bob,
        bob.receiver("q"),
    ):
        with pytest.raises(ConnectionClosedError):
            async with (
                connect(router.listeners[0].url, user="alice", password="secret") as alice,
                alice.receiver("q") as receiver,
            ):
                if removed:
                    remove_user(file, "alice")
                else:
                    switch_user(file, "alice", disabled=True)
                router.reload()
                await receiver.receive()
        with pytest.raises(SaslError):
            async with connect(router.listeners[0].url, user="alice", password="secret") as alice, alice.receiver("q"):
                pass
        async with bob.receiver("p"):
            pass  # others are not disturbed
        assert router.statistics().router.denied == 1


async def test_a_peer_that_logs_in_and_waits_with_its_open_is_judged_by_the_users_of_then(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    add_user(file, "alice", "secret", 4096)
    listener = ListenerConfig(url="amqp://127.0.0.1:0", sasl=("PLAIN",), users=file, insecure=True)
    async with Router(id="A", listeners=[listener]) as router:
        stream = await trio.open_tcp_stream("127.0.0.1", int(router.listeners[0].url.rpartition(":")[2]))
        initial = b"\0alice\0secret"
        login = (
            b"\0\x53\x41\xc0" + bytes([10 + len(initial), 2]) + b"\xa3\x05PLAIN\xa0" + bytes([len(initial)]) + initial
        )
        await stream.send_all(b"AMQP\x03\x01\0\0" + (8 + len(login)).to_bytes(4, "big") + b"\x02\x01\0\0" + login)
        await read_until(stream, b"\0\x53\x44")
        switch_user(file, "alice", disabled=True)
        router.reload()
        opening = b"\0\x53\x10\xc0\x04\x01\xa1\x01c"
        await stream.send_all(b"AMQP\0\x01\0\0" + (8 + len(opening)).to_bytes(4, "big") + b"\x02\0\0\0" + opening)
        assert b"amqp:unauthorized-access" in await read_until(stream, b"not permitted")


async def read_until(stream: trio.SocketStream, end: bytes) -> bytes:
    read = b""
    with trio.fail_after(60):
        while end not in read:
            some = await stream.receive_some()
            assert some, f"the router has ended the connection after {read!r}"
            read += some
    return read
