"""Resumption with incomplete maps: rounds, in which deliveries are only resumed, until both are complete (§2.7.3)."""

from __future__ import annotations

import pytest

from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error, ReceiverSettleMode, Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted, DeliveryState, Rejected
from amqpmesh.router.amqp.standard.performatives import Attach, Detach, Disposition, Flow
from amqpmesh.router.config.address import AddressConfig
from tests.router.resumption.test_returning_senders import SECOND, WHOLE, Roaming, as_map, tag
from tests.support.peers.bystanders import Intruder
from tests.support.peers.scripted import frame, transferred
from tests.support.worlds.network import Network, message


class Small(Roaming):
    """A sender that takes small frames: our map of its deliveries needs several."""

    def __init__(self, count: int, rcv: ReceiverSettleMode = ReceiverSettleMode.FIRST) -> None:
        super().__init__(rcv, network=Network(AddressConfig(pattern="q", max_credit=1000)))
        self.consumer.receiver("q", rcv=rcv, credit=1000)
        for number in range(count):
            self.peer.write(frame(transferred(number), message(number)))
            self.peer.hear()
        self.arrivals = self.consumer.take(count)
        self.left = dict.fromkeys(map(tag, range(count)))
        self.next = 10_000
        self.lose()

    def begin(self) -> None:
        self.end = Intruder(self.network)
        self.peer = self.end.peer
        self.peer.open(max_frame_size=1024 if hasattr(self, "left") else 65536)
        self.peer.begin()

    def round(self, unsettled: dict[bytes, DeliveryState | None] | None = None, **fields: object) -> Attach:
        """Attach, and resume all that our map names. Returns: the router's attach."""
        answer = self.attach(self.left if unsettled is None else unsettled, **fields)
        named = as_map(answer)
        heard = []
        for each in named:
            self.resume(self.next, of=int.from_bytes(each, "big"))
            heard += self.heard_of(self.next, each)
            self.next += 1
        return answer

    def heard_of(self, number: int, of: bytes) -> list[object]:
        heard = [each.performative for each in self.peer.hear()]
        for each in heard:
            if isinstance(each, Disposition) and each.state is not None and each.first <= number:
                del self.left[of]
                if self.rcv is SECOND:
                    self.peer.write(Disposition(role=Role.SENDER, first=number, settled=True))
            elif isinstance(each, Detach):
                self.detached(each)
        return heard

    def detached(self, detach: Detach) -> None:
        assert not detach.closed
        assert detach.error is None
        self.peer.write(Detach(handle=0))
        assert self.suspended == 1


@pytest.mark.parametrize("rcv", ReceiverSettleMode)
def test_a_map_that_does_not_fit_is_told_in_rounds_outcomes_first(rcv: ReceiverSettleMode) -> None:
    r = Small(60, rcv)
    for arrival in r.arrivals[30:]:
        arrival.dispose(Accepted(), settled=True)
    r.network.run()
    r.begin()
    first = r.round()
    assert first.incomplete_unsettled
    assert set(as_map(first).values()) == {Accepted()}, "they settle, and make room"
    assert not r.end.record.incoming, "all of it is resumed: the sender attaches the link again"
    second = r.round()
    assert not second.incomplete_unsettled
    assert len(r.left) == 30
    for arrival in r.arrivals[:30]:
        arrival.dispose(Accepted(), settled=True)
    r.network.run()
    (said,) = r.heard()
    assert said.state == Accepted()
    if rcv is SECOND:
        r.peer.write(Disposition(role=Role.SENDER, first=said.first, last=said.last, settled=True))
    assert r.network.relays == 0
    (link,) = r.end.record.incoming
    assert not link.endpoint.resumes_only
    r.peer.write(frame(transferred(0), message("new")))
    r.consumer.take(1)[0].accept()
    r.network.run()
    assert r.network.relays == (rcv is SECOND)
    r.lose()
    r.finish()


