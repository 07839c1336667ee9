"""The end of links, whose deliveries are ended in steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.kernel.fast_deliveries import FastDelivery, _expanded, _is_ended
from amqpmesh.router.kernel.fast_multicast import FastLeg, FastMulticast
from amqpmesh.router.kernel.fast_settlement import _drop_incoming, _end_orphan, _pass_outcome_up
from amqpmesh.router.kernel.ledger import Delivery
from amqpmesh.router.kernel.link_endpoint import disable_fast_path
from amqpmesh.router.kernel.multicast_settlement import _LEGS_AT_ONCE, _orphan, _take_outcome
from amqpmesh.router.kernel.parked_links import _sent_by
from amqpmesh.router.kernel.serial import _MASK, serial_distance

if TYPE_CHECKING:
    from amqpmesh.router.kernel.ledger import Entry
    from amqpmesh.router.kernel.link_endpoint import KernelLink
    from amqpmesh.router.kernel.router_state import KernelRouter
    from amqpmesh.router.kernel.session_endpoint import KernelSession

#: The most slots that a sweep scans in a step; fast deliveries that it ends; deliveries that the router must end.
_SWEPT_SLOTS: Final = 10_000
_SWEPT_FAST: Final = 50
_SWEPT_DELIVERIES: Final = 10


def end_link(link: KernelLink) -> None:
    """End a link: no frame can refer to its deliveries from now on, and a `Sweep` ends them."""
    disable_fast_path(link)
    link.ended = True
    link.current = None


def abandon(link: KernelLink) -> None:
    """Destroy a link endpoint: no frame can refer to its deliveries from now on (§2.6.5, §2.6.6)."""
    current = link.current
    end_link(link)
    if link.session.wire.router is not None:  # the router ends the deliveries
        return
    ledger = link.session.outgoing if link.sender else link.session.incoming
    for delivery in link.unsettled.values():
        assert isinstance(delivery, Delivery), "only routers relay"
        if ledger.find(delivery.delivery_id) is delivery:
            ledger.remove(delivery.delivery_id)
        delivery.delivery_id = -1
    if current is not None:
        current.delivery_id = -1


class Sweep:
    """A pass over a ledger, in steps (`sweep`), that ends the deliveries of ended links.

    Attributes: `deliveries`: the deliveries of the last step that the router must end.
    """

    __slots__ = ("at", "beside", "deliveries", "sent", "session")

    def __init__(self, session: KernelSession, sent: bool) -> None:
        """Args: sent: sweep the ledger of sent deliveries, not that of received ones."""
        self.session = session
        self.sent = sent
        self.deliveries: list[Delivery] = []
        #: The next id in the slots. `beside`: the ids left of the entries beside the slots; None: the slots come first.
        self.at = 0
        self.beside: list[int] | None = None
        self.restart()

    def restart(self) -> None:
        """Begin the pass again: another link has ended."""
        self.at = (self.session.outgoing if self.sent else self.session.incoming).base
        self.beside = None


def sweep(task: Sweep) -> bool:
    """Do a step of a pass. Returns: whether there are more steps."""
    session, sent = task.session, task.sent
    router = session.wire.router
    assert router is not None
    ledger = session.outgoing if sent else session.incoming
    entries: list[Entry] = []
    task.deliveries = []
    if not sent and session.displaced:
        task.deliveries.extend(session.displaced)
        session.displaced = []
    fast_deliveries = deliveries = 0
    entry: Entry | None
    if task.beside is None:
        slots = ledger.slots
        size = len(slots)
        offset = max(serial_distance(ledger.base, task.at), 0)
        last = min(size, offset + _SWEPT_SLOTS)
        while offset < last and fast_deliveries < _SWEPT_FAST and deliveries < _SWEPT_DELIVERIES:
            entry = slots[(ledger.base + offset) & (size - 1)]
            offset += 1
            if entry is not None and _is_swept(entry, sent):
                entries.append(entry)
                if isinstance(entry, Delivery):
                    deliveries += 1
                else:
                    fast_deliveries += 1 if isinstance(entry, FastDelivery) else _multicast_cost(entry)
        task.at = (ledger.base + offset) & _MASK
        if offset >= size:
            task.beside = [each for each, entry in ledger.beside.items() if _is_swept(entry, sent)]
    else:
        while task.beside and len(entries) < _SWEPT_DELIVERIES:
            entry = ledger.beside.get(task.beside.pop())
            if entry is not None and _is_ended(entry, sent):
                entries.append(entry)
    for entry in entries:
        if isinstance(entry, Delivery):
            task.deliveries.append(entry)
        elif isinstance(entry, FastDelivery):
            if not _end_fast_delivery(router, entry, sent):
                task.deliveries.append(_expanded(entry, sent))
        elif isinstance(entry, FastLeg):
            _end_leg(router, entry, task.deliveries)
        else:
            _orphan(router, entry)
    return task.beside is None or len(task.beside) > 0


def _is_swept(entry: Entry, sent: bool) -> bool:
    """Return whether an entry's link has ended, and nobody may resume it."""
    return _is_ended(entry, sent) and not (sent and _sent_by(entry).parked)


def _end_fast_delivery(router: KernelRouter, fast: FastDelivery, sent: bool) -> bool:
    """End a fast delivery one of whose sides has ended. Returns: False: the router must decide.

    Args: sent: the receiver is gone: its fallback outcome is passed to the sender. Otherwise the sender is gone, and
        the delivery lives until the receiver has settled it.
    """
    if fast.sent_at >= 0 and router.recorder is not None:
        return False  # its hop record names links whose descriptions may have to be recorded again
    if sent:
        return _pass_outcome_up(router, fast, fast.outgoing.fallback_outcome, True)
    _drop_incoming(router, fast)
    if fast.outcome is not None:
        _end_orphan(router, fast, False)
    return True


def _multicast_cost(entry: FastMulticast | FastLeg) -> int:
    """Return how many fast deliveries end in the time in which this one does: all legs of a multicast are looked at.

    For a leg, this is so only if no leg but those of this step lacks an outcome: then the sender is told.
    """
    if isinstance(entry, FastLeg):
        leg: FastLeg = entry
        multicast = leg.multicast
        if multicast.unanswered > _SWEPT_FAST:
            return 1
    else:
        multicast = entry
    return 1 + len(multicast.legs) // _LEGS_AT_ONCE


def _end_leg(router: KernelRouter, leg: FastLeg, deliveries: list[Delivery]) -> None:
    """End the leg of a multicast whose receiver is gone: its fallback outcome counts as the receiver's.

    Args: deliveries: gets the delivery of the leg, if the router must decide.
    """
    live = leg.outgoing.session.outgoing.find(leg.outgoing_id)
    if isinstance(live, Delivery):  # the multicast was expanded for another leg
        deliveries.append(live)
    elif live is leg and not _take_outcome(router, leg, leg.outgoing.fallback_outcome, True):
        deliveries.append(_expanded(leg, True))
