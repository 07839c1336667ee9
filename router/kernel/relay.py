"""What happens once per transfer or disposition: counters, the ledger, the reading and writing of the hot frames.

The engine and the router use the objects of this file for their own work, so there is one protocol. It knows nothing of
the project, keeps to ints, bytes and slotted classes, and raises only `Violation`: it runs as it is, and can be
compiled as it is.

Numbers that the standard calls sequence numbers are 32 bit and wrap (RFC 1982); `serial_add` and `serial_distance` are
the only places that know how. An absent optional field of a frame is -1 (numbers) or None (bytes).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

try:
    import cython
except ImportError:  # only who compiles this has to have it
    from amqpmesh.router.kernel import uncompiled as cython

_MASK: Final = 0xFFFFFFFF
_HALF: Final = 0x80000000

LINK: Final = "link"
SESSION: Final = "session"

# Sections that the hot path must know, by descriptor code (§3.2).
HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73

# Delivery states by descriptor code (§3.4, §4.5.8). One of an extension may have any other, or none that is a number.
EXTENSION: Final = 0
RECEIVED: Final = 0x23
ACCEPTED: Final = 0x24
REJECTED: Final = 0x25
RELEASED: Final = 0x26
MODIFIED: Final = 0x27
DECLARED: Final = 0x33
TRANSACTIONAL: Final = 0x34

#: `accepted` as every encoder of ours writes it: described list0, descriptor as smallulong.
ACCEPTED_STATE: Final = b"\x00\x53\x24\x45"
RELEASED_STATE: Final = b"\x00\x53\x26\x45"
#: modified(delivery-failed = true), and with undeliverable-here = true.
FAILED_STATE: Final = b"\x00\x53\x27\xc0\x02\x01\x41"
UNDELIVERABLE_STATE: Final = b"\x00\x53\x27\xc0\x03\x02\x41\x41"

#: The longest delivery-tag (§2.8.7).
MAX_TAG: Final = 32
#: Octets of a delivery state that may stay as it came until the delivery is settled.
LONG_STATE: Final = 4096
#: More than there will be of anything that is counted.
MANY: Final = 0x7FFFFFFF


# The same for this file alone: compiled, they are plain numbers of C, which nobody else can see.
_HEADER: Final = HEADER
_DELIVERY_ANNOTATIONS: Final = DELIVERY_ANNOTATIONS
_MESSAGE_ANNOTATIONS: Final = MESSAGE_ANNOTATIONS
_EXTENSION: Final = EXTENSION
_RECEIVED: Final = RECEIVED
_DECLARED: Final = DECLARED
_TRANSACTIONAL: Final = TRANSACTIONAL
_ACCEPTED: Final = ACCEPTED
_REJECTED: Final = REJECTED
_RELEASED: Final = RELEASED
_MODIFIED: Final = MODIFIED
_ACCEPTED_STATE: Final = ACCEPTED_STATE
_MAX_TAG: Final = MAX_TAG
_LONG_STATE: Final = LONG_STATE


class SessionOwner(Protocol):
    """The engine's session endpoint."""

    def flush(self) -> None:
        """Write what has gathered: states of deliveries, then flows."""


class Violation(Exception):  # noqa: N818 - the name says what happened; what it becomes is a ProtocolError
    """The peer broke the standard in a hot frame: what to answer, and at which level (link, session)."""

    def __init__(self, scope: str, condition: str, description: str) -> None:
        super().__init__(description)
        self.scope = scope
        self.condition = condition
        self.description = description


class Incomplete(Exception):  # noqa: N818 - no error: more bytes may come
    """The bytes end inside the value that is being skipped; more may follow in the next frame."""


def serial_add(value: int, increment: int) -> int:
    """The serial number `increment` after (or, negative, before) `value` (RFC 1982, 3.1)."""
    return (value + increment) & _MASK


def serial_distance(start: int, end: int) -> int:
    """How far `end` lies after `start`: -2**31 .. 2**31-1 (RFC 1982, 3.2; exactly half round counts as before)."""
    return ((end - start + _HALF) & _MASK) - _HALF


# ------------------------------------------------------------------------------------------------ counters and ledger


class Delivery:
    """One delivery at one end of a link, from its first frame until it is settled here (§2.6.12)."""

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

    def __init__(self, link: LinkFlow, tag: bytes, message_format: int, settled: bool, second: bool) -> None:
        self.link = link
        self.tag = tag
        self.message_format = message_format
        #: Settled at this end.
        self.settled = settled
        #: Settled at the other end: nobody waits for what we say of it.
        self.remote_settled = settled
        #: rcv-settle-mode second is in force for it (§2.7.5).
        self.second = second
        #: What its first frame says of that, as the sender chooses; -1: nothing, the link's mode holds.
        self.rcv_settle_mode = -1
        #: Assigned when its first frame is read or written; -1 before.
        self.delivery_id = -1
        #: The encoded delivery state of this end and of the other.
        self.state: bytes | None = None
        self.remote_state: bytes | None = None
        #: Its last frame was read or written.
        self.complete = False
        self.aborted = False
        #: A resumed delivery, of which we have all or know nothing: its frames are read and dropped.
        self.ignored = False
        #: Payload bytes so far.
        self.size = 0
        #: What the router hangs here: the relay that it came in with, or the leg that it leaves by.
        self.relay: Relay | None = None
        self.leg: Leg | None = None


#: Slots of a ledger: as many as it begins with, and as it keeps while nothing is live.
_LEAST_SLOTS: Final = 8
_KEPT_SLOTS: Final = 1024
#: Octets of a dictionary that are too many for each of its entries.
_ROOMY: Final = 250
#: Deliveries of one disposition that are decided at once, and that are passed on: others come first, if there are more.
_PART: Final = 500
_PASSED: Final = 2000
#: Slots that are looked at in the time that a delivery takes.
_SLOTS_AT_ONCE: Final = 64
#: A ledger has no more slots than so many for each live delivery, but for a few.
_ROOM: Final = 16


class Ledger:
    """The live deliveries of one session and direction, by delivery-id, in the order of their ids.

    A delivery is here from its first frame until it is settled at this end; one that was relayed without a decision as
    the `Passage` that it is part of.

    Ids come one after the other, so what is live stands in a row, each in the slot that its id says: nothing is hashed,
    and little memory is touched. Those that all others have left behind stand beside it.
    """

    __slots__ = ("base", "beside", "live", "scanned", "slots")

    def __init__(self) -> None:
        #: As many as are a power of two: of the ids from `base` on, each in that of its lowest bits; and how many there
        #: are of them.
        self.slots: list[Delivery | Passage | None] = [None] * _LEAST_SLOTS
        self.base = 0
        self.live = 0
        #: Those of other ids.
        self.beside: dict[int, Delivery | Passage] = {}
        #: How many places the last `select` has looked at, whether there was one or not.
        self.scanned = 0

    def __len__(self) -> int:
        return self.live + len(self.beside)

    def find(self, delivery_id: int) -> Delivery | Passage | None:
        """The live delivery of this id; None: there is none."""
        size = len(self.slots)
        found = None
        if 0 <= serial_distance(self.base, delivery_id) < size:
            found = self.slots[delivery_id & (size - 1)]
        if found is None and self.beside:
            found = self.beside.get(delivery_id)
        return found

    def put(self, delivery_id: int, delivery: Delivery | Passage) -> None:
        """One more, or another in place of the one of this id."""
        size = len(self.slots)
        if not self.live:
            self.base = delivery_id
            if size > _KEPT_SLOTS:
                size = _LEAST_SLOTS
                self.slots = [None] * size
        at = serial_distance(self.base, delivery_id)
        if at < 0 or (self.beside and delivery_id in self.beside):
            self.beside[delivery_id] = delivery
            return
        if at >= size:
            self._reach(delivery_id)
            size = len(self.slots)
        slot = delivery_id & (size - 1)
        if self.slots[slot] is None:
            self.live += 1
        self.slots[slot] = delivery

    def remove(self, delivery_id: int) -> None:
        """It is settled at this end. Raises: KeyError: none of this id is live."""
        size = len(self.slots)
        if 0 <= serial_distance(self.base, delivery_id) < size:
            slot = delivery_id & (size - 1)
            if self.slots[slot] is not None:
                self.slots[slot] = None
                self.live -= 1
                if size > _KEPT_SLOTS and self.live * _ROOM < size:
                    self._shrink()
                return
        del self.beside[delivery_id]

    def _shrink(self) -> None:
        """Have as many slots as what is live needs. Where those are the ones of the last ids, what is far behind goes
        beside."""
        slots = self.slots
        size = len(slots)
        least = _LEAST_SLOTS
        while least < 2 * self.live:
            least *= 2
        last = size - 1
        while last >= 0 and slots[(self.base + last) & (size - 1)] is None:
            last -= 1
        begin = max(0, last - least + 1)
        fewer: list[Delivery | Passage | None] = [None] * least
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
        """Let go of the slots, most of them, that are before and after all that is live."""
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
    def deliveries(self) -> dict[int, Delivery | Passage]:
        """All of them: those beside first."""
        found = dict(self.beside)
        for offset in range(len(self.slots)):
            delivery_id = (self.base + offset) & _MASK
            entry = self.slots[delivery_id & (len(self.slots) - 1)]
            if entry is not None:
                found[delivery_id] = entry
        return found

    def select(self, first: int, last: int) -> list[Delivery | Passage]:
        """The live deliveries from `first` to `last`, both included, in order (§2.7.6).

        Ids that are unknown, unused or settled are skipped. The cost is bounded by the range, and by a multiple of what
        is live, so a range of 2**31 ids is no lever; `scanned` tells what it was.
        """
        found: list[Delivery | Passage] = []
        entry: Delivery | Passage | None
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

    def _merged(self, first: int, span: int) -> list[Delivery | Passage]:
        """As `select`, of a range that is wider than there are deliveries, with those beside."""
        found: dict[int, Delivery | Passage] = {}
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
        """Give this id a slot, which lies ahead. Whatever is left behind for that goes beside; if that is much of all
        that is live, there are more slots instead."""
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
                    more: list[Delivery | Passage | None] = [None] * (2 * size)
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


class DispositionRun:
    """Consecutive delivery-ids that say the same: one `disposition` frame."""

    __slots__ = ("first", "last", "receiver", "settled", "state")

    def __init__(self, receiver: bool, delivery_id: int, settled: bool, state: bytes | None) -> None:
        self.receiver = receiver
        self.first = delivery_id
        self.last = delivery_id
        self.settled = settled
        self.state = state


#: Words of a unit of hop records, and how many of them one record may need at most: three units.
UNIT_WORDS: Final = 4
_UNIT: Final = UNIT_WORDS
_MOST: Final = 3 * UNIT_WORDS
#: Octets of the delivery key in a lane's delivery-tag, which one more follows: hops left.
_KEY: Final = 20
#: Bits of the flags in hop records.
_SETTLED: Final = 1
_BEGAN: Final = 2
_TIMED: Final = 8
_ANSWERED: Final = 16
#: In the place of flags: the unit is no record, but says what keys behind it begin with, or what is rare or large in
#: the record before it.
_KEY_UNIT: Final = 0x80 << 56
_WIDE_UNIT: Final = 0xC0 << 56
#: What of a time, a size and the time to an outcome stands in the record itself: their lower bits.
_LOW_TIME: Final = (1 << 40) - 1
_LOW_SIZE: Final = (1 << 24) - 1
_LOW_ANSWER: Final = (1 << 36) - 1
#: Of the number of a condition, what stands beside the time to an outcome; the rest stands beside the size.
_LOW_CONDITION: Final = (1 << 28) - 1
#: Records for which the clock is looked at once, at most: some ten microseconds.
_LOOKS: Final = 16
#: What spreads the counters of keys evenly over 32 bits: odd, and near to 2**32 divided by the golden ratio.
_SPREAD: Final = 0x9E3779B1


class Recorder:
    """Where hop records are stored: one for each delivery and link that it leaves by, of those whose keys are taken.

    The words of a record are what the router's telemetry says (`PACKED` there). It never waits: where there is no room
    and nobody gives some, records are lost, and counted.
    """

    __slots__ = (
        "base",
        "clock",
        "counter",
        "epoch",
        "first",
        "ingress",
        "key",
        "last",
        "lost",
        "now",
        "on_full",
        "on_rejected",
        "shift",
        "stored",
        "threshold",
        "times",
        "upper",
        "used",
        "words",
    )

    def __init__(self, clock: Callable[[], float]) -> None:
        """Args: clock: seconds; with `shift` added, what `RouterFlow.now` is."""
        self.clock = clock
        self.shift = 0.0
        #: What the clock has shown, and how many more times that is good enough.
        self.now = 0.0
        self.times = 0
        #: Nanoseconds since 1970 when `now` was 0.
        self.base = 0
        #: Of 2**32 keys so many are taken.
        self.threshold = 0
        #: Unsigned 64 bit words, how many of them are used, and at how many there is room for one more record.
        self.words: Any = None
        self.used = 0
        self.last = -1
        #: Called when there is no room for one more record: may `give` some.
        self.on_full: Callable[[], None] | None = None
        #: Called with an encoded `rejected`: returns the number of its condition; 0: it has none.
        self.on_rejected: Callable[[bytes], int] | None = None
        #: Records so far, the lost ones among them.
        self.stored = 0
        self.lost = 0
        #: The number of the first record in `words`.
        self.first = 0
        #: What the last key began with, and what `words` say of it; and the upper bits of counters and times there.
        self.key: bytes | None = None
        self.ingress = 0
        self.epoch = 0
        self.counter = 0
        self.upper = 0

    def give(self, words: Any) -> None:
        """Store what comes now in these, an `array` of unsigned 64 bit words; None: nowhere."""
        self.words = words
        self.used = 0
        self.last = -1 if words is None else len(words) - _MOST
        self.first = self.stored
        self.key = None

    def takes(self, counter: int) -> bool:
        """Whether a delivery is recorded, by the counter of its key: every router takes the same ones."""
        return ((counter & 0x7FFFFFFF) * _SPREAD & _MASK) < self.threshold

    def time(self) -> float:
        """What `RouterFlow.now` would be now, or was some calls ago in this batch: to look at the clock costs as much
        as to store a record.
        """
        if self.times <= 0:
            self.now = self.clock() + self.shift
            self.times = _LOOKS
        self.times -= 1
        return self.now

    def store(
        self,
        key: bytes,
        counter: int,
        hops_left: int,
        flags: int,
        state: int,
        incoming: int,
        outgoing: int,
        size: int,
        came: float,
        left: float,
        said: float,
        told: int,
        address: int,
        attempt: int,
        first: int,
        condition: int,
    ) -> bool:
        """Store a record.

        Args: key: what it begins with, ingress number and epoch. state: the outcome, as its number in records.
            incoming, outgoing: numbers of links. came, left, said: seconds, as `RouterFlow.now`; before 0: it has not.
            told: priority, and 256 times the delivery-count. address: its number; 0: the incoming link's. first: the
            counter of the first try; 0: this is it. condition: the number of that which it was rejected with; 0: none.
        Returns: whether it is; else it is lost.
        """
        if self.used > self.last and self.on_full is not None:
            self.on_full()
        # Compiled, `+=` would take a reference to the recorder.
        self.stored = self.stored + 1
        if self.used > self.last:
            self.lost += 1
            return False
        since = int(came * 1e9 + 0.5)
        time = self.base + since
        waited = passed = 0
        if left >= 0:
            flags |= _TIMED
            waited = int((left - came) * 1e9 + 0.5)
            if waited < 0:
                waited = 0
        if said >= 0:
            flags |= _ANSWERED
            passed = int((said - came) * 1e9 + 0.5)
            if passed < 0:
                passed = 0
        if key is not self.key or counter >> 32 != self.counter or time >> 40 != self.upper:
            self._say(key, counter >> 32, time >> 40)
        at = self.used
        self.words[at] = time & _LOW_TIME | (size & _LOW_SIZE) << 40
        self.words[at + 1] = counter & _MASK | (waited & _MASK) << 32
        self.words[at + 2] = passed & _LOW_ANSWER | hops_left << 36 | (told & 0xFF) << 44 | state << 52 | flags << 56
        self.words[at + 3] = incoming | outgoing << 32
        self.used = at + _UNIT
        # What is rare or large stands beside it: what a record costs are its octets.
        if address or attempt != 1 or first or condition or (told | size >> 16 | waited >> 24 | passed >> 28) >> 8:
            at += _UNIT
            self.words[at] = first | attempt << 48
            self.words[at + 1] = size >> 24 | (told >> 8 & 0xFFFF) << 40 | condition >> 28 << 56
            self.words[at + 2] = passed >> 36 | (condition & _LOW_CONDITION) << 28 | _WIDE_UNIT
            self.words[at + 3] = waited >> 32 | address << 32
            self.used = at + _UNIT
        return True

    def _say(self, key: bytes, counter: int, upper: int) -> None:
        """Say what keys begin with from here on, and the upper bits of counters and times, unless that is said."""
        ingress = uint32(key, 0) << 32 | uint32(key, 4)
        epoch = uint32(key, 8) << 16 | key[12] << 8 | key[13]
        self.key = key
        at = self.used
        if at and ingress == self.ingress and epoch == self.epoch and counter == self.counter and upper == self.upper:
            return
        self.ingress = ingress
        self.epoch = epoch
        self.counter = counter
        self.upper = upper
        self.words[at] = ingress
        self.words[at + 1] = epoch | counter << 48
        self.words[at + 2] = upper & 0xFFFFFF | _KEY_UNIT
        self.words[at + 3] = 0
        self.used = at + _UNIT


