"""Certainty of a client about a peer that it resumes with: only what the peer has promised is certain (§2.6.13)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh.router.amqp.errors import InDoubtError, LinkDetachedError
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode
from amqpmesh.router.amqp.standard.messaging import Source, TerminusExpiryPolicy
from amqpmesh.router.amqp.standard.performatives import Transfer
from amqpmesh.router.config.file import ListenerConfig, RouterConfig
from amqpmesh.router.config.resumption import ResumptionConfig
from amqpmesh.router.message.outcomes import ModifiedError, ReleasedError
from amqpmesh.router.runtime.router import Router
from tests.router.client.test_resuming_receiver import until_attached
from tests.router.client.test_sending_again import KEEPING, attached, end
from tests.support.peers.library_client import Host, Roads, enter
from tests.support.peers.scripted_stream import credit
from tests.support.tasks.calls import Call

KEPT = Source(address="q", expiry_policy=TerminusExpiryPolicy.CONNECTION_CLOSE, timeout=30)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, ReleasedError),
        ({"rcv_settle_mode": ReceiverSettleMode.FIRST}, InDoubtError),
        ({"offered_capabilities": ()}, InDoubtError),
    ],
    ids=["certain", "mode first", "a map that may lack some"],
)
async def test_what_a_map_lacks_was_never_there_only_in_mode_second_and_if_the_map_is_whole(
    nursery: trio.Nursery, autojump_clock: MockClock, changed: Mapping[str, object], expected: type[Exception]
) -> None:
    async def first(stream: trio.abc.Stream) -> None:
        host = Host(stream)
        await attached(host)
        await host.write(replace(credit(1), next_incoming_id=0), channel=host.channel)
        await host.expect(Transfer)
        roads.lead_to(second)
        await trio.aclose_forcefully(stream)

    async def second(stream: trio.abc.Stream) -> None:
        host = Host(stream)
        await host.open()
        await host.begin()
        await host.attach(unsettled={}, **{**KEEPING, **changed})
        await end(host)

    roads = Roads(nursery)
    roads.lead_to(first)
    async with (
        roads.connect(reconnect=True, mechanisms=()) as connection,
        connection.sender("q", resume=30.0, rcv_settle_mode=ReceiverSettleMode.SECOND) as sender,
    ):
        call = Call(nursery, sender.send, "hello")
        with pytest.raises(expected):
            await call.result()


@pytest.mark.parametrize("count", [3, 200], ids=["a map", "a part of a map"])
async def test_what_a_router_knows_nothing_of_is_not_settled(
    nursery: trio.Nursery, autojump_clock: MockClock, count: int
) -> None:
    listener = ListenerConfig(url="amqp://127.0.0.1:0", max_frame_size=1024)
    config = RouterConfig(resumption=ResumptionConfig(anonymous=True))
    async with Router(config) as router:
        roads = Roads(nursery)
        roads.lead_to(router, listener=listener)
        async with (
            roads.connect(reconnect=True) as connection,
            connection.receiver("q", resume=30.0, credit=0) as receiver,
            router.sender("q") as sender,
        ):
            receiver.flow(count)
            calls = [Call(nursery, sender.send, number) for number in range(count)]
            came = [await receiver.receive() for _ in calls]
            await roads.cut()
            roads.close()
            await wait_all_tasks_blocked()
            for each in came:
                each.accept()
            for call in calls:  # once the receiver's time is over
                with pytest.raises(ModifiedError):
                    await call.result()
            roads.lead_to(router, listener=listener)
            await until_attached(receiver)
            assert not any([await each.settled() for each in came])


@pytest.mark.parametrize("is_sender", [True, False], ids=["sender", "receiver"])
async def test_no_exactly_once_link_is_of_a_lower_mode(
    nursery: trio.Nursery, autojump_clock: MockClock, is_sender: bool
) -> None:
    async def peer(stream: trio.abc.Stream) -> None:
        host = Host(stream)
        await host.open()
        await host.begin()
        await host.attach(**{**KEEPING, "source": KEPT, "rcv_settle_mode": ReceiverSettleMode.FIRST})
        await end(host)

    roads = Roads(nursery)
    roads.lead_to(peer)
    async with roads.connect(mechanisms=()) as connection:
        link = (connection.sender if is_sender else connection.receiver)("q", exactly_once=True)
        with pytest.raises(LinkDetachedError, match="rcv-settle-mode second"):
            await enter(link)
