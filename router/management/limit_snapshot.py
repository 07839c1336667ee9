"""A snapshot of the limits and rates of tenants, users, hosts and addresses, and of what they use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.config.limits import ULONG_MAX
from amqpmesh.router.credit.rate_line import RateOwner, is_idle
from amqpmesh.router.model.usage import Kind
from amqpmesh.router.statistics.router_statistics import LimitStatistics, RateStatistics

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from amqpmesh.policies.limits import Allowance
    from amqpmesh.router.kernel import TokenBucket
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.links import IncomingLink
    from amqpmesh.router.model.usage import Usage


class Sizes:
    """The greatest sizes that connections, sessions and links have been given, by their owners.

    They are looked at while a snapshot is made: nothing is counted for it. Who has no limit of a size has none here.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[Usage, str], int] = {}

    def add(self, record: ConnectionRecord) -> None:
        """Add a connection: its frames (§2.7.1), and the incoming windows of its sessions (§2.7.2)."""
        self._add(record, "frame", record.engine.flow_state.max_frame_size)
        for session in record.engine.channels.sessions:
            self._add(record, "session_window", session.window)

    def add_link(self, link: IncomingLink) -> None:
        """Add a link on which a client sends (§2.7.3). One that is older than the limit may have none."""
        self._add(link.connection, "message", link.endpoint.flow_state.max_message_size or ULONG_MAX)

    def _add(self, record: ConnectionRecord, limit: str, size: int) -> None:
        member, rights = record.usage, record.rights
        if member is None or rights is None:
            return
        for usage, allowance in ((member.tenant, rights.tenant_limits), (member.user, rights.limits)):
            if getattr(allowance, limit) is not None:
                self._found[usage, limit] = max(size, self._found.get((usage, limit), 0))

    def of(self, usage: Usage, limit: str) -> int:
        """Return the greatest size; 0: there is nothing that has one."""
        return self._found.get((usage, limit), 0)


def usage_statistics(usage: Usage, unsettled: int | None, sizes: Sizes) -> Iterator[LimitStatistics]:
    """Yield the limits of one owner. Args: unsettled: the deliveries that its receivers may have unsettled. sizes: of
    all connections.
    """
    owner = usage.owner
    user = None if owner.is_anonymous else owner.user
    host = owner.user if owner.is_anonymous else owner.host
    for kind in Kind:
        allowed = usage.caps[kind]
        if allowed is not None:
            yield LimitStatistics(
                tenant=owner.tenant,
                limit=kind.limit if owner.host is None else f"{kind.limit}_per_host",
                user=user,
                host=host,
                used=usage.used(kind),
                allowed=allowed,
                refused=usage.refused[kind],
            )
    if unsettled is not None:
        yield LimitStatistics(
            tenant=owner.tenant,
            limit="unsettled",
            user=user,
            host=host,
            used=usage.leased + (0 if usage.unsettled is None else usage.unsettled.others()),
            allowed=unsettled,
            refused=usage.starved,
        )
    for name in ("message", "frame", "session_window"):
        size = _size(usage, name)
        if size is not None:
            yield LimitStatistics(
                tenant=owner.tenant,
                limit=name,
                user=user,
                host=host,
                used=sizes.of(usage, name),
                allowed=size,
                refused=0,
            )
    budget, portion = usage.budget, usage.octets
    for name in ("waiting", "memory"):
        if budget is not None and getattr(usage.allowance, name) is not None:
            yield LimitStatistics(
                tenant=owner.tenant,
                limit=name,
                user=user,
                host=host,
                used=budget.used + (0 if portion is None else portion.others()),
                allowed=budget.limit if portion is None else portion.limit,
                refused=0,
            )


def _size(usage: Usage, limit: str) -> int | None:
    """Return the greatest size that connections of an owner may have; None: no limit says it."""
    if usage.owner.host is not None:
        return None
    # A size is a limit of each connection: those of one user may have different ones.
    allowances: Iterable[Allowance] = (usage.allowance,) if usage.owner.user is None else usage.given
    found: list[int | None] = [getattr(each, limit) for each in allowances]
    return max((each for each in found if each is not None), default=None)


def rate_statistics(bucket: TokenBucket, now: float) -> RateStatistics | None:
    """Return a rate and what is used of it; None: it is of a single link, or idle. Args: now: seconds."""
    owner = bucket.key
    assert isinstance(owner, RateOwner), "each bucket is of one"
    if owner.link is not None or is_idle(bucket, now):
        return None
    return RateStatistics(
        tenant=owner.tenant,
        limit=owner.limit,
        user=owner.user,
        host=owner.host,
        address=owner.address,
        used=bucket.mean(now),
        allowed=bucket.rate,
        burst=bucket.burst,
        left=max(0.0, bucket.tokens),
        waiting=bucket.waiting,
    )
