"""Lanes whose unsettled map fits into no frame: they come back in parts."""

from __future__ import annotations

import pytest

from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error, ReceiverSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted, DeliveryState, Modified, Rejected, Released
from amqpmesh.router.attach.reattaching import MOST_READ
from amqpmesh.router.config.file import AddressConfig
from amqpmesh.router.model.lasting_sources import Part, SuspendedSource
from amqpmesh.router.model.lasting_targets import SuspendedTarget
from amqpmesh.router.model.lasting_termini import SuspendedTerminus
from tests.support.worlds.frayed_wires import FIRST, LATE, NEWS, RESUME, SECOND, FrayedWire, tell
from tests.support.worlds.meshes import World
from tests.support.worlds.network import Arrival, message

SMALL = 2048
"""Octets of a frame: a map of some 30 deliveries."""

MANY = AddressConfig(pattern="q", max_unsettled=20_000, max_credit=20_000)
ACCEPTED = Accepted()
IN_DOUBT = Modified(delivery_failed=True)


class Story:
    """A sender at A and a receiver at B, which decides nothing yet."""

    def __init__(
        self, mode: ReceiverSettleMode = SECOND, *, count: int = 200, frames: int = SMALL, address: str = "q"
    ) -> None:
        self.world = World("AB", [("A", "B")], MANY, NEWS, mesh=RESUME, max_frame_size=frames)
        self.consumer, self.producer = self.world["B"].client(), self.world["A"].client()
        self.consumer.receiver(address, credit=2 * count, rcv=mode)
        self.world.advance(0.2)
        self.link = self.producer.sender(address, rcv=mode)
        self.world.advance(0.2)
        self.sent = [self.producer.send(self.link, message(number)) for number in range(count)]
        self.world.advance(0.1)
        self.came = self.consumer.take(count)

    def cut(self) -> None:
        """Lose the connection; each router sees its end."""
        self.world.cut(*self.world.between("A", "B"))

    def join(self, seconds: float = 1.0) -> None:
        """Connect the routers again."""
        self.world.join("A", "B")
        self.world.advance(seconds)

    def heard(self) -> list[DeliveryState | None]:
        """Return the outcome that each message has; None: none yet."""
        self.world.run()
        return [each.outcome for each in self.sent]

    def accept(self, arrivals: list[Arrival]) -> None:
        """Accept messages, and leave them unsettled."""
        for each in arrivals:
            each.dispose(ACCEPTED, settled=False)
        self.world.advance(0.1)

    def leave(self) -> None:
        """Settle all, and assert that nothing is left."""
        for each in self.sent:
            if not each.delivery.settled:
                each.dispose(None, settled=True)
        self.world.advance(LATE)
        self.world.leave()


def kept_by(story: Story, router: str) -> list[SuspendedTerminus]:
    """Return what a router keeps of lanes."""
    return list(story.world[router].core.context.termini.kept())


@pytest.mark.parametrize("address", ["q", "news/x"])
@pytest.mark.parametrize("mode", [FIRST, SECOND])
def test_all_of_it_goes_on_after_a_cut(mode: ReceiverSettleMode, address: str) -> None:
    story = Story(mode, address=address)
    story.cut()
    story.join()
    assert story.heard() == [None] * 200
    story.accept(story.came)
    assert story.heard() == [ACCEPTED] * 200
    assert story.consumer.take() == []
    story.leave()


def test_five_thousand_deliveries_of_one_lane_are_not_in_doubt() -> None:
    story = Story(count=5000, frames=32 * 1024)
    story.accept(story.came[:1000])
    story.cut()
    story.accept(story.came[4000:])
    story.join()
    assert story.heard() == [ACCEPTED] * 1000 + [None] * 3000 + [ACCEPTED] * 1000
    story.accept(story.came[1000:4000])
    assert story.heard() == [ACCEPTED] * 5000
    assert story.consumer.take() == []
    story.leave()


def test_more_deliveries_than_a_router_reads_of_one_map_are_not_in_doubt_though_a_frame_has_room_for_all() -> None:
    story = Story(count=MOST_READ + 300, frames=2**20)
    story.cut()
    story.join()
    assert story.heard() == [None] * len(story.sent)
    story.accept(story.came[MOST_READ - 300 :])
    assert story.heard() == [None] * (MOST_READ - 300) + [ACCEPTED] * 600
    assert story.consumer.take() == []
    story.leave()


@pytest.mark.parametrize(("mode", "lost"), [(SECOND, Released()), (FIRST, IN_DOUBT)])
def test_what_did_not_come_to_the_neighbour_is_known_by_each_part(
    mode: ReceiverSettleMode, lost: DeliveryState
) -> None:
    story = Story(mode, count=100)
    (wire,) = story.world.between("A", "B")
    wire.frozen = True
    story.sent += [story.producer.send(story.link, message(number)) for number in range(100, 200)]
    story.cut()
    story.join()
    assert story.heard() == [None] * 100 + [lost] * 100
    story.accept(story.came)
    assert story.heard() == [ACCEPTED] * 100 + [lost] * 100
    assert story.consumer.take() == []
    story.leave()


