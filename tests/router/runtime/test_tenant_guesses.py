"""Wrong passwords for users of one tenant: they delay that tenant's logins from there, and no other tenant's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from amqpmesh.router.amqp.sasl.exchange import SaslCode
from amqpmesh.router.amqp.sasl.mechanisms import MIN_ITERATIONS
from amqpmesh.router.config.file import PolicyConfig
from amqpmesh.router.config.users import add_user
from amqpmesh.router.runtime.router import Router
from tests.router.runtime.test_passwords import Site, listener

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

POLICY = """
[[tenant]]
name = "a"
match = [{ user = "a-*" }]
[[tenant]]
name = "b"
match = [{ user = "b-*" }]
"""

HOST, OTHER = "192.0.2.1", "192.0.2.2"


@pytest.fixture
def users(tmp_path: Path) -> Path:
    file = tmp_path / "users.toml"
    for name in ("a-ada", "a-bob", "b-ada"):
        add_user(file, name, "right", MIN_ITERATIONS)
    return file


@pytest.fixture
def policy(tmp_path: Path) -> PolicyConfig:
    file = tmp_path / "policy.toml"
    file.write_text(POLICY)
    return PolicyConfig(file=file)


async def test_a_guesser_at_many_users_of_a_tenant_does_not_escape(
    users: Path, policy: PolicyConfig, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router(policy=policy, login_tenant_failures=5, login_wait=8.0) as router:
        site = Site(router, listener(users), nursery)
        waits = [(await site.log_in(f"a-{number}", "wrong", host=HOST))[1] for number in range(10)]
        assert waits[:5] == [0] * 5
        assert waits[5] == 1
        assert waits == sorted(waits)
        assert waits[-1] > 4
        # Each user had one wrong password: without tenants nobody would wait.
        assert await site.log_in("b-ada", "right", host=HOST) == (SaslCode.OK, 0)
        assert await site.log_in("b-ada", "wrong", host=HOST) == (SaslCode.AUTH, 0)
        assert await site.log_in("a-ada", "right", host=OTHER) == (SaslCode.OK, 0)
        code, seconds = await site.log_in("a-ada", "right", host=HOST)
        assert code == SaslCode.OK
        assert seconds > 4
        assert await site.log_in("a-ada", "right", host=HOST) == (SaslCode.OK, 0), "it has logged in from there"
        assert (await site.log_in("a-ada", "wrong", host=HOST))[1] == 0
        assert (await site.log_in("a-bob", "right", host=HOST))[1] > 4


async def test_guesses_of_many_connections_at_once_are_one_after_the_other(
    users: Path, policy: PolicyConfig, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    answers: list[tuple[SaslCode, float]] = []
    async with Router(policy=policy, login_tenant_failures=3, login_wait=2.0) as router:
        site = Site(router, listener(users), nursery)

        async def guess(number: int) -> None:
            answers.append(await site.log_in(f"a-{number}", "wrong", host=HOST))

        async with trio.open_nursery() as guessing:
            for number in range(8):
                guessing.start_soon(guess, number)
    assert sorted(seconds for _, seconds in answers)[:4] == [0, 0, 0, 1]
    assert sorted(seconds for _, seconds in answers)[4:] == pytest.approx([3, 5, 7, 9], abs=0.2)


async def test_the_hosts_of_one_network_of_ipv6_are_one(
    users: Path, policy: PolicyConfig, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router(policy=policy, login_tenant_failures=3) as router:
        site = Site(router, listener(users), nursery)
        for number in range(3):
            await site.log_in(f"a-{number}", "wrong", host=f"2001:db8::{number}")
        assert (await site.log_in("a-ada", "right", host="2001:db8::9"))[1] == 1
        assert (await site.log_in("a-bob", "right", host="2001:db8:0:1::9"))[1] == 0


async def test_the_answers_that_wait_for_one_tenant_leave_places_to_another(
    users: Path, policy: PolicyConfig, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router(policy=policy, login_failures=1, login_queue=6, login_wait=20.0) as router:
        where = listener(users)
        site = Site(router, where, nursery)
        codes: list[SaslCode] = []

        async def guess(user: str) -> None:
            codes.append((await site.log_in(user, "wrong", host=HOST))[0])

        for user in ("a-0", "a-1", "a-2", "a-3", "b-ada"):
            await guess(user)
        codes.clear()
        async with trio.open_nursery() as guessing:
            for number in range(4):
                guessing.start_soon(guess, f"a-{number}")
            await wait_all_tasks_blocked()
            assert codes == [SaslCode.SYS_TEMP] * 2, "two wait, which is the tenant's part of the places"
            assert await site.log_in("b-ada", "right", host=HOST) == (SaslCode.OK, 1)


async def test_what_is_remembered_of_one_tenant_is_not_forgotten_for_another(
    users: Path, policy: PolicyConfig, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router(policy=policy, login_failures=1, login_memory=10) as router:
        site = Site(router, listener(users), nursery)
        await site.log_in("b-ada", "wrong", host=HOST)
        for number in range(50):
            await site.log_in(f"a-{number}", "wrong", host=f"198.51.100.{number}")
        assert (await site.log_in("b-ada", "wrong", host=HOST))[1] == 1


async def test_the_tenant_is_the_one_that_the_listener_chooses_if_it_does(
    users: Path, tmp_path: Path, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    file = tmp_path / "by_listener.toml"
    file.write_text('[[tenant]]\nname = "a"\nmatch = [{ listener = "one" }]\n[[tenant]]\nname = "b"\ndefault = true\n')
    async with Router(policy=PolicyConfig(file=file), login_tenant_failures=2) as router:
        one, two = (Site(router, listener(users, name=name), nursery) for name in ("one", "two"))
        for number in range(2):
            await one.log_in(f"{number}", "wrong", host=HOST)
        assert (await two.log_in("a-ada", "right", host=HOST))[1] == 0
        assert (await one.log_in("a-ada", "right", host=HOST))[1] == 1


async def test_the_tenant_is_the_one_that_the_hostname_of_the_login_chooses(
    users: Path, tmp_path: Path, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    file = tmp_path / "by_hostname.toml"
    file.write_text("".join(f'[[tenant]]\nname = "{n}"\nmatch = [{{ hostname = "{n}.example" }}]\n' for n in "abc"))
    async with Router(policy=PolicyConfig(file=file), login_tenant_failures=2) as router:
        site = Site(router, listener(users), nursery)
        for number in range(2):
            await site.log_in(f"{number}", "wrong", hostname="a.example")
        assert (await site.log_in("a-ada", "right", hostname="a.example"))[1] == 1
        assert (await site.log_in("a-bob", "right", hostname="b.example"))[1] == 0
        assert (await site.log_in("b-ada", "right"))[1] == 0, "it may be anybody's"
        for number in range(2):  # of no tenant: those that name no hostname, and those that name another one
            await site.log_in(f"{number + 2}", "wrong", hostname="nowhere.example" if number else None)
        assert (await site.log_in("a-bob", "right"))[1] == 1
        assert (await site.log_in("a-bob", "right", hostname="c.example"))[1] == 0


async def test_guesses_at_one_user_by_ever_other_hostnames_are_guesses_at_one_password(
    users: Path, tmp_path: Path, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    file = tmp_path / "by_hostname.toml"
    file.write_text("".join(f'[[tenant]]\nname = "t{n}"\nmatch = [{{ hostname = "h{n}" }}]\n' for n in range(9)))
    async with Router(policy=PolicyConfig(file=file), login_failures=2) as router:
        site = Site(router, listener(users), nursery)
        waits = [(await site.log_in("a-ada", "wrong", hostname=f"h{number}"))[1] for number in range(6)]
        assert waits == [0, 0, 1, 2, 4, 8]
        answers: list[float] = []

        async def guess(number: int) -> None:
            answers.append((await site.log_in("a-bob", "wrong", hostname=f"h{number}"))[1])

        async with trio.open_nursery() as many:
            for number in range(6):
                many.start_soon(guess, number)
        assert sorted(answers)[2:] != [0] * 4
        assert max(answers) >= 15, "they were judged one after the other"
