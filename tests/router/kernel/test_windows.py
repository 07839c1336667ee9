"""Session windows and credit: honest peers never overstep or stall, illegal frames change nothing."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from amqpmesh.router.amqp.standard.performatives import Transfer, decode_performative
from amqpmesh.router.kernel import (
    ACCEPTED_STATE,
    LINK,
    OVERHEAD,
    SESSION,
    Budget,
    Chunk,
    Delivery,
    KernelLink,
    KernelSession,
    TransferFrame,
    Violation,
    discard_transfer,
    dispose,
    receive_transfer,
    send_transfer,
    serial_add,
    serial_distance,
)

M = 2**32
STARTS = st.sampled_from([0, 1, 2**31 - 2, M - 3, M - 1])


# ---------------------------------------------------------------------------------------------------- incoming window


class HonestSender(RuleBasedStateMachine):
    """A peer that keeps to its window, our session, and a wire with delays in both directions (§2.5.6)."""

    @initialize(window_size=st.integers(1, 9), start=STARTS)
    def begin(self, window_size: int, start: int) -> None:
        self.session = KernelSession(window_size)
        self.session.channel = 0
        self.link = KernelLink(self.session, False, None, {})
        # The peer's begin has come, ours is on the wire.
        self.peer_next_id = start
        self.session.next_incoming_id = start
        self.peer_window = 0
        self.transfers: deque[int] = deque()
        self.flows: deque[tuple[int, int]] = deque()
        self.here = 0
        self.count = 0
        self.announce()

    def announce(self) -> None:
        # The window is in force from the call of `announce` on.
        window = self.session.announce()
        self.flows.append((self.session.next_incoming_id, window))

    @precondition(lambda self: self.peer_window > 0)
    @rule(frames=st.integers(1, 9))
    def peer_sends(self, frames: int) -> None:
        for _ in range(min(frames, self.peer_window)):
            self.transfers.append(self.peer_next_id)
            self.peer_next_id = serial_add(self.peer_next_id, 1)
            self.peer_window -= 1

    @precondition(lambda self: self.transfers)
    @rule(frames=st.integers(1, 9), dropped=st.booleans())
    def transfers_arrive(self, frames: int, dropped: bool) -> None:
        for _ in range(min(frames, len(self.transfers))):
            assert self.transfers.popleft() == self.session.next_incoming_id
            if dropped:
                discard_transfer(self.session)
                continue
            self.link.granted_limit = serial_add(self.link.delivery_count, 1)
            self.count += 1
            receive_transfer(self.link, TransferFrame(0, self.count, b"", 0, 1), 0)
            self.here += 1

    @precondition(lambda self: self.here)
    @rule(frames=st.integers(1, 9))
    def frames_leave(self, frames: int) -> None:
        frames = min(frames, self.here)
        self.here -= frames
        self.session.release(frames)

    @rule()
    def we_flush(self) -> None:
        if self.session.flow_due:
            self.announce()

    @rule()
    def we_announce_unasked(self) -> None:
        """Announce the window with a link's credit, or because the peer asked."""
        self.announce()

    @precondition(lambda self: self.flows)
    @rule()
    def a_flow_arrives(self) -> None:
        next_incoming_id, window = self.flows.popleft()
        in_flight = serial_distance(next_incoming_id, self.peer_next_id)
        assert in_flight >= 0
        self.peer_window = max(0, window - in_flight)

    @rule()
    def everything_arrives_and_leaves(self) -> None:
        while self.transfers or self.flows or self.here or self.session.flow_due:
            if self.transfers:
                self.transfers_arrive(9, dropped=False)
            if self.here:
                self.frames_leave(9)
            self.we_flush()
            if self.flows:
                self.a_flow_arrives()
        assert self.peer_window * 2 > self.session.window_size, "it would wait for ever, or be told of each frame"

    @invariant()
    def what_is_here_is_bounded(self) -> None:
        assert self.session.held == self.here
        assert 0 <= self.session.incoming_window <= self.session.window_size

    @invariant()
    def what_the_peer_may_send_fits(self) -> None:
        assert self.peer_window + len(self.transfers) + self.here <= self.session.window_size


TestAnHonestSender = HonestSender.TestCase
TestAnHonestSender.settings = settings(max_examples=150, stateful_step_count=40)


def receiving_session(window_size: int) -> KernelSession:
    session = KernelSession(window_size)
    session.channel = 0
    session.announce()
    return session


