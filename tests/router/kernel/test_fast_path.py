"""The fast path: the frames that it takes, the frames that it leaves, and its results."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh.router import kernel as bound
from amqpmesh.router.kernel import (
    ACCEPTED_STATE,
    FAILED_STATE,
    RELEASED_STATE,
    Delivery,
    FastDelivery,
    KernelRouter,
    expand,
    expand_link,
    forget,
    relay_frames,
    skim_transfer,
)
from amqpmesh.router.model.links import OutgoingLink
from tests.support.data.encodings import mutated
from tests.support.worlds.kernel_router import FRAMES, M, Router, frames
from tests.support.worlds.kernels import Kernels, agreed
from tests.support.worlds.side_by_side import disposition, transfer

PAYLOAD = b"\x00\x53\x77\xa1\x04body"


def test_a_delivery_leaves_under_its_own_number_and_the_bytes_that_are_not_a_whole_frame_stay() -> None:
    router = Router(bound)
    one, two = transfer(7, b"one", PAYLOAD), transfer(8, b"two", PAYLOAD)
    data = one + two
    for end in range(len(data)):
        assert relay_frames(Router(bound).source, data, 0, end) == (0 if end < len(one) else len(one))
    assert relay_frames(router.source, data, 0, len(data)) == len(data)
    assert bytes(router.sink.out) == transfer(0, b"1", PAYLOAD) + transfer(1, b"2", PAYLOAD)
    assert list(router.source_session.incoming.deliveries) == [7, 8]
    assert list(router.sink_session.outgoing.deliveries) == [0, 1]
    assert router.flow.relays == 2


@pytest.mark.parametrize("octets", sorted({0, 1, 255, 256, 4095, 4096, 70_000}))
@pytest.mark.parametrize("channel", [0, 1, 256])
@pytest.mark.parametrize("number", [0, 15, 16, 255, 65_535, 2**40])
def test_it_writes_what_the_writer_of_transfers_writes(octets: int, channel: int, number: int) -> None:
    for delivery_id in (0, 1, 255, 256, M - 1):
        for settled in (-1, 1):
            router = Router(bound, room=2**20)
            router.sink_session.channel = channel
            router.sink_session.next_delivery_id = delivery_id
            router.outgoing[0].last_tag = number
            payload = b"\x00\x53\x75\xb0" + bytes(octets)
            data = transfer(0, b"t", payload, settled=settled)
            assert relay_frames(router.source, data, 0, len(data)) == len(data)
            expected = bytearray(transfer(delivery_id, b"%x" % (number + 1), payload, settled=settled))
            expected[6:8] = channel.to_bytes(2, "big")
            assert router.sink.out == expected


def test_no_more_is_done_at_once_than_may_be() -> None:
    router = Router(bound)
    data = b"".join(transfer(number, b"%d" % number, PAYLOAD) for number in range(10))
    router.source.work = 4
    at = relay_frames(router.source, data, 0, len(data))
    assert router.flow.relays == 4
    router.source.work = 100
    assert relay_frames(router.source, data, at, len(data)) == len(data)
    assert router.flow.relays == 10


def test_to_find_nothing_that_is_spoken_of_is_work_too() -> None:
    router = Router(bound)
    said = disposition(5, 9, ACCEPTED_STATE)
    router.sink.work = 4
    assert relay_frames(router.sink, 10 * said, 0, 10 * len(said)) == 4 * len(said)


def _is_refused(router: Router, data: bytes) -> None:
    """Check that the router leaves a frame, and changes nothing."""
    before = router.state()
    assert relay_frames(router.source, data, 0, len(data)) == 0
    assert router.state() == before


@pytest.mark.parametrize(
    "change",
    [
        lambda router: setattr(router.fast_route, "generation", 0),
        lambda router: setattr(router.fast_route, "borrowed", 0),
        lambda router: setattr(router.incoming, "behind", True),
        lambda router: setattr(router.fast_route, "links", []),
        lambda router: setattr(router.flow, "generation", 2),
        lambda router: setattr(router.source, "router", None),
        lambda router: setattr(router.source_session, "incoming_limit", 0),
        lambda router: setattr(router.incoming, "granted_limit", 0),
        lambda router: setattr(router.incoming, "snd_settle_mode", 1),
        lambda router: setattr(router.incoming, "max_message_size", 4),
        lambda router: router.source_session.links.clear(),
        lambda router: router.source.sessions.clear(),
        lambda router: [setattr(each, "link_credit", 0) for each in router.outgoing],
        lambda router: [setattr(each, "max_outstanding", 0) for each in router.outgoing],
        lambda router: [setattr(each, "max_message_size", 4) for each in router.outgoing],
        lambda router: setattr(router.sink_session, "remote_incoming_window", 0),
        lambda router: setattr(router.sink_session, "channel", -1),
        lambda router: setattr(router.sink, "sending", router.sink.backlog + 1),
    ],
)
def test_whatever_is_to_be_decided_is_left_alone_and_changes_nothing(change: object) -> None:
    router = Router(bound)
    change(router)  # type: ignore[operator]  # a function
    _is_refused(router, transfer(0, b"t", PAYLOAD))


@pytest.mark.parametrize(
    "data",
    [
        transfer(0, b"t", PAYLOAD[:3], more=True),
        transfer(0, b"t", b"", aborted=True),
        transfer(0, b"t", PAYLOAD, handle=9),
        transfer(-1, b"t", PAYLOAD),
        transfer(0, None, PAYLOAD),
        transfer(0, b"t", PAYLOAD, second=1),
        transfer(0, b"t", b"\x00\x80" + PAYLOAD),
        b"\x00\x00\x00\x08\x02\x00\x00\x00",
        b"\x00\x00\x00\x00\x02\x00\x00\x00" + bytes(20),
        b"\xff\xff\xff\xff\x02\x00\x00\x00" + bytes(20),
    ],
    ids=repr,
)
def test_frames_that_are_for_others_to_read_change_nothing(data: bytes) -> None:
    _is_refused(Router(bound), data)


def test_a_turn_is_taken_only_with_a_delivery() -> None:
    router = Router(bound, consumers=2)
    router.fast_route.order = bound.TURNS
    _is_refused(router, transfer(0, b"t", b"anything"))
    for number in range(4):
        data = transfer(number, b"%d" % number, PAYLOAD)
        assert relay_frames(router.source, data, 0, len(data)) == len(data)
    assert [each.deliveries for each in router.outgoing] == [2, 2]


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("state", [ACCEPTED_STATE, RELEASED_STATE, FAILED_STATE])
def test_an_outcome_is_passed_up_and_settled_on_both_sides(state: bytes, settled: bool) -> None:
    router = Router(bound)
    router.relay(transfer(5, b"t", PAYLOAD))
    said = disposition(0, 0, state, settled=settled)
    assert relay_frames(router.sink, said, 0, len(said)) == len(said)
    (up,) = router.source_session.dispositions
    assert (up.receiver, up.first, up.last, up.settled, up.state) == (True, 5, 5, True, state)
    assert len(router.sink_session.dispositions) == (0 if settled else 1)
    assert router.is_empty
    # A repeated disposition has no effect.
    assert relay_frames(router.sink, said, 0, len(said)) == len(said)
    assert router.is_empty


def test_in_mode_second_the_senders_word_ends_it() -> None:
    router = Router(bound, second=True)
    router.relay(transfer(5, b"t", PAYLOAD))
    router.hear(disposition(0, 0, ACCEPTED_STATE, settled=False))
    (up,) = router.source_session.dispositions
    assert (up.settled, up.state) == (False, ACCEPTED_STATE)
    assert (router.incoming.outstanding, router.outgoing[0].outstanding) == (1, 1)
    said = disposition(5, 5, ACCEPTED_STATE, receiver=False)
    assert relay_frames(router.source, said, 0, len(said)) == len(said)
    (down,) = router.sink_session.dispositions
    assert (down.receiver, down.first, down.settled, down.state) == (False, 0, True, ACCEPTED_STATE)
    assert router.is_empty


def test_a_key_is_made_where_the_way_through_the_mesh_begins() -> None:
    router = Router(bound, lanes="out")
    router.relay(transfer(0, b"t", PAYLOAD))
    router.relay(transfer(1, b"u", PAYLOAD, settled=1))
    keys = [b"prefix" + number.to_bytes(6, "big") + b"\x03" for number in (1, 2)]
    # A lane learns that mode second is not in force.
    assert bytes(router.sink.out) == (
        transfer(0, keys[0], PAYLOAD, settled=-1, second=0) + transfer(1, keys[1], PAYLOAD, settled=1, second=0)
    )
    router.hear(disposition(0, 0, ACCEPTED_STATE))
    assert router.is_empty


def test_from_lane_to_lane_a_key_has_one_hop_less_and_mode_second_stays() -> None:
    router = Router(bound, second=True, lanes="in and out")
    router.relay(transfer(0, b"key\x05", PAYLOAD))
    assert bytes(router.sink.out) == transfer(0, b"key\x04", PAYLOAD)
    assert list(router.outgoing[0].lane_to_lane) == [b"key\x05"]
    router.hear(disposition(0, 0, ACCEPTED_STATE))
    assert router.outgoing[0].lane_to_lane == {}
    router.relay(disposition(0, 0, ACCEPTED_STATE, receiver=False))
    assert router.is_empty


@pytest.mark.parametrize("lanes", ["in and out", "out", ""])
def test_to_those_who_decide_it_left_with_the_tag_that_was_written(lanes: str) -> None:
    router = Router(bound, lanes=lanes)
    router.relay(transfer(0, b"key\x05", PAYLOAD))
    skimmed = skim_transfer(bytes(router.sink.out), 8, len(router.sink.out))
    assert skimmed is not None
    (fast,) = router.sink_session.outgoing.deliveries.values()
    assert isinstance(fast, FastDelivery)
    _, left = expand(fast)
    assert left.tag == skimmed[0].delivery_tag
    assert (router.outgoing[0].lane_to_lane, router.outgoing[0].unsettled) == ({}, {left.tag: left})


@pytest.mark.parametrize("message_format", [0, 7, M - 1])
def test_a_fast_delivery_keeps_the_message_format_when_it_is_expanded(message_format: int) -> None:
    router = Router(bound)
    router.relay(transfer(0, b"key", PAYLOAD, message_format=message_format))
    (fast,) = router.sink_session.outgoing.deliveries.values()
    assert isinstance(fast, FastDelivery)
    assert [delivery.message_format for delivery in expand(fast)] == [message_format] * 2


def test_each_key_counts_one_more_whatever_hops_are_left() -> None:
    flow = KernelRouter()
    flow.begin_keys(b"router and one")
    for number in range(1, 600):
        if number == 300:
            flow.begin_keys(b"router and two")
        prefix = b"router and one" if number < 300 else b"router and two"
        hops = (5, 6, 255)[number % 3]
        assert flow.next_key(hops) == prefix + number.to_bytes(6, "big") + bytes((hops,))


def test_a_delivery_whose_key_is_in_use_leaves_with_a_tag_that_nothing_else_has() -> None:
    router = Router(bound, lanes="in and out")
    lane = router.outgoing[0]
    router.relay(transfer(0, b"2", PAYLOAD) + transfer(1, b"key\x05", PAYLOAD))
    assert lane.has_tag(b"1"), "as what came with 2 has left"
    link: Any = SimpleNamespace(lane="a lane", endpoint=SimpleNamespace(flow_state=lane))
    assert OutgoingLink.next_tag(link, b"key\x09") == b"key\x09"
    assert OutgoingLink.next_tag(link, b"key\x04") == b"2"


def test_a_tag_is_taken_until_the_delivery_that_left_with_it_is_settled() -> None:
    router = Router(bound, lanes="in and out")
    lane = router.outgoing[0]
    router.relay(transfer(0, b"key\x05", PAYLOAD))
    assert [lane.has_tag(tag) for tag in (b"key\x04", b"key\x05", b"key\x03", b"other\x04", b"", b"\xff")] == [
        True,
        *[False] * 5,
    ]
    (fast,) = router.sink_session.outgoing.deliveries.values()
    assert isinstance(fast, FastDelivery)
    _, left = expand(fast)
    assert lane.has_tag(b"key\x04")
    forget(left)
    assert not lane.has_tag(b"key\x04")


def test_nothing_leaves_with_the_tag_of_what_was_decided() -> None:
    router = Router(bound, lanes="in and out")
    router.relay(transfer(0, b"key\x05", PAYLOAD))
    (fast,) = router.sink_session.outgoing.deliveries.values()
    assert isinstance(fast, FastDelivery)
    expand(fast)
    router.incoming.unsettled.clear()
    _is_refused(router, transfer(1, b"key\x05", PAYLOAD))
    router.relay(transfer(1, b"key\x06", PAYLOAD))


@pytest.mark.parametrize("tag", [b"key\x01", b"key\x00", b""])
def test_the_router_decides_about_a_delivery_without_a_hop_left(tag: bytes) -> None:
    _is_refused(Router(bound, lanes="in and out"), transfer(0, tag, PAYLOAD))


def test_nothing_goes_back_to_the_neighbour_that_it_came_from_nor_under_a_key_that_is_on_its_way() -> None:
    router = Router(bound, lanes="in and out")
    router.source.container = router.sink.container = "B"
    _is_refused(router, transfer(0, b"key\x05", PAYLOAD))
    router.sink.container = "C"
    router.relay(transfer(0, b"key\x05", PAYLOAD))
    router.incoming.unsettled.clear()
    _is_refused(router, transfer(1, b"key\x05", PAYLOAD))


def test_what_is_said_of_others_too_is_passed_on_as_far_as_it_is_the_kernels() -> None:
    router = Router(bound)
    for number in range(3):
        router.relay(transfer(number, b"%d" % number, PAYLOAD))
    (middle, left) = expand(router.sink_session.outgoing.deliveries[1])
    said = disposition(0, 2, ACCEPTED_STATE)
    assert relay_frames(router.sink, said + said, 0, 2 * len(said)) == len(said), (
        "it stops where something is to be decided"
    )
    pending = router.sink.pending_disposition
    assert pending is not None
    assert (pending.deliveries, pending.state, pending.settled) == ([left], ACCEPTED_STATE, True)
    assert left.remote_settled
    assert list(router.source_session.incoming.deliveries.values()) == [middle]
    assert [(each.first, each.last) for each in router.source_session.dispositions] == [(0, 0), (2, 2)]


STAGES = {
    "sent": (None, None),
    "answered": (disposition(0, 0, ACCEPTED_STATE, settled=False), None),
    "settled": (disposition(0, 0, ACCEPTED_STATE, settled=True), ACCEPTED_STATE),
}


@pytest.mark.parametrize("stage", ["sent", "answered", "settled"])
@pytest.mark.parametrize("from_link", ["incoming", "outgoing", "neither"])
def test_what_is_expanded_is_the_delivery_at_the_stage_where_it_is(stage: str, from_link: str) -> None:
    router = Router(bound, second=True)
    expanded: list[object] = []
    router.flow.on_expand = expanded.append
    router.relay(transfer(5, b"tag", PAYLOAD))
    if STAGES[stage][0] is not None:
        router.hear(STAGES[stage][0])
    (fast,) = router.source_session.incoming.deliveries.values()
    if from_link == "neither":
        expand(fast)
    else:
        expand_link(router.incoming if from_link == "incoming" else router.outgoing[0])
    if from_link == "outgoing" and stage == "settled":
        assert isinstance(router.source_session.incoming.deliveries[5], FastDelivery), (
            "it is nothing of that link any more"
        )
        expand(fast)
    came = router.source_session.incoming.deliveries[5]
    assert isinstance(came, Delivery)
    assert router.incoming.unsettled == {b"tag": came}
    made = came.relay
    assert made is not None
    assert expanded == [made]
    (leg,) = made.legs
    left = leg.delivery
    assert left is not None
    assert (came.complete, came.settled, came.second, made.complete) == (True, False, True, True)
    outcome = None if stage == "sent" else ACCEPTED_STATE
    assert (came.state, leg.outcome, made.answered) == (outcome, outcome, stage != "sent")
    if stage == "settled":
        assert leg.done
        assert router.sink_session.outgoing.deliveries == {}
        assert router.outgoing[0].unsettled == {}
    else:
        assert not leg.done
        assert router.sink_session.outgoing.deliveries == {0: left}
        assert router.outgoing[0].unsettled == {b"1": left}
    assert router.flow.relays == 1, "it is one delivery, as before"


# ----------------------------------------------------------------------------------------------- whatever bytes come


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Draw a stream of frames, some of them malformed."""
    parts = draw(st.lists(frames() | st.sampled_from(FRAMES).flatmap(mutated) | st.binary(max_size=20), max_size=8))
    return b"".join(parts)


