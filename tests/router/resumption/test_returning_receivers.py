"""Receivers that lose their connection, come back over another one, and resume their link (§2.6.13, §3.4.6)."""

from __future__ import annotations

import pytest

from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode, Role
from amqpmesh.router.amqp.standard.delivery_states import (
    Accepted,
    DeliveryState,
    Received,
    Rejected,
    Released,
)
from amqpmesh.router.amqp.standard.messaging import DistributionMode, Source, TerminusExpiryPolicy
from amqpmesh.router.amqp.standard.performatives import Attach, Close, Detach, Disposition, End, Flow, Transfer
from amqpmesh.router.config.address import AddressConfig, Resumption
from amqpmesh.router.config.resumption import ResumptionConfig
from tests.support.peers.bystanders import Intruder
from tests.support.peers.roaming_receiver import ALL, CLOSE, FAILED, FIRST, SECOND, Map, as_map, fields_of
from tests.support.peers.roaming_receiver import RoamingReceiver as Roaming
from tests.support.peers.scripted import attached, flow, frame
from tests.support.worlds.network import Network, message


def test_while_a_receiver_is_away_nobody_hears_an_outcome_and_others_get_the_rest() -> None:
    r = Roaming()
    (sent,) = r.send()
    r.lose()
    assert r.suspended == 1
    other = r.network.client()
    other.receiver("q")
    later = r.producer.send(r.sender, message("later"))
    (arrival,) = other.take(1)
    assert bytes(arrival.payload) == message("later")
    arrival.accept()
    r.network.run()
    assert later.outcome == Accepted()
    assert sent.said == []
    other.close()
    tag = r.tag()
    assert as_map(r.back({tag: Accepted()})) == {tag: Accepted()}
    assert sent.outcome == Accepted()
    r.finish()


@pytest.mark.parametrize("outcome", [Accepted(), Rejected(), Released(), FAILED])
@pytest.mark.parametrize("sent", ReceiverSettleMode)
@pytest.mark.parametrize("rcv", ReceiverSettleMode)
def test_an_outcome_in_the_map_is_told_at_once_and_answered(
    rcv: ReceiverSettleMode, sent: ReceiverSettleMode, outcome: DeliveryState
) -> None:
    r = Roaming(rcv, sent=sent)
    (of,) = r.send()
    tag = r.tag()
    r.lose()
    answer = r.back({tag: outcome}, credit=0)
    assert of.outcome == outcome, "before there is any credit"
    assert as_map(answer) == {tag: outcome}
    r.give(1)
    (transfer,) = r.resumed
    assert transfer.delivery_tag == tag
    assert fields_of(transfer) == (outcome, sent is FIRST, False)
    assert r.came[0].payload == b""
    if sent is SECOND:
        of.dispose(outcome, settled=True)
        r.network.run()
        (said,) = [each.performative for each in r.peer.hear() if isinstance(each.performative, Disposition)]
        assert (said.first, said.settled) == (transfer.delivery_id, True)
    assert r.network.relays == 0
    r.finish()


@pytest.mark.parametrize("when", ["lost", "resumed"])
@pytest.mark.parametrize("sent", ReceiverSettleMode)
def test_a_delivery_without_an_outcome_goes_on_without_its_octets(sent: ReceiverSettleMode, when: str) -> None:
    r = Roaming(sent=sent)
    (of,) = r.send()
    tag = r.tag()
    r.lose()
    assert as_map(r.back({tag: ALL})) == {tag: ALL}
    (transfer,) = r.resumed
    assert fields_of(transfer) == (ALL, False, False)
    assert r.came[0].payload == b""
    assert of.said == []
    if when == "lost":
        r.lose()
        assert as_map(r.back({tag: ALL})) == {tag: ALL}
        (transfer,) = r.resumed
    assert transfer.delivery_id is not None
    r.say(transfer.delivery_id, Accepted(), settled=False)
    assert of.outcome == Accepted()
    if sent is SECOND:
        of.dispose(Accepted(), settled=True)
        r.network.run()
    assert r.network.relays == 0
    r.finish()


