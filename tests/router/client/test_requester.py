"""Requesters: the reply to each request, and requests without one."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.errors import AmqpMeshError, CommandError, InDoubtError, LinkDetachedError, ProtocolError
from amqpmesh.router.amqp.standard.definitions import Error, Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Rejected
from amqpmesh.router.amqp.standard.messaging import AmqpValue, Source
from amqpmesh.router.amqp.standard.performatives import Disposition, Transfer
from amqpmesh.router.message.content import Message
from amqpmesh.router.message.outcomes import ModifiedError, RejectedError, ReleasedError
from tests.support.peers.scripted_server import Counterpart
from tests.support.tasks.calls import Call

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from amqpmesh.router.client.delivery import Delivery
    from amqpmesh.router.client.factory import LinkFactory
    from amqpmesh.router.client.receiver import Receiver
    from amqpmesh.router.client.requester import Requester

NO_BODY = Message().encode()
GONE = Error(condition=Symbol("amqp:resource-deleted"), description="swept away")


async def double(service: Receiver) -> None:
    """Reply to each request with its body twice over."""
    async for delivery in service:
        async with delivery as message:
            await delivery.reply(message.body * 2)


def frames(payload: bytes) -> list[bytes]:
    """Return a payload in pieces that fit into frames."""
    return [payload[at : at + 10_000] for at in range(0, len(payload), 10_000)]


# -------------------------------------------------------------------------------------------------- with a real service


async def test_a_request_comes_back_with_its_answer(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with factory.receiver("q") as service, factory.requester("q") as requester:
        nursery.start_soon(double, service)
        assert (await requester.request(21)).body == 42
        answer = await requester.request(Message("a", subject="with properties"))
        assert answer.body == "aa"
        assert answer.to == requester.reply_to


async def test_what_is_over_is_nothing_for_the_garbage_collector(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with (
        factory.receiver("q") as service,
        factory.requester("q") as requester,
        factory.requester("nobody") as other,
    ):
        nursery.start_soon(double, service)
        await requester.request(0)
        gc.collect()
        gc.disable()
        try:
            for number in range(100):
                await requester.request(number)
                with trio.move_on_after(1):
                    await other.request(number)
            assert gc.collect() < 100, "calls are in cycles"
        finally:
            gc.enable()


async def test_many_tasks_ask_at_once_and_each_has_its_own_answer(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with factory.receiver("q", credit=7) as service, factory.requester("q", credit=5) as requester:
        nursery.start_soon(double, service)
        calls = [Call(nursery, requester.request, number) for number in range(100)]
        for number, call in enumerate(calls):
            assert (await call.result()).body == number * 2
        assert requester.late_replies == 0


async def test_answers_may_come_in_any_order(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with factory.receiver("q") as service, factory.requester("q") as requester:
        calls = [Call(nursery, requester.request, number) for number in range(5)]
        asked = [await service.receive() for _ in calls]
        for delivery in reversed(asked):
            await delivery.reply(delivery.message.body)
            delivery.accept()
        for number, call in enumerate(calls):
            assert (await call.result()).body == number


async def test_without_a_service_a_request_waits_for_credit(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with factory.requester("q") as requester:
        asking = Call(nursery, requester.request, 1)
        await trio.sleep(60)
        assert not asking.is_done
        async with factory.receiver("q") as service:
            nursery.start_soon(double, service)
            assert (await asking.result()).body == 2


async def test_a_request_that_is_not_accepted_raises(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with factory.receiver("q") as service, factory.requester("q") as requester:
        decisions: list[tuple[Callable[[Delivery], object], type[Exception]]] = [
            (lambda delivery: delivery.reject("amqp:not-allowed", "not you"), RejectedError),
            (lambda delivery: delivery.release(), ReleasedError),
            (lambda delivery: delivery.modify(undeliverable_here=True), ModifiedError),
        ]
        for decide, error in decisions:
            asking = Call(nursery, requester.request, 1)
            decide(await service.receive())
            assert type(await asking.failure()) is error


async def test_the_answer_to_one_that_is_accepted_may_come_later_and_one_that_came_counts(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with factory.receiver("q") as service, factory.requester("q") as requester:
        later = Call(nursery, requester.request, 1)
        delivery = await service.receive()
        delivery.accept()
        await trio.sleep(60)
        assert not later.is_done
        await delivery.reply("at last")
        assert (await later.result()).body == "at last"
        sooner = Call(nursery, requester.request, 1)
        delivery = await service.receive()
        await delivery.reply("first the answer")
        assert (await sooner.result()).body == "first the answer"
        delivery.reject()


@pytest.mark.parametrize("name", ["message_id", "correlation_id"])
@pytest.mark.parametrize("id", ["text", b"octets", 0, 2**64 - 1, UUID(int=1)])
async def test_the_ids_of_the_program_are_used_if_it_has_any(
    name: str, id: Any, factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with factory.receiver("q") as service, factory.requester("q") as requester:
        fields = {name: id}
        asking = Call(nursery, requester.request, Message(1, **fields))
        delivery = await service.receive()
        assert getattr(delivery.message, name) == id
        with pytest.raises(CommandError, match="waits"):
            await requester.request(Message(2, **fields))
        await delivery.reply("answer")
        delivery.accept()
        answer = await asking.result()
        assert (answer.body, answer.correlation_id) == ("answer", id)


async def test_a_message_of_the_program_is_left_as_it_was(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with factory.receiver("q") as service, factory.requester("q") as requester:
        nursery.start_soon(double, service)
        message = Message(1)
        for _ in range(2):
            assert (await requester.request(message)).body == 2
        assert message == Message(1)


async def test_one_id_after_the_other_is_two_calls(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """Make a second call with the same id in the moment in which the first one gets its reply."""
    async with factory.receiver("q") as service, factory.requester("q") as requester:

        async def ask_when_the_first_is_answered() -> Message:
            while True:
                try:
                    return await requester.request(Message("second", message_id="same"))
                except CommandError:
                    await trio.lowlevel.checkpoint()

        first = Call(nursery, requester.request, Message("first", message_id="same"))
        delivery = await service.receive()
        second = Call(nursery, ask_when_the_first_is_answered)
        await delivery.reply("one")
        delivery.accept()
        delivery = await service.receive()
        await delivery.reply("two")
        delivery.accept()
        assert (await first.result()).body == "one"
        assert (await second.result()).body == "two"


async def test_what_cannot_be_sent_is_said_and_forgotten(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with factory.receiver("q") as service, factory.requester("q") as requester:
        nursery.start_soon(double, service)
        for wrong in (object(), Message(1, message_id=bytearray(b"id")), Message(1, message_id="x", priority=256)):  # type: ignore[arg-type]  # what a program without types may do
            with pytest.raises(CommandError):
                await requester.request(wrong)  # type: ignore[arg-type]  # the same
        assert (await requester.request(Message(1, message_id="x"))).body == 2


async def test_a_requester_without_address_asks_by_the_to_of_each_request(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with factory.receiver("a") as one, factory.receiver("b") as other, factory.requester(None) as requester:
        nursery.start_soon(double, one)
        nursery.start_soon(double, other)
        for to in "ab":
            assert (await requester.request(Message(to, to=to))).body == to * 2


async def test_a_requester_is_used_between_its_entry_and_its_exit(
    factory: LinkFactory, autojump_clock: MockClock
) -> None:
    requester = factory.requester("q")
    assert requester.reply_to is None
    with pytest.raises(CommandError, match="async with"):
        await requester.request(b"")
    async with requester:
        assert requester.reply_to is not None
        with pytest.raises(CommandError, match="once"):
            await requester.__aenter__()
    assert requester.reply_to is None
    with pytest.raises(CommandError, match="left"):
        await requester.request(b"")


async def test_a_requester_has_credit_for_answers(factory: LinkFactory, autojump_clock: MockClock) -> None:
    for wrong in (0, -1):
        with pytest.raises(CommandError, match="credit"):
            factory.requester("q", credit=wrong)


async def test_leaving_does_not_wait_for_what_nobody_asks_for_any_more(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with factory.receiver("q") as service:
        async with factory.requester("q") as requester, factory.sender("q") as sender:
            asking, sending = Call(nursery, requester.request, 1), Call(nursery, sender.send, 1)
            held = [await service.receive() for _ in range(2)]
            await asking.cancel()
            await sending.cancel()
            left_at = trio.current_time()
        assert trio.current_time() - left_at < 2.0
        assert not any(delivery.is_decided for delivery in held)


# ---------------------------------------------------------------------------------------------------------- on the wire


class Asked:
    """A requester and the far end of its two links."""

    def __init__(self, far: Counterpart, requester: Requester) -> None:
        self.far = far
        self.requester = requester
        (self.replies,) = [link for link in far.links if link.attach.role is Role.RECEIVER]
        (self.requests,) = [link for link in far.links if link.attach.role is Role.SENDER]

    async def request(self) -> Message:
        """Return the next request."""
        await self.far.expect(Transfer)
        return Message.decode(self.far.payload)


@pytest.fixture
async def asked(nursery: trio.Nursery) -> AsyncIterator[Asked]:
    """Yield a requester of a connection to a scripted peer, with credit for ten requests."""
    far = Counterpart(nursery, source=Source(address="answers-to-me", dynamic=True))
    async with far.connect() as connection, connection.requester("q") as requester:
        (link,) = [link for link in far.links if link.attach.role is Role.SENDER]
        await link.flow(10)
        await wait_all_tasks_blocked()
        yield Asked(far, requester)


async def test_answers_that_are_no_ones_are_accepted_dropped_and_counted(
    asked: Asked, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    asking = Call(nursery, asked.requester.request, 1)
    request = await asked.request()
    assert request.reply_to == asked.requester.reply_to == "answers-to-me"
    for stray in (Message("none"), Message("unknown", correlation_id="x"), Message("its to", correlation_id=b"")):
        await asked.replies.send(stray.encode())
    await wait_all_tasks_blocked()
    assert asked.requester.late_replies == 3
    assert not asking.is_done
    await asked.replies.send(Message("answer", correlation_id=request.message_id).encode())
    assert (await asking.result()).body == "answer"
    await asked.replies.send(Message("again", correlation_id=request.message_id).encode())
    await wait_all_tasks_blocked()
    assert asked.requester.late_replies == 4
    said = [frame for frame in await asked.far.rest() if isinstance(frame, Disposition)]
    assert {frame.state for frame in said} == {Accepted()}
    assert sum((frame.last or frame.first) - frame.first + 1 for frame in said) == 5


@pytest.mark.parametrize(
    ("payload", "message_format"),
    [
        (b"\x00\x53\x75", 0),
        (b"no message", 0),
        (Message(1).encode(), 7),
        (b"\x00\x53\x73\xc0", 0),
        (b"\x00\x53\x73\xd0\x00\x00\x75\x34\x00\x00\x75\x30" + b"\x40" * 30_000, 0),
        (Message("unknown", correlation_id="whose").encode() + b"x", 0),
    ],
)
async def test_answers_that_are_no_messages_are_rejected_and_stop_nobody(
    payload: bytes, message_format: int, asked: Asked, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    asking = Call(nursery, asked.requester.request, 1)
    request = await asked.request()
    for _ in range(200):  # more than its credit, unless it decides them
        await asked.replies.send(*frames(payload), message_format=message_format)
        said = await asked.far.expect(Disposition)
        assert isinstance(said.state, Rejected)
    await asked.replies.send(Message("answer", correlation_id=request.message_id).encode())
    assert (await asking.result()).body == "answer"


@pytest.mark.parametrize("annotations", [{}, {"x-opt-list": [1, 2]}], ids=["properties first", "behind annotations"])
@pytest.mark.parametrize(
    ("body", "message_format", "condition"),
    [
        (encode_composite(AmqpValue(value=[None] * 20_001)), 0, "amqp:resource-limit-exceeded"),
        (b"\x00\x53\x77\xd0", 0, "amqp:decode-error"),
        (b"\x00\x53\x75\xa0\x01x", 7, "amqp:not-implemented"),
    ],
    ids=["too many values", "cut off", "of another format"],
)
async def test_an_answer_that_is_refused_is_told_to_the_call_that_it_was_for(
    body: bytes,
    message_format: int,
    condition: str,
    annotations: dict[str, Any],
    asked: Asked,
    nursery: trio.Nursery,
    autojump_clock: MockClock,
) -> None:
    askings = [Call(nursery, asked.requester.request, number) for number in range(2)]
    first, second = [await asked.request() for _ in askings]
    head = Message(correlation_id=first.message_id, message_annotations=annotations, durable=True).encode()
    assert head.endswith(NO_BODY)
    await asked.replies.send(*frames(head[: -len(NO_BODY)] + body), message_format=message_format)
    said = await asked.far.expect(Disposition)
    assert isinstance(said.state, Rejected)
    failure = await askings[first.body].failure()
    assert isinstance(failure, ProtocolError)
    assert failure.condition == condition
    assert failure.description.startswith("the reply was rejected: ")
    await asked.replies.send(Message("answer", correlation_id=second.message_id).encode())
    assert (await askings[second.body].result()).body == "answer"
    assert asked.requester.late_replies == 0


@pytest.mark.parametrize("stage", ["waiting for credit", "half sent", "sent", "accepted"])
@pytest.mark.parametrize("lost", ["requests", "replies"])
async def test_a_call_fails_with_either_link_and_so_does_the_next(
    lost: str, stage: str, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery, window=2, max_frame_size=512, source=Source(address="answers-to-me", dynamic=True))
    async with far.connect() as connection:
        async with connection.requester("q") as requester:
            asked = Asked(far, requester)
            if stage != "waiting for credit":
                await asked.requests.flow(1, window=2)
            asking = Call(nursery, requester.request, b"x" * (2000 if stage == "half sent" else 1))
            await wait_all_tasks_blocked()
            if stage == "accepted":
                await asked.requests.accept()
            await far.rest()
            assert not asking.is_done
            await getattr(asked, lost).detach(GONE)
            if lost == "requests" and stage == "accepted":
                # The request may still be answered.
                await wait_all_tasks_blocked()
                assert not asking.is_done
                await asking.cancel()
            else:
                failure = await asking.failure()
                in_doubt = stage in ("sent", "accepted")
                assert type(failure) is (InDoubtError if in_doubt else LinkDetachedError)
                assert isinstance(failure, LinkDetachedError | InDoubtError)
                assert failure.error == GONE
            with pytest.raises(LinkDetachedError, match="swept"):
                await requester.request(2)
            if (lost, stage) == ("replies", "half sent"):
                await asked.requests.flow(window=2)
                aborted = await far.expect(Transfer)
                assert aborted.aborted
            left_at = trio.current_time()
        assert trio.current_time() - left_at < 2.0
        # The connection works as before.
        async with connection.sender("q"):
            pass


@pytest.mark.parametrize("refused", [Role.SENDER, Role.RECEIVER])
async def test_a_requester_that_gets_one_of_its_links_only_is_refused_and_gives_it_back(
    refused: Role, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery, refuse={refused: GONE})
    async with far.connect() as connection:
        with pytest.raises(LinkDetachedError) as raised:
            async with connection.requester("q"):
                raise AssertionError("it is attached")
        assert raised.value.error == GONE
        assert trio.current_time() < 1.0
        await wait_all_tasks_blocked()
        assert [link.attach.role for link in far.links if link.is_attached] == []
        with pytest.raises(AmqpMeshError):
            await connection.requester("q").request(1)