class RouterFlow:
    """What changes in a router with each transfer and disposition."""

    __slots__ = (
        "came",
        "due",
        "flow",
        "generation",
        "key_count",
        "key_page",
        "key_prefix",
        "key_stem",
        "key_tails",
        "leaving",
        "most_relays",
        "now",
        "on_unfold",
        "recorder",
        "relays",
        "said",
        "small_at",
        "touched",
    )

    def __init__(self) -> None:
        #: Called with what was unfolded: the router knows more of it.
        self.on_unfold: Callable[[Relay], None] | None = None
        #: Where it is recorded what came and left; None: nowhere.
        self.recorder: Recorder | None = None
        #: Seconds, of the batch that is handled.
        self.now = 0.0
        #: When a small delivery came last.
        self.small_at = -_BESIDE
        #: Live relays, and the most that were, since this was set to fewer.
        self.relays = 0
        self.most_relays = 0
        #: What was decided before this changed holds no more (`Exits`).
        self.generation = 1
        #: Links that were relayed on since their records were told (`LinkFlow.touched`), and whether that is due:
        #: credit is to be given again, or is spent.
        self.touched: list[LinkFlow] = []
        self.due = False
        #: The keys of deliveries that begin their way through the mesh here: what they begin with, and how many there
        #: were. All but the last octet of the count is the same in 256 of them: what those begin with, and which they
        #: are; -1: it is to be made. What follows is the last octet, and how many hops are left: all of them, by how
        #: many hops that is; None: there was no such key.
        self.key_prefix = b""
        self.key_count = 0
        self.key_stem = b""
        self.key_page = -1
        self.key_tails: list[tuple[bytes, ...] | None] = [None] * 256
        # The frames that are read and written now.
        self.came = TransferFrame(0)
        self.leaving = TransferFrame(0)
        self.said = DispositionFrame(False, 0, 0, False, None)
        self.flow = FlowFrame()

    def touch(self, link: LinkFlow) -> None:
        """Something changed on a link that its record is to be told of."""
        if not link.touched:
            link.touched = True
            self.touched.append(link)

    def counter(self, link: LinkFlow, tag: bytes) -> int:
        """The counter in the key of what came by `link` with `tag`; a new one, if it begins its way here."""
        if link.lane and len(tag) == _KEY + 1:
            return (uint32(tag, 12) & 0xFFFF) << 32 | uint32(tag, 16)
        self.key_count += 1
        return self.key_count

    def next_key(self, hops: int) -> bytes:
        """The delivery-tag of one more delivery on a lane: its key, and how many hops it may make."""
        count = self.key_count + 1
        self.key_count = count
        page = count >> 8
        if page != self.key_page:
            self.key_page = page
            self.key_stem = self.key_prefix + page.to_bytes(5, "big")
        tails = self.key_tails[hops]
        if tails is None:
            tails = self.key_tails[hops] = tuple([bytes((octet, hops)) for octet in range(256)])
        return self.key_stem + tails[count & 0xFF]

    def begin_keys(self, prefix: bytes) -> None:
        """Keys begin with this from now on."""
        self.key_prefix = prefix
        self.key_page = -1


class ConnectionFlow:
    """What changes in a connection with each transfer and disposition."""

    __slots__ = (
        "backlog",
        "compact",
        "container",
        "gathering",
        "is_open",
        "max_frame_size",
        "narrow",
        "number",
        "on_wake",
        "out",
        "patient",
        "remote_max_frame_size",
        "router",
        "sending",
        "sessions",
        "slow_until",
        "stirred",
        "toward",
        "toward_since",
        "undecided",
        "waited",
        "waits_for",
        "waits_since",
        "woken",
        "work",
    )

    def __init__(self) -> None:
        #: Whose relays it carries; None: it is a client's own.
        self.router: RouterFlow | None = None
        #: The peer's container-id, if it is a router of the same mesh: nothing goes back to it. Interned, for it is
        #: compared with every delivery.
        self.container: str | None = None
        #: Both sides have opened it, and none has closed it.
        self.is_open = False
        #: Bytes to be sent, in order; others once `take` has taken these.
        self.out = bytearray()
        #: Sessions that have something to write, with the next `flush`.
        self.stirred: list[SessionFlow] = []
        #: Called when there is something to be sent, once until it is taken; and whether it was.
        self.on_wake: Callable[[], None] | None = None
        self.woken = False
        #: Octets that were taken to be sent and are not written yet; and how many may wait in all before no delivery
        #: is written.
        self.sending = 0
        self.backlog = 0
        #: The peer needs no field that has its default.
        self.compact = False
        #: Octets of a frame that we take, and that the peer does.
        self.max_frame_size = 512
        self.remote_max_frame_size = 512
        #: Frames that a session announces at once for what is large, while something small comes to this router.
        self.narrow = _OUTGOING_WINDOW
        #: Sessions that both sides have begun and not ended, by the channel that the peer sends on.
        self.sessions: dict[int, SessionFlow] = {}
        #: What `relay` has read and cannot decide: a disposition, as far as others than passages are meant.
        self.undecided: Undecided | None = None
        #: Deliveries that may be looked at before others come first.
        self.work = 0
        #: Of a client: what came whole for links that were entrusted; None: there are none.
        self.gathering: Gathering | None = None
        #: Who tells it what came waits where `relay` does, until that output is written: `waits_for`.
        self.patient = False
        self.waits_for: ConnectionFlow | None = None
        #: Since when the same frame waits, seconds; negative: none does. And how long others have, less what was made
        #: up for. See `PATIENCE`.
        self.waits_since = -1.0
        self.waited = 0.0
        #: Its own, among those of a router; and of the one by which what is large leaves, since when, seconds.
        self.number = 0
        self.toward = -1
        self.toward_since = 0.0
        #: Nobody waits for its output until then, seconds: it has taken too long before.
        self.slow_until = 0.0

    def wake(self) -> None:
        """There is something to be sent."""
        if not self.woken and self.on_wake is not None:
            self.woken = True
            self.on_wake()

    def flush(self) -> None:
        """Write what sessions have gathered. Those that have more than dispositions are asked themselves."""
        stirred = self.stirred
        for session in stirred:
            session.woken = False
            if not self.is_open or session.channel == -1 or session.flows or not write_dispositions(session):
                assert session.owner is not None, "only an engine's session has more to write"
                session.owner.flush()
            elif session.flow_due:
                write_flow(session, None, False)
        stirred.clear()

    def take(self) -> bytearray:
        """All that is to be sent now, after a flush; it belongs to the caller."""
        self.flush()
        out = self.out
        self.woken = False
        if out:
            self.out = bytearray()
        return out


class Undecided:
    """What a disposition says of deliveries that are not the kernel's alone, a part of them at a time (`go_on`).

    Attributes: `deliveries`: those to be decided now.
    """

    __slots__ = ("at", "deliveries", "receiver", "rest", "session", "settled", "state")

    def __init__(
        self,
        session: SessionFlow,
        receiver: bool,
        state: bytes | None,
        settled: bool,
        deliveries: list[Delivery],
        rest: list[Delivery | Passage],
    ) -> None:
        """Args: receiver: the peer is it. rest: what else there was when it was said; the first `at` are done with."""
        self.session = session
        self.receiver = receiver
        self.state = state
        self.settled = settled
        self.deliveries = deliveries
        self.rest = rest
        self.at = 0


class SessionFlow:
    """What changes in a session with each transfer and disposition (§2.5.6).

    `window_size` is how many transfer frames may be here unreleased: a frame is *held* from its arrival until
    `release`, so what the peer can make us buffer is window_size frames.
    """

    __slots__ = (
        "begun",
        "channel",
        "displaced",
        "dispositions",
        "flow_due",
        "flows",
        "held",
        "in_full",
        "in_parts",
        "incoming",
        "incoming_limit",
        "initial_outgoing_id",
        "links",
        "next_delivery_id",
        "next_incoming_id",
        "next_outgoing_id",
        "outgoing",
        "owner",
        "progress",
        "remote_incoming_window",
        "remote_outgoing_window",
        "small",
        "widest",
        "window_size",
        "wire",
        "woken",
    )

    def __init__(
        self,
        window_size: int,
        initial_outgoing_id: int = 0,
        initial_delivery_id: int = 0,
        wire: ConnectionFlow | None = None,
        owner: SessionOwner | None = None,
    ) -> None:
        #: The connection's part; and the engine's session endpoint.
        self.wire = wire if wire is not None else ConnectionFlow()
        self.owner = owner
        #: Links of which something may be handled without asking, by the peer's handle (`entrust`).
        self.links: dict[int, LinkFlow] = {}
        #: It will be flushed.
        self.woken = False
        #: The outgoing channel; -1 while unmapped.
        self.channel = -1
        self.window_size = window_size
        #: What that becomes in steps, as long as what comes is small and leaves at once; and how many such frames came
        #: in a row.
        self.widest = window_size
        self.small = 0
        self.initial_outgoing_id = initial_outgoing_id
        self.next_outgoing_id = initial_outgoing_id
        self.next_incoming_id = 0
        #: The first transfer-id that the peer may not use, by what we last announced.
        self.incoming_limit = window_size
        self.held = 0
        #: What began last comes in several frames.
        self.in_parts = False
        #: The peer needs all fields of a `transfer`, trailing nulls included.
        self.in_full = False
        #: The peer has begun it, too: it is known where its transfers begin.
        self.begun = False
        self.remote_incoming_window = 0
        self.remote_outgoing_window = 0
        self.next_delivery_id = initial_delivery_id
        self.incoming = Ledger()
        self.outgoing = Ledger()
        self.dispositions: list[DispositionRun] = []
        #: Deliveries that came by links that are over, and whose ids others have now.
        self.displaced: list[Delivery] = []
        #: The latest state that is no outcome, by (role, delivery-id): only the last one of a delivery matters.
        self.progress: dict[tuple[bool, int], bytes] = {}
        #: Our window should be announced with the next flush, and flows of links are to be written.
        self.flow_due = False
        self.flows: list[object] = []

    def compact(self) -> None:
        """Let go of the room that deliveries had."""
        self.incoming.compact()
        self.outgoing.compact()

    @property
    def incoming_window(self) -> int:
        """How many more transfer frames may come before some are released."""
        return self.window_size - self.held

    def width(self) -> int:
        """How many frames are announced at once, at most.

        Who sends what is large in short pieces leaves time, between them, for what is small.
        """
        wire = self.wire
        if self.in_parts and wire.narrow < self.window_size:
            router = wire.router
            if router is not None and router.now - router.small_at < _BESIDE:
                return wire.narrow
        return self.window_size

    def announce(self) -> int:
        """The window to write into a `begin` or `flow` now; from here on it is what the peer may rely on."""
        width = self.width()
        window = min(width, self.window_size - self.held)
        # It never falls: what a frame takes from the window it adds to next_incoming_id.
        if width < self.window_size:
            window = max(window, serial_distance(self.next_incoming_id, self.incoming_limit))
        self.incoming_limit = serial_add(self.next_incoming_id, window)
        self.flow_due = False
        return window

    def release(self, frames: int) -> None:
        """The bytes of `frames` transfer frames have left, or of one at once (0): the window may grow again."""
        self.held -= frames
        if frames:
            self.small = 0
        elif self.small >= self.window_size and self.window_size < self.widest and not self.held:
            self.window_size = min(2 * self.window_size, self.widest)
        self.look()

    def look(self) -> None:
        """See whether the peer is to be told of a wider window: once half of it has gathered, or at once when the peer
        stands still.
        """
        if self.flow_due:
            return
        # How much wider the window is than the peer may know; it has become narrower if that is less than nothing.
        width = self.width()
        limit = (self.next_incoming_id + min(width, self.window_size - self.held)) & _MASK
        gathered = serial_distance(self.incoming_limit, limit)
        if gathered * 2 >= width or (gathered > 0 and self.next_incoming_id == self.incoming_limit):
            self.flow_due = True
            self.stir()

    def stir(self) -> None:
        """Something of it is to be flushed."""
        if not self.woken:
            self.woken = True
            self.wire.stirred.append(self)
            self.wire.wake()

    def dispose(self, receiver: bool, delivery_id: int, settled: bool, state: bytes | None) -> None:
        """Queue a disposition, joined to the one before where they say the same of consecutive ids (§2.7.6)."""
        runs = self.dispositions
        if not settled and state is not None and not is_terminal(state):
            self.progress[receiver, delivery_id] = state
            self.stir()
            return
        if runs:
            run = runs[-1]
            if (
                run.receiver == receiver
                and run.settled == settled
                and (run.last + 1) & _MASK == delivery_id
                and (run.state is state or run.state == state)
            ):
                run.last = delivery_id
                return
        runs.append(DispositionRun(receiver, delivery_id, settled, state))
        self.stir()


class LinkFlow:
    """What changes on a link endpoint with each transfer (§2.6.7), and its counters."""

    __slots__ = (
        "accepted",
        "available",
        "behind",
        "current",
        "delivery_count",
        "drain",
        "exits",
        "granted_limit",
        "handle",
        "lane",
        "last_at",
        "last_tag",
        "leg",
        "link_credit",
        "lowered",
        "max_message_size",
        "max_outstanding",
        "modified",
        "number",
        "octets",
        "outstanding",
        "over",
        "part",
        "passing",
        "presettled",
        "quiet",
        "received",
        "record",
        "rejected",
        "relay",
        "relayed",
        "released",
        "remote_handle",
        "second",
        "selective",
        "sender",
        "session",
        "snd_settle_mode",
        "stands",
        "touched",
        "turn",
        "unsettled",
    )

    def __init__(
        self, session: SessionFlow, sender: bool, record: object, unsettled: dict[bytes, Delivery | Passage]
    ) -> None:
        self.session = session
        #: True: we are the sending endpoint.
        self.sender = sender
        #: What is known of the link elsewhere: to the engine, or to the router; and by which number in hop records.
        self.record = record
        self.number = 0
        #: The output handle; -1 while unassigned.
        self.handle = -1
        self.delivery_count = 0
        self.link_credit = 0
        #: Senders: the latest flow took back all credit; it did not just find some spent.
        self.lowered = False
        self.available = 0
        self.drain = False
        #: Receivers: the highest delivery-limit that the sender may still rely on. It falls only when the peer has
        #: shown that it knows the lower one, so transfers under the old limit are never an error.
        self.granted_limit = 0
        #: The delivery that is in the middle of its frames; transfers of one link never interleave (§2.6.14).
        self.current: Delivery | None = None
        #: The terminus' unsettled map, by delivery-tag (§2.6.13). A sender's has nothing of what was relayed without a
        #: decision: its tags are ours, and new.
        self.unsettled = unsettled
        #: But for what came by a lane, and leaves by one, with the same tag and one hop less: by the tag that it came
        #: with, until the receiver has settled it.
        self.passing: dict[bytes, Passage] = {}
        #: What our side takes at most, in bytes, of a sender what the peer takes; 0: no limit (§2.7.3).
        self.max_message_size = 0
        #: The link's rcv-settle-mode is second.
        self.second = False
        #: 0 unsettled, 1 settled, 2 mixed (§2.8.2).
        self.snd_settle_mode = 2
        #: It is a lane, to or from a neighbour.
        self.lane = False
        #: Senders: 1 / n of what may wait to be written is too much for it.
        self.part = 1
        #: Something changed that the record was not told of; and how many deliveries were relayed since it was.
        self.touched = False
        self.relayed = 0
        #: Receivers: how many more may be relayed before it is due; and the relay whose frames are coming in.
        self.quiet = 0
        self.relay: Relay | None = None
        #: When the last delivery came or left, seconds; -1: none has.
        self.last_at = -1.0
        #: Receivers: where what comes leaves; None: it is decided anew for each delivery. Senders: the exits that it is
        #: one of. And the peer's handle, under which the kernel knows the link; -1: it does not.
        self.exits: Exits | None = None
        self.remote_handle = -1
        #: Receivers: what begins on it now may have to follow what came before it.
        self.behind = False
        #: Their source does not permit each outcome (§3.5.3, outcomes).
        self.selective = False
        #: Receivers: deliveries that their sender was told the outcome of, and has not settled. Senders: deliveries
        #: that are not settled; and how many there may be of either.
        self.outstanding = 0
        self.max_outstanding = 0
        #: Senders: the leg whose frames are being written, the last tag, and the number of the choice that took it.
        self.leg: Leg | None = None
        self.last_tag = 0
        self.turn = 0
        #: Nothing can be said of what is on it any more: a `Sweep` ends that. And of senders the outcome that stands
        #: where the receiver has given none.
        self.over = False
        self.stands = FAILED_STATE
        self.reset_counters()

    def compact(self) -> None:
        """Let go of the room that deliveries had: a dictionary keeps it until it is cleared, empty or not."""
        rooms: tuple[dict[bytes, Any], ...] = (self.unsettled, self.passing)
        for room in rooms:
            if room.__sizeof__() > _ROOMY * (len(room) + 1):
                left = dict(room)
                room.clear()
                room.update(left)

    def has_tag(self, tag: bytes) -> bool:
        """Whether what has left by this lane with this tag is unsettled; not of keys that were new here."""
        if tag in self.unsettled:
            return True
        last = len(tag) - 1
        return last >= 0 and tag[last] < 255 and tag[:last] + _OCTETS[tag[last] + 1] in self.passing

    def reset_counters(self) -> None:
        """Begin to count anew."""
        #: Deliveries whose first frame was read or written, and their payload in bytes.
        self.received = 0
        self.octets = 0
        #: Of those, the ones that were settled then; and how the others ended.
        self.presettled = 0
        self.accepted = 0
        self.rejected = 0
        self.released = 0
        self.modified = 0

    @property
    def has_counted(self) -> bool:
        """Whether a counter is not 0."""
        return bool(self.received or self.accepted or self.rejected or self.released or self.modified)

    def count_outcome(self, state: bytes | None) -> None:
        """Count a delivery that ended with `state`."""
        kind = state_kind(state)
        if kind == _ACCEPTED:
            self.accepted += 1
        elif kind == _RELEASED:
            self.released += 1
        elif kind == _MODIFIED:
            self.modified += 1
        elif kind == _REJECTED:
            self.rejected += 1


