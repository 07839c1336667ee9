"""A policy that is read again while the router runs."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio
import trio.testing

from amqpmesh import LinkDetachedError, Router, connect
from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.config.file import MeshConfig, PolicyConfig
from amqpmesh.router.config.policy_file import LARGEST, PolicyText
from amqpmesh.router.runtime import reload

POLICY = '[[group]]\nname = "g"\nreceive = {}\nsend = ["q"]\n'


async def test_a_policy_that_is_not_valid_leaves_the_one_before_in_force(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(POLICY.format('["q"]'))
    async with (
        Router(id="A", policy=PolicyConfig(file=file), listeners=["amqp://127.0.0.1:0"]) as router,
        connect(router.listeners[0].url) as client,
        client.receiver("q") as receiver,
    ):
        file.write_text("[[group]")
        with pytest.raises(ConfigError):
            router.reload()
        async with client.receiver("q"):
            pass  # it may still attach
        file.write_text(POLICY.format("[]"))
        assert router.reload() == []
        with pytest.raises(LinkDetachedError, match="not permitted"):
            await receiver.receive()
        async with client.sender("q"):
            pass
        assert router.statistics().router.denied == 1


WHOLE = '[[group]]\nname = "g"\nreceive = ["q"]\nlimits = { links = 4 }\n'


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(WHOLE.encode()[:-4], "file", id="torn"),
        pytest.param(WHOLE.encode() + b"# \xff", "file", id="no UTF-8"),
        pytest.param(WHOLE.encode() + b"\0", "file", id="a NUL"),
        pytest.param(b"#" * (LARGEST + 1), "file", id="huge"),
        pytest.param(WHOLE.encode() * 2, "group[1].name", id="twice"),
        pytest.param(WHOLE.encode() + b'tenant = "a"\n', "group[0]", id="of no tenant"),
        pytest.param(WHOLE.encode() + b'name = "h"\n', "file", id="contradictory"),
        pytest.param(WHOLE.replace("4", f"0x{'f' * 400}").encode(), "file", id="a number beyond all"),
        pytest.param(WHOLE.encode() + b"a = " + b"[" * 10_000, "file", id="nested"),
        pytest.param(None, "file", id="gone"),
    ],
)
async def test_such_a_file_changes_nothing_and_the_error_says_why(
    data: bytes | None, reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(WHOLE)
    async with (
        Router(id="A", policy=PolicyConfig(file=file), listeners=["amqp://127.0.0.1:0"]) as router,
        connect(router.listeners[0].url) as client,
        client.receiver("q"),
    ):
        digest = router.statistics().policies[0].digest
        file.unlink() if data is None else file.write_bytes(data)
        with pytest.raises(ConfigError) as error:
            router.reload()
        assert error.value.key is not None
        assert error.value.key.startswith(reason)
        assert router.statistics().policies[0].digest == digest
        async with client.receiver("q"):
            pass
        with pytest.raises(LinkDetachedError, match="not permitted"):
            async with client.receiver("p"):
                pass


async def test_a_router_does_not_start_with_a_policy_that_is_not_valid(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        async with Router(id="A", policy=PolicyConfig(file=tmp_path / "none.toml")):
            raise AssertionError("it has started")


async def test_links_within_the_process_are_the_programs_own(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text("")
    async with (
        Router(id="A", policy=PolicyConfig(file=file)) as router,
        router.receiver("q") as receiver,
        router.sender("q") as sender,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(sender.send, "hello")
        delivery = await receiver.receive()
        delivery.accept()


async def test_a_policy_is_read_aside_while_messages_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(POLICY.format('["q"]'))
    read, passed = reload.read_policy, threading.Event()

    def slow(config: PolicyConfig, mesh: MeshConfig | None) -> PolicyText:
        assert passed.wait(30), "the loop stood still while the policy was read"
        return read(config, mesh)

    monkeypatch.setattr(reload, "read_policy", slow)
    async with (
        Router(id="A", policy=PolicyConfig(file=file)) as router,
        router.receiver("q") as receiver,
        router.sender("q") as sender,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(router.reload_aside)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(sender.send, "hello")
        (await receiver.receive()).accept()
        passed.set()
