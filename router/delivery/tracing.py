"""Steps of followed deliveries, noted for `amqpmesh trace` (`TraceBook`).

The router where a trace begins marks the message with a delivery annotation of the mesh, which lanes carry and no
client sees. The section of a marked message has the long form of its descriptor: the kernel relays only the short one,
so each router decides about the message, and notes what it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeGuard

from amqpmesh.router.address_syntax import without_secret
from amqpmesh.router.delivery import message_head
from amqpmesh.router.kernel import REJECTED, Chunk, state_kind
from amqpmesh.router.model.blocked import why_node, why_outgoing
from amqpmesh.router.model.credit_share import LOCAL_COST
from amqpmesh.router.model.foreign_links import name_of
from amqpmesh.router.model.lane import tenant_of
from amqpmesh.router.model.links import IncomingLink, OutgoingLink
from amqpmesh.router.model.node import Node, node_of
from amqpmesh.router.telemetry.recording import condition_of, outcome_of
from amqpmesh.router.telemetry.traces import ID_OCTETS, Followed, Named, Trace, Watch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from amqpmesh.router.amqp.codec.types import Symbol, ULong, Value
    from amqpmesh.router.context import Context
    from amqpmesh.router.kernel import Leg, Relay
    from amqpmesh.router.model.credit_share import CreditShare
    from amqpmesh.router.model.lane import Lane
    from amqpmesh.router.telemetry.traces import Field

_MOST_COUNTED: Final = 64
"""Receivers of a node whose readiness is counted for an event at most."""

OWN: Final = "this router"
"""The name of the router's own links in events."""


# ---------------------------------------------------------------------------------------------------- begin and end


def came(context: Context, relay: Relay, incoming: IncomingLink, data: bytes) -> None:
    """Follow a delivery that has come by a lane with a mark. Args: data: what its head was read from."""
    head = relay.head
    if head is None or relay in context.traces.relays:
        return
    mark = message_head.trace_mark(data, head)
    if isinstance(mark, bytes) and len(mark) == ID_OCTETS:
        trace = context.traces.begin(mark, tenant_of(incoming), context.now, context.policy)
        if trace is not None:
            address = name_of(incoming) or message_head.final_address(data, head)
            follow(context, relay, incoming, trace, len(data), address)
            keep(context)


def catch(context: Context, relay: Relay, incoming: IncomingLink, node: Node | None, to: str | None, size: int) -> None:
    """Follow a delivery that is awaited: by the router's own link, or as the next one to its address.

    Args: to: its address, if the messages of the link name their own. size: its octets, as far as it has come.
    """
    book = context.traces
    if relay in book.relays:
        return
    trace = book.links.pop(incoming.endpoint.name, None) if incoming.connection.own else None
    if trace is None and node is not None:
        watch = book.addresses.get(_key(node, to))
        if watch is not None:
            trace = watch.trace
            end_watch(context, watch)
    if trace is not None:
        follow(context, relay, incoming, trace, size, relay.to or name_of(incoming) or to)
        keep(context)


def _key(node: Node, to: str | None) -> tuple[str, str]:
    return node.tenant, node.name or to or ""


def follow(
    context: Context, relay: Relay, incoming: IncomingLink, trace: Trace, size: int, address: str | None
) -> None:
    """Follow a delivery until its end. Args: size: its octets, as far as it has come. address: None: it is unknown."""
    context.traces.follow(relay, trace)
    if not relay.complete:
        incoming.endpoint.flow_state.relay = None  # the kernel would relay further frames, and its outcome, unseen
    lane = incoming.lane
    trace.note(
        relay.came,
        "came",
        router=lane is not None,
        link=Named(incoming.endpoint.name, incoming.connection.peer.tenant),
        address=None if address is None else Named(without_secret(address), tenant_of(incoming)),
        settled=relay.presettled,
        octets=size,
        **{"from": OWN if incoming.connection.own else _peer(incoming)},
        **_by(lane),
    )


def keep(context: Context) -> None:
    """Have old traces forgotten in time."""
    if not context.traces.is_kept:
        context.traces.is_kept = True
        context.schedule(context.now + context.config.tracing.keep, lambda: _forget(context))


def _forget(context: Context) -> None:
    context.traces.is_kept = False
    if context.traces.forget_old(context.now):
        keep(context)


def await_next(context: Context, tenant: str, name: str, trace: Trace) -> Watch:
    """Follow the next message to an address that comes to this router, from any sender.

    Until then the kernel relays none to that address. Args: name: after aliases.
    """
    trace.pending = True
    watch = context.traces.addresses[tenant, name] = Watch(trace)
    local = context.nodes.find(tenant, name)
    found: list[Node | None] = [local, None if local is None else local.ingress]
    found += [each for each in context.routes.nodes() if each.tenant == tenant and each.name in (name, "")]
    for node in found:
        if node is not None:
            context.touch(node)
    return watch


def end_watch(context: Context, watch: Watch) -> None:
    """Follow no next message any more, and let the kernel relay again."""
    watch.trace.pending = False
    context.traces.forget_watch(watch)
    for node in watch.closed:
        assert isinstance(node, Node)
        context.touch(node)


