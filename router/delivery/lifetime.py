"""What is still held of a relay and its legs, and when nothing is left of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.model.credit_share import Share
from amqpmesh.router.model.links import IncomingLink, OutgoingLink
from amqpmesh.router.model.node import Address, address_of

if TYPE_CHECKING:
    from amqpmesh.router.core import Core
    from amqpmesh.router.kernel import Leg, Relay


def leg_sent(core: Core, leg: Leg) -> None:
    """The last frame of a leg is written, or it was aborted."""
    delivery = leg.delivery
    if core.recording is not None:
        core.recording.sent(leg)
    if leg.aborting or (delivery is not None and delivery.settled):
        finish(core, leg)


def finish(core: Core, leg: Leg) -> None:
    """Nothing will be sent or heard of a leg any more."""
    uncount(core, leg)
    leg.end()
    end_lane(core, leg)
    close_if_done(core, leg.relay)


def end_lane(core: Core, leg: Leg) -> None:
    """What was the last of a lane that another has taken the place of, may be done now."""
    outgoing = leg.branch
    assert isinstance(outgoing, OutgoingLink)
    if outgoing.retired and core.mesh is not None:
        core.mesh.routes.lane_links.end_if_done(outgoing)


def uncount(core: Core, leg: Leg) -> None:
    """It is no longer unsettled on its link."""
    if leg.counted:
        outgoing = leg.branch
        assert isinstance(outgoing, OutgoingLink)
        leg.counted = False
        outgoing.outstanding -= 1
        if outgoing in outgoing.connection.lingering:
            recount(core, outgoing)
        if outgoing.outstanding + 1 >= outgoing.max_unsettled:
            core.touch_outgoing(outgoing)


def close_if_done(core: Core, relay: Relay) -> None:
    """Let go of a relay once neither side has anything left to say."""
    if relay.closed or relay.queued or not relay.complete:
        return
    if relay.incoming is not None and not relay.incoming.settled:
        return
    if relay.open or (relay.chunks and not relay.legs):
        return
    relay.closed = True
    core.relays -= 1
    if isinstance(relay.source, IncomingLink):
        let_linger(core, relay.source)
    drop_kept(core, relay)
    if core.recording is not None:
        core.recording.over(relay)
    core.legs_seen += max(0, len(relay.legs) - 1)
    # Relays and deliveries refer to each other: the circles end here.
    for leg in relay.legs:
        if leg.delivery is not None:
            leg.delivery.leg = None
        if isinstance(leg.branch, OutgoingLink):
            let_linger(core, leg.branch)
    if relay.incoming is not None:
        relay.incoming.relay = None
    relay.legs = []


def let_linger(core: Core, taken: IncomingLink | OutgoingLink) -> None:
    """The last live delivery of a link that was detached without being closed may be settled now."""
    if taken in taken.connection.lingering and not has_unsettled(taken):
        no_longer_lingers(core, taken)
        keep_count(core, taken)


def recount(core: Core, outgoing: OutgoingLink) -> None:
    """Fewer deliveries may be unsettled on a link that was detached without being closed."""
    record = outgoing.connection
    before = record.lingering.get(outgoing)
    if before is not None:
        record.lingering[outgoing] = outgoing.outstanding
        record.held[outgoing.address] = record.held.get(outgoing.address, 0) + outgoing.outstanding - before
        let_linger(core, outgoing)


def has_unsettled(taken: IncomingLink | OutgoingLink) -> bool:
    """Whether a delivery is unsettled on a link. Those that the kernel has sent are in no map."""
    flow_state = taken.link.flow_state
    return bool(flow_state.unsettled) or (flow_state.sender and flow_state.outstanding > 0)


def drop_chunks(relay: Relay) -> None:
    """Nobody will have what waits of it."""
    for chunk in relay.chunks:
        chunk.release()
    relay.chunks.clear()


def begin_keeping(core: Core, relay: Relay) -> None:
    """The message may be sent again: its octets are to be kept, and with them the place where it would wait."""
    drop_kept(core, relay)
    relay.kept = bytearray()
    address = chosen_at(core, relay)
    assert address is not None
    address.returning += 1


def drop_kept(core: Core, relay: Relay) -> None:
    """The message will not be sent again."""
    if relay.kept is not None:
        address = chosen_at(core, relay)
        assert address is not None
        address.account.add(-len(relay.kept))
        relay.kept = None
        address.returning -= 1
        if not address.returning:
            core.touch(address)


def chosen_at(core: Core, relay: Relay) -> Address | None:
    """Where its way is chosen, of one that is on it or waits for one; None: its address is not known."""
    return relay.share.ingress if isinstance(relay.share, Share) else address_of(relay)


def keep_count(core: Core, taken: IncomingLink | OutgoingLink) -> None:
    """A link is gone: what it has counted stays, once."""
    if core.recording is not None:
        core.recording.last_counts(taken)
    if not taken.link.flow_state.has_counted:
        return
    core.past.add(taken)
    if taken.address is not None:
        seen_as(core, taken.address).count(taken)
    taken.link.flow_state.reset_counters()


def no_longer_lingers(core: Core, taken: IncomingLink | OutgoingLink) -> bool:
    """A link that was detached without being closed has no live delivery any more, or is over. Returns: whether it was
    one."""
    record = taken.connection
    count = record.lingering.pop(taken, None)
    if count is None:
        return False
    if isinstance(taken, OutgoingLink):
        held = record.held.pop(taken.address, 0) - count
        if held > 0:
            record.held[taken.address] = held
        core.relieved.setdefault(record, set()).add(taken.address)
    return True


def count_undelivered(core: Core, address: Address | None) -> None:
    """A delivery went to nobody. Args: address: where it should have gone; None: there is no such address."""
    core.undelivered += 1
    if address is not None:
        seen_as(core, address).undelivered += 1
        if address.lane is not None and not (address.is_ingress or address.has_consumers):
            core.no_path += 1


def seen_as(core: Core, address: Address) -> Address:
    """The address as clients see it that a node belongs to; the node itself, where there is none."""
    if address.is_ingress or (address.name and core.mesh is not None and core.mesh.routes.is_internal(address)):
        return core.addresses.find(address.tenant, address.name) or address
    return address
