"""Links of one connection that are lost together: their ends are kept in steps, and nothing is lost in between."""

from __future__ import annotations

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode, Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted, DeliveryState, Modified, Rejected
from amqpmesh.router.amqp.standard.messaging import Target, TerminusExpiryPolicy
from amqpmesh.router.amqp.standard.performatives import Attach, Disposition, End, Flow
from amqpmesh.router.config.address import AddressConfig
from amqpmesh.router.config.resumption import ResumptionConfig
from amqpmesh.router.core import WORK_LIMIT
from amqpmesh.router.incremental import STEPS_A_TURN
from amqpmesh.router.resumption import suspended_termini
from tests.router.resumption.test_returning_senders import WHOLE, as_map, tag
from tests.support.peers.bystanders import Intruder
from tests.support.peers.scripted import attached, frame, transferred
from tests.support.worlds.network import Arrival, Network, message

FIRST, SECOND = ReceiverSettleMode.FIRST, ReceiverSettleMode.SECOND
CLOSE = TerminusExpiryPolicy.CONNECTION_CLOSE
#: More links than one turn keeps; the last one is kept later than the loss is noticed.
LINKS = 3 * STEPS_A_TURN
LAST = LINKS - 1


class Lost:
    """A router, a receiver, and a peer with many links that has sent a delivery on each. It has a spare connection."""

    def __init__(
        self,
        rcv: ReceiverSettleMode = FIRST,
        *addresses: AddressConfig,
        links: int = LINKS,
        credit: int = 1_000,
        **settings: object,
    ) -> None:
        self.network = Network(*addresses, **settings)
        self.core, self.rcv = self.network.core, rcv
        self.consumer = self.network.client()
        self.consumer.receiver("q", rcv=rcv, credit=credit)
        self.end, self.spare = self._connected(), self._connected()
        for number in range(links):
            self.end.peer.write(self.attaching(number, number, None))
        for number in range(links):
            self.end.peer.write(frame(transferred(number, handle=number), message(number)))
        self.arrivals: list[Arrival] = self.consumer.take(links)
        self.termini = self.core.context.termini

    def _connected(self) -> Intruder:
        end = Intruder(self.network, window=10_000, handle_max=LINKS)
        end.peer.open()
        end.peer.begin()
        return end

    def attaching(self, number: int, handle: int, unsettled: dict[bytes, DeliveryState | None] | None) -> Attach:
        target = Target(address="q", expiry_policy=CLOSE, timeout=30)
        return attached(
            Role.SENDER, "q", name=f"s{number}", handle=handle, target=target, rcv_settle_mode=self.rcv,
            unsettled=unsettled,
        )  # fmt: skip

    def cut(self) -> None:
        """Lose the connection of the links. The router does nothing but notice it."""
        self.core.receive_eof(self.end.record, self.network.now)

    def decide(self, number: int, outcome: DeliveryState) -> None:
        """Tell the router an outcome. It does nothing else."""
        self.arrivals[number].dispose(outcome, settled=self.rcv is FIRST)
        said = self.consumer.engine.data_to_send(self.network.now)
        assert self.core.receive(self.consumer.record, said, self.network.now)

    def step(self) -> None:
        """Have the router do one step of the work that it has put off."""
        looks = iter((False, True))
        self.core.work(self.network.now, lambda: next(looks))

    def back(self, number: int, unsettled: dict[bytes, DeliveryState | None] | None, handle: int = 0) -> Attach:
        """Attach a link over the spare connection. Returns: the answer."""
        self.spare.peer.write(self.attaching(number, handle, unsettled))
        answer, _ = self.spare.peer.expect_all(Attach, Flow)
        assert isinstance(answer, Attach)
        return answer

    def heard(self) -> list[Disposition]:
        """Return what the spare connection has heard of deliveries."""
        self.network.run()
        found = (each.performative for each in self.spare.peer.hear())
        return [each for each in found if isinstance(each, Disposition)]

    def finish(self) -> None:
        """Lose all, and check that nothing is left."""
        self.spare.leave()
        self.network.advance(31)
        assert self.termini.granted == 0
        assert self.termini.suspended_number == 0
        for each in self.arrivals:
            each.accept()
        self.network.run()
        assert self.network.relays == 0
        self.consumer.take()
        self.network.leave()


def test_a_turn_keeps_few_links_and_others_follow_one_by_one() -> None:
    lost = Lost()
    lost.cut()
    assert lost.termini.suspended_number == LINKS
    kept = len(list(lost.termini.kept()))
    assert kept <= STEPS_A_TURN
    for _ in range(LINKS):
        before = kept
        lost.step()
        kept = len(list(lost.termini.kept()))
        assert kept <= before + 1
    assert kept == LINKS
    assert sum(each.unsettled for each in lost.termini.kept()) == LINKS
    lost.finish()