def test_each_round_names_other_deliveries() -> None:
    r = Small(60)
    r.begin()
    seen: set[bytes] = set()
    for _ in range(3):
        answer = r.round()
        named = set(as_map(answer))
        assert set(as_map(answer).values()) == {WHOLE}
        assert answer.incomplete_unsettled
        assert not named & seen or len(seen) + len(named) > 60
        seen |= named
        r.network.advance(0.3)
        (detach,) = (each.performative for each in r.peer.hear() if isinstance(each.performative, Detach))
        r.detached(detach)
    assert len(seen) == 60
    r.network.advance(31)
    for arrival in r.arrivals:
        arrival.accept()
    r.finish()


@pytest.mark.parametrize("incomplete", ["ours", "the sender's"])
def test_in_a_round_there_is_credit_for_what_is_resumed_alone(incomplete: str) -> None:
    r = Small(60 if incomplete == "ours" else 10)
    r.begin()
    r.peer.write(r.attaching(r.left, incomplete_unsettled=incomplete != "ours"))
    answer, *heard = [each.performative for each in r.peer.hear()]
    assert isinstance(answer, Attach)
    named = list(as_map(answer))
    for each in named[:-1]:
        r.resume(r.next, of=int.from_bytes(each, "big"))
        r.next += 1
        heard += [after.performative for after in r.peer.hear()]
    flows = [each for each in heard if isinstance(each, Flow) and each.handle is not None]
    given = {(each.delivery_count or 0) + (each.link_credit or 0) for each in flows}
    assert given == {len(named)}, "until both maps are complete"
    for arrival in r.arrivals:
        arrival.accept()
    r.finish()


def test_a_new_delivery_in_a_round_is_an_error() -> None:
    r = Small(60)
    r.begin()
    assert r.attach(r.left).incomplete_unsettled
    r.peer.write(frame(transferred(99), message("new")))
    detach = r.peer.expect(Detach)
    assert detach.closed
    assert detach.error is not None
    assert detach.error.condition == "amqp:not-allowed"
    assert r.consumer.take(0) == []
    for arrival in r.arrivals:
        arrival.accept()
    r.network.run()
    assert r.network.relays == 0
    assert not r.end.is_finished
    r.finish()


def test_an_incomplete_map_of_the_sender_settles_nothing() -> None:
    r = Roaming(SECOND)
    arrivals = r.send(3)
    arrivals[2].dispose(Accepted(), settled=False)
    r.lose()
    answer = r.back({tag(0): None}, incomplete_unsettled=True)
    assert as_map(answer) == {tag(2): Accepted(), tag(0): WHOLE, tag(1): WHOLE}
    assert not answer.incomplete_unsettled
    for number in range(3):
        r.resume(5 + number, of=number)
    heard = [each.performative for each in r.peer.hear()]
    assert [(each.first, each.state) for each in heard if isinstance(each, Disposition)] == [(7, Accepted())]
    assert heard[-1] == Detach(handle=answer.handle), "all of it is resumed"
    r.peer.write(Disposition(role=Role.SENDER, first=7, settled=True), Detach(handle=0))
    assert r.suspended == 1
    assert as_map(r.attach({tag(0): None, tag(1): None})) == {tag(0): WHOLE, tag(1): WHOLE}
    assert arrivals[2].said[-1][1], "settled: it is not in the complete map"
    for arrival in arrivals[:2]:
        arrival.dispose(Accepted(), settled=True)
    r.resume(0, of=0, settled=True)
    r.resume(1, of=1, settled=True)
    assert r.network.relays == 0
    r.finish()


def test_an_incomplete_map_is_answered_though_nothing_is_held() -> None:
    r = Roaming()
    r.lose()
    r.begin()
    r.peer.write(r.attaching({tag(0): None}, incomplete_unsettled=True))
    answer, detach = r.peer.expect_all(Attach, Detach)
    assert isinstance(answer, Attach)
    assert as_map(answer) == {}
    assert detach == Detach(handle=answer.handle)
    assert r.suspended == 1
    r.finish()


