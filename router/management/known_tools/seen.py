"""The entities of a router that one request of a tool looks at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amqpmesh.policies.managing import CONFIDENTIAL
from amqpmesh.router.address_syntax import without_secret
from amqpmesh.router.management.entities import PREFIX, TYPES
from amqpmesh.router.statistics.mesh_statistics import LaneStatistics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqpmesh.router.amqp.codec.types import Value
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.management.views import View


class Seen:
    """The entities that the sender of a request may see, and figures that several of them share."""

    def __init__(self, view: View, *, has_phases: bool = False) -> None:
        """Args: has_phases: addresses have the phase of Dispatch behind their class."""
        self._view = view
        self._has_phases = has_phases
        self._last_deliveries: dict[int, float] = {}

    def of(self, kind: str) -> Sequence[Any]:
        """Return the entities of a type of ours, without its prefix; none, if the sender may not read them."""
        return self._view.entities(TYPES[f"{PREFIX}{kind}"]) if self._view.may_read(kind) else ()

    @property
    def router(self) -> Any:
        """The router as a whole."""
        (router,) = self._view.entities(TYPES[f"{PREFIX}router"])
        return router

    @property
    def is_operator(self) -> bool:
        """True if the sender sees the configuration of the router, and not a tenant's part alone."""
        return bool(self.of("log"))

    @property
    def may_read_confidential(self) -> bool:
        """True if the sender may read what is for nobody else, such as users."""
        return all(map(self._view.may_read, CONFIDENTIAL))

    def total(self, kind: str, attribute: str) -> int:
        """Return a sum over all entities of a type."""
        return sum([getattr(each, attribute) for each in self.of(kind)])

    def seconds_since(self, time: float | None) -> int | None:
        """Return the whole seconds since a time of the router's clock; None: there is no such time."""
        return None if time is None else max(0, int(self.router.now - time))

    def look_at_deliveries(self) -> Steps[None]:
        """Find the last delivery of each connection, in steps: there may be many links."""
        found = self._last_deliveries
        for each in (*self.of("link"), *self.of("lane")):
            at = each.last_delivery_at
            if at is not None and at > found.get(each.connection, -1.0):
                found[each.connection] = at
            yield

    def last_delivery(self, connection: int) -> float | None:
        """Return the time of the last delivery on a connection, after `look_at_deliveries`; None: there was none."""
        return self._last_deliveries.get(connection)

    def class_and_text(self, entity: Any) -> str | None:
        """Return an address as these routers keep it: its class, a letter, then its text. None: it has none."""
        address: str | None = entity.address
        if isinstance(entity, LaneStatistics) and address is None:
            return f"R{entity.far}"
        return None if address is None else self.classed(address)

    def classed(self, address: str) -> str:
        """Return an address, without its secret, behind its class: `L` for a node of the router's own, `M` for any
        other. With Dispatch the phase follows `M`: qdstat takes the first character of the text for it.
        """
        mobile = "M0" if self._has_phases else "M"
        return f"{'L' if address.startswith('$') else mobile}{without_secret(address)}"


def said(value: object) -> Value:
    """Return a value as text; null: there is none."""
    return None if value is None else str(value)
