"""The positions of sections in many messages (§3.2), found without decoding: in most messages for all at once.

Messages of one batch are similar, so NumPy finds the first section of all of them, then the second, and so on. Messages
with rare encodings, or malformed ones, are searched one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from amqpmesh.pipeline.connector.values import MisfitError
from amqpmesh.router.amqp.codec.composite import decode_composite
from amqpmesh.router.amqp.codec.decoder import ENCODINGS, MIN_WIDTHS
from amqpmesh.router.amqp.errors import ProtocolError
from amqpmesh.router.amqp.standard.messaging import MESSAGE_FORMAT, AmqpValue
from amqpmesh.router.kernel import Incomplete, Violation, descriptor_code, skip

if TYPE_CHECKING:
    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]
    Octets = npt.NDArray[np.uint8]

HEADER: Final = 0x70
DATA: Final = 0x75
SEQUENCE: Final = 0x76
VALUE: Final = 0x77
FOOTER: Final = 0x78

_SYMBOLIC: Final = {
    name: code
    for code, name in enumerate(
        (
            b"amqp:header:list",
            b"amqp:delivery-annotations:map",
            b"amqp:message-annotations:map",
            b"amqp:properties:list",
            b"amqp:application-properties:map",
            b"amqp:data:binary",
            b"amqp:amqp-sequence:list",
            b"amqp:amqp-value:*",
            b"amqp:footer:map",
        ),
        start=HEADER,
    )
}


@dataclass(slots=True)
class Sections:
    """The positions found. Offsets count from the beginning of a message."""

    #: All octets, and the offset of each message.
    octets: Octets
    starts: Numbers
    #: By message: the code of its body sections, 0 if it has none; the offsets of the (first) section, of its value,
    #: and of the value's end.
    kinds: Numbers
    begins: Numbers
    values: Numbers
    ends: Numbers
    #: By section code, without bodies: the messages that have it, in order, and its offset in each.
    heads: dict[int, tuple[Numbers, Numbers]] = field(default_factory=dict)
    #: Of messages with several body sections: the offset of each, and of its value.
    several: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    #: The reason why a payload is no message.
    errors: dict[int, str] = field(default_factory=dict)

    @property
    def lengths(self) -> Numbers:
        """The octets of each message."""
        return np.diff(self.starts, append=len(self.octets) - _BEYOND)

    def bodies(self, row: int) -> list[tuple[int, int]]:
        """Return the offsets of each body section of a message, and of its value."""
        return self.several.get(row) or [(int(self.begins[row]), int(self.values[row]))]

    def contents(self) -> pa.BinaryArray | None:
        """Return the content of all bodies, if each is one data section; else None."""
        if self.several or not (self.kinds == DATA).all():
            return None
        codes = self.octets[self.starts + self.values]
        if not ((codes == 0xA0) | (codes == 0xB0)).all():
            return None
        begins = self.starts + self.values + np.where(codes == 0xA0, 2, 5)
        return gathered(self.octets, begins, self.starts + self.ends)


def gathered(data: Octets, begins: Numbers, ends: Numbers, null: npt.NDArray[np.bool_] | None = None) -> pa.BinaryArray:
    """Return parts of the octets, in ascending order. Args: null: which are null instead."""
    # A binary array of what stands between the parts, and of the parts, in turns: it shares the octets.
    limits = np.zeros(2 * len(begins) + 1, np.int32)
    limits[1::2] = begins
    limits[2::2] = ends
    turns = pa.BinaryArray.from_buffers(pa.binary(), 2 * len(begins), [None, pa.py_buffer(limits), pa.py_buffer(data)])
    return turns.take(pa.array(np.arange(1, len(limits), 2), mask=null))


def find(payloads: pa.BinaryArray, formats: Numbers) -> Sections:
    """Find the sections of messages. Args: formats: their message-formats; for other formats than 0 nothing
    is known.
    """
    count = len(payloads)
    data, starts, ends = _octets(payloads)
    kinds, begins, values, body_ends = (np.zeros(count, np.int64) for _ in range(4))
    found = Sections(data, starts, kinds, begins, values, body_ends)
    for row in np.flatnonzero(formats != MESSAGE_FORMAT):
        found.errors[int(row)] = f"message-format {formats[row]} is not known here"
    rows = np.flatnonzero((formats == MESSAGE_FORMAT) & (ends > starts))
    at, last = starts.copy(), np.zeros(count, np.int64)
    odd: list[Numbers] = []
    heads: dict[int, list[Numbers]] = {}
    while rows.size:
        here = at[rows]
        code = data[here + 2].astype(np.int64)
        after = here + 4 + widths(data, here + 3)
        good = (data[here] == 0) & (data[here + 1] == 0x53) & _KNOWN[data[here + 3]] & (after <= ends[rows])
        # In order, once each (§3.2), with one body section.
        good &= (code > last[rows]) & (code >= HEADER) & (code <= FOOTER)
        body = (code >= DATA) & (code <= VALUE)
        good &= ~(body & (last[rows] >= DATA))
        odd.append(rows[~good])
        rows, here, code, after, body = rows[good], here[good], code[good], after[good], body[good]
        bodies = rows[body]
        found.kinds[bodies] = code[body]
        found.begins[bodies] = here[body] - starts[bodies]
        found.values[bodies] = found.begins[bodies] + 3
        found.ends[bodies] = after[body] - starts[bodies]
        for each in np.unique(code[~body]):
            of_it = code == each
            places = np.stack((rows[of_it], here[of_it] - starts[rows[of_it]]))
            heads.setdefault(int(each), []).append(places)
        last[rows] = code
        at[rows] = after
        rows = rows[after < ends[rows]]
    one_by_one = np.sort(np.concatenate(odd)) if odd else np.zeros(0, np.int64)
    if one_by_one.size:
        found.kinds[one_by_one] = 0
        for code_of, parts in heads.items():
            heads[code_of] = [places[:, ~np.isin(places[0], one_by_one)] for places in parts]
        for each in one_by_one.tolist():
            _find_sections(found, heads, each, payloads[each].as_py())
    for code_of, parts in heads.items():
        places = np.concatenate(parts, axis=1)
        rows, offsets = places[:, np.argsort(places[0])]
        if rows.size:
            found.heads[code_of] = rows, offsets
    return found


def _octets(payloads: pa.BinaryArray) -> tuple[Octets, Numbers, Numbers]:
    """Return all octets, and the begin and the end of each message.

    Padding after the last message allows reads beyond its end.
    """
    _, offsets, octets = payloads.buffers()
    limits = np.frombuffer(offsets, np.int32)[payloads.offset : payloads.offset + len(payloads) + 1].astype(np.int64)
    first, end = int(limits[0]), int(limits[-1])
    data = np.frombuffer(octets, np.uint8)[first:end] if octets is not None else np.zeros(0, np.uint8)
    return np.concatenate((data, np.zeros(_BEYOND, np.uint8))), limits[:-1] - first, limits[1:] - first


_BEYOND: Final = 16
"""Octets after the beginning of a section that are read, whether they belong to it or not."""

_KNOWN: Final = np.array([code in ENCODINGS for code in range(256)])
_FIXED: Final = np.array([MIN_WIDTHS.get(code >> 4, 0) if code < 0xA0 else 0 for code in range(256)], np.int64)
_SHORT: Final = np.array([code >> 4 in (0xA, 0xC, 0xE) for code in range(256)])
_LONG: Final = np.array([code >> 4 in (0xB, 0xD, 0xF) for code in range(256)])


def widths(data: Octets, at: Numbers) -> Numbers:
    """Return the number of octets that follow each of these format codes (§1.2)."""
    code = data[at]
    widths = _FIXED[code]
    short = _SHORT[code]
    widths[short] = 1 + data[at[short] + 1].astype(np.int64)
    long = at[_LONG[code]]
    size = np.zeros(len(long), np.int64)
    for octet in range(1, 5):
        size = size << 8 | data[long + octet]
    widths[_LONG[code]] = 4 + size
    return widths


# ---------------------------------------------------------------------------------------------------------- one by one


def _find_sections(found: Sections, all_heads: dict[int, list[Numbers]], row: int, payload: bytes) -> None:
    """Find the sections of one message, or note why it is none."""
    heads: dict[int, int] = {}
    bodies: list[tuple[int, int]] = []
    try:
        kind, end = _split(payload, heads, bodies)
    except Incomplete:
        found.errors[row] = "it ends in the middle of a section"
    except Violation as violation:
        found.errors[row] = violation.description
    except ProtocolError as error:
        found.errors[row] = str(error.description)
    except MisfitError as error:
        found.errors[row] = str(error)
    else:
        for code, at in heads.items():
            all_heads.setdefault(code, []).append(np.array([[row], [at]]))
        if bodies:
            found.kinds[row] = kind
            found.begins[row], found.values[row], found.ends[row] = (*bodies[0], end)
        if len(bodies) > 1:
            found.several[row] = bodies


def _split(payload: bytes, heads: dict[int, int], bodies: list[tuple[int, int]]) -> tuple[int, int]:
    """Find the sections of one message. Returns: the code of the body sections, and the end of the last one.

    Raises: Incomplete, Violation, ProtocolError, MisfitError: it is no message.
    """
    at, end, last, kind, body_end = 0, len(payload), 0, 0, 0
    while at < end:
        begin = at
        code, value_at = descriptor_code(payload, at, end)
        if code < 0:
            code = _symbolic(payload, at, value_at)
        if not HEADER <= code <= FOOTER:
            raise MisfitError(f"what stands at {at} is no section")
        is_body = DATA <= code <= VALUE
        # A body is several data sections, several amqp-sequences, or one amqp-value.
        again = is_body and code == last and code != VALUE
        if not again and (code <= last or (is_body and last >= DATA)):
            raise MisfitError(f"section 0x{code:02x} behind 0x{last:02x}")
        if payload[value_at : value_at + 1] == b"\x00":  # a described amqp-value, which cannot be skipped
            _, at = decode_composite(AmqpValue, payload, at)
        else:
            at = skip(payload, value_at, end)
        if is_body:
            bodies.append((begin, value_at))
            kind, body_end = code, at
        else:
            heads[code] = begin
        last = code
    return kind, body_end


def _symbolic(payload: bytes, at: int, value_at: int) -> int:
    head = {0xA3: 3, 0xB3: 6}.get(payload[at + 1]) if value_at > at else None
    return -1 if head is None else _SYMBOLIC.get(payload[at + head : value_at], -1)


def section(kind: type[Any], payload: bytes, at: int) -> Any:
    """Decode the section at an offset. Raises: ProtocolError: it is malformed."""
    return decode_composite(kind, payload, at)[0]
