"""One connection to a neighbour, and whether both sides hear each other on it."""

from collections.abc import Hashable
from math import log2

from amqpmesh.topology.messages import Hello, SeenRouter


class Adjacency:
    """What is known of the router at the other end of a connection.

    It is *up* while the other one's HELLOs come and say that ours do. An adjacency is *contested* while another one is
    up to a router of the same id and another life: one of the two must be gone, or the mesh has two routers of that id.
    """

    __slots__ = (
        "contested_at",
        "cost",
        "damped_until",
        "epoch",
        "expected",
        "hold",
        "is_two_way",
        "name",
        "number",
        "refused",
        "router",
        "up",
    )

    def __init__(self, name: Hashable, cost: int, expected: str | None, number: int) -> None:
        """Args: expected: the router that it must be. number: adjacencies are numbered as they come."""
        self.name = name
        self.cost = cost
        self.expected = expected
        self.number = number
        self.router = ""
        self.epoch = 0
        self.hold = 0.0  # seconds for which nothing may be heard of it
        self.is_two_way = False  # by the other one, as its last HELLO says
        self.up = False
        self.refused = False
        self.contested_at: float | None = None
        self.damped_until: float | None = None

    @property
    def advertised(self) -> bool:
        """Whether it counts, as far as it is concerned."""
        return self.up and self.damped_until is None

    @property
    def seen(self) -> SeenRouter | None:
        """Whom it hears, for the HELLO; while it is contested, it hears nobody."""
        return SeenRouter(self.router, self.epoch) if self.router and self.contested_at is None else None

    def refusal(self, hello: Hello, router: str, epoch: int) -> str | None:
        """Why it cannot be an adjacency of this router, if so."""
        if hello.router == router:
            return "it is this router itself" if hello.epoch == epoch else f"another live router has the id {router}"
        if self.expected is not None and hello.router != self.expected:
            return f"it says that it is {hello.router}, but it has shown that it is {self.expected}"
        if self.router not in ("", hello.router):
            return f"it says that it is {hello.router}, but it was {self.router} before"
        return None

    def is_up_to(self, router: str) -> bool:
        """Whether it is up, and to that router."""
        return self.up and self.router == router


class Damping:
    """How often each neighbour was lost of late, in losses that decay by half in each half-life."""

    def __init__(self, half_life: float, most: float) -> None:
        self._half_life = half_life
        self._most = most
        self._penalties: dict[str, tuple[float, float]] = {}  # by router, and when it was that much

    def penalty(self, router: str, now: float) -> float:
        """What has not decayed yet."""
        penalty, at = self._penalties.get(router, (0.0, now))
        return float(penalty * 0.5 ** ((now - at) / self._half_life))

    def add(self, router: str, penalty: float, now: float) -> None:
        """A loss."""
        self._penalties[router] = min(self.penalty(router, now) + penalty, self._most), now

    def falls_to(self, router: str, penalty: float, now: float) -> float:
        """When it will be no more than that; `now` if it is not more."""
        excess = self.penalty(router, now) / penalty
        return now + self._half_life * log2(excess) if excess > 1 else now

    def forget(self, now: float) -> None:
        """Drop what has decayed to nothing worth knowing."""
        self._penalties = {router: kept for router, kept in self._penalties.items() if self.penalty(router, now) > 0.01}
