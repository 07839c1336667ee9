"""Senders on the wire: credit, drain, windows, sizes, settlement (§2.6.7, §2.6.12)."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.amqp.standard.definitions import Error, ReceiverSettleMode, Role, SenderSettleMode
from amqpmesh.router.amqp.standard.delivery_states import (
    Accepted,
    DeliveryState,
    Modified,
    Received,
    Rejected,
    Released,
)
from amqpmesh.router.amqp.standard.messaging import Target
from amqpmesh.router.amqp.standard.performatives import Attach, Disposition, Flow, Transfer
from amqpmesh.router.client.links.client_connection import BACKLOG
from amqpmesh.router.message.content import Message
from amqpmesh.router.message.outcomes import Outcome
from tests.support.peers.library_client import Gate
from tests.support.peers.scripted_server import Counterpart
from tests.support.tasks.calls import Call

REJECTED = Rejected(error=Error(condition=Symbol("amqp:not-allowed"), description="spam"))


# ---------------------------------------------------------------------------------------------------------- on the wire


async def test_nothing_is_sent_without_credit_and_no_more_than_there_is(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    async with far.connect() as connection, connection.sender("q") as sender:
        calls = [Call(nursery, sender.transfer, b"") for _ in range(5)]
        assert await far.rest() == []
        await far.links[0].flow(2)
        assert [type(frame) for frame in await far.rest()] == [Transfer, Transfer]
        assert [call.is_done for call in calls].count(True) == 2
        assert (sender.credit, sender.waiting, sender.unsettled) == (0, 3, 2)
        await far.links[0].flow(10)
        assert len(await far.rest()) == 3
        assert (sender.credit, sender.waiting, sender.unsettled) == (7, 0, 5)
        await far.links[0].accept(0, 4)
        for call in calls:
            assert await (await call.result()).outcome() == Accepted()


async def test_a_drain_is_answered_when_there_is_nothing_more_to_send(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    async with far.connect() as connection, connection.sender("q", snd_settle_mode=SenderSettleMode.SETTLED) as sender:
        (link,) = far.links
        calls = [Call(nursery, sender.send, b"") for _ in range(3)]
        await link.flow(10, drain=True)
        for call in calls:
            await call.result()
            await far.expect(Transfer)
        answer = await far.expect(Flow)
        assert (answer.delivery_count, answer.link_credit, answer.drain) == (10, 0, True)
        link.begun = 10
        await link.flow(5, drain=True)
        answer = await far.expect(Flow)
        assert (answer.delivery_count, answer.link_credit) == (15, 0)
        # The answer to a drain uses up the credit; the next message needs more.
        waiting = Call(nursery, sender.send, b"")
        assert await far.rest() == []
        link.begun = 15
        await link.flow(1)
        await waiting.result()


async def test_a_message_that_is_larger_than_the_peer_takes_is_refused_and_nothing_is_sent(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery, attach={"max_message_size": 1000})
    async with far.connect() as connection, connection.sender("q", snd_settle_mode=SenderSettleMode.SETTLED) as sender:
        # The error comes at once: credit would not help.
        with pytest.raises(CommandError, match="1000"):
            await sender.send(b"x" * 1000)
        await far.links[0].flow(10)
        fits = b"x" * (1000 - 8)
        too_large, fitting = Call(nursery, sender.send, fits + b"x"), Call(nursery, sender.send, fits)
        assert isinstance(await too_large.failure(), CommandError)
        await fitting.result()
        await far.expect(Transfer)
        assert len(far.payload) == 1000
        assert await far.rest() == []
        assert sender.credit == 9


@pytest.mark.parametrize("window", [1, 4])
async def test_a_large_message_goes_as_the_window_and_the_frames_of_the_peer_allow(
    window: int, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery, credit=10, window=window, max_frame_size=512)
    message = Message(bytes(range(256)) * 40)
    async with far.connect() as connection, connection.sender("q") as sender:
        sending = Call(nursery, sender.send, message)
        await wait_all_tasks_blocked()
        second = Call(nursery, sender.transfer, b"behind it")
        payload, frames, more = b"", 0, True
        while more:
            transfer = await far.expect(Transfer)
            payload += far.payload
            frames += 1
            more = transfer.more
            assert transfer.delivery_id == (0 if frames == 1 else None)
            if more and frames % window == 0:
                assert await far.rest() == [], "it keeps to the window"
                assert not sending.is_done
                await far.links[0].flow(window=window)
        assert payload == message.encode()
        assert frames > 20
        await far.links[0].flow(window=window)
        await second.result()
        assert (await far.expect(Transfer)).delivery_id == 1
        await far.links[0].accept(0, 1)
        await sending.result()


async def test_senders_stand_still_while_the_stream_takes_nothing(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery, credit=1000)
    gate = Gate(far.roads)
    size, number = 60_000, 50
    async with far.connect(open_stream=gate.open) as connection:
        async with connection.sender("a") as one, connection.sender("b") as other:
            gate.shut()
            senders = [one, other] * (number // 2)
            called: list[int] = []

            async def send(index: int) -> None:
                called.append(index)
                await senders[index].send(bytes((index,)) * size, settled=True)

            calls = [Call(nursery, send, index) for index in range(number)]
            await wait_all_tasks_blocked()
            through = [call.is_done for call in calls].count(True)
            # The backlog, a chunk of each sender beyond it, and the octets that the stream is writing.
            assert through * size < 2 * BACKLOG
            gate.lift()
            for call in calls:
                await call.result()
        bodies: dict[int, list[int]] = {0: [], 1: []}
        payloads = {0: b"", 1: b""}
        while sum(map(len, bodies.values())) < number:
            transfer = await far.expect(Transfer)
            payloads[far.channel] += far.payload
            if not transfer.more:
                body = Message.decode(payloads[far.channel]).body
                payloads[far.channel] = b""
                assert body == body[:1] * size
                bodies[far.channel].append(body[0])
        for channel, came in bodies.items():
            assert came == [index for index in called if index % 2 == channel]


async def test_with_mode_second_the_sender_settles_what_the_receiver_has_decided(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery, credit=10)
    second = ReceiverSettleMode.SECOND
    async with far.connect() as connection, connection.sender("q", rcv_settle_mode=second) as sender:
        sending = Call(nursery, sender.send, b"")
        await far.expect(Transfer)
        await far.links[0].dispose(Accepted(), settled=False)
        settled = await far.expect(Disposition)
        assert (settled.role, settled.first, settled.settled) == (Role.SENDER, 0, True)
        await sending.result()
        assert sender.unsettled == 0
        await far.links[0].dispose(Accepted())  # settled by the peer: there is nothing to answer
        assert await far.rest() == []


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        ([(Accepted(), True)], Accepted()),
        ([(None, True)], Modified(delivery_failed=True)),
        ([(Received(section_number=0, section_offset=0), True)], Modified(delivery_failed=True)),
        ([(Received(section_number=0, section_offset=0), False), (Released(), True)], Released()),
        ([(Received(section_number=0, section_offset=0), False), (None, True)], Modified(delivery_failed=True)),
        ([(REJECTED, False)], REJECTED),
    ],
)
@pytest.mark.parametrize("early", [False, True])
async def test_the_outcome_is_what_the_receiver_said_when_it_was_decided(
    said: list[tuple[DeliveryState | None, bool]],
    outcome: Outcome,
    early: bool,
    nursery: trio.Nursery,
    autojump_clock: MockClock,
) -> None:
    far = Counterpart(nursery, credit=10, window=1, max_frame_size=512)
    async with far.connect() as connection, connection.sender("q") as sender:
        sending = Call(nursery, sender.transfer, b"x" * 600)
        await far.expect(Transfer)
        (link,) = far.links
        if early:
            # A receiver may decide before it has the whole message.
            for state, settled in said:
                await link.dispose(state, settled=settled)
            await wait_all_tasks_blocked()
            assert not sending.is_done
        await link.flow(window=10)
        sent = await sending.result()
        if not early:
            for state, settled in said:
                assert not sent.is_decided
                await link.dispose(state, settled=settled)
        assert await sent.outcome() == outcome
        assert sender.unsettled == 0


async def test_one_disposition_decides_many_and_says_nothing_of_others(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery, credit=10)
    async with far.connect() as connection, connection.sender("q") as sender:
        sent = [await sender.transfer(b"") for _ in range(6)]
        (link,) = far.links
        await link.dispose(Accepted(), 100, 200)
        await link.dispose(Released(), 1, 3)
        await wait_all_tasks_blocked()
        assert [each.is_decided for each in sent] == [False, True, True, True, False, False]
        await link.dispose(Accepted(), 0, 2**31 - 1)
        outcomes = [await each.outcome() for each in sent]
        assert outcomes == [Accepted(), *[Released()] * 3, Accepted(), Accepted()]


async def test_an_attach_says_what_was_asked_for(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    far = Counterpart(nursery)
    async with far.connect() as connection:
        async with connection.sender("q"):
            assert far.links[0].attach.target == Target(address="q")
        sender = connection.sender(
            None,
            name="mine",
            target=Target(address="q", capabilities=(Symbol("queue"),)),
            snd_settle_mode=SenderSettleMode.SETTLED,
            rcv_settle_mode=ReceiverSettleMode.SECOND,
            desired_capabilities=["x-opt"],
            properties={"p": 1},
        )
        async with sender:
            attach = far.links[1].attach
            assert isinstance(attach, Attach)
            assert (attach.name, attach.role, attach.initial_delivery_count) == ("mine", Role.SENDER, 0)
            assert attach.target == Target(address="q", capabilities=(Symbol("queue"),))
            assert (attach.snd_settle_mode, attach.rcv_settle_mode) == (
                SenderSettleMode.SETTLED,
                ReceiverSettleMode.SECOND,
            )
            assert (attach.desired_capabilities, attach.properties) == (("x-opt",), {"p": 1})
            assert sender.address == "q"
        for wrong in ({"desired_capabilities": ["é"]}, {"properties": {"é": 1}}):
            with pytest.raises(CommandError, match="symbol"):
                connection.sender("q", **wrong)
