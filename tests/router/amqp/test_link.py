"""Links: attach and detach, credit, and deliveries in frames (§2.6, §2.7.3 to §2.7.7)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.amqp import events
from amqpmesh.router.amqp.composite import encode_composite
from amqpmesh.router.amqp.definitions import (
    AmqpCondition,
    Error,
    LinkCondition,
    ReceiverSettleMode,
    Role,
    SenderSettleMode,
    SessionCondition,
)
from amqpmesh.router.amqp.delivery_states import Accepted, Received, Rejected
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.amqp.link import Receiver, Sender
from amqpmesh.router.amqp.messaging import Source, Target
from amqpmesh.router.amqp.performatives import Attach, Begin, Detach, Disposition, End, Flow, Open, Transfer
from amqpmesh.router.amqp.states import LinkEndpointState
from amqpmesh.router.amqp.terminus import Terminus
from amqpmesh.router.amqp.types import Symbol
from amqpmesh.router.kernel.relay import ACCEPTED_STATE, Delivery, dispose, serial_add
from tests.support.pair import Pair, Scripted
from tests.support.script import AMQP, attached, begun, flow, frame, transferred

S = LinkEndpointState
WHY = Error(condition=AmqpCondition.NOT_FOUND, description="there is no such thing")


def linked(attach: Attach, *, credit: int = 0, begin: Begin | None = None, **settings: object) -> Scripted:
    """A link with the peer's handle 0 on its channel 0."""
    scripted = Scripted(**settings)
    scripted.peer.open()
    scripted.peer.write(begin or begun(), attach)
    scripted.peer.hear()
    if credit:
        scripted.receiver(attach.handle).flow(credit)
        scripted.peer.expect(Flow)
    scripted.end.events.clear()
    return scripted


def producing(*, credit: int = 0, settings: dict[str, object] | None = None, **fields: object) -> Scripted:
    """The peer sends."""
    return linked(attached(Role.SENDER, **fields), credit=credit, **(settings or {}))  # type: ignore[arg-type]


def consuming(*, credit: int = 0, settings: dict[str, object] | None = None, **fields: object) -> Scripted:
    """The peer receives."""
    scripted = linked(attached(Role.RECEIVER, **fields), **(settings or {}))  # type: ignore[arg-type]
    if credit:
        scripted.peer.write(flow(handle=0, delivery_count=0, link_credit=credit))
        scripted.end.events.clear()
    return scripted


def failed(scripted: Scripted) -> Error:
    """The link was detached for what the peer did on it: it and the owner heard the same; the session lives."""
    detach = scripted.peer.expect(Detach)
    (event,) = scripted.end.take(events.LinkDetached)
    assert event.error == detach.error
    assert event.closed
    assert detach.closed
    assert not event.by_peer
    assert event.link.state is S.DISCARDING
    assert detach.error is not None
    return detach.error


# Attach.


def test_an_attach_of_the_peer_is_answered_with_what_is_in_force() -> None:
    scripted = Scripted(answers=False)
    scripted.peer.write(AMQP, Open(container_id="peer"))
    scripted.engine.open()
    asked = attached(Role.SENDER, "a", handle=9, snd_settle_mode=SenderSettleMode.UNSETTLED)
    scripted.peer.write(begun(), asked)
    scripted.session().begin()
    event = scripted.end.take_one(events.LinkAttached)
    assert event.attach == asked
    link = event.link
    assert isinstance(link, Receiver)
    assert link.state is S.ATTACH_RCVD
    assert not link.is_attached
    link.attach(
        source=Source(address="s"),
        target=Target(address="t"),
        rcv_settle_mode=ReceiverSettleMode.SECOND,
        snd_settle_mode=SenderSettleMode.UNSETTLED,
        max_message_size=1000,
        unsettled={},
        offered_capabilities=[Symbol("c")],
    )
    assert link.is_attached
    scripted.peer.expect_header()
    answer = scripted.peer.expect_all(Open, Begin, Attach)[-1]
    assert answer == Attach(
        name=asked.name,
        handle=0,
        role=Role.RECEIVER,
        snd_settle_mode=SenderSettleMode.UNSETTLED,
        rcv_settle_mode=ReceiverSettleMode.SECOND,
        source=Source(address="s"),
        target=Target(address="t"),
        unsettled={},
        max_message_size=1000,
        offered_capabilities=(Symbol("c"),),
    )
    with pytest.raises(CommandError):
        link.attach()


def test_an_attach_that_is_refused_has_no_terminus_and_is_closed_with_the_reason() -> None:
    for role, terminus in ((Role.SENDER, "target"), (Role.RECEIVER, "source")):
        scripted = Scripted(answers=False)
        scripted.peer.write(AMQP, Open(container_id="peer"))
        scripted.engine.open()
        asked = attached(role, snd_settle_mode=SenderSettleMode.SETTLED, rcv_settle_mode=ReceiverSettleMode.SECOND)
        scripted.peer.write(begun(), asked)
        scripted.session().begin()
        link = scripted.end.take_one(events.LinkAttached).link
        link.refuse(WHY)
        scripted.peer.expect_header()
        _, _, attach, detach = scripted.peer.expect_all(Open, Begin, Attach, Detach)
        assert isinstance(attach, Attach)
        assert getattr(attach, terminus) is None
        if role is Role.SENDER:
            assert attach.snd_settle_mode is SenderSettleMode.SETTLED, "what is the peer's to choose"
        else:
            assert attach.rcv_settle_mode is ReceiverSettleMode.SECOND
        assert detach == Detach(handle=0, closed=True, error=WHY)
        assert link.state is S.DISCARDING
        with pytest.raises(CommandError):
            link.refuse(WHY)
        scripted.peer.write(Detach(handle=0, closed=True))
        assert link.state is S.DETACHED
        assert scripted.session().all_links == []


