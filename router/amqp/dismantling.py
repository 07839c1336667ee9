"""Connections, sessions and links that have ended, taken apart.

The objects of a connection refer to each other. Without these references all of them are freed at once. Otherwise the
garbage collector would have to find them, and stop everything for a time in proportion to all objects.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from amqpmesh.router import kernel
from amqpmesh.router.amqp.connection import Connection
from amqpmesh.router.amqp.connection_settings import ConnectionSettings
from amqpmesh.router.amqp.link import Terminus
from amqpmesh.router.amqp.negotiation import Negotiation
from amqpmesh.router.amqp.session import Session
from amqpmesh.router.amqp.standard.definitions import Role

if TYPE_CHECKING:
    from amqpmesh.router.amqp.link import Link, Receiver, Sender

#: In place of the termini of links whose connections are gone; nothing is ever added to its map.
_GONE: Final = Terminus("", Role.RECEIVER)

#: In place of the ledgers of deliveries that came over connections that are gone; nothing is ever added to it.
_NOTHING: Final = kernel.Ledger()


def dismantle_connection(connection: Connection) -> None:
    """Cut the references between a connection, its sessions and its links. Its transport is gone."""
    channels = connection.channels
    sessions = channels.sessions
    channels.incoming, channels.outgoing = {}, {}
    connection.context = connection.flow_state.on_wake = None
    connection.flow_state.sessions = {}
    for session in sessions:
        dismantle_session(session)


def dismantle_session(session: Session) -> None:
    """Cut the references between a session and its links. It has ended: of its frames only the peer's `end` counts."""
    for link in session.all_links:
        dismantle_link(link)
    session.links, session.output_links, session.awaiting, session.owed = {}, {}, {}, set()
    session.stalled = {}
    session.flow_state.owner = None
    session.flow_state.links = {}


def dismantle_link(link: Link) -> None:
    """Cut the references of a link to its owner's objects, and to a delivery that was not sent to its end.

    The link has ended: no frame needs it any more. Deliveries whose other side has not ended may still refer to the
    kernel's part, and find the owner's objects by it. So the link gets a part without deliveries in its place.
    """
    part = link.flow_state
    if part.parked or part.session is not link.session.flow_state:  # the peer may resume it
        return
    link.context = None
    if part.record is None:
        return
    part.current = None
    link.flow_state = ended = kernel.KernelLink(part.session, part.sender, None, {})
    ended.ended = True
    ended.number, ended.lane, ended.fallback_outcome = part.number, part.lane, part.fallback_outcome


@lru_cache(maxsize=256)
def gone_session(max_frame_size: int) -> Session:
    """Return what stands for sessions that are gone with their connections, while something refers to these still.

    It is shared, and nothing can be sent on it. Args: max_frame_size: octets of the largest frame that the peers took:
    the outcomes that their links may get depend on it.
    """
    connection = Connection(ConnectionSettings(container_id=""), Negotiation(server=True), 0.0)
    connection.receive_eof()
    connection.flow_state.remote_max_frame_size = max_frame_size
    return Session(connection, 0)


@lru_cache(maxsize=256)
def _limits(shown: int) -> list[int]:
    """Return the delivery-limits of links that are gone, which share them. Args: shown: the last one that was shown."""
    return [shown]


def replace_session(link: Receiver) -> None:
    """Let a link of a lost connection, whose deliveries are in another place, keep its name and its counters alone."""
    link.session = gone_session(link.session.connection.remote_max_frame_size)
    link.terminus, link.announced_limits = _GONE, _limits(link.shown_limit)


def reduce_session(link: Sender, nowhere: kernel.KernelSession) -> None:
    """Let a link of a lost connection keep no more of its session than the ledger of the deliveries that it has sent.

    Without any it keeps nothing of the session. Args: nowhere: a session of the same router that no frame names.
    """
    state, session = link.flow_state, link.session
    ledgers = session.flow_state
    if state.session is not ledgers:
        return
    gone = gone_session(session.connection.remote_max_frame_size)
    if not (ledgers.outgoing or state.unsettled or state.outstanding):
        link.session, state.session, link.terminus = gone, gone.flow_state, _GONE
        return
    for name, value in vars(gone).items():
        if name != "flow_state":
            setattr(session, name, value)
    link.terminus, ledgers.links = _GONE, gone.flow_state.links
    ledgers.wire, ledgers.woken = nowhere.wire, True  # as if it were to be flushed: it never is
    if not ledgers.incoming:
        ledgers.incoming = _NOTHING
