"""The history of a multicast tree, which keeps a router from taking a delivery twice while the tree changes."""

from __future__ import annotations

from amqpmesh.router.kernel import uncompiled as cython
from amqpmesh.router.kernel.delivery_keys import age


@cython.final
@cython.cclass
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
        self.note(tag)
        return age(tag) > self.before

    def expects(self, parent: str | None, tag: bytes) -> bool:
        """Return True if a delivery is new, and comes from the same parent as the one before. Nothing is noted."""
        return parent == self.parent and age(tag) > self.before

    def note(self, tag: bytes) -> None:
        """Note that a delivery has come."""
        began = age(tag)
        if began > self.latest:
            self.latest = began
