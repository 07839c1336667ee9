"""`amqpmesh COMMAND`: arguments in, exit status out. Standard output carries what was asked for, nothing else."""

import argparse
import sys
from collections.abc import Sequence

from amqpmesh import __version__
from amqpmesh.router.amqp.errors import AmqpMeshError
from amqpmesh.router.cli import check, receive, run, send, user
from amqpmesh.router.cli.exits import Exit, status_of


def parser() -> argparse.ArgumentParser:
    """The commands and their arguments."""
    top = argparse.ArgumentParser(prog="amqpmesh", description="A brokerless AMQP 1.0 router.", allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"amqpmesh {__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    for command in (run, check, send, receive, user):
        command.add_to(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Args: arguments: without the program's name; None: those of the process.

    Returns: the exit status. Raises: SystemExit: 2 for arguments that make no sense, 0 after `--help`, `--version`.
    """
    given = parser().parse_args(arguments)
    try:
        status: int = given.command(given)
    except AmqpMeshError as error:
        print(f"amqpmesh: {error}", file=sys.stderr)
        return status_of(error)
    except OSError as error:
        print(f"amqpmesh: {error}", file=sys.stderr)
        return Exit.FAILED
    except KeyboardInterrupt:  # before the command took the signals itself
        return Exit.FAILED
    return status
