"""`amqpmesh set TYPE NAME KEY=VALUE...`: a change of the configuration of a router that runs."""

import argparse
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.cli import arguments, asked_routers, client_peer, passwords
from amqpmesh.router.cli.exit_status import EPILOG, Exit, RefusedError
from amqpmesh.router.cli.output.bodies import dump
from amqpmesh.router.cli.output.differences import difference_line, why_not
from amqpmesh.router.cli.output.terminal import printable
from amqpmesh.router.config.edits import KINDS
from amqpmesh.router.management.edit_requests import CREATE, DELETE, UPDATE
from amqpmesh.router.message.content import Message

_TYPES: Final = {each.table: each.kind for each in KINDS.values()}
"""The types of entities by the names that their tables have in the file."""

_NEIGHBOUR: Final = "neighbour"

_USER: Final = "user"

_NEW_PASSWORD: Final = "password-file"  # noqa: S105 - the name of a key
"""The key that names a file on this machine with the new password of a user."""

_ROWS: Final = frozenset({_NEIGHBOUR, _USER, *(each.table for each in KINDS.values() if each.key is not None)})


_CHOICES: Final = (*_TYPES, _NEIGHBOUR, _USER)


def declare(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    command.description = (
        "Change a table of the configuration of a running router, without a restart. The change holds until "
        "the router ends, or until its file is applied. VALUE is as in the file; quotes round a text can be left out. "
        "KEY= gives a key its default again. A user stays in its file; its keys are password-file (a file here with "
        "the new password in its first line), groups, disabled, and listener."
    )
    command.epilog = EPILOG
    command.add_argument("table", metavar="TYPE", choices=_CHOICES, help=f"one of {', '.join(_CHOICES)}")
    command.add_argument(
        "rest",
        metavar="NAME KEY=VALUE",
        nargs="+",
        type=arguments.name,
        help=f"the name, for {', '.join(sorted(_ROWS))}: of an address its pattern; then keys of the table",
    )
    action = command.add_mutually_exclusive_group()
    action.add_argument("--create", action="store_true", help="create it; default: change one that is there")
    action.add_argument("--delete", action="store_true", help="delete it")
    asked_routers.add_options(command)
    command.add_argument("--json", action="store_true", help="print the answer as one JSON object")
    client_peer.add_options(command, reconnect=None)
    command.set_defaults(command=change)


def change(given: argparse.Namespace) -> int:
    """Change a table, and print what differs. Returns: 0; 5: the router refuses it. Raises: AmqpMeshError: there is no
    answer.
    """
    request, name = _request(given), _name(given)
    connection = client_peer.connection(given, "set")
    answer = asked_routers.ask(connection, given.timeout, lambda routers: routers.request(given.router, request))
    reason, code = why_not(answer), answer.application_properties.get("statusCode")
    if reason is not None:
        print(dump({"changed": False, "reason": reason}) if given.json else printable(f"not changed: {reason}"))
        return Exit.NO
    if not isinstance(code, int) or not 200 <= code < 300 or not isinstance(answer.body, Mapping):
        raise RefusedError(f"the router answers {code}: {answer.application_properties.get('statusDescription')}")
    told: Mapping[Any, Any] = answer.body
    if given.json:
        print(dump({"changed": True, **told}))
        return Exit.DONE
    print("\n".join(map(printable, _lines(given, name, told))))
    return Exit.DONE


def _lines(given: argparse.Namespace, name: str | None, told: Mapping[Any, Any]) -> list[str]:
    if given.delete:
        return [f"{given.table} {name} deleted"]
    if given.table == _USER:
        groups = ", ".join(map(str, told["groups"])) or "no group"
        return [f"user {told['name']} is {'disabled' if told['disabled'] else 'enabled'}, in {groups}"]
    if "changes" not in told:
        return [f"{given.table} {name}: cost {told.get('cost')}"]
    return [difference_line(each) for each in told["changes"]] or ["nothing differs"]


def _name(given: argparse.Namespace) -> str | None:
    """Return the name; None: the table is there once."""
    return given.rest[0] if given.table in _ROWS else None


def _request(given: argparse.Namespace) -> Message:
    name = _name(given)
    settings = given.rest if name is None else given.rest[1:]
    operation = CREATE if given.create else DELETE if given.delete else UPDATE
    body = _body(settings, is_user=given.table == _USER)
    if given.delete and body.keys() - ({"listener"} if given.table == _USER else set()):
        raise CommandError("--delete takes no keys")
    if operation == UPDATE and not settings:
        raise CommandError("say KEY=VALUE, at least once")
    properties = {"operation": operation, "type": _TYPES.get(given.table, given.table)}
    if name is not None:
        properties["name"] = name
    if given.delete and body:
        properties["listener"] = str(body["listener"])
    return Message(None if given.delete else body, application_properties=dict(properties))


def _body(settings: Sequence[str], *, is_user: bool) -> dict[Any, Any]:
    """Return the keys of a request. Raises: CommandError: they are no keys, or a password is an argument."""
    body: dict[Any, Any] = {}
    for each in settings:
        key, equals, value = each.partition("=")
        if is_user and key == "password":
            raise CommandError(f"a password is no argument, which others can see: {_NEW_PASSWORD}=FILE")
        if not (key and equals) or key in body:
            raise CommandError(f"{each}: must be KEY=VALUE, each key once")
        if is_user and key == _NEW_PASSWORD:
            body["password"] = passwords.from_file(Path(value))
        else:
            body[key] = _value(value)
    return body


def _value(text: str) -> Any:
    """Return a value of TOML; a text that is none stands for itself. None: it is empty."""
    if not text:
        return None
    try:
        found = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    value = found["value"]
    return value if len(found) == 1 and isinstance(value, bool | int | float | str | list | dict) else text
