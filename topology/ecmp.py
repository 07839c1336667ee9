"""Equal-cost sharing: which of several next hops a flow takes, and keeps."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


def preferred(flow: str, destination: str, next_hops: Collection[str], *, seed: str = "") -> str | None:
    """The next hop with the highest weight for a flow (rendezvous hashing); None if there is none.

    Flows spread evenly. Of a set that gains or loses a hop, only the flows of that hop move. The same in every process
    and on every machine, in whatever order the hops come.

    Args: seed: routers with different seeds choose independently. With one seed for all, those who are sent the same
        part of the flows by a router before them would all send that part the same way.
    """
    if len(next_hops) == 1:
        return next(iter(next_hops))
    return max(next_hops, key=lambda hop: (_weight(seed, flow, destination, hop), hop), default=None)


def _weight(*words: str) -> bytes:
    digest = blake2b(digest_size=8)
    for word in words:
        octets = word.encode("utf-8", "surrogatepass")
        digest.update(len(octets).to_bytes(4) + octets)  # so that no two lists of words hash the same octets
    return digest.digest()


class Pins:
    """The next hop of each (flow, destination), kept until it fails or the flow lets go of it.

    A hop that appears moves nobody: a flow that changed paths could overtake itself.
    """

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._pins: dict[tuple[str, str], str] = {}

    def __len__(self) -> int:
        return len(self._pins)

    def choose(self, flow: str, destination: str, next_hops: Collection[str]) -> str | None:
        """The next hop of a flow: the one that it has, as long as that is among those given; None if none is given."""
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
        """Let a flow choose anew next time: it has ended, or is idle with nothing unsettled."""
        self._pins.pop((flow, destination), None)
