"""The plans for deliveries of receivers that come back: what is known of each, and what our map names."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.shortening import short_state
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode
from amqpmesh.router.attach.reattaching import read_map
from amqpmesh.router.delivery.permitted import is_outcome, senders_state
from amqpmesh.router.kernel import (
    FAILED_STATE,
    Delivery,
    FastDelivery,
    FastLeg,
    FastMulticast,
    expand_sent,
    left_in_second,
    sent_tag,
)
from amqpmesh.router.resumption.sent_deliveries import WHOLE, SentDelivery, Step, Then

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from amqpmesh.router.amqp.standard.performatives import Attach
    from amqpmesh.router.model.lasting_sources import SuspendedSource
    from amqpmesh.router.model.lasting_termini import ResumptionCounts
    from amqpmesh.router.model.links import OutgoingLink
    from amqpmesh.router.resumption.kept_octets import KeptOctets

#: Octets of an entry of a map beside its tag and its state.
_OF_ENTRY: Final = 8

#: A delivery that was sent, as the ledger has it.
Sent: TypeAlias = Delivery | FastDelivery | FastLeg

#: A tuple: each look at a union would make another one, and there are a hundred thousand deliveries to look at.
_FAST: Final = FastDelivery, FastLeg


class Planned(NamedTuple):
    """A delivery that the map of its receiver was compared with."""

    delivery_id: int
    """Over the former link; -1: it had none."""
    tag: bytes
    step: Step


_STAYS: Final = Step(Then.STAY)


class Resumption(NamedTuple):
    """A transfer that resumes a delivery."""

    delivery: Delivery
    state: bytes
    then: Then


class Plan(NamedTuple):
    """The steps for what a source has unsettled, once its receiver's map was compared."""

    steps: deque[Planned]
    is_round: bool
    """One of the maps is incomplete: the link only resumes deliveries, and is then attached again (§2.7.3)."""
    is_part: bool
    """More of the lane is to follow by other links."""
    tells: bool
    """The receiver's map says something new, or there is nothing to resume: the next round need not wait."""


class Return(NamedTuple):
    """The deliveries of a link that came back: those that are yet to be moved to it, and the transfers that are due."""

    source: SuspendedSource
    planned: deque[Planned]
    due: deque[Resumption]
    plan: Plan


def read(attach: Attach) -> dict[bytes, bytes | None]:
    """Return the states of a receiver's map, encoded. Raises: ProtocolError: as `read_map`."""
    assert attach.unsettled is not None
    states = read_map(attach.unsettled)
    encoded: dict[int, bytes | None] = {id(None): None}  # most states are one object
    for state in states.values():
        if id(state) not in encoded:
            encoded[id(state)] = encode_composite(state)
    return {tag: encoded[id(state)] for tag, state in states.items()}


def fitting(planned: Iterable[Planned], room: int) -> set[bytes] | None:
    """Return the tags of the deliveries that our map names; None: it names all, since it fits.

    Those that were not resumed in the round before come first, then those with an outcome: they settle. What the
    receiver's map does not name comes last.
    Args: room: octets for the entries.
    """
    entries = [each for each in planned if each.step.state is not None]
    octets = [_OF_ENTRY + len(each.tag) + len(each.step.state or b"") for each in entries]
    if not entries or sum(octets) <= room:
        return None
    named: set[bytes] = set()
    order = sorted(
        zip(entries, octets, strict=True),
        key=lambda each: (
            each[0].step.then is Then.STAY,
            each[0].delivery_id >= 0,
            each[0].step.state == WHOLE,
        ),
    )
    for each, size in order:
        if size <= room:
            room -= size
            named.add(each.tag)
    return named


def shortened(planned: Planned, room: int) -> Planned:
    """Return a delivery whose state in our map leaves room for its entry: a long outcome without its details, or none.

    Args: room: octets for all entries.
    """
    state = planned.step.state
    octets = _OF_ENTRY + len(planned.tag)
    if state is None or octets + len(state) <= room:
        return planned
    short = short_state(state)
    if short is None or octets + len(short) > room:
        short = WHOLE
    return planned._replace(step=planned.step._replace(state=short))


def put_off(planned: Planned) -> Planned:
    """Return a delivery that is resumed in a later round; what the receiver's map says of it counts now."""
    step = planned.step
    if step.state is None:
        return planned
    said = step.said if step.then is Then.RESUME else None
    return Planned(planned.delivery_id, planned.tag, _STAYS if said is None else Step(Then.STAY, said))


