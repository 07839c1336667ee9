"""`amqpmesh apply [CONFIG]`: a changed configuration file, put in force in a router that runs."""

import argparse
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import trio

from amqpmesh.router.cli import arguments, client_peer
from amqpmesh.router.cli.exit_status import EPILOG, Exit, RefusedError
from amqpmesh.router.cli.output.bodies import dump
from amqpmesh.router.cli.output.terminal import printable
from amqpmesh.router.cli.process.interruptible import PeerTimeout, run_interruptible
from amqpmesh.router.cli.router_state import MAX_ANSWER, look_for_path
from amqpmesh.router.client.connect import Connection
from amqpmesh.router.management.config_requests import ACCEPTED, apply_request
from amqpmesh.router.management.service import ADDRESS, BAD_REQUEST, CONFLICT, FORBIDDEN, NOT_IMPLEMENTED, OK
from amqpmesh.router.message.content import Message
from amqpmesh.router.message.outcomes import OutcomeError

TIME_OUT: Final = 30.0
"""Seconds to wait for the answer by default: a large policy takes some seconds to check."""

_SAYS_NO: Final = frozenset({BAD_REQUEST, FORBIDDEN, CONFLICT, NOT_IMPLEMENTED})


def declare(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    command.description = (
        "Have a running router read its configuration file again, show what differs from what runs, and put it in "
        "force without a restart: as a whole, or not at all. SIGHUP does the same."
    )
    command.epilog = (
        f"{EPILOG} Here 5 also means: with --dry-run, something differs; without it, something waits for a restart."
    )
    command.add_argument(
        "config",
        metavar="CONFIG",
        nargs="?",
        type=Path,
        help="the file that the router was started with; the router refuses another one",
    )
    command.add_argument("--dry-run", action="store_true", help="show what differs, and change nothing")
    command.add_argument(
        "--router", metavar="ROUTER", type=arguments.name, help="the id of a router anywhere in the mesh"
    )
    command.add_argument(
        "--timeout",
        metavar="S",
        type=arguments.seconds,
        default=TIME_OUT,
        help=f"seconds to wait for the answer; default: {TIME_OUT:g}",
    )
    command.add_argument("--json", action="store_true", help="print the differences as one JSON object")
    client_peer.add_options(command, reconnect=None)
    command.set_defaults(command=apply)


def apply(given: argparse.Namespace) -> int:
    """Apply a configuration, and print the differences.

    Returns: 0; 5: the router refuses it, something waits for a restart, or a trial has found differences.
    Raises: AmqpMeshError: there is no answer.
    """
    connection = client_peer.connection(given, "apply")
    file = None if given.config is None else given.config.resolve()
    answer = trio.run(_ask, connection, given.router, apply_request(file, dry_run=given.dry_run), given.timeout)
    code = answer.application_properties.get("statusCode")
    if code in _SAYS_NO:
        reason = str(answer.application_properties.get("statusDescription")).partition(": ")[2]
        print(dump({"applied": False, "reason": reason}) if given.json else printable(f"not applied: {reason}"))
        return Exit.NO
    if code not in (OK, ACCEPTED) or not isinstance(answer.body, Mapping):
        raise RefusedError(f"the router answers {code}: {answer.application_properties.get('statusDescription')}")
    told: Mapping[Any, Any] = answer.body
    print(dump(dict(told)) if given.json else "\n".join(map(printable, _lines(told, dry_run=given.dry_run))))
    finds = bool(told["differences"] or told["users"]) if given.dry_run else code == ACCEPTED
    return Exit.NO if finds else Exit.DONE


def _lines(told: Mapping[Any, Any], *, dry_run: bool) -> list[str]:
    lines = []
    for each in told["differences"]:
        change = " ".join((each["key"], *(f"{word} {each[word]}" for word in ("from", "to") if each[word] is not None)))
        reason = f": {each['reason']}" if each["reason"] else ""
        lines.append(f"{change} ({each['effect']}{reason})")
    if told["more"]:
        lines.append(f"and {told['more']} more")
    for each in told["users"]:
        who = each["user"] if each["user"] is not None else f"{each['others']} more"
        lines.append(f"{each['event']}: {who} (listener {each['listener']})")
    if not lines:
        return ["nothing differs"]
    if dry_run:
        return [*lines, "nothing was changed: this was a trial"]
    return [*lines, f"applied, but for what needs a restart: {told['waiting']}" if told["waiting"] else "applied"]


async def _ask(connection: Connection, router: str | None, request: Message, timeout: float) -> Message:
    """Return the answer of a router. Raises: AmqpMeshError: there is none."""
    patience = PeerTimeout(timeout)
    answers: list[Message] = []

    async def ask() -> None:
        patience.wait("an answer" if router is None else f"an answer of {router}")
        address = ADDRESS if router is None else f"{ADDRESS}@{router}"
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(connection)
            if router is not None:
                await look_for_path(connection, router)
            management = await stack.enter_async_context(connection.requester(address, max_message_size=MAX_ANSWER))
            try:
                answers.append(await management.request(request))
            except OutcomeError as error:
                raise RefusedError(f"the router cannot be reached: the request was {error}") from None

    await run_interruptible(ask, patience)
    return answers[0]
