"""Log lines on logins and refused logins: one for each, and one for the rest when they are too many."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from amqpmesh.router.logs.event_log import LOGINS, EventLog

if TYPE_CHECKING:
    from amqpmesh.router.context import Context
    from amqpmesh.router.model.connections import ConnectionRecord

LINES: Final = 100
"""Lines for one host in one second. A person reads no more, and a password guesser must not fill the disk."""

NAMES: Final = 20
"""Users named in the line on the rest: more would not fit into one value of the log."""


@dataclass(slots=True)
class _Host:
    """The logins from one host in this second."""

    lines: int = 0
    skipped: int = 0
    refused: int = 0
    #: The users of lines that were left out, each once.
    users: dict[str, None] = field(default_factory=dict)


class Logins:
    """The logger of logins and refused logins, up to `LINES` a second for each host.

    The rest of a second is logged as one line for each host, with the count and the users. The table of hosts is empty
    again after each second, so it holds only the hosts of one second.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._log = EventLog(LOGINS)
        self._hosts: dict[str, _Host] = {}

    def accepted(self, record: ConnectionRecord) -> None:
        """Log that the peer of a connection has logged in."""
        user = record.engine.user
        if self._context.audit is not None:
            self._context.audit.of("logged in", record, user=user, mechanism=_mechanism(record))
        if not record.own and self._has_line(record.host, user):
            self._log.info(
                "logged in",
                connection=record.number,
                peer=record.host,
                user=user,
                mechanism=_mechanism(record),
            )

    def refused(self, record: ConnectionRecord, user: str | None, reason: str) -> None:
        """Log that the peer of a connection was refused. Args: user: the name that it gave, if it came so far."""
        if self._context.audit is not None:
            self._context.audit.of(
                "authentication failed", record, user=user, reason=reason, mechanism=_mechanism(record)
            )
        if self._has_line(record.host, user, refused=True):
            self._log.warning(
                "authentication failed",
                connection=record.number,
                peer=record.host,
                user=user,
                mechanism=_mechanism(record),
                reason=reason,
            )

    def accepted_at(self, listener: str, host: str, user: str | None, mechanism: str) -> None:
        """Log that a client of HTTP has logged in: it has no connection of AMQP. Args: listener: its name."""
        if self._context.audit is not None:
            self._context.audit.of_host("logged in", host, user=user, mechanism=mechanism, listener=listener)
        if self._has_line(host, user):
            self._log.info("logged in", peer=host, user=user, mechanism=mechanism, listener=listener)

    def refused_at(self, listener: str, host: str, user: str | None, mechanism: str | None, reason: str) -> None:
        """Log that a client of HTTP was refused. Args: as of `accepted_at`, and of `refused`."""
        if self._context.audit is not None:
            self._context.audit.of_host(
                "authentication failed", host, user=user, reason=reason, mechanism=mechanism, listener=listener
            )
        if self._has_line(host, user, refused=True):
            self._log.warning(
                "authentication failed", peer=host, user=user, mechanism=mechanism, listener=listener, reason=reason
            )

    def not_secured(self, host: str, reason: str) -> None:
        """Log that a TLS handshake failed, before there was a connection or a user."""
        if self._context.audit is not None:
            self._context.audit.of_host("TLS handshake failed", host, reason=reason)
        if self._has_line(host, None, refused=True):
            self._log.warning("TLS handshake failed", peer=host, reason=reason)

    def not_upgraded(self, host: str, reason: str) -> None:
        """Log that a client has opened no WebSocket, before there was a connection or a user."""
        if self._context.audit is not None:
            self._context.audit.of_host("WebSocket refused", host, reason=reason)
        if self._has_line(host, None, refused=True):
            self._log.warning("WebSocket refused", peer=host, reason=reason)

    def tell_left_out(self) -> None:
        """Log the logins of a second that had no line of their own."""
        hosts, self._hosts = self._hosts, {}
        for name, host in hosts.items():
            if host.skipped:
                users = list(host.users)
                more = ["..."] if len(users) > NAMES else []
                self._log.warning(
                    "logins suppressed",
                    peer=name,
                    count=host.skipped,
                    refused=host.refused,
                    users=", ".join([*users[:NAMES], *more]) or None,
                )

    def _has_line(self, name: str, user: str | None, *, refused: bool = False) -> bool:
        if not self._hosts:
            self._context.schedule(self._context.now + 1.0, self.tell_left_out)
        host = self._hosts.setdefault(name, _Host())
        if host.lines < LINES:
            host.lines += 1
            return True
        host.skipped += 1
        host.refused += refused
        if user is not None and len(host.users) <= NAMES:
            host.users[user] = None
        return False


def _mechanism(record: ConnectionRecord) -> str | None:
    sasl = record.engine.negotiation.sasl
    return sasl.mechanism if sasl is not None else None
