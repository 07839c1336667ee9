"""Errors come out bare; what fails in the background is told by the next call, and cancels nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh.router.amqp.definitions import ConnectionCondition, Error, LinkCondition, Role
from amqpmesh.router.amqp.delivery_states import Accepted
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
from amqpmesh.router.amqp.performatives import Attach, Begin, Close, Detach, Disposition, End, Transfer
from amqpmesh.router.amqp.types import Symbol
from amqpmesh.router.io.node import Router
from amqpmesh.router.message import Message
from tests.support.calls import Call
from tests.support.client import joined
from tests.support.counterpart import Counterpart, Far
from tests.support.script import attached, begun, frame, transferred

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from amqpmesh.router.io.client.doors import Doors

PAYLOAD = Message(b"").encode()
GONE = Error(condition=Symbol("amqp:resource-deleted"), description="swept away")
STOLEN = Error(condition=LinkCondition.STOLEN, description="by another")
REDIRECT = Error(
    condition=LinkCondition.REDIRECT,
    description="moved",
    info={
        Symbol("hostname"): "virtual.example",
        Symbol("network-host"): "10.0.0.1",
        Symbol("port"): 5673,
        Symbol("address"): "q2",
    },
)
FORCED = Error(condition=ConnectionCondition.CONNECTION_FORCED, description="maintenance")


class BodyError(Exception):
    """What a program raises."""


# --------------------------------------------------------------------------------------------------- errors of the body


@pytest.mark.parametrize("door", ["sender", "receiver", "requester"])
async def test_an_error_of_the_body_comes_out_as_it_is(door: str, doors: Doors, autojump_clock: MockClock) -> None:
    error = BodyError()
    with pytest.raises(BodyError) as raised:
        async with getattr(doors, door)("q"):
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


async def test_a_group_of_the_body_stays_one_group(doors: Doors, autojump_clock: MockClock) -> None:
    group = ExceptionGroup("two things", [BodyError(), ValueError()])
    with pytest.raises(ExceptionGroup) as raised:
        async with doors.sender("q"), doors.receiver("q"), doors.requester("q"):
            raise group
    assert raised.value is group


@pytest.mark.parametrize("door", ["sender", "receiver", "requester"])
async def test_an_error_of_the_body_is_not_lost_when_the_scope_around_it_is_cancelled(
    door: str, doors: Doors, autojump_clock: MockClock
) -> None:
    with pytest.raises(BodyError), trio.CancelScope() as scope:
        async with getattr(doors, door)("q"):
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
failures = pytest.mark.parametrize(("fail", "kind", "condition"), FAILURES.values(), ids=FAILURES)


def check(error: Exception, kind: type[AmqpMeshError], condition: Symbol | None) -> None:
    """It is of that very kind, and has the peer's reason."""
    assert type(error) is kind
    reason: Error | None = error.error  # type: ignore[attr-defined]  # all these kinds have it
    assert (None if reason is None else reason.condition) == condition
    if condition is not None:
        assert condition in str(error)


