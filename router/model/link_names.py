"""Attached links by their names (§2.6.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.small_set import with_item, without_item

if TYPE_CHECKING:
    from amqpmesh.router.model.links import IncomingLink, LinkKey, OutgoingLink
    from amqpmesh.router.small_set import SmallSet


class LinkNames:
    """The links of a router by key, which identifies a link between two containers (§2.6.1).

    Several connections of one container may each have a link with the same key.
    """

    def __init__(self) -> None:
        self._links: dict[LinkKey, SmallSet[IncomingLink | OutgoingLink]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._links.values()))

    def having(self, key: LinkKey) -> SmallSet[IncomingLink | OutgoingLink]:
        """Return the links that a key identifies."""
        return self._links.get(key, ())

    def add(self, key: LinkKey, link: IncomingLink | OutgoingLink) -> None:
        """Note one more link."""
        link.key = key
        self._links[key] = with_item(self._links.get(key, ()), link)

    def remove(self, link: IncomingLink | OutgoingLink) -> None:
        """Forget a link, if it is known."""
        key = link.key
        if key is None:
            return
        link.key = None
        left = without_item(self._links.pop(key, ()), link)
        if left:
            self._links[key] = left
