"""A link between an engine and a scripted peer, in either direction."""

from amqpmesh.router.amqp import events
from amqpmesh.router.amqp.standard.definitions import (
    Error,
    Role,
)
from amqpmesh.router.amqp.standard.performatives import Attach, Begin, Detach, Flow
from amqpmesh.router.amqp.states import LinkEndpointState
from tests.support.peers.engine_pair import Scripted
from tests.support.peers.scripted import attached, begun, flow


def linked(attach: Attach, *, credit: int = 0, begin: Begin | None = None, **settings: object) -> Scripted:
    """Return a link with the peer's handle 0 on its channel 0."""
    scripted = Scripted(**settings)
    scripted.peer.open()
    scripted.peer.write(begin or begun(), attach)
    scripted.peer.hear()
    if credit:
        scripted.receiver(attach.handle).flow(credit)
        scripted.peer.expect(Flow)
    scripted.end.events.clear()
    return scripted


def producing(*, credit: int = 0, settings: dict[str, object] | None = None, **fields: object) -> Scripted:
    """Return a link on which the peer sends."""
    return linked(attached(Role.SENDER, **fields), credit=credit, **(settings or {}))  # type: ignore[arg-type]


def consuming(*, credit: int = 0, settings: dict[str, object] | None = None, **fields: object) -> Scripted:
    """Return a link on which the peer receives."""
    scripted = linked(attached(Role.RECEIVER, **fields), **(settings or {}))  # type: ignore[arg-type]
    if credit:
        scripted.peer.write(flow(handle=0, delivery_count=0, link_credit=credit))
        scripted.end.events.clear()
    return scripted


def failed(scripted: Scripted) -> Error:
    """Assert that the link was detached for the peer's fault: peer and owner heard the same; the session lives."""
    detach = scripted.peer.expect(Detach)
    (event,) = scripted.end.take(events.LinkDetached)
    assert event.error == detach.error
    assert event.closed
    assert detach.closed
    assert not event.by_peer
    assert event.link.state is LinkEndpointState.DISCARDING
    assert detach.error is not None
    return detach.error
