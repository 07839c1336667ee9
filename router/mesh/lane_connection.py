"""Connections to a neighbour that have lanes, and the sessions of these."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from amqpmesh.router.endpoint_setup import LARGE, WHOLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpmesh.router.amqp.codec.types import Symbol
    from amqpmesh.router.amqp.session import Session
    from amqpmesh.router.config.mesh import MeshConfig
    from amqpmesh.router.model.connections import ConnectionRecord

BULK_SESSIONS: Final = 16
"""Sessions for large deliveries to one neighbour; and as many for lanes that have no other link."""


class LaneConnection:
    """A connection to a neighbour, for lanes."""

    def __init__(self, record: ConnectionRecord, config: MeshConfig) -> None:
        """Args: config: limits the deliveries in sessions for lanes.

        Raises: CommandError: the neighbour allows no session.
        """
        self.record = record
        record.limit_output(config.output_backlog)
        self._config = config
        #: Sessions of lanes: for small deliveries, for large ones, and for lanes whose only link carries both.
        self._shared: deque[Session] = deque((self._begin_shared(),))
        self._bulk: deque[Session] = deque()
        self._tree_sessions: deque[Session] = deque()

    @property
    def router(self) -> str:
        """The neighbour's id."""
        return self.record.peer.container_id

    @property
    def transit_window(self) -> int:
        """Deliveries that it may send on a transit lane before this router has passed on one of them, or lets it wait.

        The clients of many routers share a transit lane, so it is as wide as the credit of several of them.
        """
        return self._config.transit_window

    def answer_begin(self, session: Session) -> None:
        """Answer a neighbour's session with a window for its deliveries.

        A delivery that arrives whole is passed on at once, or waits for credit that was granted for it. So a wide
        window lets nothing pile up here, and a narrow one would close again and again. A session for large deliveries
        gets a wide window, too. A large delivery waits here while its receiver does not read, so the number of such
        sessions is limited.
        """
        assert session.remote is not None
        desired = session.remote.desired_capabilities
        if WHOLE in desired:
            wide = sum(each.window for each in self._sessions_desiring(WHOLE) if each.window > each.part)
            window = max(session.part, (self._config.lane_window - wide) // 2)
            session.begin(window=window, offered_capabilities=(WHOLE,))
        elif LARGE in desired and len(self._sessions_desiring(LARGE)) <= 2 * BULK_SESSIONS:
            session.begin(window=max(session.part, self._config.bulk_window), offered_capabilities=(LARGE,))
            # A tree has one link for all its deliveries. Small ones leave this router at once.
            session.flow_state.let_widen()
        else:
            session.begin()

    def _sessions_desiring(self, capability: Symbol) -> list[Session]:
        """Return the sessions of this connection that the neighbour began with a desired capability."""
        sessions = self.record.engine.channels.sessions
        return [each for each in sessions if each.remote is not None and capability in each.remote.desired_capabilities]

    def _begin_shared(self) -> Session:
        return self.record.engine.begin(desired_capabilities=(WHOLE,))

    def _begin_bulk(self) -> Session:
        return self.record.engine.begin(desired_capabilities=(LARGE,))

    def session_with_room(self) -> Session:
        """Return a session with room for one more lane. Raises: CommandError: the neighbour allows no
        further session."""
        session = self._with_room(self._shared, 1, self._begin_shared)
        self._shared.rotate()  # the other sessions are probably full
        return session

    def bulk_session(self, *, alone: bool) -> Session:
        """Return a session for large deliveries.

        Each lane gets a session of its own while there are unused ones, so that a slow reader of one delivery stops no
        other lane. A session is used while its window is closed only if all others are closed, too.

        Args: alone: the lane has no other link. Then this link carries small deliveries, too, so it does not share a
            session with lanes that have another link for those.
        Raises: CommandError: the neighbour allows no further session.
        """
        sessions = self._tree_sessions if alone else self._bulk
        session = self._with_room(sessions, BULK_SESSIONS, self._begin_bulk)
        for _ in range(BULK_SESSIONS - 1):
            if not session.is_closed:
                break
            session = self._with_room(sessions, BULK_SESSIONS, self._begin_bulk)
        return session

    @staticmethod
    def _with_room(sessions: deque[Session], fewest: int, begin: Callable[[], Session]) -> Session:
        """Return the next session with room; a new one, if none has room, or there are fewer than `fewest`."""
        for _ in range(len(sessions) if len(sessions) >= fewest else 0):
            session = sessions.popleft()
            if not session.can_send:  # it has ended
                continue
            sessions.append(session)
            if session.has_room:
                return session
        sessions.append(begin())
        return sessions[-1]
