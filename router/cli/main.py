"""The entry point of `amqpmesh COMMAND`. Standard output carries the command's result only."""

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Args: arguments: without the program's name; None: those of the process.

    Returns: the exit status. Raises: SystemExit: 2 for wrong arguments, 0 after `--help`, `--version`.
    """
    if arguments is None and sys.argv[1:2] == ["run"]:
        from amqpmesh.router.cli.process.system import use_c_allocator

        use_c_allocator()  # before slow imports
    try:
        with _ended_by_sigint():
            from amqpmesh.router.cli.registry import parser, run  # here: reading them takes a while

            given = parser().parse_args(arguments)
        return run(given)
    except ImportError as error:
        if error.name != "amqpmesh.router.kernel._compiled":
            raise
        print(f"amqpmesh: {error}", file=sys.stderr)  # AMQPMESH_KERNEL asks for a kernel that is not installed
        return 2


@contextmanager
def _ended_by_sigint() -> Iterator[None]:
    """Let SIGINT end the process at once during the imports: a traceback of imports would be of no use."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # ignored under `nohup`, or handled by the caller
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
