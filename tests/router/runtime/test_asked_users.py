"""Users that a function of the program checks: async or not, slow, broken, and many at once."""

from __future__ import annotations

import functools
import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from amqpmesh import ConfigError, ListenerConfig, Login, SaslError, UserIdentity, connect
from amqpmesh.router.amqp.sasl.exchange import SaslCode
from amqpmesh.router.config.file import PolicyConfig
from amqpmesh.router.runtime.router import Router
from tests.router.runtime.test_passwords import Site

if TYPE_CHECKING:
    from trio.testing import MockClock

    from amqpmesh.router.config.user_checks import UserCheck

HOST, OTHER = "192.0.2.1", "192.0.2.2"


def asking(check: UserCheck) -> ListenerConfig:
    return ListenerConfig(url="amqp://127.0.0.1:0", name="asking", sasl=("PLAIN",), users=check, insecure=True)


async def right(login: Login) -> UserIdentity | None:
    return UserIdentity(login.user) if login.password == "right" else None


def right_at_once(login: Login) -> UserIdentity | None:
    return UserIdentity(login.user) if login.password == "right" else None


class Object:
    async def __call__(self, login: Login) -> UserIdentity | None:
        return await right(login)


@pytest.mark.parametrize(
    "check", [right, right_at_once, Object(), functools.partial(right), lambda login: right(login)]
)
async def test_the_function_tells_right_from_wrong(check: UserCheck, nursery: trio.Nursery) -> None:
    async with Router() as router:
        site = Site(router, asking(check), nursery)
        with trio.fail_after(60):
            assert (await site.log_in("ada", "right"))[0] == SaslCode.OK
            assert (await site.log_in("ada", "wrong"))[0] == SaslCode.AUTH


async def test_it_is_told_who_asks_and_the_password_is_in_no_text_of_that(nursery: trio.Nursery) -> None:
    asked: list[Login] = []

    async def check(login: Login) -> UserIdentity:
        asked.append(login)
        return UserIdentity("other")

    async with Router() as router:
        await Site(router, asking(check), nursery).log_in("ada", "secret", host=HOST)
    assert asked == [Login(user="ada", password="secret", host=HOST, listener="asking")]
    assert "secret" not in repr(asked)


