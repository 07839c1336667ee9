"""A byte stream cut into headers and frames (§2.2, §2.3), in chunks of any sizes."""

import tracemalloc
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.amqp.frames import AMQP_FRAME, EMPTY_FRAME, SASL_FRAME, protocol_header
from amqpmesh.router.amqp.standard.definitions import ConnectionCondition
from amqpmesh.router.kernel import CONNECTION, Frame, FrameReader, Violation


def framed(body: bytes, *, channel: int = 0, kind: int = AMQP_FRAME, extended: bytes = b"") -> bytes:
    size = 8 + len(extended) + len(body)
    return (
        size.to_bytes(4, "big") + bytes((2 + len(extended) // 4, kind)) + channel.to_bytes(2, "big") + extended + body
    )


frames = st.builds(
    framed,
    st.binary(max_size=40),
    channel=st.integers(0, 0xFFFF),
    kind=st.sampled_from([AMQP_FRAME, SASL_FRAME]),
    extended=st.integers(0, 5).flatmap(lambda words: st.binary(min_size=4 * words, max_size=4 * words)),
)


def chunks(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    """Cut `data` at these offsets."""
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, end in pairwise(edges):
        yield data[start:end]


def shown(frame: Frame | None) -> tuple[int, int, bytes]:
    assert frame is not None
    return frame.type, frame.channel, frame.body


def read(reader: FrameReader) -> list[tuple[int, int, bytes]]:
    found = []
    while (frame := reader.next_frame()) is not None:
        found.append(shown(frame))
    return found


@given(st.lists(frames, max_size=6), st.lists(st.integers(0, 1000), max_size=20))
def test_however_a_stream_is_cut_its_frames_are_the_same(parts: list[bytes], cuts: list[int]) -> None:
    data = b"".join(parts)
    whole = FrameReader(4096)
    whole.feed(data)
    reader = FrameReader(4096)
    found = []
    for chunk in chunks(data, cuts):
        reader.feed(chunk)
        has_more = not reader.needs_more()
        frames_of_it = read(reader)
        assert bool(frames_of_it) is has_more
        assert reader.needs_more()
        found += frames_of_it
    assert found == read(whole)
    assert len(found) == len(parts)
    assert reader.take_rest() == b""


@given(st.binary(max_size=60), st.lists(st.integers(0, 100)), st.integers(0, 3))
def test_however_a_stream_is_cut_all_of_it_is_kept_if_asked_for(body: bytes, cuts: list[int], behind: int) -> None:
    header, stream = protocol_header(0), framed(body) + framed(b"more") * behind
    reader = FrameReader(512)
    reader.feed(header)
    first, *others = chunks(stream, cuts)
    reader.feed(first)
    assert reader.next_header() == header
    reader.begin_to_keep(header)
    for chunk in others:
        reader.feed(chunk)
        read(reader)
    assert reader.kept == header + stream


def test_of_a_stream_that_is_too_long_nothing_is_kept() -> None:
    reader = FrameReader(512)
    reader.begin_to_keep(protocol_header(0))
    for _ in range(20):
        reader.feed(framed(bytes(400)))
        read(reader)
    assert reader.kept == b""


def test_a_frame_has_its_type_channel_and_body() -> None:
    reader = FrameReader(512)
    reader.feed(framed(b"body", channel=0x1234))
    assert shown(reader.next_frame()) == (AMQP_FRAME, 0x1234, b"body")
    assert reader.next_frame() is None


def test_an_extended_header_is_skipped() -> None:
    reader = FrameReader(4096)
    reader.feed(framed(b"body", extended=b"\xff" * 4) + framed(b"", extended=b"\x00" * (253 * 4)) + framed(b"next"))
    assert [body for _, _, body in read(reader)] == [b"body", b"", b"next"]


def test_an_empty_frame_has_no_body() -> None:
    reader = FrameReader(512)
    reader.feed(EMPTY_FRAME)
    assert shown(reader.next_frame()) == (AMQP_FRAME, 0, b"")


def test_what_stands_for_the_channel_of_a_sasl_frame_is_ignored() -> None:
    reader = FrameReader(512)
    reader.feed(framed(b"body", channel=7, kind=SASL_FRAME))
    assert shown(reader.next_frame()) == (SASL_FRAME, 0, b"body")


@pytest.mark.parametrize(
    "header",
    [
        pytest.param("00000000 02 00 0000", id="size 0"),
        pytest.param("00000007 02 00 0000", id="smaller than its header"),
        pytest.param("00000008 00 00 0000", id="data offset 0"),
        pytest.param("00000008 01 00 0000", id="data offset inside the header"),
        pytest.param("0000000b 03 00 0000", id="data offset behind the end"),
        pytest.param("00000010 ff 00 0000", id="data offset far behind the end"),
        pytest.param("00000201 02 00 0000", id="one octet too large"),
        pytest.param("ffffffff 02 00 0000", id="four gibibytes"),
        pytest.param("00000008 02 02 0000", id="type 2"),
        pytest.param("00000008 02 ff 0000", id="type 255"),
    ],
)
def test_a_header_that_no_frame_can_have_is_refused_before_the_body_comes(header: str) -> None:
    reader = FrameReader(512)
    reader.feed(bytes.fromhex(header)[:7])
    assert reader.next_frame() is None
    assert reader.needs_more()
    reader.feed(bytes.fromhex(header)[7:])
    assert not reader.needs_more(), "the error is to be told"
    with pytest.raises(Violation) as refusal:
        reader.next_frame()
    assert (refusal.value.scope, refusal.value.condition) == (CONNECTION, ConnectionCondition.FRAMING_ERROR)


def test_a_frame_of_exactly_the_largest_size_is_taken() -> None:
    reader = FrameReader(512)
    reader.feed(framed(bytes(504)))
    frame = reader.next_frame()
    assert frame is not None
    assert len(frame.body) == 504


@pytest.mark.parametrize("size", range(8))
def test_a_protocol_header_is_waited_for_while_it_may_become_one(size: int) -> None:
    reader = FrameReader(512)
    reader.feed(protocol_header(0)[:size])
    assert reader.next_header() is None
    reader.feed(protocol_header(0)[size:])
    assert reader.next_header() == protocol_header(0)


@pytest.mark.parametrize("start", [b"", b"A", b"AM", b"AMQ"])
def test_what_cannot_become_a_protocol_header_is_handed_out_at_once(start: bytes) -> None:
    for octet in set(range(256)) - set(b"AMQP"[len(start) : len(start) + 1]):
        garbage = start + bytes((octet,))
        reader = FrameReader(512)
        reader.feed(garbage)
        assert reader.next_header() == garbage
        whole = FrameReader(512)
        whole.feed(garbage + b"and more")
        assert whole.next_header() == garbage, "the same, whatever came with it"


def test_what_belongs_to_no_frame_can_be_taken_out_for_another_layer() -> None:
    reader = FrameReader(512)
    reader.feed(protocol_header(2) + b"client hello")
    reader.next_header()
    assert reader.take_rest() == b"client hello"
    assert reader.take_rest() == b""
    reader.feed(protocol_header(0))
    assert reader.next_header() == protocol_header(0)


@pytest.mark.parametrize("relayed", [0.0, 0.9], ids=["handed out", "relayed before it was fed"])
def test_the_begin_of_a_frame_keeps_nothing_that_came_before_it(relayed: float) -> None:
    data = EMPTY_FRAME * 2**16 + framed(b"x" * 100)[:50]
    reader = FrameReader(512)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        reader.feed(bytearray(data), int(2**16 * relayed) * len(EMPTY_FRAME))
        while reader.next_frame() is not None:
            pass
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 16 * 2**10
    reader.feed(framed(b"x" * 100)[50:])
    assert read(reader) == [(AMQP_FRAME, 0, b"x" * 100)]
