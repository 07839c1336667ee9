"""The histories of all multicast trees that lead to this router."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.kernel import TreeHistory

if TYPE_CHECKING:
    from amqpmesh.router.model.lane import Lane
    from amqpmesh.router.model.links import IncomingLink


class TreeHistories:
    """The history of each tree. The kernel asks it, too, by the fast route of the tree's node."""

    def __init__(self) -> None:
        self._histories: dict[Lane, TreeHistory] = {}

    def __contains__(self, lane: object) -> bool:
        return lane in self._histories

    def get(self, lane: Lane) -> TreeHistory | None:
        """Return the history of a tree; None: no delivery of it has come."""
        return self._histories.get(lane)

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
