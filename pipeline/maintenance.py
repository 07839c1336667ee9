"""The effect of planned maintenance, from published tables, without Spark: losses, loads, and what to do first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from amqpmesh.pipeline.contingency import Case, Failure, Flow
from amqpmesh.pipeline.cost_search import USUAL, Effort
from amqpmesh.pipeline.deliveries import DYNAMIC, MANAGEMENT
from amqpmesh.pipeline.graphs import Graph
from amqpmesh.pipeline.plan import HARM, proposed
from amqpmesh.pipeline.result_rows import VIEWS, NoTableError, opened, time_of
from amqpmesh.router.amqp.errors import CommandError

if TYPE_CHECKING:
    from datetime import datetime

    from amqpmesh.router.management.cost_plan import Change

NAMED: Final = 10
"""Addresses and links that a sentence of `Outlook.steps` names at most."""

Element = tuple[str, ...]


@dataclass(frozen=True)
class CutOff:
    """An address with a sender that reaches no receiver any more. Args: messages: those that are lost."""

    tenant: str
    address: str
    messages: float


@dataclass(frozen=True)
class LinkUse:
    """A direction of a link. Args: before, after: its load, divided by the highest load of any link before."""

    router: str
    neighbour: str
    before: float
    after: float


@dataclass(frozen=True)
class Outlook:
    """The prediction.

    Args: without: the routers and links that are away, in words. cut_off: most messages first. lost: messages without
        a path. elsewhere: those of them whose address has a receiver at another router. own: messages sent at the
        routers that are away. moved: messages that take a longer path. links: that stay, the most used first. steps:
        what to do before, in order. changes: of costs, that one of the steps proposes. use: of the most used link, with
        these changes.
    """

    without: str
    cut_off: Sequence[CutOff]
    lost: float
    elsewhere: float
    own: float
    moved: float
    links: Sequence[LinkUse]
    steps: Sequence[str]
    changes: Sequence[Change]
    use: float


def graph(out: str) -> Graph:
    """Read the recorded graph from the table `plan/links`, with the routers that have recorded and have no links.

    Raises: CommandError: the job `plan` has not run.
    """
    table = opened(out, VIEWS["plan/links"]).to_table(columns=["router", "neighbour", "cost_before"])
    edges = {(row["router"], row["neighbour"]): row["cost_before"] for row in table.to_pylist()}
    recorders: set[str] = set()
    with suppress(NoTableError):
        for batch in opened(out, VIEWS["ingest"]).to_batches(columns=["router"]):
            recorders.update(pc.unique(batch["router"]).to_pylist())
    return Graph(edges, {router for edge in edges for router in edge} | recorders)


def flows(out: str, since: datetime | None = None, until: datetime | None = None) -> list[Flow]:
    """Sum up the traffic of a time from the table `traffic/matrix`. Raises: CommandError: it is not there."""
    dataset = opened(out, VIEWS["traffic"])
    names = ("tenant", "address", "ingress", "egress")
    wanted = pc.field("ingress").is_valid() & pc.field("egress").is_valid() & pc.field("address").is_valid()
    kind = dataset.schema.field("window_start").type
    if since is not None:
        wanted &= pc.field("window_start") >= time_of(since, kind)
    if until is not None:
        wanted &= pc.field("window_start") < time_of(until, kind)
    sums: dict[tuple[str, str, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for batch in dataset.to_batches(columns=[*names, "messages", "bytes"], filter=wanted):
        some = pa.Table.from_batches([batch]).group_by([*names]).aggregate([("messages", "sum"), ("bytes", "sum")])
        for row in some.to_pylist():
            if not row["address"].startswith(MANAGEMENT):
                summed = sums[row["tenant"] or "", row["address"], row["ingress"], row["egress"]]
                summed[0] += row["messages_sum"]
                summed[1] += row["bytes_sum"]
    return sorted(Flow(*key, messages, octets) for key, (messages, octets) in sums.items())


def carried(out: str, since: datetime | None = None, until: datetime | None = None) -> dict[tuple[str, str], float]:
    """Sum up the octets of each direction of a link from the table `traffic/links`. Raises: as `flows`."""
    dataset = opened(out, VIEWS["traffic/links"])
    kind = dataset.schema.field("window_start").type
    wanted = pc.field("bytes").is_valid()
    if since is not None:
        wanted &= pc.field("window_start") >= time_of(since, kind)
    if until is not None:
        wanted &= pc.field("window_start") < time_of(until, kind)
    found: dict[tuple[str, str], float] = defaultdict(float)
    for batch in dataset.to_batches(columns=["router", "peer", "bytes"], filter=wanted):
        some = pa.Table.from_batches([batch]).group_by(["router", "peer"]).aggregate([("bytes", "sum")])
        for row in some.to_pylist():
            found[row["router"], row["peer"]] += row["bytes_sum"]
    return dict(found)


def minutes(out: str, since: datetime | None = None, until: datetime | None = None) -> tuple[float, float]:
    """Return the octets of a time, and of its busiest minute, by the table `traffic/matrix`. Raises: as `flows`."""
    dataset = opened(out, VIEWS["traffic"])
    kind = dataset.schema.field("window_start").type
    wanted = pc.field("bytes").is_valid()
    if since is not None:
        wanted &= pc.field("window_start") >= time_of(since, kind)
    if until is not None:
        wanted &= pc.field("window_start") < time_of(until, kind)
    found: dict[datetime, float] = defaultdict(float)
    for batch in dataset.to_batches(columns=["window_start", "bytes"], filter=wanted):
        for row in pa.Table.from_batches([batch]).group_by("window_start").aggregate([("bytes", "sum")]).to_pylist():
            found[row["window_start"]] += row["bytes_sum"]
    return sum(found.values()), max(found.values(), default=0.0)


def repeated(out: str, since: datetime | None = None, until: datetime | None = None) -> dict[tuple[str, str], float]:
    """Sum up the octets that links have not carried, since they carried a multicast delivery once for several routers.

    With them, loads can be compared with those that `flows` predict, where each router's part goes alone. Deliveries of
    a sample count as they are. Returns: by the direction of a link; nothing without the table `deliveries/attempts`.
    """
    found: dict[tuple[str, str], float] = defaultdict(float)
    try:
        dataset = opened(out, VIEWS["deliveries"])
    except NoTableError:
        return found
    kind = dataset.schema.field("sent_at").type
    wanted = (pc.field("legs") > 1) & pc.field("egress").is_valid()
    if since is not None:
        wanted &= pc.field("sent_at") >= time_of(since, kind)
    if until is not None:
        wanted &= pc.field("sent_at") < time_of(until, kind)
    for fragment in dataset.get_fragments():  # the rows of a delivery are in one file
        rows = fragment.to_table(columns=["key", "path", "size"], filter=wanted, schema=dataset.schema).combine_chunks()
        parents, routers = pc.list_parent_indices(rows["path"]), pc.list_flatten(rows["path"])
        if len(routers) < 2:
            continue
        joined = pc.equal(parents[:-1], parents[1:])
        of = parents[:-1].filter(joined)
        crossings = pa.table(
            {
                "router": routers[:-1].filter(joined),
                "neighbour": routers[1:].filter(joined),
                "key": rows["key"].take(of),
                "size": rows["size"].take(of),
            }
        )
        each = crossings.group_by(["router", "neighbour", "key"]).aggregate([("size", "sum"), ("size", "max")])
        for row in each.filter(pc.greater(each["size_sum"], each["size_max"])).to_pylist():
            found[row["router"], row["neighbour"]] += row["size_sum"] - row["size_max"]
    return found


def outlook(graph: Graph, flows: Sequence[Flow], away: Sequence[Element], effort: Effort = USUAL) -> Outlook:
    """Predict the effect of taking routers and links out of the mesh.

    Args: away: routers `(id,)`, and links `(id, id)`. effort: of the search for costs.
    Raises: CommandError: the graph does not have one of them.
    """
    _check(graph, away)
    case = Case.of(graph, flows)
    failure = Failure("maintenance", tuple(away))
    row = case.without(failure)
    gone = {each[0] for each in away if len(each) == 1}
    links = {frozenset(each) for each in away if len(each) == 2}
    edges = {edge: cost for edge, cost in graph.edges.items() if not gone & {*edge} and frozenset(edge) not in links}
    left = Graph(edges, graph.routers - gone)
    remaining = [each for each in flows if each.ingress not in gone and each.egress not in gone]
    most = float(case.traffic.load.max(initial=0.0)) or 1.0
    changed = None
    if row["use"] > 1 + HARM:
        changed = proposed(left, remaining, capacity=dict.fromkeys(edges, most), effort=effort)
    changes = [] if changed is None else [*changed.changes]
    use = row["use"] if changed is None else changed.use[1]
    cut_off = _cut_off(case, left, row["addresses_cut_off"])
    steps = _steps(failure, row["own_messages"], row["elsewhere_messages"], row["use"], cut_off, changes, use)
    return Outlook(
        failure.name,
        cut_off,
        row["lost_messages"],
        row["elsewhere_messages"],
        row["own_messages"],
        row["moved_messages"],
        _links(case, Case.of(left, remaining), most),
        steps,
        changes,
        use,
    )


def _check(graph: Graph, away: Sequence[Element]) -> None:
    for each in away:
        if len(each) == 1 and each[0] not in graph.routers:
            raise CommandError(f"no router {each[0]!r} in the recorded graph")
        if len(each) == 2 and (each[0], each[1]) not in graph.edges:
            raise CommandError(f"no link between {each[0]!r} and {each[1]!r} in the recorded graph")


def _cut_off(case: Case, left: Graph, number: int) -> list[CutOff]:
    """Return the addresses each of which has a sender that reaches none of its receivers."""
    if not number:
        return []
    reach = _components(left)
    served: dict[tuple[str, str, str], bool] = defaultdict(bool)
    lost: dict[tuple[str, str, str], float] = defaultdict(float)
    for flow in case.flows:
        if flow.ingress not in left.routers:
            continue
        # A dynamic node of one router cannot replace one of another router.
        address = (flow.tenant, flow.address, flow.ingress + (f" {flow.egress}" if flow.address == DYNAMIC else ""))
        if flow.egress in left.routers and reach[flow.ingress] == reach[flow.egress]:
            served[address] = True
        else:
            lost[address] += flow.messages
    summed: dict[tuple[str, str], float] = defaultdict(float)
    for (tenant, name, sender), messages in lost.items():
        if not served[tenant, name, sender]:
            summed[tenant, name] += messages
    return sorted(
        (CutOff(*key, messages) for key, messages in summed.items()), key=lambda each: (-each.messages, each.address)
    )


def _components(graph: Graph) -> Mapping[str, int]:
    neighbours: dict[str, list[str]] = defaultdict(list)
    for one, other in graph.edges:
        neighbours[one].append(other)
    found: dict[str, int] = {}
    for number, router in enumerate(sorted(graph.routers)):
        rest = [router]
        while rest:
            here = rest.pop()
            if here not in found:
                found[here] = number
                rest += neighbours[here]
    return found


def _links(before: Case, after: Case, most: float) -> list[LinkUse]:
    def loads(case: Case) -> dict[tuple[str, str], float]:
        network = case.network
        ends = zip(network.tails, network.heads, case.traffic.load, strict=True)
        return {(network.routers[tail], network.routers[head]): float(load) / most for tail, head, load in ends}

    now = loads(before)
    found = [LinkUse(*edge, now[edge], use) for edge, use in loads(after).items()]
    return sorted(found, key=lambda each: (-each.after, each.router, each.neighbour))


def _steps(
    failure: Failure,
    own: float,
    elsewhere: float,
    use: float,
    cut_off: Sequence[CutOff],
    changes: Sequence[Change],
    then: float,
) -> list[str]:
    steps = []
    if cut_off:
        names = _listed([each.address for each in cut_off])
        steps.append(f"attach receivers of {names} to routers that stay and can be reached: their senders reach none")
    routers = [each[0] for each in failure.elements if len(each) == 1]
    if changes:
        told = _listed([f"{each.router} -> {each.neighbour} from {each.before} to {each.after}" for each in changes])
        steps.append(f"change costs: {told}; the most used link is then used {then:.2f} instead of {use:.2f}")
    elif use > 1 + HARM:
        steps.append(f"see that the most used link can carry {use:.2f} of what the busiest carries now: no costs help")
    if routers and (own or elsewhere):
        steps.append(
            f"drain {_listed(routers)} (`amqpmesh drain`): {own:,.0f} messages were sent there, and receivers of "
            f"{elsewhere:,.0f} have others elsewhere"
        )
    return steps or ["nothing has to be changed first"]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} others" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
