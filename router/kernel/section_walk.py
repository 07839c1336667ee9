"""A walk over the sections of a message of several frames, as its octets come (§3.2)."""

from __future__ import annotations

from typing import Final

from amqpmesh.router.kernel.encoded_values import (
    _DATA,
    _FOOTER,
    _HEADER,
    _NESTED,
    _SEQUENCE,
    _VALUE,
    _WIDTH,
    descriptor_code,
    skip,
)
from amqpmesh.router.kernel.violations import LINK, Incomplete, Violation

#: Octets that are kept of what is not complete: a descriptor, or the sizes of a value.
_MOST_KEPT: Final = 512


class _Values:
    """Values that are to come: those of a section, or of a list, map or array."""

    __slots__ = ("code", "count", "stop")

    def __init__(self, count: int, stop: int, code: int = -1) -> None:
        """Args: stop: the offset in the message where they have to end; -1: anywhere. code: of all of them; -1: each
        has its own one.
        """
        self.count = count
        self.stop = stop
        self.code = code


class SectionWalk:
    """Checks that a message consists of sections in order, each of which adds up.

    Receivers differ in how they read others: some take the properties from wherever they find them, and some read the
    items of a list whatever its size.
    """

    __slots__ = ("_base", "_kept", "_next", "_open", "skip")

    def __init__(self) -> None:
        #: Octets that come next and need not be read: they lie within one value.
        self.skip = 0
        #: Octets that came before `_kept`, which is what came of a descriptor or of sizes that are not complete.
        self._base = 0
        self._kept = b""
        #: The values that are to come, of the outermost ones first.
        self._open: list[_Values] = []
        #: The lowest descriptor code that the next section may have.
        self._next = _HEADER

    def feed(self, data: bytes) -> None:
        """Read the next octets. Raises: Violation: the sections are malformed, or out of order."""
        if len(data) <= self.skip:
            self.skip -= len(data)
            return
        data = self._kept + data[self.skip :]
        self.skip = 0
        at, end = 0, len(data)
        while at < end:
            try:
                at = self._step(data, at, end)
            except Incomplete:
                break
        self._kept = data[at:]
        if len(self._kept) > _MOST_KEPT:
            raise Violation(LINK, "amqp:decode-error", "a descriptor is too long")
        self._base += at
        self.skip = max(0, at - end)

    def finish(self) -> None:
        """Note that the message is complete. Raises: Violation: its last section is not."""
        self._close(self._base)
        if self._open or self.skip or self._kept:
            raise Violation(LINK, "amqp:decode-error", "the last section of the message is incomplete")

    def _close(self, here: int) -> None:
        """Close the values that are complete. Args: here: the offset in the message."""
        while self._open and not self._open[-1].count:
            stop = self._open.pop().stop
            if stop not in (-1, here):
                raise Violation(LINK, "amqp:decode-error", "the items of a value do not take its size")

    def _step(self, data: bytes, at: int, end: int) -> int:
        """Read a descriptor of a section, or a value as far as its items. Returns: where the next ones begin; beyond
        `end`: what comes next need not be read. Raises: Incomplete.
        """
        self._close(self._base + at)
        if not self._open:
            return self._section(data, at, end)
        values = self._open[-1]
        if values.code < 0 and data[at] == 0:
            if values.stop == -1 and self._next != _VALUE + 1:
                raise Violation(LINK, "amqp:decode-error", "the value of a section is described")
            values.count += 1  # a descriptor, and a value
            return at + 1
        code, sizes = (data[at], at + 1) if values.code < 0 else (values.code, at)
        width = _WIDTH[code]
        if width >= 0:
            after = sizes + width
        elif width < -4:
            raise Violation(LINK, "amqp:decode-error", f"no such format code: 0x{code:02x}")
        else:
            after = self._sized(data, code, sizes, -width, end)
        values.count -= 1
        return after

    def _section(self, data: bytes, at: int, end: int) -> int:
        code, value_at = descriptor_code(data, at, end)
        if code < self._next or code > _FOOTER:
            raise Violation(LINK, "amqp:decode-error", "the sections of the message are out of order")
        self._next = code if code in (_DATA, _SEQUENCE) else code + 1  # the body may consist of several of these
        self._open.append(_Values(1, -1))
        return value_at

    def _sized(self, data: bytes, code: int, sizes: int, width: int, end: int) -> int:
        """Read the sizes of a value. Returns: where it ends, or where its items begin. Raises: Incomplete."""
        items = sizes + width
        if items > end:
            raise Incomplete
        stop = items + int.from_bytes(data[sizes:items], "big")
        if code < 0xC0:
            return stop
        is_array = code >= 0xE0
        if items + width + is_array > end:
            raise Incomplete
        count = int.from_bytes(data[items : items + width], "big")
        items += width
        code = -1
        if is_array:
            while data[items] == 0:  # each has the same descriptor
                items = skip(data, items + 1, end)
                if items >= end:
                    raise Incomplete
            code = data[items]
            items += 1
            if _WIDTH[code] >= 0:
                count, items = 0, items + count * _WIDTH[code]
            elif _WIDTH[code] < -4:
                raise Violation(LINK, "amqp:decode-error", f"no such format code in an array: 0x{code:02x}")
        if len(self._open) > _NESTED or items + count > stop or (not count and items != stop):
            raise Violation(LINK, "amqp:decode-error", "the items of a value do not take its size")
        if count:
            self._open.append(_Values(count, self._base + stop, code))
        return items
