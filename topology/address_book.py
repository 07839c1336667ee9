"""The address book: which routers have consumers and producers of an address."""

from __future__ import annotations

from collections import OrderedDict
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


#: Addresses of one router that are looked at in one go, while others have some as well.
SLICE: Final = 64

_NONE: Final[Mapping[str, Advert]] = MappingProxyType({})


@lru_cache(maxsize=1024)
def _shared(*served: tuple[str, Advert]) -> Mapping[str, Advert]:
    """What is told of an address. Of thousands of addresses that the same routers serve, it is one object."""
    return MappingProxyType(dict(served))


class AddressBook:
    """What all routers advertise, and what of it can be reached.

    What is told is taken in at once, and `lookup` follows in parts: `update`. What a router out of reach advertises is
    kept aside, and counts again when it comes back.
    """

    def __init__(self) -> None:
        self._advertised: dict[str, dict[Name, Advert]] = {}
        self._reachable: set[str] = set()
        self._pending: OrderedDict[str, dict[Name, Advert]] = OrderedDict()  # only the names count
        self._entries: dict[tuple[str, str], Mapping[str, Advert]] = {}  # by (tenant, name)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def has_pending(self) -> bool:
        """Whether there is something that `lookup` has yet to follow."""
        return bool(self._pending)

    def lookup(self, tenant: str, name: str) -> Mapping[str, Advert]:
        """The routers within reach that have consumers or producers of an address."""
        return self._entries.get((tenant, name), _NONE)

    def addresses(self) -> list[tuple[str, str]]:
        """The (tenant, name) of each address that a router within reach advertises, in order."""
        return sorted(self._entries)

    def advertised_by(self, router: str) -> Mapping[Name, Advert]:
        """All that a router advertises, within reach or not; a view."""
        return MappingProxyType(self._advertised.get(router, {}))

    def replace(self, router: str, entries: Mapping[Name, Advert]) -> None:
        """Take a router's full state in place of all that it said before."""
        former = self._advertised.pop(router, {})
        if entries:
            self._advertised[router] = dict(entries)
        self._queue(router, former)
        self._queue(router, entries)

    def apply_delta(self, router: str, entries: Mapping[Name, Advert], removed: Collection[Name] = ()) -> None:
        """Take in what a router changed: entries that are new or other than before, and those that it withdraws."""
        adverts = self._advertised.setdefault(router, {})
        gone = {key: adverts.pop(key) for key in removed if key in adverts and key not in entries}
        adverts.update(entries)
        if not adverts:
            del self._advertised[router]
        self._queue(router, entries)
        self._queue(router, gone)

    def forget(self, router: str) -> None:
        """A router's advertisements are no longer valid: it is gone, or its records were too old."""
        self.replace(router, {})

    def set_reachable(self, routers: Iterable[str]) -> None:
        """Those who can be reached now, this router included."""
        reachable = set(routers)
        former, self._reachable = self._reachable, self._reachable | reachable
        for router in sorted(reachable ^ former):  # it is the order in which `lookup` names them
            self._queue(router, self._advertised.get(router, {}))
        self._reachable = reachable

    def update(self, most: int) -> frozenset[Name]:
        """Let `lookup` follow what has been told of so many addresses; the others have to wait.

        All routers' go on side by side, so that one that tells of a million keeps nobody else waiting.

        Returns: the addresses whose `lookup` changed by it.
        """
        changed: set[Name] = set()
        while self._pending and most > 0:
            router, names = self._pending.popitem(last=False)
            adverts = self._advertised.get(router, {}) if router in self._reachable else {}
            some = min(most, len(names), SLICE)
            for _ in range(some):
                name, _ = names.popitem()
                if self._set_entry(router, name, adverts.get(name)):
                    changed.add(name)
            most -= some
            if names:
                self._pending[router] = names
        return frozenset(changed)

    def _queue(self, router: str, names: Mapping[Name, Advert]) -> None:
        """Let `update` look at these. Of a router that is out of reach there is nothing to be seen that is new."""
        if names and router in self._reachable:
            self._pending.setdefault(router, {}).update(names)

    def _set_entry(self, router: str, key: Name, advert: Advert | None) -> bool:
        former = self._entries.get(key, _NONE)
        if former.get(router) == advert:
            return False
        served = dict(former)
        if advert is not None:
            served[router] = advert
        else:
            del served[router]
        if served:
            self._entries[key] = _shared(*served.items())
        else:
            del self._entries[key]
        return True
