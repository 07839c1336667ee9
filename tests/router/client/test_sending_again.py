"""Messages of exactly-once senders that are certain to be with nobody, and wait to be sent again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import pytest
import trio
from trio.testing import MockClock

from amqpmesh.router.amqp.errors import InDoubtError, LinkDetachedError
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error, ReceiverSettleMode, Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted, DeliveryState, Released
from amqpmesh.router.amqp.standard.messaging import Target, TerminusExpiryPolicy
from amqpmesh.router.amqp.standard.performatives import Attach, Detach, Disposition, End, Transfer
from amqpmesh.router.endpoint_setup import WHOLE_MAP
from amqpmesh.router.message.outcomes import ReleasedError
from tests.support.peers.library_client import Host, Roads
from tests.support.peers.scripted_stream import credit
from tests.support.tasks.calls import Call

#: Fields of the attach of a router that keeps its target.
KEEPING: Final[Mapping[str, object]] = {
    "target": Target(address="q", expiry_policy=TerminusExpiryPolicy.CONNECTION_CLOSE, timeout=30),
    "rcv_settle_mode": ReceiverSettleMode.SECOND,
    "offered_capabilities": (WHOLE_MAP,),
}


async def attached(host: Host, unsettled: Mapping[bytes, DeliveryState | None] | None = None, **session: int) -> Attach:
    """Answer the client's attach as a router that keeps its target. Args: session: fields of the `begin`.

    Returns: the client's.
    """
    await host.open()
    await host.begin(**session)
    return await host.attach(unsettled=unsettled, **KEEPING)


async def release(host: Host) -> None:
    """Release the next message, and give no credit for another."""
    await host.write(replace(credit(1), next_incoming_id=0), channel=host.channel)
    transfer = await host.expect(Transfer)
    assert transfer.delivery_id is not None
    released = Disposition(role=Role.RECEIVER, first=transfer.delivery_id, settled=True, state=Released())
    await host.write(released, channel=host.channel)


async def leave(host: Host) -> None:
    """Answer the end of the session and of the connection."""
    await host.expect(End)
    await host.write(End(), channel=host.channel)
    await host.answer_close()


async def end(host: Host) -> None:
    """Answer the end of the link, of the session and of the connection."""
    await host.expect(Detach)
    await host.write(Detach(handle=0, closed=True), channel=host.channel)
    await leave(host)


async def test_a_released_message_is_sent_by_the_next_connection(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    maps: list[object] = []
    transfers: list[Transfer] = []

    async def first(stream: trio.abc.Stream) -> None:
        host = Host(stream)
        await attached(host)
        await release(host)
        roads.lead_to(second)
        await trio.sleep(1)
        await trio.aclose_forcefully(stream)

    async def second(stream: trio.abc.Stream) -> None:
        host = Host(stream)
        attach = await attached(host)
        maps.append(None if attach.unsettled is None else dict(attach.unsettled.items()))
        await host.write(replace(credit(1), next_incoming_id=0), channel=host.channel)
        transfers.append(await host.expect(Transfer))
        accepted = Disposition(role=Role.RECEIVER, first=0, state=Accepted())
        await host.write(accepted, channel=host.channel)
        assert (await host.expect(Disposition)).settled
        await end(host)

    roads = Roads(nursery)
    roads.lead_to(first)
    async with (
        roads.connect(reconnect=True, mechanisms=()) as connection,
        connection.sender("q", exactly_once=True) as sender,
    ):
        await Call(nursery, sender.send, "hello").result()
    assert maps == [{}], "the one before was settled by its outcome"
    (transfer,) = transfers
    assert not transfer.resume


async def test_a_released_message_that_cannot_be_sent_again_was_released(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async def serve(stream: trio.abc.Stream) -> None:
        host = Host(stream)
        await attached(host)
        await release(host)
        await trio.sleep(1)
        error = Error(condition=AmqpCondition.RESOURCE_DELETED)
        await host.write(Detach(handle=0, closed=True, error=error), channel=host.channel)
        await host.expect(Detach)
        await leave(host)

    roads = Roads(nursery)
    roads.lead_to(serve)
    async with roads.connect(mechanisms=()) as connection:
        with pytest.raises(LinkDetachedError):
            async with connection.sender("q", exactly_once=True) as sender:
                call = Call(nursery, sender.send, "hello")
                with pytest.raises(ReleasedError):
                    await call.result()
                await sender.send("more")


@pytest.mark.parametrize(("has_part", "error"), [(False, ReleasedError), (True, InDoubtError)])
async def test_a_message_that_a_peer_has_become_too_small_for_is_ended(
    nursery: trio.Nursery, autojump_clock: MockClock, has_part: bool, error: type[Exception]
) -> None:
    async def first(stream: trio.abc.Stream) -> None:
        host = Host(stream)
        await attached(host)
        await host.write(replace(credit(1), next_incoming_id=0), channel=host.channel)
        tag = (await host.expect(Transfer)).delivery_tag
        assert tag is not None
        roads.lead_to(partial(second, tag))
        await trio.aclose_forcefully(stream)

    async def second(tag: bytes, stream: trio.abc.Stream) -> None:
        host = Host(stream)
        await host.open()
        await host.begin()
        await host.attach(**{**KEEPING, "unsettled": {tag: None} if has_part else {}, "max_message_size": 100})
        await host.write(replace(credit(9), next_incoming_id=0), channel=host.channel)
        await end(host)

    roads = Roads(nursery)
    roads.lead_to(first)
    async with (
        roads.connect(reconnect=True, mechanisms=()) as connection,
        connection.sender("q", exactly_once=True) as sender,
    ):
        with pytest.raises(error):
            await Call(nursery, sender.send, "x" * 1000).result()