async def test_the_name_the_groups_and_the_tenant_are_those_that_policies_judge(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(
        '[[tenant]]\nname = "a"\nmatch = [{ user = "*" }]\n[[tenant]]\nname = "b"\nmatch = [{ user = "nobody" }]\n'
        '[[group]]\ntenant = "b"\nname = "readers"\ngroups = ["reading"]\nreceive = ["news/${user}"]\n'
    )

    def check(login: Login) -> UserIdentity:
        return UserIdentity(login.user.upper(), groups=("reading",), tenant="b")

    async with (
        Router(listeners=[asking(check)], policy=PolicyConfig(file=file)) as router,
        connect(router.listeners[0].url, user="ada", password="x") as connection,
        connection.receiver("news/ADA"),
    ):
        (shown,) = router.statistics().connections
        assert shown.user == "ADA"
        assert shown.tenant == "b"


async def test_a_slow_check_delays_nobody_else_and_is_given_up_in_the_end(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async def check(login: Login) -> UserIdentity | None:
        if login.user == "slow":
            await trio.sleep_forever()
        return await right(login)

    async with Router(login_check_time=7.0) as router:
        site = Site(router, asking(check), nursery)
        async with trio.open_nursery() as slow:
            slow.start_soon(site.log_in, "slow", "right")
            await wait_all_tasks_blocked()
            assert await site.log_in("ada", "right", host=OTHER) == (SaslCode.OK, 0)
        assert await site.log_in("slow", "right") == (SaslCode.SYS_TEMP, 7)
    assert router.statistics().is_empty


async def test_a_function_that_blocks_does_so_in_a_thread(nursery: trio.Nursery) -> None:
    goes_on = threading.Event()

    def check(login: Login) -> UserIdentity | None:
        if login.user == "slow":
            assert goes_on.wait(30)
        return right_at_once(login)

    async with Router() as router:
        site = Site(router, asking(check), nursery)
        async with trio.open_nursery() as slow:
            slow.start_soon(site.log_in, "slow", "right")
            with trio.fail_after(60):
                assert (await site.log_in("ada", "right", host=OTHER))[0] == SaslCode.OK
            goes_on.set()


async def test_functions_that_never_return_take_no_more_threads(nursery: trio.Nursery) -> None:
    goes_on, running = threading.Event(), []

    def check(login: Login) -> UserIdentity | None:
        running.append(login.user)
        assert goes_on.wait(30)
        return None

    async with Router(login_checks=2, login_check_time=0.01) as router:
        site = Site(router, asking(check), nursery)
        others = trio.to_thread.current_default_thread_limiter()
        for number in range(6):
            assert (await site.log_in(f"u{number}", "x", host=f"198.51.100.{number}"))[0] == SaslCode.SYS_TEMP
        assert len(running) <= 2, "a check that took too long has its thread until it returns"
        assert not others.borrowed_tokens, "the program's own threads are free"
        goes_on.set()


async def test_few_checks_run_at_a_time_and_one_host_has_a_part_of_them(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    running: list[str] = []
    most: dict[str, int] = {}

    async def check(login: Login) -> UserIdentity:
        running.append(login.host)
        for key in (login.host, "all"):
            most[key] = max(most.get(key, 0), len(running) if key == "all" else running.count(key))
        await trio.sleep(1)
        running.remove(login.host)
        return UserIdentity(login.user)

    async with Router(login_checks=8) as router:
        site = Site(router, asking(check), nursery)
        async with trio.open_nursery() as many:
            for number in range(30):
                many.start_soon(lambda number=number: site.log_in(f"u{number}", "x", host=HOST))
            for number in range(10):
                many.start_soon(lambda number=number: site.log_in("u", "x", host=f"198.51.100.{number}"))
    assert most[HOST] == 2
    assert most["all"] == 8


@pytest.mark.parametrize("answer", [True, "ada", object()])
async def test_an_error_refuses_is_logged_and_is_no_wrong_password(
    answer: object, nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def check(login: Login) -> UserIdentity | None:
        if login.password == "raise":
            raise OSError("the database is away")
        return answer  # type: ignore[return-value]  # a fault of the program

    async with Router(login_failures=1) as router:
        site = Site(router, asking(check), nursery)
        with caplog.at_level(logging.ERROR, "amqpmesh"):
            for _ in range(3):
                assert await site.log_in("ada", "raise") == (SaslCode.SYS, 0), "no guess was wrong"
            assert await site.log_in("ada", "x") == (SaslCode.SYS, 0)
    assert "the database is away" in caplog.text
    assert "no UserIdentity" in caplog.text


async def test_wrong_passwords_are_slowed_down(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async with Router() as router:
        site = Site(router, asking(right), nursery)
        assert [(await site.log_in("ada", "wrong"))[1] for _ in range(6)] == [0, 0, 0, 1, 2, 4]


def test_a_function_cannot_serve_scram() -> None:
    with pytest.raises(ConfigError, match="PLAIN alone"):
        ListenerConfig(url="amqp://127.0.0.1:0", sasl=("SCRAM-SHA-256",), users=right)


@pytest.mark.parametrize(("given", "error"), [({"user": ""}, ValueError), ({"user": 1}, TypeError)])
def test_an_identity_has_a_name(given: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        UserIdentity(**given)  # type: ignore[arg-type]  # the fault
    with pytest.raises(TypeError):
        UserIdentity("ada", groups="readers")  # type: ignore[arg-type]  # the fault


async def test_a_client_over_a_socket_is_refused_like_any(tmp_path: Path) -> None:
    async with Router(listeners=[asking(right)]) as router:
        url = router.listeners[0].url
        with pytest.raises(SaslError):
            async with connect(url, user="ada", password="wrong"):
                pass
