"""Links to nodes of other containers, by whole routers in virtual time: connections are cut, and nothing is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified
from amqpmesh.router.config.file import AddressConfig, ConnectorConfig, LinkConfig, RedirectConfig
from amqpmesh.router.runtime.router import Router
from amqpmesh.router.statistics.configured import ContainerLinkState, ContainerLinkStatistics
from tests.support.peers.library_client import URL, Roads
from tests.support.tasks.until import until
from tests.support.worlds.cut_connections import Resending

CONNECTOR = ConnectorConfig(url=URL, name="other", role="container")
FEEDS = LinkConfig(connector="other", name="feeds", source="queue", address="incoming")
FED = LinkConfig(connector="other", name="fed", target="queue", address="outgoing")

S = ContainerLinkState


def told(router: Router) -> tuple[ContainerLinkStatistics, ...]:
    return router.statistics().container_links


@asynccontextmanager
async def two(nursery: trio.Nursery, *links: LinkConfig) -> AsyncIterator[tuple[Router, Router, Roads]]:
    """Start a router whose links to another router are attached."""
    roads = Roads(nursery)
    async with Router(id="far") as far:
        roads.lead_to(far)
        async with Router(id="near", connectors=[CONNECTOR], container_links=links, open_stream=roads.open) as near:
            await until(lambda: all(each.state is S.ATTACHED for each in told(near)))
            yield near, far, roads


async def test_links_go_to_a_connector_that_is_given_beside_them(nursery: trio.Nursery) -> None:
    async with two(nursery, FEEDS, FED) as (near, far, _):
        async with (
            far.receiver("queue") as queue,
            near.sender("outgoing") as outgoing,
            trio.open_nursery() as sending,
        ):
            sending.start_soon(outgoing.send, b"there")
            async with await queue.receive() as message:
                assert message.body == b"there"
        assert [each.connection for each in told(near)] == [1, 1]
    assert near.statistics().is_empty
    assert {each.state for each in told(near)} == {S.DISCONNECTED}


async def test_a_link_whose_connector_has_no_connection_tells_the_connectors_reason(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with two(nursery, FEEDS) as (near, far, roads):
        assert [each.reason for each in told(near)] == [None]
        roads.close()
        await roads.cut()
        await until(lambda: [each.state for each in told(near)] == [S.DISCONNECTED])
        await trio.sleep(60)
        (connector,) = near.statistics().connectors
        assert connector.reason is not None
        assert "refused" in connector.reason
        assert [each.reason for each in told(near)] == [f"connector other is waiting: {connector.reason}"]
        roads.lead_to(far)
        await until(lambda: [each.reason for each in told(near)] == [None])


def test_a_link_without_its_connector_is_an_error() -> None:
    with pytest.raises(ConfigError, match="there is no connector 'other'"):
        Router(container_links=[FEEDS])


async def test_what_is_sent_while_connections_are_cut_arrives_once_or_more_and_what_failed_may_have(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """One sender at the far router by its link here, one here by its link there; each sends again what failed."""
    traffic = Resending()
    # In opposite directions by nodes of two names: the far router's own receivers would take what is for here.
    feeds = LinkConfig(connector="other", name="feeds", source="outbox", address="incoming")
    async with two(nursery, feeds, FED) as (near, far, roads):
        async with near.receiver("incoming", credit=10) as incoming, far.receiver("queue", credit=10) as queue:
            nursery.start_soon(traffic.receive, incoming, "outbox")
            nursery.start_soon(traffic.receive, queue, "outgoing")
            async with trio.open_nursery() as sending:
                sending.start_soon(traffic.send, far, "outbox")
                sending.start_soon(traffic.send, near, "outgoing")
                for _ in range(5):
                    await trio.sleep(0.05)
                    await roads.cut()
                    await until(lambda: all(each.state is S.ATTACHED for each in told(near)))
            await trio.sleep(1.0)
        for router in (near, far):
            await until(lambda router=router: not router.statistics().router.relays)
    traffic.check()


async def test_a_link_goes_where_the_other_container_sends_it_and_what_is_cut_there_comes_again(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    third = "amqp://router.example:5673"
    moved = AddressConfig(pattern="queue", redirect=RedirectConfig(port=5673, address="moved"))
    roads = Roads(nursery)
    async with Router(id="far", addresses=(moved,)) as far, Router(id="third") as other:
        roads.lead_to(far)
        roads.lead_to(other, third)
        async with Router(id="near", connectors=[CONNECTOR], container_links=[FED], open_stream=roads.open) as near:
            await until(lambda: told(near)[0].state is S.ATTACHED)
            assert (told(near)[0].connector, told(near)[0].node) == (f"{third} (other)", "moved")
            async with other.receiver("moved") as there, near.sender("outgoing") as sender:
                sent = await sender.transfer("in doubt")
                await there.receive()
                await roads.cut()
                assert await sent.outcome() == Modified(delivery_failed=True)
                again = await sender.transfer("again")
                async with await there.receive() as message:
                    assert message.body == "again"
                assert await again.outcome() == Accepted()
            # It has asked where it belongs before it went there again.
            assert sorted(url for _, url in roads.tries) == [URL, URL, third, third]
            assert far.statistics().router.deliveries_in == 0


async def test_a_router_that_another_with_its_id_robs_does_not_rob_it_in_a_loop(
    nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "amqpmesh")
    roads = Roads(nursery)
    async with Router(id="far") as far:
        roads.lead_to(far)

        def router() -> Router:
            return Router(id="near", connectors=[CONNECTOR], container_links=[FEEDS], open_stream=roads.open)

        async with router() as one, router() as other:
            await until(
                lambda: one.statistics().connectors[0].connection and other.statistics().connectors[0].connection
            )
            await trio.sleep(60.0)
            states = {told(one)[0].state, told(other)[0].state}
            thefts = far.statistics().router.stolen
            assert S.ATTACHED in states
            assert 1 <= thefts <= 10
            assert told(one)[0].stolen + told(other)[0].stolen == thefts
    lines = [line for line in caplog.messages if line.startswith("link stolen by another container ")]
    assert len(lines) == thefts
