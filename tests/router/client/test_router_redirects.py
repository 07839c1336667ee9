"""A router that redirects, and the errors that programs get."""

from __future__ import annotations

import pytest
import trio

from amqpmesh import (
    ConnectionClosedError,
    LinkRedirectError,
    Message,
    RejectedError,
    Router,
    connect,
)
from amqpmesh.router.amqp.standard.definitions import ConnectionCondition, LinkCondition
from amqpmesh.router.client.factory import LinkFactory
from amqpmesh.router.config.file import AddressConfig, ListenerConfig, PlaceConfig, RedirectConfig, RouterConfig
from tests.support.peers.library_client import joined

PLACE = {"hostname": "b.example", "network-host": "127.0.0.1", "port": 5672}
ELSEWHERE = AddressConfig(
    pattern="elsewhere/#",
    redirect=RedirectConfig(hostname="b.example", network_host="127.0.0.1", port=5672, address="there"),
)


async def heard(factory: LinkFactory) -> None:
    """Check that a sender, a receiver and an anonymous sender are redirected."""
    for kind in (factory.sender, factory.receiver):
        with pytest.raises(LinkRedirectError) as raised:
            async with kind("elsewhere/a"):
                raise AssertionError("it is elsewhere")
        error = raised.value
        assert (error.hostname, error.network_host, error.port, error.address) == (
            "b.example", "127.0.0.1", 5672, "there",
        )  # fmt: skip
    async with factory.sender(None) as anonymous:
        with pytest.raises(RejectedError) as rejected:
            await anonymous.send(Message(b"x", to="elsewhere/a"))
    assert rejected.value.error is not None
    assert rejected.value.error.condition == LinkCondition.REDIRECT
    assert rejected.value.error.info == PLACE | {"address": "there", "delivery-tag": b"\0"}


async def test_over_a_connection_a_program_is_told_where_to_go(nursery: trio.Nursery) -> None:
    async with Router(RouterConfig(addresses=(ELSEWHERE,))) as router, joined(nursery, router) as connection:
        await heard(connection)
    assert router.statistics().is_empty


async def test_within_the_process_a_program_is_told_where_to_go() -> None:
    async with Router(RouterConfig(addresses=(ELSEWHERE,))) as router:
        await heard(router)
    assert router.statistics().is_empty


async def test_a_connection_that_belongs_elsewhere_is_told_where() -> None:
    place = PlaceConfig(hostname="b.example", network_host="127.0.0.1", port=5672)
    config = RouterConfig(listeners=(ListenerConfig(url="amqp://127.0.0.1:0", redirect=place),))
    async with Router(config) as router:
        with pytest.raises(ConnectionClosedError) as raised:
            async with connect(router.listeners[0].url) as connection, connection.sender("a"):
                raise AssertionError("it is elsewhere")
    assert raised.value.error is not None
    assert raised.value.error.condition == ConnectionCondition.REDIRECT
    assert raised.value.error.info == PLACE
    assert router.statistics().is_empty
