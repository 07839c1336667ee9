"""Links that attach again with an unsettled map, while their deliveries live on the connection (§2.6.13, §3.4.6)."""

from __future__ import annotations

import pytest

from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode, Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted, DeliveryState, Modified, Received, Rejected
from amqpmesh.router.amqp.standard.messaging import Source, Target
from amqpmesh.router.amqp.standard.performatives import Attach, Begin, Detach, Disposition, Flow, Transfer
from amqpmesh.router.config.file import AddressConfig
from tests.support.peers.bystanders import Intruder
from tests.support.peers.scripted import attached, begun, flow, frame, transferred
from tests.support.worlds.network import Arrival, Client, Network, message

SECOND = ReceiverSettleMode.SECOND
WHOLE = Received(section_number=2**32 - 1, section_offset=0)
TAG = (0).to_bytes(4, "big")


class Sending(Intruder):
    """A sending peer with a detached, not closed link, whose delivery 0 has reached a receiver and is undecided."""

    def __init__(
        self, rcv: ReceiverSettleMode = ReceiverSettleMode.FIRST, *, deliveries: int = 1, detached: bool = True
    ) -> None:
        super().__init__(Network())
        self.rcv = rcv
        self.consumer = self.network.client()
        self.consumer.receiver("q", rcv=rcv, credit=100)
        self.peer.open()
        self.peer.begin()
        self.peer.write(self.attach())
        self.peer.expect_all(Attach, Flow)
        for number in range(deliveries):
            self.peer.write(frame(transferred(number), message(number)))
        self.arrivals: list[Arrival] = self.consumer.take(deliveries)
        if detached:
            self.peer.write(Detach(handle=0))
        self.peer.hear()

    def attach(self, unsettled: dict[bytes, DeliveryState | None] | None = None, **fields: object) -> Attach:
        return attached(Role.SENDER, "q", rcv_settle_mode=self.rcv, unsettled=unsettled, **fields)

    def again(self, unsettled: dict[bytes, DeliveryState | None], *, channel: int = 0) -> Attach:
        """Attach the link again. Returns: the answer."""
        self.peer.write(self.attach(unsettled), channel=channel)
        answer, _ = self.peer.expect_all(Attach, Flow)
        assert isinstance(answer, Attach)
        return answer

    def resume(self, number: int, *, channel: int = 0, **fields: object) -> None:
        """Resume the first delivery, with another delivery-id."""
        resumed = transferred(number, delivery_tag=TAG, resume=True, **fields)
        self.peer.write(frame(resumed, b"" if fields.get("aborted") else message(0), channel=channel))

    def heard(self) -> list[Disposition]:
        self.network.run()
        return [each.performative for each in self.peer.hear() if isinstance(each.performative, Disposition)]

    def end(self) -> None:
        """End the connection, and check that nothing is left."""
        self.network.core.receive_eof(self.record, self.network.now)
        self.network.run()
        assert self.network.relays == 0
        self.consumer.take(0)


def as_map(answer: Attach) -> dict[bytes, object]:
    assert answer.unsettled is not None
    return dict(answer.unsettled.items())


@pytest.mark.parametrize("channel", [0, 1], ids=["the same session", "another session"])
@pytest.mark.parametrize("when", ["before", "between", "behind"])
@pytest.mark.parametrize("rcv", ReceiverSettleMode)
def test_a_sender_is_told_what_is_held_and_hears_the_outcome_by_the_new_id(
    rcv: ReceiverSettleMode, when: str, channel: int
) -> None:
    s = Sending(rcv)
    (arrival,) = s.arrivals
    if channel:
        s.peer.write(begun(), channel=channel)
        s.peer.expect(Begin)
    accepted = when == "before" and rcv is SECOND
    if accepted:
        arrival.dispose(Accepted(), settled=False)
        assert [each.state for each in s.heard()] == [Accepted()], "by the old id"
    assert as_map(s.again({TAG: None}, channel=channel)) == {TAG: Accepted() if accepted else WHOLE}
    if when == "between":
        arrival.dispose(Accepted(), settled=rcv is not SECOND)
        assert s.heard() == [], "there is no id to say it by"
    s.resume(7, channel=channel)
    s.consumer.take(0)
    if when == "behind" or (when == "before" and not accepted):
        arrival.dispose(Accepted(), settled=rcv is not SECOND)
    (said,) = s.heard()
    assert (said.first, said.state, said.settled) == (7, Accepted(), rcv is not SECOND)
    if rcv is SECOND:
        s.peer.write(Disposition(role=Role.SENDER, first=7, settled=True, state=Accepted()), channel=channel)
        assert arrival.said[-1][1], "settled"
    assert s.network.relays == 0


