"""The routers that have consumers of an address, within reach and out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.address_syntax import local_key, split
from amqpmesh.router.model.blocked import ConsumerRouters

if TYPE_CHECKING:
    from amqpmesh.topology.linkstate import Topology
    from amqpmesh.topology.workers import Members


class Reachability:
    """The reachable and unreachable consumers of addresses, at one moment."""

    def __init__(self, topology: Topology, members: Members) -> None:
        self._topology = topology
        self._members = members
        self._split = False
        self._out_of_reach: dict[tuple[str, str], list[str]] = {}
        for router in self._topology.routers():
            if self._topology.distance(router) is None:
                self._split = True
                for name, advert in self._topology.book.advertised_by(router).items():
                    if advert.consumers:
                        self._out_of_reach.setdefault(name, []).append(router)

    def of(self, tenant: str, name: str) -> ConsumerRouters:
        """Return the other routers that have consumers of an address.

        For an address `name@router`, only that router or its workers count.
        """
        own = self._topology.router
        local, only = split(name)
        if only is not None and only != own:
            members = self._members.of(only) or (only,)
            adverts = ((each, self._topology.lookup(tenant, local_key(each, local)).get(each)) for each in members)
            there = tuple(each for each, advert in adverts if advert is not None and advert.consumers)
            lost = tuple(each for each in members if self._topology.distance(each) is None)
            return ConsumerRouters(there, lost if len(lost) == len(members) else ())
        advertised = self._topology.lookup(tenant, name)
        return ConsumerRouters(
            tuple(sorted(router for router, advert in advertised.items() if advert.consumers and router != own)),
            tuple(self._out_of_reach.get((tenant, name), ())),
            self._split,
        )
