"""Attach and detach of links, by either side and by both (§2.6.1 to §2.6.6)."""

import pytest

from amqpmesh.router.amqp import events
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.amqp.link import Receiver, Sender, Terminus
from amqpmesh.router.amqp.standard.definitions import (
    AmqpCondition,
    Error,
    ReceiverSettleMode,
    Role,
    SenderSettleMode,
    SessionCondition,
)
from amqpmesh.router.amqp.standard.messaging import Source, Target
from amqpmesh.router.amqp.standard.performatives import Attach, Begin, Detach, Disposition, End, Flow, Open
from amqpmesh.router.amqp.states import LinkEndpointState
from amqpmesh.router.kernel import ACCEPTED_STATE, dispose
from tests.support.peers.engine_pair import Pair, Scripted
from tests.support.peers.scripted import AMQP, attached, begun, flow, frame, transferred
from tests.support.peers.scripted_link import consuming, producing

S = LinkEndpointState
WHY = Error(condition=AmqpCondition.NOT_FOUND, description="there is no such thing")


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
    # Pipelined: credit for a sender whose attach has not come, so its delivery-count is unknown (§2.6.7).
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


def test_the_two_ends_of_a_link_have_handles_of_their_own() -> None:
    scripted = Scripted(server=False)
    scripted.engine.open()
    session = scripted.engine.begin()
    scripted.peer.write(AMQP, Open(container_id="server"), begun(0))
    link = session.attach(Terminus("x", Role.SENDER))
    assert isinstance(link, Sender)
    scripted.peer.write(
        attached(Role.RECEIVER, name="x", handle=5), flow(handle=5, delivery_count=0, link_credit=3, echo=True)
    )
    assert link.credit == 3
    scripted.peer.expect_header()
    told = scripted.peer.expect_all(Open, Begin, Attach, Flow)[-1]
    assert isinstance(told, Flow)
    assert told.handle == 0
    scripted.peer.write(Detach(handle=5, closed=True))
    assert scripted.peer.expect(Detach).handle == 0


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


def test_an_attach_of_too_many_values_ends_its_link_alone_whichever_side_began_it() -> None:
    scripted = Scripted(max_values=100)
    scripted.peer.open()
    scripted.peer.begin()
    ours = scripted.session().attach(Terminus("ours", Role.SENDER), target=Target(address="q"))
    asked = scripted.peer.expect(Attach)
    many = {Symbol("p"): [None] * 100}
    scripted.peer.write(attached(Role.RECEIVER, "q", name="ours", handle=3, properties=many))
    detach = scripted.peer.expect(Detach)
    assert detach.handle == asked.handle
    assert detach.error is not None
    assert detach.error.condition == AmqpCondition.RESOURCE_LIMIT_EXCEEDED
    event = scripted.end.take_one(events.LinkDetached)
    assert (event.link, event.error, event.by_peer) == (ours, detach.error, False)

    scripted.peer.write(attached(Role.SENDER, "q", handle=4, properties=many))
    refused, why = scripted.peer.expect_all(Attach, Detach)
    assert isinstance(refused, Attach)
    assert refused.target is None
    assert isinstance(why, Detach)
    assert why.error == detach.error
    assert scripted.end.take(events.LinkAttached) == []
    # Both handles can be used again after the peer has detached, too; 40 values are below the limit.
    scripted.peer.write(Detach(handle=3, closed=True), Detach(handle=4, closed=True))
    few = {Symbol("p"): [None] * 40}
    scripted.peer.write(*(attached(Role.SENDER, f"q{handle}", handle=handle, properties=few) for handle in (3, 4)))
    assert len(scripted.end.take(events.LinkAttached)) == 2


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
    # By the standard the session ends with errant-link; but the peer cannot know, so we wait for its detach (§2.6.5).
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


def test_a_dropped_transfer_counts_against_the_window() -> None:
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
    # §2.6.6: the link is attached again, and then closed.
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
    assert again.attach.unsettled is None, "it is attached again, not resumed (§2.7.3)"
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


def test_deliveries_of_a_link_that_ended_with_an_error_are_spoken_of_no_more() -> None:
    # §2.6.5: the link endpoint is destroyed.
    scripted = producing(credit=1)
    scripted.peer.write(transferred(0))
    ((delivery, _),) = scripted.transfers()
    scripted.receiver().detach(error=WHY)
    assert scripted.peer.expect(Detach).error == WHY
    dispose(delivery, ACCEPTED_STATE, settled=True)
    scripted.peer.write(Disposition(role=Role.SENDER, first=0, settled=True))
    assert scripted.peer.hear() == []
    assert scripted.end.events == []
    assert not scripted.session().flow_state.incoming
