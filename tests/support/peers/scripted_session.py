"""A session between an engine and a scripted peer."""

from amqpmesh.router.amqp import events
from amqpmesh.router.amqp.standard.definitions import Error
from amqpmesh.router.amqp.standard.performatives import (
    Attach,
    Begin,
    End,
    Flow,
)
from amqpmesh.router.amqp.states import ConnectionState
from tests.support.peers.engine_pair import Scripted
from tests.support.peers.scripted import begun


def mapped(*, attach: Attach | None = None, credit: int = 0, **settings: object) -> Scripted:
    """Return a session on channel 0, and on it a link with handle 0 if `attach` asks for one."""
    begin = settings.pop("begin", None) or begun()
    assert isinstance(begin, Begin)
    scripted = Scripted(**settings)
    scripted.peer.open()
    scripted.peer.write(begin)
    scripted.peer.expect(Begin)
    if attach is not None:
        scripted.peer.write(attach)
        scripted.peer.expect(Attach)
        if credit:
            scripted.receiver(attach.handle).flow(credit)
            scripted.peer.expect(Flow)
    scripted.end.events.clear()
    return scripted


def ended(scripted: Scripted) -> Error:
    """Assert that the session was ended for the peer's fault: peer and owner heard the same, and nobody else
    anything.
    """
    end = scripted.peer.expect(End)
    (event,) = scripted.end.events
    scripted.end.events.clear()
    assert isinstance(event, events.SessionEnded)
    assert event.error == end.error
    assert not event.by_peer
    assert scripted.engine.state is ConnectionState.OPENED
    assert end.error is not None
    return end.error
