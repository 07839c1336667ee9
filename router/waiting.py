"""Deliveries that wait at their address: until somebody can take them, or they have waited long enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router import heads
from amqpmesh.router.lanes import LaneKind
from amqpmesh.router.links import IncomingLink
from amqpmesh.router.memory import waiting_at
from amqpmesh.router.shares import Share

if TYPE_CHECKING:
    from amqpmesh.router.addresses import Address
    from amqpmesh.router.config import AddressConfig
    from amqpmesh.router.core import Core
    from amqpmesh.router.kernel.relay import Relay


def enqueue(core: Core, relay: Relay, address: Address, incoming: IncomingLink) -> None:
    """Nobody can take it now: it waits, from an anonymous sender not for long."""
    if incoming.address is None:
        waiting = incoming.waiting.get(address, 0)
        if waiting >= address.config.window or core.memory.is_over(waiting_at(core, relay, address)):
            core.settlement.undelivered(relay, address)
            return
        incoming.waiting[address] = waiting + 1
        # Waiting for one address must not hold up the others of the link.
        forwarded(core, relay)
    wait(core, relay, address)
    core.touch(address)


def wait(core: Core, relay: Relay, address: Address) -> None:
    """It waits at this node from now on, and counts there."""
    account = waiting_at(core, relay, address)
    for chunk in relay.chunks:
        chunk.move(account)
    address.wait(relay, deadline(core, relay, address))


def deadline(core: Core, relay: Relay, address: Address) -> float | None:
    """Until when it may wait there, seconds: its ttl, or an anonymous sender's patience; None: it may for ever."""
    expires_at, source = heads.expires_at(relay), relay.source
    if not isinstance(source, IncomingLink) or source.address is not None:
        return expires_at
    until = core.now + config_of(core, relay, address).anonymous_wait
    return until if expires_at is None else min(until, expires_at)


def config_of(core: Core, relay: Relay, address: Address) -> AddressConfig:
    """What is configured of the address that a waiting delivery is for.

    Args: address: where it waits. A way to another router, whatever the address, has nothing configured.
    """
    lane = address.lane
    if lane is None or lane.kind is not LaneKind.TRANSIT:
        return address.config
    to = relay.to
    if to is None and relay.head is not None:
        to = heads.final_address(relay.chunks[0].data, relay.head)
    return address.config if to is None else core.addresses.config(to)


def requeue(core: Core, relay: Relay, address: Address) -> None:
    """It waits again, behind those of its priority; in a mesh where it came in: only there ways are chosen."""
    share = relay.share
    if isinstance(share, Share):
        forwarded(core, relay)
        relay.share = None
        relay.key = None
        relay.address = address = share.ingress
    incoming = relay.source
    if isinstance(incoming, IncomingLink) and incoming.address is None:
        incoming.waiting[address] = incoming.waiting.get(address, 0) + 1
    wait(core, relay, address)
    core.touch(address)


def end_waiting(core: Core, address: Address) -> None:
    """Let go of those that have waited long enough: their ttl is over, or an anonymous sender's patience."""
    now = core.now
    while (relay := address.waiting.due(now)) is not None:
        expires_at = heads.expires_at(relay)
        if expires_at is not None and expires_at <= now:
            core.settlement.expired(relay)
        else:
            core.settlement.undelivered(relay, address)


def unqueue(core: Core, relay: Relay) -> None:
    """It waits no longer in its address' queue."""
    address = core.address_of(relay)
    if relay.queued and address is not None:
        address.waiting.remove(relay)
        incoming = relay.source
        if isinstance(incoming, IncomingLink) and incoming.address is None and relay.share is None:
            incoming.waiting[address] -= 1
            if not incoming.waiting[address]:
                del incoming.waiting[address]
        core.touch(address)


def forwarded(core: Core, relay: Relay) -> None:
    """Its first frame has left, or never will: its input may be given credit for it again."""
    if not relay.waiting:
        return
    holder = relay.share or relay.source
    if isinstance(holder, Share):
        relay.waiting = False
        holder.pool.forwarded(holder.input, core.now)
        core.touch(holder.node)
        core.touch(holder.ingress)
    elif isinstance(holder, IncomingLink):
        relay.waiting = False
        holder.pool.forwarded(holder.input, core.now)
        core.touch_input(holder)
