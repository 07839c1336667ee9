"""`amqpmesh config show|diff|save`: the configuration in force in a router that runs."""

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.cli import asked_routers, client_peer
from amqpmesh.router.cli.asked_routers import AskedRouters
from amqpmesh.router.cli.exit_status import EPILOG, Exit, RefusedError
from amqpmesh.router.cli.folder import replace_file
from amqpmesh.router.cli.output.bodies import dump
from amqpmesh.router.cli.output.differences import difference_line, difference_map, why_not
from amqpmesh.router.cli.output.terminal import printable
from amqpmesh.router.config.differences import differences
from amqpmesh.router.config.file import RouterConfig, parse
from amqpmesh.router.config.tables import parsed, parsed_text
from amqpmesh.router.management.config_requests import config_request
from amqpmesh.router.management.service import OK

_TEXTS: Final = re.compile(r""""(?:[^"\\]|\\.)*"|'[^']*'""")
"""The texts in a line of TOML: what looks like a comment in one is none."""

_RUNNING = Path("running")
"""The name of the text in errors."""


def declare(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    command.description = (
        "Show the configuration in force in a running router, compare a file with it, or save it. Keys with their "
        "defaults are left out. The configuration has no secrets: it names the places of passwords."
    )
    command.epilog = EPILOG
    actions = command.add_subparsers(metavar="ACTION", required=True)
    shown = actions.add_parser("show", help="print it as TOML", description="Print the configuration in force as TOML.")
    _add_options(shown, show)
    compared = actions.add_parser(
        "diff",
        help="compare it with a file",
        description="Print what applying a file would change. The exit status is 5 if something differs.",
    )
    compared.add_argument("file", metavar="FILE", type=Path, help="a TOML file; other files are not read")
    _add_options(compared, diff)
    saved = actions.add_parser(
        "save",
        help="write it to a file",
        description="Write the configuration in force to a file, as a whole.",
    )
    saved.add_argument("file", metavar="FILE", type=Path, help="the file")
    saved.add_argument(
        "--replace", action="store_true", help="replace a file that is there; its comments are printed, and lost"
    )
    _add_options(saved, save)


def _add_options(action: argparse.ArgumentParser, command: Any) -> None:
    action.epilog = EPILOG
    asked_routers.add_options(action)
    action.add_argument("--json", action="store_true", help="print one JSON object")
    client_peer.add_options(action, reconnect=None)
    action.set_defaults(command=command)


def show(given: argparse.Namespace) -> int:
    """Print the configuration in force. Returns: 0; 5: the router refuses. Raises: AmqpMeshError: no answer comes."""
    text = _running(given)
    if text is None:
        return Exit.NO
    print(dump(parsed_text(text.encode(), _RUNNING)) if given.json else printable_lines(text))
    return Exit.DONE


def diff(given: argparse.Namespace) -> int:
    """Print the differences between the configuration in force and a file. Returns: 0; 5: something differs, or the
    router refuses. Raises: ConfigError: the file is not valid. AmqpMeshError: there is no answer.
    """
    wanted = parse(parsed(given.file), given.file)
    text = _running(given)
    if text is None:
        return Exit.NO
    found = differences(_config(text), wanted)
    if given.json:
        print(dump({"differences": [difference_map(each) for each in found]}))
    else:
        lines = [difference_line(difference_map(each)) for each in found] or ["nothing differs"]
        print("\n".join(map(printable, lines)))
    return Exit.NO if found else Exit.DONE


def save(given: argparse.Namespace) -> int:
    """Write the configuration in force to a file. Returns: 0; 5: the router refuses. Raises: CommandError: the file is
    there. OSError: it cannot be written. AmqpMeshError: there is no answer.
    """
    if given.file.exists() and not given.replace:
        raise CommandError(f"{given.file} is there: say --replace")
    text = _running(given)
    if text is None:
        return Exit.NO
    comments = _comments(given.file) if given.file.exists() else []
    # Saved, nothing of it is a change of management any more.
    saved = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
    replace_file(given.file, saved.encode())
    for each in comments:
        print(printable(f"comment not saved: {each}"), file=sys.stderr)
    print(dump({"saved": str(given.file)}) if given.json else printable(f"saved to {given.file}"))
    return Exit.DONE


def printable_lines(text: str) -> str:
    """Return lines for a terminal."""
    return "\n".join(map(printable, text.splitlines()))


def _comments(file: Path) -> list[str]:
    """Return the comments of a file, also those behind keys."""
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    found = ((line, _TEXTS.sub(lambda text: "x" * len(text[0]), line).find("#")) for line in lines)
    return [line[at:].strip() for line, at in found if at >= 0]


def _config(text: str) -> RouterConfig:
    return parse(parsed_text(text.encode(), _RUNNING), _RUNNING)


def _running(given: argparse.Namespace) -> str | None:
    """Return the configuration in force; None: the router refuses, and the reason is printed."""
    connection = client_peer.connection(given, "config")
    text, reason = asked_routers.ask(connection, given.timeout, lambda routers: _read(routers, given.router))
    if reason is None:
        return text
    print(dump({"reason": reason}) if given.json else printable(f"not shown: {reason}"))
    return None


async def _read(routers: AskedRouters, router: str | None) -> tuple[str, str | None]:
    """Return the text, part by part, and the reason of a refusal."""
    text, digest = "", None
    while True:
        answer = await routers.request(router, config_request(len(text), digest))
        reason, code = why_not(answer), answer.application_properties.get("statusCode")
        if reason is not None:
            return "", reason
        told = answer.body
        if code != OK or not isinstance(told, Mapping) or not isinstance(part := told.get("text"), str):
            raise RefusedError(f"the router answers {code}: {answer.application_properties.get('statusDescription')}")
        text, digest = text + part, str(told["digest"])
        if not part or len(text) >= int(told["total"]):
            return text, None