@pytest.mark.parametrize(
    ("rcv", "reliable", "told"),
    [(SECOND, True, Released()), (SECOND, False, FAILED), (FIRST, True, FAILED), (FIRST, False, FAILED)],
)
def test_what_a_complete_map_lacks_is_released_only_if_it_cannot_have_been_processed(
    rcv: ReceiverSettleMode, reliable: bool, told: DeliveryState
) -> None:
    r = Roaming(rcv, reliable=reliable)
    (of,) = r.send()
    r.lose()
    assert as_map(r.back({})) == {}
    assert of.outcome == told
    assert r.resumed == []
    r.finish()


def test_what_may_have_begun_and_cannot_be_sent_again_is_given_up() -> None:
    r = Roaming(reliable=False, network=Network(resumption=ResumptionConfig(keep=0)))
    sent = r.send(2)
    tags = [r.tag(number) for number in range(2)]
    r.lose()
    partial = Received(section_number=1, section_offset=3)
    assert as_map(r.back({tags[0]: None, tags[1]: partial})) == dict.fromkeys(tags, ALL)
    assert [fields_of(each) for each in r.resumed] == [(ALL, False, True)] * 2
    assert [each.outcome for each in sent] == [FAILED] * 2
    assert r.network.relays == 0
    r.finish()


def test_an_outcome_that_was_known_stays_and_the_sender_settles_it() -> None:
    r = Roaming(sent=SECOND)
    (of,) = r.send()
    tag = r.tag()
    r.say(r.transfer(0).delivery_id or 0, Accepted(), settled=False)
    assert of.outcome == Accepted()
    r.lose()
    assert as_map(r.back({tag: Rejected()}, credit=0)) == {tag: Accepted()}
    of.dispose(Accepted(), settled=True)
    r.network.run()
    r.give(1)
    (transfer,) = r.resumed
    assert fields_of(transfer) == (Accepted(), True, False), "the transfer settles it"
    assert [state for state, _ in of.said] == [Accepted()]
    r.finish()


def test_a_receiver_that_has_settled_after_its_outcome_names_nothing() -> None:
    r = Roaming(sent=SECOND)
    (of,) = r.send()
    r.say(0, Accepted(), settled=False)
    r.lose()
    assert as_map(r.back({})) == {}
    assert [state for state, _ in of.said] == [Accepted()]
    of.dispose(None, settled=True)
    r.network.run()
    assert r.network.relays == 0
    r.finish()


@pytest.mark.parametrize("theirs", [ALL, Released()])
def test_a_terminal_state_of_the_sender_counts(theirs: DeliveryState) -> None:
    r = Roaming(sent=SECOND)
    (of,) = r.send()
    tag = r.tag()
    r.lose()
    of.dispose(Rejected(), settled=False)
    r.network.run()
    assert as_map(r.back({tag: theirs})) == {tag: Rejected()}
    (transfer,) = r.resumed
    assert fields_of(transfer) == (Rejected(), False, False)
    assert of.said == []
    r.say(transfer.delivery_id or 0, Rejected(), settled=False)
    assert of.outcome == Rejected()
    of.dispose(None, settled=True)
    r.finish()


def test_a_terminal_state_that_the_sender_states_behind_the_maps_is_that_of_the_transfer() -> None:
    r = Roaming(sent=SECOND)
    (of,) = r.send()
    tag = r.tag()
    r.lose()
    assert as_map(r.back({tag: ALL}, credit=0)) == {tag: ALL}
    of.dispose(Rejected(), settled=False)
    r.network.run()
    r.give(1)
    (transfer,) = r.resumed
    assert fields_of(transfer) == (Rejected(), False, False)
    r.say(transfer.delivery_id or 0, Rejected(), settled=False)
    assert of.outcome == Rejected()
    of.dispose(None, settled=True)
    r.finish()


