"""The address book: which routers have consumers and producers of an address."""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from amqpmesh.topology.records import Name


class Advert(NamedTuple):
    """What a router says of an address."""

    distribution: str
    """How the address distributes there: a word of the configuration."""
    consumers: int = 0
    """Local links that take its deliveries."""
    producers: int = 0
    """Local links that bring deliveries to it."""


_NOBODY: Final[Mapping[str, Advert]] = MappingProxyType({})


@lru_cache(maxsize=1024)
def _alike(*served: tuple[str, Advert]) -> Mapping[str, Advert]:
    """What is told of an address. Of thousands of addresses that the same routers serve, it is one object."""
    return MappingProxyType(dict(served))


class Book:
    """What all routers advertise, and what of it can be reached.

    Every method that changes something returns the addresses whose `lookup` changed by it. What a router out of reach
    advertises is kept aside, and counts again when it comes back.
    """

    def __init__(self) -> None:
        self._told: dict[str, dict[Name, Advert]] = {}
        self._reachable: set[str] = set()
        self._entries: dict[tuple[str, str], Mapping[str, Advert]] = {}  # by (tenant, name)

    def __len__(self) -> int:
        return len(self._entries)

    def lookup(self, tenant: str, name: str) -> Mapping[str, Advert]:
        """The routers within reach that have consumers or producers of an address."""
        return self._entries.get((tenant, name), _NOBODY)

    def addresses(self) -> list[tuple[str, str]]:
        """The (tenant, name) of each address that a router within reach advertises, in order."""
        return sorted(self._entries)

    def told_by(self, router: str) -> Mapping[Name, Advert]:
        """All that a router advertises, within reach or not; a view."""
        return MappingProxyType(self._told.get(router, {}))

    def replace(self, router: str, entries: Mapping[Name, Advert]) -> frozenset[Name]:
        """Take a router's full state in place of all that it said before."""
        return self.change(router, entries, self._told.get(router, {}).keys() - entries.keys())

    def change(self, router: str, entries: Mapping[Name, Advert], removed: Collection[Name] = ()) -> frozenset[Name]:
        """Take in what a router changed: entries that are new or other than before, and those that it withdraws."""
        told = self._told.setdefault(router, {})
        changed = {key for key, advert in entries.items() if told.get(key) != advert}
        changed.update(key for key in removed if key in told and key not in entries)
        for key in changed:
            if key in entries:
                told[key] = entries[key]
            else:
                del told[key]
        if not told:
            del self._told[router]
        if router not in self._reachable:
            return frozenset()
        for key in changed:
            self._enter(router, key, entries.get(key))
        return frozenset(changed)

    def forget(self, router: str) -> frozenset[Name]:
        """A router's advertisements are no longer valid: it is gone, or its records were too old."""
        return self.replace(router, {})

    def set_reachable(self, routers: Iterable[str]) -> frozenset[Name]:
        """Those who can be reached now, this router included."""
        reachable = set(routers)
        changed: set[Name] = set()
        for router in sorted(reachable ^ self._reachable):  # it is the order in which `lookup` names them
            for key, advert in self._told.get(router, {}).items():
                self._enter(router, key, advert if router in reachable else None)
                changed.add(key)
        self._reachable = reachable
        return frozenset(changed)

    def _enter(self, router: str, key: Name, advert: Advert | None) -> None:
        served = dict(self._entries.get(key, _NOBODY))
        if advert is not None:
            served[router] = advert
        else:
            del served[router]
        if served:
            self._entries[key] = _alike(*served.items())
        else:
            del self._entries[key]