def test_a_link_that_is_stolen_to_be_resumed_on_its_connection_tells_what_is_held() -> None:
    s = Sending(detached=False)
    s.peer.write(s.attach({TAG: None}, handle=1))
    attach, detach = (each.performative for each in s.peer.hear() if not isinstance(each.performative, Flow))
    assert isinstance(attach, Attach)
    assert as_map(attach) == {TAG: WHOLE}
    assert isinstance(detach, Detach)
    assert detach.error is not None
    assert detach.error.condition == "amqp:link:stolen"
    s.peer.write(Detach(handle=0, closed=True))
    s.resume(7, handle=1)
    s.arrivals[0].accept()
    (said,) = s.heard()
    assert (said.first, said.state, said.settled) == (7, Accepted(), True)
    s.end()


def test_a_delivery_unknown_to_the_sender_is_settled_by_it() -> None:
    s = Sending(SECOND, deliveries=2)
    for arrival in s.arrivals:
        arrival.dispose(Accepted(), settled=False)
    s.heard()
    assert as_map(s.again({(1).to_bytes(4, "big"): None, b"unknown": Accepted()})) == {
        (1).to_bytes(4, "big"): Accepted()
    }
    assert s.arrivals[0].said[-1][1], "settled"
    assert s.arrivals[1].said == []
    s.end()
    assert s.arrivals[1].said[-1][1], "its sender is gone"


@pytest.mark.parametrize("how", ["settled", "aborted", "in parts", "said"])
def test_a_sender_may_settle_or_end_what_it_resumes(how: str) -> None:
    s = Sending(SECOND)
    (arrival,) = s.arrivals
    s.again({TAG: None})
    if how == "in parts":
        s.resume(7, more=True)
        s.peer.write(frame(transferred(7, delivery_tag=None, more=True), b"x" * 40))
        s.peer.write(frame(transferred(7, delivery_tag=None, settled=True), b"x"))
    elif how == "said":
        s.resume(7, state=Rejected())
        assert arrival.said == [(Rejected(), False)]
        arrival.dispose(Rejected(), settled=False)
        (said,) = s.heard()
        assert (said.first, said.state, said.settled) == (7, Rejected(), False)
        s.peer.write(Disposition(role=Role.SENDER, first=7, settled=True))
    else:
        s.resume(7, **{how: True})
    assert arrival.said[-1][1], "settled"
    s.consumer.take(0)
    s.end()


def test_a_resumed_delivery_counts_and_others_follow() -> None:
    s = Sending()
    s.again({TAG: None})
    s.resume(1)
    s.peer.write(frame(transferred(2), message(2)))
    (other,) = s.consumer.take(1)
    assert bytes(other.payload) == message(2)
    for arrival in (*s.arrivals, other):
        arrival.accept()
    assert sum(1 + (each.last or each.first) - each.first for each in s.heard()) == 2
    s.peer.write(frame(transferred(3, delivery_tag=TAG, resume=True), message(0)))
    s.consumer.take(0)
    s.end()


def test_a_tag_that_is_resumed_already_is_in_use() -> None:
    s = Sending()
    s.again({TAG: None})
    s.resume(1)
    s.resume(2)
    (detach,) = [each.performative for each in s.peer.hear() if isinstance(each.performative, Detach)]
    assert detach.error is not None
    assert detach.error.condition == "amqp:not-allowed"


def test_a_link_may_come_back_more_than_once() -> None:
    s = Sending()
    for _ in range(3):
        assert as_map(s.again({TAG: None})) == {TAG: WHOLE}
        s.peer.write(Detach(handle=0))
        s.peer.hear()
    s.again({TAG: None})
    s.arrivals[0].accept()
    s.resume(1)
    (said,) = s.heard()
    assert (said.first, said.state, said.settled) == (1, Accepted(), True)
    s.end()


def test_an_incomplete_map_is_answered_with_all_that_is_held() -> None:
    s = Sending(deliveries=3)
    s.peer.write(s.attach({TAG: None}, incomplete_unsettled=True))
    attach, _ = s.peer.expect_all(Attach, Flow)
    assert isinstance(attach, Attach)
    assert len(as_map(attach)) == 3
    s.network.advance(1.1)  # the sender resumes nothing
    assert not s.peer.expect(Detach).closed
    s.peer.write(Detach(handle=0))
    assert len(as_map(s.again({number.to_bytes(4, "big"): None for number in range(3)}))) == 3
    for number, arrival in enumerate(s.arrivals):
        s.peer.write(transferred(10 + number, delivery_tag=number.to_bytes(4, "big"), resume=True))
        arrival.accept()
    assert sum(1 + (each.last or each.first) - each.first for each in s.heard()) == 3
    s.end()