def test_a_window_is_told_once_half_of_it_has_gathered() -> None:
    session = receiving_session(10)
    woken = []
    session.wire.on_wake = lambda: woken.append(1)
    for _ in range(4):
        discard_transfer(session)
    assert woken == []
    discard_transfer(session)
    discard_transfer(session)
    assert woken == [1], "told once, with the next flush"
    assert session.flow_due
    assert session.announce() == 10
    assert not session.flow_due


def test_a_peer_that_stands_still_is_told_of_the_first_frame_that_leaves() -> None:
    session = receiving_session(10)
    budget = Budget(1_000)
    link = receiving_link(session)
    chunks = []
    for each in range(10):
        receive_transfer(link, TransferFrame(0, each, bytes((each,)), 0), 3)
        chunks.append(Chunk(b"abc", session, budget))
    assert session.incoming_window == 0
    assert not session.flow_due
    chunks[0].release()
    assert session.flow_due
    assert session.announce() == 1


def test_a_chunk_gives_back_what_it_holds_when_its_last_holder_has_sent_it() -> None:
    session = receiving_session(10)
    budget = Budget(1_000)
    session.held = 1
    chunk = Chunk(b"abc", session, budget)
    made_here = Chunk(b"x", None, budget)
    chunk.holders = 2
    chunk.release()
    assert (budget.used, session.held) == (4 + 2 * OVERHEAD, 1)
    chunk.release()
    assert (budget.used, session.held) == (1 + OVERHEAD, 0)
    made_here.release()
    assert (budget.used, session.held) == (0, 0)


def test_a_chunk_that_takes_the_place_of_others_holds_their_octets_and_one_frame() -> None:
    session = receiving_session(10)
    whole = Budget(1_000)
    part, other = Budget(100, whole), Budget(100, whole)
    session.held = 2
    chunk = Chunk(b"abc", session, part)
    chunk.absorb(Chunk(b"defg", session, other))
    assert (part.used, other.used, session.held) == (7 + 2 * OVERHEAD, 0, 1)
    assert whole.used == part.used
    chunk.release()
    assert (part.used, other.used, whole.used, session.held) == (0, 0, 0, 0)


# ------------------------------------------------------------------------------------------ transfers that are refused


def receiving_link(session: KernelSession) -> KernelLink:
    link = KernelLink(session, False, None, {})
    link.handle = 0
    link.link_credit = link.granted_limit = 100
    return link


def snapshot(value: object, seen: tuple[object, ...] = ()) -> object:
    """Return everything reachable from a kernel object, as plain values."""
    if any(value is each for each in seen):
        return "..."
    seen = (*seen, value)
    if isinstance(value, dict):
        return [(key, snapshot(each, seen)) for key, each in value.items()]
    if hasattr(value, "__slots__"):
        return {name: snapshot(getattr(value, name), seen) for name in value.__slots__}
    return value


def a_link_in_use(*, middle: bool) -> KernelLink:
    """Return a link with window 10, credit 100, and delivery 5, tag `used`, unsettled. Args: middle: 6 has begun."""
    link = receiving_link(receiving_session(10))
    receive_transfer(link, TransferFrame(0, 5, b"used", 0), 10)
    if middle:
        receive_transfer(link, TransferFrame(0, 6, b"open", 3, more=True), 90)
    return link


FIRST_FRAMES: dict[str, tuple[TransferFrame, dict[str, int], str, str]] = {
    "no delivery-id": (TransferFrame(0, -1, b"t", 0), {}, SESSION, "amqp:invalid-field"),
    "no delivery-tag": (TransferFrame(0, 6, None, 0), {}, SESSION, "amqp:invalid-field"),
    "a delivery-id in use": (TransferFrame(0, 5, b"t", 0), {}, SESSION, "amqp:invalid-field"),
    "a delivery-tag in use": (TransferFrame(0, 6, b"used", 0), {}, LINK, "amqp:not-allowed"),
    "no credit": (TransferFrame(0, 6, b"t", 0), {"granted_limit": 1}, LINK, "amqp:link:transfer-limit-exceeded"),
    "too large": (TransferFrame(0, 6, b"t", 0), {"max_message_size": 99}, LINK, "amqp:link:message-size-exceeded"),
    "mode second on a link of mode first": (
        TransferFrame(0, 6, b"t", 0, rcv_settle_mode=1), {}, LINK, "amqp:invalid-field",
    ),
    "settled on a link that says unsettled": (
        TransferFrame(0, 6, b"t", 0, 1), {"snd_settle_mode": 0}, LINK, "amqp:invalid-field",
    ),
}  # fmt: skip

