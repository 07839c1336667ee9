"""Addresses whose distribution differs between routers of the mesh, by their configured patterns.

No message is lost. The router where a message enters decides whether the message goes to one consumer or to all. If to
one, the router where the message leaves chooses it among its receivers. But the mismatch is seldom intended.
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

    from amqpmesh.router.context import Context
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.model.lane import Lane
    from amqpmesh.router.model.node import Node
    from amqpmesh.topology.linkstate import Topology

#: Mismatches that are remembered, so that each is logged once.
REMEMBERED: Final = 1000


class DistributionMismatch(NamedTuple):
    """A difference between two routers in the distribution of an address."""

    tenant: str
    name: str
    router: str
    """The other router."""
    theirs: str
    ours: str


class DistributionMismatches:
    """Comparisons of this router's patterns with the adverts of other routers, and with the trees that lead here."""

    def __init__(self, context: Context, topology: Topology) -> None:
        self._context = context
        self._topology = topology
        self._logged: OrderedDict[DistributionMismatch, None] = OrderedDict()

    def of(self, tenant: str, name: str) -> Iterator[DistributionMismatch]:
        """Return the mismatches of an address with the routers that have receivers of it."""
        local, only = split(name)
        adverts = self._topology.lookup(tenant, name if only is None else local_key(only, local))
        ours = self._ours(name) if adverts else None
        if ours is None:
            return
        for router, advert in adverts.items():
            concerned = router != self._context.id and advert.consumers and only in (None, router)
            if concerned and advert.distribution != ours:
                yield DistributionMismatch(tenant, name, router, advert.distribution, ours)

    def of_lane(self, lane: Lane) -> Iterator[DistributionMismatch]:
        """Return the mismatch with the router where a tree begins: to that router the address is a multicast."""
        ours = self._ours(lane.name) if lane.kind is LaneKind.TREE else None
        if ours not in (None, Distribution.MULTICAST):
            yield DistributionMismatch(lane.tenant, lane.name, lane.far, Distribution.MULTICAST, ours)

    def check(self, tenant: str, name: str) -> None:
        """Log new mismatches of an address that is used here, or that others advertise."""
        self._log(self.of(tenant, name))

    def check_lane(self, lane: Lane) -> None:
        """Log a new mismatch of a lane that a neighbour attaches."""
        self._log(self.of_lane(lane))

    def snapshot(self, nodes: Iterable[Node]) -> Steps[tuple[DisagreementStatistics, ...]]:
        """Return all present mismatches of addresses that are used here. Args: nodes: those of lanes."""
        found: dict[DistributionMismatch, None] = {}
        for local in self._context.nodes.values():
            found.update(dict.fromkeys(self.of(local.tenant, local.name)))
            yield
        for node in nodes:
            if node.lane is not None and node.incoming:
                found.update(dict.fromkeys(self.of_lane(node.lane)))
            yield
        return tuple(
            DisagreementStatistics(
                address=each.name,
                tenant=each.tenant,
                here=self._context.id,
                ours=each.ours,
                router=each.router,
                theirs=each.theirs,
            )
            for each in found
        )

    def _ours(self, name: str) -> str | None:
        """Return the distribution of an address at this router, as it is advertised.

        None: its clients cannot use the address here.
        """
        config = self._context.nodes.config(name)
        is_away = config.redirect is not None and not config.redirect.is_followed
        if is_away or config.alias is not None or config.distribution is Distribution.UNAVAILABLE:
            return None
        return config.advertised

    def _log(self, found: Iterator[DistributionMismatch]) -> None:
        for each in found:
            if each in self._logged:
                continue
            self._logged[each] = None
            if len(self._logged) > REMEMBERED:
                self._logged.popitem(last=False)
            self._context.log.warning(
                "distributions differ",
                address=each.name,
                here=self._context.id,
                ours=each.ours,
                router=each.router,
                theirs=each.theirs,
            )
