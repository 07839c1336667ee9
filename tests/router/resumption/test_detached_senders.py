"""Senders that detach a link without closing it, and whose session goes on: their deliveries stay as they are."""

from __future__ import annotations

import pytest

from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode, Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.amqp.standard.messaging import TerminusExpiryPolicy
from amqpmesh.router.amqp.standard.performatives import Detach, Disposition, End
from tests.router.resumption.test_returning_senders import CLOSE, WHOLE, Roaming, as_map, tag

FIRST, SECOND = ReceiverSettleMode.FIRST, ReceiverSettleMode.SECOND
LINK_DETACH = TerminusExpiryPolicy.LINK_DETACH


def detached(rcv: ReceiverSettleMode, count: int = 2, **fields: object) -> Roaming:
    """Return a sender that has detached its link, with unsettled deliveries."""
    r = Roaming(rcv, **fields)  # type: ignore[arg-type]
    r.send(count)
    r.peer.write(Detach(handle=0))
    r.peer.expect(Detach)
    assert r.suspended == 1
    return r


def settle(r: Roaming, number: int) -> None:
    """Settle a delivery after its outcome, in mode second, by the id that it has."""
    if r.rcv is SECOND:
        r.peer.write(Disposition(role=Role.SENDER, first=number, settled=True, state=Accepted()))


@pytest.mark.parametrize("rcv", ReceiverSettleMode)
def test_it_hears_outcomes_by_the_ids_that_it_has_given(rcv: ReceiverSettleMode) -> None:
    r = detached(rcv)
    for number, arrival in enumerate(r.arrivals):
        arrival.dispose(Accepted(), settled=rcv is FIRST)
        (said,) = r.heard()
        assert (said.first, said.state, said.settled) == (number, Accepted(), rcv is FIRST)
        settle(r, number)
        assert r.arrivals[number].delivery.settled
    assert r.network.relays == 0
    assert as_map(r.attach({})) == {}, "the target is known still"
    r.finish()


@pytest.mark.parametrize("rcv", ReceiverSettleMode)
def test_a_link_that_is_attached_without_a_map_leaves_them_as_they_are(rcv: ReceiverSettleMode) -> None:
    r = detached(rcv)
    assert r.attach(None).unsettled is None
    assert r.suspended == 0
    for number, arrival in enumerate(r.arrivals):
        arrival.dispose(Accepted(), settled=rcv is FIRST)
        (said,) = r.heard()
        assert (said.first, said.state) == (number, Accepted())
        settle(r, number)
    assert r.network.relays == 0
    r.finish()


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
@pytest.mark.parametrize("rcv", ReceiverSettleMode)
def test_a_map_tells_what_is_unsettled_still(rcv: ReceiverSettleMode, elsewhere: bool) -> None:
    r = detached(rcv)
    r.arrivals[0].dispose(Accepted(), settled=rcv is FIRST)
    (said,) = r.heard()
    assert said.first == 0
    before = r.end
    answer = (r.back if elsewhere else r.attach)({tag(1): None} if rcv is FIRST else {tag(0): None, tag(1): None})
    assert as_map(answer) == {tag(1): WHOLE} if rcv is FIRST else {tag(0): Accepted(), tag(1): WHOLE}
    assert r.suspended == 0
    r.resume(7, of=1)
    r.arrivals[1].dispose(Accepted(), settled=rcv is FIRST)
    (said,) = r.heard()
    assert (said.first, said.state) == (7, Accepted())
    if elsewhere:
        before.leave()
    r.finish()


@pytest.mark.parametrize("ends_session", [False, True], ids=["connection", "session"])
@pytest.mark.parametrize("rcv", ReceiverSettleMode)
def test_once_its_session_is_over_outcomes_are_kept(rcv: ReceiverSettleMode, ends_session: bool) -> None:
    r = detached(rcv)
    if ends_session:
        r.peer.write(End())
        r.peer.expect(End)
    else:
        r.lose()
    assert r.suspended == 1
    r.arrivals[0].dispose(Accepted(), settled=rcv is FIRST)
    r.network.run()
    if ends_session:
        r.peer.begin()
    answer = (r.attach if ends_session else r.back)({tag(0): None, tag(1): None})
    assert as_map(answer) == {tag(0): Accepted(), tag(1): WHOLE}
    r.arrivals[1].accept()
    r.finish()


@pytest.mark.parametrize("rcv", ReceiverSettleMode)
def test_they_outlive_its_time_with_the_session(rcv: ReceiverSettleMode) -> None:
    r = detached(rcv, policy=LINK_DETACH)
    r.network.advance(31)
    assert r.suspended == 0
    r.arrivals[0].dispose(Accepted(), settled=rcv is FIRST)
    (said,) = r.heard()
    assert (said.first, said.state) == (0, Accepted())
    settle(r, 0)
    r.peer.write(End())
    r.peer.expect(End)
    r.arrivals[1].accept()
    r.network.run()
    assert r.network.relays == 0
    r.finish()


@pytest.mark.parametrize("policy", [CLOSE, LINK_DETACH])
def test_without_deliveries_its_target_is_kept_alone(policy: TerminusExpiryPolicy) -> None:
    r = detached(FIRST, 0, policy=policy)
    assert as_map(r.attach({})) == {}
    r.peer.write(Detach(handle=0))
    r.peer.expect(Detach)
    r.lose()
    assert r.suspended == 1
    assert as_map(r.back({tag(5): None})) == {}
    r.finish()
