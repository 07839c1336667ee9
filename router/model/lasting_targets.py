"""Targets that outlive their links (§2.6.13)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.kernel import MANY, KernelLink
from amqpmesh.router.model.lasting_termini import SuspendedTerminus

if TYPE_CHECKING:
    from amqpmesh.router.kernel import Delivery, FastDelivery, FastMulticast, KernelSession
    from amqpmesh.router.model.lasting_termini import Grant
    from amqpmesh.router.model.links import IncomingLink, LinkKey


class SuspendedTarget(SuspendedTerminus):
    """A target whose sender is away, and the deliveries that have come whole, and that the sender has not settled.

    The sender does not hear of them: they have no delivery-id until it resumes them. Outcomes are kept meanwhile.
    """

    __slots__ = ("holder",)

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

    @property
    def deliveries(self) -> dict[bytes, Delivery | FastDelivery | FastMulticast]:
        """The deliveries, by delivery-tag."""
        return self.holder.unsettled

    @property
    def unsettled(self) -> int:
        """The number of its unsettled deliveries."""
        return len(self.holder.unsettled)