def test_only_an_attach_of_the_peer_can_be_refused() -> None:
    pair = Pair()
    with pytest.raises(CommandError):
        pair.open().attach(Terminus("x", Role.SENDER)).refuse(WHY)


@pytest.mark.parametrize(("said", "means"), [(None, 0), (0, 0), (700, 700)])
def test_the_peers_largest_message_is_known_once_it_has_attached(said: int | None, means: int) -> None:
    pair = Pair()
    link = pair.open().attach(Terminus("x", Role.SENDER))
    assert link.remote_max_message_size == 0
    scripted = consuming(max_message_size=said)
    assert scripted.sender().remote_max_message_size == means


def test_a_link_that_both_attach_at_once_is_one_link() -> None:
    pair = Pair()
    session = pair.open()
    other = pair.server.engine.channels.incoming[0]
    ours = session.attach(Terminus("x", Role.SENDER), initial_delivery_count=7)
    theirs = other.attach(Terminus("x", Role.RECEIVER))
    assert isinstance(ours, Sender)
    assert isinstance(theirs, Receiver)
    # Pipelined: credit for a sender whose attach has not come, of which no delivery-count is known (§2.6.7).
    theirs.flow(3)
    pair.run()
    assert ours.is_attached
    assert theirs.is_attached
    assert (ours.delivery_count, ours.credit) == (theirs.delivery_count, theirs.credit) == (7, 3)
    for number in range(3):
        ours.transfer(ours.delivery(bytes((number,))), b"x")
    pair.run()
    assert len(pair.server.take(events.TransferReceived)) == 3
    assert not pair.server.take(events.LinkDetached)


def test_a_link_of_one_direction_has_nothing_to_do_with_one_of_that_name_in_the_other() -> None:
    pair = Pair()
    session = pair.open()
    out = session.attach(Terminus("x", Role.SENDER))
    back = session.attach(Terminus("x", Role.RECEIVER))
    with pytest.raises(CommandError):
        session.attach(Terminus("x", Role.SENDER))
    pair.run()
    assert out.is_attached
    assert back.is_attached
    assert (out.flow_state.handle, back.flow_state.handle) == (0, 1)


def test_an_attach_of_ours_that_does_not_fit_into_the_peers_frames_changes_nothing() -> None:
    pair = Pair(server={"max_frame_size": 512})
    session = pair.open()
    with pytest.raises(CommandError):
        session.attach(Terminus("n" * 600, Role.SENDER))
    assert session.all_links == []
    link = session.attach(Terminus("n", Role.SENDER))
    assert link.flow_state.handle == 0
    pair.run()
    assert link.is_attached


def test_an_answer_that_does_not_fit_into_the_peers_frames_ends_the_session() -> None:
    scripted = Scripted()
    scripted.peer.open(max_frame_size=512)
    scripted.peer.write(begun(), frame(begun(), channel=1), attached(Role.SENDER, "a" * 600), flow(echo=True))
    *_, end = scripted.peer.expect_all(Begin, Begin, End)
    assert isinstance(end, End)
    assert end.error is not None
    assert end.error.condition == AmqpCondition.FRAME_SIZE_TOO_SMALL
    assert scripted.end.take_one(events.SessionEnded).error == end.error
    assert scripted.session(1).can_send


@pytest.mark.parametrize("gone", [False, True])
def test_an_answer_that_comes_late_and_does_not_fit_is_told_by_the_timer(gone: bool) -> None:
    scripted = Scripted(answers=False)
    scripted.peer.write(AMQP, Open(container_id="peer", max_frame_size=512))
    scripted.engine.open()
    scripted.peer.write(begun())
    scripted.session().begin()
    scripted.peer.write(attached(Role.SENDER, name="n" * 600))
    link = scripted.end.take_one(events.LinkAttached).link
    if gone:
        scripted.peer.write(Detach(handle=0))
        link.detach()
    else:
        link.refuse(WHY)
    assert scripted.end.take(events.SessionEnded) == []
    timer = scripted.engine.next_timer()
    assert timer is not None
    assert timer <= scripted.now
    scripted.advance(0.0)
    scripted.end.take_one(events.SessionEnded)


# Detach.


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("error", [None, WHY])
def test_a_detach_of_the_peer_is_told_and_answered(closed: bool, error: Error | None) -> None:
    scripted = producing(settings={"answers": True})
    link = scripted.link()
    scripted.peer.write(Detach(handle=0, closed=closed, error=error))
    event = scripted.end.take_one(events.LinkDetached)
    assert (event.closed, event.error, event.by_peer) == (closed or error is not None, error, True)
    assert scripted.peer.expect(Detach) == Detach(handle=0, closed=event.closed)
    assert link.state is S.DETACHED
    scripted.peer.write(attached(Role.SENDER, "b"))
    assert scripted.peer.expect(Attach).handle == 0


def test_a_peer_that_leaves_before_we_answered_gets_attach_and_detach() -> None:
    scripted = Scripted(answers=False)
    scripted.peer.write(AMQP, Open(container_id="peer"))
    scripted.engine.open()
    scripted.peer.write(begun())
    scripted.session().begin()
    scripted.peer.write(attached(Role.SENDER), Detach(handle=0, closed=True))
    link = scripted.end.take_one(events.LinkDetached).link
    assert link.state is S.DETACH_RCVD
    link.detach()
    scripted.peer.expect_header()
    scripted.peer.expect_all(Open, Begin, Attach, Detach)
    assert link.state is S.DETACHED


