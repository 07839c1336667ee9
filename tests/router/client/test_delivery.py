"""Deliveries that a program has received: the one outcome of each, and replies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh.router.amqp.codec.types import Symbol, UInt, ULong
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.amqp.standard.definitions import Error
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified, Rejected, Released
from amqpmesh.router.message.content import Message
from tests.support.tasks.calls import Call

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpmesh.router.client.delivery import Delivery
    from amqpmesh.router.client.factory import LinkFactory
    from amqpmesh.router.message.outcomes import Outcome


class BodyError(Exception):
    """An error that a program raises."""


async def test_a_field_of_the_message_that_is_asked_of_the_delivery_is_shown_the_way(
    factory: LinkFactory, autojump_clock: MockClock
) -> None:
    async with factory.receiver("q") as receiver, factory.sender("q") as sender:
        await sender.transfer("x", settled=True)
        delivery: Any = await receiver.receive()
        for name in ("body", "subject", "application_properties"):
            with pytest.raises(AttributeError, match=rf"the message has it, delivery\.message\.{name}$"):
                getattr(delivery, name)
        with pytest.raises(AttributeError, match="^'Delivery' object has no attribute 'other'$"):
            delivery.other  # noqa: B018 - that it is asked for is the test


# ---------------------------------------------------------------------------------------------------------------- exits


async def test_a_body_that_ends_well_accepts(factory: LinkFactory, autojump_clock: MockClock) -> None:
    async with factory.receiver("q") as receiver, factory.sender("q") as sender:
        sent = await sender.transfer(Message("x", subject="s"))
        async with await receiver.receive() as message:
            assert (message.body, message.subject) == ("x", "s")
            assert not sent.is_decided
        assert await sent.outcome() == Accepted()


@pytest.mark.parametrize(
    "error",
    [
        BodyError(),
        ExceptionGroup("several", [BodyError(), ValueError()]),
        BaseExceptionGroup("one is a failure", [KeyboardInterrupt(), BodyError()]),
    ],
    ids=["one", "a group", "a group with an interrupt"],
)
async def test_a_body_that_fails_has_failed_the_delivery_and_its_error_comes_out(
    error: BaseException, factory: LinkFactory, autojump_clock: MockClock
) -> None:
    async with factory.receiver("q") as receiver, factory.sender("q") as sender:
        sent = await sender.transfer("x")
        with pytest.raises(type(error)) as raised:
            async with await receiver.receive():
                raise error
        assert raised.value is error
        assert await sent.outcome() == Modified(delivery_failed=True)


async def test_a_body_that_is_cancelled_or_interrupted_gives_the_delivery_back(
    factory: LinkFactory, autojump_clock: MockClock
) -> None:
    async with factory.receiver("q") as receiver, factory.sender("q") as sender:
        interrupted, cancelled = await sender.transfer("1"), await sender.transfer("2")
        with pytest.raises(KeyboardInterrupt):
            async with await receiver.receive():
                raise KeyboardInterrupt
        assert await interrupted.outcome() == Released()
        with trio.move_on_after(1):
            async with await receiver.receive(), trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                nursery.start_soon(trio.sleep_forever)
        assert await cancelled.outcome() == Released()


async def test_a_body_that_fails_as_it_is_cancelled_has_failed_the_delivery(
    factory: LinkFactory, autojump_clock: MockClock
) -> None:
    async def fail_at_the_end() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise BodyError

    async with factory.receiver("q") as receiver, factory.sender("q") as sender:
        sent = await sender.transfer("x")
        with pytest.raises(ExceptionGroup), trio.move_on_after(1):
            async with await receiver.receive(), trio.open_nursery() as nursery:
                nursery.start_soon(fail_at_the_end)
                nursery.start_soon(trio.sleep_forever)
        assert await sent.outcome() == Modified(delivery_failed=True)


@pytest.mark.parametrize("error", [None, BodyError()])
async def test_an_outcome_decided_in_the_body_stays(
    error: Exception | None, factory: LinkFactory, autojump_clock: MockClock
) -> None:
    async with factory.receiver("q") as receiver, factory.sender("q") as sender:
        sent = await sender.transfer("x")
        delivery = await receiver.receive()
        try:
            async with delivery:
                delivery.release()
                if error is not None:
                    raise error
        except BodyError:
            pass
        assert await sent.outcome() == Released()


# ------------------------------------------------------------------------------------------------------------ decisions

DECISIONS: list[tuple[Callable[[Delivery], bool], Outcome]] = [
    (lambda delivery: delivery.accept(), Accepted()),
    (lambda delivery: delivery.reject(), Rejected()),
    (
        lambda delivery: delivery.reject("amqp:not-allowed", "spam", {"x-opt-score": UInt(9)}),
        Rejected(
            error=Error(condition=Symbol("amqp:not-allowed"), description="spam", info={Symbol("x-opt-score"): UInt(9)})
        ),
    ),
    (lambda delivery: delivery.release(), Released()),
    (lambda delivery: delivery.modify(), Modified()),
    (lambda delivery: delivery.modify(delivery_failed=True), Modified(delivery_failed=True)),
    (
        lambda delivery: delivery.modify(undeliverable_here=True, message_annotations={"x-opt-a": [1]}),
        Modified(undeliverable_here=True, message_annotations={Symbol("x-opt-a"): [1]}),
    ),
]


@pytest.mark.parametrize(("decide", "outcome"), DECISIONS)
async def test_a_delivery_is_decided_once(
    decide: Callable[[Delivery], bool], outcome: Outcome, factory: LinkFactory, autojump_clock: MockClock
) -> None:
    async with factory.receiver("q") as receiver, factory.sender("q") as sender:
        sent = await sender.transfer("x")
        delivery = await receiver.receive()
        assert not delivery.is_decided
        assert decide(delivery)
        assert delivery.is_decided
        assert await sent.outcome() == outcome
        assert await delivery.settled()
        for again, _ in DECISIONS:
            with pytest.raises(CommandError, match="decided"):
                again(delivery)
        assert delivery.message.body == "x"  # the message is still there
        assert delivery.payload == Message("x").encode()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda delivery: delivery.reject(description="without condition"),
        lambda delivery: delivery.reject(info={"without": "condition"}),
        lambda delivery: delivery.reject("é"),
        lambda delivery: delivery.reject(5),
        lambda delivery: delivery.reject("x", 5),
        lambda delivery: delivery.reject("x", "y", {"é": 1}),
        lambda delivery: delivery.reject("x", "y", {"a": object()}),
        lambda delivery: delivery.modify(message_annotations={"é": 1}),
        lambda delivery: delivery.modify(message_annotations={5: 1}),
        lambda delivery: delivery.modify(message_annotations={"a": object()}),
        lambda delivery: delivery.modify(delivery_failed="yes"),
    ],
)
async def test_a_decision_that_cannot_be_said_decides_nothing(
    wrong: Callable[[Delivery], bool], factory: LinkFactory, autojump_clock: MockClock
) -> None:
    async with factory.receiver("q") as receiver, factory.sender("q") as sender:
        sent = await sender.transfer("x")
        delivery = await receiver.receive()
        with pytest.raises(CommandError):
            wrong(delivery)
        assert not delivery.is_decided
        await wait_all_tasks_blocked()
        assert not sent.is_decided
        assert delivery.accept()
        assert await sent.outcome() == Accepted()


async def test_deciding_needs_no_await_and_works_in_a_scope_that_is_cancelled(
    factory: LinkFactory, autojump_clock: MockClock
) -> None:
    async with factory.receiver("q") as receiver, factory.sender("q") as sender:
        sent = await sender.transfer("x")
        delivery = await receiver.receive()
        with trio.CancelScope() as scope:
            scope.cancel()
            assert delivery.accept()
        assert await sent.outcome() == Accepted()


# -------------------------------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize(
    ("asked", "own", "answered"),
    [
        ({}, None, None),
        ({"message_id": "m"}, None, "m"),
        ({"message_id": "m", "correlation_id": "c"}, None, "c"),
        ({"message_id": "m", "correlation_id": "c"}, "mine", "mine"),
        ({"correlation_id": 0}, None, 0),
        ({"message_id": UUID(int=7)}, None, UUID(int=7)),
        ({"message_id": b"\0"}, None, b"\0"),
        ({"message_id": ULong(2**63)}, None, 2**63),
    ],
)
async def test_an_answer_goes_to_the_reply_to_with_the_correlation_id_or_else_the_message_id(
    asked: dict[str, Any], own: str | None, answered: object, factory: LinkFactory, autojump_clock: MockClock
) -> None:
    async with factory.receiver("q") as service, factory.receiver("answers") as answers, factory.sender("q") as sender:
        await sender.transfer(Message("?", reply_to="answers", **asked))
        delivery = await service.receive()
        message = Message("!", subject="kept", correlation_id=own)
        await delivery.reply(message)
        assert message == Message("!", subject="kept", correlation_id=own)  # unchanged, to be used for other replies
        answer = await answers.receive()
        assert answer.is_settled
        assert (answer.message.body, answer.message.subject, answer.message.to) == ("!", "kept", "answers")
        assert answer.message.correlation_id == answered
        assert type(answer.message.correlation_id) in (type(answered), int)
        delivery.accept()


async def test_an_answer_may_be_a_body_alone_and_its_outcome_asked_for(
    factory: LinkFactory, autojump_clock: MockClock
) -> None:
    async with factory.receiver("q") as service, factory.receiver("answers") as answers, factory.sender("q") as sender:
        await sender.transfer(Message("?", reply_to="answers"))
        async with await service.receive():
            pass
        await sender.transfer(Message("?", reply_to="answers"))
        delivery = await service.receive()
        sent = await delivery.reply(b"!", settled=False)
        answer = await answers.receive()
        assert (answer.message.body, answer.is_settled) == (b"!", False)
        answer.reject("amqp:not-allowed")
        assert isinstance(await sent.outcome(), Rejected)
        delivery.accept()


@pytest.mark.parametrize("reply_to", [None, ""])
@pytest.mark.parametrize("decide_first", [False, True])
async def test_a_request_without_a_usable_reply_to_is_rejected_and_stops_no_service(
    reply_to: str | None,
    decide_first: bool,
    factory: LinkFactory,
    caplog: pytest.LogCaptureFixture,
    autojump_clock: MockClock,
) -> None:
    async with factory.receiver("q") as service, factory.sender("q") as sender:
        for _ in range(3):
            sent = await sender.transfer(Message("?", reply_to=reply_to))
            delivery = await service.receive()
            async with delivery:
                if decide_first:
                    delivery.release()
                assert await delivery.reply("!") is None
            outcome = await sent.outcome()
            if decide_first:
                assert outcome == Released()
            else:
                assert isinstance(outcome, Rejected)
                assert outcome.error == Error(
                    condition=Symbol("amqp:invalid-field"), description="the message has no reply-to"
                )
        warned = [each for each in caplog.records if "request cannot be answered" in each.getMessage()]
        assert len(warned) == 1


async def test_an_answer_that_cannot_be_sent_is_a_mistake_of_ours(
    factory: LinkFactory, autojump_clock: MockClock
) -> None:
    async with factory.receiver("q") as service, factory.sender("q") as sender:
        for reply_to in ("answers", None):
            await sender.transfer(Message("?", reply_to=reply_to))
            delivery = await service.receive()
            message = Message("!", priority=256)
            with pytest.raises(CommandError, match="priority"):
                await delivery.reply(message)
            assert message == Message("!", priority=256)
            assert not delivery.is_decided
            delivery.accept()


@pytest.mark.parametrize("settled", [True, False])
async def test_a_requester_that_has_gone_stops_no_later_requester(
    settled: bool, factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with factory.receiver("q") as service:
        async with factory.requester("q") as requester:
            asking = Call(nursery, requester.request, "first")
            gone = await service.receive()
            await asking.cancel()
        with trio.fail_after(30):
            await gone.reply("too late", settled=settled)
            gone.accept()
        async with factory.requester("q") as requester:
            asking = Call(nursery, requester.request, "second")
            delivery = await service.receive()
            with trio.fail_after(30):
                await delivery.reply("in time", settled=settled)
            delivery.accept()
            assert (await asking.result()).body == "in time"


async def test_a_requester_that_takes_no_answers_stops_no_later_requester(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with (
        factory.receiver("q") as service,
        factory.receiver(None, credit=0) as deaf,
        factory.sender("q") as sender,
    ):
        for _ in range(10):
            await sender.transfer(Message("?", reply_to=deaf.address))
            delivery = await service.receive()
            with trio.fail_after(30):
                await delivery.reply("!")
            delivery.accept()
        async with factory.requester("q") as requester:
            asking = Call(nursery, requester.request, "second")
            delivery = await service.receive()
            with trio.fail_after(30):
                await delivery.reply("in time")
            delivery.accept()
            assert (await asking.result()).body == "in time"
