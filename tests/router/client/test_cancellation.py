"""Cancelled calls, at every point where a call can be cancelled."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode, Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified, Rejected, Released
from amqpmesh.router.amqp.standard.performatives import Detach, Disposition, Flow, Transfer
from amqpmesh.router.client.links.incoming import DeliveryAbortedError
from amqpmesh.router.client.sender import link_of
from amqpmesh.router.config.file import RouterConfig
from amqpmesh.router.message.content import Message
from amqpmesh.router.runtime.router import Router
from tests.support.peers.library_client import joined
from tests.support.peers.scripted_server import Counterpart
from tests.support.tasks.calls import Call

if TYPE_CHECKING:
    from amqpmesh.router.client.factory import LinkFactory

PAYLOAD = Message(b"").encode()


async def test_a_call_in_a_scope_that_is_cancelled_already_does_nothing(
    factory: LinkFactory, autojump_clock: MockClock
) -> None:
    async with factory.sender("q") as sender, factory.receiver("q") as receiver, factory.requester("q") as requester:
        manual = factory.receiver("other", credit=0)
        async with manual:
            for call in (
                lambda: sender.send(b""),
                lambda: sender.transfer(b""),
                lambda: requester.request(b""),
                receiver.receive,
                manual.drain,
            ):
                with trio.CancelScope() as scope:
                    scope.cancel()
                    await call()
                assert scope.cancelled_caught
            assert (sender.waiting, sender.unsettled) == (0, 0)
            with trio.move_on_after(1):
                await receiver.receive()
                raise AssertionError("something was sent")


# -------------------------------------------------------------------------------------------------------------- sending


async def test_cancelled_while_it_waits_for_credit_nothing_is_sent(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    async with far.connect() as connection, connection.sender("q") as sender:
        calls = []
        for number in range(5):
            calls.append(Call(nursery, sender.transfer, bytes((number,))))
            await wait_all_tasks_blocked()
        for number in (0, 2, 4):
            await calls[number].cancel()
        assert sender.waiting == 2
        await far.links[0].flow(10)
        for number in (1, 3):
            await calls[number].result()
            await far.expect(Transfer)
            assert Message.decode(far.payload).body == bytes((number,))
        assert await far.rest() == []
        assert (sender.credit, sender.unsettled) == (8, 2)
        await far.links[0].accept(0, 1)


@pytest.mark.parametrize("settled", [False, True])
async def test_cancelled_in_the_middle_of_its_frames_it_is_aborted_and_the_link_goes_on(
    settled: bool, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery, credit=10, window=2, max_frame_size=512)
    async with far.connect() as connection, connection.sender("q") as sender:
        (link,) = far.links
        half = Call(nursery, sender.transfer, b"x" * 5000, settled=settled)
        assert [frame.more for frame in await far.rest() if isinstance(frame, Transfer)] == [True, True]
        behind = Call(nursery, sender.transfer, b"behind it", settled=settled)
        await half.cancel()
        assert await far.rest() == []  # the window is closed
        assert sender.waiting == 2
        await link.flow(window=10)
        aborted = await far.expect(Transfer)
        assert (aborted.aborted, aborted.more, far.payload) == (True, False, b"")
        after = await far.expect(Transfer)
        assert (after.delivery_id, after.more, after.aborted) == (1, False, False)
        assert Message.decode(far.payload).body == b"behind it"
        await behind.result()
        if not settled:
            assert sender.unsettled == 1
            await link.dispose(Rejected(), 0)  # of a delivery that the client has forgotten
            await link.accept(1)
        await wait_all_tasks_blocked()
        assert (sender.waiting, sender.unsettled) == (0, 0)


async def test_a_receiver_that_decides_half_a_delivery_may_see_it_aborted(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery, credit=10, window=1, max_frame_size=512)
    async with far.connect() as connection, connection.sender("q") as sender:
        (link,) = far.links
        half = Call(nursery, sender.send, b"x" * 5000)
        await far.expect(Transfer)
        await link.dispose(Rejected())
        await wait_all_tasks_blocked()
        await half.cancel()
        await link.flow(window=10)
        assert (await far.expect(Transfer)).aborted
        sending = Call(nursery, sender.send, b"")
        await far.expect(Transfer)
        await link.accept(1)
        await sending.result()
        assert (sender.waiting, sender.unsettled) == (0, 0)


async def test_half_a_delivery_that_is_cancelled_is_aborted_at_its_receiver_too(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    narrow = replace(RouterConfig().with_listeners("amqp://localhost").listeners[0], session_window=8)
    async with Router() as router, joined(nursery, router, listener=narrow) as connection:
        receiver = router.receiver("q", streaming=True, buffer=2**16)
        async with receiver, connection.sender("q") as sender:
            half = Call(nursery, sender.transfer, b"x" * 2**22)
            delivery = await receiver.receive()
            await wait_all_tasks_blocked()
            await half.cancel()
            with pytest.raises(DeliveryAbortedError):
                await delivery.read()
            whole = Call(nursery, sender.send, b"whole")
            second = await receiver.receive()
            assert (await second.read()).body == b"whole"
            second.accept()
            await whole.result()
    assert router.statistics().is_empty


async def test_cancelled_while_it_waits_for_the_outcome_it_is_settled_when_that_comes(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery, credit=10)
    second = ReceiverSettleMode.SECOND
    async with far.connect() as connection, connection.sender("q", rcv_settle_mode=second) as sender:
        sending = Call(nursery, sender.send, b"")
        await far.expect(Transfer)
        await sending.cancel()
        sent = await sender.transfer(b"")
        await far.expect(Transfer)
        asking = Call(nursery, sent.outcome)
        await wait_all_tasks_blocked()
        await asking.cancel()
        assert sender.unsettled == 2
        assert await far.rest() == []
        await far.links[0].dispose(Rejected(), 0, 1, settled=False)
        settled = await far.expect(Disposition)
        assert (settled.role, settled.first, settled.last, settled.settled) == (Role.SENDER, 0, 1, True)
        assert sender.unsettled == 0
        assert await sent.outcome() == Rejected()  # a second call returns it, too


async def test_a_receiver_is_not_told_that_nobody_waits_for_its_outcome(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with factory.sender("q") as sender, factory.receiver("q") as receiver:
        sending = Call(nursery, sender.send, b"")
        delivery = await receiver.receive()
        await sending.cancel()
        assert delivery.accept()
        await wait_all_tasks_blocked()
        assert sender.unsettled == 0


# ------------------------------------------------------------------------------------------------------------ receiving


async def test_cancelled_while_it_waits_for_a_delivery_nothing_is_taken(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with factory.sender("q") as sender, factory.receiver("q") as receiver:
        calls = []
        for _ in range(3):
            calls.append(Call(nursery, receiver.receive))
            await wait_all_tasks_blocked()
        await calls[0].cancel()
        await calls[1].cancel()
        sent = await sender.transfer(b"")
        (await calls[2].result()).accept()
        assert await sent.outcome() == Accepted()


async def test_cancelled_in_the_moment_in_which_a_delivery_comes_it_is_not_lost(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with factory.sender("q") as sender, factory.receiver("q") as receiver:
        for _ in range(10):
            with trio.CancelScope() as scope:
                sent = await sender.transfer(b"", settled=True)
                scope.cancel()
                await receiver.receive()
            del sent
            if scope.cancelled_caught:
                await receiver.receive()


class LeavingError(Exception):
    """An error that the body of a test raises."""


@pytest.mark.parametrize("leave", ["in good order", "by an error", "cancelled"])
async def test_leaving_a_receiver_gives_back_what_nobody_had_and_fails_what_somebody_had(
    leave: str, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    far.mute.add(Detach)
    async with far.connect() as connection:
        with trio.CancelScope() as scope:
            try:
                async with connection.receiver("q", credit=10) as receiver:
                    (link,) = far.links
                    for _ in range(5):
                        await link.send(PAYLOAD)
                    await link.send(PAYLOAD, more=True)
                    (await receiver.receive()).accept()
                    await receiver.receive()
                    (await receiver.receive()).reject()
                    if leave == "cancelled":
                        scope.cancel()
                        await trio.sleep(1)
                    elif leave == "by an error":
                        raise LeavingError
            except LeavingError:
                assert leave == "by an error"
        assert scope.cancelled_caught == (leave == "cancelled")
        frames = await far.rest()
        assert isinstance(frames.pop(), Detach)
        said: dict[int, object] = {}
        for frame in frames:
            assert isinstance(frame, Disposition)
            assert frame.settled
            last = frame.first if frame.last is None else frame.last
            said |= dict.fromkeys(range(frame.first, last + 1), frame.state)
        assert said == {
            0: Accepted(),
            1: Modified(delivery_failed=True),
            2: Rejected(),
            3: Released(),
            4: Released(),
            5: Released(),
        }


async def test_a_delivery_on_its_way_when_a_receiver_is_left_goes_back(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    far.mute.add(Detach)
    async with far.connect() as connection:
        async with connection.receiver("q", credit=10):
            (link,) = far.links

            async def send_late() -> None:
                while not (await far.expect(Flow)).echo:
                    pass
                await link.send(PAYLOAD)
                await link.flow(0)

            nursery.start_soon(send_late)
            await wait_all_tasks_blocked()
            left_at = trio.current_time()
        said = await far.expect(Disposition)
        assert (said.first, said.state, said.settled) == (0, Released(), True)
        await far.expect(Detach)
        assert trio.current_time() - left_at <= 1.0  # no answer to the detach comes


async def test_leaving_a_receiver_gives_deliveries_to_another(factory: LinkFactory, autojump_clock: MockClock) -> None:
    async with factory.sender("q") as sender:
        async with factory.receiver("q", credit=10) as one:
            sent = [await sender.transfer(number) for number in range(3)]
            await one.receive()
            await wait_all_tasks_blocked()
        assert [await each.outcome() for each in sent] == [Modified(delivery_failed=True), Released(), Released()]


async def test_a_delivery_whose_body_is_cancelled_goes_back(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with factory.sender("q") as sender, factory.receiver("q") as receiver:
        inside, on_entry = [await sender.transfer(b"") for _ in range(2)]
        with trio.CancelScope() as scope:
            async with await receiver.receive():
                scope.cancel()
                await trio.sleep(1)
        assert await inside.outcome() == Released()
        delivery = await receiver.receive()
        with trio.CancelScope() as scope:
            scope.cancel()
            async with delivery:
                raise AssertionError("it is entered")
        assert delivery.is_decided
        assert await on_entry.outcome() == Released()


async def test_cancelled_while_it_waits_for_the_settlement_the_delivery_is_settled_all_the_same(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    second = ReceiverSettleMode.SECOND
    receiver = factory.receiver("q", rcv_settle_mode=second)
    async with factory.sender("q", rcv_settle_mode=second) as sender, receiver:
        sent = await sender.transfer(b"")
        delivery = await receiver.receive()
        waiting = Call(nursery, delivery.settled)
        await wait_all_tasks_blocked()
        await waiting.cancel()
        delivery.accept()
        assert await delivery.settled()
        assert await sent.outcome() == Accepted()


async def test_a_drain_that_is_cancelled_leaves_a_receiver_that_can_be_used(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    async with far.connect() as connection, connection.receiver("q", credit=0) as receiver:
        receiver.flow(5)
        with trio.move_on_after(1):
            await receiver.drain()
            raise AssertionError("it was answered")
        receiver.flow(5)
        asked = [await far.expect(Flow) for _ in range(2)]
        assert [(flow.link_credit, flow.drain) for flow in asked] == [(5, True), (10, False)]
        await far.links[0].send(PAYLOAD)
        await receiver.receive()


# --------------------------------------------------------------------------------------------------------------- asking


async def test_a_request_that_is_cancelled_is_forgotten_and_its_late_answer_is_accepted_dropped_and_counted(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with factory.requester("q") as requester:
        unsent = Call(nursery, requester.request, "unsent")
        await wait_all_tasks_blocked()
        await unsent.cancel()
        async with factory.receiver("q") as service:
            asking = Call(nursery, requester.request, "sent")
            delivery = await service.receive()
            assert delivery.message.body == "sent"  # the other message was never sent
            await asking.cancel()
            answer = await delivery.reply("late", settled=False)
            delivery.accept()
            assert await answer.outcome() == Accepted()
            assert requester.late_replies == 1
            again = Call(nursery, requester.request, "again")
            async with await service.receive() as message:
                assert message.body == "again"
                assert not again.is_done
            await again.cancel()


async def test_a_sender_that_is_left_in_the_middle_of_a_delivery_aborts_it_before_it_detaches(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery, credit=10)
    far.mute.add(Detach)
    async with far.connect() as connection:
        with pytest.raises(ZeroDivisionError):
            async with connection.sender("q") as sender:
                await wait_all_tasks_blocked()
                link_of(sender).submit(b"x" * 2**20)  # more than the backlog that may wait to be written
                raise ZeroDivisionError
        *begun, aborted, detached = await far.rest()
        assert begun
        assert all(isinstance(frame, Transfer) and frame.more for frame in begun)
        assert isinstance(aborted, Transfer)
        assert aborted.aborted
        assert isinstance(detached, Detach)
