"""`amqpmesh check CONFIG`: is it right, and what does it come to."""

import argparse
from pathlib import Path

from amqpmesh.router.cli import configuration
from amqpmesh.router.cli.exits import EPILOG, Exit
from amqpmesh.router.config import lines


def declare(command: argparse.ArgumentParser) -> None:
    """Tell what its arguments are."""
    command.description = "Checks a configuration; names file, key and reason."
    command.epilog = EPILOG
    command.add_argument("config", metavar="CONFIG", type=Path, help="a TOML file")
    command.add_argument("--print", action="store_true", help="print the configuration with all defaults")
    configuration.add_options(command)
    command.set_defaults(command=check)


def check(given: argparse.Namespace) -> int:
    """Returns: 0. Raises: ConfigError: where it is wrong."""
    config = configuration.effective(given)
    if given.print:
        print("\n".join(lines(config)))
    return Exit.DONE
