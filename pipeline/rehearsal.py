"""A rehearsal of a plan on real routers in virtual time, before it is applied.

The recorded graph becomes a simulated mesh. Its costs are changed while messages cross it, by the same requests as
`amqpmesh routes apply` sends; no message may be lost. Then each router must have the predicted next hops, and messages
are sent in proportion to the recorded traffic: links must carry the predicted shares.

A lane between two routers uses one of several equally cheap paths, chosen by its name. Traffic with a choice of paths
is therefore sent to several addresses, and must match the prediction within the random variation of that many lanes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Final

import numpy as np
import trio
from trio.testing import MockClock

from amqpmesh.pipeline.routing import Amounts, Network, Traffic
from amqpmesh.router.amqp.errors import AmqpMeshError
from amqpmesh.router.management.apply_plan import ReroutingError, change_states, set_cost
from amqpmesh.router.management.cost_plan import Change, Verdict
from amqpmesh.router.management.service import ADDRESS
from amqpmesh.topology.simulation.mesh import Mesh

if TYPE_CHECKING:
    from amqpmesh.pipeline.graphs import Graph
    from amqpmesh.router.client.receiver import Receiver

MOST_ROUTERS: Final = 60
"""Routers of a simulated graph at most: each is a real one, in this process."""

FLOWS: Final = 150
"""Pairs of routers with messages, those with most traffic; the others get none."""

MESSAGES: Final = 3_000
"""Messages sent at least, by all pairs together."""

LANES: Final = 16
"""Addresses that traffic with a choice of paths is divided among."""

WATCHED: Final = 40
"""Pairs of routers with messages while costs change."""

PAUSE: Final = 0.01
"""Seconds of virtual time between two changes, in which some messages are sent."""

DEVIATIONS: Final = 4.0
"""Standard deviations of the random choice of lanes that a link's load may differ from the prediction."""

PATIENCE: Final = 120.0
"""Seconds of virtual time for the mesh to settle."""

LONGEST: Final = 3600.0
"""Seconds of virtual time for the whole rehearsal: then something hangs."""

_BEFORE: Final = "before"
_AFTER: Final = "after"


@dataclass(frozen=True)
class Rehearsal:
    """The result of a rehearsal.

    Args: messages: sent, and arrived. hops: next hops compared. deviation: the greatest difference between the load of
        a link and its prediction, as a share of the greatest load. wrong: all differences from the prediction, as
        sentences.
    """

    messages: int
    hops: int
    deviation: float
    wrong: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        """The result in a sentence."""
        if self.wrong:
            more = f" ({len(self.wrong) - 1} more)" if len(self.wrong) > 1 else ""
            return Verdict(False, f"{self.wrong[0]}{more}")
        return Verdict(
            True,
            f"costs were changed while messages went, and {self.messages:,} of {self.messages:,} arrived; "
            f"{self.hops:,} next hops are as predicted; what links carry differs by {self.deviation:.1%} at most",
        )


@dataclass(frozen=True)
class _Flow:
    """Messages from a router to another, over a number of lanes. Args: crossed: the share of them on each edge."""

    ingress: str
    egress: str
    each: int
    lanes: int
    crossed: Amounts

    @property
    def messages(self) -> int:
        return self.each * self.lanes


def rehearsed(graph: Graph, flows: Sequence[tuple[str, str, float]], changes: Sequence[Change]) -> Verdict:
    """Try a plan. Args: flows: from, to, and amount. Returns: the result, or the reason why it was not tried."""
    if not changes:
        return Verdict(None, "there is nothing to be changed")
    routers = len(Network.of(graph.edges, graph.routers))
    if routers > MOST_ROUTERS:
        return Verdict(None, f"{routers:,} routers are more than the {MOST_ROUTERS} that are simulated")
    try:
        return rehearsal(graph, flows, changes).verdict
    except trio.TooSlowError as error:
        return Verdict(False, f"the simulated mesh did not settle: {error or 'it hangs'}")
    except AmqpMeshError as error:
        return Verdict(False, str(error))
    except (ExceptionGroup, AssertionError) as error:  # an internal error of a router, or something left behind
        return Verdict(False, f"the simulated mesh failed: {error!r}")


