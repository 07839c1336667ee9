"""Multicasts on the fast path: one frame comes, one leaves by each link, and outcomes are merged."""

from __future__ import annotations

import pytest

from amqpmesh.router import kernel as bound
from amqpmesh.router.kernel import (
    ACCEPTED_STATE,
    ALL,
    FAILED_STATE,
    RELEASED_STATE,
    Delivery,
    FastLeg,
    FastMulticast,
    Sweep,
    apply_more,
    end_link,
    expand_link,
    relay_frames,
    sweep,
)
from tests.support.worlds.kernel_router import Router
from tests.support.worlds.side_by_side import disposition, transfer

PAYLOAD = b"\x00\x53\x77\xa1\x04body"


def _router(consumers: int = 3, *, second: bool = False, room: int = 400) -> Router:
    """Return a router whose deliveries leave by all links, which share a session."""
    router = Router(bound, consumers=consumers, second=second, room=room)
    router.fast_route.order = ALL
    router.sink.work = router.source.work = 10**6
    router.sink_session.remote_incoming_window = 10**6
    return router


def _is_refused(router: Router, data: bytes) -> None:
    """Check that the router leaves a frame, and changes nothing."""
    before = router.state()
    assert relay_frames(router.source, data, 0, len(data)) == 0
    assert router.state() == before


@pytest.mark.parametrize("settled", [-1, 1])
@pytest.mark.parametrize("message_format", [0, 1])
@pytest.mark.parametrize("in_full", [False, True])
def test_each_link_writes_what_the_writer_of_transfers_writes(settled: int, message_format: int, in_full: bool) -> None:
    router = _router()
    router.sink_session.in_full = in_full
    router.relay(transfer(7, b"one", PAYLOAD, settled=settled, message_format=message_format))
    style = "full" if in_full else "compact"
    assert bytes(router.sink.out) == b"".join(
        transfer(handle, b"1", PAYLOAD, handle=handle, settled=settled, message_format=message_format, style=style)
        for handle in range(3)
    )
    assert router.flow.relays == (settled == -1)
    assert [type(each) for each in router.sink_session.outgoing.deliveries.values()] == [FastLeg] * 3 * (settled == -1)


@pytest.mark.parametrize(
    "change",
    [
        lambda router: setattr(router.outgoing[1], "link_credit", 0),
        lambda router: setattr(router.outgoing[2], "max_outstanding", 0),
        lambda router: setattr(router.outgoing[2], "max_message_size", 4),
        lambda router: setattr(router.outgoing[0], "current", Delivery(router.outgoing[0], b"", 0, False, False)),
        lambda router: setattr(router.sink_session, "remote_incoming_window", 2),
        lambda router: setattr(router.sink, "backlog", 100),
        lambda router: setattr(router.sink_session, "channel", -1),
        lambda router: setattr(router.incoming, "lane", True),
        lambda router: setattr(router.incoming, "granted_limit", 0),
    ],
)
def test_nothing_is_written_unless_all_links_can_take_the_delivery(change: object) -> None:
    router = _router()
    change(router)  # type: ignore[operator]  # a function
    _is_refused(router, transfer(0, b"t", PAYLOAD))


def test_four_legs_are_as_much_work_as_a_delivery() -> None:
    router = _router(41)
    router.relay(transfer(0, b"t", PAYLOAD))
    assert router.source.work == 10**6 - 1 - 40 // 4


def test_the_octets_that_are_written_at_once_are_limited() -> None:
    payload = b"\x00\x53\x75\xb0" + (2**18).to_bytes(4, "big") + bytes(2**18)
    for consumers, taken in ((127, True), (128, False)):
        router = _router(consumers, room=2**19)
        router.sink.backlog = 2**30
        data = transfer(0, b"t", payload)
        assert relay_frames(router.source, data, 0, len(data)) == len(data) * taken


def test_the_settlement_of_many_legs_leaves_the_rest_of_a_disposition_for_later() -> None:
    router = _router(80, second=True)
    for number in range(60):
        router.relay(transfer(number, b"%d" % number, PAYLOAD))
    for first in range(0, 4800, 1000):
        router.hear(disposition(first, first + 999, ACCEPTED_STATE, settled=False))
    said = disposition(0, 59, None, receiver=False)
    assert relay_frames(router.source, said, 0, len(said)) == len(said)
    pending = router.source.pending_disposition
    steps = 1
    assert pending is not None
    while apply_more(pending):
        assert pending.deliveries == []
        steps += 1
    assert steps == 2
    assert router.is_empty


@pytest.mark.parametrize("second", [False, True])
def test_the_outcomes_of_links_that_end_are_merged_in_steps(second: bool) -> None:
    router = _router(second=second)
    for number in range(90):
        router.relay(transfer(number, b"%d" % number, PAYLOAD))
    for link in router.outgoing[:2]:
        end_link(link)
    task = Sweep(router.sink_session, True)
    steps = 0
    while sweep(task):
        assert task.deliveries == []
        steps += 1
    assert steps >= 180 // 50
    assert [link.outstanding for link in router.outgoing] == [0, 0, 90]
    router.hear(disposition(0, 269, RELEASED_STATE, settled=False))
    assert router.incoming.modified == 90
    if second:
        router.relay(disposition(0, 89, None, receiver=False))
    assert [(run.state, run.settled) for run in router.sink_session.dispositions if not run.receiver] == [
        (RELEASED_STATE, True)
    ] * 90
    assert router.is_empty


def test_a_multicast_whose_legs_are_named_together_is_expanded_once() -> None:
    router = _router()
    relays: list[object] = []
    router.flow.on_expand = relays.append
    router.relay(transfer(0, b"t", PAYLOAD))
    said = disposition(0, 2, None)
    assert relay_frames(router.sink, said, 0, len(said)) == len(said)
    pending = router.sink.pending_disposition
    assert pending is not None
    assert len(relays) == 1
    assert pending.deliveries == list(router.sink_session.outgoing.deliveries.values())
    assert all(each.remote_settled for each in pending.deliveries)


@pytest.mark.parametrize("answered", [0, 1, 3])
def test_an_expanded_multicast_knows_what_was_said(answered: int) -> None:
    router = _router(second=True)
    router.relay(transfer(0, b"t", PAYLOAD))
    (multicast,) = router.source_session.incoming.deliveries.values()
    assert isinstance(multicast, FastMulticast)
    for number, state in enumerate((FAILED_STATE, ACCEPTED_STATE, RELEASED_STATE)[:answered]):
        router.hear(disposition(number, number, state, settled=number == 0))
    expand_link(router.incoming)
    (received,) = router.source_session.incoming.deliveries.values()
    assert isinstance(received, Delivery)
    relay = received.relay
    assert relay is not None
    assert relay.answered == (answered == 3)
    assert relay.unanswered == 3 - answered
    assert relay.open == 3 - (answered > 0)
    assert relay.strongest == (None, FAILED_STATE, None, ACCEPTED_STATE)[answered]
    assert [leg.outcome for leg in relay.legs] == [FAILED_STATE, ACCEPTED_STATE, RELEASED_STATE][:answered] + [None] * (
        3 - answered
    )
    assert [leg.done for leg in relay.legs] == [answered > 0, False, False]
    assert len(router.sink_session.outgoing) == relay.open
