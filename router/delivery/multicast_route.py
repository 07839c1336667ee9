"""The fast route of a multicast: the links by which the kernel may relay each delivery of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.policies.annotations import DeliveryAnnotationsRule
from amqpmesh.router import kernel
from amqpmesh.router.delivery.dispatch import room

if TYPE_CHECKING:
    from amqpmesh.router.model.links import OutgoingLink
    from amqpmesh.router.model.node import Node


def set_multicast(route: kernel.FastRoute, node: Node) -> bool:
    """Set the links by which each delivery of a multicast leaves, without those that have stalled for too long.

    Returns: False: the router must decide about each delivery; for example, a receiver is at another router.
    """
    if node.waiting.size or node.copies or node.shares or node.lane is not None:
        return False
    awaited: list[OutgoingLink] = []
    left_out: list[OutgoingLink] = []
    for each in node.outgoing:
        if each.lane is not None or each.is_over or each.gone or each.connection.unsettled_after_detach.get(node):
            return False
        if not each.skipped:
            awaited.append(each)
        elif each.is_ready:
            return False  # it is about to be included again
        else:
            left_out.append(each)
    if not awaited:
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
    # To a single receiver a multicast is an ordinary delivery.
    route.order = kernel.ALL if len(awaited) > 1 or left_out else kernel.LEAST
    route.room = min(room(each) for each in awaited)
    # Links without credit are listed, too: it comes and goes, and the route stays.
    route.lists_all = True
    is_dropping = node.config.delivery_annotations is DeliveryAnnotationsRule.DROP
    route.passing = kernel.PASS_NONE if is_dropping else kernel.PASS_THEIRS
    return True
