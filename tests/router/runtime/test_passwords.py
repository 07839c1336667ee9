"""Passwords: pauses after wrong ones, and checks that delay no other connection."""

import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from amqpmesh import SaslError, connect
from amqpmesh.router.amqp.codec.composite import Registry, decode_composite, encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.sasl.exchange import SaslCode, SaslInit, SaslMechanisms, SaslOutcome
from amqpmesh.router.amqp.sasl.mechanisms import MIN_ITERATIONS, Computation
from amqpmesh.router.amqp.standard.performatives import Open
from amqpmesh.router.config.file import ListenerConfig
from amqpmesh.router.config.users import Users, add_user
from amqpmesh.router.runtime import poller
from amqpmesh.router.runtime.accepted import AcceptedTransport
from amqpmesh.router.runtime.router import Router
from tests.support.peers.scripted import AMQP, SASL, frame
from tests.support.peers.scripted_stream import exactly

FROM_SERVER: Registry[SaslMechanisms | SaslOutcome] = Registry(SaslMechanisms, SaslOutcome)


@pytest.fixture
def users(tmp_path: Path) -> Path:
    """Write a file of users with few iterations: more would be hashed in a thread, and virtual time waits for none."""
    file = tmp_path / "users.toml"
    for name in ("ada", "bob"):
        add_user(file, name, "right", MIN_ITERATIONS)
    return file


def listener(users: Path, **settings: object) -> ListenerConfig:
    return ListenerConfig(
        url="amqp://127.0.0.1:0",
        sasl=("PLAIN", "SCRAM-SHA-256"),
        users=users,
        insecure=True,
        **settings,  # type: ignore[arg-type]  # the tests' names
    )


async def outcome(stream: trio.abc.Stream) -> SaslCode:
    """Return the router's answer to a login by PLAIN."""
    assert await exactly(stream, 8) == SASL
    while True:
        size = int.from_bytes(await exactly(stream, 4), "big")
        said, _ = decode_composite(FROM_SERVER, (await exactly(stream, size - 4))[4:])
        if isinstance(said, SaslOutcome):
            return said.code


async def say(stream: trio.abc.Stream, user: str, password: str, hostname: str | None = None) -> None:
    response = f"\0{user}\0{password}".encode()
    init = SaslInit(mechanism=Symbol("PLAIN"), initial_response=response, hostname=hostname)
    await stream.send_all(SASL + frame(encode_composite(init), type=1))


class Site:
    """A router, and logins from any host."""

    def __init__(self, router: Router, listener: ListenerConfig, nursery: trio.Nursery) -> None:
        self._router = router
        self._listener = listener
        self._nursery = nursery

    async def log_in(
        self, user: str, password: str, *, host: str = "192.0.2.1", hostname: str | None = None
    ) -> tuple[SaslCode, float]:
        """Log in. Returns: the router's answer, and the seconds until it came."""
        ours, theirs = memory_stream_pair()
        self._nursery.start_soon(lambda: self._router.serve_stream(theirs, self._listener, host=host))
        began = trio.current_time()
        await say(ours, user, password, hostname)
        code = await outcome(ours)
        await ours.aclose()
        return code, trio.current_time() - began


