"""The commands: their list, their parser, and the report of their errors."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from keyword import iskeyword
from typing import Any, Final, NoReturn

from amqpmesh import __version__
from amqpmesh.router.amqp.errors import AmqpMeshError
from amqpmesh.router.cli.exit_status import Exit, status_of
from amqpmesh.router.cli.output.terminal import printable

COMMANDS: Final[Mapping[str, str]] = {
    "run": "run a router",
    "check": "check a configuration",
    "send": "send messages",
    "receive": "receive messages",
    "apply": "put a changed configuration file in force",
    "set": "change the configuration of a running router, until it ends",
    "close": "close a client's connection or link",
    "config": "show, compare or save the configuration in force",
    "drain": "move the clients of a router to others, and end it",
    "upgrade": "start a router's program again, and hand over to it",
    "status": "show the state of a running router",
    "why": "find out what stops messages to an address",
    "trace": "follow a message through the mesh",
    "top": "show the busiest addresses and links of a router, live",
    "user": "manage password users",
    "policy": "check a policy, ask what it permits, and give it to a mesh",
    "ca": "manage the certificates of a mesh",
    "collect": "collect the telemetry that the routers of a mesh publish",
    "pipeline": "analyse recorded telemetry with Spark",
    "routes": "apply link costs that `pipeline plan` proposed",
    "import": "translate a configuration of Qpid Dispatch or Skupper Router",
    "demo": "run a mesh of five routers, and kill one of them",
    "completion": "print a completion script for the shell",
}
"""The commands with their help. Each is a module in `commands` whose `declare` adds its arguments; only the called one
is imported. A module whose name would be a word of Python ends with an underscore.
"""


class Parser(argparse.ArgumentParser):
    """A parser without abbreviations of options: an abbreviation becomes ambiguous when a new option is added."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)
        #: Declares the arguments when they are needed.
        self.declare: Callable[[argparse.ArgumentParser], None] | None = None

    def complete(self) -> None:
        """Declare the arguments, once."""
        declare, self.declare = self.declare, None
        if declare is not None:
            declare(self)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments and refuse unknown ones here, so that a command's own usage is printed, not the
        program's.
        """
        self.complete()
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return namespace, unknown

    def error(self, message: str) -> NoReturn:
        """Print an error and the usage, and exit with 2."""
        super().error(printable(message))


class Version(argparse.Action):
    """The action of `--version`: it imports the kernel only when called."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        """Print the version and the kernel in use, and exit with 0."""
        from amqpmesh.router.kernel import BOUND

        kernel = {"compiled": "compiled", "pure": "pure Python"}[BOUND.kernel]
        print(f"amqpmesh {__version__} (kernel: {kernel})")
        parser.exit()


def parser() -> Parser:
    """Return the parser. Each command declares its arguments when it is called, or when `complete` is."""
    top = Parser(prog="amqpmesh", description="A brokerless AMQP 1.0 router.")
    top.add_argument("--version", action=Version, nargs=0, help="print the version, and the kernel that runs")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    for name, purpose in COMMANDS.items():
        commands.add_parser(name, help=purpose).declare = _declaration(name)
    return top


def _declaration(name: str) -> Callable[[argparse.ArgumentParser], None]:
    def declare(command: argparse.ArgumentParser) -> None:
        module = f"{name}_" if iskeyword(name) else name
        import_module(f"amqpmesh.router.cli.commands.{module}").declare(command)

    return declare


def run(given: argparse.Namespace) -> int:
    """Run the called command. Returns: the exit status."""
    try:
        ended: int = given.command(given)
        if sys.stdout is not None:  # closed when the process started
            sys.stdout.flush()
    except AmqpMeshError as error:
        print(f"amqpmesh: {printable(str(error))}{_advice(given, error)}", file=sys.stderr)
        return status_of(error)
    except BrokenPipeError:
        # The reader of our output has closed it; Python must not try to write the rest of it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILED
    except OSError as error:
        print(f"amqpmesh: {printable(str(error))}", file=sys.stderr)
        return Exit.FAILED
    except KeyboardInterrupt:  # before the command handles signals itself
        return Exit.FAILED
    return ended


def _advice(given: argparse.Namespace, error: AmqpMeshError) -> str:
    from amqpmesh.router.cli import client_peer  # imported here: `--help` does not need it

    return client_peer.advice(given, error)