@pytest.mark.parametrize("error", [None, WHY])
def test_after_our_detach_what_comes_on_the_link_is_dropped_until_the_peers(error: Error | None) -> None:
    # The standard has the session end with errant-link; the peer cannot know, so we wait for its detach (§2.6.5).
    scripted = producing(credit=5, settings={"window": 4})
    link = scripted.receiver()
    link.detach(error=error)
    assert scripted.peer.expect(Detach) == Detach(handle=0, closed=True, error=error)
    for number in range(20):
        scripted.peer.write(transferred(number, more=number % 2 == 0))
        assert scripted.end.events == []
        scripted.peer.hear()
    scripted.peer.write(flow(next_outgoing_id=20, handle=0, delivery_count=3, link_credit=3, echo=True))
    assert scripted.end.events == []
    scripted.peer.write(Detach(handle=0, closed=True))
    assert link.state is S.DETACHED
    assert scripted.end.events == []
    scripted.peer.write(transferred(20))
    error_then = scripted.end.take_one(events.SessionEnded).error
    assert error_then is not None
    assert error_then.condition == (
        SessionCondition.ERRANT_LINK if error is not None else SessionCondition.UNATTACHED_HANDLE
    )


def test_a_handle_that_was_errant_is_as_good_as_any_once_it_is_used_again() -> None:
    scripted = producing(credit=5)
    scripted.receiver().detach(error=WHY)
    scripted.peer.write(Detach(handle=0, closed=True), attached(Role.SENDER, "b"), Detach(handle=0, closed=True))
    scripted.peer.hear()
    scripted.end.events.clear()
    scripted.peer.write(transferred(0))
    error = scripted.end.take_one(events.SessionEnded).error
    assert error is not None
    assert error.condition == SessionCondition.UNATTACHED_HANDLE


def test_what_is_dropped_counts_against_the_window_all_the_same() -> None:
    scripted = producing(credit=5, settings={"window": 4})
    scripted.receiver().detach()
    for number in range(4):
        scripted.end.receive(frame(transferred(number)), scripted.now)
    assert scripted.session().flow_state.held == 0
    scripted.end.receive(b"".join(frame(transferred(number)) for number in range(4, 9)), scripted.now)
    error = scripted.end.take_one(events.SessionEnded).error
    assert error is not None
    assert error.condition == SessionCondition.WINDOW_VIOLATION, "none of our flows was taken to the peer"


def test_a_link_given_up_before_the_peer_answered_is_over_when_it_has() -> None:
    for error in (None, WHY):
        scripted = Scripted(server=False)
        scripted.engine.open()
        session = scripted.engine.begin()
        scripted.peer.write(AMQP, Open(container_id="server"), begun(0))
        link = session.attach(Terminus("x", Role.SENDER))
        link.detach(error=error)
        scripted.end.events.clear()
        scripted.peer.write(attached(Role.RECEIVER, name="x", handle=3), flow(handle=3, link_credit=5))
        assert scripted.end.events == []
        scripted.peer.write(Detach(handle=3, closed=True))
        assert link.state is S.DETACHED
        assert session.all_links == []
        assert scripted.end.events == []


@pytest.mark.parametrize("errors", [(None, None), (WHY, None), (WHY, WHY)])
def test_both_may_close_a_link_at_once(errors: tuple[Error | None, Error | None]) -> None:
    pair = Pair()
    link = pair.open().attach(Terminus("x", Role.SENDER))
    pair.run()
    other = pair.server.engine.channels.incoming[0].links[0]
    for each, error in zip((link, other), errors, strict=True):
        each.detach(error=error)
    pair.run()
    assert link.state is other.state is S.DETACHED
    for end in (pair.client, pair.server):
        assert not end.take(events.LinkDetached)
        assert not end.take(events.SessionEnded)


def test_a_link_that_is_closed_while_it_is_only_detached_here_is_closed_in_turn() -> None:
    # §2.6.6: by attaching it again, and closing it then.
    pair = Pair()
    session = pair.open()
    link = session.attach(Terminus("x", Role.SENDER))
    pair.run()
    other = pair.server.engine.channels.incoming[0].links[0]
    assert isinstance(other, Receiver)
    other.flow(1)
    pair.run()
    assert isinstance(link, Sender)
    link.transfer(link.delivery(b"t"), b"x")
    pair.run()
    pair.server.events.clear()
    pair.client.events.clear()
    link.detach(closed=False)
    other.detach(closed=True)
    pair.run()
    event = pair.client.take_one(events.LinkDetached)
    assert event.link is link
    assert event.closed
    assert not event.by_peer, "it is answered"
    again = pair.server.take_one(events.LinkAttached)
    assert again.attach.name == "x"
    assert pair.server.take_one(events.LinkDetached).link is again.link
    assert session.all_links == pair.server.engine.channels.incoming[0].all_links == []
    assert not session.flow_state.outgoing, "of its deliveries nothing more can be said"
    pair.run()
    assert pair.client.events == []


def test_a_link_is_detached_once() -> None:
    scripted = producing()
    link = scripted.receiver()
    link.detach()
    for command in (link.detach, link.attach):
        with pytest.raises(CommandError):
            command()
    link.flow(5)
    scripted.peer.expect(Detach)


