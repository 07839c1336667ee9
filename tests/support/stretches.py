"""A stretch of routers that looks like one: what holds over one router is to hold over many."""

from __future__ import annotations

from collections.abc import Callable

from amqpmesh.router.config import AddressConfig
from tests.support.meshes import World
from tests.support.network import Client, Network


class Stretch:
    """Several routers between the first client and all others, used as a `Network` is."""

    def __init__(self, world: World, first: str, others: str) -> None:
        """Args: first, others: the routers that the first client, and all others, are connected to."""
        self.world = world
        self._places = {True: world[first], False: world[others]}

    def client(self) -> Client:
        """Connect one more client."""
        nodes = self.world.nodes.values()
        return self._places[not any(node.clients for node in nodes)].client(f"client-{self.count}")

    @property
    def count(self) -> int:
        """How many clients there were."""
        return sum(len(node.clients) for node in self.world.nodes.values())

    @property
    def relays(self) -> int:
        """How many deliveries are in doubt; each counts once, however many routers it is at."""
        return max(node.core.relays for node in self.world.nodes.values())

    def run(self) -> None:
        """Carry bytes until nobody has any."""
        self.world.run()

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.world.advance(seconds)

    def leave(self) -> None:
        """Every client closes; then no delivery may be left, and nothing that waits."""
        self.world.close_clients()
        self.world.advance(1.0)
        self.world.check_ledgers()


Make = Callable[..., "Network | Stretch"]


def line(*addresses: AddressConfig) -> Stretch:
    """Three hops."""
    return Stretch(World("ABCD", [("A", "B"), ("B", "C"), ("C", "D")], *addresses), "D", "A")


def ring(*addresses: AddressConfig) -> Stretch:
    """Two hops, by either side."""
    return Stretch(World("ABCD", [("A", "B"), ("B", "C"), ("C", "D"), ("D", "A")], *addresses), "C", "A")


STRETCHES: dict[str, Make] = {"one-router": Network, "three-hops": line, "ring": ring}