LATER_FRAMES: dict[str, tuple[TransferFrame, dict[str, int], str, str]] = {
    "another delivery-id": (TransferFrame(0, 7), {}, SESSION, "amqp:invalid-field"),
    "another delivery-tag": (TransferFrame(0, 6, b"other"), {}, SESSION, "amqp:invalid-field"),
    "another message-format": (TransferFrame(0, message_format=0), {}, SESSION, "amqp:invalid-field"),
    "too large in all": (TransferFrame(0), {"max_message_size": 189}, LINK, "amqp:link:message-size-exceeded"),
    "settled on a link that says unsettled": (
        TransferFrame(0, settled=1), {"snd_settle_mode": 0}, LINK, "amqp:invalid-field",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("middle", "frame", "setting", "scope", "condition"),
    [
        pytest.param(middle, *row, id=f"{'later' if middle else 'first'} frame: {name}")
        for middle, table in ((False, FIRST_FRAMES), (True, LATER_FRAMES))
        for name, row in table.items()
    ],
)
def test_a_refused_transfer_has_changed_nothing(
    middle: bool, frame: TransferFrame, setting: dict[str, int], scope: str, condition: str
) -> None:
    link = a_link_in_use(middle=middle)
    for name, value in setting.items():
        setattr(link, name, value)
    before = snapshot(link)
    with pytest.raises(Violation) as raised:
        receive_transfer(link, frame, 100)
    assert (raised.value.scope, raised.value.condition) == (scope, condition)
    assert snapshot(link) == before


@pytest.mark.parametrize("middle", [False, True])
def test_a_transfer_beyond_the_window_has_changed_nothing(middle: bool) -> None:
    link = a_link_in_use(middle=middle)
    link.session.incoming_limit = link.session.next_incoming_id
    before = snapshot(link)
    for receive in (
        lambda: receive_transfer(link, TransferFrame(0, 6, b"open", 3), 1),
        lambda: discard_transfer(link.session),
    ):
        with pytest.raises(Violation) as raised:
            receive()
        assert (raised.value.scope, raised.value.condition) == (SESSION, "amqp:session:window-violation")
        assert snapshot(link) == before


OPTIONAL_IDS = st.sampled_from([-1, 0, 1, 2, 3])
TAGS = st.sampled_from([None, b"0", b"1", b"2"])


@given(
    window=st.integers(1, 8),
    credit=st.integers(0, 8),
    mode=st.sampled_from([0, 2]),
    second=st.booleans(),
    largest=st.sampled_from([0, 5]),
    frames=st.lists(
        st.builds(
            TransferFrame,
            st.just(0),
            delivery_id=OPTIONAL_IDS,
            delivery_tag=TAGS,
            message_format=st.sampled_from([-1, 0, 1]),
            settled=st.sampled_from([-1, 0, 1]),
            more=st.booleans(),
            rcv_settle_mode=st.sampled_from([-1, 0, 1]),
            state=st.sampled_from([None, ACCEPTED_STATE]),
            resume=st.booleans(),
            aborted=st.booleans(),
        ),
        max_size=12,
    ),
)
def test_any_transfer_is_accounted_or_refused_without_a_trace(
    window: int, credit: int, mode: int, second: bool, largest: int, frames: list[TransferFrame]
) -> None:
    session = receiving_session(window)
    link = receiving_link(session)
    link.link_credit = link.granted_limit = credit
    link.snd_settle_mode = mode
    link.second = second
    link.max_message_size = largest
    taken = 0
    begun = 0
    for frame in frames:
        before = snapshot(link)
        first = link.current is None
        try:
            delivery = receive_transfer(link, frame, 3)
        except Violation:
            assert snapshot(link) == before
            continue
        taken += 1
        begun += first
        live = not (delivery.settled or delivery.ignored)
        assert (session.incoming.deliveries.get(delivery.delivery_id) is delivery) is live
        assert (link.unsettled.get(delivery.tag) is delivery) is live
        assert (link.current is delivery) is not delivery.complete
        assert delivery.complete is (frame.aborted or not frame.more)
        assert not largest or delivery.size <= largest
    assert session.next_incoming_id == session.held == taken <= window
    assert link.delivery_count == link.deliveries == begun <= credit
    assert len(session.incoming) == len(link.unsettled)


def test_credit_and_ids_wrap() -> None:
    session = KernelSession(10)
    session.next_incoming_id = M - 1
    session.announce()
    link = receiving_link(session)
    link.delivery_count = M - 1
    link.granted_limit = 1
    link.link_credit = 2
    receive_transfer(link, TransferFrame(0, M - 1, b"a", 0), 0)
    receive_transfer(link, TransferFrame(0, 0, b"b", 0), 0)
    assert (link.delivery_count, link.link_credit, session.next_incoming_id) == (1, 0, 1)
    with pytest.raises(Violation, match="without link credit"):
        receive_transfer(link, TransferFrame(0, 1, b"c", 0), 0)


def test_a_delivery_that_is_settled_on_a_later_frame_is_forgotten_at_once() -> None:
    link = receiving_link(receiving_session(10))
    delivery = receive_transfer(link, TransferFrame(0, 0, b"t", 0, more=True), 1)
    assert link.unsettled == {b"t": delivery}
    receive_transfer(link, TransferFrame(0, settled=1, more=True), 1)
    assert (delivery.settled, delivery.remote_settled, delivery.complete) == (True, True, False)
    assert (link.unsettled, len(link.session.incoming)) == ({}, 0)
    assert link.current is delivery


def test_an_aborted_delivery_counts_and_leaves_nothing() -> None:
    link = receiving_link(receiving_session(10))
    delivery = receive_transfer(link, TransferFrame(0, 0, b"t", 0, more=True), 5)
    receive_transfer(link, TransferFrame(0, aborted=True), 5)
    assert (delivery.aborted, delivery.complete, delivery.settled) == (True, True, True)
    assert (delivery.size, link.octets) == (5, 5), "what comes with `aborted` is no part of it (§2.7.5)"
    assert (link.unsettled, len(link.session.incoming), link.current) == ({}, 0, None)
    assert (link.delivery_count, link.session.held) == (1, 2)


def test_a_resumed_delivery_that_nobody_knows_counts_and_is_ignored() -> None:
    link = receiving_link(receiving_session(10))
    delivery = receive_transfer(link, TransferFrame(0, 0, b"t", 0, resume=True, more=True), 5)
    assert delivery.ignored
    assert receive_transfer(link, TransferFrame(0), 5) is delivery
    assert (link.unsettled, len(link.session.incoming), link.delivery_count) == ({}, 0, 1)


# ---------------------------------------------------------------------------------------------------- outgoing window


def sending_link(window: int, *, start: int = 0) -> KernelLink:
    session = KernelSession(10, initial_outgoing_id=start, initial_delivery_id=start)
    session.channel = 0
    session.remote_incoming_window = window
    link = KernelLink(session, True, None, {})
    link.handle = 0
    link.delivery_count = start
    link.link_credit = 100
    return link


def frames_in(out: bytearray) -> list[tuple[int, Transfer, bytes]]:
    """Return the frames in some octets: size, transfer, payload."""
    frames = []
    at = 0
    while at < len(out):
        size = int.from_bytes(out[at : at + 4], "big")
        transfer, payload_at = decode_performative(out, at + 8)
        assert isinstance(transfer, Transfer)
        frames.append((size, transfer, bytes(out[payload_at : at + size])))
        at += size
    return frames


@given(
    parts=st.lists(st.binary(max_size=300), min_size=1, max_size=5),
    windows=st.lists(st.integers(0, 3), max_size=10),
    limit=st.integers(66, 200),
    tag=st.binary(min_size=1, max_size=32),
    settled=st.booleans(),
    start=STARTS,
)
def test_a_delivery_crosses_closing_windows_whole(
    parts: list[bytes], windows: list[int], limit: int, tag: bytes, settled: bool, start: int
) -> None:
    link = sending_link(0, start=start)
    session = link.session
    delivery = Delivery(link, tag, 0, settled, False)
    out = bytearray()
    opened = 0
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        rest: bytes | memoryview = part
        while True:
            taken = send_transfer(link, out, delivery, rest, not last, False, None, limit)
            rest = memoryview(rest)[taken:]
            if (delivery.complete if last else not rest) or session.remote_incoming_window > 0:
                break
            window = windows.pop() if windows else 3
            session.remote_incoming_window += window
            opened += window
        assert not rest
    frames = frames_in(out)
    assert delivery.complete
    assert b"".join(payload for _, _, payload in frames) == b"".join(parts)
    assert all(size <= limit for size, _, _ in frames)
    assert [transfer.more for _, transfer, _ in frames] == [True] * (len(frames) - 1) + [False]
    assert [transfer.delivery_id for _, transfer, _ in frames] == [start] + [None] * (len(frames) - 1)
    assert all(bool(transfer.settled) is settled for _, transfer, _ in frames)
    assert len(frames) + session.remote_incoming_window == opened
    assert session.next_outgoing_id == serial_add(start, len(frames))
    assert session.next_delivery_id == link.delivery_count == serial_add(start, 1)
    assert (link.link_credit, link.current) == (99, None)
    assert (delivery.size, link.octets) == (sum(map(len, parts)), sum(map(len, parts)))
    assert (len(session.outgoing), len(link.unsettled)) == ((0, 0) if settled else (1, 1))


@pytest.mark.parametrize("limit", range(64, 600))
def test_a_message_is_cut_at_any_limit(limit: int) -> None:
    link = sending_link(100)
    payload = bytes(range(256)) * 4
    out = bytearray()
    delivery = Delivery(link, b"tag", 0, False, False)
    assert send_transfer(link, out, delivery, payload, False, False, None, limit) == len(payload)
    frames = frames_in(out)
    assert b"".join(part for _, _, part in frames) == payload
    assert all(size == limit for size, _, _ in frames[:-1]), "no frame is smaller than it need be"
    assert frames[-1][0] <= limit


def test_a_closed_window_takes_nothing_and_changes_nothing() -> None:
    link = sending_link(0)
    delivery = Delivery(link, b"tag", 0, False, False)
    before = snapshot(link)
    assert send_transfer(link, bytearray(), delivery, b"payload", False, False, None, 512) == 0
    assert snapshot(link) == before
    assert delivery.delivery_id == -1


def test_a_part_that_was_taken_is_not_sent_again() -> None:
    link = sending_link(10)
    delivery = Delivery(link, b"tag", 0, False, False)
    out = bytearray()
    send_transfer(link, out, delivery, b"one", True, False, None, 512)
    written = len(out)
    assert send_transfer(link, out, delivery, b"", True, False, None, 512) == 0
    assert len(out) == written


def test_an_abort_goes_when_the_window_opens() -> None:
    link = sending_link(1)
    delivery = Delivery(link, b"tag", 0, False, False)
    out = bytearray()
    send_transfer(link, out, delivery, b"one", True, False, None, 512)
    send_transfer(link, out, delivery, b"", False, True, None, 512)
    assert not delivery.complete
    link.session.remote_incoming_window = 1
    send_transfer(link, out, delivery, b"", False, True, None, 512)
    assert (delivery.complete, delivery.aborted, delivery.settled) == (True, True, True)
    assert (link.current, link.unsettled, len(link.session.outgoing)) == (None, {}, 0)
    assert [transfer.aborted for _, transfer, _ in frames_in(out)] == [False, True]


def test_to_a_peer_that_needs_them_all_fields_are_written() -> None:
    link = sending_link(10)
    link.session.in_full = True
    out = bytearray()
    send_transfer(link, out, Delivery(link, b"t", 0, False, False), b"x" * 100, False, False, None, 80)
    frames = frames_in(out)
    assert len(frames) > 1
    assert b"".join(payload for _, _, payload in frames) == b"x" * 100
    at = 0
    for size, _, _ in frames:
        assert out[at + 13] == 11, "the count of the list8"
        at += size


def test_a_state_goes_with_the_first_frame_only() -> None:
    link = sending_link(10)
    out = bytearray()
    send_transfer(link, out, Delivery(link, b"t", 0, False, False), b"x" * 100, False, False, ACCEPTED_STATE, 80)
    states = [transfer.state is not None for _, transfer, _ in frames_in(out)]
    assert states == [True] + [False] * (len(states) - 1)


def test_a_delivery_that_we_settle_in_its_midst_says_so_from_the_next_frame() -> None:
    link = sending_link(10)
    out = bytearray()
    delivery = Delivery(link, b"t", 0, False, False)
    send_transfer(link, out, delivery, b"one", True, False, None, 512)
    dispose(delivery, None, True)
    send_transfer(link, out, delivery, b"two", False, False, None, 512)
    assert [transfer.settled for _, transfer, _ in frames_in(out)] == [None, True]
    assert (link.unsettled, len(link.session.outgoing)) == ({}, 0)
