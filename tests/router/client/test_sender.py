"""Senders: credit, outcomes, and the order of calls (§2.6.7, §2.6.12)."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.errors import CommandError, InDoubtError
from amqpmesh.router.amqp.standard.definitions import Error, SenderSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified, Rejected, Released
from amqpmesh.router.message.content import Message
from amqpmesh.router.message.outcomes import ModifiedError, Outcome, OutcomeError, RejectedError, ReleasedError
from tests.support.tasks.calls import Call

if TYPE_CHECKING:
    from amqpmesh.router.client.delivery import Delivery
    from amqpmesh.router.client.factory import LinkFactory
    from amqpmesh.router.client.receiver import Receiver
    from amqpmesh.router.client.sender import Sender
    from amqpmesh.router.client.sent import Sent

REJECTED = Rejected(error=Error(condition=Symbol("amqp:not-allowed"), description="spam"))
MODIFIED = Modified(delivery_failed=True, undeliverable_here=True, message_annotations={Symbol("x-opt-a"): 1})
NOT_ACCEPTED: list[tuple[Outcome, type[OutcomeError]]] = [
    (REJECTED, RejectedError),
    (Released(), ReleasedError),
    (MODIFIED, ModifiedError),
]


async def take(receiver: Receiver, number: int) -> list[Delivery]:
    """Take so many deliveries."""
    return [await receiver.receive() for _ in range(number)]


# ------------------------------------------------------------------------------------------------- with a real receiver


async def test_a_send_comes_back_when_a_receiver_has_accepted(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with factory.sender("q") as sender, factory.receiver("q") as receiver:
        sending = Call(nursery, sender.send, Message("hello", subject="x"))
        delivery = await receiver.receive()
        assert (delivery.message.body, delivery.message.subject) == ("hello", "x")
        await wait_all_tasks_blocked()
        assert not sending.is_done
        assert sender.unsettled == 1
        assert delivery.accept()
        await sending.result()
        assert sender.unsettled == 0


async def test_a_message_that_is_not_accepted_raises_with_the_reason(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with factory.sender("q") as sender, factory.receiver("q") as receiver:
        calls = [Call(nursery, sender.send, b"") for _ in range(3)]
        first, second, third = await take(receiver, 3)
        first.reject("amqp:not-allowed", "spam")
        second.release()
        third.modify(delivery_failed=True, undeliverable_here=True, message_annotations={"x-opt-a": 1})
        failures = [await call.failure() for call in calls]
        by_type = {type(failure): failure for failure in failures}
        for outcome, kind in NOT_ACCEPTED:
            failure = by_type[kind]
            assert isinstance(failure, OutcomeError)
            assert failure.outcome == outcome
            assert failure.error == getattr(outcome, "error", None)
        assert "spam" in str(by_type[RejectedError])


async def test_an_outcome_that_is_asked_for_is_never_raised(factory: LinkFactory, autojump_clock: MockClock) -> None:
    async with factory.sender("q") as sender, factory.receiver("q") as receiver:
        sent = [await sender.transfer(bytes((number,))) for number in range(4)]
        assert not any(each.is_decided for each in sent)
        accepted, rejected, released, modified = await take(receiver, 4)
        accepted.accept()
        rejected.reject("amqp:not-allowed", "spam")
        released.release()
        modified.modify(delivery_failed=True, undeliverable_here=True, message_annotations={"x-opt-a": 1})
        assert [await each.outcome() for each in sent] == [Accepted(), REJECTED, Released(), MODIFIED]
        assert await sent[1].outcome() == REJECTED  # a second time
        assert sent[0].error is None
        assert isinstance(sent[1].error, RejectedError)


async def test_the_order_of_deliveries_is_the_order_of_calls(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with factory.sender("q") as sender:
        called: list[int] = []

        async def send(number: int) -> None:
            called.append(number)
            await sender.send(number)

        for number in range(50):
            nursery.start_soon(send, number)
        await wait_all_tasks_blocked()
        assert sender.waiting == 50
        async with factory.receiver("q", credit=3) as receiver:
            came = []
            for _ in called:
                delivery = await receiver.receive()
                came.append(delivery.message.body)
                delivery.accept()
            assert came == called


async def test_a_sender_does_not_wait_for_settled_messages(factory: LinkFactory, autojump_clock: MockClock) -> None:
    async with factory.sender("q") as sender, factory.receiver("q") as receiver:
        await sender.send(b"1", settled=True)
        sent = await sender.transfer(b"2", settled=True)
        assert sent.settled
        with pytest.raises(CommandError, match="settled"):
            await sent.outcome()
        for delivery in await take(receiver, 2):
            assert delivery.is_settled


async def test_a_sender_of_mode_settled_needs_not_be_told_each_time(
    factory: LinkFactory, autojump_clock: MockClock
) -> None:
    mode = SenderSettleMode.SETTLED
    async with factory.sender("q", snd_settle_mode=mode) as sender, factory.receiver("q") as receiver:
        await sender.send(b"1")
        assert (await sender.transfer(b"2")).settled
        assert [delivery.is_settled for delivery in await take(receiver, 2)] == [True, True]


async def test_a_sender_of_mode_unsettled_sends_nothing_settled(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    mode = SenderSettleMode.UNSETTLED
    async with factory.sender("q", snd_settle_mode=mode) as sender, factory.receiver("q") as receiver:
        with pytest.raises(CommandError, match="unsettled"):
            await sender.send(b"1", settled=True)
        sending = Call(nursery, sender.send, b"2")
        async with await receiver.receive() as message:
            assert message.body == b"2"
        await sending.result()


async def test_an_anonymous_sender_goes_by_the_to_of_each_message(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with factory.sender(None) as sender, factory.receiver("a") as one, factory.receiver("b") as other:
        assert sender.address is None
        calls = [Call(nursery, sender.send, Message(to, to=to)) for to in "ab"]
        for receiver, to in ((one, "a"), (other, "b")):
            async with await receiver.receive() as message:
                assert message.body == message.to == to
        for call in calls:
            await call.result()
        with pytest.raises(OutcomeError):
            await sender.send(Message(b"", to="nobody"))


async def test_many_tasks_send_and_each_hears_of_its_own(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with factory.sender("q") as sender, factory.receiver("q", credit=7) as receiver:
        calls = [Call(nursery, sender.send, number) for number in range(100)]
        for _ in calls:
            delivery = await receiver.receive()
            if delivery.message.body % 3:
                delivery.accept()
            else:
                delivery.reject("amqp:not-found", str(delivery.message.body))
        for number, call in enumerate(calls):
            if number % 3:
                await call.result()
            else:
                assert str(number) in str(await call.failure())


async def test_a_message_is_sent_as_it_was_when_it_was_given(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with factory.sender("q") as sender:
        message = Message(["first"], application_properties={"a": 1})
        sending = Call(nursery, sender.send, message)
        await wait_all_tasks_blocked()
        message.body.append("later")
        message.application_properties["b"] = 2
        async with factory.receiver("q") as receiver, await receiver.receive() as came:
            assert (came.body, came.application_properties) == (["first"], {"a": 1})
        await sending.result()


async def test_leaving_in_good_order_waits_for_what_was_sent_and_what_waits(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with factory.receiver("q", credit=2) as receiver:

        async def accept_slowly() -> None:
            for _ in range(5):
                await trio.sleep(10)
                async with await receiver.receive():
                    pass

        sent: list[Sent] = []

        async def send(sender: Sender) -> None:
            sent.extend([await sender.transfer(b"") for _ in range(3)])

        async with factory.sender("q") as sender:
            calls = [Call(nursery, send, sender), Call(nursery, sender.send, b""), Call(nursery, sender.send, b"")]
            await wait_all_tasks_blocked()
            nursery.start_soon(accept_slowly)
            left_at = trio.current_time()
        assert trio.current_time() - left_at >= 50
        for call in calls:
            await call.result()
        assert [await each.outcome() for each in sent] == [Accepted()] * 3


@pytest.mark.parametrize("leave", ["by an error", "cancelled"])
async def test_leaving_otherwise_waits_for_nobody(
    leave: str, factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with factory.receiver("q", credit=1) as receiver:
        left_at = trio.current_time()
        with trio.CancelScope() as scope, suppress(KeyError):
            async with factory.sender("q") as sender:
                sent = await sender.transfer(b"")
                waiting = [Call(nursery, sender.send, number) for number in range(5)]
                delivery = await receiver.receive()
                await wait_all_tasks_blocked()
                if leave == "cancelled":
                    scope.cancel()
                    await trio.sleep(1)
                raise KeyError
        assert trio.current_time() - left_at <= 1.0
        with pytest.raises(InDoubtError):
            await sent.outcome()
        kinds = {type(await call.failure()) for call in waiting}
        assert kinds <= {CommandError, InDoubtError}
        assert CommandError in kinds
        delivery.accept()  # maybe the sender is not told


async def test_a_sender_is_used_between_its_entry_and_its_exit(factory: LinkFactory, autojump_clock: MockClock) -> None:
    sender = factory.sender("q")
    for call in (sender.send, sender.transfer):
        with pytest.raises(CommandError, match="async with"):
            await call(b"")
    async with sender:
        with pytest.raises(CommandError, match="once"):
            await sender.__aenter__()
    assert sender.credit == 0
    for call in (sender.send, sender.transfer):
        with pytest.raises(CommandError, match="left"):
            await call(b"")


async def test_a_value_that_is_no_message_is_not_sent_and_disturbs_nothing(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with factory.sender("q") as sender, factory.receiver("q") as receiver:
        for wrong in (object(), Message(b"", priority=256), 2**63):
            with pytest.raises(CommandError):
                await sender.send(wrong)  # type: ignore[arg-type]  # what a program without types may do
        assert sender.waiting == 0
        sending = Call(nursery, sender.send, b"right")
        async with await receiver.receive() as message:
            assert message.body == b"right"
        await sending.result()
