"""Receivers that come back without all of a message: it is kept, and sent again as the same delivery (§3.4.6)."""

from __future__ import annotations

import time

import pytest

from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode, Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted, DeliveryState, Received, Rejected
from amqpmesh.router.amqp.standard.messaging import Source
from amqpmesh.router.amqp.standard.performatives import Attach, Detach, Transfer
from amqpmesh.router.config.address import AddressConfig
from amqpmesh.router.config.resumption import ResumptionConfig
from amqpmesh.router.resumption.kept_octets import KeptOctets, OctetStore
from tests.support.peers.bystanders import Intruder
from tests.support.peers.roaming_receiver import ALL, CLOSE, FAILED, FIRST, SECOND, Map, as_map, fields_of
from tests.support.peers.roaming_receiver import RoamingReceiver as Roaming
from tests.support.peers.scripted import Heard, attached, flow
from tests.support.worlds.network import Network, message

PART = Received(section_number=1, section_offset=3)


class Foreign(Roaming):
    """A receiver whose map does not say for certain what came whole."""

    window = 1000

    def __init__(
        self,
        rcv: ReceiverSettleMode = SECOND,
        *,
        sent: ReceiverSettleMode = FIRST,
        address: AddressConfig | None = None,
        limits: ResumptionConfig | None = None,
    ) -> None:
        network = Network(*([] if address is None else [address]), resumption=limits or ResumptionConfig())
        super().__init__(rcv, sent=sent, reliable=False, network=network)

    def start_small(self, window: int = 1000) -> None:
        """Come back as another link over a connection with small frames. Args: window: of the session, in frames."""
        self.lose()
        self.network.advance(31)
        self.come_small(window)
        self.attach(None)

    def come_small(self, window: int) -> None:
        """Come back over a connection with small frames. Args: window: of the session, in frames."""
        self.window = window
        self.begin_small(window)
        self.came.clear()

    def give(self, credit: int, **fields: object) -> None:
        """Give credit and, on a connection with small frames, the window."""
        super().give(credit, **{"incoming_window": self.window, **fields})

    @property
    def octets(self) -> int:
        return self.network.core.context.termini.sources.octets.octets

    @property
    def payloads(self) -> list[bytes]:
        """The octets of each delivery that has come since the receiver is back."""
        found: list[bytes] = []
        for each in self.came:
            transfer = each.performative
            assert isinstance(transfer, Transfer)
            if transfer.delivery_id is None:
                found[-1] += each.payload
            else:
                found.append(each.payload)
        return found

    def finish(self) -> None:
        super().finish()
        assert self.octets == 0


@pytest.mark.parametrize("sent", ReceiverSettleMode)
@pytest.mark.parametrize("rcv", ReceiverSettleMode)
def test_what_came_in_part_or_not_at_all_is_sent_again(rcv: ReceiverSettleMode, sent: ReceiverSettleMode) -> None:
    r = Foreign(rcv, sent=sent)
    of = r.send(3)
    tags = [r.tag(number) for number in range(3)]
    r.lose()
    answer = r.back({tags[0]: None, tags[1]: PART, tags[2]: Accepted()})
    assert as_map(answer) == {tags[0]: None, tags[1]: None, tags[2]: Accepted()}
    assert [each.delivery_tag for each in r.resumed] == tags
    assert [fields_of(each) for each in r.resumed[:2]] == [(None, False, False)] * 2
    assert r.payloads == [message(0), message(1), b""]
    assert [each.outcome for each in of] == [None, None, Accepted()]
    for transfer in r.resumed[:2]:
        r.say(transfer.delivery_id or 0, Accepted(), settled=rcv is FIRST)
    assert [each.outcome for each in of] == [Accepted()] * 3
    for each in of:
        if sent is SECOND:
            each.dispose(None, settled=True)
    r.network.run()
    assert r.network.relays == 0
    assert r.octets == 0
    r.finish()