def test_what_the_sender_has_settled_meanwhile_is_in_no_map() -> None:
    r = Roaming(sent=SECOND)
    (of,) = r.send()
    tag = r.tag()
    r.lose()
    of.dispose(None, settled=True)
    r.network.run()
    assert as_map(r.back({tag: ALL})) == {}
    assert r.resumed == []
    r.finish()


def test_a_sender_that_leaves_meanwhile_lets_the_delivery_be_resumed() -> None:
    r = Roaming()
    r.send()
    tag = r.tag()
    r.lose()
    r.producer.close()
    assert as_map(r.back({tag: Accepted()})) == {tag: Accepted()}
    (transfer,) = r.resumed
    assert fields_of(transfer) == (Accepted(), True, False)
    assert r.network.relays == 0
    r.finish()


def test_new_deliveries_come_behind_all_that_are_resumed() -> None:
    r = Roaming()
    r.send(3)
    tags = [r.tag(number) for number in range(3)]
    r.lose()
    r.back(dict.fromkeys(tags, ALL), credit=2)
    assert [each.delivery_tag for each in r.resumed] == tags[:2]
    assert r.sender.credit == 0, "a new one would overtake"
    r.give(2)
    assert [each.delivery_tag for each in r.resumed] == tags
    new = r.producer.send(r.sender, message("new"))
    r.take()
    (last,) = r.came[3:]
    assert last.payload == message("new")
    assert r.transfer(3).delivery_tag not in tags
    assert not r.transfer(3).resume
    r.say(r.transfer(3).delivery_id or 0, Accepted(), settled=True)
    assert new.outcome == Accepted()
    r.finish()


def test_a_drain_is_answered_behind_what_is_resumed() -> None:
    r = Roaming()
    r.send(2)
    tags = [r.tag(number) for number in range(2)]
    r.lose()
    r.back(dict.fromkeys(tags, ALL), credit=0)
    r.peer.write(flow(handle=0, link_credit=1, delivery_count=0, drain=True))
    heard = [each.performative for each in r.peer.hear()]
    assert [type(each) for each in heard] == [Transfer, Flow]
    r.count, r.transfers = 1, 1
    r.peer.write(flow(handle=0, link_credit=5, delivery_count=1, next_incoming_id=1, drain=True))
    heard = [each.performative for each in r.peer.hear()]
    r.network.advance(10)
    heard += [each.performative for each in r.peer.hear()]
    assert [type(each) for each in heard] == [Transfer, Flow]
    answer = heard[1]
    assert isinstance(answer, Flow)
    assert (answer.delivery_count, answer.link_credit) == (6, 0)
    r.finish()


def test_part_of_a_message_is_released_once_the_receiver_is_back() -> None:
    r = Roaming()
    of = r.producer.send(r.sender, message("x" * 100)[:50], more=True)
    r.take()
    tag = r.tag()
    r.lose()
    r.producer.resume(of, message("x" * 100)[50:])
    assert of.said == [], "it may have an outcome: a receiver need not wait for the end"
    assert as_map(r.back({tag: None})) == {}
    assert of.outcome == Released()
    assert r.network.relays == 0
    r.finish()


@pytest.mark.parametrize("rcv", ReceiverSettleMode)
def test_a_receiver_that_stays_away_has_left(rcv: ReceiverSettleMode) -> None:
    r = Roaming(rcv)
    sent = r.send(3)
    tag = r.tag()
    r.lose()
    r.network.advance(29)
    assert r.suspended == 1
    assert [each.said for each in sent] == [[]] * 3
    r.network.advance(2)
    assert r.suspended == 0
    assert [each.outcome for each in sent] == [FAILED] * 3
    assert r.network.relays == 0
    assert r.back({tag: Accepted()}).unsettled is None, "nothing is known of it"
    r.finish()


def test_a_link_that_is_attached_anew_has_no_history() -> None:
    r = Roaming()
    (of,) = r.send()
    r.lose()
    assert r.back(None).unsettled is None
    assert r.suspended == 0
    assert of.outcome == FAILED
    r.finish()