def entrust(link: LinkFlow, handle: int, exits: Exits | None) -> None:
    """What comes on a receiver may be relayed by `exits`, as long as they hold; and in any case what goes on with a
    delivery that has begun. Of a sender that is one of them, credit may be taken note of.

    Args: handle: the peer's.
    """
    link.exits = exits
    link.remote_handle = handle
    link.session.links[handle] = link


def recall(link: LinkFlow) -> None:
    """What comes on a link is for others to read."""
    link.exits = None
    if link.remote_handle != -1:
        del link.session.links[link.remote_handle]
        link.remote_handle = -1


#: Octets that count for each chunk besides its payload: the objects around it.
OVERHEAD: Final = 512


class Budget:
    """Octets that wait in some part of this router, against what may; what counts here counts in the whole, too.

    Attributes: `most`: the most that waited at once, since this was set to fewer. `holders`: parts of it in which
    something waits.
    """

    __slots__ = ("holders", "limit", "most", "used", "whole")

    def __init__(self, limit: int, whole: Budget | None = None) -> None:
        self.limit = limit
        self.used = 0
        self.most = 0
        self.holders = 0
        self.whole = whole

    def add(self, octets: int) -> None:
        """So many more wait, or (negative) fewer."""
        before = self.used
        self.used += octets
        if self.used > self.most:
            self.most = self.used
        if self.whole is not None:
            if before == 0:
                self.whole.holders += 1
            if self.used == 0:
                self.whole.holders -= 1
            self.whole.add(octets)


class Chunk:
    """Payload that waits here. It holds a frame of its session's window, and its octets count in an account."""

    __slots__ = ("_session", "_size", "account", "data", "holders")

    def __init__(self, data: bytes, session: SessionFlow | None, account: Budget) -> None:
        """Args: session: whose window one frame of is held until the chunk is released; None: no frame brought it."""
        self.data = data
        #: How many still have to send it.
        self.holders = 1
        self._session = session
        # What holds the octets costs more than a few of them: empty messages are not free.
        self._size = len(data) + OVERHEAD
        self.account = account
        account.add(self._size)

    def move(self, account: Budget) -> None:
        """It counts there from now on."""
        self.account.add(-self._size)
        self.account = account
        account.add(self._size)

    def absorb(self, other: Chunk) -> None:
        """Take the place of `other` too. It holds one frame as before; its data is the caller's to join."""
        self._size += other._size
        self.account.add(other._size)
        other.account.add(-other._size)
        if other._session is not None:
            other._session.release(1)

    def free_window(self) -> None:
        """It holds no frame of its session's window any more."""
        if self._session is not None:
            self._session.release(1)
            self._session = None

    def release(self) -> None:
        """One holder has sent it, or will not."""
        self.holders -= 1
        if self.holders == 0:
            self.account.add(-self._size)
            if self._session is not None:
                self._session.release(1)


def receive_transfer(link: LinkFlow, frame: TransferFrame, payload_size: int) -> Delivery:
    """Account an incoming transfer on `link`: session window, credit, delivery, ledger.

    Everything is checked before anything changes. Returns the delivery that the frame belongs to; one that is
    `ignored` is a resumed delivery that our unsettled map does not hold (§2.6.13: it counts, and nothing else).

    Raises: Violation at the session (window-violation, invalid field) or at the link (transfer-limit-exceeded,
        message-size-exceeded, invalid field).
    Source: §2.5.6 receiving a transfer, §2.6.7, §2.7.5.
    """
    session = link.session
    if serial_distance(session.next_incoming_id, session.incoming_limit) <= 0:
        raise Violation(SESSION, "amqp:session:window-violation", "transfer beyond the incoming window")
    delivery = link.current
    if delivery is None:
        return _first_transfer(session, link, frame, payload_size)
    if frame.delivery_id != -1 and frame.delivery_id != delivery.delivery_id:
        raise Violation(SESSION, "amqp:invalid-field", "delivery-id changed within a delivery")
    if frame.delivery_tag is not None and frame.delivery_tag != delivery.tag:
        raise Violation(SESSION, "amqp:invalid-field", "delivery-tag changed within a delivery")
    if frame.message_format != -1 and frame.message_format != delivery.message_format:
        raise Violation(SESSION, "amqp:invalid-field", "message-format changed within a delivery")
    if frame.aborted:
        payload_size = 0
    elif link.max_message_size and delivery.size + payload_size > link.max_message_size:
        raise Violation(LINK, "amqp:link:message-size-exceeded", f"more than {link.max_message_size} bytes")
    if frame.settled == 1 and link.snd_settle_mode == 0 and not frame.aborted:
        raise Violation(LINK, "amqp:invalid-field", "settled transfer on a link of snd-settle-mode unsettled")
    if link.snd_settle_mode == 1 and not (frame.settled == 1 or delivery.remote_settled or frame.aborted or frame.more):
        raise Violation(LINK, "amqp:invalid-field", "unsettled delivery on a link of snd-settle-mode settled")
    session.next_incoming_id = (session.next_incoming_id + 1) & _MASK
    session.held += 1
    if session.next_incoming_id == session.incoming_limit:
        session.look()  # what waits here for one link is no reason for others to stand still
    if session.remote_outgoing_window > 0:
        session.remote_outgoing_window -= 1
    delivery.size += payload_size
    link.octets += payload_size
    if frame.state is not None:
        delivery.remote_state = frame.state
    if (frame.settled == 1 or frame.aborted) and not delivery.remote_settled:
        # From here it is at most once: the sender has forgotten it, and so do we (§2.7.5, settled).
        delivery.settled = delivery.remote_settled = True
        forget(delivery)
    if frame.aborted:
        delivery.aborted = True
    if frame.aborted or not frame.more:
        delivery.complete = True
        link.current = None
    return delivery


def _first_transfer(session: SessionFlow, link: LinkFlow, frame: TransferFrame, payload_size: int) -> Delivery:
    """The first frame of a delivery: it needs an id and a tag of its own, and credit."""
    if frame.resume:
        known = None if frame.delivery_tag is None else link.unsettled.get(frame.delivery_tag)
        if isinstance(known, Delivery) and known.delivery_id == -1:
            return _resume(session, link, frame, known)
    _check_first_transfer(session, link, frame, payload_size)
    if frame.aborted:
        payload_size = 0
    settled = frame.settled == 1
    _count_first_transfer(session, link, settled, payload_size)
    session.held += 1
    session.in_parts = frame.more
    if session.next_incoming_id == session.incoming_limit:
        session.look()
    assert frame.delivery_tag is not None
    second = link.second and frame.rcv_settle_mode != 0
    message_format = frame.message_format if frame.message_format != -1 else 0
    delivery = Delivery(link, frame.delivery_tag, message_format, settled, second)
    delivery.delivery_id = frame.delivery_id
    delivery.size = payload_size
    delivery.remote_state = frame.state
    if frame.aborted:
        delivery.aborted = True
        delivery.settled = delivery.remote_settled = True
        delivery.complete = True
        return delivery
    if frame.resume:
        delivery.ignored = True
        delivery.settled = delivery.remote_settled = True
    elif not settled:
        session.incoming.put(delivery.delivery_id, delivery)
        link.unsettled[delivery.tag] = delivery
    if frame.more:
        link.current = delivery
    else:
        delivery.complete = True
    return delivery


def _resume(session: SessionFlow, link: LinkFlow, frame: TransferFrame, delivery: Delivery) -> Delivery:
    """The sender goes on with a delivery that its new link has and that has come whole: what it sends is dropped."""
    del link.unsettled[delivery.tag]
    try:
        _check_first_transfer(session, link, frame, 0)
    finally:
        link.unsettled[delivery.tag] = delivery
    _count_first_transfer(session, link, False, 0)
    session.held += 1
    if session.next_incoming_id == session.incoming_limit:
        session.look()
    delivery.delivery_id = frame.delivery_id
    delivery.second = link.second and frame.rcv_settle_mode != 0
    delivery.ignored = True
    delivery.size = 0
    if frame.state is not None:
        delivery.remote_state = frame.state
    if frame.settled == 1 or frame.aborted:
        delivery.remote_settled = True
    else:
        session.incoming.put(delivery.delivery_id, delivery)
    if frame.more and not frame.aborted:
        link.current = delivery
    return delivery


def _check_first_transfer(session: SessionFlow, link: LinkFlow, frame: TransferFrame, payload_size: int) -> None:
    """Whether a delivery may begin so. Raises: Violation."""
    if frame.delivery_id == -1:
        raise Violation(SESSION, "amqp:invalid-field", "first transfer of a delivery without delivery-id")
    if frame.delivery_tag is None:
        raise Violation(SESSION, "amqp:invalid-field", "first transfer of a delivery without delivery-tag")
    if serial_distance(link.delivery_count, link.granted_limit) <= 0:
        raise Violation(LINK, "amqp:link:transfer-limit-exceeded", "transfer without link credit")
    entry = session.incoming.find(frame.delivery_id)
    if entry is not None and not _makes_room(session, entry):
        raise Violation(SESSION, "amqp:invalid-field", f"delivery-id {frame.delivery_id} is in use")
    if frame.delivery_tag in link.unsettled:
        raise Violation(LINK, "amqp:not-allowed", "delivery-tag is in use by an unsettled delivery")
    if frame.rcv_settle_mode == 1 and not link.second:
        raise Violation(LINK, "amqp:invalid-field", "rcv-settle-mode second on a link of mode first")
    if frame.settled == 1:
        if link.snd_settle_mode == 0 and not frame.aborted:
            raise Violation(LINK, "amqp:invalid-field", "settled transfer on a link of snd-settle-mode unsettled")
    elif link.snd_settle_mode == 1 and not frame.aborted and not frame.more:
        raise Violation(LINK, "amqp:invalid-field", "unsettled delivery on a link of snd-settle-mode settled")
    if link.max_message_size and payload_size > link.max_message_size and not frame.aborted:
        raise Violation(LINK, "amqp:link:message-size-exceeded", f"more than {link.max_message_size} bytes")


def _count_first_transfer(session: SessionFlow, link: LinkFlow, settled: bool, payload_size: int) -> None:
    """A delivery begins: its frame is counted in the session, and it on the link."""
    session.next_incoming_id = (session.next_incoming_id + 1) & _MASK
    if session.remote_outgoing_window > 0:
        session.remote_outgoing_window -= 1
    link.delivery_count = (link.delivery_count + 1) & _MASK
    if link.link_credit > 0:
        link.link_credit -= 1
    if link.available > 0:
        link.available -= 1
    link.received += 1
    link.octets += payload_size
    if settled:
        link.presettled += 1


def discard_transfer(session: SessionFlow) -> None:
    """Account a transfer that nobody looks at: its link is being detached. Raises: as `receive_transfer`."""
    if serial_distance(session.next_incoming_id, session.incoming_limit) <= 0:
        raise Violation(SESSION, "amqp:session:window-violation", "transfer beyond the incoming window")
    session.next_incoming_id = (session.next_incoming_id + 1) & _MASK
    session.held += 1
    session.release(1)


def send_transfer(
    link: LinkFlow,
    out: bytearray,
    delivery: Delivery,
    payload: bytes | memoryview,
    more: bool,
    aborted: bool,
    state: bytes | None,
    limit: int,
) -> int:
    """Append the next frames of `delivery` to `out`, as far as the session's window allows; account them.

    The first frame takes an id and one of the link's credit; the caller has seen to it that there is credit, and that
    no other delivery is in the middle of its frames. `delivery.settled` goes with every frame.

    Args: more: other parts follow. aborted: drop it, of which frames were sent; `payload` is empty, `more` false.
        state: encoded, for the first frame. limit: octets of a frame that the peer takes.
    Returns: how many octets of the payload went; `delivery.complete` says whether the last frame did.
    Source: §2.5.6 sending a transfer, §2.6.7, §2.6.14.
    """
    session = link.session
    size = len(payload)
    taken = 0
    settled = 1 if delivery.settled else -1
    while session.remote_incoming_window > 0 and not delivery.complete:
        first = delivery.delivery_id == -1
        if first:
            delivery_id = session.next_delivery_id
            frame = TransferFrame(link.handle, delivery_id, delivery.tag, delivery.message_format, settled, more)
            frame.state = state
            frame.rcv_settle_mode = delivery.rcv_settle_mode
        elif taken == size and more:
            break
        else:
            frame = TransferFrame(link.handle, settled=settled, more=more, aborted=aborted)
        rest = memoryview(payload)[taken:] if taken else payload
        taken += write_transfer(out, session.channel, frame, rest, limit, session.in_full)
        if first:
            delivery.delivery_id = delivery_id
            _count_first_sent(session, link, delivery.settled)
            if not delivery.settled:
                session.outgoing.put(delivery_id, delivery)
                link.unsettled[delivery.tag] = delivery
        else:
            session.next_outgoing_id = (session.next_outgoing_id + 1) & _MASK
            session.remote_incoming_window -= 1
        if frame.more:
            link.current = delivery
        else:
            link.current = None
            delivery.complete = True
    if delivery.complete and aborted:
        delivery.aborted = True
        delivery.settled = delivery.remote_settled = True
        forget(delivery)
    delivery.size += taken
    link.octets += taken
    return taken


def _count_first_sent(session: SessionFlow, link: LinkFlow, settled: bool) -> None:
    """The first frame of a delivery is written: it is counted in the session, and the delivery on the link."""
    session.next_outgoing_id = (session.next_outgoing_id + 1) & _MASK
    session.remote_incoming_window -= 1
    session.next_delivery_id = (session.next_delivery_id + 1) & _MASK
    link.delivery_count = (link.delivery_count + 1) & _MASK
    link.link_credit -= 1
    link.received += 1
    if settled:
        link.presettled += 1


def dispose(delivery: Delivery, state: bytes | None, settled: bool) -> None:
    """Tell the peer our state of `delivery`, and settle it here if `settled` (§2.6.12, §2.7.6).

    Nothing is sent of what the peer has settled, nor where its link or session is over.
    """
    if delivery.settled:
        return
    if state is not None:
        delivery.state = state
    if settled:
        delivery.settled = True
        forget(delivery)
    link = delivery.link
    if delivery.delivery_id != -1 and not (delivery.remote_settled or link.over) and link.session.channel != -1:
        link.session.dispose(not link.sender, delivery.delivery_id, settled, state)


def receive_disposition(session: SessionFlow, frame: DispositionFrame) -> Undecided | None:
    """Note on deliveries what an incoming disposition says of them, and pass it on where they are passages (§2.7.6).

    Returns: what is to be decided, of the first of them, or what is left for later; None: nothing.
    """
    ledger = session.outgoing if frame.receiver else session.incoming
    said = Undecided(session, frame.receiver, frame.state, frame.settled, [], ledger.select(frame.first, frame.last))
    session.wire.work -= ledger.scanned // _SLOTS_AT_ONCE
    return said if go_on(said) else None


