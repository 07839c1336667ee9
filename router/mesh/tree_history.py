"""What has come to this router by trees, so that nothing is taken twice while they change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.model.lane import age

if TYPE_CHECKING:
    from amqpmesh.router.model.lane import Lane
    from amqpmesh.router.model.links import IncomingLink


class TreeHistory:
    """What has come to this router by a tree: enough to know what a new parent sends again."""

    __slots__ = ("before", "latest", "parent", "until")

    def __init__(self, parent: str) -> None:
        self.parent = parent
        #: The age of the latest delivery, and of the latest that came from parents before this one.
        self.latest = b""
        self.before = b""
        #: How long it matters, seconds, once nothing comes by that tree.
        self.until = 0.0

    def is_new(self, parent: str, tag: bytes) -> bool:
        """Whether this delivery cannot have come from another parent already: rather a gap than a duplicate."""
        if parent != self.parent:
            self.parent = parent
            self.before = self.latest
        began = age(tag)
        self.latest = max(self.latest, began)
        return began > self.before


class TreeHistories:
    """What has come by each tree."""

    def __init__(self) -> None:
        self._histories: dict[Lane, TreeHistory] = {}

    def __contains__(self, lane: object) -> bool:
        return lane in self._histories

    def keep(self, lane: Lane, until: float) -> None:
        """Nothing comes by a tree any more: what came by it matters until then, seconds."""
        self._histories[lane].until = until

    def forget(self, lane: Lane, now: float) -> None:
        """That time is over, if it was not put off meanwhile."""
        history = self._histories.get(lane)
        if history is not None and history.until <= now:
            del self._histories[lane]

    def is_new(self, incoming: IncomingLink, tag: bytes) -> bool:
        """Whether a delivery by a tree is one that this router has not had, as it may when the tree changes."""
        lane, parent = incoming.lane, incoming.connection.peer.container_id
        assert lane is not None
        if incoming.from_old_parent:
            return False
        history = self._histories.get(lane)
        if history is None:
            history = self._histories[lane] = TreeHistory(parent)
        return history.is_new(parent, tag)
