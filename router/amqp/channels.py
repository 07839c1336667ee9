"""Channels of a connection, and the sessions on them; incoming and outgoing channels are independent (§2.4)."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.errors import CommandError, ProtocolError, Scope
from amqpmesh.router.amqp.standard.definitions import AmqpCondition
from amqpmesh.router.amqp.states import SessionState

if TYPE_CHECKING:
    from amqpmesh.router.amqp.connection_settings import ConnectionSettings
    from amqpmesh.router.amqp.session import Session

#: Transfer frames that each session may have unreleased, however many sessions there are.
MIN_WINDOW: Final = 8


class LowestFree:
    """The numbers 0..maximum of channels or handles; the lowest free one is taken first (§2.5.1)."""

    __slots__ = ("_free", "_next", "maximum")

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self._free: list[int] = []
        self._next = 0

    @property
    def in_use(self) -> int:
        """The count of numbers in use."""
        return self._next - len(self._free)

    def take(self) -> int | None:
        """Take the lowest free number. Returns: the number; None if all are in use."""
        if self._free and self._free[0] <= self.maximum:
            return heapq.heappop(self._free)
        if self._next > self.maximum:
            return None
        self._next += 1
        return self._next - 1

    def free(self, number: int) -> None:
        """Free a number that is in use."""
        heapq.heappush(self._free, number)


class Channels:
    """The sessions of one connection, by incoming and by outgoing channel."""

    def __init__(self, channel_max: int) -> None:
        """Args: channel_max: the highest channel that either side may use."""
        self.incoming_max = channel_max
        #: Sessions by the channel that the peer sends on, until its `end`.
        self.incoming: dict[int, Session] = {}
        #: Sessions by the channel that we send on, sessions that we ended before the peer's `begin` came included.
        self.outgoing: dict[int, Session] = {}
        # Until both `open` are exchanged, channel 0 is the only one that every peer takes (§2.4.1).
        self._numbers = LowestFree(0)

    @property
    def sessions(self) -> set[Session]:
        """All sessions, mapped on one side or on both."""
        return {*self.incoming.values(), *self.outgoing.values()}

    def window_share(self, settings: ConnectionSettings) -> int:
        """Return the window of one more session: sessions divide the connection's window, they do not multiply it."""
        announced = sum([session.part for session in self.sessions]) if self.outgoing or self.incoming else 0
        return min(settings.window, max(MIN_WINDOW, (settings.connection_window - announced) // 2))

    def agree(self, remote_channel_max: int) -> None:
        """Take the channel-max of the peer's `open`: the highest channel that we may use."""
        self._numbers.maximum = min(self.incoming_max, remote_channel_max)

    def allocate(self, session: Session) -> int:
        """Give `session` the lowest free outgoing channel. Raises: CommandError: the peer takes no more channels."""
        channel = self._numbers.take()
        if channel is None:
            raise CommandError("no channel is free: the peer's channel-max is reached, or its open has not come")
        self.outgoing[channel] = session
        return channel

    def free(self, channel: int) -> None:
        """Free an outgoing channel."""
        del self.outgoing[channel]
        self._numbers.free(channel)

    def check_begin(self, channel: int, remote_channel: int | None) -> None:
        """Check that the peer's `begin` may come on `channel` (§2.5.1).

        Args: remote_channel: the channel of our `begin` that it answers; None: it begins a session of the peer's.
        Raises: ProtocolError(CONNECTION): illegal-state: the channel is in use. invalid-field: no `begin` of ours waits
            for such an answer. resource-limit-exceeded: no channel is left for our answer.
        """
        if channel in self.incoming:
            raise ProtocolError(Scope.CONNECTION, AmqpCondition.ILLEGAL_STATE, f"channel {channel} is in use")
        if remote_channel is not None:
            answered = self.outgoing.get(remote_channel)
            if answered is None or answered.remote is not None:
                raise ProtocolError(
                    Scope.CONNECTION, AmqpCondition.INVALID_FIELD, f"no begin was sent on channel {remote_channel}"
                )
            return
        room = self._numbers.maximum + 1 - self._numbers.in_use
        if len(self.incoming) >= room:
            owed = sum(each.state is SessionState.BEGIN_RCVD for each in self.incoming.values())
            if owed >= room:
                raise ProtocolError(
                    Scope.CONNECTION,
                    AmqpCondition.RESOURCE_LIMIT_EXCEEDED,
                    f"more sessions than the channel-max of {self._numbers.maximum} allows",
                )