def test_a_message_is_kept_until_it_is_settled() -> None:
    r = Foreign()
    r.send(2)
    two = r.octets
    assert two > len(message(0)) + len(message(1))
    r.say(0, Accepted(), settled=True)
    assert 0 < r.octets < two
    r.say(1, Rejected(), settled=True)
    assert r.octets == 0
    r.finish()


def test_a_message_of_very_many_frames_costs_what_its_octets_do() -> None:
    """Joined anew with each frame, it would be some 100 GB that are copied: minutes of CPU, where these are seconds."""
    frames, payload = 2**14, bytes(2**10)
    r = Foreign(limits=ResumptionConfig(keep=2**26, keep_max=2**25))
    octets = r.network.core.context.termini.sources.octets
    kept = octets.keeping(("", "host"))
    assert isinstance(kept, KeptOctets)
    began = time.process_time()
    for number in range(frames):
        kept.keep(b"large", payload, first=number == 0, more=number < frames - 1)
        assert octets.octets >= (number + 1) * len(payload)
    assert time.process_time() - began < 10
    assert len(kept.messages[b"large"]) == frames * len(payload)
    kept.drop(b"large")
    assert octets.octets == 0


def test_a_message_that_turns_out_to_be_too_large_is_not_kept() -> None:
    r = Foreign(limits=ResumptionConfig(keep_max=2_000))
    r.start_small(window=100)
    of = r.producer.send(r.sender, message("x" * 3_000))
    r.take()
    assert len(r.came) > 3
    assert r.octets == 0
    tag = r.tag()
    r.lose()
    r.come_small(window=9)
    assert as_map(r.attach({tag: PART})) == {tag: ALL}
    assert [fields_of(each) for each in r.resumed] == [(ALL, False, True)]
    assert of.outcome == FAILED
    r.finish()


def test_what_the_receiver_names_as_whole_is_not_sent_again() -> None:
    r = Foreign()
    r.send()
    tag = r.tag()
    r.lose()
    assert as_map(r.back({tag: ALL})) == {tag: ALL}
    assert r.payloads == [b""]
    r.finish()


def test_a_message_of_several_frames_is_sent_again_as_windows_allow() -> None:
    large = message("x" * 3000)
    r = Foreign()
    r.start_small()
    of = r.producer.send(r.sender, large)
    r.take()
    assert b"".join(each.payload for each in r.came) == large
    tag = r.tag()
    r.lose()
    r.come_small(window=2)
    r.attach({tag: PART})
    assert len(r.came) == 2, "the session's window"
    for _ in range(5):
        r.give(100)
    assert r.payloads == [large]
    assert [each.delivery_tag for each in r.resumed] == [tag]
    assert of.said == []
    r.say(r.resumed[0].delivery_id or 0, Accepted(), settled=True)
    assert of.outcome == Accepted()
    assert r.network.relays == 0
    r.finish()


@pytest.mark.parametrize("said", [Accepted(), Rejected()])
def test_what_is_settled_while_it_is_sent_again_is_aborted(said: DeliveryState) -> None:
    r = Foreign()
    r.start_small()
    of = r.producer.send(r.sender, message("x" * 3000))
    r.take()
    tag = r.tag()
    r.lose()
    r.come_small(window=1)
    r.attach({tag: None})
    r.say(0, said, settled=True)
    assert of.outcome == said
    r.give(100)
    last = r.came[-1].performative
    assert isinstance(last, Transfer)
    assert last.aborted
    assert r.network.relays == 0
    r.give(100)
    new = r.producer.send(r.sender, message("new"))
    r.take()
    assert r.came[-1].payload == message("new")
    assert new.said == []
    r.finish()


