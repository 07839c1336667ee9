"""`amqpmesh check CONFIG`: a check of a configuration, which prints the effective values."""

import argparse
import sys
from pathlib import Path

from amqpmesh.policies.findings import findings
from amqpmesh.router.cli import configuration
from amqpmesh.router.cli.exit_status import EPILOG, Exit
from amqpmesh.router.cli.output.terminal import printable
from amqpmesh.router.config.file import ResumptionConfig, RouterConfig, lines
from amqpmesh.router.config.policy_trust import read_policy
from amqpmesh.router.runtime.segment_files import why_unusable
from amqpmesh.router.runtime.token_keys import TokenFiles


def declare(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    command.description = (
        "Check a configuration. If it is wrong, print the file, the key and the reason. Print each line of its policy "
        "that can never permit anything. The options that `run` has, too, are checked together with the file."
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
        _warn(f"{given.config}: telemetry.directory: {reason}: {consequence}")
    if config.policy is not None:
        for found in findings(read_policy(config.policy, config.mesh).policy):
            _warn(f"{config.policy.file}: {found}")
    if (given.workers or 1) > 1 and _uses_resumption(config):
        consequence = "a client that comes back at another worker is told that nothing is known of its deliveries"
        _warn(f"{given.config}: resumption: works within one worker: {consequence}")
    if given.print:
        print("\n".join(lines(config)))
    return Exit.DONE


def _uses_resumption(config: RouterConfig) -> bool:
    """Tell whether a configuration says more of resumption than the defaults, or than that it is off."""
    limits = config.resumption
    is_default = limits == ResumptionConfig()
    return any(each.requires_resumption for each in config.addresses) or (limits.timeout >= 1 and not is_default)


def _warn(said: str) -> None:
    print(f"amqpmesh: {printable(said)}", file=sys.stderr)
