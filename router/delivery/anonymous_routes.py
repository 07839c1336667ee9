"""The routes by which the kernel may relay deliveries of an anonymous sender: one for each address that it names.

A route is put into the table of the sender's link when the kernel asks for it, or once a delivery to the address was
decided. So an address in the table is one that the sender may send to, and that leads to one node until the router's
epoch changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router import kernel
from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.standard.messaging import DeliveryAnnotations
from amqpmesh.router.credit.anonymous_window import SharedWindow
from amqpmesh.router.delivery import message_head
from amqpmesh.router.delivery.fast_routes import decide_now, wanted_route
from amqpmesh.router.delivery.vouches import is_vouched
from amqpmesh.router.memory.retained import is_too_much
from amqpmesh.router.model.lane import LaneKind
from amqpmesh.router.model.links import IncomingLink
from amqpmesh.router.model.node import IngressNode, LocalNode
from amqpmesh.router.model.open_pools import open_pool
from amqpmesh.router.model.refusal import RefusedError

if TYPE_CHECKING:
    from amqpmesh.router.amqp.codec.types import Symbol, ULong, Value
    from amqpmesh.router.context import Context
    from amqpmesh.router.credit.fixed_credit import FixedCredit
    from amqpmesh.router.model.node import Node

#: Characters of the longest address that has a route: peers choose them.
LONGEST: Final = 255

#: Deliveries that a lane counts as that is made for the first message to an address, in `KernelConnection.work`.
LANE: Final = 50


def resolve(context: Context, incoming: IncomingLink, to: str) -> tuple[Node | None, str]:
    """Return the node for a message, and its address after aliases, as `Context.resolve` does.

    What the kernel has asked for this message is not looked up, or refused and counted, again.
    Raises: RefusedError: as `Context.resolve`.
    """
    foreseen, context.foreseen = context.foreseen, None
    if foreseen is None or foreseen[:3] != (incoming, to, context.kernel.epoch):
        return context.resolve(incoming, to)
    _, _, _, node, address, refusal = foreseen
    if refusal is not None:
        raise refusal
    return node, address


def find_route(context: Context, incoming: IncomingLink, name: bytes) -> None:
    """Put the route of an address into the table of an anonymous sender, or a transit lane, if it can have one.

    The kernel asks for it before it relays the first message to the address.
    Args: name: the octets of `to`, or of a lane's delivery annotations.
    """
    if incoming.connection.strict_annotations:
        return
    try:
        to, settled = (name.decode(), False) if incoming.lane is None else message_head.only_final_address(name)
    except UnicodeDecodeError:
        return
    if not to:
        return
    node, address, refused, made = None, to, None, context.links_made
    try:
        node, address = context.resolve(incoming, to)
    except RefusedError as refusal:
        refused = refusal
    if context.links_made != made:
        incoming.connection.engine.flow_state.work -= LANE * (context.links_made - made)
    context.foreseen = (incoming, to, context.kernel.epoch, node, address, refused)
    if node is not None and node.has_consumers:
        open_route(context, incoming, node, to, None if incoming.lane is not None else address, name, settled=settled)
        decide_now(context, node)
        pool = node.pool
        if node not in context.touched and not pool.is_open:
            open_pool(node, pool)


def open_route(
    context: Context,
    incoming: IncomingLink,
    node: Node,
    named: str,
    address: str | None,
    name: bytes | None,
    *,
    settled: bool = False,
) -> None:
    """Let the kernel relay deliveries of an anonymous sender, or a transit lane, that name an address.

    While messages wait for the address at another router, the router decides about those behind them. While they wait
    here, the route is invalid. The router's own senders have no routes.

    Args: node: of the address. named: the address, as messages name it. address: the same, after aliases; None: they
        come by a lane. name: the octets that the kernel looks up; None: messages have more than these. settled: they
        come by a lane that alone leaves them unsettled.
    """
    endpoint, window = incoming.endpoint, incoming.pool
    if (
        (node.lane is not None and isinstance(window, SharedWindow) and window.has_portion(address))
        or incoming.connection.strict_annotations
        or incoming.connection.own  # most of its answers go to nodes that live for one answer
        or len(named) > LONGEST
        or ((context.routes.is_in_mesh or node.remote is not None) and not is_steady(context, node))
        or endpoint.input_handle is None
        or not endpoint.is_attached
    ):
        return
    route = _route_to(context, address, node)
    if name is None or route is None:
        return
    flow_state = endpoint.flow_state
    table = flow_state.fast_route
    if not isinstance(table, kernel.AnonymousRoutes):
        table = kernel.AnonymousRoutes()
        if isinstance(window, SharedWindow):
            table.waited_for = window.portions
        if incoming.to is not None:
            table.only = name
        kernel.enable_fast_path(flow_state, endpoint.input_handle, table)
    if table.generation != context.kernel.epoch:
        table.clear()
        table.generation = context.kernel.epoch
    if not is_too_much(context.memory, incoming.connection, table.octets_for(name, route)):
        table.put(name, kernel.SettledRoute(route) if settled and isinstance(route, kernel.FastRoute) else route)
    octets = table.octets - table.counted  # the kernel drops routes, too
    table.counted = table.octets
    incoming.remembered += octets
    incoming.connection.account.add(octets)


def annotations_alone(relay: kernel.Relay, data: bytes) -> bytes | None:
    """Return the delivery annotations of a message on a transit lane; None: they have more than its final address."""
    assert relay.head is not None, "else it has no address"
    start, end = relay.head.delivery_annotations
    section = data[start:end]
    return None if message_head.only_final_address(section)[0] is None else section


def is_steady(context: Context, node: Node) -> bool:
    """Return whether an address can lead to `node` for as long as the router's epoch and the node stay.

    In a mesh, an address leads to its local node while only this router has consumers of it. It leads to a transit lane
    while only one other router has some. A multicast leads to its ingress, wherever its consumers are.
    """
    return node.remote is None and (
        not context.routes.is_in_mesh
        or isinstance(node, LocalNode)
        or (isinstance(node, IngressNode) and node.is_multicast)
        or (node.lane is not None and node.lane.kind is LaneKind.TRANSIT)
    )


def _route_to(context: Context, address: str | None, node: Node) -> kernel.FastRoute | kernel.TransitRoute | None:
    """Return the route of an address that leads to `node`, which is steady; None: each message needs a decision.

    Args: address: as of `open_route`.
    """
    lane = node.lane
    if lane is None or lane.kind is not LaneKind.TRANSIT:
        if isinstance(node, LocalNode):
            if address is not None:  # a message on a lane has come to the only one
                context.routes.watch_local(node)
        elif isinstance(node, IngressNode):
            node.is_named = True
        return wanted_route(context, node)
    if address is None or is_vouched(context, address) or not context.routes.watch_transit(node.tenant, address):
        return None
    ours: dict[Symbol | ULong, Value] = {message_head.FINAL_ADDRESS: address}
    section = encode_composite(DeliveryAnnotations(value=ours))
    of_settled = encode_composite(DeliveryAnnotations(value={**ours, message_head.PRESETTLED: True}))
    return kernel.TransitRoute(wanted_route(context, node), address, section, of_settled)


def watch_window(window: FixedCredit) -> None:
    """Tell the kernel how many deliveries each sender with a window may send before the window must be told."""
    for sink in window.sinks:
        owner = sink.owner
        if isinstance(owner, IncomingLink):
            owner.endpoint.flow_state.credit_slack = window.credit_slack(sink)
