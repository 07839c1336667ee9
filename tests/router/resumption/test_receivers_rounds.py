"""Receivers whose unsettled map, or ours, is incomplete: rounds, in which deliveries are only resumed (§2.7.3)."""

from __future__ import annotations

from collections import Counter

import pytest

from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error, ReceiverSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted, DeliveryState, Received, Rejected, Released
from amqpmesh.router.amqp.standard.messaging import Source
from amqpmesh.router.amqp.standard.performatives import Attach, Detach
from amqpmesh.router.config.address import AddressConfig
from tests.support.peers.roaming_receiver import ALL, FAILED, SECOND, Map, as_map
from tests.support.peers.roaming_receiver import RoamingReceiver as Roaming
from tests.support.peers.scripted import flow
from tests.support.worlds.network import Network, message

COUNT = 60


class Small(Roaming):
    """A receiver that takes small frames when it comes back: a map of its deliveries needs several."""

    def __init__(
        self, rcv: ReceiverSettleMode = SECOND, *, sent: ReceiverSettleMode = ReceiverSettleMode.FIRST
    ) -> None:
        super().__init__(rcv, sent=sent, network=Network(AddressConfig(pattern="q", max_unsettled=1000)))
        self.sent = self.send(COUNT)
        self.tags = [self.tag(number) for number in range(COUNT)]
        self.lose()
        self.begin_small()
        self.ids = 0

    def round(self, unsettled: Map, **fields: object) -> tuple[Attach, list[bytes]]:
        """Attach, and take what is resumed until the router detaches. Returns: its answer, and the resumed tags."""
        self.came.clear()
        self.peer.write(self.attaching(unsettled, **fields))
        (answer,) = [each.performative for each in self.peer.hear() if isinstance(each.performative, Attach)]
        self.count = 0
        self.peer.write(flow(handle=0, next_incoming_id=self.ids, delivery_count=0, link_credit=1000))
        self.network.run()
        heard = self.peer.hear()
        if not any(isinstance(each.performative, Detach) for each in heard):
            self.network.advance(0.3)
            heard += self.peer.hear()
        self.came = [each for each in heard if getattr(each.performative, "delivery_tag", None) is not None]
        self.ids += len(self.came)
        detaches = [each.performative for each in heard if isinstance(each.performative, Detach)]
        assert detaches == [Detach(handle=answer.handle)], "not closed, and without an error"
        self.peer.write(Detach(handle=0))
        assert self.suspended == 1
        assert len(self.resumed) == len(self.came), "nothing else may come"
        return answer, [each.delivery_tag or b"" for each in self.resumed]


@pytest.mark.parametrize("rcv", ReceiverSettleMode)
def test_outcomes_of_a_map_that_needs_several_frames_are_heard_in_rounds(rcv: ReceiverSettleMode) -> None:
    r = Small(rcv)
    left: dict[bytes, DeliveryState | None] = {tag: Accepted() for tag in r.tags}
    for rounds in (1, 2):
        part = dict(list(left.items())[:20])
        answer, resumed = r.round(part, incomplete_unsettled=True)
        assert {tag: as_map(answer)[tag] for tag in part} == part
        assert resumed == list(part)
        for tag in part:
            del left[tag]
        assert sum(each.outcome == Accepted() for each in r.sent) == 20 * rounds
        assert sum(each.said == [] for each in r.sent) == COUNT - 20 * rounds, "the map says nothing of others"
    answer = r.attach(left, credit=0)
    assert as_map(answer) == left
    assert not answer.incomplete_unsettled
    r.transfers = r.ids
    r.give(100)
    assert [each.outcome for each in r.sent] == [Accepted()] * COUNT
    new = r.producer.send(r.sender, message("new"))
    (came,) = r.take()
    assert came.payload == message("new"), "both maps were complete"
    assert new.said == []
    r.finish()


def test_our_map_names_what_fits_outcomes_first() -> None:
    r = Small()
    theirs: Map = dict.fromkeys(r.tags, ALL)
    for tag in r.tags[-10:]:
        theirs[tag] = Rejected()
    answer, resumed = r.round(theirs)
    assert answer.incomplete_unsettled
    assert len(as_map(answer)) < COUNT
    assert {tag: as_map(answer)[tag] for tag in r.tags[-10:]} == dict.fromkeys(r.tags[-10:], Rejected())
    assert sorted(resumed) == sorted(as_map(answer))
    assert [each.outcome for each in r.sent[-10:]] == [Rejected()] * 10
    assert [each.said for each in r.sent[:-10]] == [[]] * (COUNT - 10)
    r.finish()


