"""Payload that waits in the router, and the limits on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from amqpmesh.router.kernel.session_endpoint import KernelSession

#: Octets that each chunk counts in addition to its payload: for the objects around it.
OVERHEAD: Final = 512


class Budget:
    """An account of the octets that wait in a part of the router, with a limit. They count in `whole`, too.

    Attributes: `most`: the highest `used`, since the owner last lowered it. `holders`: the parts of this account in
    which octets wait.
    """

    __slots__ = ("holders", "limit", "most", "used", "whole")

    def __init__(self, limit: int, whole: Budget | None = None) -> None:
        self.limit = limit
        self.used = 0
        self.most = 0
        self.holders = 0
        self.whole = whole

    def add(self, octets: int) -> None:
        """Count octets that begin to wait, or (negative) that have left."""
        before = self.used
        self.used += octets
        if self.used > self.most:
            self.most = self.used
        if self.whole is not None:
            if before == 0:
                self.whole.holders += 1
            if self.used == 0:
                self.whole.holders -= 1
            self.whole.add(octets)


class Chunk:
    """Payload that waits. It holds one frame of its session's window, and its octets count in an account."""

    __slots__ = ("_session", "_size", "account", "data", "holders")

    def __init__(self, data: bytes, session: KernelSession | None, account: Budget) -> None:
        """Args: session: the session whose window holds the frame of the chunk; None: no frame is held."""
        self.data = data
        #: The number of legs that have not sent it.
        self.holders = 1
        self._session = session
        # The objects around the octets count, too: empty messages are not free.
        self._size = len(data) + OVERHEAD
        self.account = account
        account.add(self._size)

    def move(self, account: Budget) -> None:
        """Count the octets in another account."""
        self.account.add(-self._size)
        self.account = account
        account.add(self._size)

    def absorb(self, other: Chunk) -> None:
        """Take over the octets of `other`, and release its frame. The caller joins the data."""
        self._size += other._size
        self.account.add(other._size)
        other.account.add(-other._size)
        if other._session is not None:
            other._session.release(1)

    def free_window(self) -> None:
        """Release the frame of the session's window."""
        if self._session is not None:
            self._session.release(1)
            self._session = None

    def release(self) -> None:
        """Note that one holder has sent the chunk, or will not send it; after the last, free its octets."""
        self.holders -= 1
        if self.holders == 0:
            self.account.add(-self._size)
            if self._session is not None:
                self._session.release(1)
