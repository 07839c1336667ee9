"""Receivers: credit for undecided deliveries, a window for deliveries not taken yet (§2.6.7, §2.5.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.amqp.standard.performatives import Flow
from amqpmesh.router.message.content import Message
from tests.support.peers.scripted_server import Counterpart
from tests.support.tasks.calls import Call

if TYPE_CHECKING:
    from amqpmesh.router.client.delivery import Delivery
    from amqpmesh.router.client.factory import LinkFactory
    from amqpmesh.router.client.receiver import Receiver

PAYLOAD = Message(b"").encode()


def numbered(number: int) -> bytes:
    return Message(number).encode()


# ------------------------------------------------------------------------------------------------------- credit by hand


async def test_credit_by_hand(factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async with factory.receiver("q", credit=0) as receiver, factory.sender("q") as sender:
        calls = []
        for number in range(5):
            calls.append(Call(nursery, sender.send, number))
            await wait_all_tasks_blocked()
        with trio.move_on_after(60):
            await receiver.receive()
            raise AssertionError("nobody gave credit")
        receiver.flow(1)
        receiver.flow(1)
        for number in range(2):
            delivery = await receiver.receive()
            assert delivery.message.body == number
            delivery.accept()  # gives no credit
        with trio.move_on_after(60):
            await receiver.receive()
            raise AssertionError("nobody gave credit")
        assert receiver.credit == 0
        receiver.flow(10)
        await receiver.drain()
        assert receiver.credit == 0
        for number in range(2, 5):
            delivery = await receiver.receive()
            assert delivery.message.body == number
            delivery.accept()
        for call in calls:
            await call.result()
        later = Call(nursery, sender.send, 5)
        with trio.move_on_after(60):
            await receiver.receive()
            raise AssertionError("the credit was used up")
        receiver.flow(1)
        (await receiver.receive()).accept()
        await later.result()


async def test_a_receiver_gives_its_credit_itself_or_has_it_given(
    factory: LinkFactory, autojump_clock: MockClock
) -> None:
    async with factory.receiver("q") as receiver, factory.receiver("r", credit=0) as manual:
        with pytest.raises(CommandError, match="credit=0"):
            receiver.flow(1)
        with pytest.raises(CommandError, match="credit=0"):
            await receiver.drain()
        for wrong in (-1, 2**31):
            with pytest.raises(CommandError, match="credit"):
                manual.flow(wrong)
            with pytest.raises(CommandError, match="credit"):
                factory.receiver("q", credit=wrong)
        manual.flow(2**31 - 1)
        with pytest.raises(CommandError, match="credit"):
            manual.flow(1)
        assert manual.credit == 2**31 - 1


async def test_a_drain_is_asked_for_once_and_only_if_there_is_credit(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    async with far.connect() as connection, connection.receiver("q", credit=0) as receiver:
        await receiver.drain()
        receiver.flow(3)
        await wait_all_tasks_blocked()
        draining = [Call(nursery, receiver.drain) for _ in range(2)]
        asked = [await far.expect(Flow) for _ in range(2)]
        assert [(flow.link_credit, flow.drain) for flow in asked] == [(3, False), (3, True)]
        await far.links[0].send(PAYLOAD)
        await wait_all_tasks_blocked()
        assert not any(call.is_done for call in draining)
        await far.links[0].flow(0, delivery_count=3)
        for call in draining:
            await call.result()
        assert receiver.credit == 0
        await receiver.receive()


async def test_credit_that_is_given_while_it_is_drained_ends_the_drain(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    async with far.connect() as connection, connection.receiver("q", credit=0) as receiver:
        receiver.flow(3)
        await wait_all_tasks_blocked()
        draining = Call(nursery, receiver.drain)
        await wait_all_tasks_blocked()
        receiver.flow(2)
        await draining.result()
        told = [await far.expect(Flow) for _ in range(3)]
        assert [(flow.link_credit, flow.drain) for flow in told] == [(3, False), (3, True), (5, False)]
        assert receiver.credit == 5


# -------------------------------------------------------------------------------------------------- credit, on the wire


async def test_credit_is_told_when_half_of_it_has_gathered(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    far = Counterpart(nursery)
    async with far.connect() as connection, connection.receiver("q", credit=10) as receiver:
        (link,) = far.links
        assert (await far.expect(Flow)).link_credit == 10
        flows = 0
        for number in range(100):
            assert link.limit - link.begun > 0, "the sender never stands still while everything is decided"
            await link.send(numbered(number))
            delivery = await receiver.receive()
            assert delivery.message.body == number
            delivery.accept()
            await wait_all_tasks_blocked()
            assert link.limit - link.begun <= 10
        assert await far.rest()  # the dispositions; the flows are counted by their credit
        flows = link.limit
        assert 100 < flows <= 110


async def test_credit_that_the_sender_uses_up_without_deliveries_is_given_again(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    async with far.connect() as connection, connection.receiver("q", credit=10) as receiver:
        (link,) = far.links
        await wait_all_tasks_blocked()
        await link.flow(0, delivery_count=10)
        await wait_all_tasks_blocked()
        assert link.limit == 20
        link.begun = 10
        await link.send(PAYLOAD)
        await receiver.receive()


@settings(max_examples=30)
@given(st.lists(st.sampled_from(["send", "send settled", "receive", "accept", "release", "abort"]), max_size=60))
def test_the_peer_can_never_send_more_than_is_undecided_allows(steps: list[str]) -> None:
    """Check after each step: undecided deliveries and the peer's credit together are at most the receiver's credit."""
    credit = 4

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            far = Counterpart(nursery)
            async with far.connect() as connection, connection.receiver("q", credit=credit) as receiver:
                (link,) = far.links
                await wait_all_tasks_blocked()
                ready = 0
                held: list[Delivery] = []
                for step in steps:
                    if step in ("send", "send settled") and link.limit > link.begun:
                        await link.send(PAYLOAD, settled=step == "send settled")
                        ready += 1
                    elif step == "abort" and link.limit > link.begun:
                        await link.send(PAYLOAD, more=True)
                        await link.send(b"", aborted=True)
                    elif step == "receive" and ready:
                        held.append(await receiver.receive())
                        ready -= 1
                    elif step in ("accept", "release") and held:
                        getattr(held.pop(0), step)()
                    await wait_all_tasks_blocked()
                    undecided = ready + sum(not each.is_settled for each in held)
                    assert receiver.undecided == undecided
                    assert undecided + (link.limit - link.begun) <= credit
                    # Nor does the sender stop without need.
                    assert link.limit > link.begun or undecided * 2 > credit
            nursery.cancel_scope.cancel()

    trio.run(run, clock=MockClock(autojump_threshold=0))


# ----------------------------------------------------------------------------------------------------------- the window

FRAME = 512


@pytest.mark.parametrize(("buffer", "window"), [(0, 4), (2048, 4), (5120, 10), (2**20, 2048)])
async def test_the_buffer_is_the_window_of_the_session(
    buffer: int, window: int, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    async with far.connect(max_frame_size=FRAME) as connection, connection.receiver("q", buffer=buffer):
        assert far.links[0].window == window


async def test_an_untaken_delivery_closes_the_window_and_taking_it_opens_it(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    async with far.connect(max_frame_size=FRAME) as connection, connection.receiver("q", buffer=8 * FRAME) as receiver:
        (link,) = far.links
        for _ in range(8):
            await link.send(PAYLOAD)
        await wait_all_tasks_blocked()
        assert link.window == 0
        held = [await receiver.receive() for _ in range(8)]
        await wait_all_tasks_blocked()
        # The program has them now; its credit limits their number.
        assert link.window >= 4
        assert receiver.undecided == len(held)


@settings(max_examples=30)
@given(st.lists(st.one_of(st.integers(0, 12 * FRAME), st.none()), max_size=30), st.integers(1, 12).map(FRAME.__mul__))
def test_no_more_is_held_than_the_buffer_and_one_message(steps: list[int | None], buffer: int) -> None:
    """Take steps. A number: the peer sends a message of that size as fast as it may. None: the program takes one."""

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            far = Counterpart(nursery)
            connection = far.connect(max_frame_size=FRAME)
            async with connection, connection.receiver("q", buffer=buffer, credit=1000) as receiver:
                await hold(far, receiver)
            nursery.cancel_scope.cancel()

    async def hold(far: Counterpart, receiver: Receiver) -> None:
        (link,) = far.links
        window = max(4, buffer // FRAME)
        frames: list[tuple[bytes, bool]] = []
        sizes: list[int] = []
        sent = taken = whole = 0
        for step in [*steps, *[None] * len(steps)]:
            if step is not None:
                payload = Message(bytes(step)).encode()
                cut = [payload[at : at + FRAME - 64] for at in range(0, len(payload), FRAME - 64)]
                frames += [(piece, piece is not cut[-1]) for piece in cut]
                sizes.append(len(payload))
            while frames and link.window > 0:
                piece, more = frames.pop(0)
                await link.send(piece, more=more)
                sent += len(piece)
                whole += not more
                await wait_all_tasks_blocked()
                assert link.window <= window
                assert sent - taken <= window * FRAME + max(sizes)
            if step is None and whole:
                delivery = await receiver.receive()
                taken += len(delivery.payload)
                whole -= 1
                delivery.accept()
                await wait_all_tasks_blocked()
        assert not frames, "everything arrives if everything is taken"
        assert taken == sum(sizes)

    trio.run(run, clock=MockClock(autojump_threshold=0))
