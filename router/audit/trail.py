"""The events of the audit log, on their way from the router to the file.

Peers can cause most events at will. So repeats of an event within a second share one line, which has their count. What
has no room to be written is lost and counted: the router never waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpmesh.policies.tenants import OPERATOR
from amqpmesh.router.audit.lines import encode, shortened

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.model.connections import ConnectionRecord

SECOND: Final = 1.0
"""Seconds in which repeats share one line."""

LINES: Final = 100
"""Different lines on one event of one host, in one second; the rest of them share one line."""

REMEMBERED: Final = 10_000
"""Different lines that are remembered within a second. They take a few megaoctets at most."""

PROVEN: Final = frozenset({"connection opened", "connection closed", "logged in", "token accepted"})
"""Events of peers that were let in. Beyond the limits above, each user of a host has a line for each of them, since a
user that is proven cannot be invented.
"""


NO_RULE: Final[Mapping[str, object]] = {}


class _What(NamedTuple):
    """The events of a host that share a line, by what differs."""

    user: str = ""
    container: str = ""
    reason: str = ""


OTHERS: Final = _What()
"""All events that differ too much."""


def _what(user: str | None, container: str | None, reason: str | None) -> _What:
    return _What(*(shortened(each or "") for each in (user, container, reason)))


class AuditTrail:
    """The writer of events as lines of the audit log."""

    def __init__(
        self,
        offer: Callable[[bytes], bool],
        later: Callable[[Callable[[], Steps[None]]], object],
        wall_clock: Callable[[], float],
        **named: object,
    ) -> None:
        """Args:
        offer: takes a line to be written; returns False if there is no room.
        later: calls a function after `SECOND` seconds, and has its steps done.
        wall_clock: seconds since 1970.
        named: fields of every line, such as the router's id.
        """
        self._offer = offer
        self._later = later
        self._wall_clock = wall_clock
        self._named = named
        #: Repeats in this second, by event and host; "": of hosts beyond those that are remembered.
        self._seen: dict[tuple[str, str], dict[_What, int]] = {}
        self._remembered = 0
        #: Lines that were lost since the last one that was not, and over the life of the router.
        self._unsaid = 0
        self.lost = 0

    def of(
        self,
        event: str,
        record: ConnectionRecord,
        *,
        user: str | None = None,
        reason: str | None = None,
        rule: Mapping[str, object] = NO_RULE,
        **fields: object,
    ) -> None:
        """Note an event of a connection.

        Args: user: of a peer whose `open` has not come yet. rule: further fields, on the rule that has refused it.
        """
        user = user or record.peer.user
        what = _what(user, record.peer.container_id, reason)
        if not record.own and self._is_new(event, record.host, what):
            self._write(event, {**shown(record), "user": user, **fields, **rule, "reason": reason})

    def of_host(
        self,
        event: str,
        host: str,
        *,
        user: str | None = None,
        reason: str | None = None,
        rule: Mapping[str, object] = NO_RULE,
        **fields: object,
    ) -> None:
        """Note an event of a peer that has no connection here. Args: host: "": it is not known. rule: as of `of`."""
        if self._is_new(event, host, _what(user, None, reason)):
            self._write(event, {"peer": host or None, "user": user, **fields, **rule, "reason": reason})

    def change(self, event: str, **fields: object) -> None:
        """Note a change, which always has a line."""
        self._write(event, fields)

    def repeats(self) -> Steps[None]:
        """Note the repeats of the second that is over, in steps: there may be thousands."""
        seen, self._seen, self._remembered = self._seen, {}, 0
        for (event, host), repeats in seen.items():
            for what, count in repeats.items():
                if count:
                    said = {name: value or None for name, value in what._asdict().items()}
                    self._write(event, {"peer": host or None, **said, "count": count})
                    yield

    def _is_new(self, event: str, host: str, what: _What) -> bool:
        """Tell whether an event has a line of its own; else count it."""
        if not self._seen:
            self._later(self.repeats)
        seen = self._seen.get((event, host), {})
        if what not in seen:
            is_proven = event in PROVEN and bool(what.user)
            if self._remembered < REMEMBERED and len(seen) < LINES:
                self._remembered += 1
            elif is_proven:
                what = _What(what.user)
            else:
                what = OTHERS
                host = host if seen else ""
            seen = self._seen.setdefault((event, host), {})
            if what is not OTHERS and what not in seen:
                seen[what] = 0
                return True
        seen[what] = seen.get(what, 0) + 1
        return False

    def _write(self, event: str, fields: Mapping[str, object]) -> None:
        said = {**self._named, "event": event, **fields}
        if self._unsaid:
            said["lost"] = self._unsaid
        if self._offer(encode(self._wall_clock(), said)):
            self._unsaid = 0
        else:
            self._unsaid += 1
            self.lost += 1


def shown(record: ConnectionRecord) -> dict[str, object]:
    """Return what is known of the peer of a connection."""
    peer, rights = record.peer, record.rights
    return {
        "connection": record.number,
        "peer": record.host or None,
        "listener": peer.listener or None,
        "connector": peer.connector or None,
        "container": peer.container_id or None,
        "user": peer.user,
        "mechanism": peer.mechanism,
        "certificate": peer.certificate_subject or record.certificate_subject,
        "tenant": peer.tenant or (None if rights is None else OPERATOR),
        "groups": None if rights is None else rights.groups,
    }
