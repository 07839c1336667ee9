"""Redelivery to another receiver, and copies to the dead-letter address, as the address is configured.

Another receiver may take a message that a receiver has released or modified (§3.4.4, §3.4.5). A rejected message is
invalid, and is offered to no other receiver (§3.4.3).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from amqpmesh.router.amqp.codec.composite import decode_composite, encode_composite
from amqpmesh.router.amqp.codec.value_limits import bounded
from amqpmesh.router.amqp.standard.messaging import Modified
from amqpmesh.router.delivery import message_head, tracing
from amqpmesh.router.delivery.exclusions import exclude, is_excluded, without_ours
from amqpmesh.router.delivery.lifetime import chosen_at, count_undelivered, drop_kept
from amqpmesh.router.delivery.queueing import config_of, requeue, wait
from amqpmesh.router.delivery.sending import uncount_or_abort
from amqpmesh.router.kernel import (
    ACCEPTED,
    EXTENSION,
    LONG_STATE,
    MODIFIED,
    REJECTED,
    UNDELIVERABLE_STATE,
    Chunk,
    Keeper,
    Relay,
    dispose,
    read_head,
    state_kind,
)
from amqpmesh.router.model.links import OutgoingLink
from amqpmesh.router.model.node import Node, node_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpmesh.router.context import Context
    from amqpmesh.router.kernel import FastRoute


def redeliver(context: Context, relay: Relay, outcome: bytes) -> bytes | None:
    """Queue a delivery for another receiver, or send a copy of a rejected one to the dead-letter address.

    Returns: the outcome for the sender; None: there is none yet, since the delivery is sent again.
    """
    node = node_of(relay)
    kind = state_kind(outcome)
    if relay.kept is None or not relay.complete or node is None or kind in (ACCEPTED, EXTENSION):
        return outcome
    leg = next(each for each in relay.legs if not each.copy)
    outgoing = leg.outgoing
    assert isinstance(outgoing, OutgoingLink)
    if kind == REJECTED:
        data = _next_attempt(relay, failed=True)
        drop_kept(context, relay)
        dead_letter(context, relay, data)
        return outcome
    modified = None
    if kind == MODIFIED:
        said = decode_composite(Modified, bounded(outcome))[0]
        if said.undeliverable_here and not exclude(relay, node, leg, said):
            relay.attempts -= 1
        modified = without_ours(said)
        outcome = encode_composite(modified)
    waits_at = chosen_at(context, relay)
    assert waits_at is not None
    possible = waits_at.has_consumers and not is_excluded(relay, waits_at)
    failed = modified is not None and bool(modified.delivery_failed)
    data = _next_attempt(relay, failed=failed, modified=modified)
    if relay.attempts >= node.config.attempts or not possible:
        drop_kept(context, relay)
        if node.config.dead_letter is None:
            return outcome
        # The sender need not try again, whatever happens to the copy (§3.4.5).
        dead_letter(context, relay, data)
        return UNDELIVERABLE_STATE
    if not leg.done and leg.delivery is not None:
        dispose(leg.delivery, outcome, True)
        uncount_or_abort(context, leg)
    if context.recording is not None:
        context.recording.attempt_failed(relay, leg)
    if context.traces.relays:
        tracing.again(context, relay)
    relay.failed = relay.failed or failed
    # Legs of copies go on: a browser sees a message once, for all its attempts.
    relay.drop([each for each in relay.legs if each.copy and not each.done])
    waits_at.account.add(len(data) - len(relay.kept))
    relay.kept = bytearray(data)
    if relay.message_format == 0:
        left = relay.head
        relay.head = head = read_head(data, complete=True)
        if head is not None and left is not None:
            # The last attempt left with the remaining ttl, and the kept message has the whole ttl. So count its arrival
            # earlier by the difference.
            relay.arrived -= (head.ttl - left.ttl) / 1000
    relay.chunks.append(Chunk(data, None, waits_at.account))
    # A neighbour may get the next attempt before this one is settled there: so they are two deliveries.
    relay.key = None
    requeue(context, relay, node)
    return None


def keeper_of(context: Context, node: Node, find_grave: Callable[[], FastRoute | None]) -> Keeper:
    """Return the rules of an address, for the messages that the kernel keeps and sends again.

    Args: find_grave: returns the route of its dead letters, see `Keeper`.
    """
    config, account = node.config, node.account
    return Keeper(
        account,
        config.redeliver_max,
        config.attempts,
        lambda: context.memory.is_over(account),
        _simple_attempt,
        lambda outcome: bool(_failed_alone(outcome)),
        config,
        _simple_dead_letter,
        None if config.dead_letter is None else find_grave,
    )


def _simple_attempt(data: bytes, outcome: bytes) -> bytes | None:
    """Return a message for its next attempt; None: the router has to decide, by its outcome, ttl or priority."""
    failed = _failed_alone(outcome)
    if failed is None or not _is_simple(data):
        return None
    return message_head.redelivered(data, failed=failed, modified=None)


def _simple_dead_letter(data: bytes) -> bytes | None:
    """Return a rejected message for the dead-letter address; None: the router has to decide, by its ttl or priority."""
    return message_head.redelivered(data, failed=True, modified=None) if _is_simple(data) else None


def _is_simple(data: bytes) -> bool:
    """Tell whether neither ttl nor priority matters for a message."""
    head = read_head(data, complete=True)
    return head is not None and not head.irregular and head.ttl < 0 and head.priority == 4


def _failed_alone(outcome: bytes) -> bool | None:
    """Return whether an outcome says that the attempt failed; None: it says more."""
    return _read_outcome(outcome) if len(outcome) <= LONG_STATE else None


@lru_cache(maxsize=64)
def _read_outcome(outcome: bytes) -> bool | None:
    if state_kind(outcome) != MODIFIED:
        return False
    said = decode_composite(Modified, bounded(outcome))[0]
    return None if said.undeliverable_here or said.message_annotations else bool(said.delivery_failed)


def _next_attempt(relay: Relay, *, failed: bool, modified: Modified | None = None) -> bytes:
    """Return a message for its next attempt, see `message_head.redelivered`.

    A message of another format than 0 stays as it came.
    """
    assert relay.kept is not None
    data = bytes(relay.kept)
    return message_head.redelivered(data, failed=failed, modified=modified) if relay.message_format == 0 else data


def dead_letter(context: Context, relay: Relay, data: bytes) -> None:
    """Send a copy to the dead-letter address, without ttl. Its outcome is not passed to the sender."""
    node = node_of(relay)
    name = config_of(context, relay, node).dead_letter if node is not None else None
    if node is None or name is None or relay.message_format != 0:
        return
    dead, name = context.resolve_copy(node.tenant, name)
    if dead is None or not dead.has_consumers or context.memory.is_over(dead.account):
        count_undelivered(context, dead)
        return
    _send_copy(context, dead, name, relay.message_format, message_head.without_ttl(data))


def _send_copy(context: Context, node: Node, to: str, message_format: int, data: bytes) -> None:
    relay = Relay(None, None, message_format, context.now)
    relay.complete = True
    relay.waiting = False
    relay.head = read_head(data, complete=True)
    relay.priority = relay.head.priority if relay.head is not None else 4
    relay.node = node
    relay.to = to
    # Unsettled, so that it is sent at least once. It has no sender, so its legs are settled as their outcomes come.
    relay.settled = False
    relay.chunks.append(Chunk(data, None, node.account))
    context.in_flight += 1
    wait(context, relay, node)
    context.touch(node)