def test_a_link_that_is_lost_while_a_message_is_sent_again_may_ask_once_more() -> None:
    large = message("x" * 3000)
    r = Foreign()
    r.start_small()
    of = r.producer.send(r.sender, large)
    r.take()
    tag = r.tag()
    for window in (1, 2):
        r.lose()
        r.come_small(window)
        assert as_map(r.attach({tag: PART})) == {tag: None}
        assert len(r.came) == window
    r.lose()
    r.come_small(window=9)
    assert as_map(r.attach({tag: None})) == {tag: None}
    assert r.payloads == [large]
    r.say(r.resumed[0].delivery_id or 0, Accepted(), settled=True)
    assert of.outcome == Accepted()
    r.finish()


def test_a_message_that_has_left_in_part_and_come_whole_is_sent_again() -> None:
    large = message("x" * 3000)
    r = Foreign()
    r.start_small(window=1)
    of = r.producer.send(r.sender, large)
    r.take()
    assert len(r.came) == 1
    tag = r.tag()
    r.lose()
    assert of.said == []
    r.come_small(window=9)
    assert as_map(r.attach({tag: PART})) == {tag: None}
    assert r.payloads == [large]
    r.say(r.resumed[0].delivery_id or 0, Accepted(), settled=True)
    assert of.outcome == Accepted()
    assert r.network.relays == 0
    r.finish()


def test_each_receiver_of_a_multicast_may_ask_for_its_own() -> None:
    r = Foreign(address=AddressConfig(pattern="q", distribution="multicast"))
    other = r.network.client()
    other.receiver("q")
    (of,) = r.send()
    tag = r.tag()
    (arrival,) = other.take(1)
    arrival.accept()
    r.lose()
    r.back({tag: None})
    assert r.payloads == [message(0)]
    r.say(r.resumed[0].delivery_id or 0, Accepted(), settled=True)
    assert of.outcome == Accepted()
    assert r.octets == 0
    r.finish()


def test_messages_of_a_multicast_that_need_no_decision_are_kept_until_they_are_settled() -> None:
    r = Foreign(address=AddressConfig(pattern="q", distribution="multicast"))
    other = r.network.client()
    other.receiver("q")
    r.send(4)
    tags = [r.tag(number) for number in range(4)]
    four = r.octets
    r.say(0, Accepted(), settled=True)
    r.say(3, Accepted(), settled=True)
    for arrival in other.take(4):
        arrival.accept()
    r.network.run()
    assert r.octets == four // 2
    r.lose()
    r.back(dict.fromkeys(tags[1:3]))
    assert r.payloads == [message(1), message(2)]
    for transfer in r.resumed:
        r.say(transfer.delivery_id or 0, Accepted(), settled=True)
    assert r.octets == 0
    r.finish()


@pytest.mark.parametrize(
    "limits",
    [ResumptionConfig(keep=0), ResumptionConfig(keep_max=0), ResumptionConfig(keep_max=len(message(0)) - 1),
     ResumptionConfig(keep=100)],
    ids=["none", "no message", "too large", "no room"],
)  # fmt: skip
def test_what_is_not_kept_is_aborted(limits: ResumptionConfig) -> None:
    r = Foreign(limits=limits)
    (of,) = r.send()
    assert r.octets == 0
    tag = r.tag()
    r.lose()
    assert as_map(r.back({tag: None})) == {tag: ALL}
    assert [fields_of(each) for each in r.resumed] == [(ALL, False, True)]
    assert of.outcome == FAILED
    r.finish()


@pytest.mark.parametrize("why", ["reliable", "not granted"])
def test_nothing_is_kept_for_who_does_not_need_it(why: str) -> None:
    r = Roaming(reliable=why == "reliable", timeout=0 if why == "not granted" else 30)
    r.send(3)
    assert r.network.core.context.termini.sources.octets.octets == 0
    r.finish()


