"""Internal faults in a program's links, which end only these links."""

import logging

import pytest
import trio
from trio.testing import MockClock

from amqpmesh import ConnectionClosedError, ModifiedError, Router
from amqpmesh.router.client.links.receiver_link import ReceiverLink
from amqpmesh.router.logs.event_log import event_of
from tests.support.peers.library_client import joined


async def test_a_fault_in_the_links_of_a_router_costs_those_and_no_connection(
    nursery: trio.Nursery,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Router() as router, joined(nursery, router) as connection:
        async with connection.sender("q") as sender, router.receiver("q") as receiver:
            with monkeypatch.context() as patched:
                patched.setattr(ReceiverLink, "transfer_received", lambda *_: 1 / 0)
                with pytest.raises(ModifiedError):
                    await sender.send("boom")
            with pytest.raises(ConnectionClosedError):
                await receiver.receive()
        for kind in (connection, router):
            async with kind.receiver("q") as receiver, connection.sender("q") as sender:
                await sender.transfer("on")
                async with await receiver.receive() as message:
                    assert message.body == "on"
    faults = [record for record in caplog.records if event_of(record) == "internal error"]
    assert [record.levelno for record in faults] == [logging.ERROR]
    assert router.statistics().is_empty
