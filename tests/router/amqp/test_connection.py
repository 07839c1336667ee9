"""Connections: open and close, channels, idle time-outs, errors that close them (§2.4, §2.7.1, §2.7.9)."""

from itertools import cycle
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.amqp import events
from amqpmesh.router.amqp.codec.types import Described, Symbol, ULong
from amqpmesh.router.amqp.codec.values import encode
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.amqp.frames import EMPTY_FRAME
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, ConnectionCondition, Error, Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.amqp.standard.performatives import Begin, Close, Detach, Disposition, End, Flow, Open
from amqpmesh.router.amqp.states import ConnectionState
from tests.support.peers.engine_pair import Pair, Scripted
from tests.support.peers.scripted import AMQP, attached, begun, flow, frame, transferred

S = ConnectionState
FORCED = Error(condition=ConnectionCondition.CONNECTION_FORCED, description="enough")


def opened(**settings: object) -> Scripted:
    scripted = Scripted(**settings)
    scripted.peer.open()
    scripted.end.take(events.ConnectionOpened)
    return scripted


def closed(scripted: Scripted) -> Error:
    """Check that we closed the connection, with one error for peer and owner. Returns: the error."""
    close = scripted.peer.expect(Close)
    event = scripted.end.take_one(events.ConnectionClosed)
    assert event.error == close.error
    assert not event.by_peer
    assert close.error is not None
    return close.error


# Open.


def test_an_open_says_what_we_take_and_half_of_our_idle_time_out() -> None:
    scripted = Scripted(
        max_frame_size=4096,
        channel_max=7,
        idle_time_out=8.0,
        properties={Symbol("product"): "test"},
        offered_capabilities=[Symbol("one"), Symbol("two")],
        desired_capabilities=[Symbol("three")],
    )
    scripted.peer.write(AMQP, Open(container_id="peer"))
    scripted.peer.expect_header()
    ours = scripted.peer.expect(Open)
    assert ours.container_id == "server"
    assert ours.max_frame_size == 4096
    assert ours.channel_max == 7
    assert ours.idle_time_out == 4000
    assert ours.properties == {Symbol("product"): "test"}
    assert ours.offered_capabilities == ("one", "two")
    assert ours.desired_capabilities == ("three",)
    assert scripted.engine.state is S.OPENED
    theirs = scripted.end.take_one(events.ConnectionOpened).open
    assert (theirs.max_frame_size, theirs.channel_max, theirs.idle_time_out) == (2**32 - 1, 65_535, None)


@pytest.mark.parametrize(("seconds", "announced"), [(None, None), (0.001, 1), (1.0, 500), (1e9, 2**32 - 1)])
def test_an_idle_time_out_is_announced_as_far_as_an_open_can(seconds: float | None, announced: int | None) -> None:
    scripted = Scripted(idle_time_out=seconds)
    scripted.peer.write(AMQP, Open(container_id="peer"))
    scripted.peer.expect_header()
    assert scripted.peer.expect(Open).idle_time_out == announced


@pytest.mark.parametrize("hostname", [None, "router.example"])
def test_an_open_names_the_host_that_is_wanted_and_any_is_served(hostname: str | None) -> None:
    pair = Pair(client={"hostname": hostname})
    pair.open()
    assert pair.server.take_one(events.ConnectionOpened).open.hostname == hostname
    assert pair.client.engine.state is pair.server.engine.state is S.OPENED


def test_an_open_of_ours_names_no_locale_and_leaves_en_us_which_every_peer_knows() -> None:
    scripted = Scripted()
    german = (Symbol("de-CH"),)
    scripted.peer.write(AMQP, Open(container_id="peer", outgoing_locales=german, incoming_locales=german))
    scripted.peer.expect_header()
    ours = scripted.peer.expect(Open)
    assert ours.outgoing_locales == ours.incoming_locales == ()
    assert ours.desired_capabilities == ()


