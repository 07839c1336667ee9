"""A snapshot of the limits and rates of tenants, users, hosts and addresses, and of what they use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.credit.rate_line import RateOwner, is_idle
from amqpmesh.router.model.usage import Kind
from amqpmesh.router.statistics.router_statistics import LimitStatistics, RateStatistics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqpmesh.router.kernel import TokenBucket
    from amqpmesh.router.model.usage import Usage


def usage_statistics(usage: Usage, unsettled: int | None) -> Iterator[LimitStatistics]:
    """Yield the limits of one owner. Args: unsettled: the deliveries that its receivers may have unsettled."""
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
