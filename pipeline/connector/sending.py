"""Sending of rows: unsettled, many at a time, and repeated where that may help, until each is accepted or the task
fails.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from amqpmesh.pipeline.connector import peer
from amqpmesh.router.amqp.errors import AmqpMeshError, CommandError, ConnectionClosedError, InDoubtError
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Rejected
from amqpmesh.router.message.outcomes import outcome_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from amqpmesh.pipeline.connector.options import Options
    from amqpmesh.router.client.connect import Connection
    from amqpmesh.router.client.sender import Sender
    from amqpmesh.router.client.sent import Sent

WATCH: Final = 0.1
"""Seconds between two checks of progress."""


class RowError(AmqpMeshError):
    """A row was refused for good; with the row and the reason."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A row to send: its key, for people, and its octets."""

    name: str
    payload: bytes


@dataclass(slots=True)
class Tally:
    """Counts of rows by result."""

    accepted: int = 0
    dead: int = 0
    repeated: int = 0


def send(options: Options, batches: Iterator[list[Letter]]) -> Tally:
    """Send all rows, and wait until each is accepted, by the address or by the dead-letter address.

    Raises: RowError: a row was refused. AmqpMeshError: the peer cannot be reached, or accepts nothing, for too long.
    """
    return trio.run(Sending(options).run, batches)


class Sending:
    """The work of one task."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._tally = Tally()
        #: The time of the last progress, by `time.monotonic`; and the time since which there is no link.
        self._moved = time.monotonic()
        self._lost: float | None = None
        self._failure: AmqpMeshError | None = None

    async def run(self, batches: Iterator[list[Letter]]) -> Tally:
        """Connect if there are rows, and send them. Returns, Raises: as the function `send`."""
        first = await trio.to_thread.run_sync(next, batches, None)
        if first is None:
            return self._tally  # no rows, no connection
        limit: float = self._options["connectTimeout"]
        address: str = self._options["address"]
        with trio.move_on_after(limit) as patience:
            async with peer.connection(self._options, "writer") as connection, connection.sender(address) as sender:
                patience.deadline = float("inf")
                await self._watched(sender, lambda: self._send_all(connection, sender, first, batches))
                return self._tally
        urls = ", ".join(self._options["url"])
        raise ConnectionClosedError(f"{address!r} at {urls}: no connection and no link came about within {limit:g} s")

    async def _send_all(
        self, connection: Connection, sender: Sender, first: list[Letter], batches: Iterator[list[Letter]]
    ) -> None:
        batch: list[Letter] | None = first
        while batch is not None:
            await self._send(connection, sender, batch)
            # Spark may take long for the next rows: the connection is served meanwhile.
            self._moved = float("inf")
            batch = await trio.to_thread.run_sync(next, batches, None)
            self._moved = time.monotonic()

    async def _send(self, connection: Connection, sender: Sender, batch: list[Letter]) -> None:
        """Send a batch until each row is accepted."""
        attempts: int = self._options["attempts"]
        for attempt in range(1, attempts + 1):
            failed = await self._send_each_once(sender, batch)
            again: list[Letter] = []
            for letter, error, hopeless in failed:
                if hopeless or attempt == attempts:
                    await self._send_dead_letter(connection, letter, error, attempt)
                else:
                    again.append(letter)
            if not again:
                return
            self._tally.repeated += len(again)
            self._moved = time.monotonic() + self._options["retryPause"]
            await trio.sleep(self._options["retryPause"])
            batch = again

    async def _send_each_once(self, sender: Sender, batch: list[Letter]) -> list[tuple[Letter, AmqpMeshError, bool]]:
        """Send each row once. Returns: those that were not accepted, why, and whether another attempt is useless."""
        failed: list[tuple[Letter, AmqpMeshError, bool]] = []
        flying: deque[tuple[Letter, Sent]] = deque()
        for letter in batch:
            if len(flying) >= self._options["inFlight"]:
                await self._check_outcome(*flying.popleft(), failed)
            try:
                flying.append((letter, await sender.transfer_payload(letter.payload)))
            except CommandError as error:  # too large for the peer
                failed.append((letter, error, True))
            self._moved = time.monotonic()
        while flying:
            await self._check_outcome(*flying.popleft(), failed)
        return failed

    async def _check_outcome(
        self, letter: Letter, sent: Sent, failed: list[tuple[Letter, AmqpMeshError, bool]]
    ) -> None:
        try:
            outcome = await sent.outcome()
        except InDoubtError as error:
            failed.append((letter, error, False))
        else:
            if isinstance(outcome, Accepted):
                self._tally.accepted += 1
            else:
                failed.append((letter, outcome_error(outcome), isinstance(outcome, Rejected)))
        self._moved = time.monotonic()

    async def _send_dead_letter(
        self, connection: Connection, letter: Letter, error: AmqpMeshError, attempt: int
    ) -> None:
        """Send a row to the dead-letter address. Raises: RowError: there is none, or the row is not accepted there."""
        why = f"row {letter.name}: {error}" + (f", after {attempt} attempts" if attempt > 1 else "")
        address: str | None = self._options["deadLetterAddress"]
        if address is None:
            raise RowError(why)
        try:
            async with connection.sender(address) as sender:
                outcome = await (await sender.transfer_payload(letter.payload)).outcome()
                if not isinstance(outcome, Accepted):
                    raise outcome_error(outcome)
        except AmqpMeshError as refusal:
            raise RowError(f"{why}; and at {address!r}: {refusal}") from None
        self._tally.dead += 1
        self._moved = time.monotonic()

    # ---------------------------------------------------------------------------------------------------------- inside

    async def _watched(self, sender: Sender, work: Callable[[], Awaitable[None]]) -> None:
        """Do some work as long as it makes progress. Errors are not wrapped."""
        failure: AmqpMeshError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, sender, nursery.cancel_scope)
            try:
                await work()
            except AmqpMeshError as error:
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None or self._failure is not None:
            raise failure or self._failure  # type: ignore[misc]  # one of them is set

    async def _watch(self, sender: Sender, scope: trio.CancelScope) -> None:
        while self._failure is None:
            await trio.sleep(WATCH)
            now = time.monotonic()
            if not sender.is_attached:
                self._lost = self._lost or now
                limit: float = self._options["reconnectTimeout"]
                if now - self._lost > limit:
                    self._failure = ConnectionClosedError(f"no connection came about again within {limit:g} s")
                continue
            if self._lost is not None:
                self._lost, self._moved = None, now
            limit = self._options["sendTimeout"]
            if now - self._moved > limit:
                what = f"{sender.unsettled} rows without an outcome" if sender.unsettled else "no credit"
                self._failure = RowError(f"{self._options['address']!r}: {what} for {limit:g} s")
        scope.cancel()
