"""Hop records, packed into words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from amqpmesh.router.kernel.encoded_values import uint32
from amqpmesh.router.kernel.serial import _MASK

#: Words of a unit of hop records, and how many of them one record may need at most: three units.
UNIT_WORDS: Final = 4
_UNIT: Final = UNIT_WORDS
_MOST: Final = 3 * UNIT_WORDS

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
    """The store of hop records: one for each sampled delivery and each link that it leaves by.

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
        """Args: clock: seconds; with `shift` added, what `KernelRouter.now` is."""
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
        """Tell whether a delivery is recorded, by the counter of its key: all routers record the same deliveries."""
        return ((counter & 0x7FFFFFFF) * _SPREAD & _MASK) < self.threshold

    def time(self) -> float:
        """Return the time as `KernelRouter.now` has it, read once for several calls of a batch.

        A look at the clock costs as much as storing a record.
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
            arrived, sent_at, outcome_at: seconds, as `KernelRouter.now`; negative: it has not happened.
            header_info: as of `read_header_info`. address: its number; 0: that of the incoming link.
            attempt: from 1. first: the counter of the first try; 0: this is the first.
            condition: the number of the error condition of `rejected`; 0: none.
        Returns: whether it is stored; else it is lost.
        """
        if self.used > self.last and self.on_full is not None:
            self.on_full()
        # Compiled, `+=` would take a reference to the recorder.
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
        # What is rare or large stands beside it: what a record costs are its octets.
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
