"""Sessions: begin and end, handles, and errors that end them (§2.5, §2.7.2, §2.7.8)."""

import pytest

from amqpmesh.router.amqp import events
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.amqp.link import Terminus
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error, Role, SessionCondition
from amqpmesh.router.amqp.standard.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Open,
    Performative,
)
from amqpmesh.router.amqp.states import ConnectionState, SessionState
from tests.support.peers.engine_pair import Pair, Scripted
from tests.support.peers.scripted import AMQP, attached, begun, flow, frame, transferred
from tests.support.peers.scripted_session import ended, mapped

S = SessionState
WHY = Error(condition=AmqpCondition.NOT_ALLOWED, description="no more of this")


def test_a_session_that_the_peer_begins_is_answered_on_a_channel_of_ours() -> None:
    scripted = Scripted(answers=False, handle_max=7, window=33, initial_outgoing_id=2**32 - 1)
    scripted.peer.write(AMQP, Open(container_id="peer"))
    scripted.engine.open()
    scripted.peer.expect_header()
    scripted.peer.expect(Open)
    scripted.peer.write(begun(), channel=9)
    session = scripted.end.take_one(events.SessionBegun).session
    assert session.state is S.BEGIN_RCVD
    assert not session.can_send
    with pytest.raises(CommandError):
        session.end()
    session.begin()
    assert session.state is S.MAPPED
    assert session.can_send
    begin = scripted.peer.expect(Begin)
    assert begin == Begin(
        remote_channel=9, next_outgoing_id=2**32 - 1, incoming_window=33, outgoing_window=2**31 - 1, handle_max=7
    )
    with pytest.raises(CommandError):
        session.begin()


def test_a_session_of_ours_is_mapped_when_the_peer_answers() -> None:
    pair = Pair()
    session = pair.open()
    assert session.state is S.MAPPED
    other = pair.client.engine.begin()
    assert other.state is S.BEGIN_SENT
    assert other.can_send, "frames may be pipelined behind a begin"
    pair.run()
    assert other.state is S.MAPPED


@pytest.mark.parametrize("error", [None, WHY])
def test_an_end_of_the_peer_is_answered_with_ours(error: Error | None) -> None:
    scripted = mapped()
    session = scripted.session()
    scripted.peer.write(End(error=error))
    assert scripted.peer.expect(End).error is None
    event = scripted.end.take_one(events.SessionEnded)
    assert (event.error, event.by_peer) == (error, True)
    assert session.state is S.UNMAPPED
    assert not session.can_send
    assert scripted.engine.channels.incoming == scripted.engine.channels.outgoing == {}


@pytest.mark.parametrize(("error", "state"), [(None, S.END_SENT), (WHY, S.DISCARDING)])
def test_after_our_end_what_comes_on_the_session_is_dropped_until_the_peers(
    error: Error | None, state: SessionState
) -> None:
    scripted = mapped(attach=attached(Role.SENDER), credit=5)
    session = scripted.session()
    session.end(error)
    assert session.state is state
    assert scripted.peer.expect(End).error == error
    scripted.peer.write(
        transferred(),
        attached(Role.RECEIVER, handle=1),
        flow(handle=44),
        Disposition(role=Role.SENDER, first=0, settled=True),
        Detach(handle=55),
    )
    assert scripted.end.events == []
    assert scripted.peer.hear() == []
    scripted.peer.write(End())
    assert session.state is S.UNMAPPED
    assert scripted.end.events == []
    scripted.peer.begin()


@pytest.mark.parametrize("errors", [(None, None), (WHY, None), (None, WHY), (WHY, WHY)])
def test_both_may_end_a_session_at_once(errors: tuple[Error | None, Error | None]) -> None:
    pair = Pair()
    session = pair.open()
    other = pair.server.engine.channels.incoming[0]
    for each, error in zip((session, other), errors, strict=True):
        each.end(error)
    pair.run()
    assert session.state is other.state is S.UNMAPPED
    for end in (pair.client, pair.server):
        assert end.take(events.SessionEnded) == [], "each takes the other's for the answer (§2.5.3)"
        assert end.engine.state is ConnectionState.OPENED
        assert end.engine.channels.incoming == end.engine.channels.outgoing == {}


def test_a_session_is_ended_once() -> None:
    scripted = mapped()
    session = scripted.session()
    session.end()
    for command in (session.end, session.begin, lambda: session.attach(Terminus("x", Role.SENDER))):
        with pytest.raises(CommandError):
            command()
    scripted.peer.expect(End)


