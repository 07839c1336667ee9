"""Addresses that routers of the mesh distribute in different ways, as their patterns say.

Nothing is lost by that: the router where a message comes in decides whether it is for all or for one, and the router
where it leaves how its receivers share what came for one. But it is seldom meant.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.address_syntax import local_key, split
from amqpmesh.router.model.lane import LaneKind
from amqpmesh.router.statistics.mesh_statistics import DisagreementStatistics

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from amqpmesh.router.core import Core
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.model.lane import Lane
    from amqpmesh.router.model.node import Address
    from amqpmesh.topology.linkstate import Topology

#: DistributionMismatches that are remembered, so that each is logged once.
REMEMBERED: Final = 1000


class DistributionMismatch(NamedTuple):
    """Two routers distribute one address in different routes."""

    tenant: str
    name: str
    router: str
    """The other router."""
    theirs: str
    ours: Distribution


class DistributionMismatches:
    """Compares what the patterns of this router say with what others advertise, and with the trees that come here."""

    def __init__(self, core: Core, topology: Topology) -> None:
        self._core = core
        self._topology = topology
        self._logged: OrderedDict[DistributionMismatch, None] = OrderedDict()

    def of(self, tenant: str, name: str) -> Iterator[DistributionMismatch]:
        """Those with routers that have receivers of an address."""
        local, only = split(name)
        told = self._topology.lookup(tenant, name if only is None else local_key(only, local))
        ours = self._ours(name) if told else None
        if ours is None:
            return
        for router, advert in told.items():
            concerned = router != self._core.id and advert.consumers and only in (None, router)
            if concerned and advert.distribution != ours:
                yield DistributionMismatch(tenant, name, router, advert.distribution, ours)

    def of_lane(self, lane: Lane) -> Iterator[DistributionMismatch]:
        """The one with the router where a tree begins: it has found that the address is a multicast."""
        ours = self._ours(lane.name) if lane.kind is LaneKind.TREE else None
        if ours not in (None, Distribution.MULTICAST):
            yield DistributionMismatch(lane.tenant, lane.name, lane.far, Distribution.MULTICAST, ours)

    def look(self, tenant: str, name: str) -> None:
        """An address is used here, or others tell of it: log what is new."""
        self._log(self.of(tenant, name))

    def look_at_lane(self, lane: Lane) -> None:
        """A neighbour attaches a lane: log what is new."""
        self._log(self.of_lane(lane))

    def snapshot(self, nodes: Iterable[Address]) -> Steps[tuple[DisagreementStatistics, ...]]:
        """All that there are now, of addresses that are used here. Args: nodes: what leaves by lanes."""
        found: dict[DistributionMismatch, None] = {}
        for address in self._core.addresses.values():
            found.update(dict.fromkeys(self.of(address.tenant, address.name)))
            yield
        for node in nodes:
            if node.lane is not None and node.incoming:
                found.update(dict.fromkeys(self.of_lane(node.lane)))
            yield
        return tuple(
            DisagreementStatistics(
                address=each.name,
                tenant=each.tenant,
                here=self._core.id,
                ours=each.ours,
                router=each.router,
                theirs=each.theirs,
            )
            for each in found
        )

    def _ours(self, name: str) -> Distribution | None:
        """How an address distributes here; None: clients of this router cannot use it here, so nothing is said."""
        config = self._core.addresses.config(name)
        is_away = config.redirect is not None and not config.redirect.is_followed
        if is_away or config.alias is not None or config.distribution is Distribution.UNAVAILABLE:
            return None
        return config.distribution

    def _log(self, found: Iterator[DistributionMismatch]) -> None:
        for each in found:
            if each in self._logged:
                continue
            self._logged[each] = None
            if len(self._logged) > REMEMBERED:
                self._logged.popitem(last=False)
            self._core.log.warning(
                "distributions differ",
                address=each.name,
                here=self._core.id,
                ours=each.ours,
                router=each.router,
                theirs=each.theirs,
            )