def test_a_round_ends_though_the_sender_resumes_nothing() -> None:
    r = Roaming()
    (arrival,) = r.send()
    r.lose()
    r.back({}, incomplete_unsettled=True)
    r.network.advance(0.9)
    assert r.peer.hear() == []
    r.network.advance(0.2)
    assert not r.peer.expect(Detach).closed
    arrival.accept()
    r.network.run()
    r.peer.write(Detach(handle=0))
    assert as_map(r.attach({tag(0): None})) == {tag(0): Accepted()}
    r.finish()


def test_a_link_that_is_lost_in_a_round_may_come_back() -> None:
    r = Small(60)
    r.begin()
    r.attach(r.left)
    r.resume(0, of=0)
    r.lose()
    assert r.suspended == 1
    r.network.advance(5)
    for arrival in r.arrivals:
        arrival.accept()
    r.network.run()
    r.begin()
    assert set(as_map(r.attach(r.left)).values()) == {Accepted()}
    r.finish()


@pytest.mark.parametrize(
    "octets",
    [
        b"\xc1\x03\x02\x40\x40",  # {null: null}
        b"\xc1\x06\x02\xa1\x02ab\x40",  # {"ab": null}, a string
        b"\xc1\x07\x02\xa0\x01\0\xa1\x01x",  # {b"\0": "x"}
    ],
    ids=["null key", "string key", "no state"],
)
def test_a_malformed_map_is_refused_and_the_target_is_kept(octets: bytes) -> None:
    r = Roaming(SECOND)
    (arrival,) = r.send()
    r.lose()
    r.begin()
    good = frame(r.attaching({}))
    empty = b"\xc1\x01\x00"
    assert good.count(empty) == 1
    bad = good[4:].replace(empty, octets)
    # The lengths around the map: of the frame, and of the list of fields.
    at = bad.index(b"\x00\x53\x12") - 4 + 7
    grown = len(octets) - len(empty)
    sized = bytearray(bad)
    if sized[at] == 0xC0:
        sized[at + 1] += grown
    else:
        sized[at + 1 : at + 5] = (int.from_bytes(sized[at + 1 : at + 5], "big") + grown).to_bytes(4, "big")
    r.peer.write((4 + len(sized)).to_bytes(4, "big") + bytes(sized))
    heard = [each.performative for each in r.peer.hear()]
    assert isinstance(heard[-1], Detach), heard
    assert heard[-1].error is not None
    assert heard[-1].error.condition == "amqp:decode-error"
    assert r.suspended == 1
    assert not r.end.is_finished
    r.peer.write(Detach(handle=0, closed=True))
    arrival.accept()
    r.network.run()
    assert as_map(r.attach({tag(0): None})) == {tag(0): Accepted()}
    r.finish()


@pytest.mark.parametrize("rcv", ReceiverSettleMode)
def test_an_outcome_that_fits_into_no_frame_is_told_once_its_delivery_is_resumed(rcv: ReceiverSettleMode) -> None:
    r = Small(1, rcv)
    error = Error(condition=AmqpCondition.NOT_ALLOWED, description="x" * 2000)
    r.arrivals[0].dispose(Rejected(error=error), settled=False)
    r.network.run()
    r.begin()
    answer = r.attach(r.left)
    assert not answer.incomplete_unsettled, "or rounds would never end"
    assert as_map(answer) == dict.fromkeys(r.left, WHOLE)
    r.resume(r.next, of=0)
    (said,) = r.heard()
    assert isinstance(said.state, Rejected)
    assert said.state.error is not None
    assert said.state.error.condition == AmqpCondition.NOT_ALLOWED
    if rcv is SECOND:
        r.peer.write(Disposition(role=Role.SENDER, first=said.first, settled=True))
    assert r.network.relays == 0
    r.lose()
    r.finish()
