"""Receivers: deliveries, their settlement, and the tasks that share them (§2.6.12)."""

from __future__ import annotations

import gc
import math
from typing import TYPE_CHECKING
from weakref import ref

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.errors import CommandError, LinkDetachedError
from amqpmesh.router.amqp.standard.definitions import LinkCondition, ReceiverSettleMode, Role, SenderSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Rejected, Released
from amqpmesh.router.amqp.standard.messaging import Source, TerminusDurability
from amqpmesh.router.amqp.standard.performatives import Disposition, Transfer
from amqpmesh.router.client.links import client_connection
from amqpmesh.router.client.links.attach_options import MAX_MESSAGE_SIZE
from amqpmesh.router.logs.event_log import event_of, fields_of
from amqpmesh.router.message.content import Message
from tests.support.peers.library_client import enter
from tests.support.peers.scripted_server import Counterpart
from tests.support.tasks.calls import Call

if TYPE_CHECKING:
    from amqpmesh.router.client.factory import LinkFactory

PAYLOAD = Message(b"").encode()


def numbered(number: int) -> bytes:
    return Message(number).encode()


# ------------------------------------------------------------------------------------------- credit, with a real sender


@pytest.mark.parametrize("credit", [1, 2, 5])
async def test_a_receiver_that_stops_deciding_stops_its_senders(
    credit: int, factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with factory.receiver("q", credit=credit) as receiver, factory.sender("q") as sender:
        calls = [Call(nursery, sender.send, number) for number in range(20)]
        held = [await receiver.receive() for _ in range(credit)]
        with trio.move_on_after(60):
            await receiver.receive()
            raise AssertionError("it has more than it has credit for")
        assert (receiver.undecided, receiver.credit) == (credit, 0)
        # Nor does the router take messages that it could not pass on, except one of each sending link.
        assert sender.waiting >= len(calls) - credit - 1
        held.pop().accept()
        held.append(await receiver.receive())
        with trio.move_on_after(60):
            await receiver.receive()
            raise AssertionError("one decision is one delivery")
        for delivery in held:
            delivery.accept()
        for _ in range(len(calls) - credit - 1):
            (await receiver.receive()).accept()
        for call in calls:
            await call.result()
        assert receiver.undecided == 0


async def test_a_settled_delivery_is_decided_when_it_is_taken(factory: LinkFactory, autojump_clock: MockClock) -> None:
    async with factory.receiver("q", credit=3) as receiver, factory.sender("q") as sender:
        for number in range(3):
            await sender.send(number, settled=True)
        await wait_all_tasks_blocked()
        assert (receiver.undecided, receiver.credit) == (3, 0)
        for number in range(3):
            delivery = await receiver.receive()
            assert (delivery.message.body, delivery.is_settled) == (number, True)
        assert receiver.undecided == 0
        for number in range(10):
            await sender.send(number, settled=True)
            assert (await receiver.receive()).message.body == number
        # It may still be decided; the sender is not told.
        await sender.send(b"", settled=True)
        delivery = await receiver.receive()
        assert not delivery.accept()
        with pytest.raises(CommandError, match="decided"):
            delivery.accept()


async def test_tasks_that_share_a_receiver_have_each_delivery_once(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    seen: list[tuple[int, int]] = []

    async def work(worker: int) -> None:
        async for delivery in receiver:
            async with delivery as message:
                seen.append((worker, message.body))
                await trio.sleep(1 + worker % 3)

    async with factory.receiver("q", credit=8) as receiver, factory.sender("q") as sender:
        workers = [Call(nursery, work, worker) for worker in range(5)]
        calls = [Call(nursery, sender.send, number) for number in range(60)]
        for call in calls:
            await call.result()
    # A receiver that is left ends the loops, without an error.
    for each in workers:
        await each.result()
    assert sorted(number for _, number in seen) == list(range(60))
    assert {worker for worker, _ in seen} == set(range(5))


async def test_the_caller_that_waits_first_gets_the_first_delivery(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async def ask_when_one_has_come() -> int:
        while receiver.undecided == 0:
            await trio.lowlevel.checkpoint()
        return await take()

    async def take() -> int:
        async with await receiver.receive() as message:
            assert isinstance(message.body, int)
            return message.body

    async with factory.receiver("q") as receiver, factory.sender("q") as sender:
        for _ in range(20):
            first = Call(nursery, take)
            await wait_all_tasks_blocked()
            second = Call(nursery, ask_when_one_has_come)
            await sender.transfer(1)
            assert await first.result() == 1
            await sender.transfer(2)
            assert await second.result() == 2


async def test_what_is_there_is_taken_without_a_wait_but_not_from_a_task_that_waits(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with factory.receiver("q") as receiver, factory.sender("q") as sender:
        with pytest.raises(trio.WouldBlock):
            receiver.receive_nowait()
        for number in range(3):
            await sender.transfer(number)
        await wait_all_tasks_blocked()
        taken = [receiver.receive_nowait() for _ in range(3)]
        assert [each.message.body for each in taken] == [0, 1, 2]
        assert all(each.accept() for each in taken)
        waiting = Call(nursery, receiver.receive)
        await wait_all_tasks_blocked()
        await sender.transfer(3)
        while receiver.undecided == 0:
            await trio.lowlevel.checkpoint()
        with pytest.raises(trio.WouldBlock):
            receiver.receive_nowait()
        last = await waiting.result()
        assert last.message.body == 3
        last.accept()
    with pytest.raises(CommandError, match="left"):
        receiver.receive_nowait()


async def test_a_malformed_message_is_not_taken_without_a_wait_either(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    async with far.connect() as connection, connection.receiver("q", credit=10) as receiver:
        for payload in (b"no message", numbered(1)):
            await far.links[0].send(payload)
        await wait_all_tasks_blocked()
        assert receiver.receive_nowait().message.body == 1


async def test_a_dynamic_node_without_an_address_is_none(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    far = Counterpart(nursery, source=Source(dynamic=True))
    async with far.connect() as connection:
        for link in (connection.receiver(None), connection.requester("q")):
            with pytest.raises(LinkDetachedError, match="no address of a dynamic node"):
                await enter(link)
        await wait_all_tasks_blocked()
        assert [link for link in far.links if link.is_attached] == []


async def test_a_dynamic_node_has_an_address_to_send_to(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with factory.receiver(None) as receiver:
        assert receiver.address is not None
        async with factory.sender(receiver.address) as sender:
            sending = Call(nursery, sender.send, "hello")
            async with await receiver.receive() as message:
                assert message.body == "hello"
            await sending.result()


async def test_a_receiver_is_used_between_its_entry_and_its_exit(
    factory: LinkFactory, autojump_clock: MockClock
) -> None:
    receiver, manual = factory.receiver("q"), factory.receiver("q", credit=0)
    for call in (receiver.receive, receiver.__anext__, manual.drain):
        with pytest.raises(CommandError, match="async with"):
            await call()
    with pytest.raises(CommandError, match="async with"):
        manual.flow(1)
    async with receiver, manual:
        with pytest.raises(CommandError, match="once"):
            await receiver.__aenter__()
    for call in (receiver.receive, manual.drain):
        with pytest.raises(CommandError, match="left"):
            await call()
    async for _ in receiver:
        raise AssertionError("it was left")


# -------------------------------------------------------------------------------------------------------- what may come


async def test_frames_are_put_together_and_come_in_their_order(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    async with far.connect() as connection, connection.receiver("q", credit=1000) as receiver:
        (link,) = far.links
        for number in range(20):
            payload = numbered(number)
            await link.send(*(payload[at : at + 1] for at in range(len(payload))))
            delivery = await receiver.receive()
            assert (delivery.message.body, delivery.payload) == (number, numbered(number))
            assert delivery.tag == number.to_bytes(4, "big")
            assert delivery.tag.hex() in repr(delivery)


async def test_outcomes_of_deliveries_that_wait_are_told_together(
    nursery: trio.Nursery, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_connection, "BATCH_TIME", math.inf)  # seconds of this machine
    far = Counterpart(nursery)
    async with far.connect() as connection, connection.receiver("q", credit=60) as receiver:
        for number in range(60):
            await far.links[0].send(numbered(number))
        await wait_all_tasks_blocked()
        await far.rest()
        for _ in range(50):
            (await receiver.receive()).accept()
        await wait_all_tasks_blocked()
        said = [each for each in await far.rest() if isinstance(each, Disposition)]
        assert len(said) < 10
        assert sum((each.first if each.last is None else each.last) - each.first + 1 for each in said) == 50
        for _ in range(5):
            # One that waits for something else tells each outcome at once, whatever is still to be decided.
            (await receiver.receive()).accept()
            await wait_all_tasks_blocked()
            assert len([each for each in await far.rest() if isinstance(each, Disposition)]) == 1


@pytest.mark.parametrize("payload", [b"no message", b"\x00\x53\x75", b"\x00\x53\x75\xa0\x05abc", PAYLOAD + PAYLOAD[:3]])
@pytest.mark.parametrize("settled", [False, True])
async def test_a_malformed_message_is_rejected_and_the_next_one_comes(
    payload: bytes, settled: bool, nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    far = Counterpart(nursery)
    async with far.connect() as connection, connection.receiver("q", credit=2, name="mine") as receiver:
        (link,) = far.links
        waiting = Call(nursery, receiver.receive)
        for _ in range(10):
            await wait_all_tasks_blocked()
            await link.send(payload, settled=settled)
        await wait_all_tasks_blocked()
        await link.send(numbered(7))
        assert (await waiting.result()).message.body == 7
        said = [each for each in await far.rest() if isinstance(each, Disposition)]
        assert bool(said) != settled
        for each in said:
            assert each.settled
            assert isinstance(each.state, Rejected)
            assert each.state.error is not None
            assert each.state.error.condition == "amqp:decode-error"
        told = [fields_of(record) for record in caplog.records if event_of(record) == "message rejected"]
        assert told
        for fields in told:
            assert fields.pop("reason").startswith("amqp:decode-error")
            assert fields == {"peer": "host", "link": "mine", "address": "q"}
        assert receiver.undecided == 1


async def test_an_empty_message_is_one(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    """Receive the message of a peer that omits every section."""
    far = Counterpart(nursery)
    async with far.connect() as connection, connection.receiver("q") as receiver:
        await far.links[0].send(b"")
        assert (await receiver.receive()).message.body is None


async def test_another_message_format_is_handed_out_as_it_came_if_it_is_asked_for(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    async with far.connect() as connection, connection.receiver("q", any_format=True) as receiver:
        await far.links[0].send(b"whatever", b" it is", message_format=0x1234)
        delivery = await receiver.receive()
        assert (delivery.message_format, delivery.payload) == (0x1234, b"whatever it is")
        with pytest.raises(CommandError, match="message-format"):
            _ = delivery.message
        with pytest.raises(CommandError, match="message-format"):
            async with delivery:
                raise AssertionError("there is no message")
        with pytest.raises(CommandError, match="message-format"):
            await delivery.reply(b"")
        assert delivery.accept()


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("settled", [False, True])
async def test_another_message_format_is_rejected_if_it_is_not_asked_for(
    streaming: bool, settled: bool, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    async with far.connect() as connection, connection.receiver("q", credit=2, streaming=streaming) as receiver:
        (link,) = far.links
        for _ in range(2 * link.window):
            assert link.window >= 2
            await link.send(b"whatever", b" it is", message_format=0x1234, settled=settled)
            await wait_all_tasks_blocked()
        assert receiver.undecided == 0
        await link.send(numbered(7))
        delivery = await receiver.receive()
        assert (await delivery.read()).body == 7
        delivery.accept()
        *said, accepted = [each for each in await far.rest() if isinstance(each, Disposition)]
        assert accepted.state == Accepted()
        assert bool(said) != settled
        for each in said:
            assert each.settled
            assert isinstance(each.state, Rejected)
            assert each.state.error is not None
            assert each.state.error.condition == "amqp:not-implemented"


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_message_of_too_many_values_is_rejected_and_the_next_one_comes(
    nursery: trio.Nursery, autojump_clock: MockClock, streaming: bool
) -> None:
    far = Counterpart(nursery)
    async with (
        far.connect() as connection,
        connection.receiver("q", streaming=streaming, max_values=300) as receiver,
        connection.receiver("any", max_values=0) as unbounded,
    ):
        link, open_link = far.links
        many = Message(b"x", application_properties={f"{number}": number for number in range(200)}).encode()
        await link.send(many)
        await link.send(numbered(7))
        delivery = await receiver.receive()
        assert (await delivery.read()).body == 7
        await open_link.send(many)
        assert len((await unbounded.receive()).message.application_properties) == 200
        (rejected,) = [each for each in await far.rest() if isinstance(each, Disposition)]
        assert isinstance(rejected.state, Rejected)
        assert rejected.state.error is not None
        assert rejected.state.error.condition == "amqp:resource-limit-exceeded"


async def test_an_aborted_delivery_was_never_there(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    far = Counterpart(nursery)
    async with far.connect() as connection, connection.receiver("q", credit=2) as receiver:
        (link,) = far.links
        waiting = Call(nursery, receiver.receive)
        for number in range(10):
            await wait_all_tasks_blocked()
            if number:
                await link.send(PAYLOAD, PAYLOAD, more=True, settled=bool(number % 2))
            await link.send(b"", aborted=True)
        await wait_all_tasks_blocked()
        assert receiver.undecided == 0
        await link.send(numbered(7))
        assert (await waiting.result()).message.body == 7
        assert await far.rest() == []


async def test_a_message_that_is_too_large_costs_its_sender_the_link(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    async with far.connect() as connection, connection.receiver("q", max_message_size=1000) as receiver:
        (link,) = far.links
        assert link.attach.max_message_size == 1000
        await link.send(numbered(7))
        await link.send(b"x" * 600, b"x" * 401)
        assert (await receiver.receive()).message.body == 7
        with pytest.raises(LinkDetachedError) as raised:
            await receiver.receive()
        assert raised.value.error is not None
        assert raised.value.error.condition == LinkCondition.MESSAGE_SIZE_EXCEEDED
        assert connection.is_connected


# ----------------------------------------------------------------------------------------------------------- settlement


async def test_with_mode_second_the_sender_has_the_last_word(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    far = Counterpart(nursery)
    second = ReceiverSettleMode.SECOND
    async with far.connect() as connection, connection.receiver("q", credit=1, rcv_settle_mode=second) as receiver:
        (link,) = far.links
        await link.send(PAYLOAD)
        delivery = await receiver.receive()
        settled = Call(nursery, delivery.settled)
        assert delivery.accept()
        said = await far.expect(Disposition)
        assert (said.role, said.first, said.settled, said.state) == (Role.RECEIVER, 0, False, Accepted())
        assert not settled.is_done
        # Credit is for undecided deliveries, and this one is decided.
        assert receiver.undecided == 0
        await link.send(PAYLOAD, rcv_settle_mode=ReceiverSettleMode.FIRST)
        first = await receiver.receive()
        assert first.release()
        said = await far.expect(Disposition)
        assert (said.first, said.settled, said.state) == (1, True, Released())
        assert await first.settled()
        await link.dispose(Accepted(), 0)
        assert await settled.result()
        assert await far.rest() == []


async def test_with_mode_second_nothing_is_kept_that_the_sender_has_settled(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    second = ReceiverSettleMode.SECOND
    async with far.connect() as connection:
        async with connection.receiver("q", credit=0, rcv_settle_mode=second) as receiver:
            (link,) = far.links
            receiver.flow(1)
            await wait_all_tasks_blocked()
            await link.send(PAYLOAD)
            delivery = await receiver.receive()
            delivery.accept()
            await far.expect(Disposition)
            await link.dispose(Accepted(), 0)
            assert await delivery.settled()
            settled_at = trio.current_time()
        assert trio.current_time() == settled_at, "leaving waits for nothing that has come"


async def test_a_delivery_may_be_settled_by_its_last_frame(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    far = Counterpart(nursery)
    async with far.connect() as connection, connection.receiver("q", credit=2) as receiver:
        (link,) = far.links
        for number in range(10):
            payload = numbered(number)
            await link.send(payload[:2], more=True)
            await link.send(payload[2:], settled=True)
            delivery = await receiver.receive()
            assert (delivery.message.body, delivery.is_settled) == (number, True)
            assert await delivery.settled()
        assert receiver.undecided == 0
        left_at = trio.current_time()
    assert trio.current_time() - left_at < 0.5  # leaving has nothing to wait for
    assert await far.rest() == []


async def test_a_sender_may_settle_a_delivery_before_the_receiver_decides(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    async with far.connect() as connection, connection.receiver("q", credit=2) as receiver:
        (link,) = far.links
        await link.send(PAYLOAD)
        await link.send(PAYLOAD)
        taken = await receiver.receive()
        await link.dispose(None, 0, 1)
        assert await taken.settled()
        assert taken.is_settled
        assert not taken.accept()
        waiting = await receiver.receive()
        assert waiting.is_settled
        assert receiver.undecided == 0
        for _ in range(5):  # more than the credit: the settled deliveries use none
            await link.send(PAYLOAD)
            (await receiver.receive()).accept()
            await far.expect(Disposition)


async def test_what_is_settled_by_both_or_needs_no_settling_is_kept_by_nobody(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    kept = []
    async with far.connect() as connection, connection.receiver("q") as receiver:
        (link,) = far.links
        for end in ("accepted", "settled by the sender", "sent settled", "settled by its last frame"):
            await link.send(PAYLOAD[:2], more=True, settled=end == "sent settled")
            number = await link.send(PAYLOAD[2:], settled=end.endswith("frame") or None)
            delivery = await receiver.receive()
            kept.append((end, ref(delivery)))
            if end == "accepted":
                delivery.accept()
            elif end == "settled by the sender":
                await link.dispose(None, number)
            del delivery
        await wait_all_tasks_blocked()
        gc.collect()
        assert [end for end, delivery in kept if delivery() is not None] == []


async def test_an_attach_says_what_was_asked_for(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    far = Counterpart(nursery)
    async with far.connect() as connection:
        async with connection.receiver("q"):
            attach = far.links[0].attach
            assert (attach.source, attach.max_message_size) == (Source(address="q"), MAX_MESSAGE_SIZE)
        async with connection.receiver("q", streaming=True, max_message_size=0):
            assert far.links[1].attach.max_message_size is None
        async with connection.receiver(None):
            assert far.links[2].attach.source == Source(dynamic=True)
        receiver = connection.receiver(
            None,
            name="mine",
            source=Source(address="r", durable=TerminusDurability.CONFIGURATION),
            snd_settle_mode=SenderSettleMode.SETTLED,
            rcv_settle_mode=ReceiverSettleMode.SECOND,
            desired_capabilities=["x-opt"],
            properties={"p": 1},
        )
        async with receiver:
            attach = far.links[3].attach
            assert (attach.name, attach.role) == ("mine", Role.RECEIVER)
            assert attach.source == Source(address="r", durable=TerminusDurability.CONFIGURATION)
            assert (attach.snd_settle_mode, attach.rcv_settle_mode) == (
                SenderSettleMode.SETTLED,
                ReceiverSettleMode.SECOND,
            )
            assert (attach.desired_capabilities, attach.properties) == ((Symbol("x-opt"),), {"p": 1})
            assert receiver.address == "r"
    assert Transfer not in {type(each) for each in await far.rest()}


async def test_credit_by_hand_comes_back_once_from_what_nobody_saw(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    async with far.connect() as connection, connection.receiver("q", credit=0, streaming=True) as receiver:
        receiver.flow(1)
        await wait_all_tasks_blocked()
        (link,) = far.links
        for garbage in (b"garbage", PAYLOAD + b"garbage"):
            await link.send(garbage, more=True)
            await wait_all_tasks_blocked()
            assert receiver.credit == 1
            await link.send(b"", aborted=True)
            await wait_all_tasks_blocked()
            assert receiver.credit == 1
        await link.send(PAYLOAD)
        await receiver.receive()
        assert receiver.credit == 0
