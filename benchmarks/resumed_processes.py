"""The lanes of `benchmarks.resumed_lanes` between two routers that are processes, and connected by loopback.

    python -m benchmarks.resumed_processes [--lanes 1000] [--deliveries 100] [--rounds 3]

The connection is cut once a round. The time from the cut on counts until each delivery is resumed at both routers, and
neither of them has put anything off. A cut by the other end of the connection is waited for one second, so it fails if
the routers are connected again later than that: only an idle machine has a figure.
"""

from __future__ import annotations

import argparse
import threading
from typing import Any

from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode, Role
from amqpmesh.router.amqp.standard.messaging import Source, Target
from amqpmesh.router.amqp.standard.performatives import Attach, Flow, Transfer
from benchmarks.lanes import Client, Host, quiet, routers
from benchmarks.processes import Failed, cpu_seconds
from benchmarks.resumption import BODY, WINDOW, frame, tag
from benchmarks.tables import Figures, median

RESUME = 60
BATCH = 500  # links that are attached at a time
PATIENCE = 120.0


def attach(client: Client, lanes: int, credit: int) -> None:
    """Attach links in mode second. Args: credit: of receivers; 0: they are senders."""
    for start in range(0, lanes, BATCH):
        batch = range(start, min(start + BATCH, lanes))
        for each in batch:
            if credit:
                role, source, target = Role.RECEIVER, Source(address=f"q{each}"), Target()
            else:
                role, source, target = Role.SENDER, Source(), Target(address=f"q{each}")
            client.send(
                frame(
                    Attach(
                        name=f"l{each}", handle=each, role=role, source=source, target=target,
                        rcv_settle_mode=ReceiverSettleMode.SECOND, initial_delivery_count=None if credit else 0,
                    )
                )
            )  # fmt: skip
            if credit:
                client.send(
                    frame(
                        Flow(
                            next_incoming_id=0, incoming_window=WINDOW, next_outgoing_id=0, outgoing_window=WINDOW,
                            handle=each, delivery_count=0, link_credit=credit,
                        )
                    )
                )  # fmt: skip
        client.until(lambda last=batch[-1]: last in client.attached)  # type: ignore[misc]


def fill(producers: Client, consumers: Client, lanes: int, deliveries: int) -> None:
    """Send so many deliveries on each link, as credit and the session's window allow, until all have come."""
    left = dict.fromkeys(range(lanes), deliveries)
    number = 0

    def all_have_come() -> bool:
        nonlocal number
        octets = []
        for handle in list(left):
            room = min(left[handle], producers.credit.get(handle, 0), producers.window_limit - producers.frames_out)
            for _ in range(room):
                transfer = Transfer(handle=handle, delivery_id=number, delivery_tag=tag(number), message_format=0)
                octets.append(frame(transfer, BODY))
                number += 1
            if room > 0:
                producers.frames_out += room
                producers.credit[handle] -= room
                producers.counts[handle] = producers.counts.get(handle, 0) + room
                left[handle] -= room
                if not left[handle]:
                    del left[handle]
        producers.send(b"".join(octets))
        return consumers.frames_in == lanes * deliveries

    producers.until(all_have_come, consumers, patience=PATIENCE)


def cut(a: Host, b: Host, producers: Client, consumers: Client) -> Figures:
    """Cut the connection, and wait until all that had come is resumed.

    Returns: the seconds from the cut on, the CPU of each router, and the longest turn of a task.
    """
    count = consumers.frames_in
    quiet(producers, consumers)
    for host in (a, b):
        host.ask("turns")
    before = [cpu_seconds(host.pid) for host in (a, b)]
    at = a.ask("cut")["at"]
    found: list[dict[str, Any]] = []

    def ask(host: Host) -> None:
        found.append(host.ask(f"resumed {count}"))

    waiting = [threading.Thread(target=ask, args=(host,), daemon=True) for host in (a, b)]
    for thread in waiting:
        thread.start()
    producers.until(lambda: not any(thread.is_alive() for thread in waiting), consumers, patience=PATIENCE)
    busy = [cpu_seconds(host.pid) - was for host, was in zip((a, b), before, strict=True)]
    if any(each["again"] != count for each in found) or consumers.frames_in != count:
        raise Failed(f"not each of {count:,} deliveries is resumed, once: {found}")
    return {
        "seconds": max(each["at"] for each in found) - at,
        "sender_seconds": busy[0],
        "receiver_seconds": busy[1],
        "resume_ms": 1000 * max(each["longest"] for each in found),
    }


def run(lanes: int, deliveries: int) -> Figures:
    """Return the figures of one cut. Raises: Failed: something did not come back, or came twice."""
    with routers("--resume", str(RESUME)) as (a, b):
        consumers, producers = Client(b.clients, "consumers"), Client(a.clients, "producers")
        attach(consumers, lanes, 2 * deliveries)
        attach(producers, lanes, 0)
        fill(producers, consumers, lanes, deliveries)
        found = cut(a, b, producers, consumers)
        producers.close()
        consumers.close()
    return found


def case_of(lanes: int, deliveries: int) -> str:
    """Return the name of the case in the figures."""
    return f"{lanes:,} lanes, {deliveries:,} deliveries each, two processes"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, default=1_000)
    parser.add_argument("--deliveries", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(median([run(options.lanes, options.deliveries) for _ in range(options.rounds)]))


if __name__ == "__main__":
    main()
