"""Claims of a token about its peer, as names with texts, and conditions on them.

A token's claims are a tree of JSON. Here they are flat: `roles` of `realm_access` is `realm_access.roles`. A claim with
a list has several texts; numbers and truth values are written as JSON writes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from amqpmesh.policies.names import NamePattern


class Claims(Mapping[str, tuple[str, ...]]):
    """The claims of a token: texts by name. Immutable, and hashable as a part of a peer."""

    __slots__ = ("_hash", "_texts")

    def __init__(self, texts: Mapping[str, tuple[str, ...]]) -> None:
        """Args: texts: by name; a claim without a text is left out."""
        self._texts = {name: found for name, found in texts.items() if found}
        self._hash: int | None = None

    def __getitem__(self, name: str) -> tuple[str, ...]:
        return self._texts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self._texts.items()))
        return self._hash

    def __repr__(self) -> str:
        # The values may be private, and peers are shown in logs of faults.
        return f"Claims({', '.join(self._texts)})"

    @property
    def size(self) -> int:
        """The characters of all names and texts."""
        return sum(len(name) + sum(map(len, texts)) for name, texts in self._texts.items())


NO_CLAIMS: Final = Claims({})
"""The claims of a peer without a token."""


@dataclass(frozen=True, slots=True)
class ClaimMatch:
    """A condition on one claim: one of its texts must match one of the patterns."""

    name: str
    patterns: tuple[NamePattern, ...]

    def fits(self, claims: Mapping[str, tuple[str, ...]]) -> bool:
        """Tell whether claims meet the condition. A claim that is not there matches no pattern, not even `*`."""
        return any(pattern.matches(text) for text in claims.get(self.name, ()) for pattern in self.patterns)
