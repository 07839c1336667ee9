"""Users that are read again while the router runs: who may not log in any more is disconnected."""

from __future__ import annotations

from pathlib import Path

import pytest

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
