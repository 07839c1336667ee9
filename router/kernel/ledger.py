"""Live deliveries of a session, by delivery-id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.kernel.serial import _MASK, serial_distance

if TYPE_CHECKING:
    from typing import TypeAlias

    from amqpmesh.router.kernel.fast_deliveries import FastDelivery
    from amqpmesh.router.kernel.fast_multicast import FastLeg, FastMulticast
    from amqpmesh.router.kernel.link_endpoint import KernelLink
    from amqpmesh.router.kernel.relays import Leg, Relay

    #: A live delivery: an incoming one is no `FastLeg`, an outgoing one is no `FastMulticast`.
    Entry: TypeAlias = "Delivery | FastDelivery | FastMulticast | FastLeg"

#: The first number of slots of a ledger; `_KEPT_SLOTS`: the most that an empty ledger keeps.
_LEAST_SLOTS: Final = 8
_KEPT_SLOTS: Final = 1024

#: Above `_KEPT_SLOTS`: the most slots for each live delivery.
_ROOM: Final = 16


#: In place of a delivery-id, of a fast delivery whose sender is away, and knows it by its tag alone.
_AWAY: Final = -2


class Delivery:
    """A delivery at one end of a link, from its first frame until it is settled here (§2.6.12)."""

    __slots__ = (
        "aborted",
        "complete",
        "delivery_id",
        "ignored",
        "leg",
        "link",
        "message_format",
        "rcv_settle_mode",
        "relay",
        "remote_settled",
        "remote_state",
        "second",
        "settled",
        "size",
        "state",
        "tag",
    )

    def __init__(self, link: KernelLink, tag: bytes, message_format: int, settled: bool, second: bool) -> None:
        self.link = link
        self.tag = tag
        self.message_format = message_format
        #: Settled at this end.
        self.settled = settled
        #: Settled at the other end, which does not wait for our state.
        self.remote_settled = settled
        #: rcv-settle-mode second is in force for it (§2.7.5).
        self.second = second
        #: The rcv-settle-mode of its first frame, chosen by the sender; -1: none, the link's mode holds.
        self.rcv_settle_mode = -1
        #: Assigned with its first frame; -1 before.
        self.delivery_id = -1
        #: The encoded delivery state of this end and of the other.
        self.state: bytes | None = None
        self.remote_state: bytes | None = None
        #: Its last frame was read or written.
        self.complete = False
        self.aborted = False
        #: A resumed delivery that is complete here, or unknown: its frames are read and dropped.
        self.ignored = False
        #: Payload bytes so far.
        self.size = 0
        #: For the router: the relay of an incoming delivery, or the leg of an outgoing one.
        self.relay: Relay | None = None
        self.leg: Leg | None = None


class Ledger:
    """The live deliveries of one session and direction, by delivery-id, in the order of their ids.

    A delivery is here from its first frame until it is settled at this end. A fast delivery is here as its
    `FastDelivery`, or as its `FastMulticast` and the `FastLeg` of each receiver.

    Ids are consecutive, so live deliveries lie in a row of slots, each in the slot of its id. No hashing is needed, and
    little memory is touched. Deliveries far behind all others are kept beside the slots.
    """

    __slots__ = ("base", "beside", "live", "scanned", "slots")

    def __init__(self) -> None:
        #: The entries of the ids from `base` on, by the lowest bits of the id; their number is a power of two. `live`:
        #: the slots in use.
        self.slots: list[Entry | None] = [None] * _LEAST_SLOTS
        self.base = 0
        self.live = 0
        #: The entries of other ids.
        self.beside: dict[int, Entry] = {}
        #: The number of places that the last `select` has scanned, empty ones included.
        self.scanned = 0

    def __len__(self) -> int:
        return self.live + len(self.beside)

    def find(self, delivery_id: int) -> Entry | None:
        """Return the live delivery of this id; None: there is none."""
        size = len(self.slots)
        found = None
        if 0 <= serial_distance(self.base, delivery_id) < size:
            found = self.slots[delivery_id & (size - 1)]
        if found is None and self.beside:
            found = self.beside.get(delivery_id)
        return found

    def put(self, delivery_id: int, delivery: Entry) -> None:
        """Put a delivery under this id, in place of another one if there is one."""
        size = len(self.slots)
        if not self.live:
            self.base = delivery_id
            if size > _KEPT_SLOTS:
                size = _LEAST_SLOTS
                self.slots = [None] * size
        at = serial_distance(self.base, delivery_id)
        if at < 0 or (self.beside and delivery_id in self.beside):
            self.beside[delivery_id] = delivery
        else:
            if at >= size:
                self._reach(delivery_id)
                size = len(self.slots)
            slot = delivery_id & (size - 1)
            if self.slots[slot] is None:
                self.live += 1
            self.slots[slot] = delivery

    def remove(self, delivery_id: int) -> None:
        """Remove the delivery of this id. Raises: KeyError: there is none."""
        size = len(self.slots)
        slot = delivery_id & (size - 1)
        if 0 <= serial_distance(self.base, delivery_id) < size and self.slots[slot] is not None:
            self.slots[slot] = None
            self.live -= 1
            if size > _KEPT_SLOTS and self.live * _ROOM < size:
                self._shrink()
        else:
            del self.beside[delivery_id]

    def oldest(self) -> Entry | None:
        """Return the live delivery with the first id, which came before nearly all others; None: there is none."""
        if self.beside:
            return next(iter(self.beside.values()))
        slots = self.slots
        size = len(slots)
        if self.live:
            for offset in range(size):
                entry = slots[(self.base + offset) & (size - 1)]
                if entry is not None:
                    return entry
        return None

    def _shrink(self) -> None:
        """Reduce the slots to twice the live deliveries. Those of the last ids stay in slots, others go beside."""
        slots = self.slots
        size = len(slots)
        least = _LEAST_SLOTS
        while least < 2 * self.live:
            least *= 2
        last = size - 1
        while last >= 0 and slots[(self.base + last) & (size - 1)] is None:
            last -= 1
        begin = max(0, last - least + 1)
        fewer: list[Entry | None] = [None] * least
        for offset in range(last + 1):
            each = (self.base + offset) & _MASK
            entry = slots[each & (size - 1)]
            if entry is None:
                continue
            if offset < begin:
                self.beside[each] = entry
                self.live -= 1
            else:
                fewer[each & (least - 1)] = entry
        self.slots = fewer
        self.base = (self.base + begin) & _MASK

    def compact(self) -> None:
        """Free slots before and behind all live deliveries."""
        self.beside = dict(self.beside)
        slots = self.slots
        size = len(slots)
        if size == _LEAST_SLOTS:
            return
        used = [at for at in range(size) if slots[(self.base + at) & (size - 1)] is not None]
        first = used[0] if used else 0
        span = used[len(used) - 1] - first + 1 if used else 0
        least = _LEAST_SLOTS
        while least < span:
            least *= 2
        if least < size:
            self.slots = [None] * least
            for at in used:
                delivery_id = (self.base + at) & _MASK
                self.slots[delivery_id & (least - 1)] = slots[delivery_id & (size - 1)]
            self.base = (self.base + first) & _MASK

    @property
    def deliveries(self) -> dict[int, Entry]:
        """The live deliveries by id, those beside the slots first."""
        found = dict(self.beside)
        for offset in range(len(self.slots)):
            delivery_id = (self.base + offset) & _MASK
            entry = self.slots[delivery_id & (len(self.slots) - 1)]
            if entry is not None:
                found[delivery_id] = entry
        return found

    def select(self, first: int, last: int) -> list[Entry]:
        """Return the live deliveries from `first` to `last`, both included, in order (§2.7.6).

        Ids that are unknown, unused or settled are skipped. The range bounds the cost, as does a multiple of the live
        deliveries: a range of 2**31 ids costs no more. `scanned` is set to the cost.
        """
        found: list[Entry] = []
        entry: Entry | None
        self.scanned = 1
        if first == last:
            entry = self.find(first)
            if entry is not None:
                found.append(entry)
            return found
        span = serial_distance(first, last)
        if span < 0:
            return found
        if self.beside:
            if span < len(self):
                self.scanned = span + 1
                for offset in range(span + 1):
                    entry = self.find((first + offset) & _MASK)
                    if entry is not None:
                        found.append(entry)
                return found
            return self._merged(first, span)
        slots = self.slots
        size = len(slots)
        begin = serial_distance(self.base, first)
        end = min(begin + span + 1, size)
        begin = max(begin, 0)
        offset = begin
        while offset < end and len(found) < self.live:
            entry = slots[(self.base + offset) & (size - 1)]
            offset += 1
            if entry is not None:
                found.append(entry)
        self.scanned = offset - begin
        return found

    def _merged(self, first: int, span: int) -> list[Entry]:
        """Return the deliveries of a range that is wider than their number, those beside the slots included."""
        found: dict[int, Entry] = {}
        for each in self.beside:
            after = serial_distance(first, each)
            if 0 <= after <= span:
                found[after] = self.beside[each]
        slots = self.slots
        size = len(slots)
        begin = serial_distance(self.base, first)
        left = self.live
        offset = max(begin, 0)
        self.scanned = len(self.beside) - offset
        while offset < min(begin + span + 1, size) and left:
            entry = slots[(self.base + offset) & (size - 1)]
            if entry is not None:
                found[offset - begin] = entry
                left -= 1
            offset += 1
        self.scanned += offset
        return [found[after] for after in sorted(found)]

    def _reach(self, delivery_id: int) -> None:
        """Make room for an id ahead of all slots: move the oldest deliveries beside the slots.

        If more than half of the slots are in use, double the slots instead.
        """
        slots = self.slots
        size = len(slots)
        ahead = serial_distance(self.base, delivery_id)
        if ahead >= 2 * size:
            for offset in range(size):
                each = (self.base + offset) & _MASK
                entry = slots[each & (size - 1)]
                if entry is not None:
                    self.beside[each] = entry
            self.slots = [None] * _LEAST_SLOTS
            self.base = delivery_id
            self.live = 0
            return
        while ahead >= size:
            slot = self.base & (size - 1)
            entry = slots[slot]
            if entry is not None:
                if self.live * 2 > size:
                    more: list[Entry | None] = [None] * (2 * size)
                    for offset in range(size):
                        each = (self.base + offset) & _MASK
                        more[each & (2 * size - 1)] = slots[each & (size - 1)]
                    self.slots = more
                    return
                slots[slot] = None
                self.live -= 1
                self.beside[self.base] = entry
            self.base = (self.base + 1) & _MASK
            ahead -= 1
        if size > _KEPT_SLOTS and self.live * _ROOM < size:
            self._shrink()
            if not self.live:
                self.base = delivery_id
            elif serial_distance(self.base, delivery_id) >= len(self.slots):
                self._reach(delivery_id)
