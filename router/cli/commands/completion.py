"""`amqpmesh completion SHELL`: a script that completes commands and options."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from amqpmesh.router.cli import arguments
from amqpmesh.router.cli.exit_status import Exit
from amqpmesh.router.cli.registry import Parser, parser

SHELLS = ("bash", "zsh", "fish")


def declare(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    command.description = (
        "Print a script that completes commands and options. In bash, add this line to ~/.bashrc: "
        'eval "$(amqpmesh completion bash)". In zsh, run in a folder of $fpath: amqpmesh completion zsh > _amqpmesh. '
        "In fish, run: amqpmesh completion fish > ~/.config/fish/completions/amqpmesh.fish"
    )
    command.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish")
    command.set_defaults(command=complete)


def complete(given: argparse.Namespace) -> int:
    """Print the script. Returns: 0."""
    import shtab  # imported here: nothing else needs it

    top = parser()
    for action in _actions(top):
        if action.type in (Path, arguments.place):
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # where shtab looks for it
    print(shtab.complete(top, given.shell))
    return Exit.DONE


def _actions(top: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    if isinstance(top, Parser):
        top.complete()
    for action in top._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _actions(each)
