"""Octets of AMQP in frames of a WebSocket, and frames that break its rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.io.websocket_framing import FRAMES, LEAST, MOST_SMALL, PIECE, Framing
from tests.support.peers.websockets import BINARY, CLOSE, PING, PONG, TEXT, ws_frame

CONTINUATION = 0


def taken(framing: Framing) -> bytes:
    content = b""
    while framing.has_more:
        content += framing.take()
    return content


@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(1, 400), st.booleans())
def test_content_passes_whole_whatever_its_messages_and_the_pieces_they_come_in(
    parts: list[bytes], size: int, is_client: bool
) -> None:
    sender, receiver = Framing.of_client(), Framing.of_server()
    if not is_client:
        sender, receiver = Framing.of_server(), Framing.of_client()
    octets = b"".join(sender.framed(memoryview(part)) for part in parts)
    content = b""
    for at in range(0, len(octets), size):
        receiver.feed(octets[at : at + size])
        content += taken(receiver)
    assert content == b"".join(parts)
    assert not receiver.is_over
    assert not receiver.answer()


@given(st.data())
def test_messages_in_fragments_with_pings_between_them_are_one_stream(data: st.DataObject) -> None:
    framing, content, octets, pinged = Framing.of_server(), b"", b"", None
    for part in data.draw(st.lists(st.lists(st.binary(max_size=20), min_size=1, max_size=4), max_size=4)):
        for at, piece in enumerate(part):
            if data.draw(st.booleans()):
                pinged = piece
                octets += ws_frame(PING, piece)
            octets += ws_frame(CONTINUATION if at else BINARY, piece, last=at == len(part) - 1)
            content += piece
    framing.feed(octets)
    assert taken(framing) == content
    assert framing.answer() == (b"" if pinged is None else ws_frame(PONG, pinged, masked=False))


def test_content_is_passed_on_before_its_frame_is_whole() -> None:
    framing = Framing.of_server()
    framing.feed(ws_frame(BINARY, b"x" * 70_000)[:1000])
    assert framing.take() == b"x" * (1000 - 14)


def test_a_frame_of_any_size_begins_a_stream() -> None:
    framing = Framing.of_server()
    framing.feed(b"\x82\xff" + (2**62).to_bytes(8) + bytes(4) + b"AMQP")
    assert taken(framing) == b"AMQP"
    assert not framing.is_over


def test_a_few_frames_are_read_in_a_row() -> None:
    framing = Framing.of_server()
    framing.feed(ws_frame(BINARY, b"x") * (2 * FRAMES + 1))
    assert framing.take() == b"x" * FRAMES
    assert framing.has_more
    assert taken(framing) == b"x" * (FRAMES + 1)
    assert not framing.has_more


def test_of_many_pings_the_last_is_answered() -> None:
    framing = Framing.of_server()
    framing.feed(b"".join(ws_frame(PING, bytes([number])) for number in range(100)))
    taken(framing)
    assert framing.has_answer
    assert framing.answer() == ws_frame(PONG, bytes([99]), masked=False)
    assert not framing.has_answer


@pytest.mark.parametrize(
    ("octets", "most"),
    [
        (ws_frame(BINARY, b"x"), MOST_SMALL * LEAST // (LEAST - 1)),
        (ws_frame(BINARY), MOST_SMALL),
        (ws_frame(PING, b"x" * 125), MOST_SMALL),
        (ws_frame(PONG), MOST_SMALL),
        (ws_frame(BINARY, b"x" * LEAST) + ws_frame(BINARY, b"x") * 9, MOST_SMALL * LEAST // (9 * (LEAST - 1))),
    ],
)
def test_a_peer_whose_frames_bring_too_few_octets_is_cut_off(octets: bytes, most: int) -> None:
    framing = Framing.of_server()
    framing.feed(octets * most)
    taken(framing)
    assert framing.fault is None
    framing.answer()
    framing.feed(octets * 3)
    taken(framing)
    assert framing.fault == "too many frames of fewer than 8 octets"
    assert framing.is_over
    told = framing.answer()
    close = told[told.index(0x80 | CLOSE) :]  # behind an answer to a ping
    assert close[2:4] == (1008).to_bytes(2)


@pytest.mark.parametrize(
    "octets",
    [
        ws_frame(BINARY, b"x" * LEAST) * 10,
        ws_frame(PING),
        ws_frame(BINARY, b"x"),
        ws_frame(BINARY, b"x" * 32) + ws_frame(BINARY) * 3,
    ],
)
def test_frames_that_octets_pay_for_or_that_come_alone_are_never_too_many(octets: bytes) -> None:
    framing = Framing.of_server()
    for _ in range(3 * MOST_SMALL):
        framing.feed(octets)
        taken(framing)
        framing.answer()
    assert framing.fault is None


def test_a_pong_that_nobody_asked_for_is_nothing() -> None:
    framing = Framing.of_server()
    framing.feed(ws_frame(PONG, b"x") + ws_frame(BINARY, b"AMQP"))
    assert taken(framing) == b"AMQP"
    assert not framing.answer()


@pytest.mark.parametrize(
    ("octets", "code"),
    [
        (ws_frame(TEXT, b"AMQP"), 1003),
        (ws_frame(TEXT, b"\xff\xfe"), 1007),
        (ws_frame(BINARY, b"x", masked=False), 1002),
        (ws_frame(BINARY, b"x", reserved=4), 1002),  # compressed
        (ws_frame(3, b"x"), 1002),
        (ws_frame(CONTINUATION, b"x"), 1002),
        (ws_frame(BINARY, b"x", last=False) + ws_frame(BINARY, b"y"), 1002),
        (ws_frame(PING, b"x" * 126), 1002),
        (ws_frame(PING, b"x", last=False), 1002),
        (ws_frame(CLOSE, b"\x03"), 1002),
        (ws_frame(CLOSE, (1005).to_bytes(2)), 1002),
        (ws_frame(CLOSE, (1000).to_bytes(2) + b"\xff"), 1007),
        (b"\x82\xfe\x00\x05" + bytes(4) + b"hello", 1002),
    ],
)
def test_a_broken_rule_ends_it_with_its_code(octets: bytes, code: int) -> None:
    framing = Framing.of_server()
    framing.feed(ws_frame(BINARY, b"AMQP") + octets + ws_frame(BINARY, b"never read"))
    assert taken(framing).rstrip(b"x") == b"AMQP"
    assert framing.is_over
    assert framing.fault
    answer = framing.answer()
    assert answer[0] == 0x80 | CLOSE
    assert int.from_bytes(answer[2:4]) == code
    assert framing.is_closed
    assert not framing.end()


def test_the_peers_end_is_answered_with_its_code() -> None:
    framing = Framing.of_server()
    framing.feed(ws_frame(BINARY, b"last") + ws_frame(CLOSE, (4000).to_bytes(2) + b"bye"))
    assert taken(framing) == b"last"
    assert framing.is_over
    assert framing.fault is None
    assert framing.answer() == ws_frame(CLOSE, (4000).to_bytes(2) + b"bye", masked=False)
    assert not framing.end()


def test_both_ends_may_close_at_once() -> None:
    framing = Framing.of_server()
    assert framing.end() == ws_frame(CLOSE, (1000).to_bytes(2), masked=False)
    assert framing.is_closed
    assert not framing.is_over
    framing.feed(ws_frame(BINARY, b"on its way") + ws_frame(CLOSE, (1000).to_bytes(2)))
    assert taken(framing) == b"on its way"
    assert framing.is_over
    assert not framing.answer()


@pytest.mark.parametrize("octets", [ws_frame(TEXT, b"AMQP"), ws_frame(BINARY) * (MOST_SMALL + 2), b"\x82\x01a"])
def test_a_rule_that_is_broken_after_our_end_has_no_answer(octets: bytes) -> None:
    framing = Framing.of_server()
    framing.end()
    framing.feed(octets)
    assert not taken(framing)
    assert framing.is_over
    assert not framing.answer()


def test_a_client_masks_each_message_with_another_key() -> None:
    framing = Framing.of_client()
    content = memoryview(bytes(100))
    assert len({bytes(framing.framed(content)) for _ in range(20)}) > 1
    assert framing.framed(memoryview(bytes(PIECE)))[1] & 0x80


FRAMED = st.builds(
    ws_frame,
    st.sampled_from((CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG)),
    st.binary(max_size=20),
    last=st.booleans(),
)


@given(st.lists(st.binary(max_size=200) | FRAMED, max_size=10).map(b"".join), st.integers(1, 200), st.integers(0, 5))
def test_octets_of_any_kind_end_it_or_are_read(octets: bytes, size: int, ended_at: int) -> None:
    """Args: ended_at: the piece before which we end it."""
    framing, content = Framing.of_server(), b""
    for number, at in enumerate(range(0, len(octets), size)):
        if number == ended_at:
            framing.end()
        framing.feed(octets[at : at + size])
        content += taken(framing)
        assert framing.is_closed is (framing.is_over or number >= ended_at)
        framing.answer()
    assert len(content) <= len(octets)