def give_up(context: Context, trace: Trace, reason: str) -> None:
    """Await no message any more for a trace, unless one has come. Args: reason: for the client that asks."""
    for watch in [each for each in context.traces.addresses.values() if each.trace is trace and trace.pending]:
        end_watch(context, watch)
        trace.note(context.now, "failed", reason=reason)


def holds(context: Context, node: Node) -> bool:
    """Tell whether the fast route of a node stays closed, since the next message there is awaited."""
    for (tenant, name), watch in context.traces.addresses.items():
        if node.tenant == tenant and node.name in (name, ""):
            watch.closed[node] = None
            return True
    return False


# -------------------------------------------------------------------------------------------------------------- marks


def marks(context: Context, relay: Relay, node: Node, links: Iterable[OutgoingLink]) -> Mapping[Symbol | ULong, Value]:
    """Return the annotation that marks a message for the next router; none if a client may be among its receivers."""
    followed = context.traces.relays.get(relay)
    has_copies = node.copies or any(share.node.copies for share in node.shares)
    if not _is_marked(followed) or relay.head is None or has_copies or not all(each.lane is not None for each in links):
        return {}
    return {message_head.TRACE: followed.trace.id}


def _is_marked(followed: Followed | None) -> TypeGuard[Followed]:
    return followed is not None and followed.trace.marks


def mark_lanes(context: Context, relay: Relay, legs: list[Leg]) -> None:
    """Mark the legs that leave by lanes, if others of the message go to clients, which see no mark.

    A message with one leg may take another way: it has one form, by `marks`.
    """
    followed = context.traces.relays.get(relay)
    by_lane = [leg for leg in legs if isinstance(leg.outgoing, OutgoingLink) and leg.outgoing.lane is not None]
    if not _is_marked(followed) or relay.head is None or not by_lane or len(legs) == 1:
        return
    first = by_lane[0].chunks[0]
    if message_head.trace_mark(first.data, relay.head) is not None:
        return
    marked = Chunk(message_head.with_trace_mark(first.data, relay.head, followed.trace.id), None, first.account)
    marked.holders = len(by_lane)
    for leg in by_lane:
        assert leg.chunks[0] is first, "all legs of a multicast begin alike"
        leg.chunks[0] = marked
        first.release()


# -------------------------------------------------------------------------------------------------------------- steps


def waits(context: Context, relay: Relay, node: Node) -> None:
    """Note that a delivery waits at a node."""
    followed = context.traces.relays.get(relay)
    if followed is not None:
        ahead = node.waiting.size - 1
        reason = why_node(node, draining=context.draining)
        told = str(reason or "a turn")
        if reason is None and ahead > 0 and not _is_foreign(followed, node.tenant):
            told = f"{ahead} waiting before it"
        _wait(context, followed, told, ahead=Named(ahead, node.tenant) if ahead else None)


def routed(context: Context, relay: Relay, share: CreditShare) -> None:
    """Note the router that a delivery goes to, where several have receivers."""
    followed = context.traces.relays.get(relay)
    if followed is not None:
        shares, lane, tenant = share.ingress.shares, share.node.lane, share.node.tenant
        followed.trace.note(
            context.now,
            "routed",
            to=context.id if lane is None else lane.far,
            cost=share.cost - LOCAL_COST,  # of the path, as `status` and `why` tell it
            rule=str(share.ingress.config.distribution),
            ways=Named(len(shares), tenant),
            ready=Named(sum(each.is_ready for each in shares), tenant),
        )


def chosen(context: Context, relay: Relay, node: Node, links: list[OutgoingLink]) -> None:
    """Note the links that a delivery leaves by. It has waited no longer than until now."""
    followed = context.traces.relays.get(relay)
    if followed is None:
        return
    waited, reason = _end_wait(context, followed)
    followed.hides_branches = node.is_multicast and _is_foreign(followed, node.tenant)
    ways, ready = len(node.outgoing), None
    if node.is_multicast:
        ways = len(links)
    elif ways <= _MOST_COUNTED:
        ready = Named(sum(each.is_ready for each in node.outgoing), node.tenant)
    followed.trace.note(
        context.now,
        "chosen",
        rule="lane" if node.lane is not None and not node.is_multicast else str(node.config.distribution),
        ways=Named(ways, node.tenant),
        ready=ready,
        branches=Named(len(links), node.tenant),
        waited=waited,
        waited_for=reason,
    )


def left(context: Context, leg: Leg) -> None:
    """Note that the first frame of a leg is written."""
    followed, outgoing = context.traces.relays.get(leg.relay), leg.outgoing
    if followed is None or not isinstance(outgoing, OutgoingLink) or _is_hidden(followed, leg):
        return
    waited, reason = _end_wait(context, followed)
    branch = len(followed.branches) + 1
    if followed.trace.has_room:  # else nothing of the branch will be noted
        followed.branches[leg] = branch
    key = leg.delivery.tag[:-1].hex() if outgoing.lane is not None and leg.delivery is not None else None
    followed.trace.note(
        context.now,
        "left",
        branch=branch,
        router=outgoing.lane is not None,
        to=OWN if outgoing.connection.own else _peer(outgoing),
        link=Named(outgoing.endpoint.name, outgoing.connection.peer.tenant),
        key=key,
        copy=leg.copy or None,
        waited=waited,
        waited_for=reason,
        **_by(outgoing.lane),
    )


