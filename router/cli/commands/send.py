"""`amqpmesh send ADDRESS`: send messages to any AMQP 1.0 peer, and report their outcomes."""

import argparse
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, closing, suppress
from typing import Final, TypedDict

import trio

from amqpmesh.router.amqp.connection_settings import OURS, PRODUCT
from amqpmesh.router.amqp.errors import AmqpMeshError, CommandError, InDoubtError
from amqpmesh.router.cli import arguments, client_peer
from amqpmesh.router.cli.exit_status import EPILOG, Exit
from amqpmesh.router.cli.output.bodies import from_octets
from amqpmesh.router.cli.output.progress import Progress, reconnects_reported
from amqpmesh.router.cli.output.summary import Summary, duration
from amqpmesh.router.cli.process import stdio
from amqpmesh.router.cli.process.interruptible import PeerTimeout, run_interruptible, run_with_companion
from amqpmesh.router.cli.source import Source
from amqpmesh.router.client.connect import Connection
from amqpmesh.router.client.links.outgoing import Outgoing
from amqpmesh.router.client.links.sender_link import SenderLink
from amqpmesh.router.client.sender import Sender, link_of
from amqpmesh.router.management.entities import PREFIX
from amqpmesh.router.management.queries import body_of
from amqpmesh.router.management.service import ADDRESS
from amqpmesh.router.message.content import Message, encode_message
from amqpmesh.router.message.outcomes import OutcomeError

IN_FLIGHT: Final = 10_000
"""Deliveries without an outcome at most, whatever credit a peer gives: they take memory here."""

BATCH_TIME: Final = 0.001
"""Seconds in which messages are collected, to be written at once."""

EXPLAINED_AFTER: Final = 1.0
"""Seconds without credit before the command prints the reason."""

ANSWER_TIME: Final = 2.0
"""Seconds that the router has to answer; the sender waits for credit meanwhile anyway."""

UNKNOWN: Final = "the peer gives none, and no reason"
"""The reason printed for other peers, and for routers that do not answer."""


