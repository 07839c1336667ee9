"""Redirects of links, messages and connections (§2.8.16, §2.8.18)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from amqpmesh.policies.redirect import Redirect
from amqpmesh.router.amqp import events
from amqpmesh.router.amqp.codec.types import Int, Symbol
from amqpmesh.router.amqp.link import Link
from amqpmesh.router.amqp.standard.definitions import ConnectionCondition, Error, LinkCondition
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Rejected
from amqpmesh.router.amqp.standard.messaging import Source
from amqpmesh.router.config.file import AddressConfig, PlaceConfig, RedirectConfig
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.model.redirects import info
from tests.support.worlds.network import Client, Network, message

PLACE = {"hostname": "b.example", "network-host": "127.0.0.1", "port": 5672}
REDIRECT = RedirectConfig(hostname="b.example", network_host="127.0.0.1", port=5672)
ELSEWHERE = AddressConfig(pattern="elsewhere/#", redirect=REDIRECT)
RENAMED = AddressConfig(pattern="elsewhere/old", redirect=replace(REDIRECT, address="new"))
HERE = AddressConfig(pattern="elsewhere/kept")

told = pytest.mark.parametrize(
    ("address", "there"),
    [
        ("elsewhere/a", "elsewhere/a"),
        ("elsewhere/a@A", "elsewhere/a"),  # the redirect leaves out the container: it is the one that the client leaves
        ("elsewhere/old", "new"),
    ],
)


def network() -> Network:
    return Network(ELSEWHERE, RENAMED, HERE)


def test_the_info_has_what_is_said_and_no_more() -> None:
    whole = info(Redirect(hostname="b.example", network_host="127.0.0.1", port=5672, address="there"))
    assert whole == PLACE | {"address": "there"}
    assert {type(key) for key in whole} == {Symbol}
    assert type(whole[Symbol("port")]) is Int
    assert info(Redirect(hostname="b.example")) == {"hostname": "b.example"}


def answer(client: Client, link: Link) -> Error:
    error = client.detached[link]
    assert error is not None
    return error


@told
def test_a_sender_is_told_where_its_address_is(address: str, there: str) -> None:
    n = network()
    client = n.client()
    link = client.sender(address)
    assert link.remote is not None
    assert link.remote.target is None  # refused: an attach without a terminus goes before the detach (§2.6.3)
    error = answer(client, link)
    assert error.condition == LinkCondition.REDIRECT
    assert error.info == PLACE | {"address": there}
    n.leave()


@told
def test_a_receiver_is_told_where_its_address_is(address: str, there: str) -> None:
    n = network()
    client = n.client()
    link = client.receiver(address)
    assert link.remote is not None
    assert link.remote.source is None
    error = answer(client, link)
    assert error.condition == LinkCondition.REDIRECT
    assert error.info == PLACE | {"address": there}
    n.leave()


def test_a_redirected_link_leaves_the_others_alone() -> None:
    n = network()
    client = n.client()
    receiver = client.receiver("elsewhere/kept")
    sender = client.sender("elsewhere/kept")
    client.sender("elsewhere/a")
    sent = client.send(sender)
    [arrival] = client.take(1)
    arrival.accept()
    n.run()
    assert isinstance(sent.outcome, Accepted)
    assert receiver.is_attached
    n.leave()


def test_a_dynamic_node_is_never_elsewhere() -> None:
    n = Network(replace(ELSEWHERE, pattern="#"))
    client = n.client()
    link = client.receiver(None, source=Source(dynamic=True))
    assert link.remote is not None
    assert link.remote.source is not None
    sent = client.send(client.sender(link.remote.source.address))
    client.take(1)[0].accept()
    n.run()
    assert isinstance(sent.outcome, Accepted)
    n.leave()


@told
def test_a_message_of_an_anonymous_sender_is_rejected_with_where_it_should_have_gone(address: str, there: str) -> None:
    n = network()
    client = n.client()
    anonymous = client.sender(None)
    sent = client.send(anonymous, message(to=address))
    assert isinstance(sent.outcome, Rejected)
    assert sent.outcome.error is not None
    assert sent.outcome.error.condition == LinkCondition.REDIRECT
    assert sent.outcome.error.info == PLACE | {"address": there, "delivery-tag": sent.delivery.tag}
    # The link continues with the next message.
    client.receiver("elsewhere/kept")
    kept = client.send(anonymous, message(to="elsewhere/kept"))
    client.take(1)[0].accept()
    n.run()
    assert isinstance(kept.outcome, Accepted)
    n.leave()


def test_a_presettled_message_that_should_have_gone_elsewhere_counts_as_undelivered_and_ends_its_link() -> None:
    n = network()
    client = n.client()
    anonymous = client.sender(None)
    sent = client.send(anonymous, message(to="elsewhere/a"), settled=True)
    error = answer(client, anonymous)
    assert error.condition == LinkCondition.REDIRECT
    assert error.info == PLACE | {"address": "elsewhere/a", "delivery-tag": sent.delivery.tag}
    assert snapshot(n.core).router.undelivered == 1
    n.leave()


def test_frames_without_room_for_where_say_that_it_is_elsewhere() -> None:
    n = Network(AddressConfig(pattern="#", redirect=replace(REDIRECT, address="there" * 100)))
    client = n.client(max_frame_size=512)
    error = answer(client, client.sender("a"))
    assert error.condition == LinkCondition.REDIRECT
    assert error.info is None
    n.leave()


def test_a_listener_that_redirects_opens_and_closes_with_where() -> None:
    n = Network()
    n.listener = replace(n.listener, redirect=PlaceConfig(hostname="b.example", network_host="127.0.0.1", port=5672))
    client = n.client()
    opened, closed = client.events[0], client.events[-1]
    assert isinstance(opened, events.ConnectionOpened)
    assert opened.open.container_id == "A"
    assert isinstance(closed, events.ConnectionClosed)
    assert closed.error is not None
    assert closed.error.condition == ConnectionCondition.REDIRECT
    assert closed.error.info == PLACE
    # The router does not answer the session that the client had begun before it received the redirect.
    assert not any(isinstance(event, events.SessionBegun) for event in client.events)
    assert n.core.context.connections == {}
    n.leave()


def test_the_router_offers_to_redirect_those_who_desire_it() -> None:
    n = network()
    client = n.client()
    opened = client.events[0]
    assert isinstance(opened, events.ConnectionOpened)
    assert "amqpmesh:redirect" in opened.open.offered_capabilities
    n.leave()
