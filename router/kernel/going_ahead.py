"""Deliveries that come ahead of the receivers' credit, beyond the first one of each sender.

Receivers with little credit say each few deliveries that they can take more. If their senders were told each time, each
step of a receiver would be a step of a sender, too, and of each router between them. So senders may go ahead by as many
deliveries as leave within a few milliseconds. These wait at their node, for whichever receiver takes them first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.kernel.weighted_credit import _is_divided

if TYPE_CHECKING:
    from amqpmesh.router.kernel.credit_pool import Pool
    from amqpmesh.router.kernel.credit_sinks import CreditSink
    from amqpmesh.router.kernel.router_state import KernelRouter

#: The most deliveries by which each sender of a node goes ahead, on average; a single one: as two.
AHEAD_EACH: Final = 8
_AHEAD_EACH: Final = AHEAD_EACH

#: The most of a router: half the usual window of a session, from which all may come. Most of what it can hold back is
#: for the first delivery of each sender.
AHEAD_AT_ONCE: Final = 64

#: Seconds in which the deliveries are counted that leave. Senders go ahead by half as many.
AHEAD_PERIOD: Final = 0.01
_PERIOD: Final = AHEAD_PERIOD

#: Seconds in which a multicast has sent something, if its senders go ahead: by all of that, since each delivery is for
#: all receivers, and none of them could have it sooner.
AHEAD_OF_ALL: Final = 0.1
_OF_ALL: Final = AHEAD_OF_ALL

#: Receivers that can take more deliveries than this need nobody to go ahead.
FEW_TAKEN: Final = 20
_FEW_TAKEN: Final = FEW_TAKEN

#: Seconds without going ahead after they could take more, and after a large message: the kernel holds none back.
AHEAD_PAUSE: Final = 0.1
_PAUSE: Final = AHEAD_PAUSE


def _look_ahead(pool: Pool, now: float) -> None:
    """Set by how many deliveries the senders of a pool go ahead. What they hold of it they keep until it is used."""
    demand = pool._demand_now()
    if demand > _FEW_TAKEN:
        pool._ahead_from = now + _PAUSE
    elapsed = now - pool._counted_at
    to_all = pool._demand._least is not None
    if elapsed >= _PERIOD:
        pool.pace = pool._left if elapsed < (_OF_ALL if to_all else 2 * _PERIOD) else 0
        pool._left = 0
        pool._counted_at = now
    count = len(pool._waiters.sinks)
    may = 0
    if pool.goes_ahead and now >= pool._ahead_from and not _is_divided(pool):
        pace = pool.pace if to_all else pool.pace >> 1
        may = max(0, min(pace, pool._settings.ahead, pool.ahead_most, _AHEAD_EACH * (count + 1)) + 1 - count)
    if may < pool.ahead:
        may = max(may, min(pool.ahead, pool._waiting + pool._granted - demand - count))
    pool.ahead = may


def pause_ahead(pool: Pool | None, now: float) -> None:
    """Let no sender of a pool go ahead for a while, after a large message. Args: pool: None: there is nothing to do."""
    if pool is not None:
        pool._ahead_from = now + _PAUSE


def _divide_ahead(router: KernelRouter, pool: Pool) -> None:
    """Divide what a router can hold back among the pools whose senders go ahead: among as many as lately."""
    elapsed = router.now - router.ahead_since
    if elapsed >= _PERIOD:
        router.pools_before = router.pools_ahead if elapsed < 2 * _PERIOD else 0
        router.pools_ahead = 0
        router.ahead_since = router.now
    if pool.pace and pool._ahead_at < router.ahead_since:
        pool._ahead_at = router.now
        router.pools_ahead += 1
    pool.ahead_most = router.ahead_at_once // max(1, router.pools_before, router.pools_ahead)


def _goes_ahead(pool: Pool, sink: CreditSink) -> bool:
    """Return whether a sink goes ahead of the demand.

    A share of another node does not: its deliveries could no longer leave by another share. Nor does a link while many
    frames of its session wait: the window is for other links, too.
    """
    link = sink.link
    return pool.ahead > 0 and link is not None and 4 * link.session.held <= link.session.window_size


def _is_ahead(pool: Pool, sink: CreditSink, share: int) -> bool:
    """Return whether half a share of a sink waits already, so that it needs no credit for a single delivery."""
    return pool.ahead > 0 and sink.source is None and 2 * sink.waiting >= share


def _shared(pool: Pool, sink: CreditSink | None) -> int:
    """Return the deliveries that sinks like this one share. Args: sink: None: any that goes ahead."""
    return pool._demand_now() + (pool.ahead if sink is None or _goes_ahead(pool, sink) else 0)
