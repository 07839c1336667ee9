"""Messages that an address has seen before, by their message-ids: each is processed once (§3.2.4, message-id).

The router whose receivers an address has remembers the message-ids. A second message with the same one gets the outcome
of the first: at once, or when the first has it. A message that was released or modified is forgotten, so it can be sent
again. An ingress with several ways out sends each message-id by the same one.
"""

from __future__ import annotations

from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.shortening import told_state
from amqpmesh.router.delivery.lifetime import drop_chunks
from amqpmesh.router.delivery.queueing import forwarded
from amqpmesh.router.delivery.settlement import end_unsent
from amqpmesh.router.kernel import (
    ACCEPTED,
    FAILED_STATE,
    JOINED_OCTETS,
    MODIFIED,
    RELEASED,
    RELEASED_STATE,
    WINDOWS_PART,
    Incomplete,
    MessageWindow,
    Violation,
    read_message_id,
    state_kind,
)
from amqpmesh.router.kernel import ACCEPTED_STATE as _ACCEPTED_STATE
from amqpmesh.router.model.links import IncomingLink
from amqpmesh.router.model.node import IngressNode, LocalNode, Node

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amqpmesh.router.context import Context
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.kernel import Leg, Relay, SeenMessage
    from amqpmesh.router.model.credit_share import CreditShare

#: Seconds between two looks at all windows, for entries whose time is over.
LOOK_TIME: Final = 1.0

#: Entries of one window that one step looks at, and deliveries that one step tells the outcome of another one.
_ENTRIES: Final = 500
_TOLD: Final = 10


def looks_at(node: Node) -> bool:
    """Return whether message-ids matter at a node: it has receivers of its own, or divides messages among routers."""
    return (
        node.config.drops_duplicates
        and node.lane is None
        and (isinstance(node, LocalNode) or (isinstance(node, IngressNode) and node.remote is None))
    )


def read_id(relay: Relay, node: Node, data: bytes) -> bool:
    """Note the message-id of a message, if its node looks at it. Returns: False: more of the message must come first.

    A message whose message-id does not begin within `[limits] head_max` octets, or is malformed, has none.
    Args: data: the message from its beginning.
    """
    head, source = relay.head, relay.source
    assert isinstance(source, IncomingLink)
    if head is None:
        return True
    try:
        relay.message_id = read_message_id(data, head.bare_at, len(data))
    except Violation:
        return True  # a malformed section is the receiver's concern
    except Incomplete:
        return relay.complete or len(data) > source.connection.limits.head_max
    return True


def is_first(context: Context, relay: Relay, node: Node) -> bool:
    """Note a message that has come to the node of its receivers.

    Returns: False: it was sent before, and nothing else is to be done with it.
    """
    message_id, seen = relay.message_id, relay.seen
    window = window_of(context, node) if isinstance(node, LocalNode) and looks_at(node) else None
    if seen is not None:
        if seen.window is window:
            return True
        withdraw(context, relay)
    if message_id is None or window is None:
        return True
    now = context.now
    seen = window.find(message_id, now)
    settled = relay.settled or relay.presettled
    if seen is not None and (settled or not seen.settled):
        context.kernel.windows.duplicates += 1
        context.seen_as(node).decided().duplicates += 1
        _answer(context, relay, seen)
        return False
    if seen is not None:
        window.forget(seen)  # it came settled, so this one, which waits for an outcome, cannot get that of the other
    relay.seen = window.note(message_id, settled, now)
    return True


def withdraw(context: Context, relay: Relay) -> None:
    """Forget a message that goes to another node, or ends before it has left: it is a first one wherever it comes."""
    seen, relay.seen = relay.seen, None
    if seen is not None:
        seen.window.forget(seen)
        _tell_joined(context, seen, RELEASED_STATE)


def window_of(context: Context, node: Node) -> MessageWindow:
    """Return the window of a node's address; make it if there is none."""
    windows, key, config = context.kernel.windows, (node.tenant, node.name), node.config
    window = windows.of.get(key)
    windows.most = context.budget.limit // WINDOWS_PART
    if window is None:
        windows.wake = partial(_wake, context)
        windows.on_outcome = partial(_outcome_known, context)
        windows.on_ended = partial(_ended, context)
        account = type(context.budget)(0, context.usages.memory_of(node.tenant))
        window = windows.of[key] = MessageWindow(
            windows,
            account,
            config.duplicate_window,
            config.duplicate_time,
            lambda: context.memory.is_over(account),
        )
    window.most, window.time = config.duplicate_window, config.duplicate_time
    return window


