"""`amqpmesh demo`: a mesh of five routers, one of which is killed while it carries messages."""

import argparse
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Final

import trio

from amqpmesh.router.amqp.errors import AmqpMeshError, CommandError
from amqpmesh.router.cli import arguments
from amqpmesh.router.cli.exit_status import EPILOG, Exit
from amqpmesh.router.cli.output.demo_screen import DemoScreen, MiddleRouter, View
from amqpmesh.router.cli.output.summary import duration
from amqpmesh.router.cli.process.daemons import CLIENTS, NEIGHBOURS, Daemon, Daemons, daemons
from amqpmesh.router.cli.process.interruptible import PeerTimeout, run_interruptible
from amqpmesh.router.cli.router_state import entities_of
from amqpmesh.router.cli.traffic import IN_DOUBT, NOT_ACCEPTED, Traffic
from amqpmesh.router.client.connect import connect
from amqpmesh.router.management.entities import PREFIX
from amqpmesh.router.management.queries import query
from amqpmesh.router.management.service import ADDRESS as MANAGEMENT
from amqpmesh.router.statistics.common import Direction

COUNT: Final = 20_000
"""Messages by default: a quarter of a minute on two cores."""

TIME_OUT: Final = 60.0
"""Seconds without progress by default; the start takes longest."""

ADDRESS: Final = "demo"

CREDIT: Final = 1_000
"""The receiver's credit."""

PERIOD: Final = 0.2
"""Seconds between two queries of a router's deliveries."""

FRAME: Final = 0.1
"""Seconds between two pictures, and between two checks of a condition of the story."""

MIDDLE: Final[Mapping[str, int]] = {"B": 1, "C": 2}
"""The routers between A and D, with the cost of their links; one of them is killed. The costs make messages go by B."""

LEAST: Final = 100
"""Messages at least; fewer would be over before anything can be seen."""

Work = Callable[[], Awaitable[None]]

STARTS, KILLED = "starts", "killed"

_LANES: Final = query(f"{PREFIX}lane")


