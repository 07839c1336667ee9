"""A message read while it comes: first what is said about it, then its body, part by part (§3.2.6).

The body of a message that is read so is data: octets, in one section or several. Another body has to be there whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.codec.composite import declaration
from amqpmesh.router.amqp.codec.types import Symbol, ULong
from amqpmesh.router.amqp.codec.value_limits import MAX_VALUES, refuse_values
from amqpmesh.router.amqp.codec.values import decode
from amqpmesh.router.amqp.errors import ProtocolError, Scope, decode_error
from amqpmesh.router.amqp.standard.definitions import LinkCondition
from amqpmesh.router.amqp.standard.messaging import AmqpSequence, AmqpValue, Data
from amqpmesh.router.amqp.standard.sections import decode_sections
from amqpmesh.router.kernel import Incomplete, Violation, skip
from amqpmesh.router.message.content import Message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqpmesh.router.amqp.standard.messaging import Section

#: Body sections, by either descriptor (§3.2.6 to §3.2.8).
_BODIES: Final[dict[ULong | Symbol, type[Section]]] = {
    key: kind
    for kind in (Data, AmqpSequence, AmqpValue)
    for key in (ULong(declaration(kind).code), declaration(kind).name)
}
#: How octets of a binary begin: the format code, and the width of the size behind it (§1.6.19).
_SIZES: Final = {0xA0: 1, 0xB0: 4}


class Parts:
    """Takes a payload in pieces; gives its head, then the octets of its data sections.

    Args: section_max: octets that the sections before the body may have which have not come whole, and those behind it.
        max_values: as of `Message.decode`: of a section, and of a body that is no data with what is behind it.
    """

    def __init__(self, section_max: int, max_values: int = MAX_VALUES) -> None:
        self._section_max = section_max
        self._max_values = max_values
        self._buffer = bytearray()
        #: Of the data sections there is an empty one.
        self._sections: list[Section] = []
        #: Octets of the data section that is being read which are still to come.
        self._left = 0
        #: What is said about the message, once it is known: a message without body.
        self.head: Message | None = None
        #: The body is data, or there is none; else it has to be there whole.
        self.is_data = False

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Take a piece. Yields: the octets of the body in it. Raises: ProtocolError: this is no message."""
        self._buffer += piece
        while self._buffer:
            if self._left:
                part = bytes(self._buffer[: self._left])
                del self._buffer[: len(part)]
                self._left -= len(part)
                yield part
            elif not self._next_section():
                return

    @property
    def has_body(self) -> bool:
        """Whether there is a data section; some peers leave out a body that says nothing."""
        return any(isinstance(section, Data) for section in self._sections)

    def _next_section(self) -> bool:
        """Go into or over the next section. Returns: False: more has to come first."""
        if self.head is not None and not self.is_data:
            return False
        # All of it, unless it is too much.
        start = bytes(self._buffer[: self._section_max + 1])
        try:
            kind, begin = _descriptor(start)
            if self.head is None and kind is not None:
                self.head = Message.of_sections(self._sections)
                self.is_data = kind is Data
            elif kind is None:
                return self._read_section(start, skip(start, begin, len(start)))
            elif kind is not Data:
                raise decode_error(f"{kind.__name__} after Data")
            return self.is_data and self._enter_data(start, begin)
        except Incomplete:
            if len(start) > self._section_max:
                raise ProtocolError(
                    Scope.LINK,
                    LinkCondition.MESSAGE_SIZE_EXCEEDED,
                    f"more than {self._section_max} octets beside the body of a message that streams",
                ) from None
            return False
        except Violation as violation:
            raise decode_error(violation.description) from None

    def _read_section(self, start: bytes, end: int) -> bool:
        """What is not the body."""
        refuse_values(start[:end], self._max_values)
        self._sections += decode_sections(start[:end])
        del self._buffer[:end]
        said = Message.of_sections(self._sections)  # in the right order? else they could be any number
        if self.head is not None:
            self.head.footer = said.footer
        return True

    def _enter_data(self, start: bytes, begin: int) -> bool:
        if begin >= len(start):
            raise Incomplete
        width = _SIZES.get(start[begin])
        if width is None:
            raise decode_error("a data section that is not binary (§3.2.6)")
        end = begin + 1 + width
        if len(start) < end:
            raise Incomplete
        if not (self._sections and isinstance(self._sections[-1], Data)):
            self._sections.append(Data(value=b""))
            Message.of_sections(self._sections)  # in the right order?
        self._left = int.from_bytes(start[begin + 1 : end], "big")
        del self._buffer[:end]
        return True

    def whole(self) -> Message:
        """The message, if its body is no data and all of it has come. Raises: ProtocolError: it is none."""
        payload = bytes(self._buffer)
        refuse_values(payload, self._max_values)
        return Message.of_sections([*self._sections, *decode_sections(payload)])

    def finish(self) -> None:
        """Nothing more comes. Raises: ProtocolError: something should have."""
        if self.head is None and not self._buffer:
            self.head = Message.of_sections(self._sections)
            self.is_data = True
        if self.head is None or (self.is_data and (self._left or self._buffer)):
            raise decode_error("the message ends inside a section")


def _descriptor(start: bytes) -> tuple[type[Section] | None, int]:
    """The kind of body that begins here, None for another section; and where what is described begins.

    Raises: Incomplete, Violation. ProtocolError: it is no section.
    """
    if start[0] != 0:
        raise decode_error("a section is a described value (§3.2)")
    begin = skip(start, 1, len(start))
    descriptor = decode(start, 1)[0]
    return _BODIES.get(descriptor) if isinstance(descriptor, ULong | Symbol) else None, begin
