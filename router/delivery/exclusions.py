"""Receivers that will not take a delivery: it is not offered to them again (§3.4.5, undeliverable-here).

The ingress router sends a message again, and does not know the receivers of other routers. So the router of a receiver
names that receiver in an annotation of the outcome. On a lane, the message lists the receivers that must not get it.
Clients see neither.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from amqpmesh.policies.annotations import MESH_PREFIX
from amqpmesh.router.amqp.codec.composite import decode_composite, encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.codec.value_limits import FEW_VALUES, bounded
from amqpmesh.router.amqp.standard.messaging import Modified
from amqpmesh.router.delivery.message_head import delivery_annotations
from amqpmesh.router.kernel import FAILED_STATE, MODIFIED, state_kind
from amqpmesh.router.model.lane import LaneKind
from amqpmesh.router.model.links import IncomingLink, OutgoingLink
from amqpmesh.router.model.node import Node, node_of

if TYPE_CHECKING:
    from amqpmesh.router.amqp.codec.types import ULong, Value
    from amqpmesh.router.context import Context
    from amqpmesh.router.kernel import Leg, Relay

NOT_TO: Final = Symbol(f"{MESH_PREFIX}not-to")
"""The delivery annotation with the receivers that must not get a message."""

BY: Final = Symbol(f"{MESH_PREFIX}by")
"""The message annotation of a `modified` outcome with the receiver; or with the router, if none there may get it."""

#: The most receivers that a message lists. Above that, a whole router is excluded in place of its receiver.
MOST: Final = 16

#: Values of an outcome that routers add, beside those of the receiver: its name, and the frame's.
OURS: Final = 16

_NOT_TO: Final = NOT_TO.encode()


def is_excluded(relay: Relay, node: Node) -> bool:
    """Tell whether no receiver is left that a delivery of a node may go to."""
    excluded = relay.excluded
    if excluded is None:
        return False
    if node.shares:
        return all(share.is_excluded(excluded) for share in node.shares)
    return excluded.issuperset(node.outgoing)


def exclude(relay: Relay, node: Node, leg: Leg, modified: Modified) -> bool:
    """Note at the ingress router that a receiver must not get a delivery again.

    Args: node: the node that the delivery left from.
    Returns: whether a receiver had the delivery; False: the other router had no receiver that may get it.
    """
    outgoing = leg.outgoing
    assert isinstance(outgoing, OutgoingLink)
    by = (modified.message_annotations or {}).get(BY) if outgoing.lane is not None else None
    is_receiver = isinstance(by, str) and "/" in by
    excluded = relay.excluded = relay.excluded or set()
    # A message of another format has no annotations.
    if is_receiver and relay.message_format == 0 and len(_listed(relay)) < MOST:
        excluded.add(by)
    else:
        excluded.add(outgoing if node.lane is None else node)
    return is_receiver or by is None


def listed(relay: Relay, links: list[OutgoingLink]) -> dict[Symbol | ULong, Value]:
    """Return the annotation that excludes receivers of other routers. Args: links: the links that the message takes."""
    (first, *others) = links
    if relay.excluded is None or others or first.lane is None or first.lane.kind is not LaneKind.ANYCAST:
        return {}
    names = _listed(relay)
    return {NOT_TO: names} if names else {}


def read(context: Context, relay: Relay, data: bytes, node: Node) -> None:
    """Note the receivers of this router that a message from a lane excludes.

    Args: data: the beginning of the message. node: that of its address.
    """
    head, source = relay.head, relay.source
    assert isinstance(source, IncomingLink)
    if head is None or source.lane is None or node.lane is not None:
        return
    start, end = head.delivery_annotations
    if _NOT_TO not in data[start:end]:
        return
    names = delivery_annotations(data[start:end]).get(NOT_TO)
    if isinstance(names, list):
        there = {each for each in names if isinstance(each, str)}
        node.excludes = True
        relay.excluded = there | {each for each in node.outgoing if context.routes.receiver_name(each) in there}


def nobody_else(context: Context, relay: Relay) -> bytes:
    """Return the outcome of an unsent message that excludes all receivers of its node."""
    source = relay.source
    if isinstance(source, IncomingLink) and source.lane is not None:
        return encode_composite(Modified(undeliverable_here=True, message_annotations={BY: context.id}))
    return FAILED_STATE


def passed_up(context: Context, relay: Relay, outcome: bytes) -> bytes:
    """Return an outcome for the sender: for a neighbour it names the receiver that gave the delivery back."""
    source = relay.source
    if not context.routes.is_in_mesh or state_kind(outcome) != MODIFIED or not isinstance(source, IncomingLink):
        return outcome
    node = node_of(relay)
    if node is None:
        return outcome
    if source.lane is not None and node.lane is not None:
        return outcome  # this router only passes it on
    modified = decode_composite(Modified, bounded(outcome, FEW_VALUES - OURS))[0]
    legs = [leg for leg in relay.legs if not leg.copy]
    by = None
    if modified.undeliverable_here and source.lane is not None and len(legs) == 1:
        outgoing = legs[0].outgoing
        assert isinstance(outgoing, OutgoingLink)
        known = (modified.message_annotations or {}).get(BY) if outgoing.lane is not None else None
        if isinstance(known, str) and "/" in known:
            by = known
        elif not (relay.excluded or set()).union((outgoing,)).issuperset(node.outgoing):
            by = context.routes.receiver_name(outgoing)
    said = without_ours(modified)
    if by is not None:
        said = replace(said, message_annotations={**(said.message_annotations or {}), BY: by})
    return outcome if said is modified else encode_composite(said)


def without_ours(modified: Modified) -> Modified:
    """Return an outcome without the annotations of routers."""
    annotations = modified.message_annotations or {}
    kept = {key: value for key, value in annotations.items() if not str(key).startswith(MESH_PREFIX)}
    return modified if len(kept) == len(annotations) else replace(modified, message_annotations=kept or None)


def _listed(relay: Relay) -> list[str]:
    return sorted(each for each in relay.excluded or () if isinstance(each, str))
