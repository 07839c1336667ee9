"""Messages whose address would be refused to a link (anonymous terminus, §2.2.2)."""

from __future__ import annotations

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error, LinkCondition
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Rejected, Released
from amqpmesh.router.amqp.standard.messaging import Source
from amqpmesh.router.config.file import AddressConfig, RedirectConfig
from amqpmesh.router.management.snapshot import snapshot
from tests.support.worlds.network import Client, Network, Sent, message

REDIRECT = RedirectConfig(hostname="b.example", network_host="127.0.0.1", port=5672)
#: What names no address: an attach of it would be one of the anonymous terminus.
WITHOUT = {
    "no to": (message(1), 0, AmqpCondition.PRECONDITION_FAILED),
    "an empty one": (message(1, to=""), 0, AmqpCondition.PRECONDITION_FAILED),
    "another format": (message(1, to="q"), 1, AmqpCondition.NOT_IMPLEMENTED),
    "a to that is none": (b"\x00\x53\x73\xc0\x05\x03\x40\x40\x52\x07", 0, AmqpCondition.DECODE_ERROR),
}
REFUSED = [
    "no",
    "no@A",
    "q@X",
    "q@",
    "@A",
    "@X",
    "$none",
    "$none@A",
    "amqp$transfer",
    "$dynamic/a/b/c@A",
    "elsewhere/a",
]


def network() -> Network:
    return Network(
        AddressConfig(pattern="no", distribution=Distribution.UNAVAILABLE),
        AddressConfig(pattern="elsewhere/#", redirect=REDIRECT),
    )


def without_tag(error: Error, sent: Sent) -> Error:
    """Check that an error has the delivery-tag of its message. Returns: the error without the tag."""
    assert error.info is not None
    rest = dict(error.info)
    assert rest.pop(Symbol("delivery-tag")) == sent.delivery.tag
    return Error(condition=error.condition, description=error.description, info=rest or None)


def attach_error(client: Client, address: str) -> Error:
    """Return the error with which a link to an address is refused."""
    error = client.detached[client.sender(address)]
    assert error is not None
    return error


@pytest.mark.parametrize("address", REFUSED)
def test_a_message_is_rejected_with_the_error_that_a_link_to_its_address_is_told(address: str) -> None:
    n = network()
    client, receiver = n.client(), n.client()
    receiver.receiver("q")
    link = client.sender(None)
    sent = client.send(link, message(1, to=address))
    assert isinstance(sent.outcome, Rejected)
    assert sent.outcome.error is not None
    told = without_tag(sent.outcome.error, sent)
    if address in ("@A", "@X"):
        # A link to `@container` stands for all its addresses; a message must name one of them.
        assert told.condition == AmqpCondition.INVALID_FIELD
    else:
        assert told == attach_error(client, address)
    other = client.send(link, message(2, to="q"))
    receiver.take(1)[0].accept()
    n.run()
    assert other.outcome == Accepted(), "the link goes on"
    n.leave()


@pytest.mark.parametrize("address", REFUSED)
@pytest.mark.parametrize("way", ["settled", "without rejected", "in parts"])
def test_a_message_that_cannot_be_rejected_ends_its_link_with_that_error(address: str, way: str) -> None:
    n = network()
    client = n.client()
    outcomes = () if way == "settled" else (Symbol("amqp:released:list"), Symbol("amqp:accepted:list"))
    link = client.sender(None, source=Source(outcomes=outcomes))
    waiting = client.send(link, message(0, to="q"))
    assert waiting.outcome == Released()
    sent = client.send(link, message(1, to=address), settled=way == "settled", more=way == "in parts")
    assert sent.said == [], "nothing is said in the place of what cannot be"
    error = client.detached[link]
    assert error is not None
    without_tag(error, sent)
    again = client.sender(None, name=link.name)
    assert client.send(again, message(2, to="q")).outcome == Released()
    assert snapshot(n.core).router.undelivered == 3
    n.leave()


@pytest.mark.parametrize("why", WITHOUT)
def test_a_message_that_says_nowhere_to_go_is_rejected_or_ends_its_link(why: str) -> None:
    payload, message_format, condition = WITHOUT[why]
    n = network()
    client = n.client()
    link = client.sender(None)
    sent = client.send(link, payload, message_format=message_format)
    assert isinstance(sent.outcome, Rejected)
    assert sent.outcome.error is not None
    assert without_tag(sent.outcome.error, sent).condition == condition
    settled = client.send(link, payload, message_format=message_format, settled=True)
    error = client.detached[link]
    assert error is not None
    assert without_tag(error, settled).condition == condition
    n.leave()


def test_an_address_without_receivers_may_have_some_later() -> None:
    n = network()
    client = n.client()
    link = client.sender(None)
    assert client.send(link, message(1, to="q")).outcome == Released()
    client.send(link, message(1, to="q"), settled=True)
    assert link.is_attached
    n.leave()


def test_a_redirect_is_told_with_the_place() -> None:
    n = network()
    client = n.client()
    link = client.sender(None)
    sent = client.send(link, message(1, to="elsewhere/a"), settled=True)
    error = client.detached[link]
    assert error is not None
    assert error.condition == LinkCondition.REDIRECT
    assert without_tag(error, sent).info == attach_error(client, "elsewhere/a").info
    n.leave()
