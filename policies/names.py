"""Patterns of names: of users, hosts' names, and certificates.

Unlike an address, a name has no tokens: a `*` stands for any characters, also none, and each other character for
itself. Names are compared exactly, as they were proved.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

_ANY: Final = "\0"
"""A character that no name has."""


@dataclass(frozen=True, slots=True)
class NamePattern:
    """A pattern of names: `svc-*`."""

    text: str
    _parts: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_parts", tuple(self.text.split("*")))

    @property
    def is_name(self) -> bool:
        """True if the pattern has no `*`: it is a single name, which is its prefix."""
        return len(self._parts) == 1

    @property
    def prefix(self) -> str:
        """The characters that each matching name begins with."""
        return self._parts[0]

    @property
    def suffix(self) -> str:
        """The characters that each matching name ends with."""
        return self._parts[-1]

    def covers(self, other: NamePattern) -> bool:
        """Tell whether each name under another pattern falls under this one.

        So it is if this one has a `*` wherever the other one stands for any characters: for a character that no
        pattern has.
        """
        return self.matches(other.text.replace("*", _ANY)) if _ANY not in self.text + other.text else self == other

    def overlaps(self, other: NamePattern) -> bool:
        """Tell whether a name falls under both patterns.

        With a `*` in both, only their beginnings and ends can contradict each other.
        """
        if self.is_name or other.is_name:
            return self.matches(other.text) if other.is_name else other.matches(self.text)
        begins, ends = sorted((self.prefix, other.prefix), key=len), sorted((self.suffix, other.suffix), key=len)
        return begins[1].startswith(begins[0]) and ends[1].endswith(ends[0])

    def matches(self, name: str) -> bool:
        """Tell whether a name falls under the pattern. The time is linear in the lengths of both for each `*`.

        The parts between the `*` are looked for from the left, each at its first place: a later place leaves less room
        for the rest.
        """
        first, *rest = self._parts
        if not rest:
            return name == first
        if len(name) < len(first) + len(rest[-1]) or not (name.startswith(first) and name.endswith(rest[-1])):
            return False
        at, end = len(first), len(name) - len(rest[-1])
        for part in rest[:-1]:
            found = name.find(part, at, end)
            if found < 0:
                return False
            at = found + len(part)
        return True
