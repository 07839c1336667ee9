"""The part `suspended`: the memory of links that are kept for peers which are away, each alone on its connection.

Each link loses its connection before the next one comes. All that stays is counted, that of the connection included.
The figures do not depend on the speed of the machine.

    python -m benchmarks.suspended [--links 1000] [--deliveries 10]
    python -m benchmarks.run --only suspended --rounds 1 [--commit-figures]
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tracemalloc
from typing import TYPE_CHECKING

from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.messaging import Source, Target, TerminusExpiryPolicy
from amqpmesh.router.amqp.standard.performatives import Attach, Flow
from amqpmesh.router.endpoint_setup import WHOLE_MAP
from benchmarks.bench import Bench, progress
from benchmarks.processes import Failed
from benchmarks.resumption import WINDOW, World, attach, frame, transfer
from benchmarks.tables import Figures, table

if TYPE_CHECKING:
    from amqpmesh.router.model.connections import ConnectionRecord

LINKS = 1_000
DELIVERIES = 10  # of each link
BEFORE = 20  # links that are lost before memory is counted: what is made only once is there then


def receiving(name: str, *, kept: bool) -> bytes:
    """Return the attach of a receiver. Args: kept: it asks to be kept, and its map tells what came whole."""
    close = TerminusExpiryPolicy.CONNECTION_CLOSE
    source = Source(address="q", expiry_policy=close, timeout=60) if kept else Source(address="q")
    offered = (WHOLE_MAP,) if kept else ()
    return frame(
        Attach(name=name, handle=0, role=Role.RECEIVER, source=source, target=Target(), offered_capabilities=offered)
    )


def credit(count: int) -> bytes:
    """Return a flow of a new link and session. Args: count: the link-credit."""
    return frame(
        Flow(
            next_incoming_id=0, incoming_window=WINDOW, next_outgoing_id=0, outgoing_window=WINDOW, handle=0,
            delivery_count=0, link_credit=count,
        )
    )  # fmt: skip


class LoneLinks:
    """A router's core, a peer that stays, and peers that are lost."""

    def __init__(self, role: Role, deliveries: int) -> None:
        """Args: role: of the peers that are lost. deliveries: that each has unsettled then."""
        self.world = World(2 * LINKS)
        self.role, self.deliveries = role, deliveries
        self.sent = 0
        self.staying = self.world.connect(-1)
        if role is Role.SENDER:
            self.world.give(self.staying, receiving("staying", kept=False) + credit(2**30))
        else:
            sender = Attach(
                name="staying",
                handle=0,
                role=Role.SENDER,
                source=Source(),
                target=Target(address="q"),
                initial_delivery_count=0,
            )
            self.world.give(self.staying, frame(sender))

    def lose(self, number: int) -> None:
        """Connect a peer, attach its link, send its deliveries, and lose its connection."""
        record = self.world.connect(number)
        if self.role is Role.SENDER:
            self.world.give(record, attach(number, 0, None))
            self._send(record, 0)
        else:
            self.world.give(record, receiving(f"link-{number}", kept=True) + credit(self.deliveries))
            self._send(self.staying, self.sent)
            self.sent += self.deliveries
        for each in (record, self.staying):
            self.world.give(each, b"")
        self.world.core.receive_eof(record, self.world.now)
        self.world.work()

    def _send(self, record: ConnectionRecord, first: int) -> None:
        """Send the deliveries of one link. Args: first: the delivery-id of the first of them."""
        for each in range(first, first + self.deliveries):
            self.world.give(record, transfer(each, 0, each, resume=False))


def octets_of(role: Role, links: int, deliveries: int) -> float:
    """Return the octets that stay for each link, with its deliveries."""
    lone = LoneLinks(role, deliveries)
    for number in range(BEFORE):
        lone.lose(number)
    gc.collect()
    tracemalloc.start()
    for number in range(BEFORE, BEFORE + links):
        lone.lose(number)
    gc.collect()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    context = lone.world.core.context
    if context.termini.suspended_number != BEFORE + links or context.in_flight != (BEFORE + links) * deliveries:
        raise Failed("not all links and deliveries are kept")
    return taken / links


def once(role: Role, links: int, deliveries: int) -> float:
    """Measure in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.suspended", "--once", role.name]
    command += ["--links", str(links), "--deliveries", str(deliveries)]
    found: float = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def measure(role: Role, links: int, deliveries: int) -> Figures:
    """Return the octets of a link without deliveries, and of each delivery."""
    empty = once(role, links, 0)
    return {"octets": empty, "delivery_octets": (once(role, links, deliveries) - empty) / deliveries}


def case_of(role: Role) -> str:
    """Return the name of a case. Args: role: of the peers."""
    return f"{role.name.lower()} alone on its connection, {DELIVERIES} deliveries"


def suspended(bench: Bench) -> None:
    """Measure what links take whose peers are away, and that had a connection each."""
    if bench.router is not None:
        return
    rows = []
    for role in (Role.SENDER, Role.RECEIVER):
        case = case_of(role)
        progress(f"suspended: {case}")
        found = bench.keep("suspended", case, {"router": measure(role, LINKS, DELIVERIES)})["router"]
        rows.append((case, [f"{found['octets']:,.0f}", f"{found['delivery_octets']:,.0f}"]))
    table("suspended", ["octets of a link", "of a delivery"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", type=int, default=LINKS)
    parser.add_argument("--deliveries", type=int, default=DELIVERIES)
    parser.add_argument("--once", choices=[role.name for role in Role], help="print the octets of a link of this role")
    options = parser.parse_args()
    if options.once is not None:
        print(json.dumps(octets_of(Role[options.once], options.links, options.deliveries)))
        return
    for role in (Role.SENDER, Role.RECEIVER):
        print(role.name.lower(), measure(role, options.links, options.deliveries))


if __name__ == "__main__":
    main()
