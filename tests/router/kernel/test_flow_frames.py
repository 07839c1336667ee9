"""Flow frames that the kernel reads and writes as the engine would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router import kernel as bound
from amqpmesh.router.amqp.errors import ProtocolError
from amqpmesh.router.amqp.hot_frames import flow_frame
from amqpmesh.router.amqp.standard.performatives import Flow, decode_performative, encode_performative
from amqpmesh.router.kernel import (
    ANY_EFFECT,
    OUTGOING_WINDOW,
    FlowFrame,
    disable_fast_path,
    enable_fast_path,
    read_flow,
    relay_frames,
    write_flow,
)
from tests.support.data import encodings as wire
from tests.support.peers.scripted import flow
from tests.support.peers.scripted import frame as framed
from tests.support.worlds.kernel_router import Router
from tests.support.worlds.kernels import Kernels, agreed, comparable
from tests.support.worlds.side_by_side import M

NUMBERS: Final = st.one_of(st.sampled_from([0, 1, 255, 256, 2**31 - 1, 2**31, M - 1]), st.integers(0, M - 1))
UINTS: Final = NUMBERS.flatmap(wire.uints)
MAYBE: Final = st.one_of(st.just(wire.NULL), UINTS)
FLAGS: Final = st.one_of(st.just(wire.NULL), st.booleans().flatmap(wire.booleans))


@st.composite
def flows(draw: st.DrawFn) -> bytes:
    """Draw a flow in any encoding a peer may use: any fields, in full or cut short."""
    fields: list[st.SearchStrategy[bytes] | None] = [
        MAYBE,
        UINTS,
        UINTS,
        UINTS,
        MAYBE,
        MAYBE,
        MAYBE,
        MAYBE,
        FLAGS,
        FLAGS,
    ]
    fields.append(st.sampled_from([wire.NULL, b"\xc1\x01\x00"]))
    return draw(wire.composites(0x13, "amqp:flow:list", fields, 11))


def _read(data: bytes) -> object:
    said = FlowFrame()
    return comparable(said) if read_flow(said, data, 0, len(data)) else None


def _decoded(data: bytes) -> object:
    """Read a flow by the generic decoder; None: it is malformed, or has properties."""
    try:
        said, end = decode_performative(data)
    except ProtocolError:
        return None
    if not isinstance(said, Flow) or end != len(data) or said.properties is not None:
        return None
    return comparable(flow_frame(said))


@given(flows())
def test_a_flow_is_read_as_the_decoder_reads_it(data: bytes) -> None:
    assert _read(data) in (None, _decoded(data))


@given(flows().flatmap(wire.mutated))
def test_a_damaged_flow_is_handed_on_or_read_alike(data: bytes) -> None:
    assert _read(data) in (None, _decoded(data))


@given(NUMBERS, NUMBERS, st.one_of(st.none(), st.tuples(NUMBERS, NUMBERS, NUMBERS)), st.booleans(), st.booleans())
def test_the_kernel_reads_each_flow_that_encoders_write(
    count: int, window: int, link: Any, drain: bool, echo: bool
) -> None:
    handle, delivery_count, credit = link if link is not None else (None, None, None)
    said = Flow(
        next_incoming_id=count,
        incoming_window=window,
        next_outgoing_id=count,
        outgoing_window=window,
        handle=handle,
        delivery_count=delivery_count,
        link_credit=credit,
        drain=drain,
        echo=echo,
    )
    for compact in (False, True):
        data = encode_performative(said, compact=compact)
        assert _read(data) == _decoded(data) is not None


@given(flows() | flows().flatmap(wire.mutated))
def test_both_kernels_read_alike(kernels: Kernels, data: bytes) -> None:
    def read(kernel: Any) -> object:
        said = kernel.FlowFrame()
        return kernel.read_flow(said, data, 0, len(data)), said

    agreed(kernels, read)


@given(flows(), st.integers(0, ANY_EFFECT), NUMBERS, st.integers(0, 2**31 - 1), st.booleans(), st.booleans())
def test_both_kernels_apply_a_flow_alike_and_change_nothing_where_an_effect_is_not_allowed(
    kernels: Kernels, data: bytes, allowed: int, count: int, credit: int, is_open: bool, of_link: bool
) -> None:
    def apply(kernel: Any) -> object:
        said = kernel.FlowFrame()
        if not kernel.read_flow(said, data, 0, len(data)):
            return None
        session = kernel.KernelSession(10, count, 0)
        session.next_incoming_id = count
        session.remote_incoming_window = int(is_open)
        link = kernel.KernelLink(session, True, None, {})
        link.delivery_count, link.link_credit = count, credit
        before = comparable([session, link])
        effect = kernel.apply_flow(session, link if of_link else None, said, allowed)
        after = comparable([session, link])
        if effect & ~allowed:
            assert after == before
        return effect, after

    agreed(kernels, apply)


@given(
    NUMBERS,
    NUMBERS,
    st.integers(0, 2**31 - 1),
    st.integers(0, 65_535),
    st.one_of(st.none(), st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.booleans())),
    st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_a_flow_is_written_as_the_encoder_would(
    coming: int, going: int, window: int, channel: int, link: Any, flags: list[bool]
) -> None:
    begun, compact, echo, counted = flags
    router = Router(bound)
    session = router.sink_session
    session.channel = channel
    session.window_size, session.next_incoming_id, session.next_outgoing_id = window, coming, going
    session.begun = begun
    session.wire.compact = compact
    known = router.outgoing[0]
    if link is not None:
        known.handle, known.delivery_count, known.link_credit, known.available, known.drain = link
    said = Flow(
        next_incoming_id=coming if begun else None,
        incoming_window=window,
        next_outgoing_id=going,
        outgoing_window=OUTGOING_WINDOW,
        handle=None if link is None else link[0],
        delivery_count=None if link is None or not counted else link[1],
        link_credit=None if link is None else link[2],
        available=None if link is None else link[3],
        drain=link is not None and link[4],
        echo=echo,
    )
    session.flow_due = True
    write_flow(session, None if link is None else known, echo, counted)
    body = encode_performative(said, compact=compact)
    assert bytes(session.wire.out) == (
        (len(body) + 8).to_bytes(4, "big") + b"\x02\x00" + channel.to_bytes(2, "big") + body
    )
    assert not session.flow_due
    assert session.incoming_limit == (coming + window) % M


# ------------------------------------------------------------------------------------------------- credit, and windows


def _consumer(**changes: Any) -> Router:
    """Return a router with a consumer's link on the fast path, handle 5, with 3 credits left."""
    router = Router(bound)
    link = router.outgoing[0]
    link.delivery_count, link.link_credit = 7, 3
    router.sink_session.next_outgoing_id = 9
    enable_fast_path(link, 5, router.fast_route)
    for name, value in changes.items():
        setattr(link, name, value)
    return router


