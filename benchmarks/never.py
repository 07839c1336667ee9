"""A million attaches that ask to be kept for ever, with an empty map, and are closed: memory stays as it is.

    python -m benchmarks.never [--attaches 1000000]

A router's core is in this process, and gets the octets of its peers without sockets. Each attach is granted time, and
its name comes once. Every tenth batch of links is lost with its connection instead, and its time passes. The script
prints what the router has after each tenth of the attaches: living objects, octets of its account, resident memory.
"""

from __future__ import annotations

import argparse
import gc
import os
from collections.abc import Iterator
from typing import NamedTuple

from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.messaging import Source, Target, TerminusExpiryPolicy
from amqpmesh.router.amqp.standard.performatives import Attach, Begin, Detach, Open
from amqpmesh.router.config.file import RouterConfig
from amqpmesh.router.config.listener import ListenerConfig
from amqpmesh.router.core import Core
from amqpmesh.router.model.connections import ConnectionRecord
from benchmarks.processes import Failed, resident_bytes
from benchmarks.resumption import HEADER, WINDOW, frame

BATCH = 100  # links that are attached at a time
PARTS = 10
PASSING = 61.0  # seconds: longer than a link is kept

NEVER = Target(address="q", expiry_policy=TerminusExpiryPolicy.NEVER, timeout=2**32 - 1)


class Use(NamedTuple):
    """The use of a router after some attaches."""

    attaches: int
    granted: int
    """Of all attaches so far."""
    objects: int
    octets: int
    """Of the router's account of memory."""
    resident: int
    """Octets of the process."""


class Flood:
    """A peer that attaches links with names that never come again."""

    def __init__(self) -> None:
        self._listener = ListenerConfig(url="amqp://127.0.0.1:0", name="flood", idle_time_out=0.0, handle_max=BATCH)
        self._core = Core(RouterConfig(id="A", listeners=(self._listener,)), 1.0)
        self._now = 1.0
        self._granted = self._attaches = 0
        self._record = self._connect()

    def _connect(self) -> ConnectionRecord:
        record = self._core.accept(self._listener, "127.0.0.1", self._now, secured=False)
        begun = Begin(next_outgoing_id=0, incoming_window=WINDOW, outgoing_window=WINDOW, handle_max=BATCH)
        self._give(record, HEADER + frame(Open(container_id="flood", channel_max=1)) + frame(begun))
        return record

    def _give(self, record: ConnectionRecord, octets: bytes) -> None:
        while not self._core.receive(record, octets, self._now):
            octets = b""
        self._core.data_to_send(record, self._now)
        self._core.sent(record, self._now)
        self._work()

    def _work(self) -> None:
        while self._core.context.chores:
            self._core.work(self._now, lambda: False)

    def batch(self, *, is_lost: bool) -> None:
        """Attach some links, and close them, or lose them and let their time pass."""
        before = self._core.context.termini.granted
        attaches = [
            frame(
                Attach(
                    name=f"never-{self._attaches + handle}", handle=handle, role=Role.SENDER, source=Source(),
                    target=NEVER, unsettled={}, initial_delivery_count=0,
                )
            )
            for handle in range(BATCH)
        ]  # fmt: skip
        self._give(self._record, b"".join(attaches))
        self._attaches += BATCH
        self._granted += self._core.context.termini.granted - before
        if not is_lost:
            self._give(self._record, b"".join(frame(Detach(handle=each, closed=True)) for each in range(BATCH)))
            return
        self._core.receive_eof(self._record, self._now)
        self._work()
        self._now += PASSING
        self._core.handle_timer(self._now)
        self._work()
        self._record = self._connect()

    def use(self) -> Use:
        """Return what the router has now, once nothing is left to collect. Raises: Failed: a link is kept still."""
        if self._core.context.termini.granted:
            raise Failed("links are kept still")
        gc.collect()
        octets = self._core.context.budget.used
        return Use(self._attaches, self._granted, len(gc.get_objects()), octets, resident_bytes(os.getpid()))


def rage(attaches: int, parts: int = PARTS) -> Iterator[Use]:
    """Let a flood rage. Yields: what the router has after each part of the attaches."""
    flood = Flood()
    for number in range(attaches // BATCH):
        flood.batch(is_lost=number % 10 == 9)
        if (number + 1) % (attaches // BATCH // parts) == 0:
            yield flood.use()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attaches", type=int, default=1_000_000)
    options = parser.parse_args()
    for use in rage(options.attaches):
        print(use, flush=True)


if __name__ == "__main__":
    main()
