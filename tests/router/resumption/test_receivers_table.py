"""The router's map for each delivery that a returning sender names or does not, as the receiver (§2.6.13, §3.4.6)."""

from __future__ import annotations

from itertools import product

import pytest

from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted, DeliveryState, Received, Rejected
from amqpmesh.router.amqp.standard.performatives import Attach
from tests.router.resumption.test_returning_senders import SECOND, WHOLE, Roaming, tag
from tests.support.peers.scripted import frame, transferred
from tests.support.worlds.network import message

ABSENT = "absent"

#: The router's knowledge: nothing, part of the message, all of it, or an outcome of its receiver.
OURS = ("nothing", "part", "all", "accepted", "rejected")

#: The sender's entry.
THEIRS: dict[str, DeliveryState | None] = {
    "null": None,
    "some": Received(section_number=1, section_offset=150),
    "accepted": Accepted(),
    "rejected": Rejected(),
}

OUTCOMES: dict[str, DeliveryState] = {"accepted": Accepted(), "rejected": Rejected()}


def expected(ours: str, theirs: str, *, complete: bool) -> DeliveryState | None:
    """Return the entry that the router's map must have; None: it must have none."""
    if ours in ("nothing", "part"):
        return None  # 1, 5, 10: and an entry for part of a message is better not retained (§3.4.6)
    if theirs == ABSENT and complete:
        return None  # it is settled (§2.6.13)
    return OUTCOMES.get(ours, WHOLE)  # 2, 6, 11; 3, 8, 12, 13


def known(rcv: ReceiverSettleMode, ours: str) -> Roaming:
    """Return a sender that has lost its link, with a router that knows as much as `ours` of its delivery."""
    r = Roaming(rcv)
    if ours == "part":
        r.peer.write(frame(transferred(0, more=True), message(0)[:5]))
    elif ours != "nothing":
        r.send()
    r.lose()
    if ours in OUTCOMES:
        r.arrivals[0].dispose(OUTCOMES[ours], settled=rcv is not SECOND)
        r.network.run()
    return r


@pytest.mark.parametrize(
    ("rcv", "ours", "theirs", "complete"), [*product(ReceiverSettleMode, OURS, (ABSENT, *THEIRS), (True, False))]
)
def test_the_map_has_what_the_router_knows_and_the_sender_has_not_settled(
    rcv: ReceiverSettleMode, ours: str, theirs: str, complete: bool
) -> None:
    r = known(rcv, ours)
    named = {} if theirs == ABSENT else {tag(0): THEIRS[theirs]}
    r.begin()
    r.peer.write(r.attaching({**named, b"strange": Accepted()}, incomplete_unsettled=not complete))
    answer = r.peer.hear()[0].performative
    assert isinstance(answer, Attach)
    assert answer.unsettled is not None, "the link is known"
    entry = expected(ours, theirs, complete=complete)
    assert dict(answer.unsettled.items()) == ({} if entry is None else {tag(0): entry})
    if r.arrivals and rcv is SECOND and ours in OUTCOMES:
        told_settled = any(settled for _, settled in r.arrivals[0].said)
        assert told_settled == (entry is None), "its receiver keeps it until the sender has settled it"
    for arrival in r.arrivals:
        arrival.accept()
    r.consumer.take()
    r.finish()


@pytest.mark.parametrize("theirs", THEIRS)
def test_of_a_link_that_is_not_known_nothing_is_known(theirs: str) -> None:
    r = known(SECOND, "all")
    r.network.advance(31)
    r.begin()
    r.peer.write(r.attaching({tag(0): THEIRS[theirs]}))
    answer = r.peer.hear()[0].performative
    assert isinstance(answer, Attach)
    assert answer.unsettled is None
    r.arrivals[0].accept()
    r.finish()
