"""The credit of a link that gets no more of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.credit.fixed_credit import FixedCredit

if TYPE_CHECKING:
    from amqpmesh.router.kernel import CreditSink, Grant, Pool


class Withdrawn(FixedCredit):
    """Credit that has ended: no sink is granted anything.

    The sink has left its pool, which divides its credit among others. The deliveries of the sink that still come, with
    credit that the peer had before, and those that wait, count in the pool as before: they take a consumer's credit.
    """

    def __init__(self, pool: Pool | FixedCredit) -> None:
        """Args: pool: the one that the sink has left."""
        super().__init__()
        self.withdraw()
        self._pool = pool

    def received(self, sink: CreditSink, now: float) -> None:
        """Record that the first frame of a delivery came, as `Pool.received` does."""
        self._pool.received(sink, now)

    def forwarded(self, sink: CreditSink, now: float) -> None:
        """Record that the first frame of a delivery has left, or never will, as `Pool.forwarded` does."""
        self._pool.forwarded(sink, now)

    def relayed(self, sink: CreditSink, count: int, now: float) -> None:
        """Record deliveries that came and left at once, as `Pool.relayed` does."""
        self._pool.relayed(sink, count, now)

    def credit_slack(self, sink: CreditSink) -> int:  # noqa: ARG002 - as a pool's
        """Return 0: the router looks at each delivery."""
        return 0

    def reclaim_unused(self, sink: CreditSink, now: float) -> bool:  # noqa: ARG002 - as a pool's
        """Return False: all credit is taken back already."""
        return False

    def grants(self, now: float) -> list[Grant]:  # noqa: ARG002 - as a pool's
        """Return no flow."""
        return []
