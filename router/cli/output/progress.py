"""Progress and reconnects of a client, on standard error: standard output holds bodies only."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from amqpmesh.router.cli.output.terminal import printable
from amqpmesh.router.logs.event_log import RepeatFilter

if TYPE_CHECKING:
    from tqdm import tqdm

LOGGER: Final = "amqpmesh.client"


class Progress:
    """A progress bar, if standard error is a terminal and nothing else is written to it; else nothing."""

    def __init__(self, verb: str, total: int | None, *, shown: bool) -> None:
        """Args: verb: the name of the work; total: its amount, if known; shown: True if a bar disturbs no
        other output.
        """
        self._bar: tqdm[Any] | None = None
        if shown and sys.stderr.isatty():
            self._bar = _bar(verb, total)

    def step(self) -> None:
        """Count one more."""
        if self._bar is not None:
            self._bar.update()

    @property
    def is_shown(self) -> bool:
        """True if a bar is shown."""
        return self._bar is not None

    def show(self, verb: str, done: int, total: int) -> None:
        """Show the progress of another task."""
        if self._bar is not None:
            self._bar.total = total or None
            self._bar.n = done
            self._bar.set_description(verb)

    def say(self, text: str) -> None:
        """Print a line."""
        if self._bar is not None:
            self._bar.clear()
        print(printable(text), file=sys.stderr)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()


def _bar(verb: str, total: int | None) -> "tqdm[Any]":
    from tqdm import tqdm  # imported here: most runs do not need it

    tqdm.monitor_interval = 0  # no thread that redraws an unchanged bar
    return tqdm(desc=verb, total=total, leave=False, dynamic_ncols=True, unit="", file=sys.stderr)


class _Reporter(logging.Handler):
    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say
        self.addFilter(RepeatFilter())

    def emit(self, record: logging.LogRecord) -> None:
        self._say(record.getMessage())


@contextmanager
def reconnects_reported(say: Callable[[str], None], *, wanted: bool) -> Iterator[None]:
    """Print what the client logs: lost and failed connections, with their reasons. A repeated line is printed once in
    ten seconds. Args: wanted: False: do nothing.
    """
    if not wanted:
        yield
        return
    logger, handler = logging.getLogger(LOGGER), _Reporter(say)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
