"""Resumption of a link: a second attach with an unsettled map (§2.6.13).

Such a link was detached, but not closed, and still has unsettled deliveries on the connection; or it is of a sender
that has lost its connection, and whose terminus is kept (`resumption`). If the peer is the sender, our attach names the
deliveries that both sides have, and the peer may resume them. If the peer is the receiver,
its outcomes are passed on. Deliveries for which it has no outcome are given up: the router does not keep their octets,
and cannot send them again. The router keeps nothing of the peer's map.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Final, TypeAlias

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Extension
from amqpmesh.router.amqp.errors import ProtocolError, Scope
from amqpmesh.router.amqp.events import DispositionReceived
from amqpmesh.router.amqp.standard.definitions import AmqpCondition
from amqpmesh.router.amqp.standard.delivery_states import Received
from amqpmesh.router.amqp.standard.messaging import Source, Target
from amqpmesh.router.delivery.permitted import is_outcome
from amqpmesh.router.delivery.settlement import disposition_received, receiver_gone
from amqpmesh.router.kernel import (
    Delivery,
    FastDelivery,
    FastMulticast,
    expand_link,
    expanded,
    forget,
    note_mode,
    settle_away,
    take_up,
    told_outcome,
)
from amqpmesh.router.message.outcomes import ALL_RECEIVED

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from amqpmesh.router.amqp.link import Link
    from amqpmesh.router.amqp.standard.messaging import DeliveryState
    from amqpmesh.router.amqp.standard.performatives import Attach
    from amqpmesh.router.context import Context
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.lasting_targets import SuspendedTarget
    from amqpmesh.router.model.links import IncomingLink, OutgoingLink

#: Octets of an attach beside its names, its addresses and its map; and of an entry beside its tag and its outcome.
_AROUND: Final = 197
_OF_WHOLE: Final = 20

#: Entries of a map that are read at once: some 15 ms with all that follows, if each has an outcome of its own. A map
#: with more counts as incomplete. Ours of so many fits into no frame of 32 KiB either.
MOST_READ: Final = 1024

#: Entries of such a map among which outcomes are looked for, 1 us each: no link has more by default.
_MOST_LOOKED_AT: Final = 5120

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
    Raises: ProtocolError(LINK, decode-error): the map is malformed. Nothing has changed then.
    """
    if attach.unsettled is None:
        return {}, {}
    ours: dict[bytes, Unsettled] = dict(_live_deliveries(record, endpoint))
    if kept is not None:
        ours.update(kept.deliveries)
    if not ours:
        return {}, {}  # the map is not read
    theirs = read_map(attach.unsettled)
    if is_incomplete(attach):
        return ours, {}
    order = tuple(ours)
    both = _named(context, theirs, ours)
    rest = {tag: entry for tag, entry in ours.items() if tag not in both}
    return {tag: both[tag] for tag in order if tag in both}, rest


def of_part(
    context: Context, attach: Attach, kept: SuspendedTarget
) -> tuple[dict[bytes, Unsettled], dict[bytes, Unsettled]]:
    """Compare a complete map of some of the deliveries of a terminus with those, as `in_common` does.

    It costs what the map does, however many the terminus has.
    Returns: those that both sides have, in the order of the map; and none, for the rest is of other parts.
    Raises: ProtocolError: as `in_common`.
    """
    return {} if attach.unsettled is None else _named(context, read_map(attach.unsettled), kept.deliveries), {}


def _named(
    context: Context, theirs: Mapping[bytes, DeliveryState | None], ours: Mapping[bytes, Unsettled]
) -> dict[bytes, Unsettled]:
    """Return the deliveries that a map names. The outcomes in it are passed on (§2.6.12)."""
    both = {}
    for tag, state in theirs.items():
        entry = ours.get(tag)
        if entry is not None:
            if (encoded := _outcome(state)) is not None and encoded != (known := told_outcome(entry)):
                context.termini.counts.restated += known is not None
                entry = expanded(entry)
                _apply_state(context, entry, encoded, settled=False)
            both[tag] = entry
    return both


def is_incomplete(attach: Attach) -> bool:
    """Tell whether the map of a peer says nothing of the deliveries that it does not name."""
    return attach.incomplete_unsettled or (attach.unsettled is not None and len(attach.unsettled) > MOST_READ)


