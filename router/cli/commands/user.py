"""`amqpmesh user`: manage the password users of `users.toml`. Passwords are never arguments."""

import argparse
import sys
from pathlib import Path

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.amqp.sasl.mechanisms import MAX_ITERATIONS, MIN_ITERATIONS, SCRAM_ITERATIONS
from amqpmesh.router.cli import arguments, passwords
from amqpmesh.router.cli.exit_status import EPILOG, Exit
from amqpmesh.router.cli.output.terminal import printable, table
from amqpmesh.router.config.users import Users, add_user, group_user, remove_user, switch_user

_HEADINGS = ("USER", "STATE", "ITERATIONS", "MECHANISMS", "GROUPS")
_WIDE = 1_000  # columns: wide enough for all text, since users copy names from here


def declare(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    actions = command.add_subparsers(metavar="ACTION", required=True)
    add = actions.add_parser(
        "add",
        help="add a user, or change a password",
        description="Add a user, or change a password. Without --password-file, the command asks for the password on "
        "the terminal, or reads it from the first line of standard input. The users' file contains verifiers, not "
        "passwords.",
        epilog=EPILOG,
    )
    add.add_argument("name", metavar="NAME", type=arguments.name, help="the user's name")
    _add_file(add)
    add.add_argument(
        "--password-file", type=Path, metavar="F", help="read the password from the first line of this file"
    )
    add.add_argument(
        "--iterations",
        type=arguments.iterations,
        default=SCRAM_ITERATIONS,
        metavar="N",
        help=f"hash iterations to check a password, {MIN_ITERATIONS} to {MAX_ITERATIONS}; default: {SCRAM_ITERATIONS}",
    )
    add.set_defaults(command=add_one)
    listing = actions.add_parser(
        "list",
        help="list the users",
        description="List the users: whether they can log in, the lowest number of iterations of their verifiers, "
        "their mechanisms, and their groups.",
        epilog=EPILOG,
    )
    _add_file(listing)
    listing.set_defaults(command=list_all)
    remove = actions.add_parser(
        "remove",
        help="remove a user",
        description="Remove a user. Send SIGHUP to a running router to apply the change: it closes the connections of "
        "the user.",
        epilog=EPILOG,
    )
    remove.add_argument("name", metavar="NAME", type=arguments.name, help="the user's name")
    _add_file(remove)
    remove.set_defaults(command=remove_one)
    for action, does, disabled in (
        ("disable", "refuse a user, and keep the password", True),
        ("enable", "admit a disabled user again", False),
    ):
        switch = actions.add_parser(
            action,
            help=does,
            description=f"{does[0].upper()}{does[1:]}. Send SIGHUP to a running router to apply the change"
            f"{': it closes the connections of the user' if disabled else ''}.",
            epilog=EPILOG,
        )
        switch.add_argument("name", metavar="NAME", type=arguments.name, help="the user's name")
        _add_file(switch)
        switch.set_defaults(command=switch_one, disabled=disabled)
    grouping = actions.add_parser(
        "groups",
        help="set the groups of a user",
        description="Set the groups of a user, for the key `groups` of groups in a policy. Without a group, the user "
        "is in none. Send SIGHUP to a running router to apply the change.",
        epilog=EPILOG,
    )
    grouping.add_argument("name", metavar="NAME", type=arguments.name, help="the user's name")
    grouping.add_argument("groups", metavar="GROUP", nargs="*", help="a group")
    _add_file(grouping)
    grouping.set_defaults(command=group_one)


def _add_file(command: argparse.ArgumentParser) -> None:
    command.add_argument("--file", type=Path, default=Path("users.toml"), help="the users' file; default: users.toml")


def add_one(given: argparse.Namespace) -> int:
    """Add a user, or change a password. Returns: 0. Raises: CommandError, ConfigError, OSError."""
    add_user(given.file, given.name, _password(given.password_file), given.iterations)
    print(f"user {given.name} is in {given.file}", file=sys.stderr)
    return Exit.DONE


def list_all(given: argparse.Namespace) -> int:
    """List users. Returns: 0. Raises: ConfigError."""
    users = Users.load(given.file)
    rows = []
    for name in users:
        verifiers = users.verifiers(name)
        state = "disabled" if name in users.disabled else "enabled"
        iterations = min(each.iterations for each in verifiers.values())
        groups = printable(", ".join(users.groups_of(name)))
        rows.append((printable(name), state, iterations, ", ".join(verifiers), groups or "-"))
    columns = len(_HEADINGS) if any(map(users.groups_of, users)) else len(_HEADINGS) - 1
    if rows:
        print("\n".join(table(_HEADINGS[:columns], [row[:columns] for row in rows], _WIDE, ())))
    return Exit.DONE


def remove_one(given: argparse.Namespace) -> int:
    """Remove a user. Returns: 0. Raises: CommandError, ConfigError, OSError."""
    remove_user(given.file, given.name)
    print(f"user {given.name} is no longer in {given.file}", file=sys.stderr)
    return Exit.DONE


def switch_one(given: argparse.Namespace) -> int:
    """Disable or enable a user. Returns: 0. Raises: CommandError, ConfigError, OSError."""
    switch_user(given.file, given.name, disabled=given.disabled)
    print(f"user {given.name} is {'disabled' if given.disabled else 'enabled'} in {given.file}", file=sys.stderr)
    return Exit.DONE


def group_one(given: argparse.Namespace) -> int:
    """Set the groups of a user. Returns: 0. Raises: CommandError, ConfigError, OSError."""
    group_user(given.file, given.name, given.groups)
    groups = printable(", ".join(given.groups)) or "no group"
    print(f"user {given.name} is in {groups} in {given.file}", file=sys.stderr)
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
