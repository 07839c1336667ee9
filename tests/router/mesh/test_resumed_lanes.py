"""Lanes whose connection is cut, and that go on over the next one."""

from __future__ import annotations

import pytest

from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error, ReceiverSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted, DeliveryState, Modified, Rejected, Released
from amqpmesh.router.amqp.standard.performatives import Transfer
from amqpmesh.router.config.file import AddressConfig
from amqpmesh.router.config.resumption import ResumptionConfig
from tests.support.peers.scripted import AMQP, Script
from tests.support.worlds.frayed_wires import FIRST, LATE, NEWS, RESUME, SECOND, tell
from tests.support.worlds.meshes import INSECURE, World
from tests.support.worlds.network import Arrival, message

LINE = [("A", "B"), ("B", "C")]
AGAIN = AddressConfig(pattern="again", redeliver=True, attempts=3)
ACCEPTED = Accepted()


class Story:
    """A sender at A and a receiver at C, over B."""

    def __init__(
        self,
        mode: ReceiverSettleMode = SECOND,
        *,
        address: str = "q",
        number: int = 3,
        without: str = "",
        **limits: ResumptionConfig,
    ) -> None:
        """Args: number: of messages. without: routers that keep no lanes. limits: `[resumption]` of all."""
        members = dict.fromkeys(without, INSECURE)
        self.world = World("ABC", LINE, NEWS, AGAIN, members=members, mesh=RESUME, **limits)
        self.mode = mode
        self.consumer, self.producer = self.world["C"].client(), self.world["A"].client()
        self.consumer.receiver(address, credit=100, rcv=mode)
        self.world.advance(0.2)
        self.link = self.producer.sender(address, rcv=mode)
        self.world.advance(0.2)
        self.sent = [self.producer.send(self.link) for _ in range(number)]
        self.world.advance(0.1)

    def cut(self, one: str, two: str) -> None:
        """Lose a connection between two routers; each of them sees its end."""
        self.world.cut(*self.world.between(one, two))

    def join(self, one: str, two: str) -> None:
        """Connect two routers again."""
        self.world.join(one, two)
        self.world.advance(1.0)

    def heard(self) -> list[object]:
        """Return the outcome that each message has; None: none yet."""
        self.world.run()
        return [each.outcome for each in self.sent]


def accept(arrivals: list[Arrival]) -> None:
    """Accept messages, and leave them unsettled."""
    for each in arrivals:
        each.dispose(ACCEPTED, settled=False)


@pytest.mark.parametrize("address", ["q", "news/x"])
@pytest.mark.parametrize("mode", [FIRST, SECOND])
@pytest.mark.parametrize("wire", [("A", "B"), ("B", "C")])
def test_what_was_on_its_way_goes_on_after_a_cut(wire: tuple[str, str], mode: ReceiverSettleMode, address: str) -> None:
    story = Story(mode, address=address)
    came = story.consumer.take(3)
    story.cut(*wire)
    story.world.advance(0.5)
    assert story.heard() == [None] * 3
    story.join(*wire)
    assert story.heard() == [None] * 3
    accept(came)
    story.world.advance(0.1)
    assert story.heard() == [ACCEPTED] * 3
    assert story.consumer.take() == []
    story.world.leave()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("how", ["anycast", "tree", "transit"])
@pytest.mark.parametrize("routers", ["AB", "ABC"])
def test_of_mode_second_nothing_is_in_doubt_and_nothing_comes_twice(routers: str, how: str, seed: int) -> None:
    assert tell(seed, SECOND, routers=routers, how=how) <= {Accepted, Released}


@pytest.mark.parametrize("seed", range(3))
def test_of_mode_first_no_outcome_is_false(seed: int) -> None:
    tell(seed, FIRST)


def test_of_mode_first_only_what_was_on_the_connection_is_in_doubt() -> None:
    story = Story(FIRST)
    came = story.consumer.take(3)
    (wire,) = story.world.between("A", "B")
    came[0].accept()
    story.world.run()
    wire.frozen = True  # the second outcome stays on the connection
    came[1].accept()
    story.world.run()
    story.cut("A", "B")
    story.join("A", "B")
    assert story.heard() == [ACCEPTED, Modified(delivery_failed=True), None]
    came[2].accept()
    assert story.heard() == [ACCEPTED, Modified(delivery_failed=True), ACCEPTED]
    story.world.leave()