def test_an_open_may_wait_and_what_is_pipelined_behind_the_peers_waits_with_it() -> None:
    scripted = Scripted(answers=False)
    scripted.peer.write(AMQP, Open(container_id="peer"), begun(), attached(Role.SENDER))
    assert scripted.engine.state is S.OPEN_RCVD
    session = scripted.end.take_one(events.SessionBegun).session
    with pytest.raises(CommandError):
        session.begin()
    scripted.engine.open()
    session.begin()
    scripted.end.take_one(events.LinkAttached).link.attach()
    scripted.peer.expect_header()
    assert [type(each.performative).__name__ for each in scripted.peer.hear()] == ["Open", "Begin", "Attach"]


def test_an_open_is_sent_once() -> None:
    scripted = opened()
    with pytest.raises(CommandError):
        scripted.engine.open()


def test_an_open_that_the_smallest_frames_cannot_hold_is_our_callers_mistake() -> None:
    scripted = Scripted(server=False, hostname="h" * 600)
    with pytest.raises(CommandError):
        scripted.engine.open()
    assert scripted.engine.data_to_send(scripted.now) == AMQP


# Errors of the peer.

DESCRIBED_NOTHING = encode(Described(ULong(0x19), []))
DESCRIBED_BY_NAME = encode(Described(Symbol("amqp:nonsense:list"), []))


@pytest.mark.parametrize(
    ("parts", "condition"),
    [
        pytest.param([Open(container_id="again")], AmqpCondition.ILLEGAL_STATE, id="open twice"),
        pytest.param([transferred()], AmqpCondition.ILLEGAL_STATE, id="a transfer without session"),
        pytest.param([End()], AmqpCondition.ILLEGAL_STATE, id="an end without session"),
        pytest.param([flow()], AmqpCondition.ILLEGAL_STATE, id="a flow without session"),
        pytest.param([frame(begun(), channel=256)], ConnectionCondition.FRAMING_ERROR, id="above the channel-max"),
        pytest.param([frame(b"", channel=256)], ConnectionCondition.FRAMING_ERROR, id="empty above the channel-max"),
        pytest.param([frame(bytes(16_400))], ConnectionCondition.FRAMING_ERROR, id="an oversize frame"),
        pytest.param([frame(Close(), type=1)], ConnectionCondition.FRAMING_ERROR, id="a SASL frame"),
        pytest.param([frame(Close(), type=9)], ConnectionCondition.FRAMING_ERROR, id="a frame of unknown type"),
        pytest.param([b"\x00\x00\x00\x07\x02\x00\x00\x00"], ConnectionCondition.FRAMING_ERROR, id="no frame"),
        pytest.param([frame(DESCRIBED_NOTHING)], AmqpCondition.DECODE_ERROR, id="an unknown performative"),
        pytest.param([frame(DESCRIBED_BY_NAME)], AmqpCondition.DECODE_ERROR, id="one with a name"),
        pytest.param([frame(b"\x45")], AmqpCondition.DECODE_ERROR, id="a list without descriptor"),
        pytest.param([frame(b"\x00\x53\x11\xc0\x05\x04\x40")], AmqpCondition.DECODE_ERROR, id="a begin cut off"),
        pytest.param([frame(b"\x00\x53\x11\x45")], AmqpCondition.INVALID_FIELD, id="a begin without fields"),
        pytest.param([frame(begun(), b"payload")], AmqpCondition.DECODE_ERROR, id="a begin with payload"),
        pytest.param([begun(), begun()], AmqpCondition.ILLEGAL_STATE, id="begin on a channel in use"),
        pytest.param([begun(5)], AmqpCondition.INVALID_FIELD, id="an answer to no begin of ours"),
    ],
)
def test_a_connection_error_closes_the_connection_with_the_reason(parts: list[object], condition: Symbol) -> None:
    scripted = opened(max_frame_size=16_384)
    scripted.peer.write(*parts)  # type: ignore[arg-type]  # octets and performatives
    heard = [each.performative for each in scripted.peer.hear()]
    close = heard[-1]
    assert isinstance(close, Close)
    assert close.error is not None
    assert close.error.condition == condition
    assert close.error.description
    assert scripted.end.take_one(events.ConnectionClosed).error == close.error
    assert scripted.engine.state is S.DISCARDING


