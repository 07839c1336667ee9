"""Flows that carry properties of a link: what its ends tell each other beside credit (§2.7.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.amqp.standard.performatives import Flow
from amqpmesh.router.kernel import OUTGOING_WINDOW

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqpmesh.router.amqp.codec.types import Symbol, Value
    from amqpmesh.router.amqp.link import Link


def can_tell(link: Link) -> bool:
    """Tell whether both ends of a link are attached, so that a `flow` may name it and its delivery-count is known."""
    return link.is_attached and link.remote is not None and link.session.can_send


def tell(link: Link, properties: Mapping[Symbol, Value]) -> None:
    """Write a `flow` with the state of a link and with these properties (§2.7.4).

    The credit is that of the flow before it. Args: link: as `can_tell` permits.
    Raises: CommandError: the frame is too large for the peer; nothing was written.
    """
    session, state = link.session.flow_state, link.flow_state
    announced = session.incoming_limit, session.flow_due
    flow = Flow(
        next_incoming_id=session.next_incoming_id if session.begun else None,
        incoming_window=session.announce(),
        next_outgoing_id=session.next_outgoing_id,
        outgoing_window=OUTGOING_WINDOW,
        handle=state.handle,
        delivery_count=state.delivery_count,
        link_credit=state.link_credit,
        available=state.available,
        drain=state.drain,
        properties=dict(properties),
    )
    try:
        link.session.write(flow)
    except CommandError:
        session.incoming_limit, session.flow_due = announced  # the peer knows of no wider window
        raise
    link.session.wake()