def test_deliveries_of_a_link_that_is_only_detached_can_still_be_settled() -> None:
    scripted = producing(credit=5)
    scripted.peer.write(transferred(0), transferred(1))
    (first, _), (second, _) = scripted.transfers()
    scripted.peer.write(Detach(handle=0))
    scripted.peer.expect(Detach)
    dispose(first, ACCEPTED_STATE, settled=True)
    scripted.peer.expect(Disposition)
    scripted.end.events.clear()
    scripted.peer.write(Disposition(role=Role.SENDER, first=1, settled=True))
    assert scripted.end.take_one(events.DispositionReceived).deliveries == [second]


def test_deliveries_of_a_link_that_is_closed_are_spoken_of_no_more() -> None:
    scripted = producing(credit=5)
    scripted.peer.write(transferred(0))
    ((delivery, _),) = scripted.transfers()
    scripted.peer.write(Detach(handle=0, closed=True))
    scripted.peer.expect(Detach)
    scripted.end.events.clear()
    dispose(delivery, ACCEPTED_STATE, settled=True)
    scripted.peer.write(Disposition(role=Role.SENDER, first=0, settled=True))
    assert scripted.peer.hear() == []
    assert scripted.end.events == []


# Credit (§2.6.7).


def test_a_flow_sets_the_credit_that_its_limit_leaves() -> None:
    scripted = consuming(credit=3)
    sender = scripted.sender()
    for number in range(2):
        sender.transfer(sender.delivery(bytes((number,))))
    assert sender.credit == 1
    scripted.peer.write(flow(handle=0, delivery_count=0, link_credit=5, next_incoming_id=0))
    assert sender.credit == 3, "two of the five are used"
    scripted.peer.write(flow(handle=0, delivery_count=2, link_credit=5, next_incoming_id=2))
    assert sender.credit == 5
    scripted.peer.write(flow(handle=0, delivery_count=0, link_credit=1, next_incoming_id=2))
    assert sender.credit == 0, "never below"
    with pytest.raises(CommandError):
        sender.transfer(sender.delivery(b"late"))


def test_a_flow_without_credit_leaves_it_as_it_is() -> None:
    scripted = consuming(credit=3)
    scripted.peer.write(flow(handle=0, delivery_count=0))
    assert scripted.sender().credit == 3
    assert len(scripted.end.take(events.CreditChanged)) == 1


def test_credit_given_twice_before_the_peer_knows_our_count_is_given_once() -> None:
    scripted = Scripted(server=False)
    scripted.engine.open()
    session = scripted.engine.begin()
    scripted.peer.write(AMQP, Open(container_id="server"), begun(0))
    sender = session.attach(Terminus("x", Role.SENDER), initial_delivery_count=2**32 - 1)
    assert isinstance(sender, Sender)
    pipelined = flow(next_incoming_id=None, handle=0, link_credit=5)
    scripted.peer.write(attached(Role.RECEIVER, name="x"), pipelined)
    for number in range(3):
        sender.transfer(sender.delivery(bytes((number,))))
    scripted.peer.write(pipelined)
    assert sender.credit == 2


