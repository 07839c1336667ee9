"""Time-outs of a connection: idle time-outs of both sides, and the waits for `open` and `close`."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from amqpmesh.router.amqp.connection_settings import ConnectionSettings


class Due(Enum):
    """The action that is due at a time."""

    NOTHING = auto()
    #: A frame must be sent before the idle time-out of the peer; an empty one will do (§2.4.5).
    HEARTBEAT = auto()
    #: No frame of the peer has come for the whole idle time-out (§2.4.5).
    SILENCE = auto()
    #: We could not send for so long that the peer must take us for dead (§2.4.5).
    OURS_LATE = auto()
    #: The connection was not opened in time.
    OPEN_LATE = auto()
    #: Our `close` was not answered in time (§2.4.3).
    CLOSE_LATE = auto()


#: Actions that end nothing.
QUIET: Final = (Due.NOTHING, Due.HEARTBEAT)


class Liveness:
    """The time-outs of one connection. All times are seconds of the owner's clock."""

    __slots__ = ("_close_time_out", "_closing", "_deadline", "_heartbeat", "_left", "_opened", "idle_time_out",
                 "received_at", "sent_at")  # fmt: skip

    def __init__(self, now: float, settings: ConnectionSettings) -> None:
        self.idle_time_out = settings.idle_time_out
        #: The time of the last whole frame that came; `sent_at`: of the last bytes that were handed out to be sent.
        self.received_at = now
        self.sent_at = now
        self._close_time_out = settings.close_time_out
        self._heartbeat: float | None = None
        self._opened = False
        self._closing = False
        #: The time by which the peer must send `open`, or answer our `close`; None: there is no such wait.
        self._deadline: float | None = now + settings.open_time_out
        #: The rest of that wait while it is held, seconds.
        self._left = 0.0

    def opened(self, remote_idle_time_out_ms: int) -> None:
        """Start the idle time-outs: both `open` are exchanged. Args: remote_idle_time_out_ms: the peer's; 0: none."""
        self._opened = True
        self._deadline = None
        # Half of the announced time: some peers announce their whole threshold.
        self._heartbeat = remote_idle_time_out_ms / 2000 if remote_idle_time_out_ms else None

    def hold(self, now: float) -> None:
        """Stop the wait for the peer's `open`: it is our turn."""
        if self._deadline is not None:
            self._left = max(0.0, self._deadline - now)
            self._deadline = None

    def resume(self, now: float) -> None:
        """Go on with the wait for the peer's `open`: it is the peer's turn again."""
        if not (self._closing or self._opened):
            self._deadline = now + self._left

    def closing(self) -> None:
        """Prepare the wait for the answer to our `close`. It begins with the next call that has `now`."""
        self._opened = False
        self._closing = True
        self._deadline = None

    def sent(self, now: float) -> None:
        """Note that bytes are handed out to be sent."""
        self.sent_at = now
        if self._closing:
            self._waiting_for_close(now)

    def next_timer(self) -> float | None:
        """Return the time by which `due` must be called; None: there is nothing to wait for."""
        if self._closing and self._deadline is None:
            return self.received_at
        first = self._deadline
        if self._opened:
            if self.idle_time_out is not None:
                silent_at = self.received_at + self.idle_time_out
                if first is None or silent_at < first:
                    first = silent_at
            if self._heartbeat is not None:
                due_at = self.sent_at + self._heartbeat
                if first is None or due_at < first:
                    first = due_at
        return first

    def due(self, now: float) -> Due:
        """Return the action that is due now."""
        if self._closing:
            self._waiting_for_close(now)
        if self._deadline is not None and now >= self._deadline:
            return Due.CLOSE_LATE if self._closing else Due.OPEN_LATE
        if self._opened:
            if self.idle_time_out is not None and now >= self.received_at + self.idle_time_out:
                return Due.SILENCE
            if self._heartbeat is not None and now >= self.sent_at + self._heartbeat:
                # A peer announces half of the time that it allows (§2.4.5), and the heartbeat is half of that.
                late = now >= self.sent_at + 4 * self._heartbeat
                return Due.OURS_LATE if late else Due.HEARTBEAT
        return Due.NOTHING

    def reason(self, due: Due) -> str:
        """Return the description of the `close` for a time-out."""
        if due is Due.SILENCE:
            return f"no frame came for {self.idle_time_out:g} s (idle time-out)"
        if due is Due.OURS_LATE:
            return "nothing was sent in the peer's idle time-out"
        return "no open came in time"

    def _waiting_for_close(self, now: float) -> None:
        if self._deadline is None:
            self._deadline = now + self._close_time_out