def test_the_user_that_has_most_loses_its_oldest() -> None:
    network = Network(resumption=ResumptionConfig(keep=8192, anonymous=True))
    termini = network.core.context.termini
    hosts = {"modest": "127.0.0.2", "greedy": "127.0.0.3"}
    ends, sent, tags = {}, {}, {}

    def connect(name: str, unsettled: Map | None) -> list[Heard]:
        ends[name] = end = Intruder(network, host=hosts[name])
        end.peer.open()
        end.peer.begin()
        source = Source(address=name, expiry_policy=CLOSE, timeout=30)
        end.peer.write(attached(Role.RECEIVER, name=name, source=source, unsettled=unsettled, rcv_settle_mode=SECOND))
        end.peer.write(flow(handle=0, link_credit=100, delivery_count=0))
        return end.peer.hear()

    producer = network.client("producer")
    for name, count in (("modest", 1), ("greedy", 30)):
        sender = producer.sender(name)
        connect(name, None)
        sent[name] = [producer.send(sender, message(f"{name} {number}".ljust(900))) for number in range(count)]
        came = [each.performative for each in ends[name].peer.hear()]
        tags[name] = [each.delivery_tag or b"" for each in came if isinstance(each, Transfer)]
        assert len(tags[name]) == count
    assert 0 < termini.sources.octets.octets <= 8192
    resumed = {}
    for name in hosts:
        ends[name].leave()
        heard = connect(name, dict.fromkeys(tags[name]))
        resumed[name] = [each for each in heard if isinstance(each.performative, Transfer)]
        assert len(resumed[name]) == len(tags[name])
    aborted = {name: [bool(each.performative.aborted) for each in found] for name, found in resumed.items()}  # type: ignore[union-attr]  # transfers
    assert aborted["modest"] == [False], "it came first, and others have more"
    assert aborted["greedy"][-4:] == [False] * 4, "the latest are kept"
    assert aborted["greedy"] == sorted(aborted["greedy"], reverse=True)
    assert aborted["greedy"][0]
    assert [each.outcome for each in sent["modest"]] == [None]
    for end in ends.values():
        end.leave()
    network.advance(31)
    assert termini.sources.octets.octets == 0
    assert network.relays == 0
    network.leave()


def test_to_make_room_among_many_that_have_alike_takes_few_turns() -> None:
    store = OctetStore(Network(resumption=ResumptionConfig(keep=1_000_000)).core.context)
    listed = []

    class Listed(KeptOctets):
        @property
        def tags(self) -> list[bytes]:
            found = super().tags
            listed.append(len(found))
            return found

    links = [Listed(store, ("", str(number))) for number in range(10)]
    for number in range(450):
        for link in links:
            link.keep(b"%d" % number, b"m", first=True, more=False)
    assert 800_000 < store.octets <= 1_000_000
    kept = [len(link.messages) for link in links]
    assert max(kept) - min(kept) < 120
    assert 0 < sum(listed) < 50_000, "not all messages of a link for each that is given up"


def test_octets_that_are_given_up_before_they_are_sent_again_abort_the_delivery() -> None:
    r = Foreign()
    (of,) = r.send()
    tag = r.tag()
    r.lose()
    assert as_map(r.back({tag: None}, credit=0)) == {tag: None}
    r.network.core.context.termini.sources.octets.make_room(0)
    r.give(1)
    assert [bool(each.aborted) for each in r.resumed] == [True]
    assert of.outcome == FAILED
    assert r.network.relays == 0
    r.finish()


def test_a_round_sends_again_what_both_maps_name() -> None:
    r = Foreign()
    r.send(3)
    tags = [r.tag(number) for number in range(3)]
    r.lose()
    r.begin()
    r.peer.write(
        r.attaching({tags[1]: None}, incomplete_unsettled=True), flow(handle=0, link_credit=9, delivery_count=0)
    )
    heard = r.peer.hear()
    assert [type(each.performative) for each in heard] == [Attach, Transfer, Detach]
    assert heard[1].payload == message(1)
    r.peer.write(Detach(handle=0))
    r.came.clear()
    assert as_map(r.attach(dict.fromkeys(tags))) == dict.fromkeys(tags)
    assert sorted(r.payloads) == [message(number) for number in range(3)]
    r.finish()