@pytest.mark.parametrize(
    ("asked", "policy", "granted"),
    [(30, CLOSE, (CLOSE, 30)), (600, TerminusExpiryPolicy.LINK_DETACH, (TerminusExpiryPolicy.LINK_DETACH, 60)),
     (0, CLOSE, (TerminusExpiryPolicy.LINK_DETACH, 0)),
     (30, TerminusExpiryPolicy.NEVER, (TerminusExpiryPolicy.LINK_DETACH, 0))],
)  # fmt: skip
def test_the_answer_says_what_is_granted(
    asked: int, policy: TerminusExpiryPolicy, granted: tuple[TerminusExpiryPolicy, int]
) -> None:
    source = Roaming(policy=policy, timeout=asked).answer.source
    assert isinstance(source, Source)
    assert (source.expiry_policy, source.timeout) == granted


@pytest.mark.parametrize(
    "network",
    [Network(resumption=ResumptionConfig(timeout=0.0)), Network(resumption=ResumptionConfig(links=0)),
     Network(AddressConfig(pattern="q", resumption=Resumption.OFF))],
    ids=["no time", "no links", "the address"],
)  # fmt: skip
def test_what_is_not_granted_ends_with_the_connection(network: Network) -> None:
    r = Roaming(network=network)
    source = r.answer.source
    assert isinstance(source, Source)
    assert source.timeout == 0
    assert r.answer.offered_capabilities == ()
    (of,) = r.send()
    r.lose()
    assert r.suspended == 0
    assert of.outcome == FAILED


def test_a_receiver_of_copies_is_granted_nothing() -> None:
    r = Roaming()
    source = Source(address="q", expiry_policy=CLOSE, timeout=30, distribution_mode=DistributionMode.COPY)
    r.peer.write(attached(Role.RECEIVER, "q", handle=1, name="copies", source=source))
    answer = r.peer.expect(Attach)
    assert isinstance(answer.source, Source)
    assert answer.source.timeout == 0
    r.finish()


def test_a_connection_that_still_seems_to_be_there_loses_the_link_to_the_new_one() -> None:
    r = Roaming()
    (of,) = r.send()
    tag, before = r.tag(), r.end
    assert as_map(r.back({tag: ALL})) == {tag: ALL}
    (detach,) = [each.performative for each in before.peer.hear() if isinstance(each.performative, Detach)]
    assert detach.error is not None
    assert detach.error.condition == "amqp:link:stolen"
    before.peer.write(Disposition(role=Role.RECEIVER, first=0, state=Rejected(), settled=True))
    assert of.said == [], "the maps are the truth"
    before.leave()
    r.say(r.resumed[0].delivery_id or 0, Accepted(), settled=True)
    assert of.outcome == Accepted()
    r.finish()


@pytest.mark.parametrize("closed", [False, True])
def test_a_closed_link_is_not_kept(closed: bool) -> None:
    r = Roaming()
    (of,) = r.send()
    r.peer.write(Detach(handle=0, closed=closed))
    assert r.suspended == (0 if closed else 1)
    assert of.outcome == (FAILED if closed else None)
    r.finish()


@pytest.mark.parametrize("again", ["here", "session", "elsewhere"])
def test_a_detached_link_may_be_resumed_anywhere(again: str) -> None:
    r = Roaming()
    sent = r.send(2)
    tags = [r.tag(0), r.tag(1)]
    r.peer.write(Detach(handle=0))
    r.peer.hear()
    r.say(1, Accepted(), settled=True)
    assert sent[1].outcome == Accepted(), "its session is there, and the ids are valid"
    if again == "session":
        r.peer.write(End())
        r.peer.hear()
        r.peer.begin()
    r.came.clear()
    before = r.end
    answer = r.back({tags[0]: ALL}) if again == "elsewhere" else r.attach({tags[0]: ALL}, credit=0)
    assert as_map(answer) == {tags[0]: ALL}
    if again == "elsewhere":
        assert len(r.resumed) == 1
        before.leave()
    else:
        r.count, r.transfers = 0, 2 if again == "here" else 0
        r.give(1)
        (transfer,) = r.resumed
        r.say(transfer.delivery_id or 0, Accepted(), settled=True)
        assert sent[0].outcome == Accepted()
    r.finish()


