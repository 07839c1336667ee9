"""Limits of what a tenant, or each user of a group, may have and may do.

A cap is how many there may be at one time, or how large something may be. A rate is how many there may be in a second.
None stands for no limit.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class Part(NamedTuple):
    """A part of the router's memory: in octets, or of the whole, 0 to 1."""

    octets: int | None = None
    share: float | None = None

    def of(self, whole: int) -> int:
        """Return the part in octets. Args: whole: octets of the router's memory."""
        return self.octets if self.octets is not None else int(whole * (self.share or 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """The limits of a tenant, or of each user of a group.

    Each holds for a router, with all its workers. All counts and octets are whole numbers; rates are in a second.
    """

    connections: int | None = None
    connections_per_host: int | None = None
    """Of a tenant alone."""
    sessions: int | None = None
    links: int | None = None
    senders: int | None = None
    """Links on which clients send."""
    receivers: int | None = None
    """Links on which clients receive."""
    dynamic: int | None = None
    """Dynamic nodes (§3.5.3, §3.5.4)."""
    unsettled: int | None = None
    """Deliveries sent to its receivers and not settled."""
    message: int | None = None
    """Octets of the largest message that a client may send (§2.7.3, max-message-size)."""
    frame: int | None = None
    """Octets of the largest frame (§2.7.1, max-frame-size)."""
    session_window: int | None = None
    """Transfer frames of a session that may be under way to the router (§2.7.2, incoming-window)."""
    waiting: int | None = None
    """Octets that wait in the router."""
    memory: Part | None = None
    """The part of the router's memory that it may take. Of a tenant alone."""
    messages: float | None = None
    octets: float | None = None
    new_connections: float | None = None
    attaches: float | None = None
    messages_per_link: float | None = None
    octets_per_link: float | None = None
    messages_per_address: float | None = None
    octets_per_address: float | None = None
    burst: float | None = None
    """The seconds' worth of a rate that may come at once; None: `BURST`."""

    @property
    def is_empty(self) -> bool:
        """True if it limits nothing."""
        return all(getattr(self, name) is None for name in (*CAPS, *RATES))


BURST: Final = 1.0
"""The seconds' worth of a rate that may come at once, unless a policy says otherwise."""

RATES: Final = (
    "messages",
    "octets",
    "new_connections",
    "attaches",
    "messages_per_link",
    "octets_per_link",
    "messages_per_address",
    "octets_per_address",
)
"""The limits in a second."""

CAPS: Final = tuple(item.name for item in fields(Allowance) if item.name not in (*RATES, "burst"))
"""The limits of a number at one time, and of a size."""

OF_TENANTS: Final = ("connections_per_host", "memory", "messages_per_address", "octets_per_address")
"""The limits that only a tenant can have: several users share what they count."""

UNLIMITED: Final = Allowance()


def tightest(allowances: Iterable[Allowance]) -> Allowance:
    """Return the least of each limit, among those that have it."""
    given = [each for each in allowances if each is not UNLIMITED]
    if len(given) < 2:
        return given[0] if given else UNLIMITED
    values = {
        item.name: min(found, key=_size)
        for item in fields(Allowance)
        if (found := [value for each in given if (value := getattr(each, item.name)) is not None])
    }
    return Allowance(**values)


def _size(limit: float | Part) -> tuple[bool, float]:
    """Return what limits are compared by. Octets are before shares, which are not known here."""
    return (limit.octets is None, limit.octets or limit.share or 0.0) if isinstance(limit, Part) else (False, limit)


def widest(allowances: Iterable[Allowance]) -> Allowance:
    """Return the limits of a peer in several groups: the greatest of each, among the groups that have it.

    So they add up as rights do, and the order of groups does not matter.
    """
    given = [each for each in allowances if each is not UNLIMITED]
    if len(given) < 2:
        return given[0] if given else UNLIMITED
    values = {
        item.name: max(found)
        for item in fields(Allowance)
        if (found := [value for each in given if (value := getattr(each, item.name)) is not None])
    }
    return Allowance(**values)