def go_on(said: Undecided) -> bool:
    """Note, or pass on, more of what was said. Returns: whether something of it is to be decided, `deliveries`, or is
    left for later.

    Others may have spoken of the same since: what is not live any more is left out.
    """
    session, receiver = said.session, said.receiver
    ledger = session.outgoing if receiver else session.incoming
    rest = said.rest
    count = len(rest)
    at = said.at
    last = min(count, at + _PASSED)
    deliveries: list[Delivery] = []
    while at < last and len(deliveries) < _PART:
        entry = rest[at]
        at += 1
        if isinstance(entry, Passage):
            delivery_id = entry.outgoing_id if receiver else entry.incoming_id
        else:
            delivery_id = entry.delivery_id
        live = ledger.find(delivery_id) if delivery_id >= 0 else None
        if live is not None:
            delivery = _hear(session, live, receiver, said.state, said.settled)
            if delivery is not None:
                deliveries.append(delivery)
    session.wire.work -= at - said.at
    said.at = at
    said.deliveries = deliveries
    return at < count or len(deliveries) > 0


def _hear(
    session: SessionFlow, entry: Delivery | Passage, receiver: bool, state: bytes | None, settled: bool
) -> Delivery | None:
    """What the peer says of an entry of a ledger is passed on, or noted on the delivery that is returned."""
    if _is_over(entry, receiver):
        return None
    if isinstance(entry, Passage):
        passage: Passage = entry
        router = session.wire.router
        assert router is not None
        if receiver:
            # To say nothing changes nothing.
            if (state is None and not settled) or _receiver_said(router, passage, state, settled):
                return None
        elif settled and passage.outcome is not None:
            _sender_settled(router, passage, state)
            return None
    delivery = _delivery(entry, receiver)
    if state is not None:
        delivery.remote_state = state
    if settled:
        delivery.remote_settled = True
    return delivery


def _delivery(entry: Delivery | Passage, sent: bool) -> Delivery:
    """What an entry of a ledger is, to those who decide. Args: sent: it is a ledger of deliveries that we sent."""
    if isinstance(entry, Delivery):
        return entry
    incoming, outgoing = unfold(entry)
    return outgoing if sent else incoming


def abandon(link: LinkFlow) -> None:
    """The link endpoint is destroyed: none of its deliveries can be spoken of any more (§2.6.5, §2.6.6)."""
    current = link.current
    end_link(link)
    if link.session.wire.router is not None:  # whose it is ends them
        return
    ledger = link.session.outgoing if link.sender else link.session.incoming
    for delivery in link.unsettled.values():
        assert isinstance(delivery, Delivery), "only routers relay"
        if ledger.find(delivery.delivery_id) is delivery:
            ledger.remove(delivery.delivery_id)
        delivery.delivery_id = -1
    if current is not None:
        current.delivery_id = -1


def forget(delivery: Delivery) -> None:
    """Remove `delivery` from the ledger of its session and from the unsettled map of its terminus."""
    link = delivery.link
    ledger = link.session.outgoing if link.sender else link.session.incoming
    if ledger.find(delivery.delivery_id) is delivery:
        ledger.remove(delivery.delivery_id)
    if link.unsettled.get(delivery.tag) is delivery:
        del link.unsettled[delivery.tag]


# ------------------------------------------------------------------------------------------------------------- relays


class Leg:
    """The way of one relay out through one outgoing terminus."""

    __slots__ = (
        "aborting",
        "branch",
        "chunks",
        "copy",
        "counted",
        "delivery",
        "done",
        "left",
        "offset",
        "open",
        "outcome",
        "relay",
        "said",
        "started",
        "tracked",
    )

    def __init__(self, relay: Relay, branch: object, copy: bool) -> None:
        self.relay = relay
        #: The router's record of the outgoing link.
        self.branch = branch
        #: A `copy` receiver's: its outcome counts for nobody.
        self.copy = copy
        #: The sender has settled it, and the router where its lane ends says when it has left there.
        self.tracked = False
        self.delivery: Delivery | None = None
        #: What came and has not left, and how much of the first of it has.
        self.chunks: deque[Chunk] = deque()
        self.offset = 0
        #: Its first frame is written.
        self.started = False
        #: No more of it is sent but `aborted`.
        self.aborting = False
        #: It counts as unsettled on its link.
        self.counted = False
        #: The receiver's terminal state, or what stands for it.
        self.outcome: bytes | None = None
        #: When its last frame left, and when there was an outcome, seconds; -1: it has not, or nobody has noted it.
        self.left = -1.0
        self.said = -1.0
        #: Settled, or gone: nothing will be sent or heard of it any more. `end` sets it.
        self.done = False
        #: It counts among the open legs of its relay.
        self.open = False

    def decide(self, outcome: bytes) -> None:
        """Note the outcome, which had none: of several legs of a relay the strongest goes up."""
        self.outcome = outcome
        relay = self.relay
        if self.open and not self.copy:
            relay.unanswered -= 1
            strongest = relay.strongest
            if strongest is None or _STRENGTH[state_kind(outcome)] > _STRENGTH[state_kind(strongest)]:
                relay.strongest = outcome

    def end(self) -> None:
        """Note that nothing will be sent or heard of it any more."""
        self.done = True
        if self.open:
            self.open = False
            self.relay.open -= 1


#: The stronger of two outcomes goes up, where a delivery has several receivers. One of an extension is known to its
#: sender alone.
_STRENGTH: Final = {_EXTENSION: 4, _REJECTED: 3, _ACCEPTED: 2, _MODIFIED: 1, _RELEASED: 0}


_NEVER: Final = float("inf")


class Relay:
    """One delivery's journey through this router: one incoming delivery, one or more legs."""

    __slots__ = (
        "address",
        "answered",
        "arrived",
        "attempts",
        "came",
        "chunks",
        "closed",
        "complete",
        "counter",
        "dropped",
        "excluded",
        "expires",
        "failed",
        "first",
        "head",
        "incoming",
        "kept",
        "key",
        "legs",
        "message_format",
        "open",
        "portion",
        "presettled",
        "priority",
        "queued",
        "recorded",
        "second",
        "section_shift",
        "settled",
        "share",
        "source",
        "strongest",
        "tag",
        "to",
        "told",
        "unanswered",
        "waiting",
    )

    def __init__(self, source: object, incoming: Delivery | None, message_format: int, arrived: float) -> None:
        #: The router's record of the incoming link.
        self.source = source
        #: None once the sender is gone or has forgotten it: an orphan, if legs of it live.
        self.incoming = incoming
        self.message_format = message_format
        #: Nobody waits for an outcome: the sender settled it.
        self.settled = incoming is None or incoming.remote_settled
        self.second = incoming is not None and incoming.second
        #: To be read; see `add` and `drop`. How many of them are not done, how many that are no copies have no outcome,
        #: and the strongest outcome of the others: with thousands of legs nobody looks at all whenever one has spoken.
        self.legs: list[Leg] = []
        self.open = 0
        self.unanswered = 0
        self.strongest: bytes | None = None
        #: What came before there were legs, in order.
        self.chunks: deque[Chunk] = deque()
        self.head: Head | None = None
        #: The router's record of the address that it goes to.
        self.address: object = None
        #: The router's record of the share of credit that it was forwarded by, within its ingress router.
        self.share: object = None
        #: On lanes: its delivery key with the hops that are left, and the final address where the lane has none.
        self.key: bytes | None = None
        self.to: str | None = None
        #: When its first frame came, seconds.
        self.arrived = arrived
        #: When its absolute-expiry-time is over, seconds; infinite: never, or its address does not honour that.
        self.expires = _NEVER
        self.priority = 4
        #: Its last frame has come.
        self.complete = False
        #: What still comes is read and dropped.
        self.dropped = False
        #: It waits in its address' queue, unsent: its ticket there; 0: it does not.
        self.queued = 0
        #: It counts as waiting in the pool of its input.
        self.waiting = True
        #: Of an anonymous sender's: its portion of that sender's window while it waits, here or at another router.
        self.portion: object = None
        #: The sender has been told an outcome, and is to settle it (mode second).
        self.answered = False
        #: How many sections fewer than came were sent on.
        self.section_shift = 0
        #: Redelivery: the whole message, the tries so far, whether one of them failed, and who may not have it again.
        self.kept: bytearray | None = None
        self.attempts = 0
        self.failed = False
        self.excluded: set[object] | None = None
        #: Nothing of it is left.
        self.closed = False
        #: For its records: when and with which tag it came, whether settled, what its header told, and whether it is
        #: recorded already that it was not sent.
        self.came = arrived
        self.tag = incoming.tag if incoming is not None else b""
        self.presettled = self.settled
        self.recorded = False
        self.told = 4
        #: The counter of its key, where that stands in no tag, and of the key of its first try; 0: there is none yet.
        self.counter = 0
        self.first = 0

    def add(self, leg: Leg) -> None:
        """It leaves by one more leg, of which nothing is known yet."""
        self.legs.append(leg)
        leg.open = True
        self.open += 1
        if not leg.copy:
            self.unanswered += 1

    def drop(self, kept: list[Leg]) -> None:
        """Forget its legs, and what they said. Args: kept: copies that go on by themselves."""
        for leg in self.legs:
            leg.open = False
        self.legs = []
        self.open = self.unanswered = 0
        self.strongest = None
        for leg in kept:
            self.add(leg)


# ------------------------------------------------------------------------------------------ relayed without a decision


#: In which order exits are taken: the first that is ready, the one with the least unsettled, or by turns.
FIRST: Final = 0
LEAST: Final = 1
TURNS: Final = 2
_FIRST: Final = FIRST
_LEAST: Final = LEAST


class Exits:
    """Where what comes to a node leaves, decided once: `relay` asks nobody as long as it holds.

    It holds while `generation` is the router's; whatever changes something of a node sets it to 0.
    """

    __slots__ = ("bulk", "drops", "generation", "hops", "lent", "links", "order", "quiet", "room", "turn", "wanted")

    def __init__(self) -> None:
        self.generation = 0
        #: Those that may take a delivery, if they are ready for it; and where they are lanes, which is in the order
        #: `_FIRST`, those for large ones: they take a small one, too, if no other does.
        self.links: list[LinkFlow] = []
        self.bulk: list[LinkFlow] = []
        self.order = _FIRST
        #: The turn of who was chosen last, if it is given the delivery; 0: there was nobody else.
        self.turn = 0
        #: Octets of payload that certainly fit into one frame.
        self.room = 0
        #: How many more deliveries the way out may be given; -1: it lends nothing, and asks nothing.
        self.lent = -1
        #: How many of those may be given before the way out is to be told.
        self.quiet = 0
        #: How many hops a delivery may make that begins its way through the mesh here.
        self.hops = 0
        #: Delivery annotations do not pass.
        self.drops = False
        #: A delivery came that could not leave by them: they are to be decided anew.
        self.wanted = False


# Many live long, and none is garbage: whose link is over is unfolded. These decorators have no effect in relay.pxd.
@cython.final
@cython.no_gc
@cython.freelist(512)
@cython.cclass
class Passage:
    """One delivery that is relayed without a decision: the incoming and the outgoing one, while either is unsettled.

    It is written whole, by one link. Whatever else is asked of it is asked of what `unfold` makes of it.
    """

    __slots__ = (
        "arrived",
        "counter",
        "incoming",
        "incoming_id",
        "incoming_tag",
        "left",
        "number",
        "outcome",
        "outgoing",
        "outgoing_id",
        "outgoing_tag",
        "over",
        "said",
        "second",
        "size",
        "told",
    )

    # Made by `__new__` alone, which compiled is much quicker: `_passage` sets all of it.
    incoming: LinkFlow
    incoming_id: int
    incoming_tag: bytes
    #: rcv-settle-mode second is in force.
    second: bool
    #: When it came, seconds.
    arrived: float
    outgoing: LinkFlow
    outgoing_id: int
    #: Empty: it is the number, in hexadecimal digits; or, on a lane, the one that it came with, with one hop less.
    outgoing_tag: bytes
    number: int
    #: The receiver has settled it.
    over: bool
    #: What the receiver has said, and the sender was told; only in mode second it is not the end.
    outcome: bytes | None
    #: When that was, seconds.
    said: float
    #: If it is to be recorded: when it left, seconds, octets of its payload, what its header told, and the counter of
    #: its key. -1: it is not.
    left: float
    size: int
    told: int
    counter: int


def unfold(passage: Passage) -> tuple[Delivery, Delivery]:
    """Make of a passage the relay that it is, for those who decide. Returns: what came, and what left."""
    incoming, outgoing = passage.incoming, passage.outgoing
    came = Delivery(incoming, passage.incoming_tag, 0, False, passage.second)
    came.delivery_id = passage.incoming_id
    came.complete = True
    came.state = passage.outcome
    orphaned = passage.incoming_id == -1
    left = Delivery(outgoing, _left_with(passage), 0, False, False)
    left.complete = True
    relay = _joined(came, left, passage.arrived)
    relay.complete = True
    relay.answered = passage.outcome is not None
    relay.counter = passage.counter
    relay.told = passage.told
    leg: Leg = relay.legs[0]
    if passage.outcome is not None:
        leg.decide(passage.outcome)
    leg.said = passage.said
    leg.left = passage.left
    left.size = passage.size
    if orphaned:
        came.settled = came.remote_settled = True
        relay.incoming = None
    else:
        incoming.session.incoming.put(came.delivery_id, came)
        incoming.unsettled[came.tag] = came
    if passage.over:
        leg.end()
        left.settled = left.remote_settled = True
    else:
        left.delivery_id = passage.outgoing_id
        leg.counted = True
        outgoing.session.outgoing.put(left.delivery_id, left)
        outgoing.unsettled[left.tag] = left
        if outgoing.lane and not passage.outgoing_tag:
            del outgoing.passing[passage.incoming_tag]
    router = incoming.session.wire.router
    if router is not None and router.on_unfold is not None:
        router.on_unfold(relay)
    return came, left


def unfold_link(link: LinkFlow) -> None:
    """Make of each passage on a link the relay that it is: somebody looks at what is on it."""
    if not link.outstanding and not link.unsettled:
        return
    ledger = link.session.outgoing if link.sender else link.session.incoming
    for entry in ledger.deliveries.values():
        if isinstance(entry, Passage) and (entry.outgoing if link.sender else entry.incoming) is link:
            unfold(entry)


# ------------------------------------------------------------------------------------------------- links that are over


def end_link(link: LinkFlow) -> None:
    """The link takes and gives nothing from here on, and nothing can be said of its deliveries; a `Sweep` ends them."""
    recall(link)
    link.over = True
    link.current = None


#: Slots that a sweep looks at in a step, at most; passages that it ends; and deliveries that others end.
_SWEPT_SLOTS: Final = 10_000
_SWEPT_PASSAGES: Final = 50
_SWEPT_DELIVERIES: Final = 10


class Sweep:
    """Goes through a ledger, a step at a time (`sweep`), and ends what links that are over have left there.

    Attributes: `deliveries`: of the last step, those that the router has to end.
    """

    __slots__ = ("at", "beside", "deliveries", "sent", "session")

    def __init__(self, session: SessionFlow, sent: bool) -> None:
        """Args: sent: of the two ledgers, that of what we sent."""
        self.session = session
        self.sent = sent
        self.deliveries: list[Delivery] = []
        #: The next id of those in slots; and those beside that are left, None: the slots come first.
        self.at = 0
        self.beside: list[int] | None = None
        self.restart()

    def restart(self) -> None:
        """Go through all of it, once more: another link is over."""
        self.at = (self.session.outgoing if self.sent else self.session.incoming).base
        self.beside = None


def sweep(task: Sweep) -> bool:
    """Do a step. Returns: whether there is more."""
    session, sent = task.session, task.sent
    router = session.wire.router
    assert router is not None
    ledger = session.outgoing if sent else session.incoming
    entries: list[Delivery | Passage] = []
    task.deliveries = []
    if not sent and session.displaced:
        task.deliveries.extend(session.displaced)
        session.displaced = []
    passages = deliveries = 0
    entry: Delivery | Passage | None
    if task.beside is None:
        slots = ledger.slots
        size = len(slots)
        offset = max(serial_distance(ledger.base, task.at), 0)
        last = min(size, offset + _SWEPT_SLOTS)
        while offset < last and passages < _SWEPT_PASSAGES and deliveries < _SWEPT_DELIVERIES:
            entry = slots[(ledger.base + offset) & (size - 1)]
            offset += 1
            if entry is not None and _is_over(entry, sent):
                entries.append(entry)
                if isinstance(entry, Passage):
                    passages += 1
                else:
                    deliveries += 1
        task.at = (ledger.base + offset) & _MASK
        if offset >= size:
            task.beside = [each for each, entry in ledger.beside.items() if _is_over(entry, sent)]
    else:
        while task.beside and len(entries) < _SWEPT_DELIVERIES:
            entry = ledger.beside.get(task.beside.pop())
            if entry is not None and _is_over(entry, sent):
                entries.append(entry)
    for entry in entries:
        if isinstance(entry, Delivery):
            task.deliveries.append(entry)
        elif not _end_passage(router, entry, sent):
            task.deliveries.append(_delivery(entry, sent))
    return task.beside is None or len(task.beside) > 0


