"""`amqpmesh user add NAME`: a verifier for `users.toml`. A password never stands among the arguments."""

import argparse
import sys
from pathlib import Path

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.cli import arguments, passwords
from amqpmesh.router.cli.exits import EPILOG, Exit
from amqpmesh.router.users import add_user


def declare(command: argparse.ArgumentParser) -> None:
    """Tell what its arguments are."""
    actions = command.add_subparsers(metavar="ACTION", required=True)
    add = actions.add_parser(
        "add",
        help="add a user, or change a password",
        description="Adds a user, or changes a password, which is asked for on a terminal, else read from the "
        "first line of standard input. The file holds verifiers, no passwords.",
        epilog=EPILOG,
    )
    add.add_argument("name", metavar="NAME", type=arguments.name)
    add.add_argument("--file", type=Path, default=Path("users.toml"), help="default: users.toml")
    add.add_argument("--password-file", type=Path, metavar="F", help="read the password from its first line")
    add.set_defaults(command=add_one)


def add_one(given: argparse.Namespace) -> int:
    """Returns: 0. Raises: CommandError, ConfigError, OSError."""
    add_user(given.file, given.name, _password(given.password_file))
    print(f"user {given.name} is in {given.file}", file=sys.stderr)
    return Exit.DONE


def _password(file: Path | None) -> str:
    if file is not None:
        return passwords.from_file(file)
    if not sys.stdin.isatty():
        return passwords.from_stream(sys.stdin)
    password = passwords.from_person()
    if passwords.from_person("again: ") != password:
        raise CommandError("the two passwords differ")
    return password
