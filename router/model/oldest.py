"""The oldest unsettled deliveries of a connection: the one of each session that its peer has had longest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.kernel import Delivery, FastDelivery, FastLeg
from amqpmesh.router.model.links import OutgoingLink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqpmesh.router.model.connections import ConnectionRecord


def oldest_unsettled(record: ConnectionRecord, now: float) -> Iterator[tuple[OutgoingLink, float]]:
    """Return the link of the oldest delivery that was sent in each session and is not settled, and its age in seconds.

    The age counts from its arrival at this router. Later deliveries of the session are younger, whichever link they
    left by.
    """
    for session in record.engine.channels.sessions:
        entry = session.flow_state.outgoing.oldest()
        if entry is None:
            continue
        if isinstance(entry, FastDelivery):
            link, arrived = entry.outgoing.record, entry.arrived
        elif isinstance(entry, FastLeg):
            link, arrived = entry.outgoing.record, entry.multicast.arrived
        elif isinstance(entry, Delivery) and entry.leg is not None:
            link, arrived = entry.link.record, entry.leg.relay.came
        else:  # it has ended at its link, and waits for the end of its session
            continue
        if isinstance(link, OutgoingLink):
            yield link, max(0.0, now - arrived)


def note_oldest(ages: dict[object, float], owner: object, age: float) -> None:
    """Keep the greatest age of an owner of deliveries."""
    if age > ages.get(owner, -1.0):
        ages[owner] = age
