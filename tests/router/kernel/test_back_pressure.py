"""Back-pressure: large frames that stay unread until their output can be written."""

from __future__ import annotations

from typing import Final

import pytest

from amqpmesh.router import kernel as bound
from amqpmesh.router.kernel import IMPATIENCE, PACE, PATIENCE, relay_frames
from tests.support.worlds.kernel_router import Router
from tests.support.worlds.side_by_side import transfer

BEGIN: Final = b"\x00\x53\x75\xb0\x00\x00\x00\x0c"
FIRST: Final = transfer(7, b"tag", BEGIN + b"1234", more=True)
REST: Final = transfer(-1, None, b"5678", more=True, message_format=-1)


def waiting_router() -> Router:
    """Return a router that has relayed the begin of a large delivery, 200 ms before the next frame."""
    router = Router(bound)
    router.source.number, router.sink.number = 1, 2
    router.source.patient = router.sink.patient = True
    router.flow.now = 10.0
    router.relay(FIRST)
    router.flow.now = 10.2
    return router


def taken(router: Router) -> int:
    """Take the output. Returns: its octets."""
    octets = len(router.sink.out)
    router.sink.out = bytearray()
    return octets


def is_left(router: Router, frame: bytes = REST) -> bool:
    """Return whether the next frame stays unread, because the output must be written first."""
    before = router.state()
    router.source.waits_for = None
    at = relay_frames(router.source, frame, 0, len(frame))
    if router.source.waits_for is None:
        return False
    assert router.source.waits_for is router.sink
    assert at == 0
    assert router.state() == before
    return True


def waited(router: Router, seconds: float, payload: bytes) -> bool:
    """Return whether the next frame waits for this time, and is relayed after its window has opened."""
    frame = transfer(-1, None, payload, more=True, message_format=-1)
    router.sink_session.remote_incoming_window = 0
    assert is_left(router, frame)
    router.flow.now += seconds
    if not is_left(router, frame):
        return False
    router.sink_session.remote_incoming_window = 1
    assert not is_left(router, frame)
    assert taken(router)
    router.source_session.incoming_limit += 1
    return True


def test_untried_output_is_written_first() -> None:
    router = waiting_router()
    router.sink.backlog = len(router.sink.out) - 1
    router.flow.small_at = router.flow.now  # a small delivery came just now
    assert is_left(router)
    assert taken(router)
    assert not is_left(router)
    assert router.sink.out


def test_what_is_being_written_is_waited_for_and_so_is_a_window() -> None:
    router = waiting_router()
    router.sink.sending = taken(router)
    router.sink.backlog = router.sink.sending - 1
    assert is_left(router)
    router.sink.sending = 0
    router.sink_session.remote_incoming_window = 0
    assert is_left(router)
    router.sink_session.remote_incoming_window = 1
    assert not is_left(router)
    assert router.sink.out


@pytest.mark.parametrize("why", ["impatient", "small", "slow", "elsewhere", "lately"])
def test_nobody_waits_where_others_would_suffer(why: str) -> None:
    router = waiting_router()
    router.sink.sending = taken(router)
    router.sink.backlog = router.sink.sending - 1
    if why == "impatient":
        router.source.patient = False
    elif why == "small":
        router.flow.small_at = router.flow.now - 0.05
    elif why == "slow":
        router.sink.slow_until = router.flow.now + 0.5
    elif why == "elsewhere":
        router.source.toward = 3
    else:
        router.source.toward_since = router.flow.now - 0.05
    assert not is_left(router)
    assert not router.sink.out, "it is for others to read"


def test_a_frame_waits_for_a_short_while_however_often_it_is_looked_at() -> None:
    router = waiting_router()
    assert taken(router)
    router.sink_session.remote_incoming_window = 0
    began = router.flow.now
    for part in (0.0, 0.3, 0.6, 0.9):
        router.flow.now = began + part * PATIENCE
        assert is_left(router)
    router.flow.now = began + 1.1 * PATIENCE
    assert not is_left(router)
    assert not router.sink.out, "it is for others to read"
    assert router.sink.slow_until == router.flow.now + IMPATIENCE


def test_many_frames_wait_no_longer_than_one_together_but_for_their_octets() -> None:
    router = waiting_router()
    assert waited(router, 0.9 * PATIENCE, b"5678"), "of the time that there is"
    assert not waited(router, 0.2 * PATIENCE, b"5678")
    assert router.sink.slow_until == router.flow.now + IMPATIENCE


def test_what_is_fast_enough_may_wait_for_ever() -> None:
    router = waiting_router()
    payload = b"x" * 10_000
    for _ in range(100):
        assert waited(router, 0.9 * len(payload) / PACE, payload)
    assert router.flow.now - router.source.toward_since > 3 * PATIENCE
    assert router.sink.slow_until < router.flow.now


def test_the_begin_of_the_next_waits_as_its_middle_does() -> None:
    router = waiting_router()
    router.relay(transfer(-1, None, b"9abc", message_format=-1))
    router.sink.sending = taken(router)
    router.sink.backlog = router.sink.sending - 1
    following = transfer(8, b"next", BEGIN + b"1234", more=True)
    assert relay_frames(router.source, following, 0, len(following)) == 0
    assert router.source.waits_for is router.sink
    router.sink.sending = 0
    router.relay(following)
    assert router.sink.out
