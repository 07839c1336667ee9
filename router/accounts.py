"""What is still held of a relay and its legs, and when nothing is left of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.links import IncomingLink, OutgoingLink

if TYPE_CHECKING:
    from amqpmesh.router.core import Core
    from amqpmesh.router.kernel.relay import Leg, Relay


def leg_sent(core: Core, leg: Leg) -> None:
    """The last frame of a leg is written, or it was aborted."""
    delivery = leg.delivery
    if leg.aborting or (delivery is not None and delivery.settled):
        finish(core, leg)


def finish(core: Core, leg: Leg) -> None:
    """Nothing will be sent or heard of a leg any more."""
    uncount(core, leg)
    leg.done = True
    end_lane(core, leg)
    close_if_done(core, leg.relay)


def end_lane(core: Core, leg: Leg) -> None:
    """What was the last of a lane that another has taken the place of, may be done now."""
    outgoing = leg.branch
    assert isinstance(outgoing, OutgoingLink)
    if outgoing.retired and core.mesh is not None:
        core.mesh.ways.end_if_done(outgoing)


def uncount(core: Core, leg: Leg) -> None:
    """It is no longer unsettled on its link."""
    if leg.counted:
        outgoing = leg.branch
        assert isinstance(outgoing, OutgoingLink)
        leg.counted = False
        outgoing.unsettled -= 1
        held = outgoing.connection.held
        if outgoing in outgoing.connection.lingering and outgoing.address in held:
            held[outgoing.address] -= 1
        if outgoing.unsettled + 1 >= outgoing.max_unsettled:
            core.touch_outgoing(outgoing)


def close_if_done(core: Core, relay: Relay) -> None:
    """Let go of a relay once neither side has anything left to say."""
    if relay.closed or relay.queued or not relay.complete:
        return
    if relay.incoming is not None and not relay.incoming.settled:
        return
    if relay.legs:
        for leg in relay.legs:
            if not leg.done:
                return
    elif relay.chunks:
        return
    relay.closed = True
    core.relays -= 1
    if isinstance(relay.source, IncomingLink):
        _let_linger(core, relay.source)
    drop_kept(core, relay)
    # Relays and deliveries refer to each other: the circles end here.
    for leg in relay.legs:
        if leg.delivery is not None:
            leg.delivery.leg = None
        if isinstance(leg.branch, OutgoingLink):
            _let_linger(core, leg.branch)
    if relay.incoming is not None:
        relay.incoming.relay = None
    relay.legs = []


def _let_linger(core: Core, taken: IncomingLink | OutgoingLink) -> None:
    """The last live delivery of a link that was detached without being closed may be settled now."""
    if taken in taken.connection.lingering and not taken.link.terminus.unsettled:
        core.no_longer_lingers(taken)


def drop_chunks(relay: Relay) -> None:
    """Nobody will have what waits of it."""
    for chunk in relay.chunks:
        chunk.release()
    relay.chunks.clear()


def drop_kept(core: Core, relay: Relay) -> None:
    """The message will not be sent again."""
    if relay.kept is not None:
        core.budget.add(-len(relay.kept))
        relay.kept = None