@pytest.mark.parametrize(
    ("parts", "condition"),
    [
        pytest.param([begun()], AmqpCondition.ILLEGAL_STATE, id="begin"),
        pytest.param([Close()], AmqpCondition.ILLEGAL_STATE, id="close"),
        pytest.param([transferred()], AmqpCondition.ILLEGAL_STATE, id="transfer"),
        pytest.param([EMPTY_FRAME], AmqpCondition.ILLEGAL_STATE, id="an empty frame"),
        pytest.param([frame(Open(container_id="x"), channel=1)], AmqpCondition.NOT_ALLOWED, id="open on channel 1"),
        pytest.param([Open(container_id="x", max_frame_size=511)], AmqpCondition.INVALID_FIELD, id="tiny frames"),
        pytest.param([frame(b"\x00\x53\x10\x45")], AmqpCondition.INVALID_FIELD, id="no container-id"),
        pytest.param([b"AMQP\x00\x01\x00\x00"], ConnectionCondition.FRAMING_ERROR, id="a second header"),
    ],
)
def test_before_the_first_open_nothing_else_may_come_and_we_open_to_say_so(
    parts: list[object], condition: Symbol
) -> None:
    scripted = Scripted()
    scripted.peer.write(AMQP, *parts)  # type: ignore[arg-type]  # octets and performatives
    scripted.peer.expect_header()
    _, close = scripted.peer.expect_all(Open, Close)
    assert isinstance(close, Close)
    assert close.error is not None
    assert close.error.condition == condition
    assert [type(event) for event in scripted.end.events] == [events.ConnectionClosed]


def test_after_a_framing_error_nothing_of_the_stream_is_believed() -> None:
    scripted = opened()
    scripted.peer.write(b"\x00\x00\x00\x00", b"\x02\x00\x00\x00")
    assert closed(scripted).condition == ConnectionCondition.FRAMING_ERROR
    for data in (frame(Close()), b"\x00" * 100, frame(Close())):
        scripted.peer.write(data)
        assert not scripted.engine.finished
    scripted.advance(5.0)
    assert scripted.engine.finished


def test_after_an_error_everything_is_discarded_until_the_peers_close() -> None:
    scripted = opened()
    scripted.peer.write(frame(DESCRIBED_NOTHING))
    closed(scripted)
    for data in (EMPTY_FRAME, frame(begun()), frame(DESCRIBED_NOTHING), frame(b"\x00\x53\x18\xff"), frame(begun(9))):
        scripted.peer.write(data)
        assert scripted.peer.hear() == []
        assert scripted.end.events == []
        assert scripted.engine.state is S.DISCARDING
        assert not scripted.engine.finished
    scripted.peer.write(Close())
    assert scripted.engine.state is S.END
    assert scripted.engine.finished
    assert scripted.end.events == [], "the end was told already"


def test_a_framing_error_while_discarding_is_the_end() -> None:
    scripted = opened()
    scripted.peer.write(frame(DESCRIBED_NOTHING))
    closed(scripted)
    scripted.peer.write(bytes(8))
    assert scripted.engine.finished
    assert scripted.peer.hear() == []
    assert scripted.end.events == []


def test_a_long_reason_is_cut_to_the_peers_frames() -> None:
    scripted = Scripted(max_frame_size=70_000)
    scripted.peer.open(max_frame_size=512)
    scripted.engine.close(
        Error(condition=AmqpCondition.NOT_FOUND, description="ü" * 5000, info={Symbol("x"): "y" * 99})
    )
    data = scripted.engine.data_to_send(scripted.now)
    assert len(data) <= 512
    assert b"amqp:not-found" in data
    assert "ü".encode() * 50 in data


def test_a_condition_that_fits_into_no_frame_is_not_told() -> None:
    scripted = Scripted()
    scripted.peer.open(max_frame_size=512)
    scripted.engine.close(Error(condition=Symbol("x" * 600)))
    close = scripted.peer.expect(Close)
    assert close.error is not None
    assert close.error.condition == AmqpCondition.INTERNAL_ERROR


# Close.


