"""Deliveries of several frames on the fast path, each frame as it comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh.router import kernel as bound
from amqpmesh.router.kernel import (
    ACCEPTED_STATE,
    Budget,
    Chunk,
    Delivery,
    FastDelivery,
    KernelLink,
    Sweep,
    abandon,
    enable_fast_path,
    relay_frames,
    skim_transfer,
    sweep,
)
from tests.support.worlds.kernel_router import Router
from tests.support.worlds.kernels import Kernels, agreed
from tests.support.worlds.side_by_side import disposition, transfer

BEGIN: Final = b"\x00\x53\x75\xb0\x00\x00\x00\x0c"
FIRST: Final = transfer(7, b"tag", BEGIN + b"1234", more=True)
MIDDLE: Final = transfer(-1, None, b"5678", more=True, message_format=-1)
LAST: Final = transfer(-1, None, b"9abc", message_format=-1)


def _written(data: bytes) -> list[tuple[bool, bytes]]:
    """Return the transfers in some octets: `more`, and the payload."""
    transfers = []
    at = 0
    while at < len(data):
        end = at + int.from_bytes(data[at : at + 4], "big")
        skimmed = skim_transfer(data, at + 8, end)
        assert skimmed is not None
        transfers.append((skimmed[0].more, data[skimmed[1] : end]))
        at = end
    return transfers


def test_each_frame_leaves_as_it_comes_and_at_the_end_there_is_a_passage() -> None:
    router = Router(bound)
    left = b""
    for number, frame in enumerate((FIRST, MIDDLE, LAST)):
        router.relay(frame)
        left += (
            transfer(0, b"1", BEGIN + b"1234", more=True),
            transfer(-1, None, b"5678", more=True, message_format=-1),
            transfer(-1, None, b"9abc", message_format=-1),
        )[number]
        assert bytes(router.sink.out) == left
        assert router.source_session.held == 0
        assert router.flow.relays == 1
    (fast,) = router.source_session.incoming.deliveries.values()
    assert isinstance(fast, FastDelivery)
    assert list(router.incoming.unsettled.values()) == [fast]
    assert list(router.sink_session.outgoing.deliveries.values()) == [fast]
    assert router.outgoing[0].unsettled == {}
    assert (router.incoming.deliveries, router.incoming.octets) == (1, 20)
    assert (router.outgoing[0].deliveries, router.outgoing[0].octets) == (1, 20)
    router.hear(disposition(0, 0, ACCEPTED_STATE))
    (up,) = router.source_session.dispositions
    assert (up.first, up.settled, up.state) == (7, True, ACCEPTED_STATE)
    assert router.is_empty


@pytest.mark.parametrize("begin", [-1, 1])
def test_of_one_that_its_sender_has_settled_nothing_is_left(begin: int) -> None:
    router = Router(bound)
    router.relay(transfer(7, b"tag", BEGIN + b"1234", more=True, settled=1))
    router.relay(transfer(-1, None, b"5678", more=True, settled=begin, message_format=-1))
    router.relay(transfer(-1, None, b"9abc", settled=begin, message_format=-1))
    assert [more for more, _ in _written(bytes(router.sink.out))] == [True, True, False]
    assert router.is_empty
    assert router.incoming.presettled == router.outgoing[0].presettled == 1


def test_in_its_midst_it_is_what_others_know_of_and_no_other_leaves_by_its_link() -> None:
    router = Router(bound)
    expanded: list[object] = []
    router.flow.on_expand = expanded.append
    router.relay(FIRST)
    came = router.incoming.current
    assert came is not None
    made = came.relay
    assert made is not None
    assert router.incoming.relay is made
    assert expanded == [made]
    (leg,) = made.legs
    assert router.outgoing[0].leg is leg
    assert leg.counted
    assert not made.complete
    other = KernelLink(router.source_session, False, None, {})
    other.link_credit = other.granted_limit = 10
    enable_fast_path(other, 1, router.fast_route)
    data = transfer(8, b"u", BEGIN[:3] + b"\x45", handle=1)
    assert relay_frames(router.source, data, 0, len(data)) == 0
    router.relay(MIDDLE + LAST + data)
    assert (router.incoming.relay, router.incoming.current) == (None, None)
    assert router.flow.relays == 2


def test_an_outcome_that_comes_before_the_end_leaves_it_to_others() -> None:
    router = Router(bound)
    router.relay(FIRST)
    said = disposition(0, 0, ACCEPTED_STATE, settled=False)
    assert relay_frames(router.sink, said, 0, len(said)) == len(said)
    pending = router.sink.pending_disposition
    assert pending is not None
    (left,) = pending.deliveries
    router.relay(MIDDLE + LAST)
    assert left.complete
    assert list(router.sink_session.outgoing.deliveries.values()) == [left]
    assert isinstance(router.source_session.incoming.deliveries[7], Delivery)


def _leave_waiting(router: Router) -> None:
    leg = router.outgoing[0].leg
    assert leg is not None
    leg.chunks.append(Chunk(b"waits", None, Budget(100)))


def _copy(router: Router) -> None:
    leg = router.outgoing[0].leg
    assert leg is not None
    leg.relay.legs.append(leg)


def _abort(router: Router) -> None:
    leg = router.outgoing[0].leg
    assert leg is not None
    leg.aborting = True


@pytest.mark.parametrize(
    "change",
    [
        _leave_waiting,
        _copy,
        _abort,
        lambda router: setattr(router.incoming.relay, "dropped", True),
        lambda router: setattr(router.incoming.relay, "kept", bytearray()),
        lambda router: setattr(router.incoming, "max_message_size", 21),
        lambda router: setattr(router.incoming, "relay", None),
        lambda router: setattr(router.outgoing[0], "max_message_size", 19),
        lambda router: setattr(router.sink_session, "remote_incoming_window", 0),
        lambda router: setattr(router.source_session, "incoming_limit", router.source_session.next_incoming_id),
        lambda router: setattr(router.sink_session, "channel", -1),
        lambda router: setattr(router.sink, "sending", router.sink.backlog + 1),
        lambda router: [
            setattr(router.sink, "sending", router.sink.backlog // 2),
            setattr(router.outgoing[0], "part", 4),
        ],
        lambda router: setattr(router.outgoing[0].leg, "done", True),
    ],
)
def test_where_it_cannot_go_on_so_it_is_left_alone(change: Callable[[Router], None]) -> None:
    router = Router(bound)
    router.relay(FIRST)
    change(router)
    before = router.state()
    data = transfer(-1, None, b"56789abcdef", more=True, message_format=-1)
    assert relay_frames(router.source, data, 0, len(data)) == 0
    assert router.state() == before


@pytest.mark.parametrize(
    "frame",
    [
        transfer(-1, None, b"", more=True, message_format=-1),
        transfer(-1, None, b"", aborted=True, message_format=-1),
        transfer(-1, None, b"5678", more=True, settled=1, message_format=-1),
        transfer(8, None, b"5678", more=True, message_format=-1),
        transfer(-1, b"other", b"5678", more=True, message_format=-1),
        transfer(-1, None, b"5678", more=True, message_format=1),
    ],
    ids=["empty", "aborted", "settled", "other id", "other tag", "other format"],
)
def test_the_engine_reads_unusual_frames(frame: bytes) -> None:
    router = Router(bound)
    router.relay(FIRST)
    before = router.state()
    assert relay_frames(router.source, frame, 0, len(frame)) == 0
    assert router.state() == before


@pytest.mark.parametrize(
    "payload",
    [b"", BEGIN[:3], b"\x00\x53\x70\x45", b"\x00\x53\x72\xc1\x7f\x00"],
    ids=["none", "cut", "head", "annotations"],
)
def test_the_engine_reads_deliveries_that_begin_without_the_whole_head(payload: bytes) -> None:
    router = Router(bound)
    before = router.state()
    data = transfer(7, b"tag", payload, more=True)
    assert relay_frames(router.source, data, 0, len(data)) == 0
    assert router.state() == before


def test_nothing_of_one_begins_that_does_not_fit_into_the_receivers_window() -> None:
    router = Router(bound)
    router.sink.remote_max_frame_size = 512
    router.sink_session.remote_incoming_window = 3
    data = transfer(7, b"tag", BEGIN + bytes(1400), more=True)
    before = router.state()
    assert relay_frames(router.source, data, 0, len(data)) == 0
    assert router.state() == before
    router.sink_session.remote_incoming_window = 4
    router.relay(data)
    assert b"".join(payload for _, payload in _written(bytes(router.sink.out))) == BEGIN + bytes(1400)


def test_what_was_sent_with_fewer_sections_than_came_is_not_forgotten() -> None:
    router = Router(bound)
    router.relay(FIRST)
    assert router.incoming.relay is not None
    router.incoming.relay.section_shift = 1
    router.relay(LAST)
    assert isinstance(router.source_session.incoming.deliveries[7], Delivery)


@pytest.mark.parametrize("limit", [512, 2**32 - 1])
def test_a_window_as_wide_as_there_is_takes_what_comes(limit: int) -> None:
    router = Router(bound)
    router.sink.remote_max_frame_size = limit
    router.sink_session.remote_incoming_window = 2**32 - 1
    router.relay(FIRST + MIDDLE + LAST)
    assert b"".join(payload for _, payload in _written(bytes(router.sink.out))) == BEGIN + b"123456789abc"


@pytest.mark.parametrize("lanes", ["out", "in and out"])
@pytest.mark.parametrize("second", [False, True])
def test_by_a_lane_they_leave_by_its_link_for_large_ones(lanes: str, second: bool) -> None:
    router = Router(bound, lanes=lanes, second=second)
    key = b"taf" if "in" in lanes else b"prefix" + (1).to_bytes(6, "big") + b"\x03"
    mode = -1 if second else 0
    router.relay(FIRST)
    assert bytes(router.sink.out) == transfer(0, key, BEGIN + b"1234", handle=1, more=True, second=mode)
    assert (router.outgoing[0].leg, router.outgoing[0].deliveries) == (None, 0)
    router.relay(MIDDLE + LAST)
    assert [payload for _, payload in _written(bytes(router.sink.out))] == [BEGIN + b"1234", b"5678", b"9abc"]
    (fast,) = router.source_session.incoming.deliveries.values()
    assert isinstance(fast, FastDelivery)
    assert router.bulk.unsettled == {}
    assert router.bulk.lane_to_lane == ({b"tag": fast} if "in" in lanes else {})
    small = transfer(8, b"u", BEGIN[:3] + b"\x45")
    before = len(router.sink.out)
    router.relay(small)
    assert router.outgoing[0].deliveries == 1, "what is small goes by the other"
    assert len(router.sink.out) > before
    router.hear(disposition(0, 1, ACCEPTED_STATE))
    if second:
        router.relay(disposition(7, 8, ACCEPTED_STATE, receiver=False))
    assert router.bulk.unsettled == router.outgoing[0].unsettled == {}
    assert router.is_empty


def test_what_is_small_leaves_by_a_lanes_link_for_large_ones_once_no_other_takes_it() -> None:
    router = Router(bound, lanes="out")
    small = [transfer(7 + number, b"%d" % number, BEGIN[:3] + b"\x45") for number in range(3)]
    router.relay(small[0])
    router.outgoing[0].link_credit = 0
    router.relay(small[1])
    assert (router.outgoing[0].deliveries, router.bulk.deliveries) == (1, 1)
    router.fast_route.links = []
    router.relay(small[2])
    assert (router.outgoing[0].deliveries, router.bulk.deliveries) == (1, 2)


def test_by_a_lane_nothing_is_left_of_what_its_sender_has_settled() -> None:
    router = Router(bound, lanes="out")
    router.relay(transfer(7, b"tag", BEGIN + b"1234", more=True, settled=1))
    router.relay(transfer(-1, None, b"5678", settled=1, message_format=-1))
    assert router.is_empty
    assert router.bulk.unsettled == {}
    assert router.bulk.presettled == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda router: setattr(router.fast_route, "bulk", []),
        lambda router: setattr(router.bulk, "link_credit", 0),
        lambda router: setattr(router.incoming, "behind", True),
        lambda router: setattr(router.sink_session, "remote_incoming_window", 0),
        lambda router: setattr(router.sink, "sending", router.sink.backlog // 2),
    ],
)
def test_where_no_link_of_a_lane_takes_a_large_one_it_is_left_alone(change: Callable[[Router], None]) -> None:
    router = Router(bound, lanes="out")
    change(router)
    before = router.state()
    assert relay_frames(router.source, FIRST, 0, len(FIRST)) == 0
    assert router.state() == before


@pytest.mark.parametrize(
    "change",
    [
        lambda router: setattr(router.fast_route, "bulk", []),
        lambda router: setattr(router.fast_route, "generation", 0),
        lambda router: setattr(router.incoming, "fast_route", None),
        lambda router: setattr(router.incoming, "behind", True),
    ],
    ids=["retired", "changed", "taken back", "followed"],
)
def test_the_end_is_left_to_others_where_its_lane_may_have_to_go_or_others_wait_for_it(
    change: Callable[[Router], None],
) -> None:
    router = Router(bound, lanes="out")
    router.relay(FIRST)
    change(router)
    router.relay(MIDDLE)
    before = router.state()
    assert relay_frames(router.source, LAST, 0, len(LAST)) == 0
    assert router.state() == before


@pytest.mark.parametrize("lanes", ["", "out"])
@pytest.mark.parametrize("settled", [-1, 1])
def test_a_delivery_too_large_for_one_frame_leaves_in_several(lanes: str, settled: int) -> None:
    router = Router(bound, lanes=lanes, room=400)
    router.sink.remote_max_frame_size = 512
    payload = BEGIN + bytes(1400)
    router.relay(transfer(7, b"tag", payload, settled=settled))
    written = _written(bytes(router.sink.out))
    assert [more for more, _ in written] == [True, True, False]
    assert b"".join(each for _, each in written) == payload
    assert (router.incoming.current, router.incoming.relay) == (None, None)
    if settled == -1:
        router.hear(disposition(0, 0, ACCEPTED_STATE))
    assert router.is_empty


def test_a_link_that_goes_in_its_midst_takes_its_delivery_along() -> None:
    router = Router(bound)
    router.relay(FIRST)
    (came,) = router.source_session.incoming.deliveries.values()
    abandon(router.incoming)
    assert relay_frames(router.source, MIDDLE, 0, len(MIDDLE)) == 0
    task = Sweep(router.source_session, False)
    while sweep(task):
        pass
    assert task.deliveries == [came], "its router ends it"


@settings(max_examples=150)
@given(
    st.lists(st.lists(st.integers(1, 900), min_size=1, max_size=6), min_size=1, max_size=4),
    st.sampled_from([512, 600, 2**20]),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["", "in", "out", "in and out"]),
    st.data(),
)
def test_however_they_are_cut_what_leaves_is_what_came(
    kernels: Kernels,
    messages: list[list[int]],
    limit: int,
    settled: bool,
    second: bool,
    lanes: str,
    data: st.DataObject,
) -> None:
    frames, whole = [], []
    for number, parts in enumerate(messages):
        payload = [BEGIN + bytes(parts[0]), *(bytes((at,)) * octets for at, octets in enumerate(parts[1:]))]
        whole.append(b"".join(payload))
        for at, part in enumerate(payload):
            last = at == len(parts) - 1
            said = 1 if settled else -1
            tag = b"%d" % number
            frames.append(
                transfer(number, tag, part, more=not last, settled=said)
                if at == 0
                else transfer(-1, None, part, more=not last, settled=said, message_format=-1)
            )
    octets = b"".join(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(octets)), max_size=3)))

    def play(kernel: object) -> object:
        router = Router(kernel, second=second, room=min(2**20, limit - 112), lanes=lanes)
        router.sink.remote_max_frame_size = limit
        at = 0
        for end in (*cuts, len(octets)):
            router.source.work = 1000
            at = kernel.relay_frames(router.source, octets, at, end)  # type: ignore[attr-defined]  # a kernel has it
        assert at == len(octets)
        arrived, gathered = [], b""
        for more, payload in _written(bytes(router.sink.out)):
            gathered += payload
            if not more:
                arrived.append(gathered)
                gathered = b""
        assert arrived == whole
        assert router.flow.relays == (0 if settled else len(whole))
        return router.state()

    agreed(kernels, play)
