"""Pools of credit with sinks and sources."""

from __future__ import annotations

from typing import NamedTuple

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.kernel import CreditSink, CreditSource, Pool

BALANCED = Distribution.BALANCED
#: The distributions by which each message is one delivery, or one for each receiver.
SINGLE = [Distribution.BALANCED, Distribution.CLOSEST, Distribution.MULTICAST]


class Flow(NamedTuple):
    """The flow that an sink is sent."""

    credit: int
    drain: bool = False
    echo: bool = False


def flows(pool: Pool, now: float = 0.0) -> dict[CreditSink, Flow]:
    """Return the flows that are due, by sink."""
    return {grant.sink: Flow(*grant[1:]) for grant in pool.grants(now)}


def served(credit: int, sinks: int = 1) -> tuple[Pool, CreditSource, list[CreditSink]]:
    """Return a pool that has given a consumer's credit to its sinks."""
    pool = Pool(BALANCED)
    those = [pool.add_sink(0) for _ in range(sinks)]
    source = pool.add_source()
    pool.set_usable(source, credit, 0.0)
    pool.grants(0.0)
    return pool, source, those


def relay(pool: Pool, i: CreditSink, source: CreditSource, now: float = 0.0) -> None:
    """Pass one delivery from the sink to the source."""
    pool.received(i, now)
    pool.forwarded(i, now)
    pool.set_usable(source, source.usable - 1, now)


def pass_time(pool: Pool, until: float) -> dict[CreditSink, list[Flow]]:
    """Handle all timers up to `until`. Returns: the flows that followed, by sink."""
    sent: dict[CreditSink, list[Flow]] = {}
    while (due := pool.next_timer()) is not None and due <= until:
        pool.handle_timer(due)
        for i, flow in flows(pool, due).items():
            sent.setdefault(i, []).append(flow)
    return sent
