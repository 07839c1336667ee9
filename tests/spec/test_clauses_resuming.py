"""Links that are attached again at a router, which does not remember them (§2.6.13, §2.7.3)."""

import pytest

from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted, DeliveryState
from amqpmesh.router.amqp.standard.performatives import Attach, Detach, Flow, Transfer
from tests.support.peers.bystanders import Intruder
from tests.support.peers.scripted import attached, flow
from tests.support.worlds.network import Network, message

UNSETTLED: dict[bytes, DeliveryState | None] = {b"one": None, b"two": Accepted()}


def returning() -> Intruder:
    """Return a peer with a session."""
    intruder = Intruder(Network())
    intruder.peer.open()
    intruder.peer.begin()
    return intruder


@pytest.mark.parametrize("role", list(Role))
def test_after_an_incomplete_map_the_link_is_detached_to_be_attached_again(role: Role) -> None:
    intruder = returning()
    peer = intruder.peer
    peer.write(attached(role, "q", unsettled=UNSETTLED, incomplete_unsettled=True))
    attach, detach = peer.expect_all(Attach, Detach)
    assert isinstance(attach, Attach)
    assert attach.unsettled is None, "nothing is known of its deliveries"
    assert not attach.incomplete_unsettled
    assert detach == Detach(handle=attach.handle), "neither closed nor an error"
    peer.write(Detach(handle=0), attached(role, "q", unsettled={}))
    again = peer.expect(Attach)
    assert again.unsettled is None, "nothing is known of its deliveries"
    assert not intruder.is_finished


def test_nothing_new_is_sent_behind_an_incomplete_map_and_all_behind_a_complete_one() -> None:
    intruder = returning()
    peer, network = intruder.peer, intruder.network
    producer = network.client()
    link = producer.sender("q")
    credit = flow(handle=0, delivery_count=0, link_credit=5)
    peer.write(attached(Role.RECEIVER, "q", unsettled=UNSETTLED, incomplete_unsettled=True), credit)
    peer.expect_all(Attach, Detach)
    assert link.credit == 0, "there is nobody to send to"
    peer.write(Detach(handle=0), attached(Role.RECEIVER, "q", unsettled={}), credit)
    peer.expect(Attach)
    producer.send(link)
    assert not peer.expect(Transfer).resume


def test_what_only_a_receiver_has_unsettled_is_not_spoken_of() -> None:
    intruder = returning()
    peer, network = intruder.peer, intruder.network
    peer.write(
        attached(Role.RECEIVER, "q", unsettled=UNSETTLED), flow(handle=0, delivery_count=0, link_credit=5, echo=True)
    )
    attach, _ = peer.expect_all(Attach, Flow)
    assert isinstance(attach, Attach)
    assert attach.unsettled is None, "nothing is known of them"
    producer = network.client()
    producer.send(producer.sender("q"), message("new"))
    (heard,) = peer.hear()
    assert isinstance(heard.performative, Transfer)
    assert not heard.performative.resume
    assert heard.performative.delivery_tag not in UNSETTLED
    assert heard.payload == message("new")


def test_a_link_that_is_attached_again_without_a_map_gets_none() -> None:
    intruder = returning()
    for _ in range(2):
        intruder.peer.write(attached(Role.RECEIVER, "q"))
        assert intruder.peer.expect(Attach).unsettled is None
        intruder.peer.write(Detach(handle=0))
        intruder.peer.expect(Detach)
