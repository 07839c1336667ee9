"""Histories of multicast trees, which keep a router from taking a delivery twice while a tree changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.model.lane import age

if TYPE_CHECKING:
    from amqpmesh.router.model.lane import Lane
    from amqpmesh.router.model.links import IncomingLink


class TreeHistory:
    """The ages of the latest deliveries of a tree: enough to recognize those that a new parent sends again."""

    __slots__ = ("before", "latest", "parent", "until")

    def __init__(self, parent: str) -> None:
        self.parent = parent
        #: The age of the latest delivery, and of the latest one from a parent before this one.
        self.latest = b""
        self.before = b""
        #: The time, in seconds, until which it is kept when the tree is no longer used.
        self.until = 0.0

    def is_new(self, parent: str, tag: bytes) -> bool:
        """Return True if no other parent can have sent this delivery before.

        If in doubt, return False: a gap is better than a duplicate.
        """
        if parent != self.parent:
            self.parent = parent
            self.before = self.latest
        began = age(tag)
        self.latest = max(self.latest, began)
        return began > self.before


class TreeHistories:
    """The history of each tree."""

    def __init__(self) -> None:
        self._histories: dict[Lane, TreeHistory] = {}

    def __contains__(self, lane: object) -> bool:
        return lane in self._histories

    def keep(self, lane: Lane, until: float) -> None:
        """Keep the history of a tree that is no longer used. Args: until: seconds."""
        self._histories[lane].until = until

    def forget(self, lane: Lane, now: float) -> None:
        """Forget the history of a tree, unless its time was extended meanwhile."""
        history = self._histories.get(lane)
        if history is not None and history.until <= now:
            del self._histories[lane]

    def is_new(self, incoming: IncomingLink, tag: bytes) -> bool:
        """Return True if this router has not had a delivery of a tree. A changed tree can bring it twice."""
        lane, parent = incoming.lane, incoming.connection.peer.container_id
        assert lane is not None
        if incoming.from_old_parent:
            return False
        history = self._histories.get(lane)
        if history is None:
            history = self._histories[lane] = TreeHistory(parent)
        return history.is_new(parent, tag)
