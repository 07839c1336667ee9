"""The address book: which routers have consumers and producers of an address."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

#: (tenant, name).
AddressKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Advert:
    """What a router says of an address."""

    distribution: str
    """How the address distributes there: a word of the configuration."""
    consumers: int = 0
    """Local links that take its deliveries."""
    producers: int = 0
    """Local links that bring deliveries to it."""


_NOBODY: Final[Mapping[str, Advert]] = MappingProxyType({})


class Book:
    """What all routers advertise, and what of it can be reached.

    Every method that changes something returns the addresses whose `lookup` changed by it. What a router out of reach
    advertises is kept aside, and counts again when it comes back.
    """

    def __init__(self) -> None:
        self._told: dict[str, dict[AddressKey, Advert]] = {}
        self._reachable: set[str] = set()
        self._entries: dict[AddressKey, dict[str, Advert]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def lookup(self, tenant: str, name: str) -> Mapping[str, Advert]:
        """The routers within reach that have consumers or producers of an address; a view."""
        found = self._entries.get((tenant, name))
        return _NOBODY if found is None else MappingProxyType(found)

    def addresses(self) -> list[AddressKey]:
        """The addresses that a router within reach advertises, in order."""
        return sorted(self._entries)

    def told_by(self, router: str) -> Mapping[AddressKey, Advert]:
        """All that a router advertises, within reach or not; a view."""
        return MappingProxyType(self._told.get(router, {}))

    def replace(self, router: str, entries: Mapping[AddressKey, Advert]) -> frozenset[AddressKey]:
        """Take a router's full state in place of all that it said before."""
        return self.change(router, entries, self._told.get(router, {}).keys() - entries.keys())

    def change(
        self, router: str, entries: Mapping[AddressKey, Advert], removed: Collection[AddressKey] = ()
    ) -> frozenset[AddressKey]:
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

    def forget(self, router: str) -> frozenset[AddressKey]:
        """A router's advertisements are no longer valid: it is gone, or its records were too old."""
        return self.replace(router, {})

    def set_reachable(self, routers: Iterable[str]) -> frozenset[AddressKey]:
        """Those who can be reached now, this router included."""
        reachable = set(routers)
        changed: set[AddressKey] = set()
        for router in reachable ^ self._reachable:
            for key, advert in self._told.get(router, {}).items():
                self._enter(router, key, advert if router in reachable else None)
                changed.add(key)
        self._reachable = reachable
        return frozenset(changed)

    def _enter(self, router: str, key: AddressKey, advert: Advert | None) -> None:
        if advert is not None:
            self._entries.setdefault(key, {})[router] = advert
            return
        entry = self._entries[key]
        del entry[router]
        if not entry:
            del self._entries[key]
