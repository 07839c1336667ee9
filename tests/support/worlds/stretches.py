"""Several routers that look like one, for rules that hold over one router and over many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from amqpmesh.router.amqp.link import Receiver
from amqpmesh.router.amqp.standard.messaging import Source
from amqpmesh.router.config.file import AddressConfig
from tests.support.worlds.meshes import World
from tests.support.worlds.network import Client, Network


def _take_from(client: Client, container: str, world: World) -> None:
    """Let its receivers take from `name@container` where they ask for `name`."""
    attach = client.receiver

    def receiver(address: str | None, *, source: Source | None = None, **terms: Any) -> Receiver:
        if source is not None and source.address is not None:
            source = replace(source, address=f"{source.address}@{container}")
        link = attach(address and f"{address}@{container}", source=source, **terms)
        world.advance(0.1)  # one router tells the next, and that one all others
        return link

    client.receiver = receiver  # type: ignore[method-assign]  # of this one alone


class Stretch:
    """Several routers between the first client and all others, used as a `Network` is."""

    def __init__(self, world: World, first: str, others: str, container: str | None = None) -> None:
        """Args: first, others: the routers that the first client, and all others, are connected to. container: whose
        names the first one's receivers take from.
        """
        self.world = world
        self._places = {True: world[first], False: world[others]}
        self._container = container

    def client(self) -> Client:
        """Connect one more client."""
        is_first = not any(node.clients for node in self.world.nodes.values())
        client = self._places[is_first].client(f"client-{self.count}")
        if is_first and self._container is not None:
            _take_from(client, self._container, self.world)
        return client

    @property
    def count(self) -> int:
        """The number of clients so far."""
        return sum(len(node.clients) for node in self.world.nodes.values())

    @property
    def relays(self) -> int:
        """Deliveries that are not settled yet; each counts once, however many routers it is at."""
        return max(node.core.context.in_flight for node in self.world.nodes.values())

    def run(self) -> None:
        """Carry octets until no router has any."""
        self.world.run()

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.world.advance(seconds)

    def leave(self) -> None:
        """Close every client; then assert that no delivery is left, and nothing that waits."""
        self.world.close_clients()
        self.world.advance(1.0)
        self.world.check_ledgers()


Make = Callable[..., "Network | Stretch"]


def line(*addresses: AddressConfig) -> Stretch:
    """Return a stretch of three hops."""
    return Stretch(World("ABCD", [("A", "B"), ("B", "C"), ("C", "D")], *addresses), "D", "A")


def ring(*addresses: AddressConfig) -> Stretch:
    """Return a stretch of two hops, by either side."""
    return Stretch(World("ABCD", [("A", "B"), ("B", "C"), ("C", "D"), ("D", "A")], *addresses), "C", "A")


def detour(*addresses: AddressConfig) -> Stretch:
    """Return a stretch of three hops, by the router whose name is received from."""
    return Stretch(World("ABCD", [("A", "B"), ("B", "C"), ("C", "D")], *addresses), "D", "A", "C")


STRETCHES: dict[str, Make] = {"one-router": Network, "three-hops": line, "ring": ring, "by-name": detour}
