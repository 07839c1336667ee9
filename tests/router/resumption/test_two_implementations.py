"""The same histories told to two implementations of resumption: our client, and a raw peer written from the standard.

Each step waits until all is quiet. Both must hear the same of each message, and as much must be processed.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh.router.amqp.errors import InDoubtError
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified, Rejected, Released
from amqpmesh.router.config.file import RouterConfig
from amqpmesh.router.config.resumption import ResumptionConfig
from amqpmesh.router.message.outcomes import OutcomeError
from amqpmesh.router.runtime.router import Router
from tests.support.peers.library_client import Roads
from tests.support.peers.raw_receiver import RawReceiver
from tests.support.peers.raw_sender import RawSender
from tests.support.tasks.calls import Call
from tests.support.worlds.network import Network, message
from tests.support.worlds.raw_lines import Line, Lines

if TYPE_CHECKING:
    from amqpmesh.router.client.connect import Connection
    from amqpmesh.router.client.delivery import Delivery
    from amqpmesh.router.client.receiver import Receiver

MODES = pytest.mark.parametrize("mode", ReceiverSettleMode)
SEEDS = pytest.mark.parametrize("seed", [1, 2, 6, 10])

#: Seconds that links are kept, and after which they are not.
KEPT: Final = 60
LATE: Final = KEPT + 40.0

#: A receiver's outcome for the undecided message of the lowest number; a message of the sender; a cut, and the return.
DECISIONS: Final = ("accept", "reject", "modify", "release")
STEPS: Final = ("send", "send", *DECISIONS, "cut", "back", "late")


def history(seed: int, *, releases: bool) -> list[str]:
    """Return the steps of a history. Args: releases: both senders send again what was released."""
    chance = random.Random(seed)
    steps = [each for each in STEPS if releases or each != "release"]
    return ["send", *(chance.choice(steps) for _ in range(30))]


def told(steps: list[str]) -> list[str]:
    """Return the steps that change anything: who is away cannot be cut off, and who is there does not come back."""
    is_away, found = False, []
    for step in steps:
        if step == "cut":
            if not is_away:
                found.append(step)
            is_away = True
        elif step in ("back", "late"):
            if is_away:
                found.append(step)
            is_away = False
        else:
            found.append(step)
    return [*found, "back"] if is_away else found


class Raw:
    """A raw sender and a raw receiver at a router, one of which is cut off now and then."""

    def __init__(self, mode: ReceiverSettleMode, *, sends: bool) -> None:
        """Args: sends: it is the sender."""
        network = Network()
        self.sender = RawSender("p", "q", mode, timeout=KEPT)
        self.receiver = RawReceiver("c", "q", mode, credit=100, timeout=0 if sends else KEPT, decides=False)
        self._sending, self._receiving = Line(self.sender, network), Line(self.receiver, network)
        self._all = Lines(self._sending, self._receiving)
        self._failing = self._sending if sends else self._receiving
        self._all.connect()
        self._all.run()

    def tell(self, steps: list[str]) -> tuple[list[list[str]], list[int]]:
        """Tell a history to its end. Returns: what was heard of each message, and the messages that were accepted."""
        for step in told(steps):
            if step == "send":
                self.sender.submit(message(str(len(self.sender.messages))))
            elif step == "cut":
                self._failing.cut()
            elif step in ("back", "late"):
                if step == "late":
                    self._all.advance(LATE)
                self._failing.connect()
            else:
                self._decide(step)
            self._all.run()
        while self._decide("accept"):
            self._all.run()
        numbers = {message(str(number)): number for number in range(len(self.sender.messages))}
        return self.sender.heard(), sorted(numbers[each] for each in self.receiver.processed)

    def _decide(self, how: str) -> bool:
        """Give the first undecided message an outcome. Returns: whether there was one."""
        taken = [
            each
            for each in self.receiver.handed
            if each.state is None and (each.tag in self.receiver.unsettled or self._failing is self._receiving)
        ]
        if not taken:
            return False
        first = min(taken, key=lambda each: (len(each.payload), each.payload))
        states = {"accept": Accepted(), "reject": Rejected(), "release": Released()}
        self.receiver.decide(first, states.get(how) or Modified(delivery_failed=True))
        return True


class Ours:
    """Our client at a router, which is cut off now and then, and its counterpart in the router's process."""

    def __init__(
        self, nursery: trio.Nursery, router: Router, roads: Roads, mode: ReceiverSettleMode, *, sends: bool
    ) -> None:
        self._nursery, self._router, self._roads, self._sends = nursery, router, roads, sends
        is_second = mode is ReceiverSettleMode.SECOND
        self._how: dict[str, object] = {"exactly_once": True} if is_second else {"resume": float(KEPT)}
        self._calls: list[Call[None]] = []
        self._undecided: list[Delivery] = []
        self._accepted: list[int] = []

    async def tell(self, connection: Connection, steps: list[str]) -> tuple[list[list[str]], list[int]]:
        """Tell a history, as `Raw.tell` does."""
        here, there = (self._router, connection) if not self._sends else (connection, self._router)
        async with (
            here.sender("q", **(self._how if self._sends else {})) as sender,
            there.receiver("q", credit=100, **({} if self._sends else self._how)) as receiver,
        ):
            failing = sender if self._sends else receiver
            for step in told(steps):
                if step == "send":
                    self._calls.append(Call(self._nursery, sender.send, str(len(self._calls))))
                elif step == "cut":
                    self._roads.close()
                    await self._roads.cut()
                elif step in ("back", "late"):
                    await trio.sleep(LATE if step == "late" else 0)
                    self._roads.lead_to(self._router)
                    while not failing.is_attached:
                        await trio.sleep(0.01)
                else:
                    self._decide(step)
                await self._quiet(receiver)
            while self._decide("accept"):
                await self._quiet(receiver)
        return [[await self._heard(call)] for call in self._calls], sorted(self._accepted)

    async def _quiet(self, receiver: Receiver) -> None:
        await wait_all_tasks_blocked()
        with suppress(trio.WouldBlock):
            while True:
                self._undecided.append(receiver.receive_nowait())

    def _decide(self, how: str) -> bool:
        if not self._undecided:
            return False
        first = min(self._undecided, key=lambda each: int(str(each.message.body)))
        self._undecided.remove(first)
        if how == "accept":
            self._accepted.append(int(str(first.message.body)))
        getattr(first, how)(**({"delivery_failed": True} if how == "modify" else {}))
        return True

    @staticmethod
    async def _heard(call: Call[None]) -> str:
        try:
            await call.result()
        except OutcomeError as error:
            return type(error.outcome).__name__.lower()
        except InDoubtError:
            return "doubt"
        return "accepted"


@pytest.mark.parametrize("sends", [True, False], ids=["senders", "receivers"])
@MODES
@SEEDS
async def test_what_is_heard_and_processed_is_the_same(
    nursery: trio.Nursery, autojump_clock: MockClock, mode: ReceiverSettleMode, sends: bool, seed: int
) -> None:
    steps = history(seed, releases=sends and mode is ReceiverSettleMode.SECOND)
    config = RouterConfig(resumption=ResumptionConfig(anonymous=True))
    roads = Roads(nursery)
    async with Router(config) as router:
        roads.lead_to(router)
        async with roads.connect(reconnect=True) as connection:
            ours = await Ours(nursery, router, roads, mode, sends=sends).tell(connection, steps)
    assert ours == Raw(mode, sends=sends).tell(steps)
