"""Floods of links that ask to be kept, and of those that come back: nothing of them stays, and others get turns."""

from __future__ import annotations

import gc
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode, Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.amqp.standard.messaging import Source, Target, TerminusExpiryPolicy
from amqpmesh.router.amqp.standard.performatives import Attach, Detach, End
from amqpmesh.router.core import WORK_LIMIT
from benchmarks import never
from tests.support.peers.bystanders import CHANNEL_MAX, HANDLE_MAX
from tests.support.peers.scripted import attached, begun, flow, frame, transferred
from tests.support.worlds.crowd import LIMITS, Crowd
from tests.support.worlds.network import message

if TYPE_CHECKING:
    from collections.abc import Callable


NEVER = Target(address="a", expiry_policy=TerminusExpiryPolicy.NEVER, timeout=2**32 - 1)
LASTING = Target(address="a", expiry_policy=TerminusExpiryPolicy.CONNECTION_CLOSE, timeout=30)
LASTING_SOURCE = Source(address="q", expiry_policy=TerminusExpiryPolicy.CONNECTION_CLOSE, timeout=30)

#: Octets by which the use of memory may differ between the halves of a flood: some 64 times of expiry are remembered
#: with the termini that had them.
FEW = 64 * 1024

#: Steps that a flood takes first: thefts are remembered for a minute.
BEFORE = 65

SECOND = ReceiverSettleMode.SECOND

KINDS = ["never", "never_and_lost", "back", "stolen", "rounds", "strange"]


#: A map of strange tags, which nearly fills a frame.
BIG_MAP = dict.fromkeys(b"%08x" % each for each in range(300))


class Flood:
    """A peer that floods a router, and says how."""

    def __init__(self) -> None:
        self.crowd = Crowd()
        self.ends = [self.crowd.connect(), self.crowd.connect()]

    def never(self, number: int) -> None:
        """Attach links that are to be kept for ever, and close them."""
        end = self.ends[0]
        for handle in range(4):
            end.peer.write(
                attached(Role.SENDER, "a", name=f"never {number} {handle}", handle=handle, target=NEVER, unsettled={})
            )
        end.peer.write(*(Detach(handle=handle, closed=True) for handle in range(4)))
        end.peer.hear()

    def never_and_lost(self, number: int) -> None:
        """Attach links that are to be kept for ever, and lose the connection."""
        end = self.crowd.connect()
        for handle in range(4):
            end.peer.write(
                attached(Role.SENDER, "a", name=f"lost {number} {handle}", handle=handle, target=NEVER, unsettled={})
            )
        end.peer.hear()
        end.leave()

    def back(self, number: int) -> None:
        """Lose a link with an unsettled delivery, and resume it with a map of strange tags beside."""
        end = self.ends[0]
        end.leave()
        self.ends[0] = end = self.crowd.connect()
        tag = b"mine"
        first = number == 0
        unsettled = None if first else {tag: None, **BIG_MAP}
        end.peer.write(
            attached(Role.SENDER, "a", name="back", target=LASTING, unsettled=unsettled, rcv_settle_mode=SECOND)
        )
        (answer, *_) = (each.performative for each in end.peer.hear() if isinstance(each.performative, Attach))
        assert isinstance(answer, Attach)
        assert first or list(answer.unsettled or ()) == [tag]
        end.peer.write(frame(transferred(0, delivery_tag=tag, resume=not first), message() if first else b""))

    def stolen(self, number: int) -> None:
        """Take a link from another connection, with a map; each name is taken once."""
        name = f"stolen {number}"
        for end in self.ends:
            end.peer.write(attached(Role.SENDER, "a", name=name, target=LASTING, unsettled={}))
            assert isinstance(end.peer.hear()[0].performative, Attach)
        assert isinstance(self.ends[0].peer.hear()[-1].performative, Detach)
        for end in self.ends:
            end.peer.write(Detach(handle=0, closed=True))
            end.peer.hear()
        self.crowd.network.advance(1.0)

    def rounds(self, number: int) -> None:
        """Attach a receiver that has a delivery with incomplete maps, again and again."""
        end, network = self.ends[1], self.crowd.network
        if number == 0:
            end.peer.write(attached(Role.RECEIVER, "q", name="rounds", source=LASTING_SOURCE))
            end.peer.write(flow(handle=0, delivery_count=0, link_credit=1))
            self.crowd.producer.send(self.crowd.producer.sender("q"))
            end.peer.hear()
        else:
            end.peer.write(
                attached(
                    Role.RECEIVER, "q", name="rounds", source=LASTING_SOURCE, unsettled=BIG_MAP,
                    incomplete_unsettled=True,
                )
            )  # fmt: skip
            network.advance(0.3)
            assert isinstance(end.peer.hear()[-1].performative, Detach)
        end.peer.write(Detach(handle=0))
        end.peer.hear()

    def strange(self, number: int) -> None:
        """Resume deliveries of which nobody knows."""
        end = self.ends[1]
        if number == 0:
            end.peer.write(attached(Role.SENDER, "a", name="strange", target=LASTING, unsettled={}))
        for each in range(number * 8, number * 8 + 8):
            fields = [{}, {"aborted": True}, {"state": Accepted()}, {"settled": True}][each % 4]
            end.peer.write(frame(transferred(each, resume=True, **fields), b"" if fields else message(each)))
        assert not any(isinstance(each.performative, Detach | End) for each in end.peer.hear())


