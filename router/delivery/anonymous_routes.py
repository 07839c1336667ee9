"""The routes by which the kernel may relay deliveries of an anonymous sender: one for each address that it names.

A route is put into the table of the sender's link once a delivery to the address was decided. So an address in the
table is one that the sender may send to, and that leads to one node until the router's epoch changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router import kernel
from amqpmesh.router.credit.anonymous_window import SharedWindow
from amqpmesh.router.delivery.fast_routes import wanted_route
from amqpmesh.router.memory.retained import is_too_much
from amqpmesh.router.model.links import IncomingLink
from amqpmesh.router.model.node import LocalNode, node_of

if TYPE_CHECKING:
    from amqpmesh.router.context import Context
    from amqpmesh.router.credit.sinks import FixedCredit
    from amqpmesh.router.kernel import Relay
    from amqpmesh.router.model.node import Node

#: Characters of the longest address that has a route: peers choose them.
LONGEST: Final = 255


def open_route(context: Context, relay: Relay, incoming: IncomingLink, to: str) -> None:
    """Let the kernel relay further deliveries of an anonymous sender that name the same address.

    While messages wait for the address, here or at another router, the router decides about those behind them. The
    router's own senders have no routes.

    Args: relay: a delivery to the address, with its node. to: the address, as the message names it.
    """
    node, endpoint, window = node_of(relay), incoming.endpoint, incoming.pool
    assert node is not None, "the caller has found it"
    if (
        (isinstance(window, SharedWindow) and window.has_portion(relay.to))
        or incoming.connection.strict_annotations
        or incoming.connection.own  # most of its answers go to nodes that live for one answer
        or len(to) > LONGEST
        or not is_steady(context, node)
        or endpoint.input_handle is None
        or not endpoint.is_attached
    ):
        return
    flow_state = endpoint.flow_state
    table = flow_state.fast_route
    if not isinstance(table, kernel.AnonymousRoutes):
        table = kernel.AnonymousRoutes()
        kernel.enable_fast_path(flow_state, endpoint.input_handle, table)
    before = table.octets
    if table.generation != context.kernel.epoch:
        table.clear()
        table.generation = context.kernel.epoch
    name = to.encode()
    if not is_too_much(context.memory, incoming.connection, table.octets_for(name)):
        table.put(name, wanted_route(context, node))
    octets = table.octets - before
    incoming.remembered += octets
    incoming.connection.account.add(octets)


def is_steady(context: Context, node: Node) -> bool:
    """Return whether an address leads to `node` for as long as the router's epoch and the node stay.

    In a mesh, an address leads to its local node while only this router has consumers of it.
    """
    return node.remote is None and (not context.routes.is_in_mesh or isinstance(node, LocalNode))


def watch_window(window: FixedCredit) -> None:
    """Tell the kernel how many deliveries each sender with a window may send before the window must be told."""
    for sink in window.sinks:
        owner = sink.owner
        if isinstance(owner, IncomingLink):
            owner.endpoint.flow_state.credit_slack = window.credit_slack(sink)
