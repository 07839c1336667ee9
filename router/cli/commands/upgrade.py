"""`amqpmesh upgrade`: a router that starts its program again, as it is installed now, and hands over to it."""

import argparse
import sys
from collections.abc import Mapping
from typing import Any, Final

import trio

from amqpmesh.router.amqp.errors import AmqpMeshError
from amqpmesh.router.cli import arguments, client_peer
from amqpmesh.router.cli.exit_status import EPILOG, Exit, RefusedError, TimedOutError
from amqpmesh.router.cli.output.bodies import dump
from amqpmesh.router.cli.output.differences import why_not
from amqpmesh.router.cli.output.terminal import printable
from amqpmesh.router.client.connect import Connection
from amqpmesh.router.management.service import ADDRESS, OK
from amqpmesh.router.management.upgrade_requests import upgrade_request
from amqpmesh.router.message.outcomes import OutcomeError

ASK_TIME: Final = 0.5
"""Seconds between two questions how far the router is."""

ANSWER_TIME: Final = 10.0
"""Seconds to wait for an answer."""


def declare(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    command.description = (
        "Have the router at --url start its program again, as it is installed now, with its configuration file as it "
        "is now, and hand over to it: no connection is refused, and its clients move in portions. The command waits "
        "for the end."
    )
    command.epilog = f"{EPILOG} Here 5 also means: the new process has not started, and the router goes on as before."
    command.add_argument(
        "--timeout", metavar="S", type=arguments.seconds, default=300.0, help="seconds to wait; default: 300"
    )
    command.add_argument("--json", action="store_true", help="print the last answer as one JSON object")
    client_peer.add_options(command, reconnect=None)
    command.set_defaults(command=upgrade)


def upgrade(given: argparse.Namespace) -> int:
    """Upgrade a router.

    Returns: 0; 4: it was not over in time; 5: the router refuses, or the new process has not started. Raises:
        AmqpMeshError: there is no answer.
    """
    return trio.run(_upgrade, given)


async def _upgrade(given: argparse.Namespace) -> int:
    try:
        status, began = await _asked(given, ask=False)
    except trio.TooSlowError:
        raise TimedOutError(f"timed out: waited {ANSWER_TIME:g} s for an answer of the router") from None
    if status is not Exit.DONE:
        return status
    router, shown = began["router"], None
    told: Mapping[Any, Any] = began
    with trio.move_on_after(given.timeout):
        while told["process"] == began["process"] or told["stands_in"] or told["under_way"]:
            if told["process"] == began["process"] and told["failure"] and not told["under_way"]:
                return _said(given, told, f"not upgraded: {told['failure']}", Exit.NO)
            if told["router"] != shown and not given.json:
                shown = told["router"]
                doing = "stands in" if told["stands_in"] else "starts its successor"
                print(printable(f"{shown} {doing}, process {told['process']}"), flush=True)
            await trio.sleep(ASK_TIME)
            try:
                status, now = await _asked(given, ask=True)
            except (AmqpMeshError, OSError, trio.TooSlowError):
                continue  # the process that was asked has ended
            told = now if status is Exit.DONE else told
        return _said(given, told, f"{router} is upgraded, process {told['process']}", Exit.DONE)
    print(printable(f"{told['router']} is not done"), file=sys.stderr)
    return Exit.TIMED_OUT


def _said(given: argparse.Namespace, told: Mapping[Any, Any], text: str, status: Exit) -> Exit:
    print(dump(dict(told)) if given.json else printable(text))
    return status


async def _asked(given: argparse.Namespace, *, ask: bool) -> tuple[Exit, Mapping[Any, Any]]:
    """Ask over a connection of its own: each goes to the process that accepts connections then."""
    connection: Connection = client_peer.connection(given, "upgrade")
    with trio.fail_after(ANSWER_TIME):
        async with connection, connection.requester(ADDRESS) as management:
            try:
                answer = await management.request(upgrade_request(ask=ask))
            except OutcomeError as error:
                raise RefusedError(f"the router does not answer: the request was {error}") from None
    reason, code = why_not(answer), answer.application_properties.get("statusCode")
    if reason is not None:
        if not ask:
            print(dump({"reason": reason}) if given.json else printable(f"not upgraded: {reason}"))
        return Exit.NO, {}
    if code != OK or not isinstance(answer.body, Mapping):
        raise RefusedError(f"the router answers {code}: {answer.application_properties.get('statusDescription')}")
    return Exit.DONE, answer.body
