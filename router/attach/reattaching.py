"""A link that is attached again with an unsettled map while deliveries of it live on its connection (§2.6.13).

Such a link was detached without being closed. A sender that comes back is told of the deliveries that both have, and
may go on with them. A receiver that comes back has its outcomes passed on; what it has not decided is given up, since
its octets are not kept to be sent again. Of the peer's map nothing is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Extension
from amqpmesh.router.amqp.events import DispositionReceived
from amqpmesh.router.amqp.standard.messaging import Received
from amqpmesh.router.delivery.permitted import is_outcome
from amqpmesh.router.delivery.settlement import disposition_received, hop_lost
from amqpmesh.router.kernel import Delivery, expand_link, forget

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqpmesh.router.amqp.link import Link
    from amqpmesh.router.amqp.standard.messaging import DeliveryState
    from amqpmesh.router.amqp.standard.performatives import Attach
    from amqpmesh.router.context import Context
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.links import IncomingLink, OutgoingLink

#: All of a delivery has come, however many sections it has: the place behind the last that there can be (§3.4.1).
WHOLE: Final = Received(section_number=2**32 - 1, section_offset=0)


def in_common(context: Context, record: ConnectionRecord, link: Link, attach: Attach) -> dict[bytes, Delivery]:
    """Live deliveries of a sender that comes back; those that its map has, too, if that is complete.

    What a complete map has not is settled by the sender (§2.6.13); an outcome that it has is passed on (§2.6.12).
    """
    ours = _live(record, link) if attach.unsettled is not None else {}
    if not ours or attach.incomplete_unsettled:
        return ours
    assert attach.unsettled is not None
    both = {}
    for tag, state in attach.unsettled.items():
        delivery = ours.pop(tag, None)
        if delivery is not None:
            both[tag] = delivery
            if (encoded := _outcome(state)) is not None:
                _said(context, delivery, encoded, settled=False)
        if not ours:
            break  # nobody reads what is behind the last of ours
    for delivery in ours.values():
        _said(context, delivery, None, settled=True)
    return both


def states(deliveries: Mapping[bytes, Delivery]) -> dict[bytes, DeliveryState]:
    """What our attach says of them: the outcome, or that all of it is here."""
    return {tag: WHOLE if each.state is None else Extension(each.state) for tag, each in deliveries.items()}


def bring(context: Context, deliveries: Mapping[bytes, Delivery], incoming: IncomingLink) -> None:
    """The deliveries are those of a new link from now on. Their sender has to go on with each (`resume`): until then
    they have no delivery-id, and an outcome is kept.
    """
    flow_state = incoming.link.flow_state
    for tag, delivery in deliveries.items():
        forget(delivery)
        delivery.link = flow_state
        delivery.delivery_id = -1
        flow_state.unsettled[tag] = delivery
        assert delivery.relay is not None
        delivery.relay.second = True
    for old in _before(incoming.connection, incoming.link):
        context.end_detached(old)


def end_undecided(context: Context, record: ConnectionRecord, link: Link, attach: Attach) -> None:
    """Pass on the outcomes that a receiver comes back with. What its map has no outcome of is given up, as is what a
    complete map has not.
    """
    ours = _live(record, link) if attach.unsettled is not None else {}
    if not ours:
        return
    assert attach.unsettled is not None
    for tag, state in attach.unsettled.items():
        delivery = ours.pop(tag, None)
        if delivery is None:
            continue
        if (encoded := _outcome(state)) is not None:
            _said(context, delivery, encoded, settled=True)
        elif delivery.leg is not None:
            hop_lost(context, delivery.leg)
        if not ours:
            break
    if not attach.incomplete_unsettled:
        for delivery in ours.values():
            if delivery.leg is not None:
                hop_lost(context, delivery.leg)


def _before(record: ConnectionRecord, link: Link) -> list[IncomingLink | OutgoingLink]:
    """What was attached as this link before."""
    return [each for each in record.detached_unsettled if each.link.name == link.name and each.link.role is link.role]


def _live(record: ConnectionRecord, link: Link) -> dict[bytes, Delivery]:
    """Deliveries that live on a connection from when this link was attached before, by delivery-tag."""
    before = _before(record, link)
    for old in before:
        expand_link(old.link.flow_state)
    return {
        tag: delivery
        for old in before
        for tag, delivery in old.link.terminus.unsettled.items()
        if isinstance(delivery, Delivery)
    }


def _outcome(state: DeliveryState | None) -> bytes | None:
    encoded = None if state is None else encode_composite(state)
    return encoded if is_outcome(encoded) else None


def _said(context: Context, delivery: Delivery, state: bytes | None, *, settled: bool) -> None:
    """What a map says of a delivery is what a disposition would."""
    if state is not None:
        delivery.remote_state = state
    delivery.remote_settled = delivery.remote_settled or settled
    session = delivery.link.session.owner
    disposition_received(context, DispositionReceived(session, [delivery], state, settled))  # type: ignore[arg-type]  # the engine's endpoint
