"""Fast deliveries whose sender or receiver is lost, or does something unusual."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Received, Rejected, Released
from amqpmesh.router.kernel import FastDelivery
from amqpmesh.router.management.snapshot import snapshot
from tests.support.worlds.meshes import World
from tests.support.worlds.network import Arrival, Client, Network, Sent, message
from tests.support.worlds.side_by_side import relaying, statistics

FIRST, SECOND = ReceiverSettleMode.FIRST, ReceiverSettleMode.SECOND


class Scene:
    """A sender and a receiver, at one router or with one between them, and three deliveries that were relayed."""

    def __init__(self, *, mesh: bool, mode: ReceiverSettleMode) -> None:
        self.mesh = World("ABC", [("A", "B"), ("B", "C")]) if mesh else None
        here = self.mesh["A"] if self.mesh is not None else Network()
        there = self.mesh["C"] if self.mesh is not None else here
        self.networks = list(self.mesh.nodes.values()) if self.mesh is not None else [here]
        self.consumer, self.producer = there.client(), here.client()
        self.receiver = self.consumer.receiver("q", credit=20)
        self.link = self.producer.sender("q", rcv=mode)
        here.advance(0.2)
        self.advance = here.advance
        self.run = here.run
        self.producer.send(self.link, settled=True)
        self.sent: list[Sent] = [self.producer.send(self.link, message(str(number))) for number in range(3)]
        self.arrived: list[Arrival] = self.consumer.take(4)[1:]

    @property
    def passages(self) -> int:
        """The number of fast deliveries at all routers."""
        return sum(
            isinstance(entry, FastDelivery)
            for network in self.networks
            for record in network.core.context.connections
            for session in record.engine.channels.sessions
            for entry in session.flow_state.incoming.deliveries.values()
        )


# The stages of the first two deliveries; the third has no disposition yet.


def _sent(scene: Scene) -> None:
    """Leave the deliveries as they are: sent, and without an outcome."""


def _answered(scene: Scene) -> None:
    for arrival in scene.arrived[:2]:
        arrival.dispose(Accepted(), settled=False)
    scene.run()


def _settled(scene: Scene) -> None:
    for arrival in scene.arrived[:2]:
        arrival.dispose(Released(), settled=True)
    scene.run()


def _forgotten(scene: Scene) -> None:
    for sent in scene.sent[:2]:
        sent.dispose(None, settled=True)
    scene.run()


STAGES = (_sent, _answered, _settled, _forgotten)


# The events at each stage.


def _sender_closes(scene: Scene) -> None:
    scene.link.detach()


def _sender_detaches(scene: Scene) -> None:
    scene.link.detach(closed=False)


def _receiver_closes(scene: Scene) -> None:
    scene.receiver.detach()


def _receiver_detaches(scene: Scene) -> None:
    scene.receiver.detach(closed=False)


def _senders_session_ends(scene: Scene) -> None:
    scene.producer.session.end()


def _receivers_session_ends(scene: Scene) -> None:
    scene.consumer.session.end()


def _sender_is_lost(scene: Scene) -> None:
    scene.producer.lose()


def _receiver_is_lost(scene: Scene) -> None:
    scene.consumer.lose()


def _receiver_says_how_far(scene: Scene) -> None:
    for arrival in scene.arrived:
        arrival.dispose(Received(section_number=0, section_offset=0), settled=False)


def _receiver_rejects(scene: Scene) -> None:
    for arrival in scene.arrived:
        arrival.dispose(Rejected(), settled=False)


def _receiver_settles_without_a_word(scene: Scene) -> None:
    for arrival in scene.arrived:
        arrival.dispose(None, settled=True)


def _sender_speaks(scene: Scene) -> None:
    for sent in scene.sent:
        sent.dispose(Accepted(), settled=False)


def _both_settle(scene: Scene) -> None:
    for sent, arrival in zip(scene.sent, scene.arrived, strict=True):
        sent.dispose(None, settled=True)
        arrival.accept()


def _statistics(scene: Scene) -> None:
    for network in scene.networks:
        snapshot(network.core)


PARTINGS = (
    _sender_closes,
    _sender_detaches,
    _receiver_closes,
    _receiver_detaches,
    _senders_session_ends,
    _receivers_session_ends,
    _sender_is_lost,
    _receiver_is_lost,
    _receiver_says_how_far,
    _receiver_rejects,
    _receiver_settles_without_a_word,
    _sender_speaks,
    _both_settle,
    _statistics,
)


def _name(step: Callable[[Scene], None]) -> str:
    return step.__name__.lstrip("_")


def _account(scene: Scene) -> list[Any]:
    """Return the dispositions that each peer has got, and the routers' statistics."""
    said = [each.said for each in (*scene.sent, *scene.arrived)]
    return [said, [statistics(network.core, at_once=False) for network in scene.networks]]


def _still(client: Client) -> bool:
    return not client.is_lost and client.session.can_send


def _played(
    stage: Callable[[Scene], None], parting: Callable[[Scene], None], *, mesh: bool, mode: ReceiverSettleMode
) -> tuple[list[Any], int]:
    """Play a scene. Returns: its account, and the number of fast deliveries before the event."""
    scene = Scene(mesh=mesh, mode=mode)
    stage(scene)
    passages = scene.passages
    log = _account(scene)
    parting(scene)
    scene.run()
    scene.advance(0.5)
    log += _account(scene)
    # The remaining peers settle the rest.
    for arrival in scene.arrived:
        if _still(scene.consumer):
            arrival.accept()
    scene.run()
    for sent in scene.sent:
        if _still(scene.producer):
            sent.dispose(sent.outcome, settled=True)
    scene.run()
    log += _account(scene)
    if scene.mesh is not None:
        scene.mesh.leave()
    else:
        scene.networks[0].leave()
    return log, passages


@pytest.mark.parametrize("mesh", [False, True], ids=["one", "mesh"])
@pytest.mark.parametrize("mode", [FIRST, SECOND])
@pytest.mark.parametrize("stage", STAGES, ids=_name)
def test_they_end_as_they_would_have_if_they_had_been_decided(
    stage: Callable[[Scene], None], mode: ReceiverSettleMode, mesh: bool
) -> None:
    for parting in PARTINGS:
        with relaying(alone=True):
            relayed, passages = _played(stage, parting, mesh=mesh, mode=mode)
        with relaying(alone=False):
            decided, none = _played(stage, parting, mesh=mesh, mode=mode)
        assert relayed == decided, parting.__name__
        assert passages >= 1, "the kernel has none of them"
        assert none == 0