def test_each_round_resumes_others_and_no_new_delivery_comes() -> None:
    r = Small()
    times = Counter(dict.fromkeys(r.tags, 0))
    for _ in range(9):
        answer, resumed = r.round(dict.fromkeys(r.tags, ALL))
        assert answer.incomplete_unsettled
        assert set(as_map(answer).values()) == {ALL}
        times.update(resumed)
        assert max(times.values()) - min(times.values()) <= 1
        assert r.sender.credit == 0, "the receiver takes nothing new yet"
    assert len(times) == COUNT
    assert min(times.values()) > 0
    assert [each.said for each in r.sent] == [[]] * COUNT
    r.lose()
    r.finish()
    assert [each.outcome for each in r.sent] == [FAILED] * COUNT


def test_what_a_complete_map_lacks_ends_though_ours_is_incomplete() -> None:
    r = Small()
    lacked = r.tags.pop(0)
    answer, _ = r.round(dict.fromkeys(r.tags, ALL))
    assert answer.incomplete_unsettled
    assert lacked not in as_map(answer)
    assert r.sent[0].outcome == Released()
    assert {tuple(each.said) for each in r.sent[1:]} == {()}
    r.finish()


def test_an_outcome_that_is_told_in_no_entry_of_ours_is_heard_all_the_same() -> None:
    r = Small()
    answer, resumed = r.round(dict.fromkeys(r.tags, Accepted()))
    assert answer.incomplete_unsettled
    assert len(resumed) < COUNT
    assert [each.outcome for each in r.sent] == [Accepted()] * COUNT
    left = [tag for tag in r.tags if tag not in resumed]
    answer = r.attach(dict.fromkeys(left, Accepted()), credit=0)
    assert as_map(answer) == {}, "its sender has settled it, as the receiver may then"
    assert not answer.incomplete_unsettled
    assert r.network.relays == 0
    r.finish()


def test_in_mode_second_the_rest_is_resumed_once_its_sender_has_the_outcome() -> None:
    r = Small(sent=SECOND)
    seen: set[bytes] = set()
    for _ in range(4):
        answer, resumed = r.round(dict.fromkeys(r.tags, Accepted()))
        assert set(as_map(answer).values()) == {Accepted()}
        assert not seen & set(resumed) or len(seen | set(resumed)) == COUNT
        seen |= set(resumed)
    assert len(seen) == COUNT
    for each in r.sent:
        assert each.outcome == Accepted()
        each.dispose(None, settled=True)
    r.network.run()
    assert r.network.relays == 0
    assert as_map(r.attach(dict.fromkeys(r.tags, Accepted()), credit=0)) == {}
    r.finish()


def test_a_round_waits_for_the_credit_of_the_receiver() -> None:
    r = Small()
    r.peer.write(r.attaching({r.tags[0]: Accepted()}, incomplete_unsettled=True))
    assert [type(each.performative) for each in r.peer.hear()] == [Attach]
    assert r.sent[0].outcome == Accepted(), "it needs none to be heard"
    r.network.advance(5)
    assert r.peer.hear() == []
    r.peer.write(flow(handle=0, next_incoming_id=0, delivery_count=0, link_credit=1))
    transfer, detach = [each.performative for each in r.peer.hear()]
    assert getattr(transfer, "delivery_tag", None) == r.tags[0]
    assert isinstance(detach, Detach)
    r.peer.write(Detach(handle=0))
    assert r.suspended == 1
    r.finish()


@pytest.mark.parametrize("state", [None, Received(section_number=1, section_offset=3)])
def test_what_cannot_be_sent_again_is_aborted_in_its_round(state: DeliveryState | None) -> None:
    r = Small()
    _, resumed = r.round({r.tags[1]: state}, incomplete_unsettled=True)
    assert resumed == [r.tags[1]]
    assert [bool(each.aborted) for each in r.resumed] == [True]
    assert [each.outcome for each in r.sent] == [None, FAILED] + [None] * (COUNT - 2)
    r.finish()


def test_a_link_that_is_lost_in_a_round_may_come_back() -> None:
    r = Small()
    r.peer.write(r.attaching(dict.fromkeys(r.tags, ALL)))
    r.peer.write(flow(handle=0, next_incoming_id=0, delivery_count=0, link_credit=5))
    r.network.run()
    r.peer.hear()
    r.lose()
    assert r.suspended == 1
    assert as_map(r.back(dict.fromkeys(r.tags, Accepted()))) == dict.fromkeys(r.tags, Accepted())
    assert [each.outcome for each in r.sent] == [Accepted()] * COUNT
    assert len(r.resumed) == COUNT
    r.finish()


