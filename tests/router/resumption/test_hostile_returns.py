"""Peers that attach links to be kept without end, or take them from each other: what is kept for them stays bounded."""

from __future__ import annotations

from itertools import count

import pytest

from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode, Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.amqp.standard.messaging import Target, TerminusExpiryPolicy
from amqpmesh.router.amqp.standard.performatives import Attach, Begin, Detach, End
from amqpmesh.router.config.resumption import ResumptionConfig
from tests.support.peers.bystanders import Intruder
from tests.support.peers.raw_sender import RawSender
from tests.support.peers.scripted import attached, begun, frame, transferred
from tests.support.worlds.crowd import LIMITS, Crowd
from tests.support.worlds.network import Network, message
from tests.support.worlds.raw_lines import Line, Lines

NEVER = Target(address="a", expiry_policy=TerminusExpiryPolicy.NEVER, timeout=2**32 - 1)
LASTING = Target(address="a", expiry_policy=TerminusExpiryPolicy.CONNECTION_CLOSE, timeout=30)


def granted(end: Intruder) -> int:
    """Return the seconds that the answer to an attach grants."""
    answer = next(each.performative for each in end.peer.hear() if isinstance(each.performative, Attach))
    assert isinstance(answer.target, Target)
    return answer.target.timeout


def test_links_without_end_are_kept_up_to_the_limit() -> None:
    crowd = Crowd()
    kept = 0
    names = (f"link {number}" for number in count())
    for _ in range(40):
        end = crowd.connect()
        for handle in range(5):
            end.peer.write(attached(Role.SENDER, "a", name=next(names), handle=handle, target=NEVER, unsettled={}))
            kept += granted(end) > 0
        end.leave()
        crowd.check()
    assert kept == LIMITS.links_per_user
    crowd.finish()


@pytest.mark.parametrize("closes", [True, False])
def test_a_name_that_is_stolen_to_and_fro_is_one_link(closes: bool) -> None:
    crowd = Crowd()
    numbers = count()
    ends = [crowd.connect(), crowd.connect()]
    for number in range(60):
        end = ends[number % 2]
        end.peer.write(attached(Role.SENDER, "a", name="one", target=LASTING, unsettled={}))
        heard = [each.performative for each in end.peer.hear()]
        if any(isinstance(each, Attach) and each.target is not None for each in heard):
            end.peer.write(frame(transferred(next(numbers)), message(number)))
        for other in ends:
            if any(isinstance(each.performative, Detach | End) for each in other.peer.hear()):
                other.peer.write(End())
                other.peer.hear()
                other.peer.write(begun())
                assert any(isinstance(each.performative, Begin) for each in other.peer.hear())
        if closes and number % 7 == 0:
            end.leave()
            ends[number % 2] = crowd.connect()
        crowd.check()
        assert crowd.network.core.context.termini.granted <= 2
    crowd.finish(*ends)


@pytest.mark.parametrize("rcv", ReceiverSettleMode)
def test_transfers_that_resume_what_nobody_knows_leave_nothing(rcv: ReceiverSettleMode) -> None:
    crowd = Crowd()
    end = crowd.connect()
    end.peer.write(attached(Role.SENDER, "a", name="one", target=LASTING, rcv_settle_mode=rcv, unsettled={}))
    end.peer.hear()
    for number in range(100):
        fields = [{}, {"aborted": True}, {"state": Accepted()}, {"settled": True}, {"more": True}][number % 5]
        end.peer.write(frame(transferred(number, resume=True, **fields), b"" if "aborted" in fields else message(1)))
        if "more" in fields:
            end.peer.write(frame(transferred(number, delivery_tag=None), message(1)))
        assert not any(isinstance(each.performative, Detach | End) for each in end.peer.hear())
    assert crowd.taker.take() == []
    assert crowd.network.relays == 0
    crowd.check()
    crowd.finish(end)


def test_what_is_too_many_is_given_up_by_who_has_most_the_oldest_first() -> None:
    network = Network(resumption=ResumptionConfig(unsettled=3))
    network.client("taker").receiver("a", credit=1000)
    lines = [Line(RawSender(f"p{number}", "a", ReceiverSettleMode.SECOND), network) for number in range(6)]
    hosts = ["127.0.0.1", *["127.0.0.2"] * 5]  # each is another user
    for line, host in zip(lines, hosts, strict=True):
        line.connect(host)
    every = Lines(*lines)
    every.run()
    for line in lines:
        assert isinstance(line.peer, RawSender)
        line.peer.submit(message())
    every.run()
    for line in lines:
        line.cut()
    network.run()
    termini = network.core.context.termini
    kept = sorted(each.key[3] for each in termini.kept())
    assert (kept, termini.evicted) == (["p0", "p4", "p5"], 3)
    network.advance(31.0)
    assert termini.suspended_number == termini.granted == 0
