"""Deliveries that are sent once more, or as a copy to the dead-letter address, where their address says so.

What a receiver has released or modified another one may take (§3.4.4, §3.4.5). What one has rejected is invalid, and is
offered to nobody else (§3.4.3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.amqp.codec.composite import decode_composite, encode_composite
from amqpmesh.router.amqp.codec.value_limits import bounded
from amqpmesh.router.amqp.standard.messaging import Modified
from amqpmesh.router.delivery import message_head
from amqpmesh.router.delivery.exclusions import exclude, is_excluded, without_ours
from amqpmesh.router.delivery.lifetime import chosen_at, count_undelivered, drop_kept
from amqpmesh.router.delivery.queueing import config_of, requeue, wait
from amqpmesh.router.delivery.sending import uncount_or_abort
from amqpmesh.router.kernel import (
    ACCEPTED,
    EXTENSION,
    MODIFIED,
    REJECTED,
    UNDELIVERABLE_STATE,
    Chunk,
    Relay,
    dispose,
    read_head,
    state_kind,
)
from amqpmesh.router.model.links import OutgoingLink
from amqpmesh.router.model.node import Address, address_of

if TYPE_CHECKING:
    from amqpmesh.router.context import Context


def redeliver(context: Context, relay: Relay, outcome: bytes) -> bytes | None:
    """Queue it again for another receiver, where its address says so (§3.2.1, §3.4.5); or copy what was rejected.

    Returns: what to tell the sender; None: nothing yet, it is sent again.
    """
    address = address_of(relay)
    kind = state_kind(outcome)
    if relay.kept is None or not relay.complete or address is None or kind in (ACCEPTED, EXTENSION):
        return outcome
    leg = next(each for each in relay.legs if not each.copy)
    outgoing = leg.branch
    assert isinstance(outgoing, OutgoingLink)
    if kind == REJECTED:
        data = _again(relay, failed=True)
        drop_kept(context, relay)
        dead_letter(context, relay, data)
        return outcome
    modified = None
    if kind == MODIFIED:
        said = decode_composite(Modified, bounded(outcome))[0]
        if said.undeliverable_here and not exclude(relay, address, leg, said):
            relay.attempts -= 1
        modified = without_ours(said)
        outcome = encode_composite(modified)
    waits_at = chosen_at(context, relay)
    assert waits_at is not None
    possible = waits_at.has_consumers and not is_excluded(relay, waits_at)
    failed = modified is not None and bool(modified.delivery_failed)
    data = _again(relay, failed=failed, modified=modified)
    if relay.attempts >= address.config.attempts or not possible:
        drop_kept(context, relay)
        if address.config.dead_letter is None:
            return outcome
        # Whatever happens to the copy: the sender need not try again (§3.4.5).
        dead_letter(context, relay, data)
        return UNDELIVERABLE_STATE
    if not leg.done and leg.delivery is not None:
        dispose(leg.delivery, outcome, True)
        uncount_or_abort(context, leg)
    if context.recording is not None:
        context.recording.tried_again(relay, leg)
    relay.failed = relay.failed or failed
    # Copies go on by themselves; a browser sees the message once, however often it is tried.
    relay.drop([each for each in relay.legs if each.copy and not each.done])
    waits_at.account.add(len(data) - len(relay.kept))
    relay.kept = bytearray(data)
    if relay.message_format == 0:
        left = relay.head
        relay.head = head = read_head(data, complete=True)
        if head is not None and left is not None:
            # It left with what remained of its ttl, and is sent again with all of it: so it came that much earlier.
            relay.arrived -= (head.ttl - left.ttl) / 1000
    relay.chunks.append(Chunk(data, None, waits_at.account))
    # A neighbour may hear of the next try before it hears that this one is settled: they are two deliveries.
    relay.key = None
    requeue(context, relay, address)
    return None


def _again(relay: Relay, *, failed: bool, modified: Modified | None = None) -> bytes:
    """A message as it is sent once more, see `heads.redelivered`. One of another format than 0 is sent as it came."""
    assert relay.kept is not None
    data = bytes(relay.kept)
    return message_head.redelivered(data, failed=failed, modified=modified) if relay.message_format == 0 else data


def dead_letter(context: Context, relay: Relay, data: bytes) -> None:
    """Send a copy to the dead-letter address, without ttl; what becomes of it concerns nobody above."""
    address = address_of(relay)
    name = config_of(context, relay, address).dead_letter if address is not None else None
    if address is None or name is None or relay.message_format != 0:
        return
    dead, name = context.resolve_copy(address.tenant, name)
    if dead is None or not dead.has_consumers or context.memory.is_over(dead.account):
        count_undelivered(context, dead)
        return
    _send_copy(context, dead, name, relay.message_format, message_head.without_ttl(data))


def _send_copy(context: Context, address: Address, to: str, message_format: int, data: bytes) -> None:
    relay = Relay(None, None, message_format, context.now)
    relay.complete = True
    relay.waiting = False
    relay.head = read_head(data, complete=True)
    relay.priority = relay.head.priority if relay.head is not None else 4
    relay.address = address
    relay.to = to
    # Not settled: at least once, as far as it goes. Its legs are orphans from the start.
    relay.settled = False
    relay.chunks.append(Chunk(data, None, address.account))
    context.in_flight += 1
    wait(context, relay, address)
    context.touch(address)