def _is_over(entry: Delivery | Passage, sent: bool) -> bool:
    """Whether the link that an entry of a ledger came or left by is over. Args: sent: it left by it."""
    if isinstance(entry, Passage):
        passage: Passage = entry
        return passage.outgoing.over if sent else passage.incoming.over
    delivery: Delivery = entry
    return delivery.link.over


def _end_passage(router: RouterFlow, passage: Passage, sent: bool) -> bool:
    """One side of a passage is gone: the other hears what is true. Returns: whether that needs no decision.

    Args: sent: it is the receiver that is gone. Then what stands for its outcome goes up; if the sender is, the
        passage lives on until the receiver has settled it.
    """
    if passage.left >= 0 and router.recorder is not None:
        return False  # its record names links that may have to be told of again
    if sent:
        return _receiver_said(router, passage, passage.outgoing.stands, True)
    _leave_sender(passage)
    if passage.outcome is not None:
        _end_orphan(router, passage, False)
    return True


def _leave_sender(passage: Passage) -> None:
    """Its sender is gone: it lives on for its receiver alone."""
    link = passage.incoming
    if passage.incoming_id != -1:
        if link.session.incoming.find(passage.incoming_id) is passage:
            link.session.incoming.remove(passage.incoming_id)
        if link.unsettled.get(passage.incoming_tag) is passage:
            del link.unsettled[passage.incoming_tag]
        passage.incoming_id = -1


def _end_orphan(router: RouterFlow, passage: Passage, settled: bool) -> None:
    """The receiver has said its outcome, and the sender is gone. Args: settled: the receiver has settled it."""
    _leave_sender(passage)
    if not passage.over:
        _end_sent(router, passage)
        if not (settled or passage.outgoing.over):
            # There is no state of a sender's.
            passage.outgoing.session.dispose(False, passage.outgoing_id, True, None)
    router.relays -= 1


def _makes_room(session: SessionFlow, entry: Delivery | Passage) -> bool:
    """Whether an incoming delivery's link is over, so that another may have its id: then it has given it up."""
    if not _is_over(entry, False):
        return False
    delivery = _delivery(entry, False)
    session.incoming.remove(delivery.delivery_id)
    session.displaced.append(delivery)
    return True


def relay(wire: ConnectionFlow, data: bytes, at: int, end: int) -> int:
    """Relay what comes on a connection, frame by frame, as far as nothing is to be decided.

    Every frame is done with entirely, or is left as if it had not been looked at.

    Args: data: of which `at` is where a frame begins, of a connection that both sides have opened.
    Returns: where the first frame begins that is not done with: it is not here whole, it is for others to read,
        `wire.waits_for` is to be written before, or `wire.work` is used up. `wire.undecided` is what is left of the one
        before.
    """
    router = wire.router
    if router is None:
        return at if wire.gathering is None else gather(wire, wire.gathering, data, at, end)
    begin = at
    came = router.came
    sessions = wire.sessions
    if router.recorder is not None:
        router.recorder.times = 0
    while end - at >= _SMALLEST:
        size = uint32(data, at)
        after = at + size
        if size < _SMALLEST or after > end or size > wire.max_frame_size or data[at + 4] != 2 or data[at + 5]:
            break
        session = sessions.get(data[at + 6] << 8 | data[at + 7])
        if session is None:
            break
        code = data[at + 10]
        if code == _TRANSFER_CODE:
            payload_at = read_transfer(came, data, at + 8, after)
            if payload_at < 0:
                break
            link = session.links.get(came.handle)
            if link is None or link.sender or not _relay_transfer(router, session, link, came, data, payload_at, after):
                break
            # What a large one adds to somebody's output is to leave before there is too much of it.
            wire.work -= 1 + (size >> 8)
        elif code == _DISPOSITION_CODE:
            if not read_disposition(router.said, data, at + 8, after):
                break
            if not _relay_disposition(router, wire, session, router.said):
                at = after
                break
        elif code == _FLOW_CODE:
            if not read_flow(router.flow, data, at + 8, after) or not _take_flow(router, session, router.flow):
                break
            wire.work -= 1
        else:
            break
        at = after
        if wire.work <= 0:
            break
    if at > begin:
        if wire.waits_since >= 0:
            wire.waited += router.now - wire.waits_since
            wire.waits_since = -1.0
        if wire.waited > 0:
            wire.waited = max(0.0, wire.waited - (at - begin) / _PACE)
    if wire.waits_for is not None:
        _note_wait(router, wire)
    return at


def _note_wait(router: RouterFlow, wire: ConnectionFlow) -> None:
    """The next frame of a connection is to wait: not for ever, however often its sink's peer says something, and
    however many have waited before it, for others wait behind all of them."""
    sink = wire.waits_for
    assert sink is not None
    if wire.waits_since < 0:
        wire.waits_since = router.now
    if wire.waited + router.now - wire.waits_since >= _PATIENCE:
        sink.slow_until = router.now + IMPATIENCE
        wire.waits_for = None
        wire.waited = 0.0


class Gathering:
    """Deliveries that came in one frame each, for one link, and that nobody was told of yet."""

    __slots__ = ("deliveries", "frame", "payloads")

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.payloads: list[bytes] = []
        #: Read into, again and again.
        self.frame = TransferFrame(handle=0)


def gather(wire: ConnectionFlow, gathering: Gathering, data: bytes, at: int, end: int) -> int:
    """Take what comes for the links of a client that were entrusted (`entrust`), as far as each delivery is one frame.

    Args: data: as of `relay`.
    Returns: where the first frame begins that was not taken: it is not here whole, it is for others to read, or for
        another link than those before.
    """
    frame = gathering.frame
    deliveries = gathering.deliveries
    payloads = gathering.payloads
    last = deliveries[-1].link if deliveries else None
    while end - at >= _SMALLEST:
        size = uint32(data, at)
        after = at + size
        if size < _SMALLEST or after > end or size > wire.max_frame_size or data[at + 4] != 2 or data[at + 5]:
            break
        session = wire.sessions.get(data[at + 6] << 8 | data[at + 7])
        if session is None or data[at + 10] != _TRANSFER_CODE:
            break
        payload_at = read_transfer(frame, data, at + 8, after)
        if payload_at < 0 or frame.more or frame.aborted or frame.resume:
            break
        link = session.links.get(frame.handle)
        if link is None or link.sender or link.current is not None or (last is not None and link is not last):
            break
        try:
            delivery = receive_transfer(link, frame, after - payload_at)
        except Violation:
            break  # who reads it anew finds the same, and answers
        last = link
        deliveries.append(delivery)
        payloads.append(data[payload_at:after])
        at = after
    return at


#: Octets of the smallest frame that is relayed.
_SMALLEST: Final = 15
_TRANSFER_CODE: Final = 0x14
_DISPOSITION_CODE: Final = 0x15
_FLOW_CODE: Final = 0x13


def _relay_transfer(
    router: RouterFlow,
    session: SessionFlow,
    link: LinkFlow,
    frame: TransferFrame,
    data: bytes,
    payload_at: int,
    end: int,
) -> bool:
    """Relay a frame of a delivery now: all of it, or what begins one that leaves in the same way; whether it was."""
    if link.current is not None:
        return _relay_next(router, session, link, frame, data, payload_at, end)
    exits = link.exits
    size = end - payload_at
    if (
        exits is None
        or exits.generation != router.generation
        or exits.lent == 0
        or link.behind
        or serial_distance(session.next_incoming_id, session.incoming_limit) <= 0
    ):
        return False
    large = frame.more or size > exits.room
    out = _ready_exit(exits) if not large else _large_exit(exits, size)
    if out is None:
        if session.wire.patient:
            _await_exit(router, session.wire, exits, size if large else 0)
        return False
    if out.max_message_size and size > out.max_message_size:
        return False
    if frame.message_format <= 0 and not _passes_as_it_is(data, payload_at, end, exits.drops, not frame.more):
        return False
    try:
        _check_first_transfer(session, link, frame, size)
    except Violation:
        return False  # who reads it anew finds the same, and answers
    came_with = frame.delivery_tag
    assert came_with is not None
    target = out.session
    sink = target.wire
    # The tag that it leaves with: this; or the one that it came with, with so many hops left; or a number.
    tag = b""
    hops = 0
    number = 0
    if not out.lane:
        out.last_tag += 1
        number = out.last_tag
    elif not link.lane:
        tag = router.next_key(exits.hops)
    else:
        hops = came_with[len(came_with) - 1] if came_with else 0
        if hops < 2 or sink.container is session.wire.container or came_with in out.passing:
            return False
        hops -= 1
        if out.unsettled and onward(came_with) in out.unsettled:
            return False
    if large:
        _relay_first(
            router, link, out, frame, data, payload_at, end, tag or (onward(came_with) if hops else b"%x" % number)
        )
        return True
    settled = frame.settled == 1
    second = link.second and frame.rcv_settle_mode != 0
    delivery_id = target.next_delivery_id
    # Lanes are of mode second, for those that need it (§2.7.5).
    mode = 0 if out.lane and not second else -1
    p = data
    if target.in_full or frame.message_format > 0:
        leaving = router.leaving
        leaving.handle = out.handle
        leaving.delivery_id = delivery_id
        leaving.delivery_tag = tag or (onward(came_with) if hops else b"%x" % number)
        leaving.message_format = frame.message_format if frame.message_format > 0 else 0
        leaving.settled = 1 if settled else -1
        leaving.more = False
        leaving.rcv_settle_mode = mode
        write_transfer(sink.out, target.channel, leaving, p[payload_at:end], sink.remote_max_frame_size, target.in_full)
    else:
        _write_whole(
            sink.out,
            target.channel,
            out.handle,
            delivery_id,
            came_with if hops else tag,
            hops,
            number,
            settled,
            mode,
            size,
        )
        if size < _COPIED:
            sink.out += p[payload_at:end]
        else:
            sink.out += memoryview(data)[payload_at:end]
    _count_first_transfer(session, link, settled, size)
    session.in_parts = False
    if size < _COPIED:
        session.small += 1
        router.small_at = router.now
    else:
        session.small = 0
        _goes_to(router, session.wire, sink)
    session.release(0)
    _count_first_sent(target, out, settled)
    out.octets += size
    _count_relayed(router, link, out)
    recorder = router.recorder
    counter = 0
    left = -1.0
    said = 4
    if recorder is not None:
        counter = router.key_count if out.lane and not link.lane else router.counter(link, came_with)
        if recorder.takes(counter):
            left = recorder.time()
            if frame.message_format <= 0:
                said = told(data, payload_at, end)
            if settled:
                _record(router, recorder, link, out, came_with, tag, counter, size, router.now, left, -1.0, b"", said)
    if not settled:
        passage = _passage(link, frame.delivery_id, came_with, second, router.now, out, delivery_id, tag)
        passage.number = number
        passage.left = left
        passage.size = size
        passage.told = said
        passage.counter = counter
        if hops:
            out.passing[came_with] = passage
        out.outstanding += 1
        router.relays += 1
        if router.relays > router.most_relays:
            router.most_relays = router.relays
    if not target.woken:
        target.stir()
    return True


def _passage(
    incoming: LinkFlow,
    incoming_id: int,
    incoming_tag: bytes,
    second: bool,
    arrived: float,
    outgoing: LinkFlow,
    outgoing_id: int,
    outgoing_tag: bytes,
) -> Passage:
    """One more, which the ledgers of both sides have; the unsettled map of a lane that it leaves by is the caller's."""
    passage = Passage.__new__(Passage)
    passage.incoming = incoming
    passage.incoming_tag = incoming_tag
    passage.second = second
    passage.arrived = arrived
    passage.outgoing = outgoing
    passage.outgoing_tag = outgoing_tag
    passage.number = 0
    passage.over = False
    passage.outcome = None
    passage.said = -1.0
    passage.incoming_id = incoming_id
    incoming.session.incoming.put(incoming_id, passage)
    incoming.unsettled[incoming_tag] = passage
    passage.outgoing_id = outgoing_id
    outgoing.session.outgoing.put(outgoing_id, passage)
    return passage


def told(data: bytes, at: int, end: int) -> int:
    """What the header of a message says that records tell: its priority, and 256 times its delivery-count."""
    if end - at < 6 or data[at + 1] != 0x53 or data[at + 2] != _HEADER or data[at + 3] == 0x45:
        return 4
    if data[at + 3] == 0xC0:
        count = data[at + 5]
        at += 6
    else:
        if end - at < 12:
            return 4
        count = uint32(data, at + 8)
        at += 12
    priority = 4
    tries = 0
    # durable, priority, ttl, first-acquirer, delivery-count (§3.2.1)
    for field in range(min(count, 5)):
        if at >= end:
            break
        code = data[at]
        if field == 1 and code == 0x50 and end - at >= 2:
            priority = data[at + 1]
        elif field == 4 and code == 0x52 and end - at >= 2:
            tries = data[at + 1]
        elif field == 4 and code == 0x70 and end - at >= 5:
            tries = min(uint32(data, at + 1), 0xFFFF)
        at += 5 if code == 0x70 else 2 if code == 0x50 or code == 0x52 or code == 0x56 else 1
    return priority | tries << 8


def _record(
    router: RouterFlow,
    recorder: Recorder,
    link: LinkFlow,
    out: LinkFlow,
    came_with: bytes,
    left_with: bytes,
    counter: int,
    size: int,
    came: float,
    left: float,
    said: float,
    state: bytes,
    told: int,
) -> None:
    """Record what came by one link and left by one. Args: state: its outcome; empty: it was settled before."""
    kind = state_kind(state) if state else 0
    # Numbered from `accepted`, as their codes are.
    outcome = kind - _ACCEPTED + 1 if _ACCEPTED <= kind <= _MODIFIED else 0
    flags = 0 if state else _SETTLED
    if link.lane and len(came_with) == _KEY + 1:
        key = came_with
        hops_left = came_with[_KEY]
    else:
        key = router.key_prefix
        if out.lane and not left_with:
            left_with = onward(came_with)
        hops_left = left_with[len(left_with) - 1] if out.lane and left_with else 0
        flags |= _BEGAN
    condition = 0
    if kind == _REJECTED and recorder.on_rejected is not None:
        condition = recorder.on_rejected(state)
    recorder.store(
        key,
        counter,
        hops_left,
        flags,
        outcome,
        link.number,
        out.number,
        size,
        came,
        left,
        said,
        told,
        0,
        1,
        0,
        condition,
    )


def _count_relayed(router: RouterFlow, link: LinkFlow, out: LinkFlow) -> None:
    """A delivery was given to an exit."""
    exits = link.exits
    assert exits is not None
    if exits.turn:
        out.turn = exits.turn
    link.relayed += 1
    link.last_at = out.last_at = router.now
    link.quiet -= 1
    if exits.lent > 0:
        exits.lent -= 1
        exits.quiet -= 1
        if exits.quiet < 0:
            router.due = True
    if link.quiet < 0 or not out.link_credit:
        router.due = True
    if not link.touched:
        router.touch(link)
    if not out.touched:
        router.touch(out)
        if out.session.wire.sending:  # its peer does not read on: what waits for it is to be counted
            router.due = True


def _relay_first(
    router: RouterFlow,
    link: LinkFlow,
    out: LinkFlow,
    frame: TransferFrame,
    data: bytes,
    payload_at: int,
    end: int,
    tag: bytes,
) -> None:
    """Relay the first frame of a delivery that leaves in several, which begins as it was checked.

    What it is to those who decide, it is from its begin to its end. Args: tag: of what leaves.
    """
    session, target = link.session, out.session
    if not frame.more and end - payload_at < _COPIED:
        router.small_at = router.now
    came = _first_transfer(session, link, frame, end - payload_at)
    left = Delivery(out, tag, came.message_format, came.settled, False)
    relay = _joined(came, left, router.now)
    if router.recorder is not None and frame.message_format <= 0:
        relay.told = told(data, payload_at, end)
    if out.lane:
        if not came.second:
            # Lanes are of mode second, for those that need it (§2.7.5).
            left.rcv_settle_mode = 0
        if not link.lane:
            relay.counter = router.key_count
    link.relay = relay
    out.leg = left.leg
    if not came.settled:
        out.outstanding += 1
        assert left.leg is not None
        left.leg.counted = True
    router.relays += 1
    if router.relays > router.most_relays:
        router.most_relays = router.relays
    if router.on_unfold is not None:
        router.on_unfold(relay)
    wire = target.wire
    _goes_to(router, session.wire, wire)
    payload = memoryview(data)[payload_at:end]
    send_transfer(out, wire.out, left, payload, frame.more, False, None, wire.remote_max_frame_size)
    session.release(1)
    _count_relayed(router, link, out)
    if not target.woken:
        target.stir()
    if not frame.more:
        _relayed_whole(router, link, came, left, relay)


