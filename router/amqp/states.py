"""States of connections, sessions and links, and the steps between them (§2.4.6, §2.5.5, §2.6.2).

The tables decide whether a step is legal. The endpoints act on it.
"""

from collections.abc import Mapping
from enum import Enum, auto
from types import SimpleNamespace
from typing import Final, TypeVar, cast

E = TypeVar("E", bound=Enum)


def direct(members: type[E]) -> type[E]:
    """Return an object with the members of an enumeration as attributes, for code that runs once per frame or link.

    A class of enumerations has `__getattr__` (Python 3.11): to read a member there costs as much as a call.
    """
    return cast("type[E]", SimpleNamespace(**members.__members__))


class Alone:
    """A base of enumerations whose members are hashed by identity, five times as fast as by name."""

    __slots__ = ()
    __hash__ = object.__hash__


class Step(Alone, Enum):
    """A frame sent or received that changes the state of an endpoint."""

    SENT_HEADER = auto()
    RECEIVED_HEADER = auto()
    SENT_OPEN = auto()
    RECEIVED_OPEN = auto()
    SENT_CLOSE = auto()
    RECEIVED_CLOSE = auto()
    SENT_BEGIN = auto()
    RECEIVED_BEGIN = auto()
    SENT_END = auto()
    RECEIVED_END = auto()
    SENT_ATTACH = auto()
    RECEIVED_ATTACH = auto()
    SENT_DETACH = auto()
    RECEIVED_DETACH = auto()
    #: A `close`, `end` or `detach` that carries an error.
    SENT_ERROR = auto()


STEP: Final = direct(Step)


class ConnectionState(Alone, Enum):
    """The states of a connection, named as in §2.4.6."""

    START = auto()
    HDR_RCVD = auto()
    HDR_SENT = auto()
    HDR_EXCH = auto()
    OPEN_PIPE = auto()
    OC_PIPE = auto()
    OPEN_RCVD = auto()
    OPEN_SENT = auto()
    CLOSE_PIPE = auto()
    OPENED = auto()
    CLOSE_RCVD = auto()
    CLOSE_SENT = auto()
    DISCARDING = auto()
    END = auto()


class SessionState(Alone, Enum):
    """The states of a session, named as in §2.5.5."""

    UNMAPPED = auto()
    BEGIN_SENT = auto()
    BEGIN_RCVD = auto()
    MAPPED = auto()
    END_SENT = auto()
    END_RCVD = auto()
    DISCARDING = auto()


class LinkEndpointState(Alone, Enum):
    """The states of a link endpoint, by the frames sent and received (§2.6.2); the standard names three of them."""

    DETACHED = auto()
    ATTACH_SENT = auto()
    ATTACH_RCVD = auto()
    ATTACHED = auto()
    DETACH_SENT = auto()
    DETACH_RCVD = auto()
    #: Like DETACH_SENT, after an error: input is discarded until the peer's `detach` (§2.6.5).
    DISCARDING = auto()


# fmt: off
C = ConnectionState
CONNECTION: Mapping[ConnectionState, Mapping[Step, ConnectionState]] = {   # figures 2.23 and 2.24
    C.START:      {Step.SENT_HEADER: C.HDR_SENT, Step.RECEIVED_HEADER: C.HDR_RCVD},
    C.HDR_RCVD:   {Step.SENT_HEADER: C.HDR_EXCH},
    C.HDR_SENT:   {Step.RECEIVED_HEADER: C.HDR_EXCH, Step.SENT_OPEN: C.OPEN_PIPE},
    C.HDR_EXCH:   {Step.SENT_OPEN: C.OPEN_SENT, Step.RECEIVED_OPEN: C.OPEN_RCVD},
    # An error before the peer's header or `open` is answered like any other; later input is ignored.
    C.OPEN_PIPE:  {Step.RECEIVED_HEADER: C.OPEN_SENT, Step.SENT_CLOSE: C.OC_PIPE, Step.SENT_ERROR: C.OC_PIPE},
    C.OC_PIPE:    {Step.RECEIVED_HEADER: C.CLOSE_PIPE},
    C.OPEN_RCVD:  {Step.SENT_OPEN: C.OPENED},
    C.OPEN_SENT:  {Step.RECEIVED_OPEN: C.OPENED, Step.SENT_CLOSE: C.CLOSE_PIPE, Step.SENT_ERROR: C.DISCARDING},
    C.CLOSE_PIPE: {Step.RECEIVED_OPEN: C.CLOSE_SENT},
    C.OPENED:     {Step.SENT_CLOSE: C.CLOSE_SENT, Step.RECEIVED_CLOSE: C.CLOSE_RCVD, Step.SENT_ERROR: C.DISCARDING},
    C.CLOSE_RCVD: {Step.SENT_CLOSE: C.END, Step.SENT_ERROR: C.END},
    C.CLOSE_SENT: {Step.RECEIVED_CLOSE: C.END},
    C.DISCARDING: {Step.RECEIVED_CLOSE: C.END},
    C.END:        {},
}

