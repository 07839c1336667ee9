"""Targets that outlive their links (§2.6.13)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.kernel import MANY, KernelLink
from amqpmesh.router.model.lasting_termini import SuspendedTerminus

if TYPE_CHECKING:
    from amqpmesh.router.kernel import Delivery, FastDelivery, FastMulticast, KernelSession
    from amqpmesh.router.model.lasting_termini import Grant
    from amqpmesh.router.model.links import IncomingLink, LinkKey
    from amqpmesh.router.small_set import SmallSet


class SuspendedTarget(SuspendedTerminus):
    """A target whose sender is away, and the deliveries that have come whole, and that the sender has not settled.

    If the link was detached, and its session is there, they are still the link's: the sender learns their outcomes, and
    may settle them. Later they are moved to `holder`: they have no delivery-id until the sender resumes them, and
    outcomes are kept meanwhile.
    """

    __slots__ = ("holder", "is_moved", "parts")

    link: IncomingLink

    def __init__(self, key: LinkKey, link: IncomingLink, grant: Grant, now: float, nowhere: KernelSession) -> None:
        """Args: nowhere: a session that no frame names."""
        super().__init__(key, link, grant, now)
        #: Has the deliveries, which are in no ledger.
        self.holder = KernelLink(nowhere, False, link, {})
        self.holder.number = link.number
        self.holder.lane = link.endpoint.flow_state.lane
        self.holder.anonymous = link.endpoint.flow_state.anonymous
        self.holder.max_outstanding = MANY
        self.holder.remote_handle = 0  # no link is looked at for its last delivery
        #: All of them were moved to `holder`.
        self.is_moved = False
        #: Of a lane: the links that have taken over parts of its deliveries, by name: no more than it had deliveries.
        self.parts: SmallSet[str] = ()

    @property
    def deliveries(self) -> dict[bytes, Delivery | FastDelivery | FastMulticast]:
        """The deliveries that were moved, by delivery-tag."""
        return self.holder.unsettled

    @property
    def unsettled(self) -> int:
        """The number of its unsettled deliveries."""
        return len(self.holder.unsettled) + (0 if self.is_moved else self.link.unsettled)