def declare(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    command.description = (
        "Send messages to an address of any AMQP 1.0 peer, as fast as the peer gives credit, and wait for their "
        "outcomes. Each line of standard input becomes a message, unless --body, --size, --file or --count is given. A "
        "body is text, or binary if it is not valid UTF-8. With --file it is always binary. The command prints a "
        "summary on standard error, and nothing on standard output."
    )
    command.epilog = EPILOG
    command.add_argument("address", metavar="ADDRESS", type=arguments.name, help="the target's address")
    command.add_argument(
        "--to",
        metavar="ADDRESS",
        type=arguments.name,
        help="set the `to` of each message; if ADDRESS is @ROUTER, this is the address at that router",
    )
    command.add_argument("--user-id", metavar="NAME", type=arguments.name, help="set the `user-id` of each message")
    body = command.add_mutually_exclusive_group()
    body.add_argument("--body", metavar="TEXT", help="the body to send")
    body.add_argument("--size", metavar="N", type=arguments.size, help="send a binary body of N octets")
    body.add_argument(
        "--file",
        metavar="F",
        help="send a file of any size as one message, while it is read; -: read standard input to its end",
    )
    command.add_argument(
        "--count",
        metavar="N",
        type=arguments.count,
        help="send N messages; without a body, send the numbers from 1 to N",
    )
    command.add_argument(
        "--rate", metavar="R", type=arguments.rate, help="messages per second; default: as fast as possible"
    )
    command.add_argument(
        "--settled", action="store_true", help="send pre-settled messages: at most once, without an outcome"
    )
    command.add_argument(
        "--timeout",
        metavar="S",
        type=arguments.seconds,
        help="seconds to wait for the peer, for credit, or for an outcome",
    )
    command.add_argument("--json", action="store_true", help="print the summary as JSON, with times in seconds")
    client_peer.add_options(command, reconnect="a message whose outcome is unknown is in doubt, and is not sent again")
    promise = "find out over the next connection what became of each message, and send it again only if nobody has it"
    client_peer.add_exactly_once(command, promise=promise)
    command.set_defaults(command=send)


def send(given: argparse.Namespace) -> int:
    """Send messages. Returns: 0 if all were accepted, else 1. Raises: AmqpMeshError, OSError."""
    if given.file is not None and (given.count is not None or given.rate is not None):
        raise CommandError("--file sends one message: it cannot have --count or --rate")
    if given.exactly_once and (given.settled or given.file is not None):
        other = "--settled" if given.settled else "--file"
        raise CommandError(f"--exactly-once keeps each message until it is settled: it cannot have {other}")
    connection = client_peer.connection(given, "send")
    if given.file is None:
        return trio.run(_Sending(given).run, connection)
    with closing(Source(given.file)) as source:
        return trio.run(_Sending(given, source).run, connection)


class _Properties(TypedDict, total=False):
    """The properties that options give to each message."""

    to: str
    user_id: bytes


class _Sending:
    """The work of one command."""

    def __init__(self, given: argparse.Namespace, source: Source | None = None) -> None:
        """Args: source: of one message that is sent while it is read."""
        self._given = given
        self._source = source
        self._from_input = all(each is None for each in (given.body, given.size, given.count, source))
        total = None if self._from_input else given.count or 1
        self._is_one = total == 1
        self._properties: _Properties = {}
        if given.to is not None:
            self._properties["to"] = given.to
        if given.user_id is not None:
            self._properties["user_id"] = given.user_id.encode()
        self._summary = Summary("sent")
        self._is_typed = self._from_input and sys.stdin is not None and sys.stdin.isatty()
        self._progress = Progress("sent", total, shown=not (given.json or self._is_one or self._is_typed))
        self._patience = PeerTimeout(given.timeout)
        self._decided = trio.Event()
        self._connection: Connection
        self._explained = False
        self._batch_ends = 0.0

    async def run(self, connection: Connection) -> int:
        """Send, and print the summary. Returns, Raises: as `send`."""
        try:
            given = self._given
            with reconnects_reported(self._progress.say, wanted=given.reconnect or given.exactly_once):
                await run_interruptible(lambda: self._send_all(connection), self._patience)
        except (AmqpMeshError, OSError):
            if self._summary.count:
                self._print_summary()
            raise
        self._print_summary()
        return Exit.DONE if self._summary.all_accepted else Exit.FAILED

    async def _send_all(self, connection: Connection) -> None:
        self._patience.wait("the connection")
        async with connection:
            self._patience.progress()
            self._patience.wait("the link")
            given = self._given
            async with connection.sender(given.address, name=given.link_name, exactly_once=given.exactly_once) as face:
                sender = link_of(face)
                self._connection = connection
                self._patience.rest()
                if self._is_typed:
                    self._progress.say("each line is a message; Ctrl-D ends the input")
                refusal = None
                try:
                    if self._source is None:
                        await self._send_each(sender)
                    else:
                        await self._send_source(face, self._source)
                except CommandError as error:
                    refusal = error  # of one message; earlier ones are in flight
                while self._summary.undecided > 0:
                    await self._decided.wait()
                if refusal is not None:
                    raise refusal
                if self._summary.outcomes["in doubt"]:
                    sender.check()  # raises the reason

    async def _send_each(self, sender: SenderLink) -> None:
        began = trio.current_time()
        turn = 0
        async for payload in self._payloads():
            if self._given.rate is not None:
                # Counted from the start, not from the last message, so the rate is kept even if one takes long.
                await trio.sleep_until(began + turn / self._given.rate)
                turn += 1
            await self._send(sender, payload)

    async def _payloads(self) -> AsyncIterator[bytes]:
        given = self._given
        if self._from_input:
            async for line in stdio.lines():
                yield self._message(from_octets(line))
        elif given.body is None and given.size is None:
            for number in range(1, given.count + 1):
                yield self._message(str(number))
        else:
            body = bytes(given.size) if given.body is None else from_octets(os.fsencode(given.body))
            payload = self._message(body)
            for _ in range(given.count or 1):
                yield payload

    def _message(self, body: str | bytes) -> bytes:
        return encode_message(body if not self._properties else Message(body, **self._properties))

    async def _send(self, sender: SenderLink, payload: bytes) -> None:
        """Send a message once there is credit for it."""
        summary, since = self._summary, 0.0

        def prepare() -> bytes:
            nonlocal since
            since = summary.begin()
            return payload

        def watch(outgoing: Outgoing) -> None:
            self._end(outgoing.error, time.perf_counter() - since)

        while summary.undecided >= IN_FLIGHT:
            await self._decided.wait()
        outgoing = sender.submit(payload, settled=self._given.settled, prepare=prepare, watch=watch)
        summary.count += 1
        try:
            if not outgoing.done.is_set():
                await self._wait_for_credit(sender, outgoing.done)
            if outgoing.failure is not None or since > self._batch_ends:
                await sender.until_sent(outgoing)
                self._batch_ends = time.perf_counter() + BATCH_TIME
        except BaseException:
            summary.count -= 1  # not sent, so not counted
            raise
        if outgoing.settled:
            summary.end("settled")
            self._progress.step()
            self._patience.rest()
        elif summary.undecided > 0:
            self._patience.wait("an outcome")

    async def _send_source(self, sender: Sender, source: Source) -> None:
        """Send one message while it is read."""
        summary, begun = self._summary, trio.Event()

        async def parts() -> AsyncIterator[bytes]:
            begun.set()
            self._patience.rest()
            async with aclosing(source.chunks()) as chunks:
                async for chunk in chunks:
                    self._patience.wait("the peer to take more")
                    yield chunk
                    self._patience.rest()

        message, settled = Message(**self._properties), self._given.settled
        since = summary.begin()
        sent = await run_with_companion(
            lambda: sender.transfer_parts(parts(), message=message, size=source.size, settled=settled),
            lambda: self._wait_for_credit(link_of(sender), begun),
        )
        summary.count += 1
        if settled:
            summary.end("settled")
            self._patience.rest()
            return
        self._patience.wait("an outcome")
        with suppress(InDoubtError):
            await sent.outcome()
        self._end(sent.error, time.perf_counter() - since)

    async def _wait_for_credit(self, sender: SenderLink, begun: trio.Event) -> None:
        """Wait until the first part of a message is sent; after a while print once why there is no credit."""
        self._patience.wait("credit")
        with trio.move_on_after(EXPLAINED_AFTER):
            await begun.wait()
        if not (begun.is_set() or sender.credit or self._explained):
            reason = await why_no_credit(self._connection, sender.name)
            if not (begun.is_set() or sender.credit):
                self._explained = True
                self._progress.say(f'waiting for credit on "{self._given.address}": {reason}')
        await begun.wait()

    def _end(self, error: AmqpMeshError | None, latency: float) -> None:
        if error is None:
            self._summary.end("accepted", latency=latency)
        elif isinstance(error, OutcomeError):
            self._summary.end(type(error.outcome).__name__.lower(), latency=latency, failure=str(error))
        else:
            self._summary.end("in doubt", failure=f"in doubt: {error}")
        self._progress.step()
        if self._summary.undecided > 0:
            self._patience.progress()
        else:
            self._patience.rest()
        decided, self._decided = self._decided, trio.Event()
        decided.set()

    def _print_summary(self) -> None:
        summary = self._summary
        self._progress.close()
        if self._given.json:
            self._progress.say(summary.json())
        elif self._is_one and summary.all_accepted and len(summary.latencies):
            self._progress.say(f"accepted by receiver in {duration(summary.latencies.percentile(50))}")
        else:
            if summary.first_failure is not None:
                self._progress.say(f"first message not accepted: {summary.first_failure}")
            self._progress.say(summary.text())


async def why_no_credit(connection: Connection, link: str) -> str:
    """Ask the peer's `$management` why a sender has no credit. Args: link: the name of the sender's link."""
    try:
        if (connection.peer.properties or {}).get(PRODUCT) == OURS:
            with trio.move_on_after(ANSWER_TIME):
                async with connection.requester(ADDRESS) as requester:
                    asked = {"operation": "READ", "type": f"{PREFIX}link", "name": link}
                    told = body_of(await requester.request(Message(application_properties=asked)))
                if isinstance(told, Mapping) and isinstance(reason := told.get("reason"), str):
                    return reason
    except AmqpMeshError:
        pass  # peers need not answer
    return UNKNOWN