@pytest.mark.parametrize(
    ("policy", "begins"),
    [(TerminusExpiryPolicy.LINK_DETACH, Detach), (TerminusExpiryPolicy.SESSION_END, End), (CLOSE, Close)],
)
def test_the_time_runs_from_the_event_of_the_policy(policy: TerminusExpiryPolicy, begins: type[object]) -> None:
    r = Roaming(policy=policy)
    (of,) = r.send()
    for ending in (Detach(handle=0), End(), Close()):
        r.peer.write(ending)
        if type(ending) is begins:
            break
        r.network.advance(40)
        assert r.suspended == 1, "its time has not begun"
    r.network.advance(29)
    assert r.suspended == 1
    r.network.advance(2)
    assert r.suspended == 0
    r.lose()
    assert of.outcome == FAILED


def test_a_receiver_that_does_not_know_its_source_is_told() -> None:
    r = Roaming()
    r.send()
    tag = r.tag()
    r.lose()
    answer = r.back({tag: ALL}, source=None)
    assert isinstance(answer.source, Source)
    assert (answer.source.address, answer.source.timeout) == ("q", 30)
    assert as_map(answer) == {tag: ALL}
    r.finish()


def test_several_links_of_one_connection_come_back_each_with_its_own() -> None:
    network = Network()
    producer = network.client()
    senders = [producer.sender(f"q{number}") for number in range(3)]

    def connected() -> Intruder:
        end = Intruder(network)
        end.peer.open()
        end.peer.begin()
        return end

    def attaching(number: int, unsettled: Map | None) -> Attach:
        source = Source(address=f"q{number}", expiry_policy=CLOSE, timeout=30)
        return attached(
            Role.RECEIVER, name=f"r{number}", handle=number, source=source, unsettled=unsettled, rcv_settle_mode=SECOND
        )

    end = connected()
    for number in range(3):
        end.peer.write(attaching(number, None), flow(handle=number, link_credit=9, delivery_count=0))
    end.peer.hear()
    sent = [producer.send(senders[number % 3], message(number)) for number in range(6)]
    came = [each.performative for each in end.peer.hear()]
    tags = [each.delivery_tag for each in came if isinstance(each, Transfer) and each.delivery_tag is not None]
    assert tags == [b"1", b"1", b"1", b"2", b"2", b"2"]
    end.leave()
    end = connected()
    for number in range(3):
        end.peer.write(attaching(number, {b"1": Accepted(), b"2": ALL}))
        (answer,) = [each.performative for each in end.peer.hear() if isinstance(each.performative, Attach)]
        assert as_map(answer) == {b"1": Accepted(), b"2": ALL}
    assert [each.outcome for each in sent] == [Accepted()] * 3 + [None] * 3
    end.leave()
    network.advance(31)
    assert [each.outcome for each in sent] == [Accepted()] * 3 + [FAILED] * 3
    assert network.relays == 0
    network.leave()


def test_another_link_of_the_session_ends_at_once() -> None:
    r = Roaming()
    other = r.producer.sender("other")
    r.peer.write(attached(Role.RECEIVER, "other", handle=1), flow(handle=1, link_credit=5, delivery_count=0))
    r.peer.hear()
    (kept,) = r.send()
    ends = r.producer.send(other)
    r.lose()
    assert ends.outcome == FAILED
    assert kept.said == []
    r.finish()