def count(counts: ResumptionCounts, planned: Iterable[Planned], theirs: Mapping[bytes, bytes | None]) -> None:
    """Count what becomes of deliveries. Args: theirs: the states of the receiver's map."""
    for _, tag, step in planned:
        if step.then is Then.ABORT:
            counts.aborted_resumes += 1
        elif step.then is Then.SEND or (step.then is Then.RESUME and step.state == WHOLE):
            counts.resumed_again += 1
        elif step.then is Then.RESUME:
            counts.resumed_outcomes += 1
            said = theirs.get(tag)
            if said is not None and is_outcome(said) and said != step.state:
                counts.restated += short_state(said) != step.state


def known_of(entry: Sent, default: bytes, keeps: KeptOctets | None, *, second: bool) -> tuple[bytes, SentDelivery]:
    """Return the tag of a delivery, and what is known here of it.

    Args: default, second: as of `SentDelivery`. keeps: has its message, if that is kept.
    """
    if isinstance(entry, _FAST):
        tag = sent_tag(entry)
        is_kept = keeps is not None and tag in keeps.messages
        return tag, SentDelivery(True, entry.outcome, None, second, default, is_kept)
    leg = entry.leg
    is_kept = keeps is not None and leg is not None and entry.tag in keeps.messages
    if leg is None:
        return entry.tag, SentDelivery(entry.complete, None, None, second, default)
    incoming = leg.relay.incoming
    stated = None if incoming is None else senders_state(incoming)
    if not is_outcome(stated):
        stated = None
    return entry.tag, SentDelivery(entry.complete, leg.outcome, stated, second, default, is_kept)


def lane_state(entry: Sent) -> tuple[bytes, bytes | None]:
    """Return the tag of a delivery on a lane, and its state in our map; None: it is not named, since it has not left
    as a whole."""
    if isinstance(entry, _FAST):
        return sent_tag(entry), entry.outcome or WHOLE
    tag, known = known_of(entry, FAILED_STATE, None, second=False)
    return tag, (known.outcome or known.stated or WHOLE) if known.is_whole else None


def hand_over(delivery: Delivery, source: SuspendedSource, outgoing: OutgoingLink) -> None:
    """Let a delivery be of the link that resumes it."""
    before, after, leg = source.flow_state, outgoing.endpoint.flow_state, delivery.leg
    if before.unsettled.get(delivery.tag) is delivery:
        del before.unsettled[delivery.tag]
    delivery.link = after
    if leg is not None:
        if outgoing.lane is not None and not left_in_second(delivery):
            delivery.rcv_settle_mode = ReceiverSettleMode.FIRST.value  # as at first (§2.7.5)
        after.unsettled[delivery.tag] = delivery
        leg.outgoing = outgoing
        if leg.counted:
            before.outstanding -= 1
            after.outstanding += 1


def take_id(delivery: Delivery) -> None:
    """Take the id of a delivery, which no frame can name any more, and leave it in the unsettled map of its link."""
    ledger = delivery.link.session.outgoing
    if ledger.find(delivery.delivery_id) is delivery:
        ledger.remove(delivery.delivery_id)
    delivery.delivery_id = -1


def find(source: SuspendedSource, planned: Planned) -> Delivery | None:
    """Return a delivery of a source; None: it has been settled since it was compared."""
    state = source.flow_state
    if planned.delivery_id < 0:
        left = state.unsettled.get(planned.tag)
        return left if isinstance(left, Delivery) else None
    found = expand_sent(state.session, [planned.delivery_id])
    return found[0] if found and found[0].link is state else None


def entries(source: SuspendedSource, ids: Iterable[int]) -> Iterator[tuple[int, Sent]]:
    """Yield the unsettled deliveries of a source, or of its part, with their ids, in the order in which they have left.

    Args: ids: in the ledger of its session, of what is the source's. A part has its own.
    """
    state = source.flow_state
    session = state.session
    if source.part is not None:
        for delivery_id, tag in source.part.entries:
            of_part = session.outgoing.find(delivery_id) if delivery_id >= 0 else state.unsettled.get(tag)
            if of_part is not None and not isinstance(of_part, FastMulticast) and sent_tag(of_part) == tag:
                yield delivery_id, of_part
        return
    for delivery_id in ids:
        entry = session.outgoing.find(delivery_id)
        if entry is not None and not isinstance(entry, FastMulticast):
            yield delivery_id, entry
    # Those that the receiver was to be sent again, and others that were compared before.
    for each in state.unsettled.values():
        if isinstance(each, Delivery) and each.delivery_id < 0:
            yield -1, each
