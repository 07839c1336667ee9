"""The HELLO protocol: discovery of neighbours, hold times, and refusal of false ones."""

from collections.abc import Callable, Hashable
from random import Random

from amqpmesh.policies.policy_version import PolicyVersion
from amqpmesh.topology.adjacency import Adjacency, Damping
from amqpmesh.topology.changes import Damped, NeighbourDown, NeighbourUp, Refused
from amqpmesh.topology.messages import Hello
from amqpmesh.topology.outbox import Outbox

MAX_HOLD_MS = 300_000
"""The longest hold time that a neighbour can ask for."""


class HelloProtocol:
    """The adjacencies of a router.

    `came_up` and `went_down` are called when an adjacency comes up or goes down; `advertised` when the link state may
    have changed; `policy` returns the policy that the router offers.
    """

    def __init__(
        self,
        outbox: Outbox,
        epoch: int,
        jitter: Random,
        came_up: Callable[[Adjacency, float], None],
        went_down: Callable[[Adjacency, float], None],
        advertised: Callable[[float], None],
        policy: Callable[[], PolicyVersion | None],
    ) -> None:
        self.adjacencies: dict[Hashable, Adjacency] = {}
        self._contested: dict[Adjacency, None] = {}
        self._outbox = outbox
        self._settings = outbox.settings
        self._timers = outbox.timers
        self._epoch = epoch
        self._jitter = jitter
        self._came_up = came_up
        self._went_down = went_down
        self._advertised = advertised
        self._policy = policy
        self._number = 0
        settings = outbox.settings
        self._damping = Damping(settings.penalty_half_life, settings.penalty_most)

    def connected(self, name: Hashable, cost: int | None, now: float, expected: str | None) -> None:
        """Start the HELLO protocol on a new connection.

        Raises: ValueError: there is an adjacency of that name.
        """
        if name in self.adjacencies:
            raise ValueError(f"there is an adjacency {name!r} already")
        self._number += 1
        adjacency = self.adjacencies[name] = Adjacency(name, cost, expected, self._number)
        self.send_hello(adjacency, now)

    def disconnected(self, name: Hashable, now: float) -> None:
        """End the adjacency of a lost connection; an unknown one is ignored."""
        adjacency = self.adjacencies.pop(name, None)
        if adjacency is None:
            return
        self._stop_timers(adjacency)
        if adjacency.up:
            self._take_down(adjacency, "the connection is gone", now)

    def send_hello(self, adjacency: Adjacency, now: float) -> None:
        """Send a HELLO, and set the timer for the next one."""
        settings = self._settings
        self._outbox.send(
            adjacency,
            Hello(
                self._outbox.router,
                self._epoch,
                round(settings.hold * 1000),
                adjacency.seen,
                settings.area,
                self._policy(),
                adjacency.configured_cost,
            ),
        )
        self._timers.set(("hello", adjacency), now + settings.hello * self._jitter.uniform(0.75, 1.0))

    def receive_hello(self, adjacency: Adjacency, hello: Hello, now: float) -> None:
        """Handle a HELLO."""
        refusal = adjacency.refusal(hello, self._outbox.router, self._epoch)
        if refusal is not None:
            self._refuse(adjacency, hello.router, refusal, now)
            return
        if adjacency.up and hello.epoch != adjacency.epoch:
            self._take_down(adjacency, "the neighbour has restarted", now)
        is_news = adjacency.router == "" or adjacency.epoch != hello.epoch
        adjacency.router, adjacency.epoch = hello.router, hello.epoch
        adjacency.hold = min(hello.hold_ms, MAX_HOLD_MS) / 1000
        self._timers.set(("hold", adjacency), now + adjacency.hold)
        cost_before, adjacency.remote_cost = adjacency.cost, hello.cost
        if adjacency.up and adjacency.cost != cost_before:
            self._advertised(now)
        adjacency.is_two_way = hello.seen is not None and hello.seen == (self._outbox.router, self._epoch)
        self._judge_rivals(adjacency, now)
        if not adjacency.up and self._holder(adjacency) is not None:
            if adjacency not in self._contested:
                adjacency.contested_at = now
                self._contested[adjacency] = None
            return
        self._uncontest(adjacency)
        if is_news:
            self.send_hello(adjacency, now)
        if adjacency.is_two_way and not adjacency.up:
            self._up(adjacency, now)
        elif adjacency.up and not adjacency.is_two_way:
            self._take_down(adjacency, "the neighbour does not hear this router", now)

    def note_traffic(self, adjacency: Adjacency, at: float) -> None:
        """Restart the hold time because some octets arrived. On a busy connection a HELLO can wait behind other
        messages."""
        if adjacency.up:
            self._timers.set(("hold", adjacency), at + adjacency.hold)

    def hold_time_over(self, adjacency: Adjacency, now: float) -> None:
        """Take an adjacency down after the hold time."""
        if adjacency.up:
            self._take_down(adjacency, "nothing arrived within the hold time", now)
        self._uncontest(adjacency)
        adjacency.router, adjacency.epoch = "", 0  # as before the first HELLO

    def undamp(self, adjacency: Adjacency, now: float) -> None:
        """Advertise an adjacency whose damping has ended."""
        adjacency.damped_until = None
        self._advertised(now)

    def sweep(self, now: float) -> None:
        """Forget decayed penalties."""
        self._damping.forget(now)

    def _holder(self, adjacency: Adjacency) -> Adjacency | None:
        """Return the adjacency that is up to the same router with another epoch; None: there is none."""
        router, epoch = adjacency.router, adjacency.epoch
        return next((each for each in self.adjacencies.values() if each.is_up_to(router) and each.epoch != epoch), None)

    def _rivals(self, router: str) -> list[Adjacency]:
        return [each for each in self._contested if each.router == router]

    def _uncontest(self, adjacency: Adjacency) -> None:
        adjacency.contested_at = None
        self._contested.pop(adjacency, None)

    def _stop_timers(self, adjacency: Adjacency) -> None:
        self._uncontest(adjacency)
        self._timers.cancel(("hello", adjacency))
        self._timers.cancel(("hold", adjacency))

    def _judge_rivals(self, adjacency: Adjacency, now: float) -> None:
        """Refuse the rivals of an adjacency, which has just received a HELLO.

        A rival is an adjacency to the same id with another epoch. After a contest of more than a HELLO interval, both
        routers are alive.
        """
        for rival in self._rivals(adjacency.router) if adjacency.up else ():
            if rival.contested_at is not None and now >= rival.contested_at + self._settings.hello:
                reason = f"two live routers have the id {rival.router}: this one came second"
                self._refuse(rival, rival.router, reason, now, adjacency.name)

    def _refuse(
        self, adjacency: Adjacency, router: str, reason: str, now: float, other: Hashable | None = None
    ) -> None:
        adjacency.refused = True
        self._stop_timers(adjacency)
        if adjacency.up:
            self._take_down(adjacency, reason, now)
        self._outbox.report(Refused(adjacency.name, router, reason, other))

    def _up(self, adjacency: Adjacency, now: float) -> None:
        adjacency.up = True
        settings = self._settings
        self._outbox.report(NeighbourUp(adjacency.name, adjacency.router))
        if self._damping.penalty(adjacency.router, now) >= settings.penalty_suppress:
            adjacency.damped_until = self._damping.falls_to(adjacency.router, settings.penalty_reuse, now)
            self._timers.set(("damped", adjacency), adjacency.damped_until)
            self._outbox.report(Damped(adjacency.name, adjacency.router, adjacency.damped_until))
        self._came_up(adjacency, now)

    def _take_down(self, adjacency: Adjacency, reason: str, now: float) -> None:
        adjacency.up = False
        adjacency.damped_until = None
        self._timers.cancel(("damped", adjacency))
        self._damping.add(adjacency.router, self._settings.penalty, now)
        self._outbox.report(NeighbourDown(adjacency.name, adjacency.router, reason))
        self._went_down(adjacency, now)
        for rival in self._rivals(adjacency.router):
            if self._holder(rival) is None:
                self._uncontest(rival)
                self.send_hello(rival, now)
                if rival.is_two_way:
                    self._up(rival, now)
