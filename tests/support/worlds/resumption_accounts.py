"""The accounts of a router whose links are lost and resumed: within its limits, and empty once nobody is away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.model.lasting_sources import SuspendedSource
from amqpmesh.router.resumption.former_connections import OF_CONNECTION
from amqpmesh.router.resumption.kept_octets import KeptOctets
from amqpmesh.router.resumption.suspended_termini import OF_DELIVERY, OF_RELAY, OF_TERMINUS

if TYPE_CHECKING:
    from amqpmesh.router.config.resumption import ResumptionConfig
    from tests.support.worlds.network import Network

#: Octets that each message counts beside its own, while they are kept.
OF_MESSAGE: Final = 256


def check_limits(network: Network, limits: ResumptionConfig) -> None:
    """Assert that no more is kept than may be, and that each account has what is there, and nothing else."""
    context = network.core.context
    termini, budget = context.termini, context.budget
    kept = list(termini.kept())
    assert termini.suspended_number <= termini.granted <= min(limits.links, limits.links_per_user)  # all are one user's
    assert sum(each.unsettled for each in kept) <= limits.unsettled
    for each in kept:
        deliveries = each.octets - OF_TERMINUS
        assert OF_DELIVERY * each.unsettled <= deliveries <= OF_RELAY * max(each.unsettled, each.counted)
    of_termini = sum(each.octets for each in kept) + OF_CONNECTION * len({each.link.connection for each in kept})
    assert termini._memory.used == of_termini  # type: ignore[attr-defined]  # the account itself
    places = [each.flow_state.keeps for each in kept if isinstance(each, SuspendedSource)]
    for record in context.connections:
        places += [each.endpoint.flow_state.keeps for each in record.outgoing]
    messages = {place: None for place in places if isinstance(place, KeptOctets)}
    sizes = [len(data) for place in messages for part in (place.messages, place._parts) for data in part.values()]
    octets = termini.sources.octets.octets  # type: ignore[attr-defined]
    assert max(sizes, default=0) <= limits.keep_max
    assert octets == sum(sizes) + OF_MESSAGE * len(sizes) <= limits.keep
    assert not context.memory.is_exceeded, "the user has given up links, or else a connection"
    for holder in {each.grant.holder for each in kept}:
        assert termini.octets_of(holder) == of_termini + octets, "one account of each user: here there is one"
    assert budget.used >= of_termini + octets


def counts_at_rest(network: Network) -> dict[str, object]:
    """Return all counts that a router has of links, credit and memory once all is quiet and nobody is away.

    Not among them are those of the past (deliveries, octets, resumptions), numbers of links and connections, and what
    is counted from the attach of each link (delivery-count, ids): who comes back begins them anew.
    """
    core = network.core
    context = core.context
    whole = snapshot(core).router
    node = context.nodes.find("", "q")
    assert node is not None
    names = (
        "connections links addresses relays buffered remembered memory_used_up resumable suspended parked_unsettled "
        "kept_octets moving"
    )
    budget, octets = context.budget, context.termini.sources.octets  # type: ignore[attr-defined]
    pool = node.pool
    links = *node.incoming, *node.outgoing
    return {
        **{name: getattr(whole, name) for name in names.split()},
        "links by name": sorted(each.endpoint.name for each in links if context.link_names.having(each.key)),
        "pool": (pool.waiting, pool.demand),
        "node": (len(node.incoming), len(node.outgoing), node.returning, node.waiting.size, node.account.used),
        "memory": (budget.used, budget.holders, context.memory.reserve.used, octets.octets),
        "memory of termini": context.termini._memory.used,  # type: ignore[attr-defined]
        "connections": sorted(
            (
                record.peer.container_id or "",
                record.account.used,
                record.held_frames,
                len(record.incoming),
                len(record.outgoing),
                len(record.detached_unsettled),
                [
                    (len(session.flow_state.incoming), len(session.flow_state.outgoing))
                    for session in record.engine.channels.sessions
                ],
            )
            for record in context.connections
            if not record.own
        ),
        "receivers' credit": sorted(each.endpoint.flow_state.link_credit for each in node.outgoing),
        "unsettled": [each for each in links if each.endpoint.flow_state.unsettled],
    }