def rages(kind: str, times: int) -> None:
    """Let a flood rage, and assert that the memory in use does not grow, and that others go on."""
    flood = Flood()
    step: Callable[[int], None] = getattr(flood, kind)
    used = [0, 0]
    for number in range(BEFORE):
        step(number)
    gc.collect()
    tracemalloc.start()
    try:
        for half in range(2):
            for number in range(BEFORE + half * times, BEFORE + (half + 1) * times):
                step(number)
                if number % (times // 2) == 0:  # seldom: the test remembers each message
                    flood.crowd.check()
            gc.collect()
            used[half] = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert used[1] - used[0] < FEW
    for end in flood.ends:
        end.leave()
    flood.crowd.finish()
    assert not flood.crowd.network.core.context.budget.used


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_stays_of_a_flood(kind: str) -> None:
    rages(kind, times=40)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_stays_of_a_long_flood(kind: str) -> None:
    rages(kind, times=1_000)


def test_nothing_living_stays_of_thousands_of_links_that_were_to_be_kept_for_ever() -> None:
    first, *later = never.rage(4_000, parts=4)
    assert [use.granted for use in (first, *later)] == [1_000, 2_000, 3_000, 4_000]
    # Fewer than one for each forty links; other objects of the process come and go.
    assert max(use.objects for use in later) - first.objects < 25
    assert not any(use.octets for use in later)


def test_others_get_turns_between_the_maps_of_one_read() -> None:
    crowd = Crowd()
    end = crowd.connect(channel_max=CHANNEL_MAX)
    for channel in range(1, CHANNEL_MAX + 1):
        end.peer.write(begun(), channel=channel)
    end.peer.hear()
    links = [(channel, handle) for channel in range(CHANNEL_MAX + 1) for handle in range(HANDLE_MAX + 1)]
    octets = b"".join(
        frame(
            attached(
                Role.SENDER, "a", name=f"{channel} {handle}", handle=handle, target=LASTING,
                unsettled=BIG_MAP,
            ),
            channel=channel,
        )
        for channel, handle in links
    )  # fmt: skip
    turns = 1
    while not crowd.network.core.receive(end.record, octets, crowd.network.now):
        octets = b""
        turns += 1
        crowd.exchange()
    assert turns > len(links) * len(BIG_MAP) // (WORK_LIMIT + len(BIG_MAP))
    answers = [each for each in end.peer.hear() if isinstance(each.performative, Attach)]
    assert len(answers) == len(links)
    assert crowd.network.core.context.termini.granted == LIMITS.links_per_user
    crowd.finish(end)
