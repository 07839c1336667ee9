"""What links that are over have left unsettled: each of those deliveries ends with what is true of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from amqpmesh.router.delivery.lifetime import has_unsettled, keep_count
from amqpmesh.router.delivery.settlement import hop_lost, sender_gone
from amqpmesh.router.kernel import Delivery, Sweep, forget, sweep
from amqpmesh.router.model.links import IncomingLink, OutgoingLink

if TYPE_CHECKING:
    from amqpmesh.router.core import Core
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.kernel import KernelSession

Links: TypeAlias = list[IncomingLink | OutgoingLink]


class _Round:
    """A ledger that is gone through, and the links whose deliveries are ended on the way."""

    def __init__(self, sweep: Sweep, links: Links) -> None:
        self.sweep = sweep
        self.links = links
        #: Those whose deliveries may not all be ended yet.
        self.open = list(links)
        #: One more link has joined since it began: the beginning is to be gone through again.
        self.again = False

    def join(self, links: Links) -> None:
        """These are over, too."""
        self.links += links
        self.open += links
        self.again = True

    @property
    def is_done(self) -> bool:
        """Whether nothing is left of any of its links."""
        while self.open and not _has_left(self.open[-1]):
            self.open.pop()
        return not self.open


class Leftovers:
    """Ends them, in steps. However many links of a session are over, its ledgers are gone through for all of them."""

    def __init__(self, core: Core) -> None:
        self._core = core
        #: Links that are over, and what they count is not kept yet, since something is left of them.
        self.links: dict[IncomingLink | OutgoingLink, None] = {}
        #: By session, and whether it is what we sent.
        self._rounds: dict[tuple[KernelSession, bool], _Round] = {}

    def add(self, taken: IncomingLink | OutgoingLink) -> None:
        """A link was let go of: keep what it has counted, now or once what is left of it has ended."""
        if _has_left(taken):
            self.links[taken] = None
        else:
            keep_count(self._core, taken)

    def end(self, links: Links) -> Steps[None]:
        """End what is left of links that are over."""
        ledgers: dict[tuple[KernelSession, bool], Links] = {}
        for taken in links:
            flow_state = taken.link.flow_state
            if isinstance(taken, OutgoingLink):
                yield from self.end_unsent(taken)
            if _has_left(taken):
                ledgers.setdefault((flow_state.session, flow_state.sender), []).append(taken)
            else:
                self._done(taken)
        for ledger, those in ledgers.items():
            if ledger in self._rounds:
                self._rounds[ledger].join(those)
            else:
                yield from self._go_through(ledger, those)

    def end_unsent(self, taken: OutgoingLink) -> Steps[None]:
        """End the copies that wait for the credit of a link that is gone."""
        while taken.backlog:
            hop_lost(self._core, taken.backlog.popleft())
            yield

    def _go_through(self, ledger: tuple[KernelSession, bool], links: Links) -> Steps[None]:
        session, sent = ledger
        going = self._rounds[ledger] = _Round(Sweep(session, sent), links)
        try:
            while not going.is_done:
                more = sweep(going.sweep)
                for delivery in going.sweep.deliveries:
                    self._end(delivery)
                yield
                if more:
                    continue
                if not going.again:
                    break
                going.again = False
                going.sweep.restart()
        finally:
            del self._rounds[ledger]
        for taken in going.links:
            # Those of a link before that its sender has not gone on with are in no ledger (§2.6.13).
            for delivery in [each for each in taken.link.flow_state.unsettled.values() if isinstance(each, Delivery)]:
                self._end(delivery)
                yield
            self._done(taken)

    def _done(self, taken: IncomingLink | OutgoingLink) -> None:
        if self.links.pop(taken, 0) is None:
            keep_count(self._core, taken)
        taken.link.flow_state.compact()  # what it is part of may wait to be found as garbage for long

    def _end(self, delivery: Delivery) -> None:
        if delivery.leg is not None:
            hop_lost(self._core, delivery.leg)
        elif delivery.relay is not None:
            sender_gone(self._core, delivery.relay, delivery)
        forget(delivery)


def _has_left(taken: IncomingLink | OutgoingLink) -> bool:
    """Whether something on it is not ended."""
    return has_unsettled(taken) or (isinstance(taken, OutgoingLink) and bool(taken.backlog))