def test_the_deliveries_of_one_link_are_kept_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspended_termini, "AT_ONCE", 5)
    lost = Lost(links=1)
    (link,) = lost.end.record.incoming
    for number in range(1, 200):
        lost.end.peer.write(frame(transferred(number), message(number)))
        if number % 50 == 0:
            lost.end.peer.hear()
    lost.arrivals += lost.consumer.take(199)
    ledger = link.endpoint.session.flow_state.incoming
    lost.cut()
    left = len(ledger)
    assert left == 200 - 5 * STEPS_A_TURN
    for _ in range(left):
        lost.step()
        assert len(ledger) >= left - 5
        left = len(ledger)
    assert not left
    assert sum(each.unsettled for each in lost.termini.kept()) == 200
    lost.finish()


LONG = Modified(delivery_failed=True, message_annotations={Symbol("x"): "y" * 3000})  # it needs a decision


@pytest.mark.parametrize("outcome", [Accepted(), Rejected(), LONG], ids=["accepted", "rejected", "long"])
@pytest.mark.parametrize("distribution", [Distribution.BALANCED, Distribution.MULTICAST])
@pytest.mark.parametrize("rcv", ReceiverSettleMode)
def test_an_outcome_that_comes_before_its_link_is_kept_is_heard(
    rcv: ReceiverSettleMode, distribution: Distribution, outcome: DeliveryState
) -> None:
    lost = Lost(rcv, AddressConfig(pattern="q", distribution=distribution))
    lost.cut()
    lost.decide(LAST, outcome)
    lost.network.run()
    lost.spare.peer.hear()
    (state,) = as_map(lost.back(LAST, {tag(LAST): None})).values()
    assert type(state) is type(outcome)
    resumed = transferred(7, handle=0, delivery_tag=tag(LAST), resume=True)
    lost.spare.peer.write(frame(resumed, message(LAST)))
    (said,) = lost.heard()
    assert (said.first, type(said.state), said.settled) == (7, type(outcome), rcv is FIRST)
    lost.finish()


@pytest.mark.parametrize("rcv", ReceiverSettleMode)
def test_a_sender_may_resume_before_its_link_is_kept(rcv: ReceiverSettleMode) -> None:
    lost = Lost(rcv)
    lost.cut()
    assert as_map(lost.back(LAST, {tag(LAST): None})) == {tag(LAST): WHOLE}
    resumed = transferred(7, handle=0, delivery_tag=tag(LAST), resume=True)
    lost.spare.peer.write(frame(resumed, message(LAST)))
    lost.decide(LAST, Accepted())
    (said,) = lost.heard()
    assert (said.first, said.state, said.settled) == (7, Accepted(), rcv is FIRST)
    assert lost.termini.suspended_number == LINKS - 1
    lost.finish()


def test_attaches_with_large_maps_in_one_read_take_several_turns() -> None:
    lost = Lost()
    lost.cut()
    lost.network.run()
    unsettled: dict[bytes, DeliveryState | None] = {tag(number): None for number in range(90)}
    data = b"".join(frame(lost.attaching(number, number, unsettled)) for number in range(LINKS))
    is_done, back = False, lost.spare.record.incoming
    while not is_done:
        before = len(back)
        is_done = lost.core.receive(lost.spare.record, data, lost.network.now)
        data = b""
        assert len(back) - before <= WORK_LIMIT // 100
    assert len(back) == LINKS
    lost.finish()


def test_a_sender_that_forgot_takes_its_link_before_that_is_kept() -> None:
    lost = Lost()
    lost.cut()
    assert lost.back(LAST, None).unsettled is None
    assert lost.termini.suspended_number == LINKS - 1
    lost.decide(LAST, Accepted())
    assert lost.heard() == []
    assert lost.network.relays == LINKS - 1
    lost.finish()


def test_what_is_too_many_is_given_up_the_oldest_first() -> None:
    lost = Lost(resumption=ResumptionConfig(unsettled=10))
    lost.cut()
    lost.network.run()
    assert lost.termini.suspended_number == 10
    assert lost.termini.evicted == LINKS - 10  # type: ignore[attr-defined]
    lost.spare.peer.hear()
    assert as_map(lost.back(LAST, {tag(LAST): None})) == {tag(LAST): WHOLE}
    assert lost.back(0, {tag(0): None}, handle=1).unsettled is None
    lost.finish()


def test_a_drain_ends_those_that_are_yet_to_be_kept() -> None:
    lost = Lost()
    lost.cut()
    lost.core.start_drain(lost.network.now)
    lost.network.run()
    assert lost.termini.suspended_number == 0
    assert lost.termini.granted == 0
    for each in lost.arrivals:
        each.accept()
    lost.network.run()
    assert lost.network.relays == 0


@pytest.mark.parametrize("outcome", [None, Accepted()], ids=["none", "accepted"])
def test_the_session_ends_and_then_the_connection(outcome: DeliveryState | None) -> None:
    lost = Lost()
    lost.core.receive(lost.end.record, frame(End()), lost.network.now)
    lost.cut()
    if outcome is not None:
        lost.decide(LAST, outcome)
    lost.network.run()
    lost.spare.peer.hear()
    assert lost.termini.suspended_number == LINKS
    assert as_map(lost.back(LAST, {tag(LAST): None})) == {tag(LAST): outcome or WHOLE}
    lost.finish()
