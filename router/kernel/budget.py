"""Octets that wait in the router, and their limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from amqpmesh.router.kernel.session_endpoint import KernelSession

#: Octets that count for each chunk besides its payload: the objects around it.
OVERHEAD: Final = 512


class Budget:
    """Octets that wait in some part of this router, against what may; what counts here counts in the whole, too.

    Attributes: `most`: the most that waited at once, since this was set to fewer. `holders`: parts of it in which
    something waits.
    """

    __slots__ = ("holders", "limit", "most", "used", "whole")

    def __init__(self, limit: int, whole: Budget | None = None) -> None:
        self.limit = limit
        self.used = 0
        self.most = 0
        self.holders = 0
        self.whole = whole

    def add(self, octets: int) -> None:
        """So many more wait, or (negative) fewer."""
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
    """Payload that waits here. It holds a frame of its session's window, and its octets count in an account."""

    __slots__ = ("_session", "_size", "account", "data", "holders")

    def __init__(self, data: bytes, session: KernelSession | None, account: Budget) -> None:
        """Args: session: whose window one frame of is held until the chunk is released; None: no frame brought it."""
        self.data = data
        #: How many still have to send it.
        self.holders = 1
        self._session = session
        # What holds the octets costs more than a few of them: empty messages are not free.
        self._size = len(data) + OVERHEAD
        self.account = account
        account.add(self._size)

    def move(self, account: Budget) -> None:
        """It counts there from now on."""
        self.account.add(-self._size)
        self.account = account
        account.add(self._size)

    def absorb(self, other: Chunk) -> None:
        """Take the place of `other` too. It holds one frame as before; its data is the caller's to join."""
        self._size += other._size
        self.account.add(other._size)
        other.account.add(-other._size)
        if other._session is not None:
            other._session.release(1)

    def free_window(self) -> None:
        """It holds no frame of its session's window any more."""
        if self._session is not None:
            self._session.release(1)
            self._session = None

    def release(self) -> None:
        """One holder has sent it, or will not."""
        self.holders -= 1
        if self.holders == 0:
            self.account.add(-self._size)
            if self._session is not None:
                self._session.release(1)
