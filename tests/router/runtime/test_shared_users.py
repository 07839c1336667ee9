"""Users that management changes in a router with workers: they are the same in all of them, also after a failure."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from amqpmesh import SaslError, connect
from amqpmesh.router.config.file import ListenerConfig, RouterConfig
from amqpmesh.router.config.users import Users, add_user
from amqpmesh.router.config.workers import worker_config
from amqpmesh.router.management.service import ADDRESS
from amqpmesh.router.message.content import Message
from amqpmesh.router.runtime import poller
from amqpmesh.router.runtime.applying import ConfigChanges
from amqpmesh.router.runtime.reload import ConfigSource
from amqpmesh.router.runtime.router import Router, changes_of
from amqpmesh.router.runtime.shared_config import SharedConfig
from amqpmesh.router.runtime.source_changes import follow
from tests.support.worlds.sibling_workers import router_config, workers

pytestmark = pytest.mark.skipif(poller.EPOLL is None, reason="this system has no epoll")


def config_of(users: Path) -> RouterConfig:
    """Return a configuration with the listener `door` for a user `eve`."""
    add_user(users, "eve", "secret", 4096)
    door = ListenerConfig(url="amqp://127.0.0.1:0", name="door", sasl=("SCRAM-SHA-256",), users=users)
    return router_config(listeners=(*router_config().listeners, door))


def source_of(config: RouterConfig, number: int, folder: Path) -> ConfigSource:
    """Return the configuration that a worker shares. It tells the others nothing."""

    def part_of(whole: RouterConfig) -> RouterConfig:
        return worker_config(whole, number, 2, folder)

    return ConfigSource(None, lambda: config, lambda _: None, SharedConfig(folder, config, part_of, lambda: None))


async def delete_eve(router: Router) -> Any:
    """Return the status of the answer."""
    async with router.requester(ADDRESS) as management:
        named = {"operation": "DELETE", "type": "user", "name": "eve"}
        answer = await management.request(Message(None, application_properties=dict(named)))
    return answer.application_properties["statusCode"]


async def lets_in(router: Router) -> bool:
    url = next(each.url for each in router.listeners if each.name == "door")
    try:
        async with connect(url, user="eve", password="secret"):
            return True
    except SaslError:
        return False


async def test_a_full_disk_changes_no_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    users, config = tmp_path / "users.toml", config_of(tmp_path / "users.toml")
    async with workers(config, tmp_path) as routers:
        for number, router in enumerate(routers, 1):
            router.source = source_of(config, number, tmp_path)

        def write(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as disk:
            disk.setattr(SharedConfig, "write", write)
            assert await delete_eve(routers[0]) == 409
        assert "eve" in Users.load(users)
        assert [await lets_in(each) for each in routers] == [True, True]
        assert await delete_eve(routers[0]) == 204


async def test_others_follow_a_worker_that_dies_with_the_file_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tmp_path / "users.toml")
    async with workers(config, tmp_path) as routers:
        for number, router in enumerate(routers, 1):
            router.source = source_of(config, number, tmp_path)
        change_users = ConfigChanges.change_users

        async def dies(self: ConfigChanges, *given: Any, **settings: Any) -> None:
            await change_users(self, *given, **settings)
            raise OSError(errno.EIO, "the process is gone")

        with monkeypatch.context() as worker:
            worker.setattr(ConfigChanges, "change_users", dies)
            assert await delete_eve(routers[0]) == 409
        source = routers[1].source
        assert source is not None
        assert source.shared is not None
        await follow(changes_of(routers[1]), source.shared)
        assert [await lets_in(each) for each in routers] == [False, False]