def _said(**changes: Any) -> bytes:
    usual: dict[str, Any] = {
        "next_incoming_id": 9,
        "incoming_window": 50,
        "next_outgoing_id": 0,
        "outgoing_window": 60,
        "handle": 5,
        "delivery_count": 6,
        "link_credit": 10,
    }
    return framed(flow(**(usual | changes)))


def test_more_credit_is_taken_note_of_and_told_to_those_who_divide_it() -> None:
    router = _consumer(available=4)
    link = router.outgoing[0]
    router.hear(_said())
    assert (link.link_credit, link.available, link.lowered) == (9, 0, False)
    assert (router.sink_session.remote_incoming_window, router.sink_session.remote_outgoing_window) == (50, 60)
    assert router.flow.dirty == [link]
    assert router.flow.needs_update


def test_a_link_that_had_none_has_credit_again() -> None:
    router = _consumer(link_credit=0, lowered=True)
    router.hear(_said())
    assert (router.outgoing[0].link_credit, router.outgoing[0].lowered) == (9, False)


def test_a_transfer_on_its_way_counts_against_the_window() -> None:
    router = _consumer()
    router.hear(_said(next_incoming_id=2, incoming_window=50))
    assert router.sink_session.remote_incoming_window == 43
    router.hear(_said(next_incoming_id=2, incoming_window=5))
    assert router.sink_session.remote_incoming_window == 0, "it may shrink below what is under way"


def test_a_flow_of_the_session_alone_is_about_its_window() -> None:
    router = _consumer()
    router.hear(_said(handle=None, delivery_count=None, link_credit=None))
    assert router.sink_session.remote_incoming_window == 50
    assert router.flow.dirty == []
    assert not router.flow.needs_update


@pytest.mark.parametrize(
    "said",
    [
        {"drain": True},
        {"echo": True},
        {"handle": 6},
        {"delivery_count": None},
        {"link_credit": None},
        {"link_credit": 0},
        {"link_credit": 3},
        {"link_credit": 2**31},
        {"next_incoming_id": 10},
        {"next_outgoing_id": 1},
    ],
    ids=repr,
)
def test_what_says_more_than_that_is_for_others_to_read(said: dict[str, Any]) -> None:
    router = _consumer()
    before = router.state()
    data = _said(**said)
    assert relay_frames(router.sink, data, 0, len(data)) == 0
    assert router.state() == before


@pytest.mark.parametrize(
    "change",
    [
        lambda router: setattr(router.outgoing[0], "drain", True),
        lambda router: setattr(router.fast_route, "generation", 0),
        lambda router: setattr(router.flow, "generation", 2),
        lambda router: setattr(router.sink_session, "remote_incoming_window", 0),
        lambda router: disable_fast_path(router.outgoing[0]),
    ],
)
def test_where_somebody_may_wait_for_it_others_decide(change: Callable[[Router], None]) -> None:
    router = _consumer()
    change(router)
    before = router.state()
    data = _said()
    assert relay_frames(router.sink, data, 0, len(data)) == 0
    assert router.state() == before


def test_a_producers_flow_is_for_others_to_read_and_a_consumer_sends_nothing() -> None:
    router = _consumer()
    data = _said(next_incoming_id=0, next_outgoing_id=0, handle=0, delivery_count=0)
    assert relay_frames(router.source, data, 0, len(data)) == 0
    from_consumer = b"\x00\x00\x00\x1a\x02\x00\x00\x00\x00\x53\x14\xc0\x07\x04\x52\x05\x43\xa0\x01t\x43\x00\x53\x77\x40"
    from_consumer = len(from_consumer).to_bytes(4, "big") + from_consumer[4:]
    assert relay_frames(router.sink, from_consumer, 0, len(from_consumer)) == 0


def test_a_flow_is_work_too() -> None:
    router = _consumer()
    router.sink.work = 3
    data = _said()
    assert relay_frames(router.sink, 10 * data, 0, 10 * len(data)) == 3 * len(data)
