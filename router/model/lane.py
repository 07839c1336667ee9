"""Lanes: the links by which a router sends deliveries to a neighbour, their names, and the keys of their deliveries.

A lane is a plain AMQP link. The address of its target says where its deliveries go. Its delivery-tags carry all that a
router on the way needs to know of a delivery. So the message does not change, and may have any message format.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

from amqpmesh.policies.access import is_published
from amqpmesh.router.endpoint_setup import TENANT
from amqpmesh.router.kernel import KernelRouter, onward

if TYPE_CHECKING:
    from amqpmesh.router.amqp.standard.performatives import Attach
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.links import IncomingLink

PREFIX: Final = "$lane/"
"""The prefix of the target addresses of lanes."""

EXTRA_HOPS: Final = 16
"""Hops that a delivery may make beyond the length of its path: it needs them while routers disagree about the graph."""

MAX_HOPS: Final = 255

_NUMBER: Final = 8
_EPOCH: Final = 6


class LaneKind(StrEnum):
    """The rule by which the deliveries of a lane find their way."""

    ANYCAST = "anycast"
    """To the consumers of one address at the far router, which the ingress router chose."""
    TREE = "tree"
    """To all consumers of one address, along the shortest-path tree of the far router, their ingress."""
    TRANSIT = "transit"
    """To the far router, and there by the final address that each message carries in a delivery annotation."""


@dataclass(frozen=True, slots=True)
class Lane:
    """The identity of a lane. A lane leads from router to router, by a link for each hop."""

    kind: LaneKind
    #: The id of the router where its deliveries leave the mesh; for a tree, of the router where they entered it.
    far: str
    #: The address, for all but transit.
    tenant: str = ""
    name: str = ""

    def __hash__(self) -> int:
        # Without the kind: its hash takes longer than those of all other fields.
        return hash((self.far, self.tenant, self.name))

    @property
    def target(self) -> str:
        """The address of the link's target, by which the neighbour knows it."""
        tenant = quote(self.tenant, safe="") if self.tenant else ""
        return f"{PREFIX}{self.kind}/{self.far}/{tenant}/{self.name}"

    @staticmethod
    def parse(target: str) -> Lane:
        """Return the lane that the address of a target names. Raises: ValueError: it names none."""
        if not target.startswith(PREFIX):
            raise ValueError("the target names no lane")
        parts = target.removeprefix(PREFIX).split("/", 3)
        if len(parts) != 4 or parts[0] not in list(LaneKind):
            raise ValueError("the target names no lane")
        kind, far, tenant, name = parts
        lane = Lane(LaneKind(kind), far, unquote(tenant), name)
        is_own = name.startswith("$") and not is_published(name)
        if not far or bool(name) is (lane.kind is LaneKind.TRANSIT) or is_own:
            raise ValueError("the target is no lane's")
        return lane


class Keys:
    """The delivery keys of one router. A key identifies a delivery over all of its hops.

    A key consists of the ingress router's number (made from its id), its epoch, and a counter. On a lane the
    delivery-tag is the key and a further octet: the number of hops left.
    """

    def __init__(self, router: str, kernel: KernelRouter) -> None:
        """Args: kernel: the router's kernel state, which has the counter."""
        self._number = blake2b(router.encode(), digest_size=_NUMBER).digest()
        self._epoch = -1
        self._kernel = kernel

    def tag(self, epoch: int, hops: int) -> bytes:
        """Return the delivery-tag of a delivery that enters the mesh here.

        Args: epoch: the router's present epoch; it never falls. hops: the number of hops that it may make, 1..255.
        """
        self.begin(epoch)
        return self._kernel.next_key(hops)

    def begin(self, epoch: int) -> None:
        """Use this epoch in all further keys."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._kernel.begin_keys(self._number + (epoch & (1 << 8 * _EPOCH) - 1).to_bytes(_EPOCH, "big"))


def next_tag(tag: bytes) -> bytes | None:
    """Return the tag for the next hop of a delivery that came with `tag`; None: the delivery may make no more hops."""
    return onward(tag) or None


def tenant_of(link: IncomingLink) -> str:
    """Return the tenant whose addresses the messages of a link name: its lane's, or its peer's.

    The router's own links may name the tenant.
    """
    if link.lane is not None:
        return link.lane.tenant
    return tenant_of_attach(link.connection, link.endpoint.remote)


def tenant_of_attach(connection: ConnectionRecord, attach: Attach | None) -> str:
    """Return the tenant whose addresses a link names, or that a dynamic node is made for: its peer's, or the one that
    the router's own link names.

    Args: attach: the peer's; None: it has not come.
    """
    if connection.own and attach is not None:
        tenant = (attach.properties or {}).get(TENANT)
        if isinstance(tenant, str):
            return tenant
    return connection.peer.tenant