@pytest.mark.parametrize("credit", [2**31 - 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("count", [0, 5, 2**32 - 1])
def test_credit_without_end_is_credit(credit: int, count: int) -> None:
    pair = Pair()
    sender = pair.open().attach(Terminus("x", Role.SENDER), initial_delivery_count=count)
    pair.run()
    assert isinstance(sender, Sender)
    session = pair.server.engine.channels.incoming[0]
    session.write(flow(handle=session.links[0].flow_state.handle, delivery_count=count, link_credit=credit))
    pair.run()
    assert sender.credit == 2**31 - 1
    sender.transfer(sender.delivery(b"x"))
    assert sender.credit == 2**31 - 2


def test_a_transfer_without_credit_detaches_the_link() -> None:
    scripted = producing(credit=2)
    scripted.peer.write(transferred(0), transferred(1), transferred(2))
    assert len(scripted.end.take(events.TransferReceived)) == 2
    assert failed(scripted).condition == LinkCondition.TRANSFER_LIMIT_EXCEEDED
    scripted.peer.write(transferred(3), Detach(handle=0, closed=True), attached(Role.SENDER, "b"))
    scripted.peer.expect(Attach)


def test_a_transfer_before_any_credit_detaches_the_link_even_if_it_is_not_attached_yet() -> None:
    scripted = Scripted(answers=False)
    scripted.peer.write(AMQP, Open(container_id="peer"), begun(), attached(Role.SENDER), transferred())
    scripted.peer.expect_header()
    *_, attach, detach = scripted.peer.expect_all(Open, Begin, Attach, Detach)
    assert isinstance(attach, Attach)
    assert attach.target is None
    assert isinstance(detach, Detach)
    assert detach.error is not None
    assert detach.error.condition == LinkCondition.TRANSFER_LIMIT_EXCEEDED
    scripted.end.take_one(events.LinkDetached)


def test_what_was_sent_under_a_higher_limit_is_no_error() -> None:
    scripted = producing(credit=5)
    receiver = scripted.receiver()
    receiver.flow(0)
    assert scripted.peer.expect(Flow).link_credit == 0
    for number in range(5):
        scripted.peer.write(transferred(number))
    assert len(scripted.transfers()) == 5
    assert receiver.credit == 0
    scripted.peer.write(transferred(5))
    assert failed(scripted).condition == LinkCondition.TRANSFER_LIMIT_EXCEEDED


def test_once_the_peer_has_shown_that_it_knows_the_lower_limit_that_holds() -> None:
    scripted = producing(credit=5)
    scripted.receiver().flow(1, echo=True)
    told = scripted.peer.expect(Flow)
    assert told.echo
    assert told.link_credit == 1
    scripted.peer.write(flow(handle=0, delivery_count=0, link_credit=1), transferred(0), transferred(1))
    assert len(scripted.transfers()) == 1
    assert failed(scripted).condition == LinkCondition.TRANSFER_LIMIT_EXCEEDED


def test_credit_that_is_raised_counts_from_where_the_sender_is() -> None:
    scripted = producing(credit=2, initial_delivery_count=2**32 - 1)
    scripted.peer.write(transferred(0))
    scripted.receiver().flow(4)
    told = scripted.peer.expect(Flow)
    assert (told.delivery_count, told.link_credit) == (0, 4)
    for number in range(1, 5):
        scripted.peer.write(transferred(number))
    assert len(scripted.transfers()) == 5
    scripted.peer.write(transferred(5))
    assert failed(scripted).condition == LinkCondition.TRANSFER_LIMIT_EXCEEDED


def test_available_is_told_and_goes_down_with_what_comes_and_never_below_nothing() -> None:
    scripted = producing(credit=5)
    receiver = scripted.receiver()
    scripted.peer.write(flow(handle=0, delivery_count=0, link_credit=5, available=2))
    assert receiver.flow_state.available == 2
    for number in range(3):
        scripted.peer.write(transferred(number))
    assert receiver.flow_state.available == 0
    receiver.flow(5)
    assert scripted.peer.expect(Flow).available == 0

    scripted = consuming()
    scripted.sender().offer(7)
    scripted.peer.write(flow(handle=0, delivery_count=0, link_credit=0, echo=True))
    assert scripted.peer.expect(Flow).available == 7


def test_a_link_flow_is_echoed_with_the_links_state() -> None:
    scripted = consuming(credit=3)
    scripted.sender().transfer(scripted.sender().delivery(b"x"))
    scripted.peer.write(flow(handle=0, delivery_count=0, link_credit=3, next_incoming_id=0, echo=True))
    transfer, told = scripted.peer.expect_all(Transfer, Flow)
    assert isinstance(transfer, Transfer)
    assert isinstance(told, Flow)
    assert (told.handle, told.delivery_count, told.link_credit, told.drain, told.echo) == (0, 1, 2, False, False)
    assert told.next_outgoing_id == 1


def test_a_drain_with_nothing_to_send_uses_up_the_credit_and_says_so() -> None:
    scripted = consuming(credit=3)
    scripted.peer.write(flow(handle=0, delivery_count=0, link_credit=3, drain=True))
    sender = scripted.end.take_one(events.DrainRequested).link
    assert scripted.peer.hear() == [], "it is for the owner to say that there is nothing"
    sender.transfer(sender.delivery(b"last"))
    sender.drained()
    _, told = scripted.peer.expect_all(Transfer, Flow)
    assert isinstance(told, Flow)
    assert (told.delivery_count, told.link_credit, told.drain) == (3, 0, True)
    assert sender.credit == 0
    scripted.peer.write(flow(handle=0, delivery_count=3, link_credit=1, next_incoming_id=1))
    assert sender.credit == 1
    sender.drained()
    assert scripted.peer.hear() == [], "nobody asks for it now"


def test_one_credit_can_be_drained() -> None:
    scripted = consuming()
    scripted.peer.write(flow(handle=0, delivery_count=0, link_credit=1, drain=True))
    scripted.end.take_one(events.DrainRequested).link.drained()
    assert scripted.peer.expect(Flow).delivery_count == 1


def test_a_drain_of_no_credit_is_answered_at_once() -> None:
    scripted = consuming()
    scripted.peer.write(flow(handle=0, delivery_count=0, link_credit=0, drain=True))
    assert scripted.end.take(events.DrainRequested) == []
    told = scripted.peer.expect(Flow)
    assert (told.delivery_count, told.link_credit, told.drain) == (0, 0, True)


def test_a_drained_sender_gives_its_credit_back() -> None:
    scripted = producing(credit=5, initial_delivery_count=2**32 - 3)
    receiver = scripted.receiver()
    receiver.flow(5, drain=True)
    assert scripted.peer.expect(Flow).drain
    scripted.peer.write(transferred(0), flow(next_outgoing_id=1, handle=0, delivery_count=2, link_credit=0, drain=True))
    assert receiver.credit == 0
    assert receiver.delivery_count == 2
    scripted.peer.write(transferred(1))
    assert failed(scripted).condition == LinkCondition.TRANSFER_LIMIT_EXCEEDED


def test_a_drain_may_be_answered_in_the_middle_of_a_delivery() -> None:
    scripted = producing(credit=5)
    receiver = scripted.receiver()
    receiver.flow(5, drain=True)
    scripted.peer.expect(Flow)
    scripted.peer.write(
        transferred(0, more=True), flow(next_outgoing_id=1, handle=0, delivery_count=5, link_credit=0, drain=True)
    )
    scripted.peer.write(transferred(0))
    assert len(scripted.transfers()) == 1
    assert (receiver.delivery_count, receiver.credit) == (5, 0)


def test_a_sender_that_counts_beyond_its_limit_is_detached() -> None:
    scripted = producing(credit=5)
    scripted.peer.write(flow(handle=0, delivery_count=6, link_credit=0))
    assert failed(scripted).condition == LinkCondition.TRANSFER_LIMIT_EXCEEDED


@given(st.integers(0, 2**32 - 1), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6)), max_size=20))
def test_both_ends_agree_on_the_credit_wherever_the_count_begins(start: int, rounds: list[tuple[int, int]]) -> None:
    pair = Pair()
    sender = pair.open().attach(Terminus("x", Role.SENDER), initial_delivery_count=start)
    pair.run()
    assert isinstance(sender, Sender)
    receiver = pair.server.engine.channels.incoming[0].links[0]
    assert isinstance(receiver, Receiver)
    sent = 0
    for credit, wanted in rounds:
        receiver.flow(credit)
        # It crosses what is sent under the old limit.
        while sender.credit and wanted > 3:
            sender.transfer(sender.delivery(sent.to_bytes(4, "big")))
            sent += 1
            wanted -= 1
        pair.run()
        for _ in range(min(sender.credit, wanted)):
            sender.transfer(sender.delivery(sent.to_bytes(4, "big")))
            sent += 1
        pair.run()
        assert sender.delivery_count == receiver.delivery_count == serial_add(start, sent)
        assert sender.credit == receiver.credit
    assert len(pair.server.take(events.TransferReceived)) == sent
    assert not pair.server.take(events.LinkDetached)


