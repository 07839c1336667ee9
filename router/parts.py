"""A message read while it comes: first what is said about it, then its body, part by part (§3.2.6).

The body of a message that is read so is data: octets, in one section or several. Another body has to be there whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.errors import decode_error
from amqpmesh.router.amqp.message import decode_sections
from amqpmesh.router.kernel.relay import Incomplete, Violation, skip
from amqpmesh.router.message import Message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqpmesh.router.amqp.messaging import Section

DATA: Final = 0x75
#: The first body section's code (§3.2.6 to §3.2.8), and the last.
_BODY: Final = range(0x75, 0x78)
_DESCRIPTOR_SIZE: Final = 3


class Parts:
    """Takes a payload in pieces; gives its head, then the octets of its data sections.

    Args: head_max: octets that the sections before the body may have.
    """

    def __init__(self, head_max: int) -> None:
        self._head_max = head_max
        self._buffer = bytearray()
        self._sections: list[Section] = []
        #: Octets of the data section that is being read which are still to come.
        self._left = 0
        #: What is said about the message, once it is known: a message without body.
        self.head: Message | None = None
        #: The body is data; else it has to be there whole.
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
                continue
            if not self._next_section():
                return

    def _next_section(self) -> bool:
        """Go into or over the next section. Returns: False: more has to come first."""
        buffer = self._buffer
        if len(buffer) < _DESCRIPTOR_SIZE:
            return False
        # What is not written in the compact form is left to the decoder, which needs all of it.
        code = buffer[2] if buffer[0] == 0 and buffer[1] == 0x53 else -1
        if self.head is None and (code in _BODY or code == -1):
            self.head = Message.of_sections(self._sections)
            self.is_data = code == DATA
        if self.head is not None and not self.is_data:
            return False
        if code == DATA:
            return self._enter_data()
        try:
            end = skip(bytes(buffer), _DESCRIPTOR_SIZE, len(buffer))
        except Incomplete:
            if self.head is None and len(buffer) > self._head_max:
                raise decode_error(f"more than {self._head_max} octets before the body") from None
            return False
        except Violation as violation:
            raise decode_error(violation.description) from None
        section = decode_sections(bytes(buffer[:end]))
        del buffer[:end]
        if self.head is None:
            self._sections += section
        else:
            self.head.footer = Message.of_sections(section).footer
        return True

    def _enter_data(self) -> bool:
        buffer = self._buffer
        if len(buffer) < _DESCRIPTOR_SIZE + 1:
            return False
        width = {0xA0: 1, 0xB0: 4}.get(buffer[_DESCRIPTOR_SIZE])
        if width is None:
            raise decode_error("a data section that is not binary (§3.2.6)")
        begin = _DESCRIPTOR_SIZE + 1 + width
        if len(buffer) < begin:
            return False
        self._left = int.from_bytes(buffer[_DESCRIPTOR_SIZE + 1 : begin], "big")
        del buffer[:begin]
        return True

    def whole(self) -> Message:
        """The message, if its body is no data and all of it has come. Raises: ProtocolError: it is none."""
        return Message.of_sections([*self._sections, *decode_sections(bytes(self._buffer))])

    def finish(self) -> None:
        """Nothing more comes. Raises: ProtocolError: something should have."""
        if self.head is None and not self._buffer:
            self.head = Message.of_sections(self._sections)
            self.is_data = True
        if self.head is None or (self.is_data and (self._left or self._buffer)):
            raise decode_error("the message ends inside a section")
