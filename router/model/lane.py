"""Lanes: the links by which a router gives deliveries to a neighbour, their names, and the keys of what they carry.

A lane is a plain AMQP link. Its target says what it is for, and its delivery-tags carry what hops need to know of a
delivery, so that nothing of it stands in the message and every message format can be carried.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import Final
from urllib.parse import quote, unquote

from amqpmesh.router.kernel import KernelRouter, onward

PREFIX: Final = "$lane/"
"""What the target addresses of lanes begin with."""

EXTRA_HOPS: Final = 16
"""A delivery may make so many hops more than its path is long, while routers disagree about the graph."""

MAX_HOPS: Final = 255

_NUMBER: Final = 8
_EPOCH: Final = 6
_COUNTER: Final = 6


class LaneKind(StrEnum):
    """What decides where the deliveries of a lane go."""

    ANYCAST = "anycast"
    """To the consumers of one address at the far router, which the ingress router chose."""
    TREE = "tree"
    """To all consumers of one address, along the shortest-path tree of the far router, their ingress."""
    TRANSIT = "transit"
    """To the far router, and there by the final address that each message carries in a delivery annotation."""


@dataclass(frozen=True, slots=True)
class Lane:
    """What a lane carries. The same lane leads from router to router, a link for each hop."""

    kind: LaneKind
    #: The id of the router where its deliveries leave the mesh; of a tree, of the one where they came in.
    far: str
    #: The address, for all but transit.
    tenant: str = ""
    name: str = ""

    def __hash__(self) -> int:
        # Without its kind, whose hash takes longer than all else.
        return hash((self.far, self.tenant, self.name))

    @property
    def target(self) -> str:
        """The address of the link's target, by which the neighbour knows it."""
        tenant = quote(self.tenant, safe="") if self.tenant else ""
        return f"{PREFIX}{self.kind}/{self.far}/{tenant}/{self.name}"

    @staticmethod
    def parse(target: str) -> Lane:
        """The lane that a target names. Raises: ValueError: it names none."""
        if not target.startswith(PREFIX):
            raise ValueError("the target names no lane")
        parts = target.removeprefix(PREFIX).split("/", 3)
        if len(parts) != 4 or parts[0] not in list(LaneKind):
            raise ValueError("the target names no lane")
        kind, far, tenant, name = parts
        lane = Lane(LaneKind(kind), far, unquote(tenant), name)
        if not far or bool(name) is (lane.kind is LaneKind.TRANSIT) or name.startswith("$"):
            raise ValueError("the target is no lane's")
        return lane


class Keys:
    """The delivery keys of one router: what identifies a delivery over all of its hops.

    A key is the ingress router's number (from its id), its epoch, and a counter. On a lane the delivery-tag is the key
    and one octet more: how many hops are left.
    """

    def __init__(self, router: str, flow_state: KernelRouter) -> None:
        """Args: flow_state: of the router, which counts."""
        self._number = blake2b(router.encode(), digest_size=_NUMBER).digest()
        self._epoch = -1
        self._flow_state = flow_state

    def tag(self, epoch: int, hops: int) -> bytes:
        """The delivery-tag of a delivery that begins its way through the mesh here.

        Args: epoch: of this router, now: it never falls. hops: 1..255, what the delivery may make.
        """
        self.begin(epoch)
        return self._flow_state.next_key(hops)

    def begin(self, epoch: int) -> None:
        """Keys are of this epoch from now on."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._flow_state.begin_keys(self._number + (epoch & (1 << 8 * _EPOCH) - 1).to_bytes(_EPOCH, "big"))


def age(tag: bytes) -> bytes:
    """What orders the deliveries of one ingress router: of two, the one that began its way later has more."""
    return tag[_NUMBER : _NUMBER + _EPOCH + _COUNTER]


def next_tag(tag: bytes) -> bytes | None:
    """The delivery-tag for the next hop of what came with `tag`; None: it may make no more."""
    return onward(tag) or None
