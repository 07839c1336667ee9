"""`amqpmesh COMMAND`: arguments in, exit status out. Standard output carries what was asked for, nothing else."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from amqpmesh import __version__
from amqpmesh.router.amqp.errors import AmqpMeshError
from amqpmesh.router.cli import check, completion, peer, receive, run, send, status, user
from amqpmesh.router.cli.exits import Exit, status_of
from amqpmesh.router.cli.terminal import printable


class Parser(argparse.ArgumentParser):
    """Takes no abbreviations: one that is clear today is not, as soon as there is one more option."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)


def parser() -> argparse.ArgumentParser:
    """The commands and their arguments."""
    top: argparse.ArgumentParser = Parser(prog="amqpmesh", description="A brokerless AMQP 1.0 router.")
    top.add_argument("--version", action="version", version=f"amqpmesh {__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    for command in (run, check, send, receive, status, user):
        command.add_to(commands)
    completion.add_to(commands, top)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Args: arguments: without the program's name; None: those of the process.

    Returns: the exit status. Raises: SystemExit: 2 for arguments that make no sense, 0 after `--help`, `--version`.
    """
    given = parser().parse_args(arguments)
    try:
        ended: int = given.command(given)
        sys.stdout.flush()
    except AmqpMeshError as error:
        print(f"amqpmesh: {printable(str(error))}{peer.advice(given, error)}", file=sys.stderr)
        return status_of(error)
    except BrokenPipeError:
        # Whoever read our output has seen enough; nor may Python try to write the rest of it, when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILED
    except OSError as error:
        print(f"amqpmesh: {error}", file=sys.stderr)
        return Exit.FAILED
    except KeyboardInterrupt:  # before the command took the signals itself
        return Exit.FAILED
    return ended
