"""Where deliveries may leave without anybody being asked: decided once for a node, and again when something changes.

As long as nothing changes the kernel relays what comes by what was decided here (`FastRoute`), and counts. What it has
counted is told to links and pools before anybody looks at them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.policies.annotations import DeliveryAnnotationsRule
from amqpmesh.policies.distribution import Distribution
from amqpmesh.router import kernel
from amqpmesh.router.delivery.dispatch import room
from amqpmesh.router.delivery.lifetime import let_linger
from amqpmesh.router.model.credit_share import Share
from amqpmesh.router.model.lane import LaneKind
from amqpmesh.router.model.links import IncomingLink, OutgoingLink
from amqpmesh.router.small_set import first

if TYPE_CHECKING:
    from amqpmesh.router.core import Core
    from amqpmesh.router.model.node import Address

_ORDER: Final = {Distribution.BALANCED: kernel.LEAST, Distribution.CLOSEST: kernel.TURNS}

#: Receivers of a node that are looked at whenever something has changed there. Where there are more it waits until one
#: more delivery has come.
FEW: Final = 64


def close(core: Core, address: Address) -> None:
    """Something changes at a node: nothing leaves it, or a node that leads there, without a decision."""
    route = address.fast_route
    if route is not None:
        route.generation = 0
        core.closed[address] = None
    for share in address.borrowers:
        route = share.ingress.fast_route
        if route is not None:
            route.generation = 0
            core.closed[share.ingress] = None


def reopen(core: Core, *, amid: bool = False) -> None:
    """Decide anew where something has changed.

    Args: amid: more of the batch is to be handled. Where there are many receivers, that is waited for: else all of
        them are looked at as often as one of them says something.
    """
    closed, core.closed = core.closed, {}
    for address in closed:
        route = address.fast_route
        assert route is not None, "else nothing was closed"
        if _receivers(address) <= FEW or (route.wanted and not amid):
            route.wanted = False
            _decide(core, address)
        elif route.wanted:
            core.closed[address] = None


def _receivers(address: Address) -> int:
    """How many are looked at to decide for a node."""
    shares = address.shares
    return len((first(shares).node if len(shares) == 1 else address).creditors)


def open_input(core: Core, incoming: IncomingLink) -> None:
    """A delivery came by a link and was decided: those that follow may be relayed as it was, and what is left of it."""
    address, link = incoming.address, incoming.link
    flow_state = link.flow_state
    route = flow_state.fast_route
    if route is not None:
        route.wanted = True
        return
    if link.input_handle is None or not link.is_attached:
        return
    if (
        address is not None
        and not incoming.connection.strict_annotations
        and (incoming.lane is None or incoming.lane.kind is LaneKind.ANYCAST)
    ):
        if address.fast_route is None:
            address.fast_route = kernel.FastRoute()
            core.closed[address] = None
        route = address.fast_route
        route.wanted = True
    kernel.enable_fast_path(flow_state, link.input_handle, route)


def _decide(core: Core, address: Address) -> None:
    """Whether what comes to a node leaves it always in the same way, and by which links."""
    route = address.fast_route
    assert route is not None
    node = address
    route.lent = -1
    route.quiet = 0
    if address.shares:
        if len(address.shares) > 1:
            return
        share = first(address.shares)
        node, route.lent, route.quiet = share.node, share.input.credit, share.pool.quiet(share.input)
        if address.copies or address.waiting.size or address.outgoing or node.shares:
            return
    config = address.config
    distribution = node.config.distribution
    if (
        node.waiting.size
        or node.copies
        or config.redeliver
        or config.absolute_expiry
        or address.far is not None
        or node.far is not None
    ):
        return
    if address.is_multicast or node.is_multicast or distribution not in _ORDER:
        return
    ready = list(node.creditors)
    if not ready or any(each.cost != ready[0].cost or each.connection.held.get(node) for each in ready):
        return
    if node.lane is None and any(each.lane is not None for each in ready):
        return  # consumers at other routers of what is served here: what goes there begins its way here
    if node.lane is not None:
        if node.lane.kind is not LaneKind.ANYCAST:
            return
        route.hops = core.hops_to(node.lane)
        route.order = kernel.FIRST
    else:
        route.order = _ORDER[distribution]
    route.links = [each.link.flow_state for each in ready if not each.bulk]
    route.bulk = [each.link.flow_state for each in ready if each.bulk]
    for each in ready:
        link = each.link
        if link.input_handle is not None:
            kernel.enable_fast_path(link.flow_state, link.input_handle, route)
    route.room = min(room(each) for each in node.outgoing)
    route.drops = config.delivery_annotations is DeliveryAnnotationsRule.DROP
    route.generation = core.flow_state.generation


def catch_up(core: Core) -> None:
    """Tell links, pools and shares what was relayed since they were told last."""
    flow_state = core.flow_state
    touched, flow_state.touched = flow_state.touched, []
    flow_state.due = False
    now = core.now
    for link in touched:
        link.touched = False
        record = link.record
        if isinstance(record, OutgoingLink):
            if (link.link_credit > 0) is not (record in record.address.creditors):
                record.note_credit()
                if link.link_credit:  # it may take deliveries again
                    close(core, record.address)
            core.touched_outgoing[record] = None
            core.touched[record.address] = None
        elif isinstance(record, IncomingLink):
            if link.remote_handle == -1:
                let_linger(core, record)
            count, link.relayed = link.relayed, 0
            address = record.address
            assert address is not None
            if not link.link_credit:
                record.time_credit(now)
            record.pool.relayed(record.input, count, link.last_at)
            link.quiet = record.pool.quiet(record.input)
            core.touched[address] = None
            for share in address.shares:
                share.relayed(count, link.last_at)
                core.touched[share.node] = None
                if address.fast_route is not None:
                    address.fast_route.quiet = share.pool.quiet(share.input)


def stay_quiet(address: Address) -> None:
    """The credit of a node was divided: find out anew when its inputs are to be looked at."""
    pool = address.pool
    for each in pool.watched:
        owner = each.owner
        if isinstance(owner, IncomingLink):
            owner.link.flow_state.quiet = pool.quiet(each)
        elif isinstance(owner, Share) and owner.ingress.fast_route is not None:
            owner.ingress.fast_route.quiet = pool.quiet(each)


def expanded(relay: kernel.Relay) -> None:
    """What the kernel does not know of a relay that was its own."""
    outgoing = relay.legs[0].branch
    assert isinstance(outgoing, OutgoingLink)
    relay.address = outgoing.address
