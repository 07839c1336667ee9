"""A message that is read while it arrives: first its head, then its body, part by part (§3.2.6).

Only a body of data sections is read in parts. Any other body must arrive whole.
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
#: Octets of the size field of a binary, by format code (§1.6.19).
_SIZES: Final = {0xA0: 1, 0xB0: 4}


class Parts:
    """A reader that takes a payload in pieces, and returns its head and the octets of its data sections.

    Args: section_max: the most octets of a section before or behind the body. max_values: the most values of one
        section, counted as by `Message.decode`; and of a body that is no data, together with its footer.
    """

    def __init__(self, section_max: int, max_values: int = MAX_VALUES) -> None:
        self._section_max = section_max
        self._max_values = max_values
        self._buffer = bytearray()
        #: Sections that were read; one empty data section stands for all data sections.
        self._sections: list[Section] = []
        #: Octets of the current data section that are still to come.
        self._left = 0
        #: The message without its body; None: its head is not complete.
        self.head: Message | None = None
        #: The body is data, or missing; otherwise it must arrive whole.
        self.is_data = False

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Take a piece of the payload. Yields: octets of the body. Raises: ProtocolError: it is no message."""
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
        """A data section has come; some peers leave out an empty body."""
        return any(isinstance(section, Data) for section in self._sections)

    def _next_section(self) -> bool:
        """Enter or read the next section. Returns: False: more octets must come first."""
        if self.head is not None and not self.is_data:
            return False
        # One octet more than permitted, to tell a section that is too large.
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
        """Read a section other than the body. Returns: True."""
        refuse_values(start[:end], self._max_values)
        self._sections += decode_sections(start[:end])
        del self._buffer[:end]
        said = Message.of_sections(self._sections)  # checks the order; repeated sections would have no limit
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
            Message.of_sections(self._sections)  # checks the order
        self._left = int.from_bytes(start[begin + 1 : end], "big")
        del self._buffer[:end]
        return True

    def whole(self) -> Message:
        """Decode a message whose body is no data, after all of it has come. Raises: ProtocolError: it is no message."""
        payload = bytes(self._buffer)
        refuse_values(payload, self._max_values)
        return Message.of_sections([*self._sections, *decode_sections(payload)])

    def finish(self) -> None:
        """Take the end of the payload. Raises: ProtocolError: it is incomplete."""
        if self.head is None and not self._buffer:
            self.head = Message.of_sections(self._sections)
            self.is_data = True
        if self.head is None or (self.is_data and (self._left or self._buffer)):
            raise decode_error("the message ends inside a section")


def _descriptor(start: bytes) -> tuple[type[Section] | None, int]:
    """Return the class of a body section, None for another section; and the offset behind its descriptor.

    Raises: Incomplete, Violation. ProtocolError: it is no section.
    """
    if start[0] != 0:
        raise decode_error("a section is a described value (§3.2)")
    begin = skip(start, 1, len(start))
    descriptor = decode(start, 1)[0]
    return _BODIES.get(descriptor) if isinstance(descriptor, ULong | Symbol) else None, begin