# Deliveries in frames (§2.6.14, §2.7.5).


def small_frames(*, credit: int = 5) -> Scripted:
    """The peer receives, in frames of 512 octets; its reader refuses larger ones."""
    scripted = Scripted(peer_frame_size=512)
    scripted.peer.open(max_frame_size=512)
    scripted.peer.write(begun(), attached(Role.RECEIVER), flow(handle=0, delivery_count=0, link_credit=credit))
    scripted.peer.hear()
    scripted.end.events.clear()
    return scripted


def test_a_delivery_of_many_frames_has_its_particulars_in_the_first() -> None:
    scripted = small_frames()
    sender = scripted.sender()
    payload = bytes(range(256)) * 5
    assert sender.transfer(sender.delivery(b"tag", message_format=7), payload) == len(payload)
    heard = scripted.peer.hear()
    assert [each.performative for each in heard] == [
        Transfer(handle=0, delivery_id=0, delivery_tag=b"tag", message_format=7, more=True),
        Transfer(handle=0, more=True),
        Transfer(handle=0),
    ]
    assert b"".join(each.payload for each in heard) == payload
    assert sender.credit == 4, "one delivery, however many frames"


@pytest.mark.parametrize("size", [0, 1, 480, 486, 487, 488, 489, 490, 491, 492, 493, 500, 512, 1000, 5000])
def test_frames_are_cut_at_what_the_peer_takes_and_no_octet_is_lost(size: int) -> None:
    scripted = small_frames()
    sender = scripted.sender()
    payload = bytes(each % 251 for each in range(size))
    sender.transfer(sender.delivery(b"x" * 32), payload)
    heard = scripted.peer.hear()
    assert b"".join(each.payload for each in heard) == payload
    last = heard[-1].performative
    assert isinstance(last, Transfer)
    assert not last.more
    assert len(heard) <= size // 440 + 1


def test_a_delivery_is_sent_as_its_parts_come() -> None:
    scripted = small_frames()
    sender = scripted.sender()
    delivery = sender.delivery(b"t")
    for part in (b"one", b"", b"two"):
        sender.transfer(delivery, part, more=True)
    assert not delivery.complete
    other = sender.delivery(b"u")
    with pytest.raises(CommandError):
        sender.transfer(other, b"transfers of one link do not interleave")
    sender.transfer(delivery)
    assert delivery.complete
    heard = scripted.peer.hear()
    assert [(each.payload, getattr(each.performative, "more", None)) for each in heard] == [
        (b"one", True),
        (b"two", True),
        (b"", False),
    ]
    with pytest.raises(CommandError):
        sender.transfer(delivery, b"more")
    sender.transfer(other)


def test_a_delivery_may_be_settled_half_way_or_given_up() -> None:
    scripted = small_frames()
    sender = scripted.sender()
    settled = sender.delivery(b"s")
    sender.transfer(settled, b"one", more=True)
    sender.transfer(settled, b"two", settled=True)
    aborted = sender.delivery(b"a")
    with pytest.raises(CommandError):
        sender.transfer(aborted, aborted=True)
    sender.transfer(aborted, b"one", more=True)
    sender.transfer(aborted, aborted=True)
    assert aborted.complete
    assert aborted.aborted
    said = [each.performative for each in scripted.peer.hear()]
    assert said[1] == Transfer(handle=0, settled=True)
    assert said[3] == Transfer(handle=0, aborted=True)
    assert not scripted.session().flow_state.outgoing
    assert not sender.terminus.unsettled


@pytest.mark.parametrize("settled", [False, True])
def test_the_state_of_a_delivery_goes_with_its_first_frame(settled: bool) -> None:
    scripted = small_frames()
    sender = scripted.sender()
    state = Received(section_number=1, section_offset=2)
    sender.transfer(sender.delivery(b"t", settled=settled), b"x", state=encode_composite(state))
    transfer = scripted.peer.expect(Transfer)
    assert transfer.state == state
    assert bool(transfer.settled) is settled


def test_a_state_that_does_not_fit_goes_shortly() -> None:
    scripted = small_frames()
    long = Rejected(error=Error(condition=Symbol("x" * 80), description="ü" * 400))
    sender = scripted.sender()
    sender.transfer(sender.delivery(b"t" * 32), b"payload", state=encode_composite(long))
    heard = scripted.peer.hear()
    assert b"".join(each.payload for each in heard) == b"payload"
    first = heard[0].performative
    assert isinstance(first, Transfer)
    assert first.state == Rejected(error=Error(condition=Symbol("x" * 80), description="ü" * 60))