#: Our `close` is written: of the peer's frames only `open` and `close` matter (§2.4.6).
CLOSING = frozenset({C.CLOSE_SENT, C.DISCARDING, C.CLOSE_PIPE, C.OC_PIPE})

#: Frames other than `open` may be sent (figure 2.24).
SENDING = frozenset({C.OPENED, C.CLOSE_RCVD, C.OPEN_SENT, C.OPEN_PIPE})

S = SessionState
SESSION: Mapping[SessionState, Mapping[Step, SessionState]] = {            # figure 2.30
    S.UNMAPPED:   {Step.SENT_BEGIN: S.BEGIN_SENT, Step.RECEIVED_BEGIN: S.BEGIN_RCVD},
    # A session may be ended before the peer has answered: the peer's `begin` and `end` are still to come.
    S.BEGIN_SENT: {Step.RECEIVED_BEGIN: S.MAPPED, Step.SENT_END: S.END_SENT, Step.SENT_ERROR: S.DISCARDING},
    S.BEGIN_RCVD: {Step.SENT_BEGIN: S.MAPPED},
    S.MAPPED:     {Step.SENT_END: S.END_SENT, Step.RECEIVED_END: S.END_RCVD, Step.SENT_ERROR: S.DISCARDING},
    S.END_SENT:   {Step.RECEIVED_END: S.UNMAPPED},
    S.END_RCVD:   {Step.SENT_END: S.UNMAPPED, Step.SENT_ERROR: S.UNMAPPED},
    S.DISCARDING: {Step.RECEIVED_END: S.UNMAPPED},
}

L = LinkEndpointState
LINK: Mapping[LinkEndpointState, Mapping[Step, LinkEndpointState]] = {     # §2.6.2 to §2.6.6
    L.DETACHED:    {Step.SENT_ATTACH: L.ATTACH_SENT, Step.RECEIVED_ATTACH: L.ATTACH_RCVD},
    # A link may be detached before the peer has answered: the peer's `attach` and `detach` are still to come.
    L.ATTACH_SENT: {Step.RECEIVED_ATTACH: L.ATTACHED, Step.SENT_DETACH: L.DETACH_SENT, Step.SENT_ERROR: L.DISCARDING},
    # Our answer to an `attach` may come late; the peer may have detached by then.
    L.ATTACH_RCVD: {Step.SENT_ATTACH: L.ATTACHED, Step.RECEIVED_DETACH: L.DETACH_RCVD},
    L.ATTACHED:    {Step.RECEIVED_DETACH: L.DETACH_RCVD, Step.SENT_DETACH: L.DETACH_SENT,
                    Step.SENT_ERROR: L.DISCARDING},
    L.DETACH_SENT: {Step.RECEIVED_DETACH: L.DETACHED, Step.RECEIVED_ATTACH: L.DETACH_SENT},
    # `attach` here: the peer detached before our answer, which must precede our `detach`.
    L.DETACH_RCVD: {Step.SENT_DETACH: L.DETACHED, Step.SENT_ERROR: L.DETACHED, Step.SENT_ATTACH: L.DETACH_RCVD},
    L.DISCARDING:  {Step.RECEIVED_DETACH: L.DETACHED, Step.RECEIVED_ATTACH: L.DISCARDING},
}
# fmt: on