def rehearsal(graph: Graph, flows: Sequence[tuple[str, str, float]], changes: Sequence[Change]) -> Rehearsal:
    """Try a plan. Raises: ReroutingError: costs cannot be changed. trio.TooSlowError: the mesh does not settle."""
    found: list[Rehearsal] = []

    async def main() -> None:
        with trio.fail_after(LONGEST):
            async with Mesh() as mesh:
                found.append(await _play(mesh, graph, flows, changes))

    trio.run(main, clock=MockClock(autojump_threshold=0))
    return found[0]


async def _play(
    mesh: Mesh, graph: Graph, flows: Sequence[tuple[str, str, float]], changes: Sequence[Change]
) -> Rehearsal:
    old = Network.of(graph.edges, graph.routers)
    for router in old.routers:
        await mesh.router(router)
    for one, other in sorted(graph.edges):
        if one < other:
            mesh.link(one, other, cost=graph.edges[one, other], back=graph.edges[other, one])
    await mesh.settled(PATIENCE)
    new = Network.of({**graph.edges, **{(each.router, each.neighbour): each.after for each in changes}}, graph.routers)
    wrong = _hops(mesh, old)[1]
    failure: ReroutingError | trio.TooSlowError | None = None
    # While costs change, messages on the old paths must arrive, too.
    watched = [replace(flow, lanes=1) for flow in _flows_to_send(old, flows)[:WATCHED]]
    during = _Sending(mesh, _BEFORE, wrong, endless=True)
    async with trio.open_nursery() as nursery:
        for number, flow in enumerate(watched):
            nursery.start_soon(during.send, flow, number)
        await during.arrived(len(watched))
        try:
            for change in changes:
                async with mesh[change.router].requester(ADDRESS) as management:
                    (standing,) = await change_states(change.router, [change], management.request)
                    await set_cost(standing, change.after, management.request)
                await trio.sleep(PAUSE)
            await mesh.settled(PATIENCE)
        except (ReroutingError, trio.TooSlowError) as error:
            failure = error  # raised outside: the nursery would wrap it
        during.release.set()
    if failure is not None:
        raise failure
    hops, others = _hops(mesh, new)
    wrong += others
    going = _flows_to_send(new, flows)
    after = _Sending(mesh, _AFTER, wrong)
    async with trio.open_nursery() as nursery:
        for number, flow in enumerate(going):
            nursery.start_soon(after.send, flow, number)
        await after.arrived(sum(flow.lanes for flow in going))
        # Read before lanes end: their counters end with them.
        carried = _count_carried(mesh)
        after.release.set()
    deviation, others = _greatest_difference(new, going, carried)
    return Rehearsal(during.accepted + after.accepted, hops, deviation, (*wrong, *others))


