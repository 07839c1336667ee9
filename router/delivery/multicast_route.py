"""The fast route of a multicast: the links by which the kernel may relay each delivery of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.policies.annotations import DeliveryAnnotationsRule
from amqpmesh.router import kernel
from amqpmesh.router.delivery.dispatch import room
from amqpmesh.router.delivery.fast_links import set_credit
from amqpmesh.router.model.node import InternalNode, LaneNode
from amqpmesh.router.small_set import first

if TYPE_CHECKING:
    from amqpmesh.router.context import Context
    from amqpmesh.router.model.links import OutgoingLink
    from amqpmesh.router.model.node import Node


def set_multicast(context: Context, route: kernel.FastRoute, entry: Node) -> bool:
    """Set the links by which each delivery of a multicast leaves, without those that have stalled for too long.

    They are the receivers here, and the lanes of a tree to other routers. In a mesh the receivers have a node of their
    own, which lends its credit to that of the tree.

    Args: entry: the node that deliveries come to. Returns: False: the router must decide about each delivery.
    """
    awaited: list[OutgoingLink] = []
    left_out: list[OutgoingLink] = []
    for node in (entry, *(share.node for share in entry.shares)):
        if not _list(node, awaited, left_out):
            return False
    if not awaited or not (_set_tree(context, route, entry) if isinstance(entry, InternalNode) else not entry.shares):
        return False
    # Links of one connection follow each other: the kernel counts what they need together.
    by_connection: dict[int, list[kernel.KernelLink]] = {}
    for each in awaited:
        endpoint = each.endpoint
        by_connection.setdefault(each.connection.number, []).append(endpoint.flow_state)
        if endpoint.input_handle is not None:
            kernel.enable_fast_path(endpoint.flow_state, endpoint.input_handle, route)
    for each in left_out:
        kernel.disable_fast_path(each.endpoint.flow_state)  # its next flow includes it again
    route.links = [each for links in by_connection.values() for each in links]
    route.bulk = []
    route.left_out = [each.endpoint.flow_state for each in left_out]
    # To a single receiver a multicast is an ordinary delivery, but not if it is one of a tree.
    route.order = kernel.ALL if len(awaited) > 1 or left_out or route.hops else kernel.LEAST
    route.room = min(room(each) for each in awaited)
    # Links without credit are listed, too: it comes and goes, and the route stays.
    route.lists_all = True
    is_dropping = entry.config.delivery_annotations is DeliveryAnnotationsRule.DROP
    route.passing = kernel.PASS_NONE if is_dropping else kernel.PASS_THEIRS
    return True


def _list(node: Node, awaited: list[OutgoingLink], left_out: list[OutgoingLink]) -> bool:
    """Add the links of a node to those that get each delivery, or to those that are left out.

    Returns: False: the router must decide about each delivery.
    """
    if node.waiting.size or node.copies or node.remote is not None or not node.is_multicast:
        return False
    gets_all = len(awaited)
    for each in node.outgoing:
        is_foreign = each.lane is not None and each.lane != node.lane
        if is_foreign or each.is_over or each.gone or each.connection.unsettled_after_detach.get(node):
            return False
        if not each.skipped:
            awaited.append(each)
        elif each.is_ready:
            return False  # it is about to be included again
        else:
            left_out.append(each)
    # While all receivers here are skipped, a multicast of a tree waits for the first of them.
    return len(awaited) > gets_all or isinstance(node, InternalNode)


def _set_tree(context: Context, route: kernel.FastRoute, entry: InternalNode) -> bool:
    """Set what the kernel needs to know of a tree: hops, the history, and the credit of the receivers here.

    Returns: False: no delivery of the tree has come yet.
    """
    if entry.lane is None:
        return False
    route.hops = context.routes.hop_limit(entry.lane)
    if isinstance(entry, LaneNode):
        route.history = context.routes.tree_history(entry.lane)
        if route.history is None:
            return False
    if entry.shares:
        set_credit(route, first(entry.shares))
    return True