@pytest.mark.parametrize("slow", [False, True])
def test_the_holder_of_most_deliveries_is_given_up_first(slow: bool) -> None:
    r = Roaming(network=Network(resumption=ResumptionConfig(unsettled=2)))
    sent = r.send(3 if slow else 2)
    r.lose()
    assert r.suspended == (0 if slow else 1)
    assert r.network.core.context.termini.evicted == (1 if slow else 0)
    assert [each.outcome for each in sent] == [FAILED if slow else None] * len(sent)
    r.finish()


def test_a_router_that_moves_its_clients_keeps_nothing() -> None:
    r = Roaming()
    (of,) = r.send()
    r.lose()
    core = r.network.core
    core.change(lambda: core.departure.begin(0.1, ()), r.network.now)
    r.network.run()
    assert r.suspended == 0
    assert of.outcome == FAILED


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_message_that_may_be_sent_again_goes_to_another_receiver_when_it_never_came(attempts: int) -> None:
    r = Roaming(network=Network(AddressConfig(pattern="q", redeliver=True, attempts=attempts)))
    (of,) = r.send()
    r.lose()
    other = r.network.client()
    other.receiver("q")
    assert as_map(r.back({}, credit=0)) == {}
    (arrival,) = other.take(1)
    assert bytes(arrival.payload) == message(0), "not as a failed try"
    arrival.accept()
    r.network.run()
    assert of.outcome == Accepted()
    r.finish()


def test_a_message_that_may_be_sent_again_goes_to_another_receiver_when_the_time_is_over() -> None:
    r = Roaming(network=Network(AddressConfig(pattern="q", redeliver=True)))
    (of,) = r.send()
    r.lose()
    other = r.network.client()
    other.receiver("q")
    other.take(0)
    r.network.advance(31)
    (arrival,) = other.take(1)
    arrival.accept()
    r.network.run()
    assert of.outcome == Accepted()
    r.finish()


@pytest.mark.parametrize("back", [False, True])
def test_the_sender_of_a_multicast_waits_for_a_receiver_that_is_away(back: bool) -> None:
    r = Roaming(network=Network(AddressConfig(pattern="q", distribution="multicast")))
    other = r.network.client()
    other.receiver("q")
    (of,) = r.send()
    tag = r.tag()
    (arrival,) = other.take(1)
    r.lose()
    arrival.accept()
    r.network.run()
    assert of.said == []
    later = r.producer.send(r.sender, message("later"))
    (arrival,) = other.take(1)
    arrival.accept()
    r.network.run()
    assert later.outcome == Accepted(), "it was sent to those that are here"
    if back:
        r.back({tag: Rejected()})
        assert of.outcome == Rejected()
    else:
        r.network.advance(31)
        assert of.outcome == Accepted(), "one has accepted it"
    r.finish()


def test_a_malformed_map_changes_nothing() -> None:
    r = Roaming()
    (of,) = r.send()
    tag = r.tag()
    r.lose()
    r.begin()
    r.peer.write(frame(r.attaching({tag: Accepted(), b"key": None})).replace(b"\xa0\x03key", b"\xa3\x03key"))
    last = r.peer.hear()[-1].performative
    assert isinstance(last, Detach)
    assert last.error is not None
    assert last.error.condition == "amqp:decode-error"
    assert of.said == []
    assert r.suspended == 1
    r.lose()
    assert as_map(r.back({tag: Accepted()})) == {tag: Accepted()}
    assert of.outcome == Accepted()
    r.finish()


def test_a_link_that_is_lost_before_all_is_resumed_keeps_the_rest() -> None:
    r = Roaming()
    sent = r.send(3)
    tags = [r.tag(number) for number in range(3)]
    r.lose()
    r.back(dict.fromkeys(tags, ALL), credit=1)
    assert len(r.resumed) == 1
    r.lose()
    assert r.suspended == 1
    answer = r.back({tags[0]: ALL, tags[1]: Accepted(), tags[2]: ALL})
    assert set(as_map(answer)) == set(tags)
    assert len(r.resumed) == 3
    assert [each.outcome for each in sent] == [None, Accepted(), None]
    r.finish()
    assert [each.outcome for each in sent] == [FAILED, Accepted(), FAILED]
