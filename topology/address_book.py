"""The address book: the routers that have consumers and producers of each address."""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from amqpmesh.topology.records import Name


class Advert(NamedTuple):
    """The advertisement of an address by a router."""

    distribution: str
    """The distribution of the address at that router: a word of the configuration."""
    consumers: int = 0
    """Local links that take deliveries from the address."""
    producers: int = 0
    """Local links that bring deliveries to the address."""


#: Addresses of one router that are updated in one go, before those of the next router.
SLICE: Final = 64

_NONE: Final[Mapping[str, Advert]] = MappingProxyType({})


@lru_cache(maxsize=1024)
def _shared(*served: tuple[str, Advert]) -> Mapping[str, Advert]:
    """Return the adverts of an address by router. Addresses that the same routers serve alike share one object."""
    return MappingProxyType(dict(served))


class AddressBook:
    """The advertisements of all routers, and an index of those of reachable routers.

    Changes are stored at once; `update` brings the index, `lookup`, up to date in parts. Advertisements of an
    unreachable router are kept, and count again once the router is reachable.
    """

    def __init__(self) -> None:
        self._advertised: dict[str, dict[Name, Advert]] = {}
        self._reachable: set[str] = set()
        self._pending: OrderedDict[str, dict[Name, Advert]] = OrderedDict()  # a mapping used as a set
        self._entries: dict[tuple[str, str], Mapping[str, Advert]] = {}  # by (tenant, name)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def has_pending(self) -> bool:
        """True if `update` has work to do."""
        return bool(self._pending)

    def lookup(self, tenant: str, name: str) -> Mapping[str, Advert]:
        """Return the adverts of an address by reachable routers."""
        return self._entries.get((tenant, name), _NONE)

    def addresses(self) -> list[tuple[str, str]]:
        """Return the (tenant, name) of each address that a reachable router advertises, sorted."""
        return sorted(self._entries)

    def advertised_by(self, router: str) -> Mapping[Name, Advert]:
        """Return all advertisements of a router, reachable or not; a view."""
        return MappingProxyType(self._advertised.get(router, {}))

    def replace(self, router: str, entries: Mapping[Name, Advert]) -> None:
        """Replace all advertisements of a router by its full state."""
        former = self._advertised.pop(router, {})
        if entries:
            self._advertised[router] = dict(entries)
        self._queue(router, former)
        self._queue(router, entries)

    def apply_delta(self, router: str, entries: Mapping[Name, Advert], removed: Collection[Name] = ()) -> None:
        """Apply a change of a router's advertisements. Args: entries: new or changed ones. removed: withdrawn ones."""
        adverts = self._advertised.setdefault(router, {})
        gone = {key: adverts.pop(key) for key in removed if key in adverts and key not in entries}
        adverts.update(entries)
        if not adverts:
            del self._advertised[router]
        self._queue(router, entries)
        self._queue(router, gone)

    def forget(self, router: str) -> None:
        """Forget the advertisements of a router: its link state has expired, or is not believed any more."""
        self.replace(router, {})

    def set_reachable(self, routers: Iterable[str]) -> None:
        """Set the routers that can be reached now, this router included."""
        reachable = set(routers)
        former, self._reachable = self._reachable, self._reachable | reachable
        for router in sorted(reachable ^ former):  # `lookup` has this order, the same in each run
            self._queue(router, self._advertised.get(router, {}))
        self._reachable = reachable

    def update(self, most: int) -> frozenset[Name]:
        """Bring the index up to date for at most `most` addresses.

        Routers take turns, so that a million changes of one router do not delay the others.

        Returns: the addresses for which `lookup` has changed.
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
        """Queue names for `update`. An unreachable router has no entries in the index, so it is skipped."""
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