def test_what_the_sender_has_settled_meanwhile_is_settled_at_the_receiver() -> None:
    story = Story()
    story.accept(story.came)
    (wire,) = story.world.between("A", "B")
    wire.frozen = True
    for each in story.sent[::2]:
        each.dispose(None, settled=True)
    story.cut()
    for each in story.sent[1:100:2]:
        each.dispose(None, settled=True)
    story.join()
    assert [each.delivery.remote_settled for each in story.came] == [True, True] * 50 + [True, False] * 50
    story.leave()


def test_outcomes_that_are_long_are_heard_though_the_answer_has_no_room_for_them() -> None:
    story = Story()
    why = Error(condition=AmqpCondition.NOT_ALLOWED, description="x" * 30)
    story.cut()
    for each in story.came:
        each.dispose(Rejected(error=why), settled=False)
    story.join()
    assert story.heard() == [Rejected(error=why)] * 200
    story.leave()


@pytest.mark.parametrize("octets", range(900, 15_000, 2300))
@pytest.mark.parametrize("side", ["A", "B"])
def test_a_connection_that_is_cut_amid_the_parts_changes_nothing(side: str, octets: int) -> None:
    story = Story(count=120)
    story.accept(story.came[:50])
    story.cut()
    story.accept(story.came[90:])
    wire = FrayedWire(story.world, "A", "B", {side: octets})
    story.world.add(wire)
    story.world.advance(0.5)
    story.accept(story.came[70:90])
    if wire in story.world.wires:
        story.world.cut(wire)
    story.join()
    assert story.heard() == [ACCEPTED] * 50 + [None] * 20 + [ACCEPTED] * 50
    story.accept(story.came[50:70])
    assert story.heard() == [ACCEPTED] * 120
    assert story.consumer.take() == []
    story.leave()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("how", ["anycast", "tree", "transit"])
def test_of_mode_second_nothing_is_in_doubt_and_nothing_comes_twice(how: str, seed: int) -> None:
    kinds = tell(100 + seed, SECOND, how=how, most=20, credit=100, max_frame_size=1024)
    assert kinds <= {Accepted, Released}


@pytest.mark.parametrize("seed", range(2))
def test_of_mode_first_no_outcome_is_false(seed: int) -> None:
    tell(100 + seed, FIRST, most=20, credit=100, max_frame_size=1024)


def test_parts_may_take_longer_than_lanes_are_kept_also_once_a_connection_was_reset() -> None:
    story = Story()
    story.cut()
    story.world.latency = lambda: 0.1
    wire = story.world.join("A", "B")
    story.world.advance(0.6)
    (source,) = (each for each in kept_by(story, "A") if isinstance(each, SuspendedSource))
    assert source.part is not None
    wire.latency = 1.3
    story.world.advance(40.0)
    assert story.heard() == [None] * 200
    story.accept(story.came)
    story.world.advance(4.0)
    assert story.heard() == [ACCEPTED] * 200
    assert story.consumer.take() == []
    wire.latency = 0.0
    story.leave()


def test_a_neighbour_that_has_begun_anew_knows_nothing_of_any_part() -> None:
    story = Story()
    story.world.kill("B")
    story.world.advance(0.2)
    story.world.start("B")
    story.join()
    assert story.heard() == [IN_DOUBT] * 200
    story.leave()


def test_a_part_whose_time_is_over_at_the_neighbour_is_in_doubt_and_not_released() -> None:
    story = Story()
    story.cut()
    wire = FrayedWire(story.world, "A", "B", {"B": 900})  # the answer to the first part is lost
    story.world.add(wire)
    story.world.advance(0.5)
    story.world.cut(wire)
    termini = story.world["B"].core.context.termini
    kept = sorted(termini.kept(), key=lambda each: each.unsettled)
    assert [each.unsettled > 0 for each in kept] == [True, True]
    termini.end(kept[0], "for the test")
    story.join()
    assert story.heard() == [IN_DOUBT] * 200
    assert story.consumer.take() == []
    story.leave()


def test_a_part_fits_into_the_frames_of_the_next_connection_or_is_in_doubt() -> None:
    story = Story()
    story.cut()
    wire = FrayedWire(story.world, "A", "B", {"B": 900})
    story.world.add(wire)
    story.world.advance(0.5)
    story.world.cut(wire)
    story.world.max_frame_size = 1024
    story.join()
    assert story.heard() == [IN_DOUBT] * 200
    story.leave()


def test_nothing_stays_of_parts_without_any_delivery_however_many_a_neighbour_asks_for() -> None:
    story = Story(count=20)
    story.cut()
    (of,) = (each.key[4] for each in kept_by(story, "A"))
    for number in range(9):
        (source,) = kept_by(story, "A")
        assert isinstance(source, SuspendedSource)
        source.part = Part(f"part {number}", [])
        wire = FrayedWire(story.world, "A", "B", {"B": 600})  # so that each is asked for, and none is back
        story.world.add(wire)
        story.world.advance(0.5)
        story.world.cut(wire)
    assert len(kept_by(story, "B")) == 10
    (kept,) = (each for each in kept_by(story, "B") if each.key[4] == of)
    assert isinstance(kept, SuspendedTarget)
    assert kept.unsettled == 20
    assert not kept.parts
    story.join()
    story.accept(story.came)
    assert story.heard() == [ACCEPTED] * 20
    story.leave()