class _Sending:
    """The messages of one phase.

    Args: wrong: gets a sentence for each message that was not accepted. endless: messages continue until `release`;
        otherwise each flow sends all of its messages, and its receivers stay that long.
    """

    def __init__(self, mesh: Mesh, phase: str, wrong: list[str], *, endless: bool = False) -> None:
        self.accepted = 0
        self.release = trio.Event()
        self._mesh = mesh
        self._phase = phase
        self._wrong = wrong
        self._endless = endless
        self._arrived: set[str] = set()
        self._progress = trio.Event()

    async def arrived(self, lanes: int) -> None:
        """Wait until all messages were sent on a number of lanes; for endless flows, until the first message was."""
        while len(self._arrived) < lanes:
            self._progress = trio.Event()
            await self._progress.wait()

    async def send(self, flow: _Flow, number: int) -> None:
        """Send all messages of a flow, over all of its lanes."""
        async with trio.open_nursery() as nursery:
            for lane in range(flow.lanes):
                nursery.start_soon(self._send_on, flow, f"{self._phase}/{number}/{lane}")

    async def _send_on(self, flow: _Flow, address: str) -> None:
        async with (
            self._mesh[flow.egress].receiver(address, credit=50) as receiver,
            self._mesh[flow.ingress].sender(address) as sender,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(_take, receiver)
            try:
                for number in count():
                    if number == (1 if self._endless else flow.each):
                        self._tell(address)
                    if self.release.is_set() if self._endless else number == flow.each:
                        break
                    await sender.send(b"")
                    self.accepted += 1
            except AmqpMeshError as error:
                self._wrong.append(f"a message from {flow.ingress} to {flow.egress} was lost: {error}")
                self._tell(address)
            await self.release.wait()
            nursery.cancel_scope.cancel()

    def _tell(self, address: str) -> None:
        self._arrived.add(address)
        self._progress.set()


async def _take(receiver: Receiver) -> None:
    async for delivery in receiver:
        delivery.accept()


def _count_carried(mesh: Mesh) -> dict[tuple[str, str], int]:
    """Return the messages of the second phase from each router to each neighbour."""
    found: dict[tuple[str, str], int] = defaultdict(int)
    for node in mesh:
        for lane in node.statistics().lanes:
            if lane.direction == "outgoing" and (lane.address or "").startswith(_AFTER):
                found[node.id, lane.neighbour] += lane.deliveries
    return found


def _flows_to_send(network: Network, flows: Sequence[tuple[str, str, float]]) -> list[_Flow]:
    """Return the flows to send: those with most traffic, in proportion."""
    amounts: dict[tuple[str, str], float] = defaultdict(float)
    for ingress, egress, amount in flows:
        if ingress != egress and ingress in network.place and egress in network.place and amount > 0:
            amounts[ingress, egress] += amount
    most = sorted(amounts.items(), key=lambda each: (-each[1], each[0]))[:FLOWS]
    total = sum(amount for _, amount in most)
    divided = []
    for (ingress, egress), amount in most:
        alone = Traffic(network, [(ingress, egress, 1.0)])
        if not np.isfinite(alone.distances[0, network.place[ingress]]):
            continue
        has_choice = bool(((alone.load > 0) & (alone.load < 1)).any())
        lanes = LANES if has_choice else 1
        each = max(1, round(MESSAGES * amount / total / lanes))
        divided.append(_Flow(ingress, egress, each, lanes, alone.load))
    return divided


def _hops(mesh: Mesh, network: Network) -> tuple[int, list[str]]:
    """Return the number of next hops, and those that differ from the prediction."""
    routers = network.routers
    distances = network.distances(np.arange(len(network)))
    compared, wrong = 0, []
    for router in routers:
        told = {route.router: set(route.next_hops) for route in mesh[router].statistics().routes}
        at = network.place[router]
        edges = range(network.first[at], network.first[at + 1])
        for target, other in enumerate(routers):
            if other == router or not np.isfinite(distances[target, at]):
                continue
            hops = {
                routers[network.heads[edge]]
                for edge in edges
                if distances[target, at] == distances[target, network.heads[edge]] + network.costs[edge]
            }
            compared += len(hops)
            if told.get(other) != hops:
                wrong.append(
                    f"{router} sends to {other} by {', '.join(sorted(told.get(other, ()))) or 'nobody'}, "
                    f"and not by {', '.join(sorted(hops))}"
                )
    return compared, wrong


def _greatest_difference(
    network: Network, flows: Sequence[_Flow], carried: Mapping[tuple[str, str], int]
) -> tuple[float, list[str]]:
    """Return the greatest difference between loads and predictions; and the links where it is too great."""
    predicted = np.zeros(len(network.costs))
    variance = np.zeros(len(network.costs))
    for flow in flows:
        predicted += flow.crossed * flow.messages
        # A lane uses an edge with all of its messages, or not at all.
        variance += flow.crossed * (1 - flow.crossed) * flow.lanes * flow.each**2
    most = float(predicted.max(initial=0.0)) or 1.0
    worst, wrong = 0.0, []
    for edge, (tail, head) in enumerate(zip(network.tails, network.heads, strict=True)):
        found = carried.get((network.routers[tail], network.routers[head]), 0)
        difference = abs(found - float(predicted[edge]))
        worst = max(worst, difference / most)
        if difference > DEVIATIONS * float(np.sqrt(max(variance[edge], 0.0))) + 0.5:
            wrong.append(
                f"{network.routers[tail]} -> {network.routers[head]} carried {found:,} messages, and not "
                f"{predicted[edge]:,.0f}"
            )
    return worst, wrong
