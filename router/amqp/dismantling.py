"""Connections, sessions and links that have ended, taken apart.

The objects of a connection refer to each other. Without these references all of them are freed at once. Otherwise the
garbage collector would have to find them, and stop everything for a time in proportion to all objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router import kernel

if TYPE_CHECKING:
    from amqpmesh.router.amqp.connection import Connection
    from amqpmesh.router.amqp.link import Link
    from amqpmesh.router.amqp.session import Session


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
