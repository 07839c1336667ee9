"""Which session is on which channel: incoming and outgoing channels have nothing to do with each other (§2.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.amqp.errors import CommandError, ProtocolError, Scope
from amqpmesh.router.amqp.free_numbers import LowestFree
from amqpmesh.router.amqp.standard.definitions import AmqpCondition
from amqpmesh.router.amqp.states import SessionState

if TYPE_CHECKING:
    from amqpmesh.router.amqp.session import Session


class Channels:
    """The two maps of one connection."""

    def __init__(self, channel_max: int) -> None:
        """Args: channel_max: the highest channel that the peer may use, and that we do."""
        self.incoming_max = channel_max
        #: Sessions by the channel that the peer sends on, until its `end`.
        self.incoming: dict[int, Session] = {}
        #: Sessions by the channel that we send on; also those that we have ended before the peer's `begin` came.
        self.outgoing: dict[int, Session] = {}
        # Before both `open` are exchanged no channel but 0 is known to be taken (§2.4.1).
        self._numbers = LowestFree(0)

    @property
    def sessions(self) -> set[Session]:
        """All of them, on whichever side they are mapped."""
        return {*self.incoming.values(), *self.outgoing.values()}

    def agree(self, remote_channel_max: int) -> None:
        """The peer's `open` says which channels we may use."""
        self._numbers.maximum = min(self.incoming_max, remote_channel_max)

    def allocate(self, session: Session) -> int:
        """The lowest free outgoing channel, now `session`'s. Raises: CommandError: the peer takes no more."""
        channel = self._numbers.take()
        if channel is None:
            raise CommandError("no channel is free: the peer's channel-max is reached, or its open has not come")
        self.outgoing[channel] = session
        return channel

    def free(self, channel: int) -> None:
        """An outgoing channel is free again."""
        del self.outgoing[channel]
        self._numbers.give_back(channel)

    def check_begin(self, channel: int, remote_channel: int | None) -> None:
        """Whether a `begin` may come on `channel`, naming `remote_channel` as the one that it answers (§2.5.1).

        Raises: ProtocolError(CONNECTION): illegal-state: the channel is in use. invalid-field: no `begin` waits for
            such an answer. resource-limit-exceeded: there would be no channel for our answer, beside those that we owe.
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