async def test_guesses_wait_longer_and_longer_and_nobody_else_does(
    users: Path, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router() as router:
        site = Site(router, listener(users), nursery)
        said = [await site.log_in("ada", "wrong") for _ in range(10)]
        assert {code for code, _ in said} == {SaslCode.AUTH}
        # From the seventh login on, the pause exceeds the time for the peer's `open`: that time stands still meanwhile.
        assert [seconds for _, seconds in said] == [0, 0, 0, 1, 2, 4, 8, 16, 30, 30]
        assert await site.log_in("ada", "right", host="192.0.2.2") == (SaslCode.OK, 0)
        assert await site.log_in("bob", "right") == (SaslCode.OK, 0)
        assert await site.log_in("ada", "right") == (SaslCode.OK, 30)
        assert await site.log_in("ada", "right") == (SaslCode.OK, 0)
    assert router.statistics().is_empty


async def test_a_user_that_does_not_exist_waits_as_one_that_does(
    users: Path, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router(login_failures=1, login_wait=3.0) as router:
        site = Site(router, listener(users), nursery)
        for user in ("ada", "eve"):
            assert [await site.log_in(user, "wrong") for _ in range(4)] == [
                (SaslCode.AUTH, seconds) for seconds in (0, 1, 2, 3)
            ]


async def test_many_guesses_at_once_are_one_after_the_other(
    users: Path, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    answers: list[tuple[SaslCode, float]] = []

    async with Router(login_wait=4.0) as router, trio.open_nursery() as guessing:
        site = Site(router, listener(users), nursery)

        async def guess(password: str) -> None:
            answers.append(await site.log_in("ada", password))

        for number in range(7):
            guessing.start_soon(guess, f"wrong {number}")
    assert [seconds for _, seconds in answers] == [0, 0, 0, 1, 3, 7, 11]


async def test_scram_waits_too(users: Path, nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async with Router(login_failures=1, login_wait=2.0) as router:

        async def open_stream(_: object) -> trio.abc.Stream:
            ours, theirs = memory_stream_pair()
            nursery.start_soon(lambda: router.serve_stream(theirs, listener(users), host="192.0.2.1"))
            return ours

        for seconds in (0, 1, 2):
            began = trio.current_time()
            with pytest.raises(SaslError, match="not let in"):
                async with connect("amqp://h", user="ada", password="wrong", open_stream=open_stream):
                    pass
            assert trio.current_time() - began == seconds


async def test_too_many_that_wait_are_told_to_come_later(
    users: Path, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router(login_failures=1, login_queue=1) as router, trio.open_nursery() as guessing:
        site = Site(router, listener(users), nursery)
        for user in ("ada", "bob"):
            await site.log_in(user, "wrong")
        guessing.start_soon(site.log_in, "ada", "wrong")
        await trio.testing.wait_all_tasks_blocked()
        assert await site.log_in("bob", "right") == (SaslCode.SYS_TEMP, 0)
        answers: list[tuple[SaslCode, float]] = []

        async def log_in() -> None:
            answers.append(await site.log_in("bob", "right", host="192.0.2.2"))

        async with trio.open_nursery() as nobody_guesses_here:
            for _ in range(5):
                nobody_guesses_here.start_soon(log_in)
        assert answers == [(SaslCode.OK, 0)] * 5


async def test_guesses_behind_one_that_waits_are_among_the_few_that_may(
    users: Path, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    answers: list[tuple[SaslCode, float]] = []

    async with Router(login_failures=1, login_queue=8) as router, trio.open_nursery() as guessing:
        site = Site(router, listener(users), nursery)
        await site.log_in("ada", "wrong")

        async def guess() -> None:
            answers.append(await site.log_in("ada", "wrong"))

        for _ in range(20):
            guessing.start_soon(guess)
    # A login waits for other logins no longer than for itself: its peer may be gone.
    refused = [0] * 12 + [30] * 3
    assert [seconds for code, seconds in answers if code is SaslCode.SYS_TEMP] == refused
    assert [seconds for code, seconds in answers if code is SaslCode.AUTH] == [1, 3, 7, 15, 31]


async def test_a_peer_that_goes_while_its_answer_waits_leaves_nothing(
    users: Path, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router(login_failures=1) as router:
        site = Site(router, listener(users), nursery)
        await site.log_in("ada", "wrong")
        with trio.move_on_after(0.5):
            await site.log_in("ada", "right")
        # A waiting login delays the end of a router no longer than an idle client does.
        began = trio.current_time()
        await router.drain()
        assert trio.current_time() - began <= 2.0
    assert router.statistics().is_empty


async def test_a_login_that_waits_takes_no_place_of_a_listener(users: Path) -> None:
    async with Router(listeners=[listener(users, connections=1)], login_failures=1) as router:
        url = router.listeners[0].url
        port = int(url.rpartition(":")[2])

        async def connected(user: str, password: str) -> trio.abc.Stream:
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            await say(stream, user, password)
            return stream

        async with await connected("ada", "wrong") as first:
            assert await outcome(first) is SaslCode.AUTH
            assert not await first.receive_some()
        while router.statistics().listeners[0].connections:
            await trio.testing.wait_all_tasks_blocked(0.01)
        async with AsyncExitStack() as guesses:
            for _ in range(3):
                guess = await guesses.enter_async_context(await connected("ada", "wrong"))
                await exactly(guess, 16)  # part of the mechanisms: the login was sent with the request for them
                await trio.testing.wait_all_tasks_blocked(0.05)
            async with connect(url, user="bob", password="right"):
                assert router.statistics().listeners[0].refused == 0


@pytest.mark.skipif(poller.EPOLL is None, reason="this system has no epoll")
@pytest.mark.parametrize(("password", "code"), [("right", SaslCode.OK), ("wrong", SaslCode.AUTH)])
async def test_a_short_check_starts_no_task_unless_it_waits(
    users: Path, monkeypatch: pytest.MonkeyPatch, password: str, code: SaslCode
) -> None:
    started: list[object] = []

    def starting(transport: AcceptedTransport, task: Callable[[], Awaitable[None]]) -> None:
        started.append(task)
        run(transport, task)

    run = AcceptedTransport._run
    monkeypatch.setattr(AcceptedTransport, "_run", starting)
    async with Router(listeners=[listener(users)], login_failures=1, login_wait=0.05) as router:
        port = int(router.listeners[0].url.rpartition(":")[2])

        async def log_in(password: str) -> SaslCode:
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await say(stream, "ada", password)
                said = await outcome(stream)
                if said is SaslCode.OK:  # what comes behind the exchange is served, too
                    await stream.send_all(AMQP + frame(Open(container_id="peer")))
                    assert await exactly(stream, 8) == AMQP
                else:
                    assert not await stream.receive_some()
                return said

        assert await log_in(password) is code
        assert not started
        assert [await log_in("wrong") for _ in range(2)] == [SaslCode.AUTH] * 2
        assert started  # the last one waited
    assert router.statistics().is_empty


@pytest.mark.skipif(poller.EPOLL is None, reason="this system has no epoll")
async def test_of_many_short_checks_most_leave_turns_to_other_connections(
    users: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amqpmesh.router.runtime.passwords.REST", 100.0)
    started: list[object] = []

    def starting(transport: AcceptedTransport, task: Callable[[], Awaitable[None]]) -> None:
        started.append(task)
        run(transport, task)

    run = AcceptedTransport._run
    monkeypatch.setattr(AcceptedTransport, "_run", starting)
    async with Router(listeners=[listener(users)]) as router, AsyncExitStack() as stack:
        port = int(router.listeners[0].url.rpartition(":")[2])
        streams = [await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port)) for _ in range(10)]
        for number, each in enumerate(streams):
            await say(each, f"nobody{number}", "wrong")
        assert [await outcome(each) for each in streams] == [SaslCode.AUTH] * 10
    assert len(started) == 9


class Watched:
    """Notes the threads in which passwords were checked or hashed, and the most that ran at once."""

    def __init__(self) -> None:
        self.threads: list[int] = []
        self.most = 0
        self._now = 0
        self._lock = threading.Lock()

    def around(self, do: Callable[..., object]) -> Callable[..., object]:
        def watched(*args: object) -> object:
            with self._lock:
                self.threads.append(threading.get_ident())
                self._now += 1
                self.most = max(self.most, self._now)
            try:
                return do(*args)
            finally:
                with self._lock:
                    self._now -= 1

        return watched


async def test_many_logins_are_checked_in_few_threads_and_none_of_them_is_the_routers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched()
    monkeypatch.setattr(Users, "verify_plain", watched.around(Users.verify_plain))
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    file = tmp_path / "users.toml"
    add_user(file, "ada", "right", 20_000)
    codes: list[SaslCode] = []
    async with Router() as router, trio.open_nursery() as nursery, trio.open_nursery() as logins:
        site = Site(router, listener(file), nursery)

        async def log_in(host: int) -> None:
            code, _ = await site.log_in("ada", "right", host=f"192.0.2.{host}")
            codes.append(code)

        for number in range(50):
            logins.start_soon(log_in, number % 10)
    assert codes == [SaslCode.OK] * 50
    assert len(watched.threads) == 50
    assert threading.get_ident() not in watched.threads
    assert watched.most <= 2


async def test_a_client_hashes_its_password_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched()
    file = tmp_path / "users.toml"
    add_user(file, "ada", "right", 20_000)
    heavy = []
    do = Computation.do

    def noted(work: Computation) -> None:
        if work.iterations:
            heavy.append(work.iterations)
            watched.around(do)(work)
        else:
            do(work)

    monkeypatch.setattr(Computation, "do", noted)
    async with (
        Router(listeners=[listener(file)]) as router,
        connect(router.listeners[0].url, user="ada", password="right", mechanisms=["SCRAM-SHA-256"]),
    ):
        assert heavy == [20_000]
        assert threading.get_ident() not in watched.threads
