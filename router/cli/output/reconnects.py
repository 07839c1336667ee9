"""Messages of a command that reconnects: lost and failed connections, with their reasons."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from amqpmesh.router.logs.event_log import RepeatFilter

LOGGER: Final = "amqpmesh.client"


class _Telling(logging.Handler):
    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say
        self.addFilter(RepeatFilter())

    def emit(self, record: logging.LogRecord) -> None:
        self._say(record.getMessage())


@contextmanager
def losses_told(say: Callable[[str], None], *, wanted: bool) -> Iterator[None]:
    """Say what the client logs, the same thing once in ten seconds. Args: wanted: else nothing is done."""
    if not wanted:
        yield
        return
    logger, handler = logging.getLogger(LOGGER), _Telling(say)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
