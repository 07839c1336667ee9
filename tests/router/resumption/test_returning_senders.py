"""Senders that lose their connection, come back over another one, and resume their link (§2.6.13, §3.4.6)."""

from __future__ import annotations

import pytest

from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode, Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted, DeliveryState, Received, Rejected, Released
from amqpmesh.router.amqp.standard.messaging import Target, TerminusExpiryPolicy
from amqpmesh.router.amqp.standard.performatives import Attach, Close, Detach, Disposition, End, Flow, Open
from amqpmesh.router.amqp.standard.transactions import TransactionalState
from amqpmesh.router.config.address import AddressConfig, Resumption
from amqpmesh.router.config.resumption import ResumptionConfig
from tests.support.peers.bystanders import Intruder
from tests.support.peers.scripted import AMQP, attached, frame, transferred
from tests.support.worlds.network import Arrival, Network, message

SECOND = ReceiverSettleMode.SECOND
CLOSE = TerminusExpiryPolicy.CONNECTION_CLOSE
WHOLE = Received(section_number=2**32 - 1, section_offset=0)


def tag(number: int) -> bytes:
    return number.to_bytes(4, "big")


class Roaming:
    """A sending peer whose link outlives its connections, and a receiver of what it sends."""

    def __init__(
        self,
        rcv: ReceiverSettleMode = ReceiverSettleMode.FIRST,
        *,
        policy: TerminusExpiryPolicy = CLOSE,
        timeout: int = 30,
        network: Network | None = None,
        credit: int = 100,
    ) -> None:
        self.network = network or Network()
        self.rcv, self.policy, self.timeout = rcv, policy, timeout
        self.consumer = self.network.client()
        self.receiver = self.consumer.receiver("q", rcv=rcv, credit=credit)
        self.begin()
        self.answer = self.attach(None)
        self.arrivals: list[Arrival] = []

    def begin(self) -> None:
        """Open a connection, with a session."""
        self.end = Intruder(self.network)
        self.peer = self.end.peer
        self.peer.open()
        self.peer.begin()

    def attaching(self, unsettled: dict[bytes, DeliveryState | None] | None, **fields: object) -> Attach:
        target = Target(address="q", expiry_policy=self.policy, timeout=self.timeout)
        given = {"target": target, "rcv_settle_mode": self.rcv, "unsettled": unsettled, **fields}
        return attached(Role.SENDER, "q", **given)

    def attach(self, unsettled: dict[bytes, DeliveryState | None] | None, **fields: object) -> Attach:
        """Attach the link. Returns: the answer."""
        self.peer.write(self.attaching(unsettled, **fields))
        answer, _ = self.peer.expect_all(Attach, Flow)
        assert isinstance(answer, Attach)
        return answer

    def send(self, count: int = 1) -> list[Arrival]:
        for number in range(count):
            self.peer.write(frame(transferred(number), message(number)))
        self.arrivals = self.consumer.take(count)
        self.peer.hear()
        return self.arrivals

    def lose(self) -> None:
        """Lose the connection."""
        self.end.leave()

    def back(self, unsettled: dict[bytes, DeliveryState | None] | None, **fields: object) -> Attach:
        """Come back over a new connection. Returns: the answer to the attach."""
        self.begin()
        return self.attach(unsettled, **fields)

    def resume(self, number: int, of: int = 0, **fields: object) -> None:
        """Resume a delivery, with another delivery-id."""
        resumed = transferred(number, delivery_tag=tag(of), resume=True, **fields)
        self.peer.write(frame(resumed, b"" if fields.get("aborted") else message(of)))

    def heard(self) -> list[Disposition]:
        self.network.run()
        return [each.performative for each in self.peer.hear() if isinstance(each.performative, Disposition)]

    @property
    def suspended(self) -> int:
        return self.network.core.context.termini.suspended_number

    def finish(self) -> None:
        """End all connections, and check that nothing is left."""
        self.lose()
        self.network.advance(self.timeout + 1)
        assert self.network.core.context.termini.granted == 0
        assert self.suspended == 0
        assert self.network.relays == 0
        self.consumer.take(0)
        self.network.leave()


def as_map(answer: Attach) -> dict[bytes, object]:
    assert answer.unsettled is not None
    return dict(answer.unsettled.items())


