"""Resumption of a link: a second attach with an unsettled map (§2.6.13).

Such a link was detached, but not closed, and still has unsettled deliveries on the connection; or it is of a sender
that has lost its connection, and whose terminus is kept (`resumption`). If the peer is the sender, our attach names the
deliveries that both sides have, and the peer may resume them. If the peer is the receiver,
its outcomes are passed on. Deliveries for which it has no outcome are given up: the router does not keep their octets,
and cannot send them again. The router keeps nothing of the peer's map.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Extension
from amqpmesh.router.amqp.events import DispositionReceived
from amqpmesh.router.delivery.permitted import is_outcome
from amqpmesh.router.delivery.settlement import disposition_received, receiver_gone
from amqpmesh.router.kernel import (
    Delivery,
    FastDelivery,
    FastMulticast,
    expand_link,
    expanded,
    forget,
    settle_away,
    take_up,
    told_outcome,
)
from amqpmesh.router.memory.retained import size_of_attach
from amqpmesh.router.message.outcomes import ALL_RECEIVED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqpmesh.router.amqp.link import Link
    from amqpmesh.router.amqp.standard.messaging import DeliveryState
    from amqpmesh.router.amqp.standard.performatives import Attach
    from amqpmesh.router.context import Context
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.lasting_targets import SuspendedTarget
    from amqpmesh.router.model.links import IncomingLink, OutgoingLink

#: Octets of an attach beside its names, its addresses and its map; and of an entry beside its tag and its outcome.
_AROUND: Final = 200
_OF_WHOLE: Final = 20

#: Deliveries that one step settles.
_AT_ONCE: Final = 10

#: A delivery that its sender has not settled.
Unsettled: TypeAlias = Delivery | FastDelivery | FastMulticast


def in_common(
    context: Context, record: ConnectionRecord, endpoint: Link, attach: Attach, kept: SuspendedTarget | None
) -> tuple[dict[bytes, Unsettled], dict[bytes, Unsettled]]:
    """Compare the map of a resuming sender with the deliveries that are here.

    Outcomes in the map are passed on (§2.6.12).
    Args: kept: the terminus of a former connection; None: there is none.
    Returns: those that both sides have, by delivery-tag; and those that only this side has: the sender has settled them
        (§2.6.13). An incomplete map of the sender does not count: both sides have all then.
    """
    if attach.unsettled is None:
        return {}, {}
    ours: dict[bytes, Unsettled] = dict(_live_deliveries(record, endpoint))
    if kept is not None:
        ours.update(kept.deliveries)
    if not ours or attach.incomplete_unsettled:
        return ours, {}
    both = {}
    for tag, state in attach.unsettled.items():
        entry = ours.pop(tag, None)
        if entry is not None:
            if (encoded := _outcome(state)) is not None and encoded != (known := told_outcome(entry)):
                context.termini.counts.restated += known is not None
                entry = expanded(entry)
                _apply_state(context, entry, encoded, settled=False)
            both[tag] = entry
        if not ours:
            break  # the rest of the map is not read
    return both, ours


def settle_rest(context: Context, deliveries: Mapping[bytes, Unsettled], kept: SuspendedTarget | None) -> Steps[None]:
    """Settle deliveries that their sender has settled. Args: kept: the terminus that has some of them."""
    holder = None if kept is None else kept.holder
    for number, (tag, entry) in enumerate(deliveries.items()):
        if holder is not None and tag in holder.unsettled:
            delivery = settle_away(holder, tag)
        else:
            delivery = expanded(entry)
        if delivery is not None:
            _apply_state(context, delivery, None, settled=True)
        if number % _AT_ONCE == _AT_ONCE - 1:
            yield


def states(deliveries: Mapping[bytes, Unsettled]) -> dict[bytes, DeliveryState]:
    """Return the states of deliveries in our attach: the outcome, or `received` with all of the delivery."""
    found: dict[bytes, DeliveryState] = {}
    for tag, entry in deliveries.items():
        state = told_outcome(entry)
        found[tag] = Extension(state) if state is not None and is_outcome(state) else ALL_RECEIVED
    return found


def fits(endpoint: Link, attach: Attach, deliveries: Mapping[bytes, Unsettled]) -> bool:
    """Tell whether an attach with the states of these deliveries fits into a frame of the peer."""
    octets = _AROUND + size_of_attach(attach)
    for tag, entry in deliveries.items():
        state = told_outcome(entry)
        octets += len(tag) + _OF_WHOLE + (0 if state is None else len(state))
    return octets <= endpoint.session.connection.remote_max_frame_size


def bring(
    context: Context,
    deliveries: Mapping[bytes, Unsettled],
    incoming: IncomingLink,
    kept: SuspendedTarget | None,
) -> None:
    """Move deliveries to the new link.

    The sender must resume each of them (`resume`). Until then a delivery has no delivery-id, and its outcome is kept.
    Args: kept: the terminus that has some of them.
    """
    flow_state, counts = incoming.endpoint.flow_state, context.termini.counts
    for tag, entry in deliveries.items():
        if is_outcome(told_outcome(entry)):
            counts.resumed_outcomes += 1
        else:
            counts.resumed_again += 1
        if kept is not None and kept.deliveries.get(tag) is entry:
            take_up(kept.holder, tag, flow_state)
        if isinstance(entry, Delivery):
            _bring_relay(entry, incoming)
    for old in _former_links(incoming.connection, incoming.endpoint):
        context.end_detached(old)


def _bring_relay(delivery: Delivery, incoming: IncomingLink) -> None:
    flow_state = incoming.endpoint.flow_state
    if delivery.link is not flow_state:
        forget(delivery)
        delivery.link = flow_state
        delivery.delivery_id = -1
        flow_state.unsettled[delivery.tag] = delivery
    relay = delivery.relay
    assert relay is not None
    relay.second = True
    if not relay.waiting:  # else the former link owes its place in the pool
        relay.source = incoming
        if relay.answered:
            incoming.awaiting_settlement += 1


def end_undecided(context: Context, record: ConnectionRecord, endpoint: Link, attach: Attach) -> None:
    """Pass on the outcomes in the map of a resuming receiver, and give up the other deliveries.

    These are the deliveries in the map without an outcome, and the deliveries that a complete map does not have.
    """
    ours = _live_deliveries(record, endpoint) if attach.unsettled is not None else {}
    if not ours:
        return
    assert attach.unsettled is not None
    for tag, state in attach.unsettled.items():
        delivery = ours.pop(tag, None)
        if delivery is None:
            continue
        if (encoded := _outcome(state)) is not None:
            _apply_state(context, delivery, encoded, settled=True)
        elif delivery.leg is not None:
            receiver_gone(context, delivery.leg)
        if not ours:
            break
    if not attach.incomplete_unsettled:
        for delivery in ours.values():
            if delivery.leg is not None:
                receiver_gone(context, delivery.leg)


def is_known(record: ConnectionRecord, endpoint: Link) -> bool:
    """Tell whether a link of this name and role was detached on the connection, and has unsettled deliveries."""
    return bool(_former_links(record, endpoint))


def _former_links(record: ConnectionRecord, endpoint: Link) -> list[IncomingLink | OutgoingLink]:
    """Return the links that were attached with this name and role before, and were detached but not closed."""
    return [
        each
        for each in record.detached_unsettled
        if each.endpoint.name == endpoint.name and each.endpoint.role is endpoint.role
    ]


def _live_deliveries(record: ConnectionRecord, endpoint: Link) -> dict[bytes, Delivery]:
    """Return the live deliveries of the former attaches of this link, by delivery-tag."""
    before = _former_links(record, endpoint)
    for old in before:
        expand_link(old.endpoint.flow_state)
    return {tag: expanded(entry) for old in before for tag, entry in tuple(old.endpoint.terminus.unsettled.items())}


def _outcome(state: DeliveryState | None) -> bytes | None:
    encoded = None if state is None else encode_composite(state)
    return encoded if is_outcome(encoded) else None


def _apply_state(context: Context, delivery: Delivery, state: bytes | None, *, settled: bool) -> None:
    """Handle the state of a delivery in a map like that of a disposition."""
    if state is not None:
        delivery.remote_state = state
    delivery.remote_settled = delivery.remote_settled or settled
    session = delivery.link.session.owner
    disposition_received(context, DispositionReceived(session, [delivery], state, settled))  # type: ignore[arg-type]  # the engine's endpoint
