"""The state of a router on a screen, once or again and again until the user ends it."""

import argparse
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Final

import trio

from amqpmesh.router.cli import asked_routers
from amqpmesh.router.cli.exit_status import Exit, StoppedError
from amqpmesh.router.cli.output.listing import Entities
from amqpmesh.router.cli.output.terminal import printable
from amqpmesh.router.cli.process.interruptible import PeerTimeout, run_interruptible
from amqpmesh.router.cli.router_state import state_of
from amqpmesh.router.client.connect import Connection

INTERVAL: Final = 2.0
"""Seconds between two views by default."""

Show = Callable[[Entities], Sequence[str] | None]
"""A function that returns the lines for the state of a router, or None if there is nothing to show yet."""

_CLEAR: Final = "\x1b[H\x1b[J"


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments `ROUTER` and `--timeout`."""
    asked_routers.add_options(command, option="router", waited="each page of the answer")


def watch(
    connection: Connection,
    given: argparse.Namespace,
    show: Show,
    interval: float | None,
    count: int | None = None,
    more: Sequence[str] = (),
) -> int:
    """Show the state of a router.

    Args: given: has `router` and `timeout`. interval: seconds between two views; None: show it once. count: of views;
        None: until SIGINT or SIGTERM, which then is no failure. more: types to ask for by name.
    Returns: the exit status. Raises: AmqpMeshError: there is no answer.
    """
    try:
        trio.run(_watch, connection, given, show, interval, 1 if interval is None else count, more)
    except StoppedError:
        if interval is None:
            raise
    return Exit.DONE


async def _watch(
    connection: Connection,
    given: argparse.Namespace,
    show: Show,
    interval: float | None,
    count: int | None,
    more: Sequence[str],
) -> None:
    patience = PeerTimeout(given.timeout)
    is_live = interval is not None and sys.stdout.isatty()

    async def work() -> None:
        shown = 0
        async with state_of(connection, given.router, patience, more) as read:
            while True:
                begun = trio.current_time()
                lines = show(await read())
                if lines is not None:
                    draw(lines, is_live=is_live, is_first=shown == 0)
                    shown += 1
                if shown == count or interval is None:
                    return
                await trio.sleep_until(begun + interval)

    await run_interruptible(work, patience)


def draw(lines: Sequence[str], *, is_live: bool, is_first: bool) -> None:
    """Print lines: on a terminal in place of those before, as many as it has; else below them."""
    if is_live:
        lines = lines[: shutil.get_terminal_size().lines - 1]
    elif not is_first:
        print()
    text = "\n".join(map(printable, lines))
    print(f"{_CLEAR}{text}" if is_live else text, flush=True)