def _relayed_whole(router: RouterFlow, link: LinkFlow, came: Delivery, left: Delivery, relay: Relay) -> None:
    """The last frame of a delivery of several was relayed."""
    out = left.link
    link.relay = None
    out.leg = None
    relay.complete = True
    _fold(router, came, left, relay)
    router.touch(out)
    # Others may have waited until it was through.
    if link.exits is None or link.exits.generation != router.generation:
        router.due = True


def _relay_next(
    router: RouterFlow,
    session: SessionFlow,
    link: LinkFlow,
    frame: TransferFrame,
    data: bytes,
    payload_at: int,
    end: int,
) -> bool:
    """Relay a frame in the middle of a delivery, or its last, by the only leg that it has; whether it was.

    That leg has sent all that came before, and goes on.
    """
    came = link.current
    assert came is not None
    relay = link.relay
    if relay is None or came.relay is not relay or relay.dropped or relay.kept is not None or len(relay.legs) != 1:
        return False
    leg: Leg = relay.legs[0]
    left = leg.delivery
    if left is None or not leg.started or leg.done or leg.aborting or leg.chunks or left.complete:
        return False
    out = left.link
    size = end - payload_at
    last = not frame.more
    if (
        out.leg is not leg
        or (out.lane and last and not _stays(router, link, out))
        or (frame.settled == 1 and not came.remote_settled)
        or left.settled != came.settled
        or (not size and not last)
        or (out.max_message_size and left.size + size > out.max_message_size)
        or out.session.channel == -1
    ):
        return False
    target = out.session
    wire = target.wire
    is_full = _is_full(out)
    if is_full or not _fits(out, size):
        _await(router, session.wire, wire, is_full)
        return False
    try:
        receive_transfer(link, frame, size)
    except Violation:
        return False  # as above
    _goes_to(router, session.wire, wire)
    payload = memoryview(data)[payload_at:end]
    send_transfer(out, wire.out, left, payload, frame.more, False, None, wire.remote_max_frame_size)
    session.release(1)
    if wire.sending and not out.touched:  # as of a first frame
        router.touch(out)
        router.due = True
    if not target.woken:
        target.stir()
    if last:
        _relayed_whole(router, link, came, left, relay)
    return True


def _stays(router: RouterFlow, link: LinkFlow, out: LinkFlow) -> bool:
    """Whether a lane is neither to be detached, nor the reason why what comes next by the link has to wait."""
    exits = link.exits
    return exits is not None and exits.generation == router.generation and not link.behind and out in exits.bulk


#: Octets of a frame that are not payload, in the middle of a delivery or, with a tag, at its begin: no more than these.
_FRAME_HEAD: Final = 80


def _fits(link: LinkFlow, octets: int) -> bool:
    """Whether the window of a sender's session is wide enough for so many octets, in as many frames as they need."""
    session = link.session
    room = session.wire.remote_max_frame_size - _FRAME_HEAD
    return session.remote_incoming_window > 0 and (octets + room - 1) // room <= session.remote_incoming_window


def _is_full(link: LinkFlow) -> bool:
    """So much waits to be written that nothing large is added to it by this sender."""
    wire = link.session.wire
    return (wire.sending + len(wire.out)) * link.part > wire.backlog


def _goes_to(router: RouterFlow, wire: ConnectionFlow, sink: ConnectionFlow) -> None:
    """Something large that comes on a connection leaves by this output."""
    if wire.toward != sink.number:
        wire.toward = sink.number
        wire.toward_since = router.now


def _await(router: RouterFlow, wire: ConnectionFlow, sink: ConnectionFlow, is_full: bool) -> None:
    """Leave what comes next on a connection until more can be written to another, if nobody suffers for it.

    It costs nothing where nobody has tried to write yet what there is. Else whoever comes behind it waits, too: so
    nothing small may be expected, all that is large has to leave there, and whoever reads it has to be fast. Whoever
    writes it has to say so: who is `patient` does.

    Args: is_full: too much waits to be written there. Else a window is too narrow, and what widens it comes behind what
        waits if it is the same connection's.
    """
    if (wire.patient and sink.patient) and (
        (is_full and sink.out and not sink.sending)
        or (
            (is_full or sink is not wire)
            and wire.toward == sink.number
            and router.now >= sink.slow_until
            and router.now - max(wire.toward_since, router.small_at) >= _BESIDE
        )
    ):
        wire.waits_for = sink


def _await_exit(router: RouterFlow, wire: ConnectionFlow, exits: Exits, octets: int) -> None:
    """As `_await`, of the first exit that takes the next delivery once more can be written.

    Args: octets: of a large one, in its first frame; 0: it is small.
    """
    for link in exits.bulk if octets and exits.order == _FIRST else exits.links:
        is_full = _is_full(link)
        if _is_free(link) and (is_full or not _fits(link, octets)):
            _await(router, wire, link.session.wire, is_full)
            break


def _joined(came: Delivery, left: Delivery, now: float) -> Relay:
    """The relay of a delivery that leaves by one leg, which has begun. Args: now: when it came, seconds."""
    relay = Relay(came.link.record, came, came.message_format, now)
    relay.waiting = False
    relay.attempts = 1
    came.relay = relay
    left.leg = leg = Leg(relay, left.link.record, False)
    leg.delivery = left
    leg.started = True
    relay.add(leg)
    return relay


def _fold(router: RouterFlow, came: Delivery, left: Delivery, relay: Relay) -> None:
    """A relay is through: what is left of it, if nobody has said anything of it yet, is a passage."""
    leg: Leg = relay.legs[0]
    recorder = router.recorder
    counter = relay.counter
    at = -1.0
    if recorder is not None:
        if not counter:
            relay.counter = counter = router.counter(came.link, came.tag)
        if recorder.takes(counter):
            at = leg.left = recorder.time()
    if came.settled:
        relay.closed = True
        leg.end()
        router.relays -= 1
        if recorder is not None and at >= 0:
            _record(
                router,
                recorder,
                came.link,
                left.link,
                came.tag,
                left.tag,
                counter,
                left.size,
                relay.came,
                at,
                -1.0,
                b"",
                relay.told,
            )
    elif (
        relay.answered
        or relay.attempts != 1
        or relay.section_shift
        or leg.outcome is not None
        or came.state is not None
        or left.state is not None
        or came.remote_state is not None
        or left.remote_state is not None
        or came.remote_settled
        or left.settled
        or left.remote_settled
        # Its key was in use, so that it has another tag, and stays in the map.
        or (came.link.lane and left.link.lane and left.tag != onward(came.tag))
    ):
        return
    else:
        tag = left.tag
        goes_on = came.link.lane and left.link.lane
        if goes_on:
            tag = b""
        passage = _passage(
            came.link, came.delivery_id, came.tag, came.second, relay.came, left.link, left.delivery_id, tag
        )
        passage.left = at
        passage.size = left.size
        passage.told = relay.told
        passage.counter = counter
        del left.link.unsettled[left.tag]
        if goes_on:
            left.link.passing[came.tag] = passage
    # They refer to each other: the circles end here.
    came.relay = left.leg = None
    relay.legs = []


def onward(tag: bytes) -> bytes:
    """The tag for the next lane of what came by a lane with this one, which has hops left; empty: it has none."""
    last = len(tag) - 1
    if last < 0 or tag[last] < 2:
        return b""
    return tag[:last] + _OCTETS[tag[last] - 1]


def _left_with(passage: Passage) -> bytes:
    """The tag that it left with."""
    if passage.outgoing_tag:
        return passage.outgoing_tag
    return onward(passage.incoming_tag) if passage.outgoing.lane else b"%x" % passage.number


#: Each octet as bytes.
_OCTETS: Final = tuple(bytes((octet,)) for octet in range(256))


def _write_whole(
    out: bytearray,
    channel: int,
    handle: int,
    delivery_id: int,
    tag: bytes,
    hops: int,
    number: int,
    settled: bool,
    mode: int,
    size: int,
) -> None:
    """Append the only frame of a delivery of format 0, without its payload: the same octets as `write_transfer`.

    Args: tag: empty, if it is `number` in hexadecimal digits. hops: its last octet; 0: as it is.
        mode: 0 for rcv-settle-mode first; -1: none is said. size: of the payload.
    """
    digits = len(tag)
    if not digits:
        digits = 1
        rest = number >> 4
        while rest:
            digits += 1
            rest >>= 4
    tail = 5 if mode == 0 else 2 if settled else 1
    octets = 16 + _uint_octets(handle) + _uint_octets(delivery_id) + digits + tail
    at = len(out)
    out += _HEADS[octets]
    # All that is put lies within those octets.
    o = out
    o[at + 12] = octets - 13
    o[at + 13] = 7 if mode == 0 else 5 if settled else 4
    if channel:
        o[at + 6] = channel >> 8
        o[at + 7] = channel & 255
    size += octets
    if size > 0xFFFF:
        o[at] = size >> 24
        o[at + 1] = size >> 16 & 255
    o[at + 2] = size >> 8 & 255
    o[at + 3] = size & 255
    at = _put_uint(o, at + 14, handle)
    at = _put_uint(o, at, delivery_id)
    o[at] = 0xA0
    o[at + 1] = digits
    at += 2
    if tag:
        t = tag
        for rest in range(digits):
            o[at + rest] = t[rest]
        at += digits
        if hops:
            o[at - 1] = hops
    else:
        at += digits
        rest = at - 1
        while digits:
            o[rest] = _DIGITS[number & 15]
            number >>= 4
            rest -= 1
            digits -= 1
    # Message format, settled, more, rcv-settle-mode.
    o[at] = 0x43
    if tail > 1:
        o[at + 1] = 0x41 if settled else 0x40
    if mode == 0:
        o[at + 2] = 0x40
        o[at + 3] = 0x50


def _uint_octets(value: int) -> int:
    """Octets that a uint takes, compact."""
    return 1 if value == 0 else 2 if value < 256 else 5


_DIGITS: Final = b"0123456789abcdef"


def _put_uint(out: bytearray, at: int, value: int) -> int:
    """Put a uint where there is room for it, compact. Returns: where it ends."""
    if value == 0:
        out[at] = 0x43
        return at + 1
    if value < 256:
        out[at] = 0x52
        out[at + 1] = value
        return at + 2
    out[at] = 0x70
    out[at + 1] = value >> 24 & 255
    out[at + 2] = value >> 16 & 255
    out[at + 3] = value >> 8 & 255
    out[at + 4] = value & 255
    return at + 5


#: Octets. A payload of fewer is small, and copied on its way, as a view of it costs more.
SMALL: Final = 4096
_COPIED: Final = SMALL
#: Seconds that what comes on a connection waits for an output at most, and octets a second that make up for waiting: so
#: a MiB that is read with much before it waits no longer than 30 ms.
PATIENCE: Final = 0.02
PACE: Final = 1e8
_PATIENCE: Final = PATIENCE
_PACE: Final = PACE
#: Seconds for which nobody waits for an output that has taken longer.
IMPATIENCE: Final = 1.0
#: Seconds after a small delivery for which others are expected.
_BESIDE: Final = 0.1


def _ready_exit(exits: Exits) -> LinkFlow | None:
    """The exit that the next delivery takes, and `exits.turn`; None: none is ready for the first frame of one."""
    exits.turn = 0
    if exits.order == _FIRST:
        for link in exits.links:
            if _is_ready(link):
                return link
        for link in exits.bulk:
            if _is_ready(link):
                return link
        return None
    if len(exits.links) == 1:
        link = exits.links[0]
        return link if _is_ready(link) else None
    best: LinkFlow | None = None
    ready = turn = 0
    for link in exits.links:
        if not _is_ready(link):
            continue
        ready += 1
        if link.turn > turn:
            turn = link.turn
        if (
            best is None
            or (exits.order == _LEAST and link.outstanding < best.outstanding)
            or ((exits.order != _LEAST or link.outstanding == best.outstanding) and link.turn < best.turn)
        ):
            best = link
    if ready > 1:
        exits.turn = turn + 1
    return best


def _large_exit(exits: Exits, octets: int) -> LinkFlow | None:
    """The exit that a delivery takes which does not leave in one frame, or not in the one that it began with.

    Of lanes it is another link, for which nothing small waits. Args: octets: of it that are here.
    Returns: None: none takes all of that now, or what is here is nothing.
    """
    if exits.order == _FIRST:
        exits.turn = 0
        for link in exits.bulk:
            if octets and _is_free(link) and _fits(link, octets) and not _is_full(link):
                return link
        return None
    out = _ready_exit(exits)
    return out if out is not None and octets and _fits(out, octets) and not _is_full(out) else None


def _is_ready(link: LinkFlow) -> bool:
    """A sender can take the first frame of a delivery now."""
    session = link.session
    wire = session.wire
    return wire.sending + len(wire.out) <= wire.backlog and session.remote_incoming_window > 0 and _is_free(link)


def _is_free(link: LinkFlow) -> bool:
    """The same, however much waits to be written, and however narrow the window of its session is."""
    return (
        link.link_credit > 0
        and link.session.channel != -1
        and link.outstanding < link.max_outstanding
        and link.current is None
        and link.leg is None
    )


#: What the keys of the mesh's own delivery annotations begin with.
_OURS: Final = b"x-opt-mesh-"


def _passes_as_it_is(data: bytes, at: int, end: int, drops: bool, whole: bool) -> bool:
    """Whether the head sections of a message of format 0 leave as they came, and are nothing out of the ordinary.

    Its ttl does: no time has passed.
    Args: drops: delivery annotations do not pass. whole: nothing follows behind `end`.
    """
    last = 0
    while end - at >= 4:
        if data[at] != 0 or data[at + 1] != 0x53:
            return False
        code = data[at + 2]
        if code < _HEADER or code > _MESSAGE_ANNOTATIONS:
            return True
        if code <= last:
            return False
        last = code
        form = data[at + 3]
        if form == 0x45:
            after = at + 4
        elif form == 0xC0 or form == 0xC1:
            if end - at < 5:
                return False
            after = at + 5 + data[at + 4]
        elif form == 0xD0 or form == 0xD1:
            if end - at < 8:
                return False
            after = at + 8 + uint32(data, at + 4)
        else:
            return False
        if after > end:
            return False
        if code == _HEADER:
            if form != 0x45 and not _is_plain_header(data, at + 4, after, form):
                return False
        elif code == _DELIVERY_ANNOTATIONS and (drops or data.find(_OURS, at, after) >= 0):
            return False
        at = after
    return whole and at == end


def _is_plain_header(data: bytes, at: int, end: int, form: int) -> bool:
    """Whether the fields of a header's list are the usual ones. Args: at: where its size is."""
    if form == 0xC0 and end - at >= 2:
        count = data[at + 1]
        at += 2
    elif form == 0xD0 and end - at >= 8:
        count = uint32(data, at + 4)
        at += 8
    else:
        return False
    if count > 0:
        if at >= end or not 0x40 <= data[at] <= 0x42:
            return False
        at += 1
    if count > 1:
        if at >= end:
            return False
        if data[at] == 0x50:
            at += 2
        elif data[at] == 0x40:
            at += 1
        else:
            return False
    if count > 2:
        if at >= end:
            return False
        code = data[at]
        at += 5 if code == 0x70 else 2 if code == 0x52 else 1
        if code not in (0x70, 0x52, 0x43, 0x40):
            return False
    return at <= end


def _relay_disposition(router: RouterFlow, wire: ConnectionFlow, session: SessionFlow, frame: DispositionFrame) -> bool:
    """Pass on what a peer says of passages. Returns: False, if it says it of others, too, or something unusual: what
    there is to be decided then is `wire.undecided`.
    """
    ledger = session.outgoing if frame.receiver else session.incoming
    undecided: list[Delivery] | None = None
    found = ledger.select(frame.first, frame.last)
    count = len(found)
    at = 0
    for entry in found:
        at += 1
        delivery = _hear(session, entry, frame.receiver, frame.state, frame.settled)
        if delivery is not None:
            if undecided is None:
                undecided = []
            undecided.append(delivery)
            if len(undecided) == _PART:
                break
        if at == _PASSED:
            break
    # To find nothing is work, too.
    wire.work -= (at or 1) + ledger.scanned // _SLOTS_AT_ONCE
    if undecided is None:
        if at == count:
            return True
        undecided = []
    wire.undecided = Undecided(session, frame.receiver, frame.state, frame.settled, undecided, found[at:])
    return False


