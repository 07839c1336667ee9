"""Peers that refuse a link by ending its session, and sources that lack some outcomes (§2.5.3, §3.5.3)."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.errors import CommandError, LinkDetachedError
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error
from amqpmesh.router.amqp.standard.delivery_states import Modified, Released
from amqpmesh.router.amqp.standard.messaging import Data, Source
from amqpmesh.router.amqp.standard.performatives import Attach, Disposition, End, Transfer
from tests.support.peers.scripted_server import Counterpart
from tests.support.tasks.calls import Call

HELLO = encode_composite(Data(value=b"hello"))
MISSING = Error(condition=AmqpCondition.NOT_FOUND, description="there is no such node")
FEW = (Symbol("amqp:accepted:list"), Symbol("amqp:rejected:list"), Symbol("amqp:released:list"))
ALL = (*FEW, Symbol("amqp:modified:list"))


@pytest.mark.parametrize("reconnect", [False, True])
@pytest.mark.parametrize("kind", ["sender", "receiver"])
async def test_a_session_that_ends_before_its_link_is_attached_refuses_that_link_and_no_other(
    kind: str, reconnect: bool, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    peer = Counterpart(nursery, credit=10)
    async with peer.connect(reconnect=reconnect) as connection, connection.sender("q") as sender:
        peer.mute = {Attach, End}
        refused = Call(nursery, getattr(connection, kind)("missing").__aenter__)
        await peer.expect(Attach)
        await peer.peer.write(End(error=MISSING), channel=peer.channel)
        failure = await refused.failure()
        assert isinstance(failure, LinkDetachedError)
        assert failure.error == MISSING
        await peer.expect(End)
        await trio.sleep(60)
        assert await peer.rest() == []  # no second attempt
        peer.mute = set()
        sent = Call(nursery, sender.send, b"alive")
        transfer = await peer.expect(Transfer)
        await peer.links[0].accept(transfer.delivery_id or 0)
        await sent.result()


async def test_each_link_has_a_session_as_long_as_the_peer_has_channels(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    peer = Counterpart(nursery, channel_max=1)
    async with (
        peer.connect() as connection,
        connection.sender("a"),
        connection.sender("b"),
        connection.sender("c"),
    ):
        assert [link.channel for link in peer.links[:2]] == [0, 1]
        assert peer.links[2].channel in (0, 1)


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [(FEW, Released()), (ALL, Modified(delivery_failed=True)), ((), Modified(delivery_failed=True))],
)
async def test_what_nobody_decided_is_told_by_an_outcome_that_the_source_has(
    outcomes: tuple[Symbol, ...], expected: object, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    peer = Counterpart(nursery, attach={"source": Source(address="q", outcomes=outcomes)})
    async with peer.connect() as connection:
        async with connection.receiver("q") as receiver:
            for _ in range(2):
                await peer.links[0].send(HELLO)
            failed = await receiver.receive()
            await receiver.receive()  # taken, and not decided when the receiver is left
            with pytest.raises(ZeroDivisionError):
                async with failed:
                    raise ZeroDivisionError
        told = [await peer.expect(Disposition)]
        if told[0].last in (None, 0):
            told.append(await peer.expect(Disposition))
    assert {disposition.state for disposition in told} == {expected}


async def test_modify_says_that_the_source_does_not_have_it(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    peer = Counterpart(nursery, attach={"source": Source(address="q", outcomes=FEW)})
    async with peer.connect() as connection, connection.receiver("q") as receiver:
        await peer.links[0].send(HELLO)
        delivery = await receiver.receive()
        with pytest.raises(CommandError):
            delivery.modify(undeliverable_here=True)
        await wait_all_tasks_blocked()
        assert await peer.rest() == []
        assert delivery.release()
        assert (await peer.expect(Disposition)).state == Released()
