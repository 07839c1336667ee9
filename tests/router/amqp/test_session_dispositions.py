"""Dispositions, over ranges and links (§2.7.6)."""

import pytest

from amqpmesh.router.amqp import events
from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.standard.definitions import Error, Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified, Received, Rejected, TransactionalState
from amqpmesh.router.amqp.standard.performatives import (
    Disposition,
    End,
    decode_performative,
)
from amqpmesh.router.kernel import ACCEPTED_STATE, Delivery, dispose
from tests.support.peers.engine_pair import Scripted
from tests.support.peers.scripted import attached, begun, frame, transferred
from tests.support.peers.scripted_session import mapped


def delivered(number: int, *, links: int = 1) -> tuple[Scripted, list[Delivery]]:
    """Receive live deliveries with the ids 0.., by turns on the peer's links."""
    scripted = mapped()
    for handle in range(links):
        scripted.peer.write(attached(Role.SENDER, f"a{handle}", handle=handle))
        scripted.receiver(handle).flow(100)
    for each in range(number):
        scripted.peer.write(transferred(each, handle=each % links))
    deliveries = [delivery for delivery, _ in scripted.transfers()]
    scripted.peer.hear()
    scripted.end.events.clear()
    return scripted, deliveries


def test_a_disposition_speaks_of_a_range_over_all_links_of_its_direction() -> None:
    scripted, deliveries = delivered(9, links=3)
    scripted.peer.write(Disposition(role=Role.SENDER, first=2, last=6, state=Accepted()))
    event = scripted.end.take_one(events.DispositionReceived)
    assert event.deliveries == deliveries[2:7]
    assert event.state == ACCEPTED_STATE
    assert not event.settled
    assert {each.remote_state for each in deliveries[2:7]} == {ACCEPTED_STATE}
    assert not any(each.remote_settled for each in deliveries)


def test_a_disposition_in_the_other_direction_is_of_other_deliveries() -> None:
    scripted, _ = delivered(3)
    scripted.peer.write(Disposition(role=Role.RECEIVER, first=0, last=2, settled=True))
    assert scripted.end.events == []


@pytest.mark.parametrize(
    ("first", "last"),
    [
        pytest.param(0, 2**31 - 1, id="half of all there are"),
        pytest.param(2**32 - 100, 2, id="across the wrap"),
        pytest.param(2**32 - 2**30, 2**30 - 1, id="half, across the wrap"),
    ],
)
def test_a_range_of_any_width_means_those_that_are_live(first: int, last: int) -> None:
    scripted, deliveries = delivered(3)
    scripted.peer.write(Disposition(role=Role.SENDER, first=first, last=last, settled=True))
    event = scripted.end.take_one(events.DispositionReceived)
    assert event.deliveries == deliveries
    assert all(each.remote_settled for each in deliveries)


@pytest.mark.parametrize(("first", "last"), [(3, None), (77, 99), (2, 1), (2**31, 2**32 - 1), (5, 4)])
def test_a_disposition_of_nothing_that_lives_is_nothing(first: int, last: int | None) -> None:
    scripted, _ = delivered(3)
    scripted.peer.write(Disposition(role=Role.SENDER, first=first, last=last, settled=True, state=Accepted()))
    scripted.peer.write(Disposition(role=Role.RECEIVER, first=first, last=last, settled=True, state=Accepted()))
    assert scripted.end.events == []
    assert scripted.peer.hear() == []


def test_a_delivery_that_we_settled_is_spoken_of_no_more() -> None:
    scripted, deliveries = delivered(3)
    dispose(deliveries[1], ACCEPTED_STATE, settled=True)
    assert scripted.peer.expect(Disposition) == Disposition(role=Role.RECEIVER, first=1, settled=True, state=Accepted())
    scripted.peer.write(Disposition(role=Role.SENDER, first=0, last=2, settled=True))
    assert scripted.end.take_one(events.DispositionReceived).deliveries == [deliveries[0], deliveries[2]]


def test_what_follows_each_other_and_says_the_same_is_said_at_once() -> None:
    scripted, deliveries = delivered(8, links=2)
    for each in deliveries[:5]:
        dispose(each, ACCEPTED_STATE, settled=True)
    dispose(deliveries[7], ACCEPTED_STATE, settled=True)
    said = scripted.peer.expect_all(Disposition, Disposition)
    assert [(each.first, each.last) for each in said if isinstance(each, Disposition)] == [(0, 4), (7, None)]


def test_with_an_end_what_was_disposed_is_said_before() -> None:
    scripted, deliveries = delivered(1)
    dispose(deliveries[0], ACCEPTED_STATE, settled=True)
    scripted.session().end()
    scripted.peer.expect_all(Disposition, End)


