"""Standard input and output without blocking the event loop: their other end may be slow."""

import os
import select
import sys
from collections.abc import AsyncGenerator
from typing import Final, TextIO

import trio

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.cli.output.terminal import ENDS_AND_TABS, printable

CHUNK: Final = 64 * 2**10
"""Octets read at once."""


class Output:
    """Standard output, one body a line. On a terminal, control characters are escaped."""

    def __init__(self) -> None:
        """Open it. Raises: CommandError: standard output is closed."""
        self._file = number(sys.stdout, "output")
        self._is_terminal = os.isatty(self._file)
        self._poll = select.poll()
        self._poll.register(self._file, select.POLLOUT)

    async def write(self, body: bytes) -> None:
        """Write a line. Raises: OSError: writing failed; BrokenPipeError: the reader has closed the pipe."""
        if self._is_terminal:
            body = printable(body.decode(errors="backslashreplace"), ENDS_AND_TABS).encode()
        line = memoryview(body + b"\n")
        while line:
            if not self._poll.poll(0):
                await trio.lowlevel.wait_writable(self._file)
            # A writable pipe has room for this much (pipe(7)); a file always has.
            line = line[os.write(self._file, line[: select.PIPE_BUF]) :]


async def lines() -> AsyncGenerator[bytes, None]:
    """Yield the lines of standard input, without their ends. Raises: CommandError: it is closed. OSError."""
    rest: list[bytes] = []
    async for chunk in chunks(number(sys.stdin, "input")):
        first, *more = chunk.split(b"\n")
        rest.append(first)
        for following in more:
            yield b"".join(rest).removesuffix(b"\r")
            rest = [following]
    if last := b"".join(rest):
        yield last


async def chunks(file: int) -> AsyncGenerator[bytes, None]:
    """Yield the octets of a pipe, a terminal or a socket. Args: file: its number. Raises: OSError."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    while True:
        if not poll.poll(0):
            await trio.lowlevel.wait_readable(file)
        chunk = os.read(file, CHUNK)
        if not chunk:
            return
        yield chunk


def number(stream: TextIO | None, name: str) -> int:
    """Return the file number of a standard stream. Raises: CommandError: it is closed."""
    if stream is None:
        raise CommandError(f"standard {name} is closed")
    return stream.fileno()
