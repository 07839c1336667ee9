"""Vouches of this router for its clients, on requests to the own nodes of other routers: `$management@B`.

They travel as a delivery annotation of transit lanes, which no client can add and no client sees. Other deliveries have
none.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

from amqpmesh.policies.access import VOUCHED
from amqpmesh.policies.annotations import MESH_PREFIX
from amqpmesh.policies.scopes import managing
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.model.links import IncomingLink

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqpmesh.router.amqp.codec.types import ULong, Value
    from amqpmesh.router.context import Context
    from amqpmesh.router.kernel import Relay
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.lane import Lane
    from amqpmesh.topology.vouching import Client

VOUCH: Final = Symbol(f"{MESH_PREFIX}vouch")
"""The delivery annotation with a signed vouch."""

_OF_OTHERS: Final = tuple(f"{name}@" for name in VOUCHED)


def is_vouched(context: Context, to: str | None) -> bool:
    """Tell whether requests to an address carry a vouch, if they leave by a lane."""
    return context.vouching is not None and to is not None and to.startswith(_OF_OTHERS)


def vouch(context: Context, relay: Relay, lane: Lane, data: bytes) -> Mapping[Symbol | ULong, Value]:
    """Return the annotation of a request that enters the mesh here; none if nobody vouches for it.

    Args: lane: that it leaves by. data: the request from its beginning.
    """
    source, head = relay.source, relay.head
    if context.vouching is None or not isinstance(source, IncomingLink) or head is None:
        return {}
    record = source.connection
    if source.lane is not None or record.listener is None or not relay.complete or len(relay.chunks) > 1:
        return {}
    client = context.on_behalf.get(source.endpoint.name) if record.own else _client(record, record.listener.manage)
    if client is None:
        return {}
    signed = context.vouching.vouch(client, lane.far, digest(data, head.bare_at))
    return {} if signed is None else {VOUCH: signed}


def _client(record: ConnectionRecord, manage: bool) -> Client:
    from amqpmesh.topology.vouching import Client  # a router of no mesh does not load the topology

    peer, rights = record.peer, record.rights
    groups = None if rights is None else rights.of_policy
    return Client(peer.tenant, peer.user, groups, manage, peer.host, peer.container_id, managing(peer.scopes))


def digest(data: bytes, bare_at: int) -> bytes:
    """Return the digest of a request. Args: bare_at: where its bare message begins, which no router changes."""
    return sha256(memoryview(data)[bare_at:]).digest()
