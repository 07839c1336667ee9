"""Errors of the body, of the background, and of the peer: raised bare, once, at the next call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.errors import (
    AmqpMeshError,
    CommandError,
    ConnectionClosedError,
    InDoubtError,
    LinkDetachedError,
    LinkRedirectError,
    LinkStolenError,
    SessionEndedError,
)
from amqpmesh.router.amqp.standard.definitions import ConnectionCondition, Error, LinkCondition
from amqpmesh.router.amqp.standard.performatives import Close
from amqpmesh.router.runtime.router import Router
from tests.support.data.errors import GONE, PAYLOAD, REDIRECT, STOLEN
from tests.support.peers.library_client import joined
from tests.support.peers.scripted_server import Counterpart, Far
from tests.support.tasks.calls import Call

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from amqpmesh.router.client.factory import LinkFactory

FORCED = Error(condition=ConnectionCondition.CONNECTION_FORCED, description="maintenance")


class BodyError(Exception):
    """An error that a program raises."""


# --------------------------------------------------------------------------------------------------- errors of the body


@pytest.mark.parametrize("kind", ["sender", "receiver", "requester"])
async def test_an_error_of_the_body_comes_out_as_it_is(
    kind: str, factory: LinkFactory, autojump_clock: MockClock
) -> None:
    error = BodyError()
    with pytest.raises(BodyError) as raised:
        async with getattr(factory, kind)("q"):
            raise error
    assert raised.value is error
    assert error.__context__ is None


async def test_an_error_of_the_body_leaves_a_connection_and_a_router_as_it_is(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    error = BodyError()
    with pytest.raises(BodyError) as raised:
        async with Router() as router, joined(nursery, router) as connection, connection.sender("q"):
            raise error
    assert raised.value is error


async def test_a_group_of_the_body_stays_one_group(factory: LinkFactory, autojump_clock: MockClock) -> None:
    group = ExceptionGroup("two things", [BodyError(), ValueError()])
    with pytest.raises(ExceptionGroup) as raised:
        async with factory.sender("q"), factory.receiver("q"), factory.requester("q"):
            raise group
    assert raised.value is group


@pytest.mark.parametrize("kind", ["sender", "receiver", "requester"])
async def test_an_error_of_the_body_is_not_lost_when_the_scope_around_it_is_cancelled(
    kind: str, factory: LinkFactory, autojump_clock: MockClock
) -> None:
    with pytest.raises(BodyError), trio.CancelScope() as scope:
        async with getattr(factory, kind)("q"):
            scope.cancel()
            raise BodyError


async def test_an_error_of_the_body_is_not_lost_when_the_link_has_failed_and_the_scope_is_cancelled(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    with pytest.raises(BodyError), trio.CancelScope() as scope:
        async with far.connect() as connection, connection.sender("q"), connection.requester("q"):
            await far.peer.write(Close(error=FORCED))
            await wait_all_tasks_blocked()
            scope.cancel()
            raise BodyError


# ------------------------------------------------------------------------------------------- failures in the background


async def close(far: Counterpart, _: Far) -> None:
    await far.peer.write(Close(error=FORCED))


async def cut(far: Counterpart, _: Far) -> None:
    await far.roads.cut()


async def end_of_stream(far: Counterpart, _: Far) -> None:
    assert isinstance(far.peer.stream, trio.StapledStream)
    await far.peer.stream.send_stream.aclose()


async def garbage(far: Counterpart, _: Far) -> None:
    await far.peer.write(b"\0\0\0\0garbage!")


async def silence(far: Counterpart, _: Far) -> None:
    await trio.sleep(20)


async def end_session(_: Counterpart, link: Far) -> None:
    await link.end(GONE)


def detach(error: Error | None) -> Callable[[Counterpart, Far], Awaitable[None]]:
    async def do_it(_: Counterpart, link: Far) -> None:
        await link.detach(error)

    return do_it


FAILURES: dict[str, tuple[Callable[[Counterpart, Far], Awaitable[None]], type[AmqpMeshError], Symbol | None]] = {
    "closed": (close, ConnectionClosedError, FORCED.condition),
    "cut": (cut, ConnectionClosedError, None),
    "end of stream": (end_of_stream, ConnectionClosedError, None),
    "garbage": (garbage, ConnectionClosedError, Symbol("amqp:connection:framing-error")),
    "idle": (silence, ConnectionClosedError, Symbol("amqp:resource-limit-exceeded")),
    "session ended": (end_session, SessionEndedError, GONE.condition),
    "detached": (detach(GONE), LinkDetachedError, GONE.condition),
    "detached without a reason": (detach(None), LinkDetachedError, None),
    "stolen": (detach(STOLEN), LinkStolenError, STOLEN.condition),
    "redirected": (detach(REDIRECT), LinkRedirectError, REDIRECT.condition),
}
failures = pytest.mark.parametrize(("fail", "error_class", "condition"), FAILURES.values(), ids=FAILURES)


def check(error: Exception, error_class: type[AmqpMeshError], condition: Symbol | None) -> None:
    """Assert the class of an error, and the peer's condition in it."""
    assert type(error) is error_class
    reason: Error | None = error.error  # type: ignore[attr-defined]  # all these kinds have it
    assert (None if reason is None else reason.condition) == condition
    if condition is not None:
        assert condition in str(error)


