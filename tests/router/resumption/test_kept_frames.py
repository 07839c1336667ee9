"""Messages of several frames, for receivers that may come back without all of them: kept whole, and sent again whole.

The first message of an address is decided about by the router. Those behind it are relayed by the kernel alone, and
some have frames of both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Rejected
from amqpmesh.router.config.address import AddressConfig
from amqpmesh.router.config.resumption import ResumptionConfig
from tests.router.resumption.test_kept_octets import PART, Foreign
from tests.support.peers.roaming_receiver import ALL, FAILED, FIRST, as_map, fields_of
from tests.support.worlds.network import Sent, message

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Octets of payload of each frame that a sender writes.
FRAME = 700


def in_frames(number: int) -> list[bytes]:
    """Return the payloads of the frames of a message. Args: number: of frames."""
    whole = message("x" * (FRAME * number - FRAME // 2))
    return [whole[at : at + FRAME] for at in range(0, len(whole), FRAME)]


class Framed(Foreign):
    """A receiver whose sender writes frame by frame, behind a message that the router has decided about."""

    def warm(self) -> None:
        self.send()
        self.say(0, Accepted(), settled=True)
        self.came.clear()
        assert self.octets == 0

    def write(self, frames: Sequence[bytes], sent: Sent | None = None, *, more: bool = False, pause: float = 0) -> Sent:
        """Send frames of a message. Args: more: others follow. pause: seconds behind each of them."""
        for number, each in enumerate(frames):
            follows = more or number < len(frames) - 1
            if sent is None:
                sent = self.producer.send(self.sender, each, more=follows)
            else:
                self.producer.resume(sent, each, more=follows)
            self.network.advance(pause)
        assert sent is not None
        return sent

    def tags(self) -> list[bytes]:
        """Return the tags of the deliveries that have come, which their first frames have."""
        transfers = (self.transfer(number) for number in range(len(self.came)))
        return [each.delivery_tag for each in transfers if each.delivery_tag]

    def accept(self) -> None:
        """Accept all that was resumed."""
        for transfer in self.resumed:
            self.say(transfer.delivery_id or 0, Accepted(), settled=True)


@pytest.mark.parametrize("pause", [0, 0.3], ids=["fast", "slow"])
@pytest.mark.parametrize("warm", [True, False], ids=["relayed", "decided"])
@pytest.mark.parametrize("rcv", ReceiverSettleMode)
@pytest.mark.parametrize("number", [1, 2, 3, 20])
def test_a_message_of_several_frames_is_sent_again_whole(
    number: int, rcv: ReceiverSettleMode, warm: bool, pause: float
) -> None:
    r = Framed(rcv)
    if warm:
        r.warm()
    frames = in_frames(number)
    of = r.write(frames, pause=pause)
    r.take()
    tag = r.tag()
    assert r.octets > len(b"".join(frames))
    r.lose()
    assert of.said == []
    assert as_map(r.back({tag: PART})) == {tag: None}
    assert r.payloads == [b"".join(frames)]
    assert of.said == []
    r.accept()
    assert of.outcome == Accepted()
    assert r.octets == 0
    r.finish()


@pytest.mark.parametrize("rcv", ReceiverSettleMode)
def test_messages_of_one_frame_and_of_several_are_kept_alike(rcv: ReceiverSettleMode) -> None:
    r = Framed(rcv)
    r.warm()
    all_frames = [in_frames(number) for number in (1, 4, 1, 1, 2, 7, 1)]
    sent = [r.write(frames) for frames in all_frames]
    r.take()
    ids = [each.performative.delivery_id for each in r.came]  # type: ignore[union-attr]  # transfers
    tags = r.tags()
    assert len(tags) == len(all_frames)
    kept = r.octets
    r.say(next(each for each in ids[1:] if each is not None), Rejected(), settled=True)
    assert kept - r.octets > len(b"".join(all_frames[1]))
    r.lose()
    del all_frames[1], tags[1]
    r.back(dict.fromkeys(tags))
    assert [each.delivery_tag for each in r.resumed] == tags
    assert r.payloads == [b"".join(frames) for frames in all_frames]
    r.accept()
    assert [type(each.outcome) for each in sent] == [Accepted, Rejected, *[Accepted] * 5]
    assert r.octets == 0
    r.finish()


@pytest.mark.parametrize("number", range(1, 6))
def test_a_receiver_that_has_got_some_frames_gets_all_of_them(number: int) -> None:
    """The window of its session closes behind the given number: the others are here, and have not left."""
    frames = in_frames(5)
    r = Framed()
    r.start_small(window=1)
    r.warm()
    r.window = number
    r.give(100)
    of = r.write(frames)
    r.take()
    assert len(r.came) == number
    tag = r.tag()
    r.lose()
    assert of.said == []
    r.come_small(window=9)
    assert as_map(r.attach({tag: PART})) == {tag: None}
    assert r.payloads == [b"".join(frames)]
    assert of.said == []
    r.accept()
    assert of.outcome == Accepted()
    assert r.octets == 0
    r.finish()


def test_each_receiver_of_a_multicast_gets_its_frames_again() -> None:
    r = Framed(address=AddressConfig(pattern="q", distribution=Distribution.MULTICAST))
    r.warm()
    other = r.network.client()
    other.receiver("q")
    alone, both = in_frames(4), in_frames(3)
    of = r.write(both)
    (arrival,) = other.take(1)
    arrival.accept()
    other.lose()
    last = r.write(alone)
    r.take()
    tags = r.tags()
    r.lose()
    r.back(dict.fromkeys(tags))
    assert r.payloads == [b"".join(both), b"".join(alone)]
    assert [of.said, last.said] == [[], []]
    r.accept()
    assert [of.outcome, last.outcome] == [Accepted()] * 2
    assert r.octets == 0
    r.finish()


@pytest.mark.parametrize(
    "limits", [ResumptionConfig(keep_max=2 * FRAME), ResumptionConfig(keep=2 * FRAME)], ids=["a message", "in all"]
)
def test_frames_that_exceed_a_limit_free_those_before_them(limits: ResumptionConfig) -> None:
    r = Framed(limits=limits)
    r.warm()
    frames = in_frames(4)
    of = r.write(frames[:1], more=True)
    assert r.octets > FRAME
    r.write(frames[1:3], of, more=True)
    assert r.octets == 0
    r.write(frames[3:], of)
    r.take()
    assert r.octets == 0
    tag = r.tag()
    r.lose()
    assert as_map(r.back({tag: PART})) == {tag: ALL}
    assert [fields_of(each) for each in r.resumed] == [(ALL, False, True)]
    assert of.outcome == FAILED
    r.finish()


@pytest.mark.parametrize("why", ["its sender settles it", "its sender aborts it", "its receiver settles it"])
def test_what_is_settled_between_its_frames_is_not_kept(why: str) -> None:
    r = Framed(FIRST)
    r.warm()
    frames = in_frames(4)
    of = r.write(frames[:2], more=True)
    r.take()
    assert r.octets > 2 * FRAME
    if why == "its sender settles it":
        r.producer.resume(of, frames[2], more=True, settled=True)
        assert r.octets == 0
        r.producer.resume(of, frames[3], settled=True)
    elif why == "its sender aborts it":
        r.producer.resume(of, aborted=True)
    else:
        r.say(1, Rejected(), settled=True)
        assert r.octets == 0
        r.write(frames[2:], of)
        assert of.outcome == Rejected()
    r.network.run()
    assert r.octets == 0
    assert r.network.relays == 0
    new = r.write(in_frames(2))
    r.take()
    assert r.octets > FRAME
    assert new.said == []
    r.finish()