@pytest.mark.parametrize("when", ["before", "away", "attached", "resumed"])
@pytest.mark.parametrize("rcv", ReceiverSettleMode)
def test_a_sender_that_comes_back_hears_the_outcome_once(rcv: ReceiverSettleMode, when: str) -> None:
    r = Roaming(rcv)
    (arrival,) = r.send()

    def decide(moment: str) -> None:
        if when == moment:
            arrival.dispose(Accepted(), settled=rcv is not SECOND)
            r.network.run()

    if rcv is SECOND:
        decide("before")  # in mode first the sender has no entry any more once it has heard
    elif when == "before":
        when = "away"
    r.lose()
    decide("away")
    assert r.suspended == 1
    answer = r.back({tag(0): None})
    assert as_map(answer) == {tag(0): Accepted() if when in ("before", "away") else WHOLE}
    assert r.suspended == 0
    decide("attached")
    assert r.heard() == [], "there is no id to say it by"
    r.resume(7)
    decide("resumed")
    (said,) = r.heard()
    assert (said.first, said.state, said.settled) == (7, Accepted(), rcv is not SECOND)
    r.consumer.take(0)
    if rcv is SECOND:
        r.peer.write(Disposition(role=Role.SENDER, first=7, settled=True, state=Accepted()))
        assert arrival.said[-1][1], "settled"
    assert r.network.relays == 0
    r.finish()


@pytest.mark.parametrize(
    ("asked", "policy", "granted"),
    [(30, CLOSE, (CLOSE, 30)), (600, TerminusExpiryPolicy.LINK_DETACH, (TerminusExpiryPolicy.LINK_DETACH, 60)),
     (5, TerminusExpiryPolicy.SESSION_END, (TerminusExpiryPolicy.SESSION_END, 5)),
     (0, CLOSE, (TerminusExpiryPolicy.LINK_DETACH, 0)),
     (30, TerminusExpiryPolicy.NEVER, (TerminusExpiryPolicy.LINK_DETACH, 0))],
)  # fmt: skip
def test_the_answer_says_what_is_granted(
    asked: int, policy: TerminusExpiryPolicy, granted: tuple[TerminusExpiryPolicy, int]
) -> None:
    r = Roaming(policy=policy, timeout=asked)
    target = r.answer.target
    assert isinstance(target, Target)
    assert (target.expiry_policy, target.timeout) == granted


def test_never_with_a_map_asks_for_the_longest_time() -> None:
    r = Roaming(policy=TerminusExpiryPolicy.NEVER)
    r.lose()
    target = r.back({}).target
    assert isinstance(target, Target)
    assert (target.expiry_policy, target.timeout) == (CLOSE, 60)


def refused_by(settings: ResumptionConfig, *addresses: AddressConfig) -> Roaming:
    return Roaming(network=Network(*addresses, resumption=settings))


@pytest.mark.parametrize(
    "r",
    [
        refused_by(ResumptionConfig(timeout=0.0)),
        refused_by(ResumptionConfig(links=0)),
        refused_by(ResumptionConfig(links_per_user=0)),
        refused_by(ResumptionConfig(), AddressConfig(pattern="q", resumption=Resumption.OFF)),
    ],
    ids=["no time", "no links", "no links of a user", "the address"],
)
def test_a_limit_is_told_by_the_answer(r: Roaming) -> None:
    target = r.answer.target
    assert isinstance(target, Target)
    assert target.timeout == 0
    (arrival,) = r.send()
    r.lose()
    assert r.suspended == 0
    arrival.accept()
    r.network.run()
    assert r.network.relays == 0
    r.begin()
    r.peer.write(r.attaching({tag(0): None}))
    answer = r.peer.hear()[0].performative
    assert isinstance(answer, Attach)
    assert answer.unsettled is None, "nothing is known of it"


@pytest.mark.parametrize("limits", [ResumptionConfig(links=1), ResumptionConfig(links_per_user=1)], ids=["all", "user"])
def test_a_place_at_the_limit_is_kept_for_the_link_that_comes_back(limits: ResumptionConfig) -> None:
    r = Roaming(network=Network(resumption=limits))
    for _ in range(3):
        r.lose()
        target = r.back({}).target
        assert isinstance(target, Target)
        assert target.timeout == 30
    r.finish()


@pytest.mark.parametrize("rcv", ReceiverSettleMode)
def test_a_sender_that_stays_away_has_left(rcv: ReceiverSettleMode) -> None:
    r = Roaming(rcv)
    (arrival,) = r.send()
    r.lose()
    r.network.advance(29)
    assert r.suspended == 1
    r.network.advance(2)
    assert r.suspended == 0
    arrival.dispose(Accepted(), settled=rcv is not SECOND)
    r.network.run()
    if rcv is SECOND:
        assert arrival.said[-1][1], "settled: its sender is gone"
    assert r.network.relays == 0
    assert r.back({tag(0): None}).unsettled is None
    r.finish()


def test_a_link_that_is_attached_anew_has_no_history() -> None:
    r = Roaming(SECOND)
    (arrival,) = r.send()
    arrival.dispose(Accepted(), settled=False)
    r.lose()
    assert r.back(None).unsettled is None
    assert r.suspended == 0
    assert arrival.said[-1][1], "settled: its sender does not know of it"
    r.finish()


