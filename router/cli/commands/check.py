"""`amqpmesh check CONFIG`: a check of a configuration, which prints the effective values."""

import argparse
import sys
from pathlib import Path

from amqpmesh.router.cli import configuration
from amqpmesh.router.cli.exit_status import EPILOG, Exit
from amqpmesh.router.cli.output.terminal import printable
from amqpmesh.router.config.file import lines
from amqpmesh.router.runtime.segment_files import why_unusable
from amqpmesh.router.runtime.token_keys import TokenFiles


def declare(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    command.description = (
        "Check a configuration. If it is wrong, print the file, the key and the reason. The options that `run` has, "
        "too, are checked together with the file."
    )
    command.epilog = EPILOG
    command.add_argument("config", metavar="CONFIG", type=Path, help="a TOML file")
    command.add_argument("--print", action="store_true", help="print the configuration with all defaults")
    configuration.add_options(command)
    command.set_defaults(command=check)


def check(given: argparse.Namespace) -> int:
    """Check a configuration. Returns: 0. Raises: ConfigError: `run` would refuse it. Ports are not tried."""
    config = configuration.effective(given)
    TokenFiles.read(config)
    if config.telemetry is not None and (reason := why_unusable(config.telemetry.directory)) is not None:
        consequence = "the router runs, but records nothing until this is repaired"
        said = f"{given.config}: telemetry.directory: {reason}: {consequence}"
        print(f"amqpmesh: {printable(said)}", file=sys.stderr)
    if given.print:
        print("\n".join(lines(config)))
    return Exit.DONE