@failures
async def test_a_sender_that_fails_says_so_to_those_who_wait_and_to_those_who_come(
    fail: Any, kind: type[AmqpMeshError], condition: Symbol | None, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    async with far.connect(idle_time_out=8.0) as connection, connection.sender("q") as sender:
        (link,) = far.links
        await link.flow(2)
        settled = await sender.transfer(b"", settled=True)
        doubtful = await sender.transfer(b"")
        waiting = [Call(nursery, sender.send, b""), Call(nursery, sender.transfer, b"")]
        await wait_all_tasks_blocked()
        await fail(far, link)
        # The body goes on: nothing has cancelled it.
        await trio.sleep(1)
        for call in waiting:
            check(await call.failure(), kind, condition)
        for _ in range(2):
            for coroutine in (sender.send, sender.transfer):
                with pytest.raises(kind) as raised:
                    await coroutine(b"")
                check(raised.value, kind, condition)
            with pytest.raises(InDoubtError) as doubt:
                await doubtful.outcome()
            check(doubt.value, InDoubtError, condition)
        assert settled.settled
        assert (sender.credit, sender.waiting, sender.unsettled, sender.is_attached) == (0, 0, 0, False)


@failures
async def test_a_receiver_that_fails_says_so_to_those_who_wait_and_to_those_who_come(
    fail: Any, kind: type[AmqpMeshError], condition: Symbol | None, nursery: trio.Nursery, autojump_clock: MockClock
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
        # Of these the one that is settled is here for good; the other one its sender has.
        await wait_all_tasks_blocked()
        await fail(far, link)
        await trio.sleep(1)
        for call in waiting:
            check(await call.failure(), kind, condition)
        for _ in range(2):
            with pytest.raises(kind) as raised:
                await receiver.receive()
            check(raised.value, kind, condition)
            with pytest.raises(kind) as raised:
                async for _delivery in receiver:
                    raise AssertionError("there is none")
            check(raised.value, kind, condition)
        assert not undecided.accept()
        assert not presettled.accept()
        assert not await undecided.settled()
        with pytest.raises(CommandError, match="decided"):
            decided.accept()
        assert (receiver.credit, receiver.is_attached) == (0, False)


@failures
async def test_credit_given_by_hand_is_no_use_when_the_link_has_failed(
    fail: Any, kind: type[AmqpMeshError], condition: Symbol | None, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    async with far.connect(idle_time_out=8.0) as connection, connection.receiver("q", credit=0) as receiver:
        (link,) = far.links
        receiver.flow(1)
        draining = Call(nursery, receiver.drain)
        await wait_all_tasks_blocked()
        await fail(far, link)
        check(await draining.failure(), kind, condition)
        with pytest.raises(kind) as raised:
            receiver.flow(1)
        check(raised.value, kind, condition)
        with pytest.raises(kind):
            await receiver.drain()


@failures
async def test_who_enters_a_link_of_a_connection_that_failed_hears_why_and_others_go_on(
    fail: Any, kind: type[AmqpMeshError], condition: Symbol | None, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    async with far.connect(idle_time_out=8.0) as connection, connection.sender("q"), connection.sender("r") as other:
        await fail(far, far.links[0])
        await trio.sleep(3)  # that the peer of a broken stream is heard of no more is known after a while
        is_lost = kind is ConnectionClosedError
        assert connection.is_connected != is_lost
        assert other.is_attached != is_lost
        for door in ("sender", "receiver", "requester"):
            if is_lost:
                with pytest.raises(kind) as raised:
                    async with getattr(connection, door)("s"):
                        raise AssertionError("it is attached")
                check(raised.value, kind, condition)
            else:
                async with getattr(connection, door)("s"):
                    pass
        if is_lost:
            with pytest.raises(kind) as raised:
                _ = connection.peer
            check(raised.value, kind, condition)


async def test_each_raising_is_an_error_of_its_own(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    """Else the traceback of one would grow with each call."""
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


# ----------------------------------------------------------------------------------------------------- refusals, thefts


@pytest.mark.parametrize("door", ["sender", "receiver"])
@pytest.mark.parametrize(
    ("reason", "kind"),
    [(GONE, LinkDetachedError), (STOLEN, LinkStolenError), (REDIRECT, LinkRedirectError), (None, LinkDetachedError)],
)
async def test_a_link_that_is_refused_says_why_and_the_connection_goes_on(
    reason: Error | None, kind: type[LinkDetachedError], door: str, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery, refuse={Role.SENDER: reason, Role.RECEIVER: reason})
    async with far.connect() as connection:
        link = getattr(connection, door)("q")
        with pytest.raises(LinkDetachedError) as raised:
            async with link:
                raise AssertionError("it is attached")
        assert type(raised.value) is kind
        assert raised.value.error == reason
        assert "refused" in str(raised.value) or reason is not None
        assert (link.is_over, link.is_attached) == (True, False)
        far.refuse.clear()
        async with getattr(connection, door)("q") as another:
            assert another.is_attached
        assert trio.current_time() < 2.0


async def test_a_link_that_cannot_be_asked_for_is_our_callers_fault(doors: Doors, autojump_clock: MockClock) -> None:
    for door in ("sender", "receiver", "requester"):
        with pytest.raises(CommandError, match="address"):
            async with getattr(doors, door)(5):
                raise AssertionError("it is attached")
        for wrong in ({"properties": {5: 1}}, {"desired_capabilities": ["é"]}, {"desired_capabilities": "one"}):
            if door != "requester":
                with pytest.raises(CommandError, match=r"symbol|list"):
                    getattr(doors, door)("q", **wrong)


async def test_a_link_that_cannot_be_asked_for_leaves_no_session(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    async with far.connect() as connection:
        for _ in range(5):
            with pytest.raises(CommandError):
                async with connection.sender(5):  # type: ignore[arg-type]  # what a program without types may do
                    raise AssertionError("it is attached")
            await wait_all_tasks_blocked()
        async with connection.sender("q"):
            assert far.links[0].channel == 0


async def test_a_link_is_stolen_by_another_of_its_name(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async with (
        Router() as router,
        joined(nursery, router, id="same") as one,
        joined(nursery, router, id="same") as other,
        one.sender("q", name="mine") as sender,
        one.receiver("q", name="mine") as receiver,
    ):
        waiting = Call(nursery, receiver.receive)
        async with other.sender("q", name="mine"), other.receiver("q", name="mine") as thief:
            assert isinstance(await waiting.failure(), LinkStolenError)
            with pytest.raises(LinkStolenError):
                await sender.send(b"")
            async with one.sender("q") as honest:
                sending = Call(nursery, honest.send, b"")
                async with await thief.receive():
                    pass
                await sending.result()
    assert router.statistics().is_empty


# -------------------------------------------------------------------------------------------- what the peer may not say


async def test_a_state_that_is_none_ends_the_connection_which_is_told_why(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery, credit=10)
    far.mute.add(Close)
    async with far.connect() as connection, connection.sender("q") as sender:
        sent = await sender.transfer(b"")
        await far.expect(Transfer)
        good = frame(Disposition(role=Role.RECEIVER, first=0, settled=True, state=Accepted()))
        await far.peer.write(good.replace(b"\x00\x53\x24\x45", b"\x00\x53\x2f\x45"))
        closed = await far.expect(Close)
        assert closed.error is not None
        assert closed.error.condition == "amqp:invalid-field"
        with pytest.raises(InDoubtError):
            await sent.outcome()
        with pytest.raises(ConnectionClosedError) as raised:
            await sender.send(b"")
        assert raised.value.error == closed.error


async def test_sessions_and_links_that_the_peer_begins_are_refused_and_nothing_else_is(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery, credit=10)
    far.mute |= {Begin, End, Attach, Detach}
    async with far.connect() as connection:
        await far.peer.write(begun(), channel=5)
        begin = await far.expect(Begin)
        assert begin.remote_channel == 5
        ended = await far.expect(End)
        assert ended.error is not None
        assert ended.error.condition == "amqp:not-allowed"
        await far.peer.write(End(), channel=5)
        far.mute.clear()
        async with connection.sender("q") as sender:
            far.mute |= {Attach, Detach}
            await far.peer.write(attached(Role.SENDER, "theirs", handle=7))
            attach = await far.expect(Attach)
            assert (attach.role, attach.target) == (Role.RECEIVER, None)
            detach = await far.expect(Detach)
            assert detach.error is not None
            assert detach.error.condition == "amqp:not-allowed"
            far.mute.clear()
            await far.peer.write(Detach(handle=7, closed=True))
            sending = Call(nursery, sender.send, b"")
            await far.expect(Transfer)
            await far.links[0].accept()
            await sending.result()


async def test_a_transfer_on_a_link_that_we_send_on_costs_its_session(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    async with far.connect() as connection, connection.sender("q") as sender, connection.sender("r") as other:
        await far.peer.write(transferred(0), channel=far.links[0].channel)
        await wait_all_tasks_blocked()
        with pytest.raises(SessionEndedError) as raised:
            await sender.send(b"")
        assert raised.value.error is not None
        assert other.is_attached


async def test_a_connection_that_nobody_uses_stays(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async with Router(idle_time_out=2.0) as router:
        async with joined(nursery, router, idle_time_out=3.0) as connection, connection.receiver("q") as receiver:
            await trio.sleep(300)
            assert connection.is_connected
            assert receiver.is_attached
        assert router.statistics().router.connections == 0


async def test_a_transfer_without_credit_costs_the_link_and_nothing_else(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    async with far.connect() as connection, connection.receiver("q", credit=1) as receiver, connection.sender("r"):
        await far.links[0].send(PAYLOAD)
        await far.links[0].send(PAYLOAD)
        first = await receiver.receive()
        with pytest.raises(LinkDetachedError) as raised:
            await receiver.receive()
        assert raised.value.error is not None
        assert raised.value.error.condition == LinkCondition.TRANSFER_LIMIT_EXCEEDED
        assert not first.accept()
        async with connection.sender("s"):
            assert connection.is_connected
