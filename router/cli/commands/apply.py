"""`amqpmesh apply [CONFIG]`: a changed configuration file, put in force in a router that runs."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from amqpmesh.router.cli import asked_routers, client_peer
from amqpmesh.router.cli.exit_status import EPILOG, Exit, RefusedError
from amqpmesh.router.cli.output.bodies import dump
from amqpmesh.router.cli.output.differences import difference_line, why_not
from amqpmesh.router.cli.output.terminal import printable
from amqpmesh.router.management.config_requests import ACCEPTED, apply_request
from amqpmesh.router.management.service import OK

TIME_OUT: Final = 30.0
"""Seconds to wait for the answer by default: a large policy takes some seconds to check."""


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
    asked_routers.add_options(command, waited="the answer", time_out=TIME_OUT)
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
    request = apply_request(file, dry_run=given.dry_run)
    answer = asked_routers.ask(connection, given.timeout, lambda routers: routers.request(given.router, request))
    code, reason = answer.application_properties.get("statusCode"), why_not(answer)
    if reason is not None:
        print(dump({"applied": False, "reason": reason}) if given.json else printable(f"not applied: {reason}"))
        return Exit.NO
    if code not in (OK, ACCEPTED) or not isinstance(answer.body, Mapping):
        raise RefusedError(f"the router answers {code}: {answer.application_properties.get('statusDescription')}")
    told: Mapping[Any, Any] = answer.body
    print(dump(dict(told)) if given.json else "\n".join(map(printable, _lines(told, dry_run=given.dry_run))))
    finds = bool(told["differences"] or told["users"]) if given.dry_run else code == ACCEPTED
    return Exit.NO if finds else Exit.DONE


def _lines(told: Mapping[Any, Any], *, dry_run: bool) -> list[str]:
    lines = list(map(difference_line, told["differences"]))
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
