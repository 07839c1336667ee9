"""Pools of credit with inputs and branches."""

from __future__ import annotations

from typing import NamedTuple

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.credit.pool import Branch, Input, Pool

BALANCED = Distribution.BALANCED
#: The distributions by which each message is one delivery, or one for each receiver.
SINGLE = [Distribution.BALANCED, Distribution.CLOSEST, Distribution.MULTICAST]


class Flow(NamedTuple):
    """The flow that an input is sent."""

    credit: int
    drain: bool = False
    echo: bool = False


def flows(pool: Pool, now: float = 0.0) -> dict[Input, Flow]:
    """Return the flows that are due, by input."""
    return {grant.input: Flow(*grant[1:]) for grant in pool.grants(now)}


def served(credit: int, inputs: int = 1) -> tuple[Pool, Branch, list[Input]]:
    """Return a pool that has given a consumer's credit to its inputs."""
    pool = Pool(BALANCED)
    those = [pool.add_input(0) for _ in range(inputs)]
    branch = pool.add_branch()
    pool.set_usable(branch, credit, 0.0)
    pool.grants(0.0)
    return pool, branch, those


def relay(pool: Pool, i: Input, branch: Branch, now: float = 0.0) -> None:
    """Pass one delivery from the input to the branch."""
    pool.received(i, now)
    pool.forwarded(i, now)
    pool.set_usable(branch, branch.usable - 1, now)


def pass_time(pool: Pool, until: float) -> dict[Input, list[Flow]]:
    """Handle all timers up to `until`. Returns: the flows that followed, by input."""
    sent: dict[Input, list[Flow]] = {}
    while (due := pool.next_timer()) is not None and due <= until:
        pool.handle_timer(due)
        for i, flow in flows(pool, due).items():
            sent.setdefault(i, []).append(flow)
    return sent
