"""Credit: a sender may send what the program has not decided, or as many as the program says (§2.6.7)."""

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
    """The receiving end of a link, as far as its sender waits for it."""

    def __init__(self, home: LinkManager, name: str, address: str | None, credit: int) -> None:
        super().__init__(home, name, address)
        self._credit = whole("credit", credit, MAX_CREDIT)
        self._is_manual = credit == 0
        self._undecided = 0
        #: By hand: what was given and is not used up.
        self._granted = 0
        self._draining = False

    @property
    def undecided(self) -> int:
        """Deliveries that have begun to come and are not decided."""
        return self._undecided

    def flow(self, credit: int) -> None:
        """As `Receiver.flow`."""
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
        """As `Receiver.drain`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_manual()
        link = self._link
        if not isinstance(link, Receiver) or not self.is_attached or link.credit == 0:
            self._granted = 0
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        # Nothing is awaited since the `flow` before: one frame says both.
        self._draining = True
        link.flow(link.credit, drain=True)
        while self._draining:
            await self._change.wait()
            self.check()

    # ----------------------------------------------------------------------------------------------------------- inside

    def _give_credit(self) -> None:
        """Both have attached."""
        if not self._is_manual:
            self._replenish()
        elif self._granted and isinstance(self._link, Receiver):
            self._link.flow(self._granted)

    def _stop_credit(self) -> None:
        """The link is to be left."""
        self._credit = self._granted = 0
        self._is_manual = False

    def _stop_drain(self) -> None:
        """The link endpoint is gone, and what was to be used up with it."""
        if self._draining:
            self._draining = False
            self._granted = 0

    def _use_credit(self) -> None:
        """A delivery has begun to come."""
        self._undecided += 1
        self._granted = max(0, self._granted - 1)

    def _free_credit(self, delivery: Incoming) -> None:
        """It does not count against the credit any more."""
        if delivery.uses_credit:
            delivery.uses_credit = False
            self._undecided -= 1

    def _refund_credit(self) -> None:
        """What no program ever sees uses none of the credit that it gave by hand."""
        if not self._is_manual or self._draining or self._granted == MAX_CREDIT:
            return
        self._granted += 1
        link = self._link
        if isinstance(link, Receiver) and self.is_attached:
            link.flow(link.credit + 1)

    def _replenish(self) -> None:
        """Tell the peer of more credit: when half of it has gathered, or when it has none."""
        link = self._link
        if not self._credit or not isinstance(link, Receiver) or not self.is_attached:
            return
        due = self._credit - self._undecided - link.credit
        if due > 0 and (link.credit == 0 or due * 2 >= self._credit):
            link.flow(link.credit + due)

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