def test_a_close_of_the_peer_is_answered_with_ours_and_that_is_the_end() -> None:
    scripted = opened()
    scripted.peer.write(frame(Close(error=FORCED), channel=3))
    assert scripted.peer.expect(Close).error is None
    event = scripted.end.take_one(events.ConnectionClosed)
    assert event.error == FORCED
    assert event.by_peer
    assert scripted.engine.finished
    assert scripted.engine.receive_eof() == ()
    assert scripted.engine.next_timer() is None


def test_a_close_of_ours_is_over_when_the_peers_has_come() -> None:
    scripted = opened()
    scripted.engine.close()
    assert scripted.peer.expect(Close).error is None
    assert scripted.engine.state is S.CLOSE_SENT
    scripted.peer.write(begun(), EMPTY_FRAME)
    assert scripted.peer.hear() == []
    scripted.peer.write(Close(error=FORCED))
    event = scripted.end.take_one(events.ConnectionClosed)
    assert (event.error, event.by_peer) == (FORCED, False)
    assert scripted.engine.finished
    assert scripted.end.events == []


@pytest.mark.parametrize("errors", [(None, None), (None, FORCED), (FORCED, None), (FORCED, FORCED)])
def test_both_may_close_at_once(errors: tuple[Error | None, Error | None]) -> None:
    pair = Pair()
    pair.open()
    for end, error in zip((pair.client, pair.server), errors, strict=True):
        end.engine.close(error)
    pair.run()
    for end, error in zip((pair.client, pair.server), reversed(errors), strict=True):
        assert end.engine.finished
        assert end.engine.state is S.END
        assert end.take_one(events.ConnectionClosed).error == error


def test_a_close_is_the_last_thing_that_is_sent() -> None:
    scripted = opened()
    scripted.peer.begin()
    session = scripted.session()
    scripted.engine.close()
    scripted.peer.expect(Close)
    session.flow()
    for command in (scripted.engine.close, scripted.engine.open, scripted.engine.begin, session.end):
        with pytest.raises(CommandError):
            command()
    scripted.advance(4.0)
    assert scripted.engine.data_to_send(scripted.now) == b""


def test_our_close_goes_on_channel_0_also_for_what_was_wrong_on_another() -> None:
    scripted = opened()
    scripted.peer.write(frame(begun(), channel=3), frame(begun(), channel=3))
    assert [(each.channel, type(each.performative)) for each in scripted.peer.hear()] == [(0, Begin), (0, Close)]
    scripted = opened()
    scripted.peer.begin(channel=3)
    assert scripted.engine.begin().flow_state.channel == 1
    scripted.peer.write(frame(Close(), channel=3))
    assert [(each.channel, type(each.performative)) for each in scripted.peer.hear()] == [(1, Begin), (0, Close)]
    hasty = Scripted(server=False)
    hasty.engine.open()
    hasty.engine.close()
    hasty.peer.expect_header()
    assert [(each.channel, type(each.performative)) for each in hasty.peer.hear()] == [(0, Open), (0, Close)]


def test_a_peer_that_does_not_answer_our_close_is_given_up() -> None:
    scripted = opened(close_time_out=5.0, idle_time_out=None)
    scripted.advance(1000.0)
    scripted.engine.close()
    timer = scripted.engine.next_timer()
    assert timer is not None
    assert timer <= scripted.now, "how late it is must be told"
    scripted.peer.expect(Close)
    assert scripted.engine.next_timer() == scripted.now + 5.0, "from when it leaves, not from when we last heard"
    scripted.advance(4.9)
    assert not scripted.engine.finished
    scripted.advance(0.2)
    assert scripted.engine.finished
    scripted.end.take_one(events.ConnectionClosed)
    assert scripted.engine.receive_eof() == ()


def test_a_peer_whose_input_waits_here_unread_is_not_silent() -> None:
    scripted = opened(idle_time_out=2.0)
    scripted.engine.flow_state.waits_for = Scripted().engine.flow_state
    scripted.advance(5.0)
    assert not scripted.engine.finished
    scripted.engine.flow_state.waits_for = None
    scripted.advance(1.9)
    assert scripted.engine.state is S.OPENED
    scripted.advance(0.2)
    assert scripted.peer.expect(Close).error is not None


