"""Attaches that differ in their name and their handle alone: they are read once, and their answer is encoded once.

A client's attaches to an address are usually alike. Those that may hold a map are left out, since its owner may change
it; so are long ones: the memory of what is remembered counts on no account.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router import kernel
from amqpmesh.router.amqp.codec.composite import Composite, declaration
from amqpmesh.router.amqp.standard.performatives import Attach, decode_performative, encode_performative

if TYPE_CHECKING:
    from collections.abc import Hashable

#: The octets of the other fields of an `attach` that is remembered, at most.
LONGEST: Final = 256

#: The attaches that are remembered. One more, and all are forgotten.
REMEMBERED: Final = 256

#: The answers to alike attaches that are remembered. They differ by what a connection permits, and by how it is spoken
#: to.
ANSWERS: Final = 8

#: Each octet by its value; the small handles, encoded.
_OCTETS: Final = [bytes((octet,)) for octet in range(256)]
_HANDLES: Final = [b"\x43", *(b"\x52" + octet for octet in _OCTETS[1:])]

_declared = declaration(Attach)
assert isinstance(_declared, Composite)
_LIST: Final = _declared.list


class AlikeAttaches:
    """The common part of attaches that are alike."""

    __slots__ = ("answers", "attach", "octets", "retained")

    def __init__(self, attach: Attach) -> None:
        """Args: attach: the first of them."""
        self.attach = attach
        #: What the owner of the connections keeps of each of them; None: it has not kept one yet.
        self.retained: Attach | None = None
        #: The octets that the owner counts for one, besides its name; None: it has not counted them yet.
        self.octets: int | None = None
        #: The fields behind the handle of its answers, encoded; by all that they depend on besides the attach.
        self.answers: dict[Hashable, AttachTerms] = {}

    def remember(self, key: Hashable, answer: Attach, *, compact: bool) -> AttachTerms:
        """Remember an answer. Args: compact: as of `encode_performative`."""
        if len(self.answers) >= ANSWERS:
            self.answers.clear()
        terms = self.answers[key] = AttachTerms(answer, compact=compact)
        return terms


_known: dict[bytes, AlikeAttaches] = {}


def decode_alike(body: bytes) -> tuple[Attach, AlikeAttaches] | None:
    """Decode an `attach` that may be like one that came before. Returns: None: `decode_performative` must read it.

    Raises: ProtocolError: as `decode_performative`.
    """
    parts = kernel.split_attach(body)
    if parts is None:
        return None
    name, handle, rest = parts
    alike = _known.get(rest)
    if alike is not None:
        return _LIST.like(alike.attach, (name, handle)), alike
    if len(rest) > LONGEST or 0xC1 in rest or 0xD1 in rest:
        return None
    attach, end = decode_performative(body)
    if end != len(body) or not isinstance(attach, Attach):
        return None
    if len(_known) >= REMEMBERED:
        _known.clear()
    alike = _known[rest] = AlikeAttaches(attach)
    return attach, alike


class AttachTerms:
    """The fields of an `attach` behind its handle, encoded."""

    __slots__ = ("_count", "_octets")

    def __init__(self, attach: Attach, *, compact: bool) -> None:
        """Args: attach: with any name and handle. compact: as of `encode_performative`."""
        body = encode_performative(_LIST.like(attach, ("", 0)), compact=compact)
        fields_at = 6 if body[3] == 0xC0 else 12
        self._count = body[fields_at - 1 : fields_at]
        self._octets = body[fields_at + 3 :]  # behind an empty string and a zero

    def body(self, name: str, handle: int) -> bytes:
        """Return the body of such an `attach`."""
        octets, rest = name.encode(), self._octets
        length = len(octets)
        number = _HANDLES[handle] if handle < 256 else b"\x70" + handle.to_bytes(4, "big")
        size = length + len(number) + len(rest) + 3  # the number of fields, and the head of the name
        if size < 256:
            chars = _OCTETS[length]
            return b"".join((b"\x00\x53\x12\xc0", _OCTETS[size], self._count, b"\xa1", chars, octets, number, rest))
        name_head = b"\xa1" + _OCTETS[length] if length < 256 else b"\xb1" + length.to_bytes(4, "big")
        fields = b"".join((name_head, octets, number, rest))
        return b"\x00\x53\x12\xd0" + (len(fields) + 4).to_bytes(4, "big") + b"\x00\x00\x00" + self._count + fields
