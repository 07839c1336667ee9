"""`amqpmesh drain [ROUTER]`: a router's clients, moved to other routers before it ends."""

import argparse
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, Final

import trio

from amqpmesh.router.amqp.errors import AmqpMeshError
from amqpmesh.router.cli import arguments, client_peer
from amqpmesh.router.cli.exit_status import EPILOG, Exit, RefusedError
from amqpmesh.router.cli.output.bodies import dump
from amqpmesh.router.cli.output.terminal import printable
from amqpmesh.router.cli.process.interruptible import PeerTimeout, run_interruptible
from amqpmesh.router.cli.router_state import MAX_ANSWER, look_for_path
from amqpmesh.router.client.connect import Connection
from amqpmesh.router.client.requester import Requester
from amqpmesh.router.management.drain_requests import PACE, TIMEOUT, TYPE, drain_request
from amqpmesh.router.management.queries import AnswerError, entities_of, query
from amqpmesh.router.management.service import ADDRESS, BAD_REQUEST, CONFLICT, FORBIDDEN, NOT_IMPLEMENTED, OK
from amqpmesh.router.message.content import Message
from amqpmesh.router.message.outcomes import OutcomeError

ANSWER_TIME: Final = 10.0
"""Seconds to wait for an answer."""

ASK_TIME: Final = 0.5
"""Seconds between two questions how far the router is."""

END_TIME: Final = 30.0
"""Seconds for a router to end beyond the time for its clients: for its deliveries, and to close its connections."""

_SAYS_NO: Final = frozenset({BAD_REQUEST, FORBIDDEN, CONFLICT, NOT_IMPLEMENTED})


def declare(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    command.description = (
        "Have a router move its clients to other routers, in portions, and end once it is empty. Paths of the mesh "
        "lead around it, each client is told to connect elsewhere once its deliveries are settled, and new clients "
        "are turned away. The command waits for the end of the router."
    )
    command.epilog = f"{EPILOG} Here 5 also means: the drain was cancelled."
    command.add_argument(
        "router",
        metavar="ROUTER",
        nargs="?",
        type=arguments.name,
        help="the id of a router anywhere in the mesh; default: the one at --url",
    )
    command.add_argument(
        "--pace",
        metavar="SHARE",
        type=_within("a share of the clients", *PACE),
        help="the share of the clients to move in a second, ten clients at least; default: as the router is configured",
    )
    command.add_argument(
        "--timeout",
        metavar="S",
        type=_within("seconds", *TIMEOUT),
        help="seconds for the clients, after which the router ends in any case; default: as it is configured, or 60",
    )
    command.add_argument("--cancel", action="store_true", help="let the clients stay that were not moved yet")
    command.add_argument("--no-wait", action="store_true", help="do not wait for the end of the router")
    command.add_argument("--json", action="store_true", help="print the answer as one JSON object")
    client_peer.add_options(command, reconnect=None)
    command.set_defaults(command=drain)


def _within(what: str, least: float, greatest: float) -> Any:
    def number(text: str) -> float:
        found = arguments.seconds(text)
        if not least <= found <= greatest:
            raise argparse.ArgumentTypeError(f"{what}: from {least:g} to {greatest:g}")
        return found

    return number


def drain(given: argparse.Namespace) -> int:
    """Drain a router, or cancel that.

    Returns: 0; 4: the router has not ended in time; 5: it refuses, or somebody has cancelled. Raises: AmqpMeshError:
        there is no answer.
    """
    work = _Drain(given)
    trio.run(work.run, client_peer.connection(given, "drain"))
    return work.status


class _Drain:
    """A drain that is asked for, and watched."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._who = given.router or "the router"
        self._patience = PeerTimeout(ANSWER_TIME)
        self.status: int = Exit.DONE

    async def run(self, connection: Connection) -> None:
        """Ask, and wait for the end of the router. Raises: AmqpMeshError: there is no answer."""
        await run_interruptible(lambda: self._work(connection), self._patience)

    async def _work(self, connection: Connection) -> None:
        given, router = self._given, self._given.router
        self._patience.wait(f"an answer of {self._who}")
        address = ADDRESS if router is None else f"{ADDRESS}@{router}"
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(connection)
            if router is not None:
                await look_for_path(connection, router)
            management = await stack.enter_async_context(connection.requester(address, max_message_size=MAX_ANSWER))
            request = drain_request(pace=given.pace, timeout=given.timeout, cancel=given.cancel)
            try:
                answer = await management.request(request)
            except OutcomeError as error:
                raise RefusedError(f"{self._who} cannot be reached: the request was {error}") from None
            self._patience.rest()
            told = self._told(answer)
            if told is None or given.cancel or given.no_wait:
                return
            with trio.move_on_after(told["seconds"] + END_TIME):
                await self._watch(connection, management)
                return
            print(printable(f"{self._who} has not ended"), file=sys.stderr)
            self.status = Exit.TIMED_OUT

    def _told(self, answer: Message) -> Mapping[Any, Any] | None:
        """Print the answer. Returns: its body; None: the router refuses."""
        code, given = answer.application_properties.get("statusCode"), self._given
        reason = str(answer.application_properties.get("statusDescription"))
        if code in _SAYS_NO:
            reason = reason.partition(": ")[2]
            print(dump({"draining": False, "reason": reason}) if given.json else printable(f"not drained: {reason}"))
            self.status = Exit.NO
            return None
        if code != OK or not isinstance(answer.body, Mapping):
            raise RefusedError(f"{self._who} answers {code}: {reason}")
        told: Mapping[Any, Any] = answer.body
        if given.json:
            print(dump(dict(told)))
        elif given.cancel:
            print(printable(f"cancelled: {told['moved']:,} connections were moved, the others stay"))
        else:
            print(printable(f"draining: {told['left']:,} connections to move in at most {told['seconds']:.0f} s"))
        sys.stdout.flush()
        return told

    async def _watch(self, connection: Connection, management: Requester) -> None:
        """Wait for the end of the router."""
        left = None
        while True:
            await trio.sleep(ASK_TIME)
            try:
                with trio.fail_after(ANSWER_TIME):
                    found = list(entities_of(await management.request(query(kind=TYPE))))
            except AnswerError as error:
                raise RefusedError(f"{self._who} {error}") from None
            except (AmqpMeshError, OutcomeError, trio.TooSlowError) as error:
                if await self._is_gone(connection, is_silent=isinstance(error, trio.TooSlowError)):
                    break
                continue
            if not found[0]["draining"]:
                print(printable(f"{self._who} does not drain any more: somebody has cancelled"), file=sys.stderr)
                self.status = Exit.NO
                return
            if found[0]["moving"] != left and not self._given.json:
                left = found[0]["moving"]
                print(printable(f"{left:,} connections left"), flush=True)
        if not self._given.json:
            print(printable(f"{self._who} has ended"))

    async def _is_gone(self, connection: Connection, *, is_silent: bool) -> bool:
        """Return True if the router cannot be reached any more: it has ended, or it is about to.

        Args: is_silent: it does not answer, but the connection is there.
        """
        if self._given.router is None:
            return not is_silent
        try:
            await look_for_path(connection, self._given.router)
        except RefusedError:
            return True
        except AmqpMeshError as error:
            raise RefusedError(f"the router at --url is gone: {error}") from None
        return False
