"""Outcomes that the attach of a returning sender hears, and senders that do not resume these deliveries."""

from __future__ import annotations

import pytest

from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.amqp.standard.performatives import Attach, Flow
from amqpmesh.router.attach.told_outcomes import LOOK
from tests.router.resumption.test_returning_senders import SECOND, Roaming, as_map, tag
from tests.support.peers.scripted import flow, frame, transferred
from tests.support.worlds.network import message

FIRST = ReceiverSettleMode.FIRST


def back(r: Roaming, *numbers: int, first_count: int = 0) -> tuple[Attach, Flow]:
    """Come back over a new connection. Returns: the answer to the attach, and the credit behind it.

    Args: first_count: the sender's first delivery-count.
    """
    r.begin()
    r.peer.write(r.attaching({tag(number): None for number in numbers}, initial_delivery_count=first_count))
    answer, credit = r.peer.expect_all(Attach, Flow)
    assert isinstance(answer, Attach)
    assert isinstance(credit, Flow)
    return answer, credit


def back_with_an_outcome(rcv: ReceiverSettleMode = FIRST, *, first_count: int = 0) -> tuple[Roaming, Flow]:
    """Return a sender that is back, with one delivery that is accepted, and one without an outcome; and its credit."""
    r = Roaming(rcv)
    r.send(2)
    r.lose()
    r.arrivals[0].dispose(Accepted(), settled=rcv is FIRST)
    r.network.run()
    answer, credit = back(r, 0, 1, first_count=first_count)
    assert as_map(answer)[tag(0)] == Accepted()
    assert r.network.relays == 2
    return r, credit


def unsettled(r: Roaming) -> list[bytes]:
    """Return the tags of what the router has unsettled of the sender."""
    (record,) = (each for each in r.network.core.context.connections if each.peer.container_id == "peer")
    (link,) = record.incoming
    return sorted(link.endpoint.flow_state.unsettled)


def test_a_sender_that_goes_on_without_resuming_it_has_settled_it() -> None:
    r, _ = back_with_an_outcome()
    r.peer.write(frame(transferred(5), message(5)))
    r.network.advance(LOOK)
    assert unsettled(r) == [tag(1), tag(5)], "what has no outcome is still the sender's"
    r.resume(6, of=1)
    for arrival in (r.arrivals[1], *r.consumer.take(1)):
        arrival.accept()
    assert {(each.first, each.last or each.first) for each in r.heard()} == {(5, 5), (6, 6)}
    assert unsettled(r) == []
    r.finish()


def test_a_sender_that_only_resumes_keeps_the_others_for_now() -> None:
    r, _ = back_with_an_outcome()
    r.resume(5, of=1)
    r.network.advance(3 * LOOK)
    assert unsettled(r) == [tag(0), tag(1)]
    r.resume(6, of=0)
    (said,) = r.heard()
    assert (said.first, said.state, said.settled) == (6, Accepted(), True)
    r.arrivals[1].accept()
    r.finish()


def test_an_idle_sender_has_settled_it_once_it_has_shown_that_it_has_read_the_attach() -> None:
    r, asked = back_with_an_outcome()
    r.network.advance(3 * LOOK)
    assert unsettled(r) == [tag(0), tag(1)], "it may not have read it yet"
    assert asked.echo, "it was asked"
    assert asked.link_credit
    r.peer.write(flow(handle=0, delivery_count=0, link_credit=asked.link_credit))
    r.network.advance(2 * LOOK)
    assert unsettled(r) == [tag(1)]
    r.arrivals[1].accept()
    r.finish()


def test_in_mode_second_it_waits_for_the_settlement() -> None:
    r, _ = back_with_an_outcome(SECOND)
    r.peer.write(frame(transferred(5), message(5)))
    r.network.advance(3 * LOOK)
    assert unsettled(r) == [tag(0), tag(1), tag(5)]
    r.resume(6, of=0, settled=True, state=Accepted())
    assert unsettled(r) == [tag(1), tag(5)]


@pytest.mark.parametrize("first_count", [0, 2**32 - 10])
def test_what_is_lost_before_the_sender_has_read_it_is_told_again(first_count: int) -> None:
    r, _ = back_with_an_outcome(first_count=first_count)
    r.lose()
    r.network.advance(2 * LOOK)
    assert as_map(r.back({tag(0): None, tag(1): None}))[tag(0)] == Accepted()


def test_nothing_is_asked_of_a_sender_that_is_told_no_outcome() -> None:
    r = Roaming()
    r.send()
    r.lose()
    assert not back(r, 0)[1].echo
    r.arrivals[0].accept()
    r.finish()