def _receiver_said(router: RouterFlow, passage: Passage, state: bytes | None, settled: bool) -> bool:
    """Pass an outcome up, as it is; whether it was."""
    incoming, outgoing = passage.incoming, passage.outgoing
    if passage.outcome is not None and not incoming.over:
        # It is known, and cannot change (§2.6.12): only that it is settled may be new.
        if settled:
            _end_sent(router, passage)
        return True
    if state is None or not is_terminal(state):
        return False
    if incoming.over:
        if passage.left >= 0 and router.recorder is not None:
            return False
        if passage.outcome is None:
            outgoing.count_outcome(state)
        _end_orphan(router, passage, settled)
        return True
    if incoming.selective and state_kind(state) != _ACCEPTED:
        return False
    if incoming.lane != outgoing.lane and state_kind(state) == _MODIFIED and state != FAILED_STATE:
        return False  # neighbours are told who it was that gave it back
    if passage.second and (incoming.outstanding >= incoming.max_outstanding or len(state) > _LONG_STATE):
        return False
    outgoing.count_outcome(state)
    incoming.count_outcome(state)
    passage.said = router.now
    if settled:
        _end_sent(router, passage)
    if passage.second:
        passage.outcome = state
        incoming.outstanding += 1
        incoming.session.dispose(True, passage.incoming_id, False, state)
        return True
    if not settled:
        _end_sent(router, passage)
        outgoing.session.dispose(False, passage.outgoing_id, True, state)
    _end_received(router, passage, state)
    incoming.session.dispose(True, passage.incoming_id, True, state)
    return True


def _sender_settled(router: RouterFlow, passage: Passage, state: bytes | None) -> None:
    """The sender has heard the outcome, and settles: so may the receiver (mode second, §2.6.12)."""
    passage.incoming.outstanding -= 1
    assert passage.outcome is not None
    _end_received(router, passage, passage.outcome)
    if not passage.over:
        _end_sent(router, passage)
        if not passage.outgoing.over:
            passage.outgoing.session.dispose(False, passage.outgoing_id, True, state)


def _end_received(router: RouterFlow, passage: Passage, state: bytes) -> None:
    """The incoming delivery is settled here, and the passage with it."""
    link = passage.incoming
    if passage.left >= 0 and router.recorder is not None:
        _record(
            router,
            router.recorder,
            link,
            passage.outgoing,
            passage.incoming_tag,
            passage.outgoing_tag,
            passage.counter,
            passage.size,
            passage.arrived,
            passage.left,
            passage.said,
            state,
            passage.told,
        )
    link.session.incoming.remove(passage.incoming_id)
    del link.unsettled[passage.incoming_tag]
    router.relays -= 1
    if link.remote_handle == -1:  # it is detached, and the last of its deliveries may be settled now
        router.touch(link)
        router.due = True


def _end_sent(router: RouterFlow, passage: Passage) -> None:
    """The outgoing delivery is settled here."""
    link = passage.outgoing
    if passage.over:
        return
    passage.over = True
    link.session.outgoing.remove(passage.outgoing_id)
    if link.lane and not passage.outgoing_tag:
        del link.passing[passage.incoming_tag]
    if link.outstanding >= link.max_outstanding:
        router.touch(link)
        router.due = True
    link.outstanding -= 1


def _take_flow(router: RouterFlow, session: SessionFlow, frame: FlowFrame) -> bool:
    """Take note of what a peer can take now: of its window, and of more credit on a link; whether nothing else is to be
    done about it than to tell those who divide credit.

    Source: §2.5.6 receiving a flow, §2.6.7.
    """
    link: LinkFlow | None = None
    credit = 0
    seen = frame.next_incoming_id if frame.next_incoming_id != -1 else session.initial_outgoing_id
    in_flight = serial_distance(seen, session.next_outgoing_id)
    window = frame.incoming_window - in_flight
    if (
        in_flight < 0
        or frame.drain
        or frame.echo
        or frame.next_outgoing_id != session.next_incoming_id
        or (session.remote_incoming_window <= 0 and window > 0)
    ):
        return False
    if frame.handle != -1:
        link = session.links.get(frame.handle)
        if link is None or not link.sender or link.exits is None or link.exits.generation != router.generation:
            return False
        limit = (frame.delivery_count + frame.link_credit) & _MASK
        credit = serial_distance(link.delivery_count, limit)
        if (
            frame.delivery_count == -1
            or frame.link_credit == -1
            or frame.link_credit >= _HALF
            or link.drain
            or credit < link.link_credit
            or (link.leg is not None and not link.leg.started)
        ):
            return False
    session.remote_incoming_window = max(0, window)
    session.remote_outgoing_window = frame.outgoing_window
    if link is not None:
        link.lowered = False
        link.link_credit = credit
        # Nothing waits for it.
        link.available = 0
        router.touch(link)
        router.due = True
    return True


# -------------------------------------------------------------------------------------------------- skipping of values

# Sizes by the high nibble of a format code (§1.2): fixed widths, then the width of the size field of variable ones.
_FIXED: Final = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
_SIZED: Final = {0xA: 1, 0xB: 4, 0xC: 1, 0xD: 4, 0xE: 1, 0xF: 4}
#: Format codes of §1.6; a value of another is malformed.
_KNOWN: Final = frozenset(
    bytes.fromhex("404142434445 50515253545556 6061 7071727374 8081828384 9498 a0a1a3 b0b1b3 c0c1 d0d1 e0f0")
)
#: Per format code: octets after the code (0..16), or -1/-4 for a size field of that width, or -99 for an unknown code.
_WIDTH: Final = tuple(
    (_FIXED[code >> 4] if code >> 4 in _FIXED else -_SIZED[code >> 4]) if code in _KNOWN else -99 for code in range(256)
)


def skip(data: bytes, at: int, end: int) -> int:
    """Where the value at `at`, which is not described, ends, without decoding it.

    Raises: Incomplete: it ends beyond `end`. Violation: it is described, or there is no such format code.
    Source: §1.2.
    """
    if at >= end:
        raise Incomplete
    width = _WIDTH[data[at]]
    if width >= 0:
        after = at + 1 + width
    elif width == -1:
        if at + 2 > end:
            raise Incomplete
        after = at + 2 + data[at + 1]
    elif width == -4:
        if at + 5 > end:
            raise Incomplete
        after = at + 5 + int.from_bytes(data[at + 1 : at + 5], "big")
    else:
        raise Violation(LINK, "amqp:decode-error", f"no such format code: 0x{data[at]:02x}")
    if after > end:
        raise Incomplete
    return after