def held_up(context: Context, leg: Leg) -> None:
    """Note that a leg cannot be written now."""
    followed, outgoing = context.traces.relays.get(leg.relay), leg.outgoing
    if followed is not None and isinstance(outgoing, OutgoingLink) and not _is_hidden(followed, leg):
        reason = why_outgoing(outgoing)
        _wait(context, followed, str(reason or "the output is full"), branch=followed.branches.get(leg))


def sent(context: Context, leg: Leg) -> None:
    """Note that the last frame of a leg is written, if it was held up before."""
    followed = context.traces.relays.get(leg.relay)
    if followed is not None and followed.since >= 0 and not _is_hidden(followed, leg):
        waited, reason = _end_wait(context, followed)
        branch = followed.branches.get(leg)
        followed.trace.note(context.now, "sent", branch=branch, waited=waited, waited_for=reason)


def decided(context: Context, leg: Leg, *, lost: bool = False) -> None:
    """Note the outcome of a leg. Args: lost: the receiver is gone, and has given none."""
    followed = context.traces.relays.get(leg.relay)
    if followed is not None and not _is_hidden(followed, leg):
        branch = followed.branches.get(leg)
        followed.trace.note(context.now, "lost" if lost else "outcome", branch=branch, **_outcome(leg.outcome))


def again(context: Context, relay: Relay) -> None:
    """Note that a delivery is sent once more, after an attempt that has failed."""
    followed = context.traces.relays.get(relay)
    if followed is not None:
        followed.trace.note(context.now, "again", attempts=relay.attempts)


def told(context: Context, relay: Relay, outcome: bytes) -> None:
    """Note the outcome that the sender gets."""
    followed = context.traces.relays.get(relay)
    if followed is not None:
        followed.trace.note(context.now, "told", **_outcome(outcome))


def unsent(context: Context, relay: Relay, why: str) -> None:
    """Note that a delivery ends here, and nothing of it has left. Args: why: the outcome in telemetry, as a word."""
    followed, node = context.traces.relays.get(relay), node_of(relay)
    if followed is None:
        return
    waited, reason = _end_wait(context, followed)
    if why == "undelivered":
        blocked = None if node is None else why_node(node, draining=context.draining)
        why = f"{why}: {blocked}" if blocked is not None else f"{why}: no receiver is known here"
    followed.trace.note(context.now, "unsent", reason=why, waited=waited, waited_for=reason)


def ended(context: Context, relay: Relay) -> None:
    """Note the end of a delivery, and follow it no longer."""
    followed = context.traces.ended(relay)
    if followed is not None:
        followed.trace.note(context.now, "ended", aborted=(relay.dropped and not relay.legs) or None)


# --------------------------------------------------------------------------------------------------------------- words


def _is_foreign(followed: Followed, tenant: str) -> bool:
    """Tell whether a tenant is another one than that of the trace, whose clients may not see how much it has."""
    trace = followed.trace
    return trace.marks and trace.tenant not in ("", tenant)


def _is_hidden(followed: Followed, leg: Leg) -> bool:
    """Tell whether a leg is left out: a copy for another tenant, or one of several receivers that another tenant has.

    Each leg that is shown would tell that there is one more of them.
    """
    outgoing = leg.outgoing
    assert isinstance(outgoing, OutgoingLink)
    if outgoing.lane is None and not _is_foreign(followed, outgoing.connection.peer.tenant):
        return False
    return followed.hides_branches or (leg.copy and _is_foreign(followed, outgoing.node.tenant))


def _wait(context: Context, followed: Followed, reason: str, **fields: Field | Named | None) -> None:
    if followed.since < 0:
        followed.since = context.now
    if reason != followed.reason:
        followed.reason = reason
        followed.trace.note(context.now, "waits", reason=reason, **fields)


def _end_wait(context: Context, followed: Followed) -> tuple[float | None, str | None]:
    """Return the seconds that a delivery has waited, and for what; None: it has not waited."""
    if followed.since < 0:
        return None, None
    waited, reason = context.now - followed.since, followed.reason
    followed.since, followed.reason = -1.0, ""
    return waited, reason


def _peer(link: IncomingLink | OutgoingLink) -> Field | Named:
    """Return the name of a link's peer. Routers have names that all may know."""
    peer = link.connection.peer
    return peer.container_id if link.lane is not None else Named(peer.container_id, peer.tenant)


def _by(lane: Lane | None) -> dict[str, str]:
    return {} if lane is None else {"lane": str(lane.kind), "far": lane.far}


def _outcome(state: bytes | None) -> dict[str, str | None]:
    condition = condition_of(state) if state is not None and state_kind(state) == REJECTED else None
    word = outcome_of(state).name.lower()
    return {"outcome": word, "condition": None if condition is None else condition.decode("ascii", "replace")}
