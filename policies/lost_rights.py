"""The rights that a changed policy takes away from a peer.

Most changes concern few peers, and few of their addresses: what was permitted, by a line that is there still, need not
be judged again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.policies.patterns import PatternTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from amqpmesh.policies.rights import Grant, Rights

REMEMBERED: Final = 1_000
"""Addresses whose judgement is kept for further links of peers with the same rights."""


class LostRights:
    """The rights that peers had, and that may be gone. False: none of them is."""

    __slots__ = ("_judged", "_now", "_receive", "_send", "all", "others")

    def __init__(self, before: Rights | None, now: Rights, *, are_exports_equal: bool) -> None:
        """Args: before, now: of the same peers, in one tenant; None: what they had is not known. are_exports_equal: the
        exports of both policies are.
        """
        self._now = now
        #: The patterns that are gone; None: none is.
        self._send = self._receive = None
        #: Any right may be gone.
        self.all = before is None or not are_exports_equal or before.scopes != now.scopes
        #: A right that is no matter of a single address, or one at the management node, may be gone.
        self.others = before is None or not before.others <= now.others
        if before is not None:
            self._send = _gone(before.send_lines, now.send_lines)
            self._receive = _gone(before.receive_lines, now.receive_lines)
        self._judged: dict[tuple[str, bool], bool | None] = {}

    def __bool__(self) -> bool:
        return self.all or self.others or self._send is not None or self._receive is not None

    def permits(self, name: str, *, sends: bool) -> bool | None:
        """Tell whether the use of an address is still permitted; None: that is to be judged.

        Args: name: without a container, and not one of the router's own addresses. sends: the peers send to it.
        """
        key = name, sends
        if key in self._judged:
            return self._judged[key]
        judged = self._permits(name, sends=sends)
        if len(self._judged) < REMEMBERED:
            self._judged[key] = judged
        return judged

    def _permits(self, name: str, *, sends: bool) -> bool | None:
        if self.all:
            if self._now.policy.exports:
                return None
        else:
            gone = self._send if sends else self._receive
            if gone is None or not gone.may_match(name):
                return True
        return (self._now.send(name) if sends else self._now.receive(name)) is not None


def _gone(before: Mapping[str, Grant], now: Iterable[str]) -> PatternTable[bool] | None:
    """Return the patterns that are in the first and not in the second; None: all are."""
    gone = before.keys() - now
    return PatternTable((pattern, True) for pattern in gone) if gone else None