@pytest.mark.parametrize("mode", [FIRST, SECOND])
def test_a_resuming_transfer_repeats_the_mode_in_which_its_delivery_left(mode: ReceiverSettleMode) -> None:
    """The first message is relayed by a decision, those behind it without one (§2.7.5, rcv-settle-mode)."""
    story = Story(mode)
    came = story.consumer.take(3)
    story.cut("A", "B")
    octets = bytearray()

    def tap(sender: str, receiver: str, data: bytes) -> None:
        if (sender, receiver) == ("A", "B"):
            octets.extend(data)

    story.world.tap = tap
    story.join("A", "B")
    parts = [bytes(octets[octets.index(AMQP) :]), b""]  # behind SASL
    script = Script(lambda _: None, lambda: parts.pop(0))
    script.expect_header()
    transfers = [each.performative for each in script.hear() if isinstance(each.performative, Transfer)]
    resumed = [each.rcv_settle_mode for each in transfers if each.resume]
    assert resumed == [FIRST if mode is FIRST else None] * 3, "the mode of lanes is second"
    accept(came)
    assert story.heard() == [ACCEPTED] * 3
    story.world.leave()


@pytest.mark.parametrize("settles_later", [False, True])
@pytest.mark.parametrize("mode", [FIRST, SECOND])
def test_long_outcomes_are_heard_though_no_frame_has_them_all(mode: ReceiverSettleMode, *, settles_later: bool) -> None:
    story = Story(mode, number=30)
    rejected = Rejected(error=Error(condition=AmqpCondition.NOT_ALLOWED, description="x" * 4000))
    came = story.consumer.take(30)
    if settles_later:  # the first router knows them
        for each in came:
            each.dispose(rejected, settled=False)
        story.world.run()
    story.cut("A", "B")
    if not settles_later:
        for each in came:
            each.dispose(rejected, settled=False)
        story.world.run()
    story.join("A", "B")
    assert story.heard() == [rejected] * 30
    for sent in story.sent:
        if not sent.delivery.settled:
            sent.dispose(None, settled=True)
    story.world.advance(LATE)
    story.world.leave()


def test_a_message_that_did_not_come_to_the_next_router_is_released_and_its_late_copy_reaches_nobody() -> None:
    story = Story(number=0)
    (wire,) = story.world.between("A", "B")
    wire.frozen = True
    story.sent = [story.producer.send(story.link)]
    story.cut("A", "B")
    story.join("A", "B")
    assert story.heard() == [Released()]
    assert story.consumer.take() == []
    story.world.leave()


@pytest.mark.parametrize("address", ["q", "news/x"])
@pytest.mark.parametrize(("mode", "outcome"), [(SECOND, Released()), (FIRST, Modified(delivery_failed=True))])
def test_a_router_that_loses_both_connections_at_once_knows_in_which_mode_a_message_left(
    mode: ReceiverSettleMode, outcome: DeliveryState, address: str
) -> None:
    story = Story(mode, address=address, number=0)
    (before,), (behind,) = (story.world.between(*edge) for edge in LINE)
    behind.frozen = True
    story.sent = [story.producer.send(story.link)]
    before.frozen = True
    story.world.cut(before, behind)
    story.world.join("B", "C")
    story.join("A", "B")
    assert story.heard() == [outcome]
    story.world.leave()


@pytest.mark.parametrize("mode", [FIRST, SECOND])
def test_lanes_that_carry_messages_by_their_own_addresses_go_on(mode: ReceiverSettleMode) -> None:
    story = Story(mode, number=0)
    link = story.producer.sender(None, rcv=mode)
    story.world.advance(0.2)
    story.sent = [story.producer.send(link, message(to="q@C")) for _ in range(3)]
    story.world.advance(0.1)
    came = story.consumer.take(3)
    story.world.cut(*story.world.between("A", "B"), *story.world.between("B", "C"))
    story.world.join("B", "C")
    story.join("A", "B")
    accept(came)
    assert story.heard() == [ACCEPTED] * 3
    story.world.advance(LATE)  # ends of lanes that carried nothing are kept for some time
    story.world.leave()


def test_it_takes_another_way_where_failed_deliveries_are_sent_again() -> None:
    story = Story(number=0, address="again")
    (wire,) = story.world.between("A", "B")
    wire.frozen = True
    story.sent = [story.producer.send(story.link)]
    story.cut("A", "B")
    story.join("A", "B")
    assert story.heard() == [None]
    (arrival,) = story.consumer.take(1)
    accept([arrival])
    assert story.heard() == [ACCEPTED]
    story.world.leave()