def drop_window(context: Context, node: Node) -> None:
    """Forget what an address has seen that drops duplicates no more."""
    window = context.kernel.windows.of.pop((node.tenant, node.name), None)
    if window is not None:
        window.clear()


def choose_share(relay: Relay, message_id: bytes, shares: Iterable[CreditShare], here: str) -> CreditShare | None:
    """Return the share by which a message leaves an ingress, with credit or without; None: none may have it.

    It is the same at each ingress, and another one only for the messages of a router that comes or goes (rendezvous
    hashing).
    """
    possible = [each for each in shares if not each.is_excluded(relay.excluded)]
    if len(possible) < 2:
        return possible[0] if possible else None
    return max(possible, key=lambda each: _weight(message_id, here if each.node.lane is None else each.node.lane.far))


def _weight(message_id: bytes, router: str) -> bytes:
    return blake2b(message_id + b"\0" + router.encode(), digest_size=8).digest()


# ------------------------------------------------------------------------------------------------------------- outcomes


def _answer(context: Context, relay: Relay, seen: SeenMessage) -> None:
    """Answer a message that was sent before."""
    window = seen.window
    if relay.settled or relay.presettled:
        end_unsent(context, relay, _ACCEPTED_STATE)
    elif not seen.live:
        assert seen.outcome is not None, "an unsettled message has one, or its entry is gone"
        end_unsent(context, relay, seen.outcome)
    elif window.joined >= window.most or window.is_over():
        end_unsent(context, relay, RELEASED_STATE)  # true of this one: it can be sent again
    else:
        forwarded(context, relay, left=False)
        drop_chunks(relay)
        relay.dropped = True
        relay.seen = seen
        if seen.joined is None:
            seen.joined = {}
        seen.joined[relay] = None
        window.joined += 1
        window.count(JOINED_OCTETS)


def _outcome_known(context: Context, relay: Relay, outcome: bytes) -> None:
    """Note the outcome of a first message, and tell it to those that wait for it."""
    seen = relay.seen
    assert seen is not None, "else nobody asks"
    relay.seen = None
    if state_kind(outcome) in (RELEASED, MODIFIED):
        seen.window.forget(seen)
    elif seen.settled:
        seen.window.end(seen, None, context.now)
    else:
        kept = _ACCEPTED_STATE if state_kind(outcome) == ACCEPTED else told_state(outcome)
        seen.window.end(seen, kept, context.now)
    _tell_joined(context, seen, outcome)


def _ended(context: Context, relay: Relay) -> None:
    """Note the end of a delivery that has an entry: its first message without an outcome, or one that waited for it."""
    seen = relay.seen
    assert seen is not None, "else nobody asks"
    if seen.joined is not None and relay in seen.joined:
        relay.seen = None
        _leave(seen, relay)
    elif any(not each.copy and not each.aborting and _is_whole(each) for each in relay.legs):
        # A receiver has it all, and its outcome will not come: the message came settled, or its sender settled it.
        relay.seen = None
        seen.settled = True
        seen.window.end(seen, None, context.now)
        _tell_joined(context, seen, FAILED_STATE)
    else:
        withdraw(context, relay)


def _is_whole(leg: Leg) -> bool:
    return leg.delivery is not None and leg.delivery.complete


def _leave(seen: SeenMessage, relay: Relay) -> None:
    """Take a delivery out of those that wait for an outcome."""
    assert seen.joined is not None, "it is among them"
    del seen.joined[relay]
    seen.window.joined -= 1
    seen.window.count(-JOINED_OCTETS)


def _tell_joined(context: Context, seen: SeenMessage, outcome: bytes) -> None:
    if seen.joined:
        context.chores.do(_tell(context, seen, outcome))


def _tell(context: Context, seen: SeenMessage, outcome: bytes) -> Steps[None]:
    joined = seen.joined
    told = 0
    while joined:
        relay = next(iter(joined))
        relay.seen = None
        _leave(seen, relay)
        end_unsent(context, relay, outcome)
        told += 1
        if told % _TOLD == 0:
            yield


# ----------------------------------------------------------------------------------------------------------------- time


def _wake(context: Context) -> None:
    context.schedule(context.now + LOOK_TIME, lambda: context.chores.do(_look(context)))


def _look(context: Context) -> Steps[None]:
    """Forget the entries whose time is over, and the windows that are empty and of no use."""
    windows = context.kernel.windows
    for key, window in list(windows.of.items()):
        while window.tidy(context.now, _ENTRIES) == _ENTRIES:
            yield
        if not window.entries and context.nodes.find(*key) is None and windows.of.get(key) is window:
            del windows.of[key]
        yield
    windows.is_awake = any(window.entries for window in windows.of.values())
    if windows.is_awake:
        _wake(context)
