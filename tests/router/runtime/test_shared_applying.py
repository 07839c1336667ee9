"""A configuration that is applied in a router with workers, and what cannot be done at one of them."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from amqpmesh import ConfigError, LinkDetachedError, Router, RouterConfig, connect
from amqpmesh.router.attach.homes import ranking
from amqpmesh.router.config.file import AuditConfig, PolicyConfig
from amqpmesh.router.config.workers import worker_config
from amqpmesh.router.runtime import poller
from amqpmesh.router.runtime.audit_file import file_of
from amqpmesh.router.runtime.reload import ConfigSource
from amqpmesh.router.runtime.router import changes_of
from amqpmesh.router.runtime.shared_config import SharedConfig
from amqpmesh.router.runtime.source_changes import apply_file, follow
from tests.support.worlds.sibling_workers import router_config, workers

pytestmark = pytest.mark.skipif(poller.EPOLL is None, reason="this system has no epoll")


def policy(file: Path, receive: str) -> PolicyConfig:
    file.write_text(f'[[group]]\nname = "g"\nsend = ["#"]\nreceive = ["{receive}/#"]\n')
    return PolicyConfig(file=file)


def give_source(routers: list[Router], folder: Path, started: RouterConfig, wanted: RouterConfig) -> list[ConfigSource]:
    """Have workers share a configuration, whose file has changed to another one. They tell each other nothing."""

    def source(number: int) -> ConfigSource:
        shared = SharedConfig(
            folder, started, lambda whole: worker_config(whole, number, len(routers), folder), lambda: None
        )
        return ConfigSource(None, lambda: wanted, lambda _: None, shared)

    found = [source(number) for number in range(1, len(routers) + 1)]
    for router, each in zip(routers, found, strict=True):
        router.source = each
    return found


async def may_receive(router: Router, place: str) -> bool:
    """Return whether a worker lets a client receive from an address in a place, which it does not hand over."""
    worker = router.config.worker
    assert worker is not None
    numbers = range(1, worker.count + 1)
    address = next(
        name for name in map(f"{place}/q{{}}".format, range(1000)) if ranking("", name, numbers)[0] == worker.number
    )
    try:
        async with connect(router.listeners[0].url) as client, client.receiver(address):
            return True
    except LinkDetachedError:
        return False


async def test_a_full_disk_changes_no_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = router_config(policy=policy(tmp_path / "one.toml", "old"))
    wanted = replace(started, policy=policy(tmp_path / "two.toml", "new"))
    async with workers(started, tmp_path) as routers:
        sources = give_source(routers, tmp_path, started, wanted)

        def prepare(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as disk:
            disk.setattr(SharedConfig, "prepare", prepare)
            with pytest.raises(OSError, match="No space left"):
                await apply_file(changes_of(routers[0]), sources[0])
        for each in routers:
            assert each.config.policy == started.policy
            assert [await may_receive(each, name) for name in ("old", "new")] == [True, False]
        await apply_file(changes_of(routers[0]), sources[0])
        assert sources[1].shared is not None
        await follow(changes_of(routers[1]), sources[1].shared)
        for each in routers:
            assert [await may_receive(each, name) for name in ("old", "new")] == [False, True]


async def test_a_change_that_fails_leaves_nothing_for_workers_that_are_started_again(tmp_path: Path) -> None:
    started = router_config(policy=policy(tmp_path / "one.toml", "old"))
    none = AuditConfig(file=tmp_path / "none" / "audit.jsonl")
    wanted = replace(started, policy=policy(tmp_path / "two.toml", "new"), audit=none)
    async with workers(started, tmp_path) as routers:
        sources = give_source(routers, tmp_path, started, wanted)
        there = {each.name for each in tmp_path.iterdir()}
        with pytest.raises(ConfigError, match="audit.file"):
            await apply_file(changes_of(routers[0]), sources[0])
        assert sources[0].shared is not None
        assert sources[0].shared.read().wanted == started
        assert {each.name for each in tmp_path.iterdir()} - there <= {"config.lock"}
        assert [await may_receive(routers[0], name) for name in ("old", "new")] == [True, False]


async def test_an_audit_log_that_another_worker_cannot_open_changes_nothing(tmp_path: Path) -> None:
    started = router_config(policy=policy(tmp_path / "one.toml", "old"))
    audit = AuditConfig(file=tmp_path / "audit.jsonl")
    wanted = replace(started, policy=policy(tmp_path / "two.toml", "new"), audit=audit)
    file_of(audit, 2).mkdir()
    async with workers(started, tmp_path) as routers:
        sources = give_source(routers, tmp_path, started, wanted)
        with pytest.raises(ConfigError, match=r"audit\.2\.jsonl"):
            await apply_file(changes_of(routers[0]), sources[0])
        assert not file_of(audit, 1).exists()
        assert routers[0].config.policy == started.policy
        file_of(audit, 2).rmdir()
        await apply_file(changes_of(routers[0]), sources[0])
        assert routers[0].config.audit == audit


async def test_a_worker_that_follows_takes_rights_away_also_if_it_cannot_open_its_audit_log(tmp_path: Path) -> None:
    started = router_config(policy=policy(tmp_path / "one.toml", "old"))
    audit = AuditConfig(file=tmp_path / "audit.jsonl")
    wanted = replace(started, policy=policy(tmp_path / "two.toml", "new"), audit=audit)
    async with workers(started, tmp_path) as routers:
        sources = give_source(routers, tmp_path, started, wanted)
        await apply_file(changes_of(routers[0]), sources[0])
        file_of(audit, 2).unlink()
        file_of(audit, 2).mkdir()  # since it was looked at
        shared = sources[1].shared
        assert shared is not None
        with pytest.raises(ConfigError, match="audit.file"):
            await follow(changes_of(routers[1]), shared)
        assert [await may_receive(routers[1], name) for name in ("old", "new")] == [False, True]
        assert [each.config.audit for each in routers] == [audit, None]
        file_of(audit, 2).rmdir()
        await follow(changes_of(routers[1]), shared)
        assert [each.config.audit for each in routers] == [audit, audit]


async def test_a_worker_that_could_not_follow_applies_a_file_that_mends_it(tmp_path: Path) -> None:
    started = router_config(policy=policy(tmp_path / "one.toml", "old"))
    audit = AuditConfig(file=tmp_path / "audit.jsonl")
    wanted = replace(started, policy=policy(tmp_path / "two.toml", "new"), audit=audit)
    mended = replace(wanted, policy=policy(tmp_path / "three.toml", "mended"), audit=None)
    async with workers(started, tmp_path) as routers:
        sources = give_source(routers, tmp_path, started, wanted)
        await apply_file(changes_of(routers[0]), sources[0])
        file_of(audit, 2).unlink()
        file_of(audit, 2).mkdir()  # since it was looked at
        with pytest.raises(ConfigError, match="audit.file"):
            await apply_file(changes_of(routers[1]), sources[1])
        sources = give_source(routers, tmp_path, started, mended)
        await apply_file(changes_of(routers[1]), sources[1])
        assert sources[0].shared is not None
        await follow(changes_of(routers[0]), sources[0].shared)
        for each in routers:
            assert each.config.audit is None
            assert [await may_receive(each, name) for name in ("old", "new", "mended")] == [False, False, True]


async def test_a_worker_that_cannot_read_the_policy_keeps_the_one_that_it_had_until_the_next_change(
    tmp_path: Path,
) -> None:
    started = router_config(policy=policy(tmp_path / "one.toml", "old"))
    wanted = replace(started, policy=policy(tmp_path / "two.toml", "new"))
    text = (tmp_path / "two.toml").read_bytes()
    async with workers(started, tmp_path) as routers:
        sources = give_source(routers, tmp_path, started, wanted)
        await apply_file(changes_of(routers[0]), sources[0])
        (tmp_path / "two.toml").write_text("[[gro")
        shared = sources[1].shared
        assert shared is not None
        with pytest.raises(ConfigError, match="two.toml"):
            await follow(changes_of(routers[1]), shared)
        assert [await may_receive(routers[1], name) for name in ("old", "new")] == [True, False]
        (tmp_path / "two.toml").write_bytes(text)
        await apply_file(changes_of(routers[0]), sources[0])
        await follow(changes_of(routers[1]), shared)
        for each in routers:
            assert [await may_receive(each, name) for name in ("old", "new")] == [False, True]