@failures
async def test_a_sender_that_fails_says_so_to_those_who_wait_and_to_those_who_come(
    fail: Any,
    error_class: type[AmqpMeshError],
    condition: Symbol | None,
    nursery: trio.Nursery,
    autojump_clock: MockClock,
) -> None:
    far = Counterpart(nursery)
    async with far.connect(idle_time_out=8.0) as connection, connection.sender("q") as sender:
        (link,) = far.links
        await link.flow(2)
        settled = await sender.transfer(b"", settled=True)
        doubtful = await sender.transfer(b"")
        waiting: list[Call[Any]] = [Call(nursery, sender.send, b""), Call(nursery, sender.transfer, b"")]
        await wait_all_tasks_blocked()
        await fail(far, link)
        # The body continues: nothing has cancelled it.
        await trio.sleep(1)
        for call in waiting:
            check(await call.failure(), error_class, condition)
        for _ in range(2):
            for coroutine in (sender.send, sender.transfer):
                with pytest.raises(error_class) as raised:
                    await coroutine(b"")
                check(raised.value, error_class, condition)
            with pytest.raises(InDoubtError) as doubt:
                await doubtful.outcome()
            check(doubt.value, InDoubtError, condition)
        assert settled.settled
        assert (sender.credit, sender.waiting, sender.unsettled, sender.is_attached) == (0, 0, 0, False)


@failures
async def test_a_receiver_that_fails_says_so_to_those_who_wait_and_to_those_who_come(
    fail: Any,
    error_class: type[AmqpMeshError],
    condition: Symbol | None,
    nursery: trio.Nursery,
    autojump_clock: MockClock,
) -> None:
    far = Counterpart(nursery)
    async with far.connect(idle_time_out=8.0) as connection, connection.receiver("q") as receiver:
        (link,) = far.links
        for settled in (False, False, True, False):
            await link.send(PAYLOAD, settled=settled)
        undecided, decided = await receiver.receive(), await receiver.receive()
        assert decided.accept()
        presettled = await receiver.receive()
        await receiver.receive()
        waiting = [Call(nursery, receiver.receive), Call(nursery, receiver.__anext__)]
        # The settled delivery stays here. The sender still has the other one.
        await wait_all_tasks_blocked()
        await fail(far, link)
        await trio.sleep(1)
        for call in waiting:
            check(await call.failure(), error_class, condition)
        for _ in range(2):
            with pytest.raises(error_class) as raised:
                await receiver.receive()
            check(raised.value, error_class, condition)
            with pytest.raises(error_class) as raised:
                async for _delivery in receiver:
                    raise AssertionError("there is none")
            check(raised.value, error_class, condition)
        assert not undecided.accept()
        assert not presettled.accept()
        assert not await undecided.settled()
        with pytest.raises(CommandError, match="decided"):
            decided.accept()
        assert (receiver.credit, receiver.is_attached) == (0, False)


@failures
async def test_credit_given_by_hand_is_no_use_when_the_link_has_failed(
    fail: Any,
    error_class: type[AmqpMeshError],
    condition: Symbol | None,
    nursery: trio.Nursery,
    autojump_clock: MockClock,
) -> None:
    far = Counterpart(nursery)
    async with far.connect(idle_time_out=8.0) as connection, connection.receiver("q", credit=0) as receiver:
        (link,) = far.links
        receiver.flow(1)
        draining = Call(nursery, receiver.drain)
        await wait_all_tasks_blocked()
        await fail(far, link)
        check(await draining.failure(), error_class, condition)
        with pytest.raises(error_class) as raised:
            receiver.flow(1)
        check(raised.value, error_class, condition)
        with pytest.raises(error_class):
            await receiver.drain()


@failures
async def test_a_caller_that_enters_a_link_of_a_failed_connection_gets_its_error_and_others_go_on(
    fail: Any,
    error_class: type[AmqpMeshError],
    condition: Symbol | None,
    nursery: trio.Nursery,
    autojump_clock: MockClock,
) -> None:
    far = Counterpart(nursery)
    async with far.connect(idle_time_out=8.0) as connection, connection.sender("q"), connection.sender("r") as other:
        await fail(far, far.links[0])
        await trio.sleep(3)  # the end of a broken stream is noticed after a while
        is_lost = error_class is ConnectionClosedError
        assert connection.is_connected != is_lost
        assert other.is_attached != is_lost
        for kind in ("sender", "receiver", "requester"):
            if is_lost:
                with pytest.raises(error_class) as raised:
                    async with getattr(connection, kind)("s"):
                        raise AssertionError("it is attached")
                check(raised.value, error_class, condition)
            else:
                async with getattr(connection, kind)("s"):
                    pass
        if is_lost:
            with pytest.raises(error_class) as raised:
                _ = connection.peer
            check(raised.value, error_class, condition)


async def test_each_raising_is_an_error_of_its_own(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    """Check that each call raises a new error: otherwise one traceback would grow with each call."""
    far = Counterpart(nursery)
    async with far.connect() as connection, connection.sender("q") as sender:
        await far.links[0].detach(REDIRECT)
        await wait_all_tasks_blocked()
        errors = []
        for _ in range(2):
            with pytest.raises(LinkRedirectError) as raised:
                await sender.send(b"")
            errors.append(raised.value)
        assert errors[0] is not errors[1]
        assert errors[0].args == errors[1].args


@pytest.mark.parametrize("port", [0, -1, 65536, True, "5673", None])
def test_a_redirect_to_no_port_names_none(port: Any) -> None:
    error = Error(condition=LinkCondition.REDIRECT, info={Symbol("port"): port})
    assert LinkRedirectError("moved", error).port is None


def test_a_redirect_says_where_to() -> None:
    error = LinkRedirectError("moved", REDIRECT)
    assert (error.hostname, error.network_host, error.port, error.address) == (
        "virtual.example",
        "10.0.0.1",
        5673,
        "q2",
    )
    wrong = Error(condition=LinkCondition.REDIRECT, info={Symbol("port"): "5673", Symbol("address"): 5})
    for nothing in (LinkRedirectError("moved"), LinkRedirectError("moved", wrong)):
        assert (nothing.hostname, nothing.network_host, nothing.port, nothing.address) == (None, None, None, None)