def test_while_a_close_is_waited_for_nothing_else_is_timed() -> None:
    scripted = Scripted(close_time_out=9.0, idle_time_out=2.0)
    scripted.peer.open(idle_time_out=1000)
    scripted.engine.close()
    scripted.peer.expect(Close)
    assert scripted.engine.next_timer() == scripted.now + 9.0
    scripted.advance(8.0)
    assert scripted.engine.data_to_send(scripted.now) == b""
    assert scripted.end.take(events.ConnectionClosed) == []


def test_the_wait_for_a_close_begins_with_the_timer_if_ours_cannot_leave() -> None:
    scripted = opened(close_time_out=5.0)
    scripted.engine.close()
    scripted.advance(0.0)
    assert scripted.engine.next_timer() == scripted.now + 5.0
    scripted.advance(5.0)
    assert scripted.engine.finished


def test_a_stream_that_ends_ends_the_connection_once() -> None:
    scripted = opened()
    (event,) = scripted.engine.receive_eof()
    assert isinstance(event, events.ConnectionClosed)
    assert event.by_peer
    assert scripted.engine.receive_eof() == ()
    assert scripted.engine.finished


def test_a_close_before_our_open_gets_both() -> None:
    scripted = Scripted(answers=False)
    scripted.peer.write(AMQP, Open(container_id="peer"), Close())
    scripted.peer.expect_header()
    scripted.peer.expect_all(Open, Close)
    assert scripted.engine.finished


# Idle time-outs.


def test_a_silent_peer_is_closed_and_then_given_up() -> None:
    scripted = opened(idle_time_out=8.0, close_time_out=5.0)
    assert scripted.engine.next_timer() == scripted.now + 8.0
    scripted.advance(7.9)
    assert scripted.peer.hear() == []
    scripted.advance(0.1)
    assert closed(scripted).condition == AmqpCondition.RESOURCE_LIMIT_EXCEEDED
    scripted.advance(5.0)
    assert scripted.engine.finished


def test_every_whole_frame_is_a_sign_of_life_and_nothing_less_is() -> None:
    scripted = opened(idle_time_out=8.0)
    scripted.advance(7.0)
    scripted.peer.write(EMPTY_FRAME)
    scripted.advance(7.0)
    scripted.peer.write(EMPTY_FRAME[:7])
    assert scripted.engine.next_timer() == scripted.now + 1.0
    scripted.peer.write(EMPTY_FRAME[7:])
    assert scripted.engine.next_timer() == scripted.now + 8.0


def test_a_peer_with_an_idle_time_out_hears_an_empty_frame_in_half_of_it() -> None:
    scripted = Scripted(idle_time_out=None)
    scripted.peer.open(idle_time_out=3000)
    for _ in range(3):
        assert scripted.engine.next_timer() == scripted.now + 1.5
        scripted.advance(1.4)
        assert scripted.engine.data_to_send(scripted.now) == b""
        scripted.advance(0.1)
        assert scripted.engine.data_to_send(scripted.now) == EMPTY_FRAME


def test_an_empty_frame_is_enough_for_a_while_even_if_nobody_takes_it() -> None:
    scripted = Scripted(idle_time_out=None)
    scripted.peer.open(idle_time_out=3000)
    for _ in range(5):
        scripted.advance(1.5)
        assert scripted.engine.next_timer() == scripted.now + 1.5
    assert scripted.engine.data_to_send(scripted.now) == EMPTY_FRAME, "one, not five"


def test_what_is_sent_anyway_needs_no_empty_frame() -> None:
    scripted = Scripted(idle_time_out=None)
    scripted.peer.open(idle_time_out=3000)
    scripted.advance(1.0)
    scripted.peer.begin()
    assert scripted.engine.next_timer() == scripted.now + 1.5
    scripted.advance(1.4)
    scripted.session().flow()
    scripted.advance(0.1)
    assert len(scripted.peer.hear()) == 1