def descriptor_code(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The numeric descriptor of the described value at `at`, and where the value proper begins.

    A symbolic descriptor that is none of `_SECTIONS`, or no descriptor at all, is -1. Raises: Incomplete, Violation.
    """
    if at + 2 < end and data[at] == 0 and data[at + 1] == 0x53:
        return data[at + 2], at + 3
    if at >= end:
        raise Incomplete
    if data[at] != 0:
        return -1, at
    value_at = skip(data, at + 1, end)
    code = data[at + 1]
    if code == 0x80:
        return int.from_bytes(data[at + 2 : at + 10], "big"), value_at
    if code == 0xA3:
        return _SECTIONS.get(data[at + 3 : value_at], -1), value_at
    if code == 0xB3:
        return _SECTIONS.get(data[at + 6 : value_at], -1), value_at
    return -1, value_at


#: The same by symbolic descriptor.
_SECTIONS: Final = {
    b"amqp:header:list": _HEADER,
    b"amqp:delivery-annotations:map": _DELIVERY_ANNOTATIONS,
    b"amqp:message-annotations:map": _MESSAGE_ANNOTATIONS,
    b"amqp:properties:list": PROPERTIES,
}


def state_kind(state: bytes | None) -> int:
    """Which delivery state the encoded `state` is, by its descriptor's code; -1 for None.

    Here a state of the standard's is always as our own encoder writes it: the descriptor a smallulong. Any other is of
    an extension, and 0.
    """
    if state is None:
        return -1
    if state[1] != 0x53:
        return _EXTENSION
    code = state[2]
    return code if _RECEIVED <= code <= _MODIFIED or code in (_DECLARED, _TRANSACTIONAL) else _EXTENSION


def is_terminal(state: bytes | None) -> bool:
    """Whether `state` is an outcome: accepted, rejected, released or modified (§3.4)."""
    return _ACCEPTED <= state_kind(state) <= _MODIFIED


# ------------------------------------------------------------------------------------------------------------- frames


class TransferFrame:
    """A `transfer` as the hot path sees it; the skimmer and the generic decoder yield the same (§2.7.5)."""

    __slots__ = (
        "aborted",
        "delivery_id",
        "delivery_tag",
        "handle",
        "message_format",
        "more",
        "rcv_settle_mode",
        "resume",
        "settled",
        "state",
    )

    def __init__(
        self,
        handle: int,
        delivery_id: int = -1,
        delivery_tag: bytes | None = None,
        message_format: int = -1,
        settled: int = -1,
        more: bool = False,
        rcv_settle_mode: int = -1,
        state: bytes | None = None,
        resume: bool = False,
        aborted: bool = False,
    ) -> None:
        self.handle = handle
        self.delivery_id = delivery_id
        self.delivery_tag = delivery_tag
        self.message_format = message_format
        #: -1 unset, 0 false, 1 true.
        self.settled = settled
        self.more = more
        #: -1 unset, 0 first, 1 second.
        self.rcv_settle_mode = rcv_settle_mode
        self.state = state
        self.resume = resume
        self.aborted = aborted


class DispositionFrame:
    """A `disposition` as the hot path sees it (§2.7.6)."""

    __slots__ = ("first", "last", "receiver", "settled", "state")

    def __init__(self, receiver: bool, first: int, last: int, settled: bool, state: bytes | None) -> None:
        self.receiver = receiver
        self.first = first
        self.last = last
        self.settled = settled
        self.state = state


class FlowFrame:
    """What the hot path needs of a `flow` (§2.7.4)."""

    __slots__ = (
        "delivery_count",
        "drain",
        "echo",
        "handle",
        "incoming_window",
        "link_credit",
        "next_incoming_id",
        "next_outgoing_id",
        "outgoing_window",
    )

    def __init__(self) -> None:
        self.next_incoming_id = -1
        self.incoming_window = 0
        self.next_outgoing_id = 0
        self.outgoing_window = 0
        #: -1: it is of the session alone.
        self.handle = -1
        self.delivery_count = -1
        self.link_credit = -1
        self.drain = False
        self.echo = False


#: Descriptor and format code of the usual encodings.
_TRANSFER_LIST8: Final = b"\x00\x53\x14\xc0"
_DISPOSITION_LIST8: Final = b"\x00\x53\x15\xc0"


def skim_transfer(data: bytes, at: int, end: int) -> tuple[TransferFrame, int] | None:
    """Read the `transfer` that begins at `at`, and say where its payload begins; None hands it to the decoder.

    Only the common shape is read: descriptor 0x14 as smallulong, a list, compact fields, nothing rare in them. Nothing
    is judged here: what is not exactly that shape, malformed bytes included, is the generic decoder's to judge.
    """
    frame = TransferFrame(-1)
    payload_at = read_transfer(frame, data, at, end)
    return None if payload_at < 0 else (frame, payload_at)


def read_transfer(frame: TransferFrame, data: bytes, at: int, end: int) -> int:
    """As `skim_transfer`, into a frame that there is, whose rare fields keep their defaults.

    Returns: where the payload begins; -1: the frame holds nothing of use.
    """
    if end - at < 7 or data[at] or data[at + 1] != 0x53 or data[at + 2] != _TRANSFER_CODE:
        return -1
    if data[at + 3] == 0xC0:
        payload_at = at + 5 + data[at + 4]
        count = data[at + 5]
        at += 6
    elif data[at + 3] == 0xD0 and end - at > 12:
        payload_at = at + 8 + uint32(data, at + 4)
        count = uint32(data, at + 8)
        at += 12
    else:
        return -1
    # Behind the last field there is nothing to be read: its octets are looked at as far as the list goes.
    if payload_at > end or count < 1 or count > 11:
        return -1
    frame.delivery_id = frame.message_format = frame.settled = frame.rcv_settle_mode = -1
    frame.delivery_tag = None
    frame.more = False
    after = uint_end(data, at, payload_at)
    if after < 0 or data[at] == 0x40:
        return -1
    frame.handle = uint_value(data, at, data[at])
    at = after
    if count > 1:
        after = uint_end(data, at, payload_at)
        if after < 0:
            return -1
        frame.delivery_id = uint_value(data, at, data[at])
        at = after
    if count > 2:
        if at + 1 >= payload_at and (at >= payload_at or data[at] != 0x40):
            return -1
        code = data[at]
        if code == 0xA0:
            after = at + 2 + data[at + 1]
            if after > payload_at or data[at + 1] > _MAX_TAG:
                return -1
            p = data
            frame.delivery_tag = p[at + 2 : after]
            at = after
        elif code == 0x40:
            at += 1
        else:
            return -1
    if count > 3:
        after = uint_end(data, at, payload_at)
        if after < 0:
            return -1
        frame.message_format = uint_value(data, at, data[at])
        at = after
    if count > 4:
        if at >= payload_at:
            return -1
        code = data[at]
        if code == 0x41:
            frame.settled = 1
        elif code == 0x42:
            frame.settled = 0
        elif code != 0x40:
            return -1
        at += 1
    if count > 5:
        if at >= payload_at:
            return -1
        code = data[at]
        if code == 0x41:
            frame.more = True
        elif code != 0x42 and code != 0x40:
            return -1
        at += 1
    if count > 6:
        if at >= payload_at:
            return -1
        code = data[at]
        if code == 0x50 and at + 1 < payload_at and data[at + 1] < 2:
            frame.rcv_settle_mode = data[at + 1]
            at += 2
        elif code == 0x40:
            at += 1
        else:
            return -1
        # Some write the whole list: the state null, the flags behind it false.
        if at + count - 7 != payload_at:
            return -1
        for field in range(7, count):
            if data[at] != 0x40 and (data[at] != 0x42 or field < 8):
                return -1
            at += 1
    return payload_at if at == payload_at else -1


def uint32(data: bytes, at: int) -> int:
    """The four octets at `at`."""
    # Compiled, an octet shifted by 24 would be negative: each step is of the wide type.
    value = data[at]
    value = value << 8 | data[at + 1]
    value = value << 8 | data[at + 2]
    return value << 8 | data[at + 3]


def uint_width(code: int) -> int:
    """Octets of a uint with this format code, or of null; 0: it is neither (§1.6.5)."""
    if code == 0x52:
        return 2
    if code == 0x43 or code == 0x40:
        return 1
    return 5 if code == 0x70 else 0


def uint_end(data: bytes, at: int, end: int) -> int:
    """Where the uint at `at`, or null, ends; -1: there is none, or it ends beyond `end`."""
    if at >= end:
        return -1
    width = uint_width(data[at])
    return at + width if width and at + width <= end else -1


def uint_value(data: bytes, at: int, code: int) -> int:
    """The uint at `at`, whose octets are there; null is -1."""
    if code == 0x52:
        return data[at + 1]
    if code == 0x70:
        return uint32(data, at + 1)
    return 0 if code == 0x43 else -1


#: The states that the skimmer knows, as peers write them: to what the decoder makes of them.
_STATES: Final = {
    b"\x40": None,
    _ACCEPTED_STATE: _ACCEPTED_STATE,
    RELEASED_STATE: RELEASED_STATE,
    b"\x00\x53\x24\xc0\x01\x00": _ACCEPTED_STATE,
    b"\x00\x53\x26\xc0\x01\x00": RELEASED_STATE,
    FAILED_STATE: FAILED_STATE,
    UNDELIVERABLE_STATE: UNDELIVERABLE_STATE,
}


def skim_disposition(data: bytes, at: int, end: int) -> DispositionFrame | None:
    """Read the `disposition` that begins at `at`; None hands it to the decoder (see `skim_transfer`)."""
    frame = DispositionFrame(False, 0, 0, False, None)
    return frame if read_disposition(frame, data, at, end) else None


def read_disposition(frame: DispositionFrame, data: bytes, at: int, end: int) -> bool:
    """As `skim_disposition`, into a frame that there is; whether it was read."""
    if end - at < 9 or data[at] or data[at + 1] != 0x53 or data[at + 2] != _DISPOSITION_CODE:
        return False
    at = _fields_at(data, at + 3, end)
    if at < 0:
        return False
    count = data[at - 1]
    if count < 2 or count > 6:
        return False
    code = data[at]
    if code != 0x41 and code != 0x42:
        return False
    frame.receiver = code == 0x41
    at += 1
    after = uint_end(data, at, end)
    if after < 0 or data[at] == 0x40:
        return False
    frame.first = frame.last = uint_value(data, at, data[at])
    at = after
    frame.settled = False
    frame.state = None
    if count > 2:
        after = uint_end(data, at, end)
        if after < 0:
            return False
        if data[at] != 0x40:
            frame.last = uint_value(data, at, data[at])
        at = after
    if count > 3:
        if at >= end:
            return False
        code = data[at]
        if code == 0x41:
            frame.settled = True
        elif code != 0x42 and code != 0x40:
            return False
        at += 1
    if count > 5:
        # Batchable: a hint that nobody here needs.
        end -= 1
        code = data[end]
        if code < 0x40 or code > 0x42:
            return False
    if count > 4:
        if at >= end:
            return False
        if (
            end - at == 4
            and data[at + 2] == _ACCEPTED
            and data[at] == 0
            and data[at + 1] == 0x53
            and data[at + 3] == 0x45
        ):
            frame.state = _ACCEPTED_STATE
        else:
            state = data[at:end]
            if state not in _STATES:
                return False
            frame.state = _STATES[state]
        at = end
    return at == end


def _fields_at(data: bytes, at: int, end: int) -> int:
    """Where the fields of the list at `at` begin, which ends at `end`; the octet before is their number. -1: it is no
    list, ends elsewhere, or has more than 255.
    """
    if data[at] == 0xC0:
        return at + 3 if at + 2 + data[at + 1] == end else -1
    if data[at] != 0xD0 or end - at < 9 or at + 5 + uint32(data, at + 1) != end or uint32(data, at + 5) > 255:
        return -1
    return at + 9


def read_flow(frame: FlowFrame, data: bytes, at: int, end: int) -> bool:
    """Read the `flow` that begins at `at` into a frame that there is; whether it was of the common shape, and without
    properties.
    """
    if end - at < 10 or data[at] or data[at + 1] != 0x53 or data[at + 2] != _FLOW_CODE:
        return False
    at = _fields_at(data, at + 3, end)
    if at < 0:
        return False
    count = data[at - 1]
    if count < 4 or count > 11:
        return False
    frame.handle = frame.delivery_count = frame.link_credit = -1
    frame.drain = frame.echo = False
    for field in range(count):
        if field < 8:
            after = uint_end(data, at, end)
            if after < 0:
                return False
            value = uint_value(data, at, data[at])
            at = after
            if field == 0:
                frame.next_incoming_id = value
            elif field < 4:
                if value < 0:
                    return False
                if field == 1:
                    frame.incoming_window = value
                elif field == 2:
                    frame.next_outgoing_id = value
                else:
                    frame.outgoing_window = value
            elif field == 4:
                frame.handle = value
            elif field == 5:
                frame.delivery_count = value
            elif field == 6:
                frame.link_credit = value
            # How many messages a receiver has is not its to say.
        else:
            if at >= end or not (0x40 <= data[at] <= 0x42) or (field == 10 and data[at] != 0x40):
                return False
            if data[at] == 0x41:
                if field == 8:
                    frame.drain = True
                else:
                    frame.echo = True
            at += 1
    return at == end


def _append_uint(out: bytearray, value: int) -> None:
    if value == 0:
        out.append(0x43)
    elif value < 256:
        out.append(0x52)
        out.append(value)
    else:
        at = len(out)
        out += _LARGE
        out[at + 1] = value >> 24 & 255
        out[at + 2] = value >> 16 & 255
        out[at + 3] = value >> 8 & 255
        out[at + 4] = value & 255


#: A uint of five octets.
_LARGE: Final = b"\x70\x00\x00\x00\x00"


def write_transfer(
    out: bytearray,
    channel: int,
    frame: TransferFrame,
    payload: bytes | memoryview,
    limit: int,
    in_full: bool = False,
) -> int:
    """Append one `transfer` frame of at most `limit` octets to `out`, compact: trailing defaults are left out (§2.7.5).

    Where the payload does not fit whole, as much of it goes as fits, and the frame says `more`.

    Args: limit: at least what the frame takes without payload; a first frame without a state takes 65 octets at most,
        in full 70. in_full: write nulls for the trailing defaults.
    Returns: how many octets of the payload went.
    """
    start = len(out)
    _write_transfer_head(out, channel, frame, in_full)
    taken = len(payload)
    room = limit - (len(out) - start)
    if taken > room:
        if not frame.more:
            del out[start:]
            frame.more = True
            _write_transfer_head(out, channel, frame, in_full)
            room = limit - (len(out) - start)
        taken = max(0, room)
        payload = memoryview(payload)[:taken]
    out += payload
    out[start : start + 4] = (len(out) - start).to_bytes(4, "big")
    return taken


#: Frame header, descriptor and list8 header; the sizes, the channel and the count are filled in.
_TRANSFER_START: Final = b"\x00\x00\x00\x00\x02\x00\x00\x00" + _TRANSFER_LIST8 + b"\x00\x00"
_DISPOSITION_START: Final = b"\x00\x00\x00\x00\x02\x00\x00\x00" + _DISPOSITION_LIST8 + b"\x00\x00"

_FLOW_START: Final = b"\x00\x00\x00\x00\x02\x00\x00\x00\x00\x53\x13\xc0\x00\x00"

#: The begin of a frame by its octets: what follows is put in its place.
_HEADS: Final = tuple(_TRANSFER_START + bytes(max(0, octets - 14)) for octets in range(100))

#: [count:n] are the nulls that stand between the fields written so far and field n.
_NULLS: Final = b"\x40" * 11


def _write_transfer_head(out: bytearray, channel: int, frame: TransferFrame, in_full: bool) -> None:
    """The frame up to its payload; the size of the frame is left open."""
    start = len(out)
    out += _TRANSFER_START
    if channel:
        out[start + 6 : start + 8] = channel.to_bytes(2, "big")
    _append_uint(out, frame.handle)
    count = 1
    if frame.delivery_id != -1:
        _append_uint(out, frame.delivery_id)
        count = 2
    tag = frame.delivery_tag
    if tag is not None:
        out += _NULLS[count:2]
        out.append(0xA0)
        out.append(len(tag))
        out += tag
        count = 3
    if frame.message_format != -1:
        out += _NULLS[count:3]
        _append_uint(out, frame.message_format)
        count = 4
    if frame.settled == 1:
        out += _NULLS[count:4]
        out.append(0x41)
        count = 5
    if frame.more:
        out += _NULLS[count:5]
        out.append(0x41)
        count = 6
    if frame.rcv_settle_mode != -1:
        out += _NULLS[count:6]
        out.append(0x50)
        out.append(frame.rcv_settle_mode)
        count = 7
    if frame.state is not None:
        out += _NULLS[count:7]
        out += frame.state
        count = 8
    if frame.resume:
        out += _NULLS[count:8]
        out.append(0x41)
        count = 9
    if frame.aborted:
        out += _NULLS[count:9]
        out.append(0x41)
        count = 10
    if in_full:
        out += _NULLS[count:11]
        count = 11
    _close_list(out, start, count)


def _close_list(out: bytearray, start: int, count: int) -> None:
    """Fill in size and count of the list that ends a frame's performative; it becomes a list32 if it must."""
    size = len(out) - start - 13
    if size < 256:
        out[start + 12] = size
        out[start + 13] = count
    else:
        # A large state: an error with its info, annotations to merge.
        out[start + 11 : start + 14] = b"\xd0" + (size + 3).to_bytes(4, "big") + count.to_bytes(4, "big")


def write_dispositions(session: SessionFlow) -> bool:
    """Write the dispositions that have gathered on a session, as far as they are certain to fit into a frame; whether
    those were all.
    """
    if session.progress:
        return False
    wire = session.wire
    for run in session.dispositions:
        if run.state is not None and len(run.state) > _SHORT:
            return False
    for run in session.dispositions:
        write_disposition(wire.out, session.channel, run)
    session.dispositions.clear()
    return True


#: Octets of a state that fit into the smallest frame, with all else.
_SHORT: Final = 400


def write_disposition(out: bytearray, channel: int, run: DispositionRun) -> None:
    """Append a whole `disposition` frame to `out`, compact (§2.7.6)."""
    start = len(out)
    out += _DISPOSITION_START
    if channel:
        out[start + 6] = channel >> 8
        out[start + 7] = channel & 255
    out.append(0x41 if run.receiver else 0x42)
    _append_uint(out, run.first)
    count = 2
    if run.last != run.first:
        _append_uint(out, run.last)
        count = 3
    elif run.settled or run.state is not None:
        out.append(0x40)
    if run.settled or run.state is not None:
        out.append(0x41 if run.settled else 0x42)
        count = 4
    if run.state is not None:
        out += run.state
        count = 5
    _close_list(out, start, count)
    size = len(out) - start
    out[start] = size >> 24
    out[start + 1] = size >> 16 & 255
    out[start + 2] = size >> 8 & 255
    out[start + 3] = size & 255


#: Transfers that we may send: as many as the peer takes.
OUTGOING_WINDOW: Final = 0x7FFFFFFF
_OUTGOING_WINDOW: Final = OUTGOING_WINDOW


def write_flow(session: SessionFlow, link: LinkFlow | None, echo: bool, counted: bool = True) -> None:
    """Append a `flow` with a session's state to what is to be sent, and with a link's (§2.7.4).

    Args: echo: the peer is to answer. counted: the link's delivery-count is known to us.
    """
    out = session.wire.out
    compact = session.wire.compact
    start = len(out)
    window = session.announce()
    out += _FLOW_START
    if session.channel:
        out[start + 6] = session.channel >> 8
        out[start + 7] = session.channel & 255
    if session.begun:
        _append_uint(out, session.next_incoming_id)
    else:
        out.append(0x40)
    _append_uint(out, window)
    _append_uint(out, session.next_outgoing_id)
    _append_uint(out, _OUTGOING_WINDOW)
    count = 4
    drain = False
    if link is not None:
        _append_uint(out, link.handle)
        if counted:
            _append_uint(out, link.delivery_count)
        else:
            out.append(0x40)
        _append_uint(out, link.link_credit)
        _append_uint(out, link.available)
        count = 8
        drain = link.drain
    if not compact or drain or echo:
        out += _NULLS[count:8]
        out.append(0x41 if drain else 0x42 if not compact else 0x40)
        count = 9
        if not compact or echo:
            out.append(0x41 if echo else 0x42)
            count = 10
        if not compact:
            out.append(0x40)
            count = 11
    _close_list(out, start, count)
    out[start + 3] = len(out) - start


# ----------------------------------------------------------------------------------------------------- message heads


class Head:
    """Where the head sections of a message of format 0 lie: header and both annotations (§3.2).

    Offsets into the payload. Extents are (start, end), (0, 0) for a section that is not there.
    """

    __slots__ = (
        "bare_at",
        "delivery_annotations",
        "header",
        "irregular",
        "message_annotations",
        "priority",
        "ttl",
        "ttl_at",
    )

    def __init__(self) -> None:
        self.header = (0, 0)
        self.delivery_annotations = (0, 0)
        self.message_annotations = (0, 0)
        #: Where the bare message begins.
        self.bare_at = 0
        #: 0..255, 4 if absent (§3.2.1).
        self.priority = 4
        #: Milliseconds; -1: absent.
        self.ttl = -1
        #: Where the ttl's format code stands.
        self.ttl_at = 0
        #: Sections out of order, doubled or malformed: from there everything counts as bare message.
        self.irregular = False


def read_head(data: bytes, complete: bool) -> Head | None:
    """Find the head sections at the start of a message, by skipping.

    Args: data: the payload so far, of message-format 0. complete: no more of it will come.
    Returns: the head; None while `data` ends before the first section of the bare message has begun.
    Source: §3.2.
    """
    head = Head()
    at = 0
    end = len(data)
    last = 0
    while at < end:
        try:
            code, value_at = descriptor_code(data, at, end)
            if code < _HEADER or code > _MESSAGE_ANNOTATIONS:
                break
            if code <= last:
                head.irregular = True
                break
            after = skip(data, value_at, end)
            if code == _HEADER:
                _read_header(head, data, value_at, after)
                head.header = (at, after)
            elif code == _DELIVERY_ANNOTATIONS:
                head.delivery_annotations = (at, after)
            else:
                head.message_annotations = (at, after)
        except Incomplete:
            if not complete:
                return None
            head.irregular = True
            break
        except Violation:
            head.irregular = True
            break
        last = code
        at = after
    else:
        if not complete:
            return None
    head.bare_at = at
    return head


def _read_header(head: Head, data: bytes, at: int, end: int) -> None:
    """Read priority and ttl of the header list at `at`, which ends at `end` (§3.2.1).

    Raises: Violation: it is no well-formed header, as far as these two go.
    """
    priority = 4
    ttl = -1
    ttl_at = 0
    form = data[at]
    if form == 0xC0 and end - at >= 3:
        count = data[at + 2]
        at += 3
    elif form == 0xD0 and end - at >= 9:
        count = int.from_bytes(data[at + 5 : at + 9], "big")
        at += 9
    elif form == 0x45:
        count = 0
    else:
        raise Violation(LINK, "amqp:decode-error", "the header is not a list")
    try:
        if count > 1:
            at = skip(data, at, end)
            after = skip(data, at, end)
            if data[at] == 0x50:
                priority = data[at + 1]
            elif data[at] != 0x40:
                raise Violation(LINK, "amqp:decode-error", "the priority is not a ubyte")
            at = after
        if count > 2:
            skip(data, at, end)
            ttl_at = at
            if not uint_width(data[at]):
                raise Violation(LINK, "amqp:decode-error", "the ttl is not a uint")
            ttl = uint_value(data, at, data[at])
    except Incomplete:
        raise Violation(LINK, "amqp:decode-error", "the header is shorter than its fields") from None
    head.priority = priority
    head.ttl = ttl
    head.ttl_at = ttl_at


def patch_ttl(data: bytes, head: Head, ttl: int) -> bytes:
    """The payload with a smaller ttl (milliseconds) in place: its encoding keeps its width, so nothing moves.

    Args: data: the payload that `head` was read from. head: with a ttl above 0. ttl: 0..head.ttl.
    """
    at = head.ttl_at + 1
    width = 4 if data[at - 1] == 0x70 else 1
    return data[:at] + ttl.to_bytes(width, "big") + data[at + width :]


def _property(data: bytes, at: int, number: int) -> tuple[int, int] | None:
    """Where a field of the properties section lies, if the bare message that begins at `at` starts with one (§3.2.4).

    Args: number: of the field, from 0. Returns: (start, end); None if there are not so many fields.
    Raises: Incomplete: the bytes end before it is known. Violation: a malformed section.
    """
    end = len(data)
    code, value_at = descriptor_code(data, at, end)
    if code != PROPERTIES:
        return None
    # The list may go on in the next frame: its items are read as far as they are here.
    if value_at >= end:
        raise Incomplete
    form = data[value_at]
    if form == 0x45:
        return None
    if form not in (0xC0, 0xD0):
        raise Violation(LINK, "amqp:decode-error", "the properties section is not a list")
    width = 1 if form == 0xC0 else 4
    item = value_at + 1 + 2 * width
    if item > end:
        raise Incomplete
    list_end = value_at + 1 + width + int.from_bytes(data[value_at + 1 : value_at + 1 + width], "big")
    if int.from_bytes(data[item - width : item], "big") <= number:
        return None
    known = min(end, list_end)
    try:
        for _ in range(number):
            item = skip(data, item, known)
        return item, skip(data, item, known)
    except Incomplete:
        if list_end <= end:
            raise Violation(LINK, "amqp:decode-error", "the properties are shorter than their fields") from None
        raise


def read_to(data: bytes, at: int) -> str | None:
    """The `to` of the properties section, if the bare message that begins at `at` starts with one (§3.2.4).

    Raises: Incomplete: the bytes end before it is known. Violation: a malformed section.
    """
    found = _property(data, at, 2)
    if found is None:
        return None
    item, after = found
    code = data[item]
    if code == 0x40:
        return None
    if code not in (0xA1, 0xB1):
        raise Violation(LINK, "amqp:decode-error", "`to` is not a string")
    try:
        return data[item + (2 if code == 0xA1 else 5) : after].decode()
    except UnicodeDecodeError:
        raise Violation(LINK, "amqp:decode-error", "`to` is not UTF-8") from None


def read_expiry(data: bytes, at: int) -> int | None:
    """The absolute-expiry-time of the bare message that begins at `at`, milliseconds since 1970; None: it has none.

    Raises: as `read_to`.
    """
    found = _property(data, at, 8)
    if found is None:
        return None
    item, after = found
    if data[item] == 0x40:
        return None
    if data[item] != 0x83:
        raise Violation(LINK, "amqp:decode-error", "the absolute-expiry-time is not a timestamp")
    return int.from_bytes(data[item + 1 : after], "big", signed=True)