def test_a_connection_that_is_silent_for_longer_than_the_hold_time_is_waited_for() -> None:
    story = Story()
    came = story.consumer.take(3)
    (wire,) = story.world.between("A", "B")
    wire.frozen = True
    story.world.advance(8.0)  # both ends have given the connection up after three seconds
    assert story.heard() == [None] * 3
    story.join("A", "B")
    accept(came)
    assert story.heard() == [ACCEPTED] * 3
    story.world.leave()


@pytest.mark.parametrize("why", ["A drains", "B drains", "limits"])
def test_a_lane_that_a_router_does_not_keep_for_the_next_connection_is_in_doubt(why: str) -> None:
    story = Story(resumption=ResumptionConfig(unsettled=2 if why == "limits" else 100))
    story.cut("A", "B")
    if why != "limits":
        story.world[why[0]].core.start_drain(story.world.now)
    story.join("A", "B")
    assert story.heard() == [Modified(delivery_failed=True)] * 3
    for sent in story.sent:
        sent.dispose(None, settled=True)
    story.world.advance(LATE)
    story.world.leave()


def test_after_that_time_it_is_in_doubt() -> None:
    story = Story()
    (wire,) = story.world.between("A", "B")
    wire.frozen = True
    story.world.advance(14.0)
    assert story.heard() == [Modified(delivery_failed=True)] * 3


def test_a_new_connection_takes_over_before_the_loss_of_the_former_is_noticed() -> None:
    story = Story()
    came = story.consumer.take(3)
    (wire,) = story.world.between("A", "B")
    wire.frozen = True
    (core, record), _ = wire.ends
    core.receive_eof(record, story.world.now)  # A notices it, and B does not
    story.join("A", "B")
    accept(came)
    assert story.heard() == [ACCEPTED] * 3
    story.world.cut(wire)
    story.world.leave()


@pytest.mark.parametrize("decided", [False, True])
def test_what_its_sender_settles_behind_our_map_is_settled_by_a_resuming_transfer(decided: bool) -> None:
    """Only then the neighbour, whose map still names it, lets its receiver settle (§2.6.13)."""
    story = Story()
    came = story.consumer.take(3)
    if decided:
        accept(came)
        assert story.heard() == [ACCEPTED] * 3
    story.cut("A", "B")
    asked: list[bytes] = []

    def tap(sender: str, receiver: str, data: bytes) -> None:
        state = (b"\0S$" if decided else b"\0S#") in data.partition(b"\0S\x12")[2]  # accepted, received; attach
        if (sender, receiver) == ("A", "B") and state:
            asked.append(data)

    story.world.tap, story.world.latency = tap, lambda: 0.01
    story.world.join("A", "B")
    story.world.advance_until(lambda: bool(asked), 5.0)
    assert len(asked) == 1, "our map has left, and theirs has not come"
    for sent in story.sent:
        sent.dispose(None, settled=True)
    story.world.advance(1.0)
    assert [[settled for _, settled in each.said] for each in came] == [[True]] * 3
    story.world.leave()


def test_when_a_process_is_gone_its_neighbours_hear_so_within_a_second() -> None:
    story = Story()
    story.world.kill("B")
    story.world.advance(1.0)
    assert story.heard() == [Modified(delivery_failed=True)] * 3


def test_when_a_process_with_several_connections_is_gone_its_neighbours_hear_so_within_a_second() -> None:
    story = Story(number=0)
    story.world.join("A", "B")
    story.world.advance(1.0)
    story.sent = [story.producer.send(story.link) for _ in range(3)]
    story.world.run()
    story.world.kill("B")  # of each connection but the last, another one is left for a moment
    story.world.advance(1.0)
    assert story.heard() == [Modified(delivery_failed=True)] * 3


def test_a_neighbour_that_has_begun_anew_knows_nothing() -> None:
    story = Story()
    story.world.kill("B")
    story.world.advance(0.2)
    story.world.start("B")
    story.join("A", "B")
    assert story.heard() == [Modified(delivery_failed=True)] * 3


def test_lanes_take_none_of_the_links_that_clients_may_have_kept() -> None:
    story = Story()
    assert [node.core.context.termini.granted for node in story.world.nodes.values()] == [0] * 3
    story.cut("A", "B")
    story.world.advance(LATE)
    assert [node.core.context.termini.granted for node in story.world.nodes.values()] == [0] * 3


@pytest.mark.parametrize("off", "AB")
def test_a_lane_is_kept_only_if_both_neighbours_keep_lanes(off: str) -> None:
    story = Story(without=off)
    story.cut("A", "B")
    assert story.heard() == [Modified(delivery_failed=True)] * 3
    assert not any(node.core.context.termini.suspended_number for node in story.world.nodes.values())
    story.join("A", "B")
    story.world.leave()
