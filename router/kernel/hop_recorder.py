"""Hop records, packed into words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from amqpmesh.router.kernel.encoded_values import uint32
from amqpmesh.router.kernel.serial import _MASK

#: Words of a unit of hop records; `_MOST`: the most words of one record, three units.
UNIT_WORDS: Final = 4
_UNIT: Final = UNIT_WORDS
_MOST: Final = 3 * UNIT_WORDS

#: The number of links whose deliveries have no hop records, in place of their own.
UNRECORDED: Final = 0x7FFF_FFFF
#: Bits of the flags in hop records.
_SETTLED: Final = 1
_BEGAN: Final = 2
_TIMED: Final = 8
_ANSWERED: Final = 16
#: In place of flags: the unit is no record. A key unit has the prefix of the keys behind it, a wide unit the rare
#: fields and the upper bits of the record before it.
_KEY_UNIT: Final = 0x80 << 56
_WIDE_UNIT: Final = 0xC0 << 56
#: The lower bits of a time, of a size and of the time to an outcome, which are in the record itself.
_LOW_TIME: Final = (1 << 40) - 1
_LOW_SIZE: Final = (1 << 24) - 1
_LOW_ANSWER: Final = (1 << 36) - 1
#: The lower bits of the number of a condition, beside the time to an outcome; the others are beside the size.
_LOW_CONDITION: Final = (1 << 28) - 1
#: The most records with one reading of the clock: some ten microseconds.
_LOOKS: Final = 16
#: The factor that spreads the counters of keys evenly over 32 bits: odd, near 2**32 divided by the golden ratio.
_SPREAD: Final = 0x9E3779B1


class Recorder:
    """The store of hop records: one for each sampled delivery and each link that it leaves by.

    `PACKED` of the router's telemetry describes the words of a record. The recorder never waits: if there is no room,
    records are lost and counted.
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
        "on_anonymous",
        "on_ended",
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
        """Args: clock: returns seconds; `shift` is added to get the time of `KernelRouter.now`."""
        self.clock = clock
        self.shift = 0.0
        #: The last reading of the clock; `times`: the number of times that it may still be used.
        self.now = 0.0
        self.times = 0
        #: Nanoseconds since 1970 when `now` was 0.
        self.base = 0
        #: The number of keys that are sampled, of 2**32.
        self.threshold = 0
        #: Unsigned 64 bit words; `used`: words in use; `last`: the most words in use with room for one more record.
        self.words: Any = None
        self.used = 0
        self.last = -1
        #: Called when there is no room for one more record; it may call `give`.
        self.on_full: Callable[[], None] | None = None
        #: Called with an encoded `rejected`: returns the number of its condition; 0: it has none.
        self.on_rejected: Callable[[bytes], int] | None = None
        #: Called with the record of an outgoing link, for a delivery that named its address itself: returns the number
        #: of the address.
        self.on_anonymous: Callable[[object], int] | None = None
        #: Called with the router's record of a link that has ended, before a hop record names the link.
        self.on_ended: Callable[[Any], None] | None = None
        #: The number of records so far, lost ones included.
        self.stored = 0
        self.lost = 0
        #: The number of the first record in `words`.
        self.first = 0
        #: The prefix of the last key. The fields of the last key unit in `words`: ingress, epoch, and the upper bits of
        #: counters and times.
        self.key: bytes | None = None
        self.ingress = 0
        self.epoch = 0
        self.counter = 0
        self.upper = 0

    def give(self, words: Any) -> None:
        """Set the words for the next records: an `array` of unsigned 64 bit words; None: no room."""
        self.words = words
        self.used = 0
        self.last = -1 if words is None else len(words) - _MOST
        self.first = self.stored
        self.key = None

    def takes(self, counter: int) -> bool:
        """Return whether a delivery is sampled, by the counter of its key: all routers record the same deliveries."""
        return ((counter & 0x7FFFFFFF) * _SPREAD & _MASK) < self.threshold

    def time(self) -> float:
        """Return the time, on the scale of `KernelRouter.now`; the clock is read once for several calls of a batch.

        A reading of the clock costs as much as storing a record.
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
        arrived: float,
        sent_at: float,
        outcome_at: float,
        header_info: int,
        address: int,
        attempt: int,
        first: int,
        condition: int,
    ) -> bool:
        """Store a record.

        Args: key: ingress number and epoch, in its first octets. counter, hops_left: of its delivery key.
            state: the outcome, as its number in records. incoming, outgoing: numbers of links. size: octets of payload.
            arrived, sent_at, outcome_at: seconds, on the scale of `KernelRouter.now`; negative: not yet.
            header_info: `HeaderFields.info`. address: its number; 0: that of the incoming link.
            attempt: from 1. first: the counter of the first try; 0: this is the first.
            condition: the number of the error condition of `rejected`; 0: none.
        Returns: whether it is stored, or is of no link with records; else it is lost.
        """
        if incoming == UNRECORDED:
            return True
        if self.used > self.last and self.on_full is not None:
            self.on_full()
        # In C, `+=` would take a reference to the recorder.
        self.stored = self.stored + 1
        if self.used > self.last:
            self.lost += 1
            return False
        since = int(arrived * 1e9 + 0.5)
        time = self.base + since
        waited = passed = 0
        if sent_at >= 0:
            flags |= _TIMED
            waited = int((sent_at - arrived) * 1e9 + 0.5)
            if waited < 0:
                waited = 0
        if outcome_at >= 0:
            flags |= _ANSWERED
            passed = int((outcome_at - arrived) * 1e9 + 0.5)
            if passed < 0:
                passed = 0
        if key is not self.key or counter >> 32 != self.counter or time >> 40 != self.upper:
            self._say(key, counter >> 32, time >> 40)
        at = self.used
        self.words[at] = time & _LOW_TIME | (size & _LOW_SIZE) << 40
        self.words[at + 1] = counter & _MASK | (waited & _MASK) << 32
        self.words[at + 2] = (
            passed & _LOW_ANSWER | hops_left << 36 | (header_info & 0xFF) << 44 | state << 52 | flags << 56
        )
        self.words[at + 3] = incoming | outgoing << 32
        self.used = at + _UNIT
        # Rare fields and upper bits go to a unit of their own: a record costs its octets.
        if (
            address
            or attempt != 1
            or first
            or condition
            or (header_info | size >> 16 | waited >> 24 | passed >> 28) >> 8
        ):
            at += _UNIT
            self.words[at] = first | attempt << 48
            self.words[at + 1] = size >> 24 | (header_info >> 8 & 0xFFFF) << 40 | condition >> 28 << 56
            self.words[at + 2] = passed >> 36 | (condition & _LOW_CONDITION) << 28 | _WIDE_UNIT
            self.words[at + 3] = waited >> 32 | address << 32
            self.used = at + _UNIT
        return True

    def _say(self, key: bytes, counter: int, upper: int) -> None:
        """Store the prefix of keys, and the upper bits of counters and times, unless they are stored already."""
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
