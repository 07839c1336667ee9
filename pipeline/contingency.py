"""The effect of failures of links and routers: unreachable receivers, longer paths, and overloaded links.

The recorded traffic is routed over the recorded graph without the failed element, as routers would share it
(`routing`). Deliveries to a router count as lost if no path leads to it any more, even if their address has receivers
elsewhere; the column `elsewhere` has the number of those. A multicast delivery counts for each router at which it left
the mesh.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from amqpmesh.pipeline.deliveries import DYNAMIC, between, without_management
from amqpmesh.pipeline.events import Column, spark_schema, table
from amqpmesh.pipeline.graphs import Graph, recorded
from amqpmesh.pipeline.routing import Amounts, Network, Numbers, Traffic
from amqpmesh.pipeline.work import Done, Table, Work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAMED: Final = 20
"""Addresses cut off by a failure that are named at most; all are counted."""

SHOWN: Final = 10
"""Failures in the summary."""

FAILURES: Final = (
    Column("rank", pa.int64(), "1 is the worst: it cuts off most addresses and, among equals, loses most messages"),
    Column("kind", pa.string(), "`link`, `router` or `pair`"),
    Column("elements", pa.list_(pa.string()), "the failed routers, `A`, and links, `A - B`"),
    Column("failure", pa.string(), "the failed elements in words"),
    Column("addresses_cut_off", pa.int64(), "addresses with a sender that can no longer reach any receiver"),
    Column("addresses", pa.list_(pa.string()), f"the names of these addresses, at most {NAMED}"),
    Column("lost_messages", pa.float64(), "recorded messages that have no path to the router that received them"),
    Column("lost_bytes", pa.float64(), "the payload of these messages", "octets"),
    Column(
        "elsewhere_messages", pa.float64(), "of `lost_messages`, those whose address has another reachable receiver"
    ),
    Column("own_messages", pa.float64(), "messages sent at a failed router; they are not counted as lost"),
    Column("moved_messages", pa.float64(), "messages that arrive on a path with a higher cost"),
    Column(
        "stretch",
        pa.float64(),
        "the average path cost of the messages that arrive, divided by that without the failure",
    ),
    Column(
        "most_loaded",
        pa.string(),
        "the direction of a link with the highest load; null if no link carries any",
        "",
        True,
    ),
    Column("most_loaded_bytes", pa.float64(), "the load of that direction, from the recorded traffic", "octets"),
    Column("use", pa.float64(), "that load, divided by the highest load without the failure"),
)
"""The columns of the table `contingency`."""


class Flow(NamedTuple):
    """Traffic between two routers."""

    tenant: str
    address: str
    ingress: str
    egress: str
    messages: float
    bytes: float


class Failure(NamedTuple):
    """A simultaneous failure. Args: kind: link, router or pair. elements: each `A` or `A-B`, as ids."""

    kind: str
    elements: tuple[tuple[str, ...], ...]

    @property
    def name(self) -> str:
        """The failed routers and links, as a text for people."""
        return " and ".join(_shown(each) for each in self.elements)


def _shown(element: tuple[str, ...]) -> str:
    return " - ".join(element)


@dataclass(frozen=True, eq=False)
class Case:
    """A graph and its traffic, for many failures. Flows without a path at the start are left out."""

    network: Network
    traffic: Traffic
    flows: list[Flow]
    #: For each flow: its first router, the place of its last router among the targets, and the number of its address.
    begins: Numbers
    ends: Numbers
    address: Numbers
    messages: Amounts
    bytes: Amounts
    #: The cost of each flow's path.
    far: Amounts
    #: Flows without a path.
    unreachable: int
    #: The capacity of each edge in octets; None: the load of the busiest edge before the failure.
    capacity: Amounts | None = None

    @staticmethod
    def of(graph: Graph, flows: Sequence[Flow], capacity: Amounts | None = None) -> Case:
        """Args: flows: those within one router use no link, but their address can be cut off. capacity: of
        each edge.
        """
        network = Network.of(graph.edges, graph.routers)
        place = network.place
        known = [each for each in flows if each.ingress in place and each.egress in place]
        traffic = Traffic(network, [(each.ingress, each.egress, each.bytes) for each in known])
        row = {int(target): at for at, target in enumerate(traffic.targets)}
        ends = [row.get(place[each.egress], -1) for each in known]
        begins = [place[each.ingress] for each in known]
        distances = traffic.distances
        far = np.array(
            [
                0.0 if each.ingress == each.egress else distances[end, begin]
                for each, begin, end in zip(known, begins, ends, strict=True)
            ]
        )
        kept = np.flatnonzero(np.isfinite(far)) if len(known) else np.array([], dtype=np.int64)
        some = [known[at] for at in kept]
        numbers: dict[tuple[str, str, str], int] = {}
        # A dynamic node of one router cannot replace one of another router.
        nodes = [(each.tenant, each.address, each.egress if each.address == DYNAMIC else "") for each in some]
        address = [numbers.setdefault(node, len(numbers)) for node in nodes]
        return Case(
            network,
            traffic,
            some,
            np.array([begins[at] for at in kept], dtype=np.int64),
            np.array([ends[at] for at in kept], dtype=np.int64),
            np.array(address, dtype=np.int64),
            np.array([each.messages for each in some], dtype=np.float64),
            np.array([each.bytes for each in some], dtype=np.float64),
            far[kept],
            len(flows) - len(some),
            capacity,
        )

    def load_of(self, tenant: str) -> Amounts:
        """Return the octets of a tenant on each edge."""
        sent = [(each.ingress, each.egress, each.bytes) for each in self.flows if each.tenant == tenant]
        return Traffic(self.network, sent).load

    def failures(self) -> list[Failure]:
        """Return every single link and router."""
        return [
            *(Failure("link", (link,)) for link in self.network.links()),
            *(Failure("router", ((router,),)) for router in self.network.routers),
        ]

    def edges(self, elements: Iterable[tuple[str, ...]]) -> Numbers:
        """Return the edges of links and routers."""
        found = [
            self.network.edges_between(*each) if len(each) == 2 else self.network.edges_at(*each) for each in elements
        ]
        return np.unique(np.concatenate(found))

    def without(self, failure: Failure) -> dict[str, Any]:
        """Return the effect of a failure: a row of the result without its rank."""
        network, traffic = self.network, self.traffic
        routers = np.array([network.place[each[0]] for each in failure.elements if len(each) == 1], dtype=np.int64)
        rows, now, load = traffic.without(self.edges(failure.elements), routers)
        # The place of each flow's last router among the targets whose paths may change, and the cost of its new path.
        position = np.full(len(traffic.targets) + 1, -1)
        position[rows] = np.arange(len(rows))
        at = position[self.ends]
        is_within = self.ends < 0
        at[is_within] = -1
        far = self.far.copy()
        changed = np.flatnonzero(at >= 0)
        far[changed] = now[at[changed], self.begins[changed]]
        end_at = np.where(is_within, self.begins, traffic.targets[self.ends] if len(traffic.targets) else 0)
        own = np.isin(self.begins, routers)
        gone = np.isin(end_at, routers)
        far[own | gone] = np.inf
        lost = np.isinf(far) & ~own
        cut, elsewhere = self._cut_off(lost, own)
        arrives = ~np.isinf(far)
        moved = arrives & (far > self.far)
        before, after = (self.far * self.messages)[arrives].sum(), (far * self.messages)[arrives].sum()
        most = float(traffic.load.max(initial=0.0))
        use = load / (self.capacity if self.capacity is not None else most or 1.0)
        busiest = int(use.argmax()) if len(use) else -1
        names = sorted({self.flows[flow].address for flow in cut})
        return {
            "kind": failure.kind,
            "elements": [_shown(each) for each in failure.elements],
            "failure": failure.name,
            "addresses_cut_off": len({int(self.address[flow]) for flow in cut}),
            "addresses": names[:NAMED],
            "lost_messages": float(self.messages[lost].sum()),
            "lost_bytes": float(self.bytes[lost].sum()),
            "elsewhere_messages": float(self.messages[elsewhere].sum()),
            "own_messages": float(self.messages[own].sum()),
            "moved_messages": float(self.messages[moved].sum()),
            "stretch": float(after / before) if before else 1.0,
            "most_loaded": self._edge(busiest) if busiest >= 0 and load[busiest] > 0 else None,
            "most_loaded_bytes": float(load[busiest]) if busiest >= 0 else 0.0,
            "use": float(use[busiest]) if busiest >= 0 else 0.0,
        }

    def _cut_off(self, lost: np.ndarray, own: np.ndarray) -> tuple[Numbers, Numbers]:
        """Split the lost flows: those of addresses without any reachable receiver, and the others."""
        flows = np.flatnonzero(lost)
        if not len(flows):
            return flows, flows
        width = len(self.network)
        served = np.unique((self.address * width + self.begins)[~lost & ~own])
        has_others = np.isin((self.address * width + self.begins)[flows], served)
        return flows[~has_others], flows[has_others]

    def _edge(self, edge: int) -> str:
        routers = self.network.routers
        return f"{routers[self.network.tails[edge]]} -> {routers[self.network.heads[edge]]}"


def contingency(case: Case, failures: Sequence[Failure], like: DataFrame) -> DataFrame:
    """Make the table `contingency` (`FAILURES`): a row for each failure, the worst first.

    The worst failure cuts off most addresses, then loses most messages, then loads a link most.
    Args: like: any frame of the session.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

    spark = like.sparkSession
    shared = spark.sparkContext.broadcast(pickle.dumps(case))
    slices = max(1, min(len(failures), 4 * spark.sparkContext.defaultParallelism))
    numbered = spark.range(0, len(failures), 1, slices)
    # Routers take longer than links and are listed together, so they are spread over all tasks.
    mixed = [failure for begin in range(slices) for failure in failures[begin::slices]]
    told = spark.sparkContext.broadcast(pickle.dumps(mixed))

    def evaluate(batches: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        # The driver of this program pickled both.
        here: Case = pickle.loads(shared.value)  # noqa: S301
        all_of_them: list[Failure] = pickle.loads(told.value)  # noqa: S301
        for batch in batches:
            yield pd.DataFrame([{"rank": 0, **here.without(all_of_them[int(each)])} for each in batch["id"]])

    found = numbered.mapInPandas(evaluate, spark_schema(FAILURES))
    order = Window.orderBy(
        F.desc("addresses_cut_off"), F.desc("lost_messages"), F.desc("use"), F.desc("stretch"), "kind", "failure"
    )
    return found.withColumn("rank", F.row_number().over(order).cast("bigint"))


def job(work: Work) -> Done:
    """Run the job."""
    edges = table(work.spark, work.place("ingest"), "edges")
    hops = between(table(work.spark, work.place("ingest"), "hops"), work.since, work.until)
    case = Case.of(recorded(edges, hops), flows(work.read("traffic/matrix")))
    from amqpmesh.pipeline.pairs import worst as worst_pairs  # it makes failures of this module

    pairs = worst_pairs(case)
    failures = [*case.failures(), *pairs.failures]
    rows = work.write("contingency", contingency(case, failures, edges))
    worst = work.read("contingency").where(f"rank <= {SHOWN}").orderBy("rank").collect()
    shown = Table(
        "worst failures",
        ("failure", "addresses cut off", "messages lost", "stretch", "most loaded", "of the most before"),
        tuple(
            (
                each["failure"],
                each["addresses_cut_off"],
                round(each["lost_messages"]),
                each["stretch"],
                each["most_loaded"],
                each["use"],
            )
            for each in worst
        ),
    )
    figures = {
        "routers": len(case.network),
        "links": len(case.network.links()),
        "flows": len(case.flows),
        "flows that had no way": case.unreachable,
        "single failures": len(failures) - len(pairs.failures),
        "pairs": len(pairs.failures),
        "of all pairs": pairs.judged,
        "no other pair loads a link more than": pairs.bound,
    }
    return Done(rows, figures, (shown,))


def flows(traffic: DataFrame) -> list[Flow]:
    """Return the traffic between routers in all windows of the table `traffic`; deliveries that did not leave the mesh
    have no egress. Management traffic is left out.
    """
    from pyspark.sql import functions as F  # noqa: N812

    known = traffic.where(F.col("ingress").isNotNull() & F.col("egress").isNotNull() & F.col("address").isNotNull())
    tenant = F.coalesce("tenant", F.lit("")) if "tenant" in traffic.columns else F.lit("")
    summed = (
        without_management(known)
        .groupBy(tenant.alias("tenant"), "address", "ingress", "egress")
        .agg(F.sum("messages").cast("double").alias("messages"), F.sum("bytes").cast("double").alias("bytes"))
    )
    return sorted(Flow(*row) for row in summed.collect())
