"""Links that are refused or stolen, and peers that break the protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh.router.amqp.errors import (
    CommandError,
    ConnectionClosedError,
    InDoubtError,
    LinkDetachedError,
    LinkRedirectError,
    LinkStolenError,
    SessionEndedError,
)
from amqpmesh.router.amqp.standard.definitions import Error, LinkCondition, Role, SessionCondition
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.amqp.standard.performatives import Attach, Begin, Close, Detach, Disposition, End, Transfer
from amqpmesh.router.endpoint_setup import CAPABILITIES
from amqpmesh.router.runtime.router import Router
from tests.support.data.errors import GONE, PAYLOAD, REDIRECT, STOLEN
from tests.support.peers.library_client import Gate, joined
from tests.support.peers.scripted import attached, begun, frame, transferred
from tests.support.peers.scripted_server import Counterpart
from tests.support.tasks.calls import Call

if TYPE_CHECKING:
    from amqpmesh.router.client.factory import LinkFactory


# ----------------------------------------------------------------------------------------------------- refusals, thefts


@pytest.mark.parametrize("kind", ["sender", "receiver"])
@pytest.mark.parametrize(
    ("reason", "error_class"),
    [(GONE, LinkDetachedError), (STOLEN, LinkStolenError), (REDIRECT, LinkRedirectError), (None, LinkDetachedError)],
)
async def test_a_link_that_is_refused_says_why_and_the_connection_goes_on(
    reason: Error | None,
    error_class: type[LinkDetachedError],
    kind: str,
    nursery: trio.Nursery,
    autojump_clock: MockClock,
) -> None:
    far = Counterpart(nursery, refuse={Role.SENDER: reason, Role.RECEIVER: reason})
    async with far.connect() as connection:
        link = getattr(connection, kind)("q")
        with pytest.raises(LinkDetachedError) as raised:
            async with link:
                raise AssertionError("it is attached")
        assert type(raised.value) is error_class
        assert raised.value.error == reason
        assert "refused" in str(raised.value) or reason is not None
        assert not link.is_attached
        far.refuse.clear()
        async with getattr(connection, kind)("q") as another:
            assert another.is_attached
        assert trio.current_time() < 2.0


async def test_a_link_that_cannot_be_asked_for_is_our_callers_fault(
    factory: LinkFactory, autojump_clock: MockClock
) -> None:
    for kind in ("sender", "receiver", "requester"):
        with pytest.raises(CommandError, match="address"):
            async with getattr(factory, kind)(5):
                raise AssertionError("it is attached")
        for wrong in ({"properties": {5: 1}}, {"desired_capabilities": ["é"]}, {"desired_capabilities": "one"}):
            if kind != "requester":
                with pytest.raises(CommandError, match=r"symbol|list"):
                    getattr(factory, kind)("q", **wrong)


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
        await far.peer.write(good.replace(b"\x00\x53\x24\x45", b"\x00\x53\x10\x45"))
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
        await wait_all_tasks_blocked()  # until our channel 0 is free
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


@pytest.mark.parametrize("by_hand", [False, True], ids=["credit kept up", "credit by hand"])
async def test_a_broker_may_send_more_than_it_has_credit_for(
    by_hand: bool, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """Send beyond the credit, as RabbitMQ 3 does when our `flow` crosses its transfers."""
    far = Counterpart(nursery)
    async with far.connect() as connection, connection.receiver("q", credit=0 if by_hand else 2) as receiver:
        if by_hand:
            receiver.flow(2)
            await wait_all_tasks_blocked()
        for _ in range(5):
            await far.links[0].send(PAYLOAD)
        for _ in range(5):
            (await receiver.receive()).accept()
        assert receiver.undecided == 0
        # From now on, credit counts as usual.
        if by_hand:
            receiver.flow(3)
        await wait_all_tasks_blocked()
        assert far.links[0].limit == (8 if by_hand else 7)
        await far.links[0].send(PAYLOAD)
        (await receiver.receive()).accept()


async def test_deliveries_without_credit_are_bounded_by_the_window(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    async with far.connect() as connection, connection.receiver("q", credit=1, buffer=1):
        await wait_all_tasks_blocked()
        window = far.links[0].window
        far.mute = {End}
        for _ in range(window + 1):
            await far.links[0].send(PAYLOAD)
        end = await far.expect(End)
        assert end.error is not None
        assert end.error.condition == SessionCondition.WINDOW_VIOLATION


async def test_a_transfer_without_credit_costs_the_link_and_nothing_else(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery, offered_capabilities=CAPABILITIES)  # an amqpmesh router is not forgiven
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


async def test_a_peer_that_asks_and_reads_no_answer_is_not_heard_for_ever(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr("amqpmesh.router.client.connections.connection_tasks.BACKLOG_LIMIT", 2**14)
    far = Counterpart(nursery)
    gate = Gate(far.roads)
    async with far.connect(open_stream=gate.open) as connection, connection.receiver("q") as receiver:
        await wait_all_tasks_blocked()
        gate.shut()
        far.mute |= {Begin, End}
        # Each `begin` is answered, and then refused.
        asked = frame(Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9), channel=7)
        await far.peer.write((asked + frame(End(), channel=7)) * 2000)
        await far.links[0].send(PAYLOAD)
        await wait_all_tasks_blocked()
        assert receiver.undecided == 0, "what is behind all that was read"
        gate.lift()
        (await receiver.receive()).accept()
