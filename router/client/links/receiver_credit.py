"""Credit of a receiver: renewed as deliveries are decided, or given by the program (§2.6.7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.amqp.link import MAX_CREDIT, Receiver
from amqpmesh.router.client.links.arguments import whole
from amqpmesh.router.client.links.redirected import RedirectedLink

if TYPE_CHECKING:
    from amqpmesh.router.client.links.incoming import Incoming
    from amqpmesh.router.client.links.link_manager import LinkManager


class CreditingLink(RedirectedLink):
    """A receiving link that gives its sender credit."""

    def __init__(self, manager: LinkManager, name: str, address: str | None, credit: int) -> None:
        super().__init__(manager, name, address)
        self._credit = whole("credit", credit, MAX_CREDIT)
        self._is_manual = credit == 0
        self._undecided = 0
        #: If the program gives credit: as much of it as is not used up.
        self._granted = 0
        self._draining = False

    @property
    def undecided(self) -> int:
        """The number of deliveries that have arrived, in part or whole, and are not decided."""
        return self._undecided

    def flow(self, credit: int) -> None:
        """Give more credit, as `Receiver.flow` does."""
        self._check_manual()
        if whole("credit", credit) > MAX_CREDIT - self._granted:
            raise CommandError(f"credit is 0 to {MAX_CREDIT} in all, not {credit} beside {self._granted}")
        self._granted += credit
        if self._draining:
            self._draining = False
            self._changed()
        link = self._link
        if isinstance(link, Receiver) and self.is_attached:
            link.flow(link.credit + credit)

    async def drain(self) -> None:
        """Make the peer use up its credit, as `Receiver.drain` does."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_manual()
        link = self._link
        if not isinstance(link, Receiver) or not self.is_attached or link.credit == 0:
            self._granted = 0
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        # No await since the last `flow`: one frame carries both.
        self._draining = True
        link.flow(link.credit, drain=True)
        while self._draining:
            await self._change.wait()
            self.check()

    # ------------------------------------------------------------------------------------------------ for the subclass

    @property
    def _expected(self) -> int:
        """The number of deliveries that the peer is to resume: each takes credit, and counts as undecided already."""
        return 0

    @property
    def _room(self) -> int:
        """The number of deliveries for which there is room beside those that are unsettled."""
        return MAX_CREDIT

    def _give_credit(self) -> None:
        """Give the first credit: both ends have attached."""
        if not self._is_manual:
            self._replenish()
        elif (self._granted or self._expected) and isinstance(self._link, Receiver):
            self._link.flow(self._granted + self._expected)

    def _stop_credit(self) -> None:
        """Give no more credit: the program leaves the link."""
        self._credit = self._granted = 0
        self._is_manual = False

    def _stop_drain(self) -> None:
        """End a drain whose link endpoint is gone."""
        if self._draining:
            self._draining = False
            self._granted = 0

    def _use_credit(self) -> None:
        """Count a delivery whose first frame has arrived."""
        self._undecided += 1
        self._granted = max(0, self._granted - 1)

    def _free_credit(self, delivery: Incoming) -> None:
        """Stop counting a delivery against the credit."""
        if delivery.uses_credit:
            delivery.uses_credit = False
            self._undecided -= 1

    def _refund_credit(self) -> None:
        """Renew the program's credit for a delivery that the program never sees."""
        if not self._is_manual or self._draining or self._granted == MAX_CREDIT:
            return
        self._granted += 1
        link = self._link
        if isinstance(link, Receiver) and self.is_attached:
            link.flow(link.credit + 1)

    def _replenish(self) -> None:
        """Send more credit to the peer, if half of it is free or the peer has none."""
        link = self._link
        if not self._credit or not isinstance(link, Receiver) or not self.is_attached:
            return
        expected, credit = self._expected, link.credit
        due = self._credit - self._undecided - credit + expected
        if due <= 0 or (credit and due * 2 < self._credit):
            return  # before anything else is asked: most decisions end here
        due = min(due, self._room - credit + expected)
        if due > 0 and (credit == 0 or due * 2 >= self._credit):
            link.flow(credit + due)

    def _check_drained(self) -> None:
        link = self._link
        if self._draining and link is not None and link.credit == 0:
            self._draining = False
            self._granted = 0
            self._changed()

    def _check_manual(self) -> None:
        self.check()
        if not self._is_manual:
            raise CommandError("the receiver gives its credit itself: make it with credit=0")
