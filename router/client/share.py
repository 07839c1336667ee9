"""What a link holds of its session's window (§2.5.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqpmesh.router.amqp.session import Session


class Share:
    """Frames that came for one link and are held. A session may outlive its links: each gives back what it has."""

    __slots__ = ("_frames", "_session")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._frames = 0

    def take(self, frames: int = 1) -> None:
        """A frame came, or several."""
        self._frames += frames

    def release(self, frames: int) -> None:
        """The octets of so many frames are gone from here."""
        if self._frames:  # else the link was over before, and all was given back
            self._frames -= frames
            self._session.release(frames)

    def close(self) -> None:
        """The link is over: what it holds is in the way of nobody."""
        self.release(self._frames)
