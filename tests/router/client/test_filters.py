"""Filters of a receiver's source (§3.5.8): in force, or the link is refused."""

import pytest
import trio
from trio.testing import MockClock

from amqpmesh import Described, LinkDetachedError, Router, Source, Symbol
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.amqp.standard.definitions import AmqpCondition
from amqpmesh.router.amqp.standard.performatives import Detach
from tests.support.peers.library_client import joined
from tests.support.peers.scripted_server import Counterpart

RED = {"colour": Described(Symbol("example:selector"), "red")}


async def test_a_filter_that_is_in_place_is_told(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    peer = Counterpart(nursery)
    async with peer.connect() as connection, connection.receiver("cars", filter=RED) as receiver:
        assert receiver.filter == RED
        assert peer.links[0].attach.source == Source(address="cars", filter={Symbol("colour"): RED["colour"]})


async def test_a_filter_that_the_peer_does_not_apply_ends_the_link(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    peer = Counterpart(nursery, attach={"source": Source(address="cars")})
    peer.mute.add(Detach)
    async with peer.connect() as connection:
        with pytest.raises(LinkDetachedError, match="does not apply the filter colour"):
            async with connection.receiver("cars", filter=RED):
                pass
        detach = await peer.expect(Detach)
        assert detach.error is not None
        assert detach.error.condition == AmqpCondition.NOT_IMPLEMENTED
        async with connection.receiver("cars") as receiver:
            assert receiver.filter == {}


async def test_our_router_applies_none_and_a_receiver_is_told_so(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router() as router, joined(nursery, router) as connection:
        for factory in (router, connection):
            with pytest.raises(LinkDetachedError, match="does not apply the filter colour"):
                async with factory.receiver("cars", filter=RED):
                    pass
            async with factory.receiver("cars", filter={"colour": None}):
                pass  # a null filter is no filter
    assert router.statistics().is_empty


@pytest.mark.parametrize("value", ["red", 1, {"a": 1}])
async def test_a_filter_is_a_described_value(value: object, autojump_clock: MockClock) -> None:
    async with Router() as router:
        with pytest.raises(CommandError, match="filter colour: a filter is a described value"):
            router.receiver("cars", filter={"colour": value})