def declare(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    command.description = (
        "Run five routers on this machine, each in a process. A sender is connected to A and a receiver to E. Two "
        "paths lead from A to E: A-B-D-E and A-C-D-E. The demo kills (SIGKILL) the router that carries the messages, "
        "B or C, and shows that they take the other path. It sends the messages again that were not accepted or are "
        "in doubt. The receiver drops duplicates by their message-id. Then the demo restarts the router. At the end "
        "it prints the number of messages that were accepted, lost and received twice, and stops all routers."
    )
    command.epilog = f"{EPILOG} The demo fails, too, if a message is lost, or arrives twice without being in doubt."
    command.add_argument(
        "--count", metavar="N", type=arguments.count, default=COUNT, help=f"messages to send; default: {COUNT:,}"
    )
    command.add_argument(
        "--timeout",
        metavar="S",
        type=arguments.seconds,
        default=TIME_OUT,
        help=f"stop after so many seconds without progress; default: {TIME_OUT:g}",
    )
    command.set_defaults(command=demo)


def demo(given: argparse.Namespace) -> int:
    """Run the demo. Returns: 0 if no message is lost, else 1. Raises: AmqpMeshError, OSError."""
    if given.count < LEAST:
        raise CommandError(f"--count: must be at least {LEAST}, or there is nothing to see")
    return trio.run(_Demo(given.count, given.timeout).run)


class _Middle:
    """One of the two routers in the middle, and the deliveries that it reports."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.state = STARTS
        self._lives = 0
        #: Deliveries of all its runs; and deliveries a second.
        self.relayed = 0
        self.rate = 0.0

    @property
    def view(self) -> MiddleRouter:
        """The router's state, for the screen."""
        return MiddleRouter(self.id, self.state, self.relayed, self.rate)

    async def watch(self, url: str) -> None:
        """Poll its `$management` until the router is killed. Raises: AmqpMeshError: polling failed before."""
        self.state = ""
        life = self._lives
        counts: dict[int, int] = {}
        try:
            async with connect(url) as connection, connection.requester(MANAGEMENT) as management:
                while True:
                    began, before = time.monotonic(), self.relayed
                    for lane in entities_of(await management.request(_LANES))["lane"]:
                        if lane["direction"] == Direction.OUTGOING:
                            self.relayed += lane["deliveries"] - counts.get(lane["number"], 0)
                            counts[lane["number"]] = lane["deliveries"]
                    await trio.sleep(PERIOD)
                    self.rate = (self.relayed - before) / (time.monotonic() - began)
        except AmqpMeshError:
            if self._lives == life:
                raise
        finally:
            self.rate = 0.0

    def end(self) -> None:
        """Mark the router as killed. `watch` may notice that only after the router's restart."""
        self.state = KILLED
        self._lives += 1


class _Demo:
    """One run of the demo."""

    def __init__(self, count: int, timeout: float) -> None:
        self._traffic = Traffic(count)
        self._stage = DemoScreen(sys.stdout)
        self._patience = PeerTimeout(timeout)
        self._middle = {router: _Middle(router) for router in MIDDLE}
        self._neighbours: dict[str, str] = {}
        self._failure: AmqpMeshError | OSError | None = None

    async def run(self) -> int:
        """Run, and print the result. Returns, Raises: as `demo`."""
        try:
            await run_interruptible(self._show, self._patience)
        except BaseException:
            self._stage.clear()
            raise
        self._stage.draw(self._view())
        return conclude(self._traffic, self._stage)

    async def _show(self) -> None:
        self._patience.wait("routers to start")
        async with daemons() as routers:
            self._stage.say("five routers start, each in a process; paths: A-B-D-E and A-C-D-E")
            clients = await self._start(routers)
            self._patience.wait("a message to cross the mesh")
            async with (
                connect(clients["E"]) as far,
                connect(clients["A"]) as near,
                far.receiver(ADDRESS, credit=CREDIT) as receiver,
                near.sender(ADDRESS) as sender,
                trio.open_nursery() as nursery,
            ):

                def start(work: Work) -> None:
                    nursery.start_soon(self._guard, work, nursery.cancel_scope)

                start(self._draw)
                for middle in self._middle.values():
                    start(partial(middle.watch, clients[middle.id]))
                start(partial(self._traffic.receive, receiver))
                start(partial(self._traffic.send, sender))
                await self._guard(partial(self._story, routers, start), nursery.cancel_scope)
                nursery.cancel_scope.cancel()
            if self._failure is not None:
                raise self._failure

    async def _start(self, routers: Daemons) -> Mapping[str, str]:
        """Start all routers. Returns: the URLs for clients, by router."""
        ends = [routers.start(each) for each in "AD"]
        urls = {each.id: await each.listening() for each in ends}
        self._neighbours = {each: listeners[NEIGHBOURS] for each, listeners in urls.items()}
        rest = [self._start_middle(routers, each) for each in MIDDLE]
        rest.append(routers.start("E", (self._neighbours["D"], 1)))
        urls.update({each.id: await each.listening() for each in rest})
        return {each: listeners[CLIENTS] for each, listeners in urls.items()}

    def _start_middle(self, routers: Daemons, router: str) -> Daemon:
        return routers.start(router, *((self._neighbours[end], MIDDLE[router]) for end in "AD"))

    async def _story(self, routers: Daemons, start: Callable[[Work], None]) -> None:
        """Play the demo from start to end. Args: start: starts a task beside it."""
        traffic, say, middle = self._traffic, self._stage.say, self._middle.values()
        count = traffic.count
        # However few messages there are, and however slowly routers start: some are sent before each event of the
        # story, some after.
        traffic.allow(count // 6)
        await self._wait_until(lambda: traffic.accepted > 0)
        say(f"{count:,} messages go from A to E, each to be accepted by the receiver")
        await self._wait_until(lambda: any(each.relayed for each in middle))
        traffic.allow(count // 2)
        await self._wait_until(lambda: traffic.accepted >= count // 3)

        victim = max(middle, key=lambda each: each.relayed)
        (other,) = (each for each in middle if each is not victim)
        say(f"they go through {victim.id}: its {MANAGEMENT} counts {victim.relayed:,} relayed messages")
        before = other.relayed
        victim.end()
        process, hit = routers.kill(victim.id), traffic.on_their_way
        # Not earlier: all sent messages, and their outcomes, may have passed the victim.
        traffic.allow(count * 5 // 6)
        say(f"{victim.id} is killed (SIGKILL, process {process}) with {hit:,} messages in flight", "bad")
        await self._wait_until(lambda: other.relayed > before)
        # The other router is queried only periodically: all allowed messages may have arrived by now.
        arrived = traffic.arrived
        traffic.allow(count * 11 // 12)
        await self._wait_until(lambda: traffic.arrived > arrived)
        say(f"they go through {other.id}; {traffic.again.total():,} are sent again", "good")

        await self._wait_until(lambda: traffic.accepted >= count // 2)
        victim.state = STARTS
        say(f"{victim.id} is started again, with the same id")
        listeners = await self._start_middle(routers, victim.id).listening()
        before = victim.relayed
        start(partial(victim.watch, listeners[CLIENTS]))
        traffic.allow(count)
        await self._wait_until(lambda: victim.relayed > before or traffic.is_over)
        if victim.relayed > before:
            say(f"they go through {victim.id} again", "good")
        await self._wait_until(lambda: traffic.is_over)

    async def _wait_until(self, is_so: Callable[[], bool]) -> None:
        accepted = self._traffic.accepted
        while not is_so():
            await trio.sleep(FRAME / 5)
            if self._traffic.accepted != accepted:
                accepted = self._traffic.accepted
                self._patience.progress()

    async def _guard(self, work: Work, rest: trio.CancelScope) -> None:
        """Run `work`, and cancel the rest if it fails: errors are then reported plainly, not as groups."""
        try:
            await work()
        except (AmqpMeshError, OSError) as error:
            self._failure = error
            rest.cancel()

    async def _draw(self) -> None:
        while self._stage.is_live:
            self._stage.draw(self._view())
            await trio.sleep(FRAME)

    def _view(self) -> View:
        upper, lower = self._middle.values()
        return View(upper.view, lower.view, self._traffic.accepted, self._traffic.count)


def conclude(traffic: Traffic, stage: DemoScreen) -> int:
    """Print the summary. Returns: 0 if no message is lost, and only messages in doubt came twice, else 1."""
    for sentence in sentences(traffic):
        stage.say(sentence)
    stage.conclude(summary(traffic), good=traffic.is_sound)
    return Exit.DONE if traffic.is_sound else Exit.FAILED


def sentences(traffic: Traffic) -> Iterator[str]:
    """Yield sentences that explain the numbers of the summary."""
    again = traffic.again
    if again[IN_DOUBT]:
        yield f"{again[IN_DOUBT]:,} in doubt were sent again; {traffic.dropped:,} arrived twice, dropped by message-id"
    if again[NOT_ACCEPTED]:
        yield f"{again[NOT_ACCEPTED]:,} were not accepted, and were sent again"
    if traffic.rejected:
        yield f"{traffic.rejected:,} were rejected"
    if traffic.irregular:
        yield f"{traffic.irregular:,} arrived twice without being in doubt"


def summary(traffic: Traffic) -> str:
    """Return the last line."""
    return (
        f"sent {traffic.sent:,} accepted {traffic.accepted:,} lost {traffic.lost:,} twice {traffic.twice:,} "
        f"longest pause {duration(traffic.longest_pause)}"
    )