class Receiving(Intruder):
    """A receiving peer with a detached, not closed link, and with two undecided deliveries."""

    def __init__(self) -> None:
        super().__init__(Network())
        self.peer.open()
        self.peer.begin()
        self.peer.write(attached(Role.RECEIVER, "q"), flow(handle=0, delivery_count=0, link_credit=2))
        self.producer: Client = self.network.client()
        link = self.producer.sender("q")
        self.sent = [self.producer.send(link, message(number)) for number in range(2)]
        transfers = [each.performative for each in self.peer.hear() if isinstance(each.performative, Transfer)]
        self.tags = [each.delivery_tag for each in transfers if each.delivery_tag is not None]
        self.peer.write(Detach(handle=0))
        self.peer.hear()

    def again(self, unsettled: dict[bytes, DeliveryState | None], **fields: object) -> Attach:
        self.peer.write(attached(Role.RECEIVER, "q", unsettled=unsettled, **fields))
        heard = [each.performative for each in self.peer.hear()]
        return next(each for each in heard if isinstance(each, Attach))


@pytest.mark.parametrize(
    ("state", "outcome"),
    [(Accepted(), Accepted()), (Rejected(), Rejected()), (None, Modified(delivery_failed=True)),
     (Received(section_number=1, section_offset=1), Modified(delivery_failed=True))],
)  # fmt: skip
@pytest.mark.parametrize("incomplete", [False, True])
def test_the_outcome_of_a_receiver_reaches_the_sender(
    state: DeliveryState | None, outcome: DeliveryState, incomplete: bool
) -> None:
    r = Receiving()
    first, second = r.sent
    answer = r.again({r.tags[0]: state}, incomplete_unsettled=incomplete)
    assert as_map(answer) == {}, "nothing of it is held any more"
    r.network.run()
    assert first.said == [(outcome, True)]
    assert second.said == ([] if incomplete else [(Modified(delivery_failed=True), True)])


def test_without_a_map_deliveries_live_on_by_their_ids() -> None:
    r = Receiving()
    r.peer.write(
        attached(Role.RECEIVER, "q"), Disposition(role=Role.RECEIVER, first=0, last=1, settled=True, state=Accepted())
    )
    r.network.run()
    assert [sent.said for sent in r.sent] == [[(Accepted(), True)]] * 2


def test_max_unsettled_holds_for_a_consumer_that_detaches_and_comes_back() -> None:
    network = Network(AddressConfig(pattern="q", max_unsettled=2))
    consumer, producer = network.client(), network.client()
    link = None
    for i in range(20):
        receiver = consumer.receiver("q", name=f"r{i}")
        link = link or producer.sender("q")
        for _ in range(2):
            if link.credit:
                producer.send(link)
        receiver.detach(closed=False)
        network.run()
    assert network.core.context.in_flight <= 6, f"{network.core.context.in_flight} unsettled at one consumer"


def test_resumed_deliveries_that_are_ignored_do_not_eat_a_producers_credit_for_ever() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", credit=5)
    link = producer.sender("q")
    before = link.credit
    assert before
    for i in range(before):
        link.delivery(b"t%d" % i)
        # like `link.transfer`, but with `resume`
        producer.engine.write(
            0,
            Transfer(
                handle=link.flow_state.handle,
                delivery_id=link.flow_state.session.next_delivery_id,
                delivery_tag=b"t%d" % i,
                resume=True,
                settled=True,
            ),
        )
        fs = link.flow_state
        fs.session.next_delivery_id += 1
        fs.session.next_outgoing_id += 1
        fs.delivery_count += 1
        fs.link_credit -= 1
    network.advance(10)
    assert link.credit > 0, "no credit ever again"
    incoming = next(iter(producer.record.incoming))
    assert incoming.credit_sink.delivery_count == incoming.endpoint.delivery_count


def test_a_sender_sends_nothing_new_after_an_incomplete_unsettled_map() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    consumer.engine.write(
        0,
        Attach(
            name="r",
            handle=7,
            role=Role.RECEIVER,
            source=Source(address="q"),
            target=Target(),
            unsettled={b"a": None},
            incomplete_unsettled=True,
        ),
    )
    consumer.engine.write(
        0,
        Flow(
            next_incoming_id=0,
            incoming_window=100,
            next_outgoing_id=0,
            outgoing_window=100,
            handle=7,
            delivery_count=0,
            link_credit=5,
        ),
    )
    network.core.receive(consumer.record, consumer.engine.data_to_send(network.now), network.now)
    out = next(iter(consumer.record.outgoing), None)
    producer.sender("q") if False else None
    assert out is None or out.usable == 0, "new deliveries would go (§2.7.3)"
