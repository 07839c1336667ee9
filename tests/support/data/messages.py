"""Generated messages of format 0: every combination of sections, in every encoding (§3.2)."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from amqpmesh.router.amqp.codec.values import encode
from tests.support.data import encodings as wire
from tests.support.data.values import values

HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, PROPERTIES = 0x70, 0x71, 0x72, 0x73

TTLS = st.sampled_from([0, 1, 255, 256, 2**32 - 1]) | st.integers(0, 2**32 - 1)
ANY_TTLS = st.none() | TTLS


@dataclass(frozen=True)
class Message:
    """A message, and what a reader of its head must find."""

    #: (descriptor's code, bytes) of each section.
    sections: tuple[tuple[int, bytes], ...]
    ttl: int | None = None
    priority: int = 4
    to: str | None = None

    @property
    def data(self) -> bytes:
        """The whole message, encoded."""
        return b"".join(section for _, section in self.sections)

    def section(self, code: int) -> bytes:
        """Return the section with that code, if there is one."""
        return next((section for each, section in self.sections if each == code), b"")

    @property
    def bare(self) -> bytes:
        """The bare message and the footer, which no router may change (§3.2)."""
        return b"".join(section for code, section in self.sections if code >= PROPERTIES)

    def extent(self, code: int) -> tuple[int, int]:
        """Return the begin and the end of that section; (0, 0) if there is none."""
        at = 0
        for each, section in self.sections:
            if each == code:
                return at, at + len(section)
            at += len(section)
        return 0, 0


def maybe(field: wire.Bytes) -> wire.Bytes:
    """Draw null, or the value."""
    return st.just(wire.NULL) | field


BOOLEANS = st.booleans().flatmap(wire.booleans)
NAMES = st.text(st.characters(codec="ascii", exclude_characters="\0"), min_size=1, max_size=6)
STRINGS = st.text(max_size=6) | st.sampled_from(["x" * 255, "x" * 256])

# Strategies are made once: hypothesis examines each one at its first use, which takes longer than to draw from it.
FLAGS = maybe(BOOLEANS)
DELIVERY_COUNTS = maybe(st.sampled_from([0, 1, 300]).flatmap(wire.uints))
PRIORITIES = st.sampled_from([4, 4, 0, 9, 255])
KEYS = st.lists(NAMES.map("x-opt-".__add__), max_size=3, unique=True)
BINARIES = st.binary(max_size=5).flatmap(wire.binaries)
ENCODED_STRINGS = STRINGS.flatmap(wire.strings)
MESSAGE_IDS = maybe(st.one_of(st.just(b"\x53\x07"), ENCODED_STRINGS, BINARIES))
USER_IDS = maybe(BINARIES)
SUBJECTS = maybe(ENCODED_STRINGS)
TOS = st.none() | STRINGS
ENTRIES = st.dictionaries(NAMES, st.integers(0, 9), max_size=2)
BODIES = st.sampled_from(["data", "sequence", "value", "none"])
DATA = st.lists(st.binary(max_size=20).flatmap(wire.binaries), min_size=1, max_size=3)
SEQUENCES = st.lists(st.lists(values.map(encode), max_size=2).flatmap(wire.lists), min_size=1, max_size=2)


@st.composite
def headers(draw: st.DrawFn, ttls: st.SearchStrategy[int | None], priority: int) -> tuple[bytes, int | None]:
    """Draw a header, and its ttl."""
    ttl = draw(ttls)
    default = priority == 4 and draw(st.booleans())
    fields = [
        FLAGS,
        st.just(wire.NULL if default else bytes((0x50, priority))),
        st.just(wire.NULL) if ttl is None else wire.uints(ttl),
        FLAGS,
        DELIVERY_COUNTS,
    ]
    # Often a list as short as it may be: then what it left out is the default.
    if draw(st.booleans()):
        fields = fields[: 3 if ttl is not None else 2 if priority != 4 else draw(st.integers(0, 2))]
    return draw(wire.composites(HEADER, "amqp:header:list", [*fields], 5)), ttl


@st.composite
def annotation_maps(draw: st.DrawFn, code: int, name: str) -> bytes:
    """Draw annotations with any keys and values."""
    items = []
    for key in draw(KEYS):
        items += [draw(wire.symbols(key)), encode(draw(values))]
    return draw(wire.described(code, name, draw(wire.maps(items))))


@st.composite
def properties(draw: st.DrawFn, to: str | None) -> bytes:
    """Draw properties whose `to` is the one given."""
    fields = [MESSAGE_IDS, USER_IDS, st.just(wire.NULL) if to is None else wire.strings(to), SUBJECTS]
    return draw(wire.composites(PROPERTIES, "amqp:properties:list", [*fields], 13))


@st.composite
def bodies(draw: st.DrawFn) -> list[tuple[int, bytes]]:
    """Draw one body (§3.2): some data sections, some sequences, or one value."""
    kind = draw(BODIES)
    if kind == "value":
        return [(0x77, draw(wire.described(0x77, "amqp:amqp-value:*", encode(draw(values)))))]
    if kind == "none":
        return []
    if kind == "data":
        return [(0x75, draw(wire.described(0x75, "amqp:data:binary", part))) for part in draw(DATA)]
    return [(0x76, draw(wire.described(0x76, "amqp:amqp-sequence:list", each))) for each in draw(SEQUENCES)]


@st.composite
def messages(
    draw: st.DrawFn, ttls: st.SearchStrategy[int | None] | None = None, *, has_properties: bool = False
) -> Message:
    """Draw a message with any sections; with `ttls`, one with a header that has such a ttl."""
    sections: list[tuple[int, bytes]] = []
    ttl: int | None = None
    priority, to = 4, None
    if ttls is not None or draw(st.booleans()):
        priority = draw(PRIORITIES)
        header, ttl = draw(headers(ttls if ttls is not None else ANY_TTLS, priority))
        sections.append((HEADER, header))
    if draw(st.booleans()):
        section = draw(annotation_maps(DELIVERY_ANNOTATIONS, "amqp:delivery-annotations:map"))
        sections.append((DELIVERY_ANNOTATIONS, section))
    if draw(st.booleans()):
        sections.append(
            (MESSAGE_ANNOTATIONS, draw(annotation_maps(MESSAGE_ANNOTATIONS, "amqp:message-annotations:map")))
        )
    if has_properties or draw(st.booleans()):
        to = draw(TOS)
        sections.append((PROPERTIES, draw(properties(to))))
    if draw(st.booleans()):
        items = draw(ENTRIES)
        encoded = [part for key, value in items.items() for part in (draw(wire.strings(key)), bytes((0x55, value)))]
        name = "amqp:application-properties:map"
        sections.append((0x74, draw(wire.described(0x74, name, draw(wire.maps(encoded))))))
    sections += draw(bodies())
    if draw(st.booleans()):
        sections.append((0x78, draw(annotation_maps(0x78, "amqp:footer:map"))))
    return Message(tuple(sections), ttl, priority, to)