def test_a_heartbeat_that_comes_too_late_is_a_close_with_the_reason() -> None:
    # A peer allows twice the time that it announces (§2.4.5).
    scripted = Scripted(idle_time_out=None)
    scripted.peer.open(idle_time_out=3000)
    scripted.advance(5.9)
    assert scripted.engine.data_to_send(scripted.now) == EMPTY_FRAME
    scripted.advance(6.0)
    assert closed(scripted).description
    scripted.peer.write(Close())
    assert scripted.engine.finished


@pytest.mark.parametrize(
    ("milliseconds", "taken"), [(0, True), (1, False), (99, False), (100, True), (2**32 - 1, True)]
)
def test_an_idle_time_out_that_we_cannot_keep_is_refused(milliseconds: int, taken: bool) -> None:
    scripted = Scripted(minimum_idle_time_out=0.1)
    scripted.peer.write(AMQP, Open(container_id="peer", idle_time_out=milliseconds))
    scripted.peer.expect_header()
    if taken:
        scripted.peer.expect(Open)
    else:
        scripted.peer.expect_all(Open, Close)
        assert scripted.end.take_one(events.ConnectionClosed).error is not None


def test_two_of_ours_keep_each_other_alive_for_ever() -> None:
    pair = Pair(client={"idle_time_out": 1.0}, server={"idle_time_out": 3.0})
    pair.open()
    pair.advance(1000.0)
    assert pair.client.engine.state is pair.server.engine.state is S.OPENED


def test_empty_frames_may_come_on_any_channel() -> None:
    scripted = opened(channel_max=255)
    scripted.peer.write(*(frame(b"", channel=channel) for channel in range(256)))
    assert scripted.end.events == []
    assert scripted.engine.state is S.OPENED


# Channels.


def test_the_lowest_free_channel_is_used() -> None:
    pair = Pair()
    sessions = [pair.open(), *(pair.client.engine.begin() for _ in range(3))]
    assert [session.flow_state.channel for session in sessions] == [0, 1, 2, 3]
    sessions[2].end()
    sessions[1].end()
    pair.run()
    assert [pair.client.engine.begin().flow_state.channel for _ in range(3)] == [1, 2, 4]


def test_incoming_and_outgoing_channels_have_nothing_to_do_with_each_other() -> None:
    scripted = opened()
    scripted.peer.write(begun(), channel=200)
    (heard,) = scripted.peer.hear()
    assert heard.channel == 0
    assert heard.performative == Begin(
        remote_channel=200,
        next_outgoing_id=0,
        incoming_window=256,
        outgoing_window=2**31 - 1,
        handle_max=4095,
    )


@pytest.mark.parametrize(("ours", "theirs"), [(255, 2), (2, 255), (2, 2)])
def test_no_more_sessions_are_begun_than_both_allow(ours: int, theirs: int) -> None:
    pair = Pair(client={"channel_max": ours}, server={"channel_max": theirs})
    pair.open()
    for _ in range(2):
        pair.client.engine.begin()
    with pytest.raises(CommandError):
        pair.client.engine.begin()
    pair.run()
    assert len(pair.server.engine.channels.incoming) == 3


def test_before_the_peers_open_one_session_may_be_pipelined() -> None:
    scripted = Scripted(server=False)
    with pytest.raises(CommandError):
        scripted.engine.begin()
    scripted.engine.open()
    assert scripted.engine.begin().flow_state.channel == 0
    with pytest.raises(CommandError):
        scripted.engine.begin()


def test_a_peer_that_begins_more_sessions_than_it_allows_leaves_no_room_for_our_answer() -> None:
    for answers in (True, False):
        scripted = Scripted(answers=answers)
        scripted.peer.write(AMQP, Open(container_id="peer", channel_max=1), begun())
        if not answers:
            scripted.engine.open()
        scripted.peer.write(begun(), channel=5)
        assert scripted.end.take(events.ConnectionClosed) == []
        scripted.peer.write(begun(), channel=6)
        error = scripted.end.take_one(events.ConnectionClosed).error
        assert error is not None
        assert error.condition == AmqpCondition.RESOURCE_LIMIT_EXCEEDED


# Bytes.


