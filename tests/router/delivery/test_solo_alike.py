"""One sender and one receiver with little credit: equal results of the fast path and of decided deliveries."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from amqpmesh.router.amqp.events import TransferReceived
from amqpmesh.router.delivery import arrival
from amqpmesh.router.telemetry.schema import Kind
from tests.router.delivery.test_fast_routes_alike import Dice, LevelBench, check
from tests.support.data.recordings import Records


class SoloDice(Dice):
    """The random choices of a history of addresses with one sender and one receiver each."""

    #: Handles of links to such addresses: of mode first, and of mode second.
    HANDLES = (2, 3)

    def world(self, *, at_once: bool) -> dict[str, Any]:
        """Return the settings of routers and links. Args: at_once: see `Wired`."""
        credit = self.random.choice([1, 1, 2, 3, 5])
        return {**super().world(at_once=at_once), "consumers": [(2, 2), (3, 3)], "credit": credit}

    def delivery(self) -> dict[str, Any]:
        """Return a delivery to send."""
        handle = self.random.choice(self.HANDLES)
        return {**super().delivery(), "handle": handle, "frames": self.usually(1, 2), "held": self.usually(0, 1)}

    def _send(self) -> tuple[Any, ...]:
        deliveries = [self.delivery() for _ in range(self.random.randint(1, 3))]
        return "send", 0, deliveries, self._cuts()

    def _credit(self) -> tuple[Any, ...]:
        handle = self.random.choice(self.HANDLES)
        # From the receiver of the address, as a rule; little, as a rule.
        credit = self.usually(self.random.randint(1, 3), 0, 20)
        return "credit", handle, handle, credit, 1000, self.usually(False, True), self.usually(0, -1)

    def _attach(self) -> tuple[Any, ...]:
        return "attach", self.random.randrange(4), self.usually(0, *self.HANDLES)

    def _detach(self) -> tuple[Any, ...]:
        return "detach", self.random.randrange(4), self.random.choice(self.HANDLES), self.random.random() < 0.5


class FewDice(SoloDice):
    """The random choices of a history of addresses with one sender and one or two receivers each."""

    def world(self, *, at_once: bool) -> dict[str, Any]:
        """Return the settings of routers and links. Args: at_once: see `Wired`."""
        return {**super().world(at_once=at_once), "consumers": [(2, 2), (3, 2), (2, 3), (3, 3)]}

    def _credit(self) -> tuple[Any, ...]:
        name, _, *rest = super()._credit()
        return name, self.random.randint(2, 3), *rest

    def _attach(self) -> tuple[Any, ...]:
        return "attach", self.random.randrange(4), self.random.choice(self.HANDLES)


class SoloBench(LevelBench):
    """A bench that looks at the statistics in the end alone: they have deliveries received that are held back."""

    def note(self, name: str) -> None:
        """Note the frames that each peer has got in a step."""
        if name == "end" and all(peer.lost for peer in self.peers):
            super().note(name)
            return
        seen = []
        for peer in self.peers:
            noted = peer.take()
            ways = [(handle, way.count, way.limit, way.attached) for handle, way in sorted(peer.ways.items())]
            seen.append((noted.transfers, noted.frames, sorted(noted.dispositions.items()), ways, peer.lost))
        in_flight = self.networks[0].core.context.in_flight
        self.log.append((name, seen, [{"in_flight": in_flight}]))


@pytest.mark.parametrize("odd", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("seed", range(40))
def test_one_sender_and_one_receiver_get_the_same_frames_on_the_fast_path(seed: int, odd: float) -> None:
    dice = SoloDice(seed, odd)
    world = dice.world(at_once=False)
    check(world, dice.steps(60, at_once=False), mesh=False, bench=SoloBench)


@pytest.mark.parametrize("odd", [0.0, 0.1])
@pytest.mark.parametrize("seed", range(20))
def test_so_do_one_sender_and_few_receivers(seed: int, odd: float) -> None:
    dice = FewDice(seed, odd)
    check(dice.world(at_once=False), dice.steps(60, at_once=False), mesh=False, bench=SoloBench)


@pytest.mark.parametrize("histories", [SoloDice, FewDice])
def test_the_histories_hold_deliveries_back_and_receive_some_of_them_as_others(
    histories: type[SoloDice],
) -> None:
    received = 0

    def counted(context: Any, event: TransferReceived, came_at: float | None = None) -> None:
        nonlocal received
        received += 1
        transfer_received(context, event, came_at)

    transfer_received = arrival.transfer_received
    with patch.object(arrival, "transfer_received", counted):
        for seed in range(8):
            dice = histories(seed, 0.05)
            check(dice.world(at_once=False), dice.steps(60, at_once=False), mesh=False, bench=SoloBench)
    assert received > 4


class RecordingBench(SoloBench):
    """A bench whose router records: the events of each step, and in the end its hop records."""

    records: Records | None = None
    credits = 0
    _noted = 0

    def run(self) -> None:
        """Carry octets; at first begin to record."""
        if self.records is None:
            self.records = Records(self.networks[0].core, credit_wait=0.005)
        super().run()

    def note(self, name: str) -> None:
        """Note what each peer has got in a step, and what the router has recorded."""
        assert self.records is not None
        events = self.records.taken[Kind.EVENT][self._noted :]
        self._noted += len(events)
        RecordingBench.credits += sum(each["happening"] == "credit" for each in events)
        self.log.append((name, [], events))
        if name == "end":
            # The number of a delivery is given when it leaves, or when it is decided.
            self.log.append((name, [], sorted(sorted({**each, "counter": 0}.items()) for each in self.records.hops)))
        super().note(name)


def test_the_same_is_recorded_of_them() -> None:
    RecordingBench.credits = 0
    for seed in range(12):
        dice = SoloDice(seed, 0.1 * (seed % 2))
        check(dice.world(at_once=False), dice.steps(60, at_once=False), mesh=False, bench=RecordingBench)
    assert RecordingBench.credits > 20