def test_a_session_given_up_before_the_peer_answered_keeps_its_channel_until_then() -> None:
    scripted = Scripted(server=False)
    scripted.engine.open()
    scripted.peer.write(AMQP, Open(container_id="server"))
    scripted.peer.expect_header()
    hasty = scripted.engine.begin()
    hasty.end()
    assert hasty.state is S.END_SENT
    second = scripted.engine.begin()
    assert second.flow_state.channel == 1, "an answer to channel 0 is still to come"
    scripted.peer.write(frame(begun(0), channel=4), frame(begun(1), channel=5))
    assert [event.session for event in scripted.end.take(events.SessionBegun)] == [second]
    scripted.peer.write(frame(flow(), channel=4), frame(End(), channel=4))
    assert hasty.state is S.UNMAPPED
    assert scripted.end.take(events.SessionEnded) == []
    third = scripted.engine.begin()
    assert third.flow_state.channel == 0
    scripted.peer.write(begun(0), channel=4)
    assert third.state is S.MAPPED


def test_a_channel_that_we_ended_is_not_used_again_before_the_peer_ended_its_own() -> None:
    # Some peers answer on the channel of the same number, which is still in use on their side.
    scripted = mapped()
    first = scripted.session()
    first.end()
    second = scripted.engine.begin()
    assert second.flow_state.channel == 1
    scripted.peer.write(End())
    assert first.state is S.UNMAPPED
    assert scripted.engine.begin().flow_state.channel == 0


def test_a_session_that_the_peer_ends_before_our_begin_gets_both() -> None:
    scripted = Scripted(answers=False)
    scripted.peer.write(AMQP, Open(container_id="peer"), begun(), End(error=WHY))
    scripted.peer.expect_header()
    scripted.peer.expect_all(Open, Begin, End)
    scripted.end.take_one(events.SessionBegun)
    assert scripted.end.take_one(events.SessionEnded).error == WHY
    assert scripted.engine.channels.incoming == {}


def test_a_session_error_before_our_begin_comes_behind_it() -> None:
    scripted = Scripted(answers=False)
    scripted.peer.write(AMQP, Open(container_id="peer"), begun(), Detach(handle=3))
    scripted.peer.expect_header()
    _, _, end = scripted.peer.expect_all(Open, Begin, End)
    assert isinstance(end, End)
    assert end.error is not None
    assert end.error.condition == SessionCondition.UNATTACHED_HANDLE


def test_a_channel_may_be_used_again_as_soon_as_it_is_free() -> None:
    scripted = mapped(attach=attached(Role.SENDER), credit=5)
    scripted.peer.write(frame(End()), frame(begun()), frame(attached(Role.SENDER)), frame(End()), frame(begun()))
    heard = [type(each.performative) for each in scripted.peer.hear()]
    assert heard == [End, Begin, Attach, End, Begin]


# Errors of the peer.


@pytest.mark.parametrize(
    ("performative", "condition"),
    [
        pytest.param(transferred(handle=7), SessionCondition.UNATTACHED_HANDLE, id="transfer to no link"),
        pytest.param(flow(handle=7), SessionCondition.UNATTACHED_HANDLE, id="flow for no link"),
        pytest.param(Detach(handle=7), SessionCondition.UNATTACHED_HANDLE, id="detach of no link"),
        pytest.param(attached(Role.RECEIVER, "b"), SessionCondition.HANDLE_IN_USE, id="attach to a handle in use"),
        pytest.param(
            attached(Role.SENDER, handle=1, initial_delivery_count=None),
            AmqpCondition.INVALID_FIELD,
            id="a sender without initial-delivery-count",
        ),
        pytest.param(flow(next_incoming_id=1), AmqpCondition.INVALID_FIELD, id="a flow that counts what we never sent"),
        pytest.param(flow(next_incoming_id=2**31 - 1), AmqpCondition.INVALID_FIELD, id="... by half a world"),
        pytest.param(transferred(delivery_id=None), AmqpCondition.INVALID_FIELD, id="a delivery without id"),
        pytest.param(transferred(delivery_tag=None), AmqpCondition.INVALID_FIELD, id="a delivery without tag"),
    ],
)
def test_a_session_error_ends_the_session_with_the_reason(performative: Performative, condition: Symbol) -> None:
    scripted = mapped(attach=attached(Role.SENDER), credit=5)
    scripted.peer.write(begun(), channel=1)
    scripted.peer.hear()
    scripted.end.events.clear()
    session = scripted.session()
    scripted.peer.write(performative)
    assert ended(scripted).condition == condition
    assert session.state is S.DISCARDING
    assert scripted.session(1).state is S.MAPPED, "nothing else is disturbed"