def test_something_to_flush_is_told_once_it_is_there() -> None:
    scripted = opened()
    scripted.peer.begin()
    woken: list[None] = []
    scripted.engine.flow_state.on_wake = lambda: woken.append(None)
    session = scripted.session()
    session.flow()
    assert woken
    scripted.peer.expect(Flow)
    woken.clear()
    assert scripted.engine.data_to_send(scripted.now) == b""
    assert not woken


STREAM = b"".join(
    [
        AMQP,
        frame(Open(container_id="peer", max_frame_size=512)),
        EMPTY_FRAME,
        frame(begun(next_outgoing_id=2**32 - 2)),
        frame(begun(), channel=3),
        frame(attached(Role.SENDER, "a", handle=7)),
        frame(attached(Role.RECEIVER, "b", handle=8)),
        frame(flow(next_outgoing_id=2**32 - 2, handle=8, delivery_count=0, link_credit=3)),
        frame(transferred(0, handle=7, more=True), b"some"),
        frame(transferred(0, handle=7, delivery_tag=None), b"thing"),
        frame(transferred(1, handle=7, settled=True), b"else"),
        frame(Disposition(role=Role.SENDER, first=0, settled=True, state=Accepted())),
        frame(transferred(2, handle=7, more=True), b"gone"),
        frame(transferred(2, handle=7, aborted=True)),
        frame(transferred(5, handle=99), b"no such handle"),
        frame(flow(), channel=0),
        frame(End()),
        frame(Detach(handle=1), channel=3),
        frame(End(), channel=3),
        frame(Close(error=FORCED)),
        b"and what nobody reads",
    ]
)


def story(sizes: list[int]) -> list[str]:
    """Receive the stream in chunks of these sizes. Returns: the events, and the output."""
    scripted = Scripted(initial_outgoing_id=5)
    told: list[str] = []
    at = 0
    for size in cycle(sizes):
        if at >= len(STREAM):
            break
        for event in scripted.engine.receive(STREAM[at : at + size], scripted.now):
            scripted.end.happened(event)
            if isinstance(event, events.LinkAttached) and event.link.role is Role.RECEIVER:
                event.link.flow(10)  # type: ignore[attr-defined]  # a receiver
            told.append(f"{type(event).__name__} {shown(event)}")
        at += size
    told.append(scripted.engine.data_to_send(scripted.now).hex())
    return told


def shown(event: events.Event) -> dict[str, object]:
    """Return the fields of an event as values that are equal in each run."""
    fields = {name: getattr(event, name) for name in event.__slots__ if name != "alike"}  # what it has in common
    if isinstance(event, events.TransferReceived):
        delivery = event.delivery
        fields["delivery"] = (delivery.tag, delivery.complete, delivery.aborted, delivery.settled)
    elif isinstance(event, events.DispositionReceived):
        fields["deliveries"] = [each.tag for each in event.deliveries]
    return fields


WHOLE = story([len(STREAM)])


def test_the_story_has_everything_in_it() -> None:
    kinds = {line.split()[0] for line in WHOLE}
    unseen = {"TlsRequested", "DrainRequested", "WindowOpened", "LinkDetached", "DeliveryIgnored", "Relayed"}
    unseen |= {"HeldBack"}
    unseen |= {"DeliveriesGathered", "DeliveryResumed", "Authenticated", "SaslWorkDue"}
    assert kinds - {WHOLE[-1]} == {kind.__name__ for kind in get_args(events.Event)} - unseen


def test_byte_by_byte_the_same_happens() -> None:
    assert story([1]) == WHOLE


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30))
def test_however_the_stream_is_cut_the_same_happens(sizes: list[int]) -> None:
    assert story(sizes) == WHOLE


def test_maps_of_short_frames_belong_to_one_connection_each() -> None:
    error = Error(condition=AmqpCondition.NOT_FOUND, info={Symbol("n"): True})
    for _ in range(2):
        scripted = opened()
        scripted.peer.write(Close(error=error))
        seen = scripted.end.take_one(events.ConnectionClosed).error
        assert seen == error
        assert isinstance(seen.info, dict)
        seen.info[Symbol("own")] = 1
