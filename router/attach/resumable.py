"""Addresses whose links have to be resumable: the terms without which a link, or a message, is refused.

At such an address both ends of each delivery keep its state until the other one has heard of it (§2.6.12, §2.6.13). The
links of programs in the router's process are not asked: no connection is between them and the router, which could be
lost. Receivers of copies are not asked: nobody waits for their outcomes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.access.rights import is_of_mesh
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, ReceiverSettleMode, SenderSettleMode
from amqpmesh.router.amqp.standard.messaging import DistributionMode, Source, Target, TerminusExpiryPolicy
from amqpmesh.router.model.refusal import RefusedError

if TYPE_CHECKING:
    from amqpmesh.router.amqp.standard.performatives import Attach
    from amqpmesh.router.attach.resolve import ResolvedAddress
    from amqpmesh.router.context import Context
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.links import IncomingLink
    from amqpmesh.router.model.node import Node


def check_terms(
    context: Context, record: ConnectionRecord, place: ResolvedAddress, attach: Attach, own: Source | Target
) -> None:
    """Check what a link to an address asks for.

    Args: place: as the owner of the address names it. own: the terminus at this router.
    Raises: RefusedError: the address takes only resumable links, and this one would be none (precondition-failed).
    """
    if not place.requires_resumption or record.inside or record.own:
        return
    if isinstance(own, Source) and own.distribution_mode is DistributionMode.COPY:
        return
    lacks = []
    if attach.rcv_settle_mode is not ReceiverSettleMode.SECOND:
        lacks.append("the rcv-settle-mode is not second")
    if not (own.timeout or (own.expiry_policy is TerminusExpiryPolicy.NEVER and attach.unsettled is not None)):
        lacks.append(f"the {'source' if isinstance(own, Source) else 'target'} has no timeout")
    if isinstance(own, Target) and attach.snd_settle_mode is SenderSettleMode.SETTLED:
        lacks.append("the snd-settle-mode is settled")
    if lacks:
        raise _refused(", and ".join(lacks))
    if not is_of_mesh(context, place.container):
        raise _refused("no other container keeps what is unsettled")


def check_ungranted(record: ConnectionRecord, node: Node | None) -> None:
    """Check that a link that is granted no time may do without.

    Args: node: of the link; None: each message names its own address, and is checked by itself.
    Raises: RefusedError: its address requires it (resource-limit-exceeded).
    """
    if node is not None and node.config.requires_resumption and not (record.inside or record.own):
        description = "the address takes only links that can be resumed, and this one is granted no time"
        raise RefusedError(AmqpCondition.RESOURCE_LIMIT_EXCEEDED, description)


def check_message(incoming: IncomingLink, place: ResolvedAddress) -> None:
    """Check that the sender of a message with a `to` has a resumable link, if the address requires it.

    Raises: RefusedError: as `check_terms`.
    """
    if not place.requires_resumption or (incoming.grant is not None and incoming.endpoint.flow_state.second):
        return
    record = incoming.connection
    if not (record.inside or record.own):
        raise _refused("the sender's link cannot be resumed, or its rcv-settle-mode is not second")


def _refused(lack: str) -> RefusedError:
    description = f"the address takes only links that can be resumed: {lack}"
    return RefusedError(AmqpCondition.PRECONDITION_FAILED, description)
