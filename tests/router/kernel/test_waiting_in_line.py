"""Back-pressure of small deliveries: those of a connection that goes one way wait unread for their route."""

from __future__ import annotations

from typing import Final

import pytest

from amqpmesh.router import kernel as bound
from amqpmesh.router.kernel import IMPATIENCE, LONGEST, ONE_WAY, PATIENCE, may_go_on, relay_frames
from tests.support.worlds.kernel_router import Router
from tests.support.worlds.side_by_side import transfer

BODY: Final = b"\x00\x53\x75\xa0\x041234"
NEXT: Final = ONE_WAY + 1


def one_way_router(deliveries: int = NEXT) -> Router:
    """Return a router that has relayed so many deliveries of one connection by the same route."""
    router = Router(bound)
    router.source.patient = router.sink.patient = True
    router.flow.now = 10.0
    for number in range(deliveries):
        router.relay(transfer(number, b"%d" % number, BODY))
    router.source.work = 1000
    return router


def is_left(router: Router, number: int = NEXT) -> bool:
    """Return whether the next delivery stays unread, because it has to wait for its route: then nothing happens."""
    frame, before = transfer(number, b"%d" % number, BODY), router.state()
    router.source.waits_for = None
    at = relay_frames(router.source, frame, 0, len(frame))
    if router.source.waits_for is None:
        return False
    assert (at, router.source.waits_for, router.source.waits_on) == (0, router.sink, router.fast_route)
    assert router.state() == before
    assert not may_go_on(router.flow, router.fast_route)
    return True


def is_relayed(router: Router, number: int = NEXT) -> bool:
    """Return whether the next delivery is relayed."""
    before = router.incoming.relayed
    return not is_left(router, number) and router.incoming.relayed == before + 1


def close_window(router: Router) -> None:
    router.sink_session.remote_incoming_window = 0


def test_it_waits_for_the_window_of_the_receivers_session() -> None:
    router = one_way_router()
    close_window(router)
    assert is_left(router)
    router.sink_session.remote_incoming_window = 1
    assert may_go_on(router.flow, router.fast_route)
    assert is_relayed(router)


def test_of_a_connection_with_one_link_the_first_one_waits() -> None:
    router = one_way_router(0)
    close_window(router)
    assert is_left(router, 0)


def test_one_of_an_anonymous_sender_waits_for_credit_and_one_of_a_sender_with_an_address_is_decided() -> None:
    router = one_way_router()
    (out,) = router.outgoing
    out.link_credit = 0
    assert not is_left(router)
    table = bound.AnonymousRoutes()
    table.only = b"q"
    table.generation = router.flow.epoch
    table.put(b"q", router.fast_route)
    router.incoming.anonymous = True
    bound.enable_fast_path(router.incoming, 0, table)
    assert is_left(router)
    out.link_credit = 1
    assert may_go_on(router.flow, router.fast_route)
    assert is_relayed(router)


def test_a_large_one_waits_for_room_in_the_receivers_output_longer_than_others_wait_for_an_output() -> None:
    router = one_way_router()
    frame = transfer(NEXT, b"large", BODY, more=True)
    router.sink.out += bytes(router.sink.backlog)
    router.sink.sending = 1
    assert relay_frames(router.source, frame, 0, len(frame)) == 0
    assert (router.source.waits_for, router.source.waits_on) == (router.sink, router.fast_route)
    router.flow.now += 2 * PATIENCE
    assert relay_frames(router.source, frame, 0, len(frame)) == 0
    assert router.source.waits_for is router.sink
    router.sink.out.clear()
    router.sink.sending = 0
    router.source.waits_for = None
    assert relay_frames(router.source, frame, 0, len(frame)) == len(frame)


def test_it_waits_behind_deliveries_that_wait_in_the_router() -> None:
    router = one_way_router()
    router.fast_route.generation = 0
    assert not is_left(router), "the router decides about it"
    router.fast_route.queue = router.sink
    assert is_left(router)
    router.fast_route.queue = None
    router.fast_route.generation = router.flow.generation
    assert is_relayed(router)


@pytest.mark.parametrize("why", ["lately", "other way", "receives", "many links", "impatient", "slow", "its own"])
def test_none_waits_that_has_others_behind_it_or_waited_in_vain(why: str) -> None:
    router = one_way_router(NEXT - 2 if why == "lately" else NEXT)
    if why in ("lately", "other way"):
        bound.enable_fast_path(bound.KernelLink(router.source_session, False, None, {}), 1, None)
    if why == "other way":
        bound.goes_by(router.source, bound.FastRoute())
    elif why == "receives":
        link = bound.KernelLink(router.source_session, True, None, {})
        bound.enable_fast_path(link, 1, bound.FastRoute())
    elif why == "many links":
        for handle in range(1, 9):
            bound.enable_fast_path(bound.KernelLink(router.source_session, False, None, {}), handle, None)
    elif why == "impatient":
        router.source.patient = False
    elif why == "slow":
        router.sink.slow_until = router.flow.now + 0.5
    elif why == "its own":
        router.sink_session.wire = router.source
    close_window(router)
    assert not is_left(router)


def test_it_waits_longer_than_large_deliveries_do_and_then_none_does_for_a_while() -> None:
    router = one_way_router()
    close_window(router)
    began = router.flow.now
    for seconds in (0.0, 2 * PATIENCE, 0.9 * LONGEST):
        router.flow.now = began + seconds
        assert is_left(router)
    router.flow.now = began + 1.1 * LONGEST
    assert not is_left(router)
    assert router.sink.slow_until == router.flow.now + IMPATIENCE


def test_waits_that_end_in_time_do_not_add_up() -> None:
    router = one_way_router()
    for number in range(NEXT, NEXT + 20):
        close_window(router)
        assert is_left(router, number)
        router.flow.now += 0.9 * LONGEST
        router.sink_session.remote_incoming_window = 1
        assert is_relayed(router, number)
    assert router.sink.slow_until == 0.0


def test_a_wait_begins_again_when_others_go_on() -> None:
    router = one_way_router()
    close_window(router)
    began = router.flow.now
    for part in (0.0, 0.9, 1.5, 2.4):
        router.flow.now = began + part * LONGEST
        if part == 1.5:
            router.sink_session.next_outgoing_id += 1
        assert is_left(router)
    router.flow.now = began + 2.6 * LONGEST
    assert not is_left(router), "nobody has gone on since"
    assert router.sink.slow_until == router.flow.now + IMPATIENCE


def test_a_wait_ends_although_others_go_on_for_ever() -> None:
    router = one_way_router()
    close_window(router)
    times = 0
    while is_left(router):
        router.sink_session.next_outgoing_id += 1
        router.flow.now += 0.5 * LONGEST
        times += 1
        assert times < 100
    assert 20 <= times <= 24, "after ten times as long"
