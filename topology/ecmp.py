"""Equal-cost multipath: the choice of one of several next hops for a flow, and its stability."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


def preferred(flow: str, destination: str, next_hops: Collection[str], *, seed: str = "") -> str | None:
    """Return the next hop with the highest weight for a flow (rendezvous hashing); None if there is none.

    Flows spread evenly. When a next hop appears or disappears, only its own flows move. The result is the same in every
    process and on every machine, and independent of the order of the next hops.

    Args: seed: routers with different seeds choose independently. With one seed for all, a router that gets a part of
        the flows from another one would send all of that part to one next hop.
    """
    if len(next_hops) == 1:
        return next(iter(next_hops))
    return max(next_hops, key=lambda hop: (_weight(seed, flow, destination, hop), hop), default=None)


def _weight(*words: str) -> bytes:
    digest = blake2b(digest_size=8)
    for word in words:
        octets = word.encode("utf-8", "surrogatepass")
        digest.update(len(octets).to_bytes(4) + octets)  # the length before each word makes the octets unambiguous
    return digest.digest()


class Pins:
    """The next hop of each (flow, destination), kept until it fails or the flow releases it.

    A new next hop moves no flow: deliveries on the new path could overtake earlier ones.
    """

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._pins: dict[tuple[str, str], str] = {}

    def __len__(self) -> int:
        return len(self._pins)

    def choose(self, flow: str, destination: str, next_hops: Collection[str]) -> str | None:
        """Return the next hop of a flow: the present one if it is among those given; None if none is given."""
        key = (flow, destination)
        pinned = self._pins.get(key)
        if pinned is not None and pinned in next_hops:
            return pinned
        chosen = preferred(flow, destination, next_hops, seed=self._seed)
        if chosen is None:
            self._pins.pop(key, None)
        else:
            self._pins[key] = chosen
        return chosen

    def release(self, flow: str, destination: str) -> None:
        """Let a flow choose anew next time: it has ended, or is idle with no unsettled delivery."""
        self._pins.pop((flow, destination), None)