@pytest.mark.parametrize("size", range(380, 480, 3))
def test_with_a_state_of_any_size_frames_are_no_larger_than_the_peer_takes(size: int) -> None:
    scripted = small_frames(credit=1)
    state = encode_composite(Rejected(error=Error(condition=Symbol("x:y"), description="d" * size)))
    sender = scripted.sender()
    sender.transfer(sender.delivery(b"t" * 32, settled=True), b"payload", state=state)
    heard = scripted.peer.hear()
    assert b"".join(each.payload for each in heard) == b"payload"


def test_a_tag_is_short_and_its_own() -> None:
    scripted = small_frames()
    sender = scripted.sender()
    with pytest.raises(CommandError):
        sender.delivery(b"x" * 33)
    sender.transfer(sender.delivery(b"t"))
    with pytest.raises(CommandError):
        sender.delivery(b"t")
    scripted.peer.write(Disposition(role=Role.RECEIVER, first=0, settled=True, state=Accepted()))
    (delivery,) = scripted.end.take_one(events.DispositionReceived).deliveries
    dispose(delivery, None, settled=True)
    sender.transfer(sender.delivery(b"t"))


def test_a_message_of_many_frames_is_told_frame_by_frame() -> None:
    scripted = producing(credit=5)
    scripted.peer.write(
        frame(transferred(0, more=True, message_format=3), b"one"),
        frame(Transfer(handle=0, more=True), b"two"),
        frame(Transfer(handle=0), b"three"),
    )
    received = scripted.end.take(events.TransferReceived)
    assert [(event.payload, event.first) for event in received] == [(b"one", True), (b"two", False), (b"three", False)]
    (delivery,) = {event.delivery for event in received}
    assert (delivery.tag, delivery.message_format, delivery.size, delivery.complete) == (bytes(4), 3, 11, True)
    assert scripted.receiver().delivery_count == 1


def test_frames_of_different_links_may_interleave() -> None:
    scripted = producing(credit=5)
    scripted.peer.write(attached(Role.SENDER, "b", handle=1))
    scripted.receiver(1).flow(5)
    scripted.peer.write(
        frame(transferred(0, more=True), b"a"),
        frame(transferred(1, handle=1, more=True), b"b"),
        frame(Transfer(handle=0), b"A"),
        frame(Transfer(handle=1), b"B"),
    )
    assert [payload for _, payload in scripted.transfers()] == [b"aA", b"bB"]


@pytest.mark.parametrize("more", [False, True])
def test_an_aborted_delivery_is_over_and_what_stands_in_its_last_frame_is_ignored(more: bool) -> None:
    scripted = producing(credit=5)
    scripted.peer.write(
        frame(transferred(0, more=True), b"one"), frame(Transfer(handle=0, aborted=True, more=more), b"ignored")
    )
    ((delivery, payload),) = scripted.transfers()
    assert delivery.aborted
    assert delivery.settled
    assert payload == b"one"
    assert not scripted.session().flow_state.incoming
    scripted.peer.write(transferred(1, delivery_tag=bytes(4)))
    assert len(scripted.transfers()) == 1, "its tag and its place are free"


def test_a_delivery_may_be_aborted_with_its_only_frame() -> None:
    scripted = producing(credit=5)
    scripted.peer.write(frame(transferred(0, aborted=True), b"ignored"))
    assert [(delivery.aborted, payload) for delivery, payload in scripted.transfers()] == [(True, b"")]
    assert not scripted.session().flow_state.incoming


def test_a_delivery_that_is_settled_in_any_frame_is_settled() -> None:
    scripted = producing(credit=5)
    scripted.peer.write(
        transferred(0, more=True),
        Transfer(handle=0, more=True, settled=True),
        Transfer(handle=0),
        Disposition(role=Role.SENDER, first=0, settled=True),
    )
    ((delivery, _),) = scripted.transfers()
    assert delivery.remote_settled
    assert scripted.end.take(events.DispositionReceived) == []


def test_a_resumed_delivery_that_we_do_not_know_is_read_and_ignored() -> None:
    scripted = producing(credit=5, settings={"window": 8})
    scripted.peer.write(
        transferred(0, resume=True, more=True),
        Transfer(handle=0, resume=True, more=True),
        Transfer(handle=0),
        transferred(1, resume=True, state=Accepted(), settled=True),
        transferred(2),
    )
    assert [delivery.delivery_id for delivery, _ in scripted.transfers()] == [2]
    assert scripted.receiver().delivery_count == 3
    assert scripted.session().flow_state.held == 0
    assert len(scripted.end.take(events.DeliveryIgnored)) == 2, "each used one of the credit"
    assert scripted.end.events == []


@pytest.mark.parametrize("role", list(Role))
def test_an_unsettled_map_is_parsed(role: Role) -> None:
    unsettled = {b"one": None, b"two": Accepted(), b"three": Received(section_number=1, section_offset=9)}
    scripted = Scripted()
    scripted.peer.open()
    scripted.peer.write(begun(), attached(role, unsettled=unsettled, incomplete_unsettled=True))
    attach = scripted.end.take_one(events.LinkAttached).attach
    assert attach.unsettled == unsettled
    assert attach.incomplete_unsettled
    empty = attached(role, "b", handle=1)
    scripted.peer.write(replace(empty, unsettled={}), replace(empty, name="c", handle=2))
    with_map, without = scripted.end.take(events.LinkAttached)
    assert with_map.attach.unsettled == {}
    assert without.attach.unsettled is None, "to resume and to attach again differ (§2.6.13)"