@settings(max_examples=200)
@given(
    streams(),
    streams(),
    st.lists(st.integers(0, 400), max_size=4),
    st.sampled_from([0, M - 1]),
    st.booleans(),
    st.sampled_from(["", "", "in", "out", "in and out"]),
)
def test_both_kernels_relay_the_same_whatever_bytes_come(
    kernels: Kernels, up: bytes, down: bytes, cuts: list[int], first: int, second: bool, lanes: str
) -> None:
    def play(kernel: object) -> object:
        router = Router(kernel, first=first, second=second, consumers=2, lanes=lanes)
        said = []
        for wire, data in ((router.source, up), (router.sink, down), (router.source, down), (router.sink, up)):
            at = 0
            for end in (*sorted(cut % (len(data) + 1) for cut in cuts), len(data)):
                if end > at:
                    wire.work = 50
                    at = kernel.relay_frames(wire, data, at, end)  # type: ignore[attr-defined]  # a kernel has it
                    said.append((at, wire.pending_disposition))
        return said, router.state()

    agreed(kernels, play)


@settings(max_examples=100)
@given(streams(), st.lists(st.integers(0, 400), min_size=1, max_size=6))
def test_where_bytes_are_cut_makes_no_difference(data: bytes, cuts: list[int]) -> None:
    whole, pieces = Router(bound), Router(bound)
    reached = relay_frames(whole.source, data, 0, len(data))
    at = 0
    for end in (*sorted(cut % (len(data) + 1) for cut in cuts), len(data)):
        if pieces.source.pending_disposition is None:
            at = relay_frames(pieces.source, data, at, end)
    assert at == reached
    assert pieces.state() == whole.state()


def test_dispositions_that_have_many_places_to_look_at_end_the_turn_though_they_find_nothing() -> None:
    router = Router(bound)
    ledger = router.sink_session.outgoing
    link = router.outgoing[0]
    for each in range(20_000):
        ledger.put(each, Delivery(link, b"%d" % each, 0, False, False))
    for each in range(10_000, 19_999):
        ledger.remove(each)
    (one,) = [disposition(10_000, 19_998, ACCEPTED_STATE)]
    data = one * 1_000
    handled = relay_frames(router.sink, data, 0, len(data)) // len(one)
    assert 1 <= handled < 10
    assert router.sink.work <= 0
