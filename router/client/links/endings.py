"""Endings of a client's link: a table of its stages, the causes that end it, and the actions that follow.

The module decides nothing but the action. `ClientLink` takes it, for senders and receivers alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import TYPE_CHECKING

from amqpmesh.router.amqp.standard.definitions import LinkCondition

if TYPE_CHECKING:
    from amqpmesh.router.amqp.events import LinkDetached


class Stage(Enum):
    """The stages of a link's life. It may outlive several link endpoints and connections."""

    NEW = auto()
    #: It has no link endpoint, and waits for a connection or for the end of a pause.
    DETACHED = auto()
    #: Our `attach` is sent; the peer's has not come.
    ATTACHING = auto()
    ATTACHED = auto()
    #: The program has left it; our `detach` is sent, and the peer has not answered.
    LEAVING = auto()
    #: It failed for good, or the program has left it.
    OVER = auto()


class Ending(Enum):
    """The causes that end a link, or only its link endpoint."""

    #: Our `attach` cannot be sent: it is too large for the peer, or there is no free channel or handle.
    UNATTACHABLE = auto()
    #: The peer's `attach` lacks something that the program needs, such as a filter.
    UNSUITABLE = auto()
    #: The peer's `detach` is final: it is closed, or its error stays (stolen is one). Before its `attach`: a refusal.
    PEER_CLOSED = auto()
    #: The peer's `detach` leaves the link open: it has no error and is not closed, or its error is detach-forced.
    PEER_DETACHED = auto()
    #: The peer's `detach` names another container or address (§2.8.18).
    PEER_REDIRECTED = auto()
    #: The peer broke the standard, and our engine has detached.
    PEER_VIOLATED = auto()
    #: The session ended without an error.
    SESSION_ENDED = auto()
    #: The session ended with an error. Brokers such as RabbitMQ refuse a link by that.
    SESSION_FAILED = auto()
    #: The connection is over, and its manager makes another.
    CONNECTION_LOST = auto()
    #: The connection is over, and none follows.
    CONNECTION_OVER = auto()
    #: The connection that a redirect had led to is over.
    REDIRECT_LOST = auto()
    #: The other link of a requester was redirected.
    COMPANION_MOVED = auto()
    #: The program has left the link, its connection, or its router.
    LEFT = auto()
    #: The peer has answered our `detach`, or cannot do so any more.
    ANSWERED = auto()
    #: The peer did not answer our `detach` in time.
    UNANSWERED = auto()


class Action(Enum):
    """The actions of a link when its link endpoint ends."""

    #: Be over, with an error for the program.
    FAIL = auto()
    #: Attach again after a pause, where the program said. Without reconnection: `FAIL`.
    RETRY = auto()
    #: Attach again as soon as the manager has the next connection.
    AWAIT = auto()
    #: Attach where the redirect leads. If it is not followed: `FAIL`.
    FOLLOW = auto()
    #: Detach, and attach where the companion is.
    ACCOMPANY = auto()
    #: Be over without a `detach`.
    CLOSE = auto()
    #: Send `detach`, and let the peer answer.
    DETACH = auto()
    #: Forget the link endpoint.
    FINISH = auto()
    #: End the session, unless other links are on it, which ends the link, too (§2.5.2).
    ABANDON = auto()


E, A = Ending, Action

_UNFINISHED: Mapping[Ending, Action] = {
    E.CONNECTION_LOST: A.AWAIT,
    E.CONNECTION_OVER: A.FAIL,
    E.REDIRECT_LOST: A.RETRY,
    E.COMPANION_MOVED: A.ACCOMPANY,
}
"""Endings of all stages between the entry of a link and its end."""

_WITH_ENDPOINT: Mapping[Ending, Action] = {
    **_UNFINISHED,
    E.PEER_CLOSED: A.FAIL,
    E.PEER_DETACHED: A.RETRY,
    E.PEER_REDIRECTED: A.FOLLOW,
    E.PEER_VIOLATED: A.FAIL,
    E.SESSION_ENDED: A.RETRY,
    E.LEFT: A.DETACH,
}
"""Endings of a link endpoint that is in use or is to be."""

ENDINGS: Mapping[Stage, Mapping[Ending, Action]] = {
    Stage.NEW: {E.LEFT: A.CLOSE},
    Stage.DETACHED: {**_UNFINISHED, E.UNATTACHABLE: A.FAIL, E.LEFT: A.CLOSE},
    Stage.ATTACHING: {**_WITH_ENDPOINT, E.UNSUITABLE: A.FAIL, E.SESSION_FAILED: A.FAIL},
    # Once attached, the link is not refused: it may work on another session.
    Stage.ATTACHED: {**_WITH_ENDPOINT, E.SESSION_FAILED: A.RETRY},
    # The peer's `detach` is its answer here, or crosses ours: either is `ANSWERED`.
    Stage.LEAVING: {
        E.SESSION_ENDED: A.FINISH,
        E.SESSION_FAILED: A.FINISH,
        E.ANSWERED: A.FINISH,
        E.UNANSWERED: A.ABANDON,
    },
    Stage.OVER: {},
}
"""The action that follows an ending in a stage. No action: the ending changes nothing in that stage."""

AFTER: Mapping[Action, Stage] = {
    A.FAIL: Stage.OVER,
    A.RETRY: Stage.DETACHED,
    A.AWAIT: Stage.DETACHED,
    A.FOLLOW: Stage.DETACHED,
    A.ACCOMPANY: Stage.DETACHED,
    A.CLOSE: Stage.OVER,
    A.DETACH: Stage.LEAVING,
    A.FINISH: Stage.OVER,
    A.ABANDON: Stage.OVER,
}
"""The stage that an action leads to. Where a connection is there, the link goes on to `ATTACHING` at once."""


def detach_ending(event: LinkDetached) -> Ending:
    """Return the ending that a `detach` is, of the peer or of our engine."""
    error = event.error
    if not event.by_peer:
        return Ending.PEER_VIOLATED
    if error is None:
        return Ending.PEER_CLOSED if event.closed else Ending.PEER_DETACHED
    if error.condition == LinkCondition.REDIRECT:
        return Ending.PEER_REDIRECTED
    if error.condition == LinkCondition.DETACH_FORCED:
        return Ending.PEER_DETACHED
    return Ending.PEER_CLOSED