def test_a_handle_above_the_handle_max_closes_the_connection() -> None:
    # §2.7.2: a framing-error of the connection, in any frame.
    for performative in (attached(Role.SENDER, handle=8), transferred(handle=8), flow(handle=8), Detach(handle=8)):
        scripted = mapped(handle_max=7)
        scripted.peer.write(performative)
        close = scripted.peer.expect(Close)
        assert close.error is not None
        assert close.error.condition == "amqp:connection:framing-error"


def test_the_highest_handle_is_as_good_as_any() -> None:
    scripted = mapped(handle_max=7, attach=attached(Role.SENDER, handle=7))
    scripted.peer.write(Detach(handle=7))
    scripted.peer.expect(Detach)
    scripted.end.events.clear()
    scripted.peer.write(flow(handle=7))
    assert ended(scripted).condition == SessionCondition.UNATTACHED_HANDLE


def test_a_transfer_on_a_link_that_we_send_on_is_not_allowed() -> None:
    scripted = mapped(attach=attached(Role.RECEIVER))
    scripted.peer.write(transferred())
    assert ended(scripted).condition == AmqpCondition.NOT_ALLOWED


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"delivery_id": 1}, id="id"),
        pytest.param({"delivery_tag": b"other"}, id="tag"),
        pytest.param({"message_format": 1}, id="format"),
    ],
)
def test_what_a_delivery_is_does_not_change_from_frame_to_frame(changed: dict[str, object]) -> None:
    scripted = mapped(attach=attached(Role.SENDER), credit=5)
    scripted.peer.write(transferred(0, more=True))
    scripted.end.take_one(events.TransferReceived)
    scripted.peer.write(transferred(**{"number": 0, **changed}))  # type: ignore[arg-type]  # fields of a transfer
    assert ended(scripted).condition == AmqpCondition.INVALID_FIELD


def test_a_delivery_id_in_use_is_refused_and_one_that_is_settled_is_free() -> None:
    scripted = mapped(attach=attached(Role.SENDER), credit=5)
    scripted.peer.write(transferred(3), transferred(4, settled=True), transferred(4))
    assert len(scripted.transfers()) == 3
    scripted.peer.write(transferred(3, delivery_tag=b"new"))
    assert ended(scripted).condition == AmqpCondition.INVALID_FIELD


def test_more_links_than_the_peer_allows_leave_no_room_for_our_answer() -> None:
    for answers in (True, False):
        scripted = Scripted(answers=answers)
        scripted.peer.write(AMQP, Open(container_id="peer"), begun(handle_max=1))
        if not answers:
            scripted.engine.open()
            scripted.session().begin()
        scripted.peer.write(attached(Role.SENDER, handle=5), attached(Role.SENDER, "b", handle=6))
        assert scripted.end.take(events.SessionEnded) == []
        scripted.peer.write(attached(Role.SENDER, "c", handle=7))
        error = scripted.end.take_one(events.SessionEnded).error
        assert error is not None
        assert error.condition == AmqpCondition.RESOURCE_LIMIT_EXCEEDED


def test_no_more_links_are_attached_than_the_peer_allows() -> None:
    pair = Pair(server={"handle_max": 1})
    session = pair.open()
    links = [session.attach(Terminus(name, Role.SENDER)) for name in "ab"]
    with pytest.raises(CommandError):
        session.attach(Terminus("c", Role.SENDER))
    assert [link.flow_state.handle for link in links] == [0, 1]
    pair.run()
    links[0].detach()
    assert session.attach(Terminus("c", Role.SENDER)).flow_state.handle == 0, "the lowest that is free"
    pair.run()
    assert not pair.server.take(events.SessionEnded)


def test_what_a_peer_allows_in_one_session_is_what_it_is_taken_to_allow_in_the_next_until_it_has_said() -> None:
    pair = Pair(server={"handle_max": 1})
    pair.open()
    session = pair.client.engine.begin()
    for name in "ab":
        session.attach(Terminus(name, Role.SENDER))
    assert not session.has_room
    with pytest.raises(CommandError):
        session.attach(Terminus("c", Role.SENDER))
