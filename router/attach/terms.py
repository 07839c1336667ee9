"""The terms of a link in the router's answer to an attach (§2.6.3).

The router reports the terms that are in force; it never repeats the peer's terms as they were. Filters are left out,
since the router applies none. No terminus is durable, and one outlives its link only if that was granted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.codec.types import Array, Primitive, Symbol
from amqpmesh.router.amqp.standard.definitions import Role, SenderSettleMode
from amqpmesh.router.amqp.standard.delivery_states import OUTCOMES
from amqpmesh.router.amqp.standard.messaging import (
    DistributionMode,
    NodeProperties,
    Source,
    Target,
    TerminusExpiryPolicy,
)
from amqpmesh.router.amqp.standard.performatives import Attach
from amqpmesh.router.endpoint_setup import WHOLE_MAP
from amqpmesh.router.memory.retained import LIFETIME_POLICY
from amqpmesh.router.model.node import DynamicNode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqpmesh.router.amqp.events import LinkAttached
    from amqpmesh.router.amqp.link import Receiver, Sender
    from amqpmesh.router.model.lasting_sources import OurMap
    from amqpmesh.router.model.lasting_termini import Grant
    from amqpmesh.router.model.node import Node

DISTRIBUTION_MODES: Final = Symbol("supported-dist-modes")
# Members of enumerations that each attach needs, as of `states.direct`.
_SENDER: Final = Role.SENDER
_RECEIVER: Final = Role.RECEIVER
_MIXED: Final = SenderSettleMode.MIXED
COPY: Final = DistributionMode.COPY
_MOVE: Final = DistributionMode.MOVE
_LINK_DETACH: Final = TerminusExpiryPolicy.LINK_DETACH
_MODES: Final = Array(Primitive.SYMBOL, tuple(Symbol(mode.value) for mode in DistributionMode))


def answer_sender(
    endpoint: Receiver,
    event: LinkAttached,
    named: str | None,
    node: Node | None,
    max_message_size: int | None,
    unsettled: Mapping[bytes, object] | None,
    grant: Grant | None,
    *,
    is_incomplete: bool = False,
) -> None:
    """Answer the attach of a sender, whose target is a `Target`.

    Args: named: the address. max_message_size: octets; None: no limit. unsettled: of a link that is resumed. grant: the
        time that the target is kept without the link; None: it goes with the link. is_incomplete: `unsettled` is.
    Raises: as `Link.attach`.
    """
    attach, alike, compact = event.attach, event.alike, endpoint.session.flow_state.wire.compact
    target = attach.target
    assert isinstance(target, Target)
    if target.dynamic or unsettled is not None or grant is not None:
        alike = None
    terms = None if alike is None else alike.answers.get((compact, max_message_size))
    if terms is None:
        there = Target(
            address=named,
            expiry_policy=_LINK_DETACH if grant is None else grant.policy,
            timeout=0 if grant is None else grant.timeout,
            dynamic=target.dynamic,
            dynamic_node_properties=_properties(node) if target.dynamic and isinstance(node, DynamicNode) else None,
        )
        if alike is None:
            endpoint.attach(
                source=attach.source,
                target=there,
                snd_settle_mode=attach.snd_settle_mode,
                rcv_settle_mode=attach.rcv_settle_mode,
                max_message_size=max_message_size,
                unsettled=unsettled,
                incomplete_unsettled=is_incomplete,
                offered_capabilities=() if grant is None else (WHOLE_MAP,),
            )
            return
        answer = Attach(
            name="",
            handle=0,
            role=_RECEIVER,
            snd_settle_mode=attach.snd_settle_mode,
            rcv_settle_mode=attach.rcv_settle_mode,
            source=attach.source,
            target=there,
            max_message_size=max_message_size,
        )
        terms = alike.remember((compact, max_message_size), answer, compact=compact)
    endpoint.answer(terms, attach.rcv_settle_mode, max_message_size)


def answer_receiver(
    endpoint: Sender,
    event: LinkAttached,
    named: str,
    node: Node,
    ours: OurMap | None,
    grant: Grant | None,
    *,
    with_default: bool,
) -> None:
    """Answer the attach of a receiver, whose source is a `Source`.

    Args: named: the address. ours: the unsettled map of a link that is resumed. grant: as of `answer_sender`, of the
        source. with_default: the default outcome of the source is in force.
    Raises: as `Link.attach`.
    """
    attach, alike, compact = event.attach, event.alike, endpoint.session.flow_state.wire.compact
    source = attach.source
    assert isinstance(source, Source)
    if source.dynamic or attach.unsettled is not None or grant is not None:
        alike = None
    terms = None if alike is None else alike.answers.get(compact)
    if terms is None:
        there = Source(
            address=named,
            expiry_policy=_LINK_DETACH if grant is None else grant.policy,
            timeout=0 if grant is None else grant.timeout,
            dynamic=source.dynamic,
            dynamic_node_properties=_properties(node) if source.dynamic and isinstance(node, DynamicNode) else None,
            distribution_mode=COPY if source.distribution_mode is COPY else _MOVE,
            default_outcome=source.default_outcome if with_default else None,
            # Symbols that are no outcomes are left out (§3.5.3, outcomes).
            outcomes=tuple(outcome for outcome in source.outcomes if outcome in OUTCOMES) if source.outcomes else (),
        )
        if alike is None:
            endpoint.attach(
                source=there,
                target=attach.target,
                snd_settle_mode=_MIXED,
                rcv_settle_mode=attach.rcv_settle_mode,
                unsettled=None if ours is None else ours.unsettled,
                incomplete_unsettled=ours is not None and ours.is_incomplete,
                offered_capabilities=() if grant is None else (WHOLE_MAP,),
            )
            return
        answer = Attach(
            name="",
            handle=0,
            role=_SENDER,
            rcv_settle_mode=attach.rcv_settle_mode,
            source=there,
            target=attach.target,
            initial_delivery_count=0,
        )
        terms = alike.remember(compact, answer, compact=compact)
    endpoint.answer(terms, attach.rcv_settle_mode)


def _properties(node: DynamicNode) -> NodeProperties:
    """Return the properties of a dynamic node (§3.5.9)."""
    return {LIFETIME_POLICY: node.lifetime, DISTRIBUTION_MODES: _MODES}