def test_what_the_sender_does_not_name_it_has_settled() -> None:
    r = Roaming(SECOND)
    for arrival in r.send(3):
        arrival.dispose(Accepted(), settled=False)
    r.lose()
    assert as_map(r.back({tag(1): None, b"unknown": Accepted()})) == {tag(1): Accepted()}
    assert [any(settled for _, settled in each.said) for each in r.arrivals] == [True, False, True]
    r.resume(5, of=1, settled=True, state=Accepted())
    assert r.arrivals[1].said[-1][1]
    r.finish()


def test_part_of_a_message_is_sent_again() -> None:
    r = Roaming()
    r.peer.write(frame(transferred(0, more=True), message(0)[:20]))
    r.lose()
    assert as_map(r.back({tag(0): None})) == {}
    r.consumer.take()
    r.send()
    r.arrivals[0].accept()
    (said,) = r.heard()
    assert (said.first, said.state) == (0, Accepted())
    r.finish()


def test_a_connection_that_still_seems_to_be_there_loses_the_link_to_the_new_one() -> None:
    r = Roaming()
    (arrival,) = r.send()
    before = r.end
    assert as_map(r.back({tag(0): None})) == {tag(0): WHOLE}
    (detach,) = [each.performative for each in before.peer.hear() if isinstance(each.performative, Detach)]
    assert detach.error is not None
    assert detach.error.condition == "amqp:link:stolen"
    before.leave()
    r.resume(3)
    arrival.dispose(Rejected(), settled=True)
    (said,) = r.heard()
    assert (said.first, said.state, said.settled) == (3, Rejected(), True)
    r.finish()


@pytest.mark.parametrize("again", [1, 3])
def test_a_link_may_be_lost_again_and_again(again: int) -> None:
    r = Roaming()
    (arrival,) = r.send()
    for number in range(again):
        r.lose()
        assert as_map(r.back({tag(0): None})) == {tag(0): WHOLE}
        if number % 2:
            r.resume(number)
    r.lose()
    arrival.accept()
    assert as_map(r.back({tag(0): None})) == {tag(0): Accepted()}
    r.resume(9, state=Accepted(), settled=True)
    assert r.heard() == []
    assert r.network.relays == 0
    r.finish()


def test_a_sender_that_does_not_know_its_target_is_told() -> None:
    r = Roaming()
    r.send()
    r.lose()
    answer = r.back({tag(0): None}, target=None)
    assert isinstance(answer.target, Target)
    assert answer.target.address == "q"
    assert as_map(answer) == {tag(0): WHOLE}
    r.arrivals[0].accept()
    r.finish()


@pytest.mark.parametrize("how", ["aborted", "settled"])
def test_a_resumed_delivery_may_be_given_up(how: str) -> None:
    r = Roaming(SECOND)
    (arrival,) = r.send()
    r.lose()
    r.back({tag(0): None})
    r.resume(1, **{how: True})
    arrival.dispose(Accepted(), settled=False)
    r.network.run()
    assert arrival.said[-1][1], "settled"
    r.finish()


@pytest.mark.parametrize("is_aborted", [True, False])
def test_a_delivery_that_waits_here_still_is_dropped_if_its_sender_aborts_it(is_aborted: bool) -> None:
    r = Roaming(SECOND, credit=1)
    other = r.network.client()
    other.send(other.sender("q"))  # it gets the only credit
    r.peer.write(frame(transferred(0), message(0)))
    r.lose()
    r.back({tag(0): None})
    r.resume(1, **{"aborted" if is_aborted else "settled": True})
    r.receiver.flow(10)
    r.network.run()
    arrivals = r.consumer.take(1 if is_aborted else 2)
    assert [bytes(each.payload) == message(0) for each in arrivals] == ([False] if is_aborted else [False, True])
    arrivals[0].accept()
    r.finish()


@pytest.mark.parametrize(
    ("policy", "begins"),
    [(TerminusExpiryPolicy.LINK_DETACH, Detach), (TerminusExpiryPolicy.SESSION_END, End), (CLOSE, Close)],
)
def test_the_time_runs_from_the_event_of_the_policy(policy: TerminusExpiryPolicy, begins: type[object]) -> None:
    r = Roaming(policy=policy)
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


@pytest.mark.parametrize("closed", [False, True])
def test_a_closed_link_is_not_kept(closed: bool) -> None:
    r = Roaming()
    (arrival,) = r.send()
    r.peer.write(Detach(handle=0, closed=closed))
    assert r.suspended == (0 if closed else 1)
    arrival.accept()
    r.finish()