def test_an_incomplete_map_is_answered_though_nothing_is_held() -> None:
    r = Roaming()
    r.lose()
    r.begin()
    r.peer.write(r.attaching({b"strange": None}, incomplete_unsettled=True))
    answer, detach = r.peer.expect_all(Attach, Detach)
    assert isinstance(answer, Attach)
    assert as_map(answer) == {}
    assert detach == Detach(handle=answer.handle)
    r.peer.write(Detach(handle=0))
    assert r.suspended == 1
    assert as_map(r.attach({})) == {}
    r.send()
    r.finish()


def test_an_incomplete_map_that_is_null_changes_nothing() -> None:
    r = Roaming()
    (of,) = r.send()
    tag = r.tag()
    r.lose()
    r.begin()
    r.peer.write(r.attaching(None, incomplete_unsettled=True))
    _, detach = r.peer.expect_all(Attach, Detach)
    assert isinstance(detach, Detach)
    assert not detach.closed
    r.peer.write(Detach(handle=0))
    assert of.said == []
    assert as_map(r.attach({tag: Accepted()})) == {tag: Accepted()}
    assert of.outcome == Accepted()
    r.finish()


def test_a_link_whose_time_is_not_granted_any_more_ends_with_its_round() -> None:
    r = Small()
    r.peer.write(r.attaching({r.tags[0]: Accepted()}, incomplete_unsettled=True, source=Source(address="q")))
    r.peer.write(flow(handle=0, next_incoming_id=0, delivery_count=0, link_credit=1))
    heard = [each.performative for each in r.peer.hear()]
    assert isinstance(heard[-1], Detach)
    r.lose()
    assert r.suspended == 0
    assert [each.outcome for each in r.sent] == [Accepted()] + [FAILED] * (COUNT - 1)
    r.finish()


LONG = Rejected(error=Error(condition=AmqpCondition.NOT_ALLOWED, description="x" * 2000))


def test_an_outcome_that_fits_into_no_frame_is_named_without_its_details() -> None:
    r = Roaming(sent=SECOND)
    (of,) = r.send()
    tag = r.tag()
    r.lose()
    r.begin_small()
    r.came.clear()
    answer = r.attach({tag: LONG})
    assert not answer.incomplete_unsettled, "or rounds would never end"
    (state,) = as_map(answer).values()
    assert isinstance(state, Rejected)
    assert of.outcome == LONG
    assert [each.delivery_tag for each in r.resumed] == [tag]
    assert r.network.core.context.termini.counts.restated == 0
    of.dispose(None, settled=True)
    new = r.producer.send(r.sender, message("new"))
    (came,) = r.take()
    assert came.payload == message("new")
    r.say(1, Accepted(), settled=True)
    assert new.outcome == Accepted()
    new.dispose(None, settled=True)
    r.finish()


@pytest.mark.parametrize("length", [400, 600])
def test_our_map_leaves_room_for_the_names_of_the_link(length: int) -> None:
    r = Roaming(network=Network(AddressConfig(pattern="q", max_unsettled=1000)), name="n" * length)
    r.send(COUNT)
    tags = [r.tag(number) for number in range(COUNT)]
    r.lose()
    r.begin_small()
    r.peer.write(r.attaching(dict.fromkeys(tags, ALL)))
    (answer,) = [each.performative for each in r.peer.hear()]
    assert isinstance(answer, Attach), "it fits into a frame"
    assert answer.incomplete_unsettled
    assert as_map(answer)
    r.finish()


def test_where_not_one_entry_fits_rounds_do_not_follow_at_once() -> None:
    r = Roaming(name="n" * 815)
    (of,) = r.send()
    tag = r.tag()
    r.lose()
    r.begin_small()
    r.peer.write(r.attaching({tag: ALL}))
    (answer,) = [each.performative for each in r.peer.hear()]
    assert isinstance(answer, Attach)
    assert answer.incomplete_unsettled
    r.peer.write(flow(handle=0, next_incoming_id=0, delivery_count=0, link_credit=1))
    assert r.peer.hear() == []
    r.network.advance(0.3)
    assert not r.peer.expect(Detach).closed
    r.peer.write(Detach(handle=0))
    assert of.said == []
    assert as_map(r.attach({tag: Accepted()}, credit=0)) == {}
    assert of.outcome == Accepted(), "it is heard at once"
    r.peer.write(Detach(handle=0))
    answer = r.attach({})
    assert not answer.incomplete_unsettled, "nothing is left to be named"
    r.send()
    r.finish()
