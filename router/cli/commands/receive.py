"""`amqpmesh receive ADDRESS`: receive messages from any AMQP 1.0 peer, and print their bodies."""

import argparse
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

import trio

from amqpmesh.router.amqp.errors import AmqpMeshError
from amqpmesh.router.cli import arguments, client_peer
from amqpmesh.router.cli.exit_status import EPILOG, Exit, StoppedError
from amqpmesh.router.cli.output import bodies
from amqpmesh.router.cli.output.progress import Progress, reconnects_reported
from amqpmesh.router.cli.output.summary import Summary
from amqpmesh.router.cli.process.interruptible import PeerTimeout, run_interruptible
from amqpmesh.router.cli.process.stdio import Output
from amqpmesh.router.client.connect import Connection
from amqpmesh.router.client.delivery import Delivery
from amqpmesh.router.client.receiver import Receiver

DECISIONS: Final[Mapping[str, tuple[str, Callable[[Delivery], bool]]]] = {
    "accept": ("accepted", Delivery.accept),
    "reject": ("rejected", Delivery.reject),
    "release": ("released", Delivery.release),
    "modify": ("modified", lambda delivery: delivery.modify(delivery_failed=True)),
}
"""The values of `--outcome`: each with its name in the summary, and its action."""


def declare(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    command.description = (
        "Receive messages from an address of any AMQP 1.0 peer. The command ends after --count messages, or at "
        "SIGINT or SIGTERM. It prints each body on a line of standard output: text and binary unchanged, other "
        "values as JSON. On a terminal, control characters are escaped. A message is accepted after it was written. "
        "The command prints a summary on standard error, with the latency of messages that have a creation-time."
    )
    command.epilog = (
        f"{EPILOG} After a signal the status is 0, or 1 if fewer than --count messages came. It is 1, too, if an "
        "outcome could not be sent to the peer."
    )
    command.add_argument("address", metavar="ADDRESS", type=arguments.name, help="the source's address")
    command.add_argument("--count", metavar="N", type=arguments.count, help="stop after N messages")
    command.add_argument(
        "--credit",
        metavar="N",
        type=arguments.credit,
        default=100,
        help="the link credit: how many messages may be in flight; default: 100",
    )
    command.add_argument(
        "--outcome",
        choices=DECISIONS,
        default="accept",
        help="the outcome of each message; modify sets delivery-failed; default: accept",
    )
    command.add_argument(
        "--timeout", metavar="S", type=arguments.seconds, help="seconds to wait for the peer, and for each message"
    )
    command.add_argument(
        "--json",
        action="store_true",
        help="print each message as a JSON object with all its fields, and the summary as JSON, too",
    )
    client_peer.add_options(
        command, reconnect="the sender may send messages again that were not settled, so some may come twice"
    )
    promise = "go on with the same messages over the next connection, print none twice, and end once all are settled"
    client_peer.add_exactly_once(command, promise=promise)
    command.set_defaults(command=receive)


def receive(given: argparse.Namespace) -> int:
    """Receive messages. Returns: 0, or 1 if the peer did not get all outcomes. Raises: AmqpMeshError, OSError."""
    connection = client_peer.connection(given, "receive")
    return trio.run(_Receiving(given).run, connection)


class _Receiving:
    """The work of one command."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._summary = Summary("received")
        self._output = Output()
        self._progress = Progress("received", given.count, shown=not (given.json or sys.stdout.isatty()))
        self._patience = PeerTimeout(given.timeout)
        self._credited = 0
        #: Deliveries that the peer has not settled, with their outcomes; only for exactly-once.
        self._unsettled: deque[tuple[Delivery, str]] = deque()

    async def run(self, connection: Connection) -> int:
        """Receive, and print the summary. Returns, Raises: as `receive`."""
        try:
            given = self._given
            with reconnects_reported(self._progress.say, wanted=given.reconnect or given.exactly_once):
                await run_interruptible(lambda: self._receive_all(connection), self._patience)
        except StoppedError:
            self._print_summary()
            if self._given.count is not None:
                raise
        except (AmqpMeshError, OSError):
            if self._summary.count:
                self._print_summary()
            raise
        else:
            self._print_summary()
        return Exit.FAILED if self._summary.outcomes["in doubt"] else Exit.DONE

    def _print_summary(self) -> None:
        self._progress.close()
        self._progress.say(self._summary.json() if self._given.json else self._summary.text())

    async def _receive_all(self, connection: Connection) -> None:
        self._patience.wait("the connection")
        async with connection:
            self._patience.progress()
            self._patience.wait("the link")
            # Explicit credit: the command must not take messages that it does not want from other receivers.
            given = self._given
            async with connection.receiver(
                given.address, credit=0, any_format=True, name=given.link_name, exactly_once=given.exactly_once
            ) as receiver:
                self._patience.progress()
                self._patience.wait("a message")
                while self._wants_more:
                    self._replenish(receiver)
                    delivery = await receiver.receive()
                    self._patience.rest()
                    await self._take(delivery)
                    self._patience.wait("a message")
                await self._until_settled()

    @property
    def _wants_more(self) -> bool:
        return self._given.count is None or self._summary.count < self._given.count

    def _replenish(self, receiver: Receiver) -> None:
        """Give credit when half of it is used."""
        due: int = self._given.credit
        if self._given.count is not None:
            due = min(due, self._given.count - self._summary.count)
        # The receiver gives unused credit again itself after a reconnect.
        unused = self._credited - self._summary.count
        due -= unused
        if due * 2 >= self._given.credit or (due > 0 and not unused):
            receiver.flow(due)
            self._credited += due

    async def _take(self, delivery: Delivery) -> None:
        summary = self._summary
        summary.begin()
        summary.count += 1
        outcome, decide = DECISIONS[self._given.outcome]
        if delivery.is_settled:
            outcome = "settled"
        latency = None
        if delivery.message_format == 0 and (created := delivery.message.creation_time) is not None:
            latency = time.time() - created / 1000
        try:
            await self._output.write(bodies.to_json(delivery) if self._given.json else bodies.to_octets(delivery))
        except BaseException:
            summary.count -= 1
            delivery.release()
            raise
        if not decide(delivery) and not delivery.is_settled:
            outcome = "in doubt"
        elif self._given.exactly_once:
            while self._unsettled and self._unsettled[0][0].is_settled:
                self._unsettled.popleft()
            self._unsettled.append((delivery, outcome))
        summary.end(outcome, latency=latency)
        self._progress.step()

    async def _until_settled(self) -> None:
        """Wait until the peer has settled all deliveries. What it has forgotten is in doubt."""
        self._patience.wait("the settlement")
        while self._unsettled:
            delivery, outcome = self._unsettled.popleft()
            if not await delivery.settled():
                self._summary.outcomes[outcome] -= 1
                self._summary.outcomes["in doubt"] += 1
            self._patience.progress()
