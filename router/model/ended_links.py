"""Links that have ended and the rounds that end their deliveries, as the router keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from amqpmesh.router.kernel import Sweep
from amqpmesh.router.model.links import IncomingLink, OutgoingLink

if TYPE_CHECKING:
    from amqpmesh.router.kernel import KernelSession

Links: TypeAlias = list[IncomingLink | OutgoingLink]
Ledger: TypeAlias = "tuple[KernelSession, bool]"
"""A ledger of deliveries: its session, and whether it has those that the router sent."""


class Round:
    """One pass through a ledger, for all links of it that have ended."""

    __slots__ = ("again", "links", "open", "sweep")

    def __init__(self, sweep: Sweep, links: Links) -> None:
        self.sweep = sweep
        self.links = links
        #: Links whose deliveries may not all have ended.
        self.open = list(links)
        #: A link has joined since the pass began: the beginning of the ledger is passed through again.
        self.again = False

    def join(self, links: Links) -> None:
        """Have the round end the deliveries of more links."""
        self.links += links
        self.open += links
        self.again = True


class EndedLinks:
    """The ended links of a router that still have deliveries, the rounds under way, and links that are about to end."""

    __slots__ = ("links", "rounds", "stopped")

    def __init__(self) -> None:
        #: Links whose counts are not kept yet, because deliveries of them have not ended.
        self.links: dict[IncomingLink | OutgoingLink, None] = {}
        self.rounds: dict[Ledger, Round] = {}
        #: Links that take and give nothing more, until they are detached in steps.
        self.stopped: dict[IncomingLink | OutgoingLink, None] = {}