def test_nothing_is_known_of_a_link_that_has_ended_with_an_error() -> None:
    r = Roaming(SECOND)
    (arrival,) = r.send()
    r.peer.write(frame(transferred(1, state=TransactionalState(txn_id=b"none")), message(1)))
    (detach,) = r.peer.expect_all(Detach)
    assert isinstance(detach, Detach)
    assert detach.error is not None
    arrival.accept()
    assert r.attach({tag(0): None}, handle=1).unsettled is None
    r.lose()
    assert r.back({tag(0): None}).unsettled == {}, "the new link is resumed, and has none of it"


def test_another_session_of_the_connection_may_resume() -> None:
    r = Roaming()
    (arrival,) = r.send()
    r.peer.write(Detach(handle=0), End())
    r.peer.hear()
    arrival.accept()
    r.peer.begin()
    assert as_map(r.attach({tag(0): None})) == {tag(0): Accepted()}
    r.finish()


def test_another_container_hears_nothing_of_it() -> None:
    r = Roaming()
    (arrival,) = r.send()
    r.lose()
    r.end = Intruder(r.network)
    r.peer = r.end.peer
    r.peer.write(AMQP, Open(container_id="another"))
    assert r.peer.expect_header() == AMQP
    r.peer.expect(Open)
    r.peer.begin()
    assert r.attach({tag(0): None}).unsettled is None
    assert r.suspended == 1
    arrival.accept()
    r.finish()


def test_the_one_with_most_deliveries_is_given_up_first() -> None:
    r = Roaming(network=Network(resumption=ResumptionConfig(unsettled=3)))
    r.send(3)
    r.lose()
    assert r.suspended == 1
    r.back({tag(number): None for number in range(3)})
    for number in range(4):
        r.peer.write(frame(transferred(10 + number), message(number)))
    r.consumer.take(4)
    r.lose()
    assert r.suspended == 0
    assert r.network.core.context.termini.evicted == 1


def test_a_router_that_moves_its_clients_keeps_nothing() -> None:
    r = Roaming()
    (arrival,) = r.send()
    r.lose()
    core = r.network.core
    core.change(lambda: core.departure.begin(0.1, ()), r.network.now)
    assert r.suspended == 0
    arrival.dispose(Released(), settled=True)
    r.network.run()
    assert r.network.relays == 0


def test_many_links_of_one_connection_come_back() -> None:
    network = Network()
    consumer = network.client()
    consumer.receiver("q", credit=1000)
    target = Target(address="q", expiry_policy=CLOSE, timeout=30)

    def connected() -> Intruder:
        end = Intruder(network)
        end.peer.open()
        end.peer.begin()
        return end

    end = connected()
    for number in range(3):
        end.peer.write(attached(Role.SENDER, "q", name=f"s{number}", handle=number, target=target))
        for delivery in (number, number + 3):
            end.peer.write(frame(transferred(delivery, handle=number), message(delivery)))
    arrivals = consumer.take(6)
    end.leave()
    for arrival in arrivals:
        arrival.accept()
    network.run()
    end = connected()
    for number in range(3):
        tags = [tag(number), tag(number + 3)]
        again = attached(
            Role.SENDER, "q", name=f"s{number}", handle=number, target=target, unsettled=dict.fromkeys(tags)
        )
        end.peer.write(again)
        answer = next(each.performative for each in end.peer.hear() if isinstance(each.performative, Attach))
        assert as_map(answer) == dict.fromkeys(tags, Accepted())
    end.leave()
    network.advance(31)
    assert network.relays == 0


def test_a_map_that_does_not_fit_into_a_frame_of_the_sender_names_what_does() -> None:
    r = Roaming(SECOND)
    for number in range(8):
        r.peer.write(frame(transferred(number, delivery_tag=bytes([number]) * 32), message(number)))
    for arrival in r.consumer.take(8):
        arrival.dispose(Accepted(), settled=False)
    r.lose()
    r.end = Intruder(r.network)
    r.peer = r.end.peer
    r.peer.open(max_frame_size=512)
    r.peer.begin()
    answer = r.attach({bytes([number]) * 32: None for number in range(8)})
    assert answer.incomplete_unsettled
    assert list(as_map(answer)) == [bytes([number]) * 32 for number in range(5)]
    r.finish()


def test_a_refused_attach_uses_no_place() -> None:
    r = Roaming()
    before = r.network.core.context.termini.granted
    r.peer.write(
        r.attaching({tag(0): None}, name="another", handle=1, rcv_settle_mode=SECOND, source=None, target=None)
    )
    assert [type(each.performative) for each in r.peer.hear()] == [Attach, Detach]
    assert r.network.core.context.termini.granted == before == 1
    r.finish()
