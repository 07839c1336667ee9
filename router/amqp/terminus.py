"""What outlives a link endpoint: the terminus, and the deliveries that it has not settled (§2.6, §2.6.13)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from amqpmesh.router.amqp.standard.definitions import Role

if TYPE_CHECKING:
    from amqpmesh.router.kernel import Delivery, FastDelivery


@dataclass(slots=True, eq=False)
class Terminus:
    """Our end of a link: it owns the unsettled map, whether or not a link endpoint is attached to it.

    `name` and `role` (ours) identify it together with the peer's container. Deliveries, and the relays that hang on
    them, belong to it; handles and delivery-ids belong to the link endpoint and to the session.
    """

    name: str
    role: Role
    #: Unsettled deliveries by delivery-tag.
    unsettled: dict[bytes, Delivery | FastDelivery] = field(default_factory=dict)
