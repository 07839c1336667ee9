"""The message-ids that an address has seen, each with the outcome of its first message (§3.2.4, message-id)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from amqpmesh.router.kernel.budget import Budget
    from amqpmesh.router.kernel.relays import Relay

#: Octets that an entry counts beside its message-id and its outcome: for the objects.
SEEN_OCTETS: Final = 400
_SEEN_OCTETS: Final = SEEN_OCTETS

#: Octets that a delivery counts which waits for the outcome of another one: for the objects.
JOINED_OCTETS: Final = 1500

#: The most entries that are forgotten when one is added: more than one, so that a smaller window is reached soon.
_FORGOTTEN_AT_ONCE: Final = 2

#: The windows of a router have at most 1 / n of its memory.
WINDOWS_PART: Final = 4


class SeenMessage:
    """A message-id that an address has seen, with what became of its first message."""

    __slots__ = ("at", "id", "joined", "live", "octets", "outcome", "settled", "window")

    def __init__(self, window: MessageWindow, message_id: bytes, settled: bool, now: float) -> None:
        self.window = window
        self.id = message_id
        #: The message came settled: its sender gets no outcome.
        self.settled = settled
        #: The message is on its way.
        self.live = True
        #: Its outcome for later ones; None: it is on its way, or ended without one after it had left.
        self.outcome: bytes | None = None
        #: The time of its arrival, then of its outcome, seconds.
        self.at = now
        #: Deliveries of the same message that wait for its outcome.
        self.joined: dict[Relay, None] | None = None
        #: Octets that it counts in the account of the window; 0: it was forgotten.
        self.octets = _SEEN_OCTETS + len(message_id)


class MessageWindow:
    """The message-ids that one address remembers: the latest ones, up to a number, a time, and a part of the memory."""

    __slots__ = ("account", "entries", "is_over", "joined", "most", "time", "windows")

    def __init__(
        self, windows: MessageWindows, account: Budget, most: int, time: float, is_over: Callable[[], bool]
    ) -> None:
        """Args: account: of its octets. most: entries. time: seconds. is_over: whether the account gets no more."""
        self.windows = windows
        self.account = account
        self.most = most
        self.time = time
        self.is_over = is_over
        #: In the order of `SeenMessage.at`.
        self.entries: OrderedDict[bytes, SeenMessage] = OrderedDict()
        #: Deliveries that wait for the outcome of another one.
        self.joined = 0

    def find(self, message_id: bytes, now: float) -> SeenMessage | None:
        """Return the entry of a message-id; None: it was not seen within the time of the window."""
        seen = self.entries.get(message_id)
        if seen is not None and not seen.live and seen.at + self.time <= now:
            self._pass(seen)
            return None
        return seen

    def note(self, message_id: bytes, settled: bool, now: float) -> SeenMessage:
        """Add an entry for the first message with a message-id. The oldest entries may be forgotten for it."""
        seen = SeenMessage(self, message_id, settled, now)
        self.entries[message_id] = seen
        self.count(seen.octets)
        if not self.windows.is_awake:
            self.windows.is_awake = True
            self.windows.wake()
        self._make_room(seen, now)
        return seen

    def end(self, seen: SeenMessage, outcome: bytes | None, now: float) -> None:
        """Note the end of a message. Args: outcome: for later ones; None: nobody will know it."""
        seen.live = False
        if seen.octets:
            seen.outcome = outcome
            seen.at = now
            if outcome is not None:
                self.count(len(outcome))
                seen.octets += len(outcome)
            self.entries.move_to_end(seen.id)

    def forget(self, seen: SeenMessage) -> None:
        """Forget an entry: the next message with this message-id is a first one."""
        seen.live = False
        self._remove(seen)

    def count(self, octets: int) -> None:
        """Count octets that the window has more (negative: less)."""
        self.windows.octets += octets
        self.account.add(octets)

    def tidy(self, now: float, most: int) -> int:
        """Forget entries whose time is over, `most` at most. Returns: how many it has looked at."""
        looked_at = 0
        while looked_at < most and self.entries:
            oldest = next(iter(self.entries.values()))
            if oldest.at + self.time > now:
                break
            looked_at += 1
            if oldest.live:  # it is on its way, and a later one can join it
                oldest.at = now
                self.entries.move_to_end(oldest.id)
            else:
                self._pass(oldest)
        return looked_at

    def clear(self) -> None:
        """Forget all entries. Those on their way still end."""
        while self.entries:
            self._remove(next(iter(self.entries.values())))

    def _make_room(self, added: SeenMessage, now: float) -> None:
        if self.tidy(now, _FORGOTTEN_AT_ONCE) == _FORGOTTEN_AT_ONCE:
            return
        windows = self.windows
        for _ in range(_FORGOTTEN_AT_ONCE):
            if not (len(self.entries) > self.most or windows.octets > windows.most or self.is_over()):
                return
            oldest = next(iter(self.entries.values()))
            if oldest is added:
                return
            self._pass(oldest)

    def _pass(self, seen: SeenMessage) -> None:
        self.windows.window_passed += 1
        self._remove(seen)

    def _remove(self, seen: SeenMessage) -> None:
        if seen.octets:
            del self.entries[seen.id]
            self.count(-seen.octets)
            seen.octets = 0


class MessageWindows:
    """The windows of a router, by tenant and name of their addresses, and the counts of all."""

    __slots__ = (
        "duplicates",
        "is_awake",
        "most",
        "moved",
        "octets",
        "of",
        "on_ended",
        "on_outcome",
        "wake",
        "window_passed",
    )

    def __init__(self) -> None:
        self.of: dict[tuple[str, str], MessageWindow] = {}
        #: The octets of all, and the most that they may be.
        self.octets = 0
        self.most = 0
        #: Messages that were seen before; entries that were forgotten by number, time or memory; and changes of the
        #: routers among which messages are divided by their message-ids.
        self.duplicates = 0
        self.window_passed = 0
        self.moved = 0
        #: Somebody looks after the windows from time to time; `wake` has them looked after.
        self.is_awake = False
        self.wake: Callable[[], None] = _no_windows
        #: Called with a relay that has an entry: its outcome is known; it has ended.
        self.on_outcome: Callable[[Relay, bytes], None] = _no_windows
        self.on_ended: Callable[[Relay], None] = _no_windows


def _no_windows(*_: object) -> None:
    """Do nothing: there are no windows yet."""
