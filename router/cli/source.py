"""A source of one large message: a file or standard input, read in chunks."""

import os
import stat
import sys
from collections.abc import AsyncGenerator
from typing import Final

import trio

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.cli.process import stdio

STANDARD_INPUT: Final = "-"

CHUNK: Final = 256 * 2**10
"""Octets of a file that are read at once, in a thread: a disk may be slow."""


class Source:
    """The file or standard input with the octets of the message.

    Attributes: `size`: octets of a regular file; None: unknown until the end.
    """

    def __init__(self, name: str) -> None:
        """Open the file. Args: name: a path; `-`: standard input. Raises: CommandError: it cannot be read."""
        self.size: int | None = None
        self._name = name
        if name == STANDARD_INPUT:
            self._file = stdio.number(sys.stdin, "input")
            return
        try:
            self._file = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise CommandError(f"{name}: {error.strerror or error}") from None
        status = os.fstat(self._file)
        if stat.S_ISDIR(status.st_mode):
            os.close(self._file)
            raise CommandError(f"{name}: Is a directory")
        if stat.S_ISREG(status.st_mode):
            self.size = status.st_size

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the octets, once.

        If the file grows meanwhile, only the octets that it had at the start. Raises: OSError: reading failed.
        """
        if self.size is None:
            async for chunk in stdio.chunks(self._file):
                yield chunk
            return
        left = self.size
        while left and (chunk := await trio.to_thread.run_sync(os.read, self._file, min(CHUNK, left))):
            left -= len(chunk)
            yield chunk

    def close(self) -> None:
        """Close it, unless it is standard input."""
        if self._name != STANDARD_INPUT:
            os.close(self._file)
