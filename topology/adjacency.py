"""Adjacencies: connections to a neighbour on which HELLOs are exchanged; and the damping of unstable ones."""

from collections.abc import Hashable
from math import log2
from typing import NamedTuple

from amqpmesh.topology.messages import Hello, SeenRouter


class Link(NamedTuple):
    """The public view of an adjacency."""

    adjacency: Hashable
    router: str
    """The neighbour's id; empty before its first HELLO."""
    cost: int
    up: bool
    advertised: bool
    """True if this router advertises it: it is up and not damped, and the neighbour's database has arrived."""
    reason: str
    """The reason why it is not advertised; empty if it is."""


class Adjacency:
    """The state of one connection to a neighbour.

    It is *up* (two-way) while HELLOs of the neighbour arrive and list this router as seen. It is *contested* while
    another adjacency is up to a router with the same id and another epoch: one of the two routers is gone, or the mesh
    has two routers with one id.
    """

    __slots__ = (
        "changed_cost",
        "configured_cost",
        "contested_at",
        "damped_until",
        "epoch",
        "expected",
        "hold",
        "is_two_way",
        "name",
        "number",
        "refused",
        "remote_cost",
        "router",
        "up",
    )

    def __init__(self, name: Hashable, cost: int | None, expected: str | None, number: int) -> None:
        """Args: cost: the configured one, if there is one. expected: the authenticated id of the neighbour, if there is
        one. number: counts adjacencies.
        """
        self.name = name
        self.configured_cost = cost
        self.changed_cost: int | None = None
        self.remote_cost: int | None = None  # the cost that the neighbour's configuration has for its own direction
        self.expected = expected
        self.number = number
        self.router = ""
        self.epoch = 0
        self.hold = 0.0  # seconds without a HELLO after which the neighbour is gone
        self.is_two_way = False  # the neighbour's last HELLO lists this router
        self.up = False
        self.refused = False
        self.contested_at: float | None = None
        self.damped_until: float | None = None

    @property
    def cost(self) -> int:
        """The cost of sending to the neighbour: as it was changed, or configured here, or else at the other end."""
        return self.changed_cost or self.configured_cost or self.remote_cost or 1

    def set_cost(self, cost: int | None, *, configured: bool) -> bool:
        """Change the cost of sending to the neighbour. Returns: whether it was another one.

        Args: configured: it takes the place of the configured cost, and of a changed one; the next HELLO tells it.
            cost: None: the configuration has none.
        """
        before = self.cost
        if configured:
            self.configured_cost, self.changed_cost = cost, None
        else:
            self.changed_cost = cost
        return self.cost != before

    @property
    def advertised(self) -> bool:
        """True if this adjacency can be advertised: it is up, and not damped."""
        return self.up and self.damped_until is None

    @property
    def seen(self) -> SeenRouter | None:
        """The neighbour that a HELLO lists as seen; None: it has sent none, or the adjacency is contested."""
        return SeenRouter(self.router, self.epoch) if self.router and self.contested_at is None else None

    def refusal(self, hello: Hello, router: str, epoch: int) -> str | None:
        """Return the reason why the sender of a HELLO cannot be a neighbour; None: it can."""
        if hello.router == router:
            return "it is this router itself" if hello.epoch == epoch else f"another live router has the id {router}"
        if self.expected is not None and hello.router != self.expected:
            return f"its HELLO names {hello.router}, but it was authenticated as {self.expected}"
        if self.router not in ("", hello.router):
            return f"its HELLO names {hello.router}, but named {self.router} before"
        return None

    def is_up_to(self, router: str) -> bool:
        """Tell whether the adjacency is up to that router."""
        return self.up and self.router == router


class Damping:
    """The recent losses of each neighbour; the number decays by half in each half-life."""

    def __init__(self, half_life: float, most: float) -> None:
        self._half_life = half_life
        self._most = most
        self._penalties: dict[str, tuple[float, float]] = {}  # by router: the penalty, and its time

    def penalty(self, router: str, now: float) -> float:
        """Return the present penalty of a router."""
        penalty, at = self._penalties.get(router, (0.0, now))
        return float(penalty * 0.5 ** ((now - at) / self._half_life))

    def add(self, router: str, penalty: float, now: float) -> None:
        """Add a loss."""
        self._penalties[router] = min(self.penalty(router, now) + penalty, self._most), now

    def falls_to(self, router: str, penalty: float, now: float) -> float:
        """Return the time when the penalty of a router will have decayed to `penalty`; `now` if it has already."""
        excess = self.penalty(router, now) / penalty
        return now + self._half_life * log2(excess) if excess > 1 else now

    def forget(self, now: float) -> None:
        """Forget the penalties that have decayed to almost nothing."""
        self._penalties = {router: kept for router, kept in self._penalties.items() if self.penalty(router, now) > 0.01}