def test_a_message_that_is_larger_than_we_take_detaches_the_link() -> None:
    def limited() -> Scripted:
        scripted = Scripted(answers=False)
        scripted.peer.write(AMQP, Open(container_id="peer"))
        scripted.engine.open()
        scripted.peer.write(begun(), attached(Role.SENDER))
        scripted.session().begin()
        scripted.link().attach(max_message_size=10)
        scripted.receiver().flow(5)
        scripted.peer.expect_header()
        scripted.peer.hear()
        scripted.end.events.clear()
        return scripted

    scripted = limited()
    scripted.peer.write(frame(transferred(0), bytes(10)), frame(transferred(1), bytes(11)))
    assert len(scripted.transfers()) == 1
    assert failed(scripted).condition == LinkCondition.MESSAGE_SIZE_EXCEEDED

    scripted = limited()
    scripted.peer.write(frame(transferred(0, more=True), bytes(6)), frame(Transfer(handle=0), bytes(5)))
    assert failed(scripted).condition == LinkCondition.MESSAGE_SIZE_EXCEEDED


@pytest.mark.parametrize(
    ("attach", "transfer", "condition"),
    [
        pytest.param({}, {"delivery_tag": b"\0\0\0\0"}, AmqpCondition.NOT_ALLOWED, id="a tag in use"),
        pytest.param(
            {"snd_settle_mode": SenderSettleMode.UNSETTLED},
            {"settled": True},
            AmqpCondition.INVALID_FIELD,
            id="settled on a link of unsettled ones",
        ),
        pytest.param(
            {"rcv_settle_mode": ReceiverSettleMode.FIRST},
            {"rcv_settle_mode": ReceiverSettleMode.SECOND},
            AmqpCondition.INVALID_FIELD,
            id="mode second on a link of mode first",
        ),
    ],
)
def test_what_breaks_a_link_detaches_it_with_the_reason(
    attach: dict[str, object], transfer: dict[str, object], condition: Symbol
) -> None:
    scripted = producing(credit=5, **attach)
    scripted.peer.write(transferred(0))
    scripted.end.events.clear()
    scripted.peer.write(transferred(1, **transfer))
    assert failed(scripted).condition == condition


# Settle modes (§2.8.2, §2.8.3).


def test_in_mode_first_the_receiver_settles_when_it_has_it() -> None:
    sent, received, pair = exchanged(ReceiverSettleMode.FIRST)
    assert not received.second
    dispose(received, ACCEPTED_STATE, settled=True)
    pair.run()
    event = pair.client.take_one(events.DispositionReceived)
    assert event.deliveries == [sent]
    assert event.settled
    dispose(sent, None, settled=True)
    pair.run()
    assert pair.server.events == [], "of what is settled nothing is said"
    assert_empty(pair)


def test_in_mode_second_the_receiver_settles_after_the_sender() -> None:
    sent, received, pair = exchanged(ReceiverSettleMode.SECOND)
    assert received.second
    dispose(received, ACCEPTED_STATE, settled=False)
    pair.run()
    assert not pair.client.take_one(events.DispositionReceived).settled
    dispose(sent, None, settled=True)
    pair.run()
    event = pair.server.take_one(events.DispositionReceived)
    assert event.deliveries == [received]
    assert event.settled
    dispose(received, ACCEPTED_STATE, settled=True)
    pair.run()
    assert pair.client.events == []
    assert_empty(pair)


def test_a_delivery_of_a_link_of_mode_second_may_be_of_mode_first() -> None:
    scripted = producing(credit=5, rcv_settle_mode=ReceiverSettleMode.SECOND)
    scripted.peer.write(transferred(0, rcv_settle_mode=ReceiverSettleMode.FIRST), transferred(1))
    assert [delivery.second for delivery, _ in scripted.transfers()] == [False, True]


def test_a_presettled_delivery_is_over_when_it_is_sent() -> None:
    pair, sender, receiver = connected(ReceiverSettleMode.FIRST)
    receiver.flow(1)
    pair.run()
    sender.transfer(sender.delivery(b"t", settled=True), b"x")
    pair.run()
    delivery = pair.server.take_one(events.TransferReceived).delivery
    assert delivery.settled
    dispose(delivery, ACCEPTED_STATE, settled=True)
    pair.run()
    assert pair.client.take(events.DispositionReceived) == []
    assert_empty(pair)


def connected(mode: ReceiverSettleMode) -> tuple[Pair, Sender, Receiver]:
    pair = Pair()
    sender = pair.open().attach(Terminus("x", Role.SENDER), rcv_settle_mode=mode)
    pair.run()
    receiver = pair.server.engine.channels.incoming[0].links[0]
    assert isinstance(sender, Sender)
    assert isinstance(receiver, Receiver)
    return pair, sender, receiver


def exchanged(mode: ReceiverSettleMode) -> tuple[Delivery, Delivery, Pair]:
    pair, sender, receiver = connected(mode)
    receiver.flow(1)
    pair.run()
    sent = sender.delivery(b"t")
    sender.transfer(sent, b"x")
    pair.run()
    received = pair.server.take_one(events.TransferReceived).delivery
    pair.client.events.clear()
    pair.server.events.clear()
    return sent, received, pair


def assert_empty(pair: Pair) -> None:
    for end in (pair.client, pair.server):
        session = end.engine.channels.incoming[0]
        assert not session.flow_state.outgoing
        assert not session.flow_state.incoming
        assert not any(link.terminus.unsettled for link in session.all_links)