def test_states_that_are_no_outcome_are_one_frame_where_they_say_the_same_of_consecutive_deliveries() -> None:
    scripted, deliveries = delivered(7)
    begun_with, gone_on = Received(section_number=0, section_offset=0), Received(section_number=1, section_offset=0)
    for number in (0, 1, 2, 4, 5, 6):
        dispose(deliveries[number], encode_composite(gone_on if number == 6 else begun_with), settled=False)
    dispose(deliveries[1], encode_composite(gone_on), settled=False)
    dispose(deliveries[2], encode_composite(gone_on), settled=False)
    assert [each.performative for each in scripted.peer.hear()] == [
        Disposition(role=Role.RECEIVER, first=0, state=begun_with),
        Disposition(role=Role.RECEIVER, first=1, last=2, state=gone_on),
        Disposition(role=Role.RECEIVER, first=4, last=5, state=begun_with),
        Disposition(role=Role.RECEIVER, first=6, state=gone_on),
    ], "of each its latest"


def test_after_an_end_nothing_is_said() -> None:
    scripted, deliveries = delivered(2)
    dispose(deliveries[0], ACCEPTED_STATE, settled=True)
    scripted.peer.write(End())
    dispose(deliveries[1], ACCEPTED_STATE, settled=True)
    # The first disposition may precede our end; the one after the peer's end is never sent.
    heard = [each.performative for each in scripted.peer.hear()]
    assert heard == [Disposition(role=Role.RECEIVER, first=0, settled=True, state=Accepted()), End()]


@pytest.mark.parametrize(
    ("state", "told"),
    [
        pytest.param(
            Rejected(error=Error(condition=Symbol("x:y"), description="no " * 400, info={Symbol("a"): "b" * 400})),
            Rejected(error=Error(condition=Symbol("x:y"), description=("no " * 400)[:60])),
            id="rejected with a long story",
        ),
        pytest.param(
            Rejected(error=Error(condition=Symbol("x" * 600))), Rejected(), id="rejected with a long condition"
        ),
        pytest.param(
            Modified(delivery_failed=True, message_annotations={Symbol("a"): "b" * 600}),
            Modified(delivery_failed=True),
            id="modified with a long annotation",
        ),
        pytest.param(
            TransactionalState(
                txn_id=b"t", outcome=Modified(undeliverable_here=True, message_annotations={Symbol("a"): "b" * 600})
            ),
            TransactionalState(txn_id=b"t", outcome=Modified(undeliverable_here=True)),
            id="the same in a transaction",
        ),
        pytest.param(
            TransactionalState(
                txn_id=b"t" * 32, outcome=Rejected(error=Error(condition=Symbol("x" * 80), description="ü" * 600))
            ),
            TransactionalState(
                txn_id=b"t" * 32, outcome=Rejected(error=Error(condition=Symbol("x" * 80), description="ü" * 60))
            ),
            id="the longest that there can be",
        ),
        pytest.param(
            Rejected(error=Error(condition=Symbol("x:y"), description="no " * 100)),
            Rejected(error=Error(condition=Symbol("x:y"), description="no " * 100)),
            id="what fits",
        ),
    ],
)
def test_a_state_that_does_not_fit_into_the_peers_frames_is_told_shortly(state: object, told: object) -> None:
    scripted = Scripted()
    scripted.peer.open(max_frame_size=512)
    scripted.peer.write(begun(), attached(Role.SENDER))
    scripted.receiver().flow(1)
    scripted.peer.write(transferred())
    scripted.peer.hear()
    ((delivery, _),) = scripted.transfers()
    dispose(delivery, encode_composite(state), settled=True)
    data = scripted.engine.data_to_send(scripted.now)
    assert len(data) <= 512
    disposition, _ = decode_performative(data, 8)
    assert disposition == Disposition(role=Role.RECEIVER, first=0, settled=True, state=told)  # type: ignore[arg-type]  # a state


@pytest.mark.parametrize("size", range(430, 512))
def test_a_state_is_told_in_full_as_long_as_it_fits(size: int) -> None:
    scripted = Scripted()
    scripted.peer.open(max_frame_size=512)
    scripted.peer.write(begun(), attached(Role.SENDER))
    scripted.receiver().flow(1)
    scripted.peer.write(transferred())
    scripted.peer.hear()
    ((delivery, _),) = scripted.transfers()
    state = Rejected(error=Error(condition=Symbol("x:y"), description="d" * size))
    dispose(delivery, encode_composite(state), settled=True)
    data = scripted.engine.data_to_send(scripted.now)
    full = len(frame(Disposition(role=Role.RECEIVER, first=0, settled=True, state=state)))
    assert len(data) == full if full <= 512 else len(data) < 200


def test_sessions_of_one_connection_have_numbers_of_their_own() -> None:
    scripted, first = delivered(2)
    scripted.peer.write(frame(begun(), channel=1), frame(attached(Role.SENDER), channel=1))
    scripted.receiver(channel=1).flow(5)
    scripted.peer.write(transferred(0), channel=1)
    ((second, _),) = scripted.transfers()
    scripted.peer.hear()
    scripted.end.events.clear()
    scripted.peer.write(Disposition(role=Role.SENDER, first=0, settled=True), channel=1)
    assert scripted.end.take_one(events.DispositionReceived).deliveries == [second]
    assert not first[0].remote_settled
