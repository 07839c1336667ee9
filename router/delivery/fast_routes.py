"""Fast routes: the links by which the kernel may relay the deliveries of a node without a decision.

A fast route is decided once for a node, and again when something there has changed. Until then the kernel relays by it
alone, and counts; `Context.catch_up` tells links and pools of the counts before they are used.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from amqpmesh.router import kernel
from amqpmesh.router.delivery import hop_spans, tracing
from amqpmesh.router.delivery.dispatch import FEW
from amqpmesh.router.delivery.fast_links import set_credit, set_links, set_shares, set_slack
from amqpmesh.router.delivery.multicast_route import set_multicast
from amqpmesh.router.delivery.redelivery import keeper_of
from amqpmesh.router.model.credit_share import CreditShare
from amqpmesh.router.model.links import IncomingLink, OutgoingLink
from amqpmesh.router.model.node import LocalNode
from amqpmesh.router.model.open_pools import open_pool
from amqpmesh.router.small_set import first

if TYPE_CHECKING:
    from amqpmesh.router.context import Context
    from amqpmesh.router.model.node import Node


def reopen(context: Context, *, amid: bool = False) -> None:
    """Decide again about the fast routes that were closed.

    Args: amid: more of the batch follows. Nodes with many receivers wait for its end: else each event of one receiver
        would have all of them looked at.
    """
    closed, context.closed = context.closed, {}
    for node in closed:
        route = node.fast_route
        assert route is not None, "else nothing was closed"
        if _receivers(node) <= FEW or (route.wanted and not amid):
            _decide_anew(context, node)
        else:
            _clear(route)
            if route.wanted:
                context.closed[node] = None


def _clear(route: kernel.FastRoute) -> None:
    # Tables of anonymous senders may keep the route when the node is gone.
    route.links = route.bulk = route.left_out = kernel.NO_LINKS
    route.queue = None


def _decide_anew(context: Context, node: Node) -> None:
    route = node.fast_route
    assert route is not None, "else nothing was closed"
    _clear(route)
    route.wanted = False
    _decide(context, node)


def decide_now(context: Context, node: Node) -> None:
    """Decide about the fast route of a node, if it was closed, amid a batch that the kernel relays."""
    if node in context.closed and _receivers(node) <= FEW:
        del context.closed[node]
        _decide_anew(context, node)


def _receivers(node: Node) -> int:
    """Return how many receivers a decision about a node looks at."""
    count = len(node.creditors)
    if node.shares:
        count += sum(len(share.node.creditors) for share in node.shares)
    return count


def open_input(context: Context, incoming: IncomingLink) -> None:
    """Let the kernel relay further frames and deliveries of a link, after the router has decided about one."""
    node, endpoint = incoming.node, incoming.endpoint
    flow_state = endpoint.flow_state
    route = flow_state.fast_route
    if route is not None:
        route.wanted = True
        return
    if endpoint.input_handle is None or not endpoint.is_attached:
        return
    if node is not None and not incoming.connection.strict_annotations and not incoming.from_old_parent:
        route = wanted_route(context, node)
    kernel.enable_fast_path(flow_state, endpoint.input_handle, route)


def wanted_route(context: Context, node: Node) -> kernel.FastRoute:
    """Return the fast route of a node, which is about to be decided if it is not valid."""
    route = node.fast_route
    if route is None:
        route = node.fast_route = kernel.FastRoute()
        context.closed[node] = None
    route.wanted = True
    return route


def _decide(context: Context, entry: Node) -> None:
    """Decide whether the deliveries of a node all leave in the same way, and by which links."""
    route = entry.fast_route
    assert route is not None
    route.borrowed = -1
    route.credit_slack = 0
    route.lists_all = False
    route.shares = None
    route.share = None
    route.window = None
    traces, config, shares = context.traces, entry.config, entry.shares
    route.traced = traces.spans is not None and hop_spans.is_traced(context, entry)
    for share in shares:
        share.credit_sink.route = None
    if config.absolute_expiry or entry.remote is not None or (config.redeliver and config.drops_duplicates):
        return
    if traces.addresses and tracing.holds(context, entry):
        return
    if not config.redeliver:
        route.keeper = None
    elif not _may_keep(context, entry):
        return
    elif route.keeper is None or route.keeper.rules is not config:
        route.keeper = keeper_of(context, entry, partial(_grave, context, entry))
    if entry.is_multicast:
        decided = set_multicast(context, route, entry)
    elif not shares:
        decided = set_links(context, route, entry, entry, route)
    elif entry.copies or entry.waiting.size or entry.outgoing:
        decided = False
    elif len(shares) == 1:
        share = first(shares)
        set_credit(route, share)
        decided = set_links(context, route, entry, share.node, route)
    else:
        decided = set_shares(context, route, entry)
    if decided:
        route.generation = context.kernel.generation
    else:
        route.queue = _waited_for(entry)


def _waited_for(entry: Node) -> kernel.KernelConnection | None:
    """Return the connection of a receiver that deliveries wait for; None: none waits, or there is no receiver."""
    nodes = (entry, *(share.node for share in entry.shares))
    if not any(node.waiting.size for node in nodes):
        return None
    return next((first(node.outgoing).connection.engine.flow_state for node in nodes if node.outgoing), None)


def _may_keep(context: Context, entry: Node) -> bool:
    """Return whether the kernel can send messages again that come to an address which redelivers."""
    return isinstance(entry, LocalNode) and not entry.shares and not entry.is_multicast and context.recording is None


def _grave(context: Context, entry: Node) -> kernel.FastRoute | None:
    """Return the route of a node's dead letters; None: the router must decide about each of them."""
    name = entry.config.dead_letter
    if name is None or context.routes.is_in_mesh:  # other routers may have receivers of it
        return None
    dead, _ = context.resolve_copy(entry.tenant, name)
    if not isinstance(dead, LocalNode) or dead.remote is not None or not dead.has_consumers:
        return None
    route = wanted_route(context, dead)
    decide_now(context, dead)
    return route


def stay_quiet(node: Node, pool: kernel.Pool) -> None:
    """Tell the kernel how many deliveries each sink of a node may get before its pool must divide credit again.

    The kernel does that itself if nothing else matters there (`open_pool`). Args: pool: of the node.
    """
    for each in pool.watched:
        owner = each.owner
        if isinstance(owner, IncomingLink):
            owner.endpoint.flow_state.credit_slack = pool.credit_slack(each)
        elif isinstance(owner, CreditShare):
            set_slack(owner)
    open_pool(node, pool)


def expanded(relay: kernel.Relay) -> None:
    """Fill in the node of a relay that the kernel has made from a fast delivery."""
    source, outgoing = relay.source, relay.legs[0].outgoing
    assert isinstance(outgoing, OutgoingLink)
    node = source.node if isinstance(source, IncomingLink) else None
    # The legs of a multicast may leave from two nodes: from the one that it came to, and from the one of the consumers
    # here.
    relay.node = node if node is not None and node.is_multicast else outgoing.node
    if relay.kept is not None:
        outgoing.node.returning += 1
