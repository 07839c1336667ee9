"""A message that is written part by part: its head, its body in data sections, its footer (§3.2).

If the size is known, the body is one data section, which begins with its length. If not, each part is a data section
(§3.2.6).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.codec.composite import declaration
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.amqp.standard.messaging import Data
from amqpmesh.router.message.content import Message, encode_foot, encode_head

if TYPE_CHECKING:
    from collections.abc import Iterator

SECTION_MAX: Final = 2**32 - 1
"""The most octets of a data section: the size of a binary has four octets (§1.6.19). A larger body has several."""

JOINED_MAX: Final = 16 * 2**10
"""The most octets of a part that are copied behind the head of their section, to fit into one frame."""

_DESCRIPTOR: Final = bytes((0x00, 0x53, declaration(Data).code))


class Sections:
    """A writer of the payload of one message, in pieces: `head`, `part` for each part, `finish`."""

    def __init__(self, message: Message | None, size: int | None, *, section_max: int = SECTION_MAX) -> None:
        """Args: message: without a body. size: octets of the body; None: not known.

        Raises: CommandError: the message has a body, or a value that AMQP does not have.
        """
        self._message = Message() if message is None else message
        self._size = size
        self._section_max = section_max
        #: Octets of the body so far. `_left`: octets of the current section that are still to come.
        self._octets = 0
        self._left = 0
        #: The payload before the first part.
        self.head = encode_head(self._message)
        self._foot_size = len(encode_foot(self._message))
        self._has_sections = False

    @property
    def length(self) -> int | None:
        """Octets of the payload, with the current footer; None: not known."""
        if self._size is None:
            return None
        whole, rest = divmod(self._size, self._section_max)
        sizes = [self._section_max] * whole + [rest] * (rest > 0 or not whole)
        return len(self.head) + sum(len(_begin(size)) + size for size in sizes) + self._foot_size

    def part(self, octets: object) -> Iterator[bytes | memoryview]:
        """Write the next part of the body. Yields: pieces of the payload; none for an empty part.

        Raises: CommandError: it is not octets, or exceeds the size.
        """
        if not isinstance(octets, bytes | bytearray | memoryview):
            raise CommandError(f"a part is bytes, not {type(octets).__name__}")
        # Other objects than `bytes` may change while they wait.
        rest = memoryview(octets if isinstance(octets, bytes) else bytes(octets))
        self._octets += len(rest)
        if self._size is not None and self._octets > self._size:
            raise CommandError(f"the parts have more than the {self._size} octets that were announced")
        while rest:
            begin = b""
            if not self._left:
                begin = self._next_section(len(rest))
            part, rest = rest[: self._left], rest[self._left :]
            self._left -= len(part)
            if begin and len(part) <= JOINED_MAX:
                yield begin + part
                continue
            if begin:
                yield begin
            yield part

    def finish(self) -> bytes:
        """Write the end of the payload: the current footer of the message.

        Raises: CommandError: the body is shorter than announced, or the footer has a value that AMQP does not have.
        """
        if self._size is not None and self._octets < self._size:
            raise CommandError(f"the parts have {self._octets} octets, and {self._size} were announced")
        begin = b"" if self._has_sections else self._next_section(0)
        return begin + encode_foot(self._message)

    def _next_section(self, size: int) -> bytes:
        """Begin a data section. Args: size: octets of the part: of all the section, if the body's size is not known."""
        known = size if self._size is None else self._size - (self._octets - size)
        self._left = min(known, self._section_max)
        self._has_sections = True
        return _begin(self._left)


def _begin(size: int) -> bytes:
    """Return the head of a data section (§3.2.6, §1.6.19)."""
    return _DESCRIPTOR + (bytes((0xA0, size)) if size < 256 else b"\xb0" + size.to_bytes(4, "big"))
