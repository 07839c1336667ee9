"""Numbers in the records of one tenant, in place of those that a router counts for all tenants together.

A router numbers all links in turn, and counts all deliveries in their keys: the gaps between those of one tenant would
tell how many the others have. So a tenant gets other numbers, by permutations with secret keys. A link has the same one
as long as the router lives, and a delivery at each router that has the same policy.
"""

from __future__ import annotations

import re
import sys
from array import array
from hashlib import blake2b, shake_128
from typing import Final

from amqpmesh.router.model.lane import PREFIX

HALF: Final = 16
"""Bits of each half of a permuted number."""

MASK: Final = (1 << HALF) - 1

ROUNDS: Final = 4
"""Rounds of a permutation."""

LARGEST: Final = (1 << 2 * HALF) - 1

_LANE: Final = re.compile(rf"({re.escape(PREFIX)}.*\.)([0-9]{{1,9}})", re.DOTALL)
"""The name of a lane's link, in two parts: the last one is the number of lanes so far."""

_MEANINGS: Final = (0, LARGEST)

KEPT: Final = 100_000
"""Numbers that are remembered at most."""


class Permutation:
    """Permutations of the numbers of 32 bits, one for each tweak, by one secret key.

    Each is a Feistel network. Its rounds are looked up in tables of half a megabyte together: a hash for each round
    would take microseconds for each delivery.
    """

    def __init__(self, key: bytes) -> None:
        """Args: key: at most 64 octets."""
        self.key = key
        self._tables: tuple[array[int], ...] = ()

    def tweak(self, *parts: bytes) -> tuple[int, ...]:
        """Return the tweak of a name of several parts: numbers of 16 bits, one for each round, and one more."""
        told = b"".join(len(each).to_bytes(4, "big") + each for each in parts)
        digest = blake2b(told, key=self.key, digest_size=2 * ROUNDS + 2).digest()
        return tuple(int.from_bytes(digest[at : at + 2], "big") for at in range(0, len(digest), 2))

    def of(self, number: int, tweak: tuple[int, ...]) -> int:
        """Return the number in place of another one; both 0 to 2**32 - 1. Different numbers have different ones."""
        left, right = number >> HALF, number & MASK
        for table, mixed in zip(self._tables or self._made(), tweak, strict=False):
            left, right = right, left ^ table[right ^ mixed]
        return left << HALF | right

    def _made(self) -> tuple[array[int], ...]:
        octets = shake_128(self.key).digest(ROUNDS * 2 << HALF)
        found = tuple(array("H", octets[at : at + (2 << HALF)]) for at in range(0, len(octets), 2 << HALF))
        if sys.byteorder == "big":  # all routers have the same tables
            for each in found:
                each.byteswap()
        self._tables = found
        return found


class TenantNumbers:
    """The numbers that one tenant gets."""

    def __init__(self, tenant: str, links: Permutation, keys: Permutation) -> None:
        """Args: tenant: its key. links: by a secret of this life of the router. keys: by one of all routers."""
        self._tenant = tenant.encode()
        self._permuted = links
        self.keys = keys
        self._tweak = links.tweak(self._tenant)
        self._tweak_of_lanes = keys.tweak(self._tenant, b"lane")
        self._links: dict[int, int] = {}
        #: By the ingress router, its epoch, and the upper bits of the counter.
        self._lives: dict[tuple[int, int, int], tuple[int, ...]] = {}

    def link(self, number: int) -> int:
        """Return the number of a link, an address or a condition. Args: number: of the router; 0, none, stays, and so
        does `LARGEST`, all those of others.
        """
        if number in _MEANINGS:
            return number
        own = self._links.get(number)
        if own is None:
            own = self._permuted.of(number, self._tweak)
            while own in _MEANINGS:  # the next number of the cycle: so the others are permuted among themselves
                own = self._permuted.of(own, self._tweak)
            if len(self._links) >= KEPT:
                self._links.clear()
            self._links[number] = own
        return own

    def name(self, link: str) -> str:
        """Return the name of a link: that of a lane counts lanes, and gets another number, the same at both ends."""
        lane = _LANE.fullmatch(link)
        return link if lane is None else f"{lane[1]}{self.keys.of(int(lane[2]), self._tweak_of_lanes)}"

    def counter(self, ingress: int, epoch: int, counter: int) -> int:
        """Return the counter of a delivery key, 0 to 2**48 - 1. Args: ingress, epoch: those of its key."""
        life = ingress, epoch, counter >> 2 * HALF
        tweak = self._lives.get(life)
        if tweak is None:
            if len(self._lives) >= KEPT:
                self._lives.clear()
            parts = (each.to_bytes(8, "big") for each in life)
            tweak = self._lives[life] = self.keys.tweak(self._tenant, *parts)
        return tweak[ROUNDS] << 2 * HALF | self.keys.of(counter & LARGEST, tweak)
