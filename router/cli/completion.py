"""`amqpmesh completion SHELL`: a script that completes commands and options."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from amqpmesh.router.cli.exits import Exit

SHELLS = ("bash", "zsh", "fish")


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", top: argparse.ArgumentParser) -> None:
    """Declare the command. Args: top: whose commands are completed."""
    command = commands.add_parser(
        "completion",
        help="print a script for the shell",
        description="Prints a script that completes commands and options. For bash: "
        'eval "$(amqpmesh completion bash)" in ~/.bashrc; for zsh: amqpmesh completion zsh > _amqpmesh in a folder of '
        "$fpath; for fish: amqpmesh completion fish > ~/.config/fish/completions/amqpmesh.fish",
    )
    command.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
    command.set_defaults(command=lambda given: complete(given, top))


def complete(given: argparse.Namespace, top: argparse.ArgumentParser) -> int:
    """Returns: 0."""
    import shtab  # here, since nothing else needs it

    for action in _actions(top):
        if action.type is Path:
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # where shtab looks for it
    print(shtab.complete(top, given.shell))
    return Exit.DONE


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _actions(each)
