"""The hand-over of a pool with one sink and few sources to the kernel, and back.

The kernel grants the sink credit by the rules of `Pool.grants`, as long as the pool is *calm*: nobody drains, no credit
was taken back, nothing waits, and the sink is not idle. The pool is the reference. It gives the kernel its numbers
after each turn, and takes them back before the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.credit.pool import MANY_GRANTED
from amqpmesh.router.credit.sinks import SERIAL, ahead
from amqpmesh.router.small_set import with_item

if TYPE_CHECKING:
    from amqpmesh.router.credit.pool import Pool
    from amqpmesh.router.credit.sinks import CreditSink
    from amqpmesh.router.kernel import SoloPool


def is_calm(pool: Pool, sink: CreditSink, usable: int) -> bool:
    """Return whether the kernel may grant the credit of a pool to its only sink.

    Args: usable: deliveries that the sources can take now.
    """
    return not (
        len(pool._waiters.sinks) != 1
        or pool._suspended
        or not pool._demand.open
        or pool._demand.credit != usable
        or pool._waiting
        or pool._revoked
        or pool._granted != sink.granted
        or pool._reclaiming
        or pool._lowered
        or pool._lower_now
        or pool._lower_at is not None
        or pool._held_until
        or pool._drain_round
        or pool._drain_asked
        or pool._drain_until is not None
        or pool._changed
        or sink.draining
        or sink.large
        or sink.times != 1
        or not sink.firm
        or sink._idle
        or ahead(sink._announced, sink.limit)
    )


def give_settings(pool: Pool, solo: SoloPool) -> None:
    """Give the settings of a pool to the kernel, once: they never change."""
    solo.max_credit = pool._settings.max_credit
    solo.starve_time = pool._settings.starve_time
    solo.many_granted = MANY_GRANTED
    solo.idle_time = pool._waiters.idle_time


def give(pool: Pool, sink: CreditSink, solo: SoloPool) -> None:
    """Give the numbers of a calm pool to the kernel."""
    solo.low = bool(pool._waiters.low)
    solo.low_at = sink._low_at
    solo.plenty = sink._plenty
    solo.used_at = sink._used_at
    solo.placed_at = sink._placed_at
    solo.overcommit_at = 0.0 if pool._overcommit_at is None else pool._overcommit_at
    solo.raised = 0
    solo.calm = True


def take(pool: Pool, sink: CreditSink, solo: SoloPool, count: int, last_at: float) -> None:
    """Take the numbers of a calm pool back from the kernel.

    Args: count: deliveries that came and left since the kernel has them. last_at: the time of the last of them.
    """
    raised, solo.raised = solo.raised, 0
    solo.calm = False
    sink.delivery_count = (sink.delivery_count + count) & SERIAL
    sink.available = max(0, sink.available - count)
    sink.granted += raised - count
    pool._granted += raised - count
    sink._used_at = max(solo.used_at, last_at) if count else solo.used_at
    sink._low_at = solo.low_at
    sink._plenty = solo.plenty
    sink._placed_at = solo.placed_at
    if raised:
        sink._announced = sink.limit
        pool._overcommit_at = None
        pool._lowered_fully = False
    waiters = pool._waiters
    is_low = sink.granted > 0 and (solo.low or sink.granted <= sink._low_at)
    waiters.empty = () if sink.granted else with_item((), sink)
    waiters.active = with_item((), sink) if sink.granted else ()
    waiters.low = with_item((), sink) if is_low else ()
    if sink.granted and not is_low:
        pool._short_since = None