def read_map(unsettled: Mapping[bytes, DeliveryState | None]) -> dict[bytes, DeliveryState | None]:
    """Return the entries of a map, `MOST_READ` at most: of more, those with an outcome first.

    A peer that has not decided on its first deliveries is heard on the others, so that its map gets smaller.
    Raises: ProtocolError(LINK): decode-error; resource-limit-exceeded: a state has too many values.
    """
    try:
        if len(unsettled) <= MOST_READ:
            return dict(unsettled.items())
        decided: dict[bytes, DeliveryState | None] = {}
        others: dict[bytes, DeliveryState | None] = {}
        for tag, state in islice(unsettled.items(), _MOST_LOOKED_AT):
            (others if state is None or isinstance(state, Received) else decided)[tag] = state
        return dict(islice(chain(decided.items(), others.items()), MOST_READ))
    except ProtocolError as error:
        condition = error.condition if error.scope is Scope.LINK else AmqpCondition.DECODE_ERROR
        raise ProtocolError(Scope.LINK, condition, f"the unsettled map: {error}") from error


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


def states(deliveries: Mapping[bytes, Unsettled], room: int | None = None) -> dict[bytes, DeliveryState]:
    """Return the states of deliveries in our attach: the outcome, or `received` with all of the delivery.

    Args: room: octets for the entries; None: it is enough. An outcome that is too large by itself is told once its
        delivery is resumed.
    """
    found: dict[bytes, DeliveryState] = {}
    for tag, entry in deliveries.items():
        state = told_outcome(entry)
        if state is None or not is_outcome(state) or (room is not None and _octets(tag, state) > room):
            found[tag] = ALL_RECEIVED
        else:
            found[tag] = Extension(state)
    return found


def room_of_map(endpoint: Link, attach: Attach) -> int:
    """Return the octets that the entries of our map may take, if the answer to an attach has to fit into a frame."""
    octets = _AROUND + len(attach.name.encode())
    for terminus in (attach.source, attach.target):
        if isinstance(terminus, Source | Target):
            octets += len((terminus.address or "").encode())
    if isinstance(attach.source, Source):
        if attach.source.default_outcome is not None:
            octets += len(encode_composite(attach.source.default_outcome))
        octets += sum(2 + len(each) for each in attach.source.outcomes or ())
    return endpoint.session.connection.remote_max_frame_size - octets


def fitting(deliveries: Mapping[bytes, Unsettled], room: int) -> dict[bytes, Unsettled]:
    """Return the deliveries that our map can name: those with an outcome first. Args: room: octets for the entries."""
    found: dict[bytes, Unsettled] = {}
    most = room
    for with_outcome in (True, False):
        for tag, entry in deliveries.items():
            state = told_outcome(entry)
            if is_outcome(state) is with_outcome:
                octets = _octets(tag, state)
                if octets > most:
                    octets = _octets(tag, None)  # as in `states`
                if octets <= room:
                    room -= octets
                    found[tag] = entry
    return found


def _octets(tag: bytes, state: bytes | None) -> int:
    return len(tag) + _OF_WHOLE + (0 if state is None else len(state))


def bring(
    context: Context,
    deliveries: Mapping[bytes, Unsettled],
    incoming: IncomingLink,
    kept: SuspendedTarget | None,
    *,
    last: Collection[bytes],
) -> None:
    """Move deliveries to the new link.

    The sender must resume each of them (`resume`). Until then a delivery has no delivery-id, and its outcome is kept.
    Args: kept: the terminus that has some of them. last: the tags that come last in its map: if others are left out of
        our attach, the next one begins with those.
    """
    flow_state, counts = incoming.endpoint.flow_state, context.termini.counts
    is_split = len(last) < len(deliveries)
    for tag in sorted(deliveries, key=last.__contains__) if is_split else deliveries:
        entry = deliveries[tag]
        if is_outcome(told_outcome(entry)):
            counts.resumed_outcomes += 1
        elif tag in last:
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
    if not relay.second:
        note_mode(flow_state, delivery.tag, True)
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
    if state is None or isinstance(state, Received):
        return None
    encoded = encode_composite(state)
    return encoded if is_outcome(encoded) else None


def _apply_state(context: Context, delivery: Delivery, state: bytes | None, *, settled: bool) -> None:
    """Handle the state of a delivery in a map like that of a disposition."""
    if state is not None:
        delivery.remote_state = state
    delivery.remote_settled = delivery.remote_settled or settled
    session = delivery.link.session.owner
    disposition_received(context, DispositionReceived(session, [delivery], state, settled))  # type: ignore[arg-type]  # the engine's endpoint
