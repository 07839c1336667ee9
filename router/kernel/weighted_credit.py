"""The division of a pool's credit between tenants whose senders contend for it (`credit_parts.py`).

All that a pool may grant is divided by weight: the demand, and the one delivery beyond it for each sink. So a tenant
with one link gets as much as one of its weight with a hundred. Within a tenant, sinks have equal shares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.kernel.credit_sinks import _MANY_GRANTED, _credit_of
from amqpmesh.router.kernel.small_sets import first

if TYPE_CHECKING:
    from amqpmesh.router.kernel.credit_parts import CreditPart
    from amqpmesh.router.kernel.credit_pool import Pool
    from amqpmesh.router.kernel.credit_sinks import CreditSink

_MANY_SINKS: Final = 32
"""Busy sinks of a pool that are looked at one by one."""


def _is_divided(pool: Pool) -> bool:
    """Return whether sinks of several tenants contend for the credit of a pool, and all sinks are counted as such."""
    waiters = pool._waiters
    parts = waiters.parts
    return parts is not None and parts.together > 1 and parts.joined == len(waiters.sinks)


def _grant_by_weight(pool: Pool, now: float) -> None:
    """Grant the free credit to the tenants in turn, by their weights. In each, sinks without any come first."""
    waiters = pool._waiters
    parts = waiters.parts
    assert parts is not None
    waiters.age(now)
    passed: list[CreditSink] = []
    is_first = True
    while pool._free() + pool._revoked > 0:
        part = parts.next()
        if part is None:
            break
        if is_first:
            is_first = False
            _fill_up(pool, part, now)
        sink = first(part.empty or part.low)
        raised = _serve(pool, sink, now)
        if raised > 0:
            part.spent += raised / part.weight
        elif not raised and not _credit_of(sink) and not _is_limited(sink):
            passed.append(sink)
        if part.empty or part.low:
            parts.wait(part)
        if raised < 0:
            break
    for sink in reversed(passed):
        waiters._put_back(sink)


def _fill_up(pool: Pool, waiting: CreditPart, now: float) -> None:
    """Grant the rest of their shares to busy sinks of tenants that were granted less than the one that waits.

    Another receiver, at another router perhaps, has given credit since they got theirs. Without this they would get
    more once they have half a share or less, and meanwhile the tenant that waits would take all of it, in small pieces.
    """
    waiters = pool._waiters
    parts = waiters.parts
    assert parts is not None
    if len(waiters.active) > _MANY_SINKS:
        return
    whole = pool._demand_now() + pool._overcommit_now()
    for sink in tuple(waiters.active):
        part = sink.part
        if part is None or part.spent >= waiting.spent or sink.draining or _is_limited(sink) or sink in waiters.low:
            continue
        share = min(pool._settings.max_credit * sink.times, parts.share(part, whole))
        if sink.meter is not None:
            share = min(share, sink.meter.limit())
        lacking = share - _credit_of(sink)
        if lacking > share >> 2:
            part.spent += pool._raise_limit(sink, lacking, now) / part.weight
            sink._low_at = 0 if _is_limited(sink) else share >> 1


def _serve(pool: Pool, sink: CreditSink, now: float) -> int:
    """Grant a sink up to its share: the rest of it if it has half or less, one delivery if there is not enough.

    Returns: by how much; -1: the sink waits for more, and what is free is kept for it.
    """
    waiters = pool._waiters
    before = _credit_of(sink)
    share = pool._share(sink.times, sink.large, sink)
    if sink.meter is not None:
        share = min(share, sink.meter.limit())
    half = share >> 1
    raised = 0
    if not before or before <= half:
        most = max(1, share - before)
        if sink._idle:
            most = 1
        elif sink not in pool._changed and pool._free() + pool._revoked < share - half:
            if before or pool._expects_more(sink, now):
                return -1
            most = 1
        raised = pool._raise_limit(sink, most, now)
        if raised >= _MANY_GRANTED:
            sink._plenty = True
        if not before:
            waiters._drop_empty(sink)
            if not raised:
                return 0
            waiters.served([sink], 1, now)
    if _is_limited(sink):
        half = 0  # until its turn comes, more credit is no use to look for
    if sink._idle or _credit_of(sink) > half:
        waiters._drop_low(sink)
        sink._low_at = half
    elif raised:
        waiters._add_low(sink)
    else:
        return -1
    return raised


def _is_limited(sink: CreditSink) -> bool:
    """Return whether a sink waits for one of its rates."""
    return sink.meter is not None and sink.meter.waits


def _needs_of_all(pool: Pool) -> int:
    """Return the sum of the shares of all sinks that wait, deliveries."""
    parts = pool._waiters.parts
    assert parts is not None
    most = pool._settings.max_credit
    whole = pool._demand_now() + pool._overcommit_now()
    need = 0
    for part in parts.parts.values():
        need += (len(part.empty) + len(part.low)) * max(1, min(most, parts.share(part, whole)))
    return need
