"""Passwords from a file, from standard input, or from the terminal: never from the arguments."""

import getpass
from pathlib import Path
from typing import TextIO

from amqpmesh.router.amqp.errors import CommandError


def from_file(file: Path) -> str:
    """Read the first line of a file. Raises: CommandError: it cannot be read, or is not UTF-8."""
    try:
        with file.open(encoding="utf-8", newline="\n") as stream:
            return from_stream(stream)
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror or error}") from None


def from_stream(stream: TextIO) -> str:
    """Read the first line of a stream. Raises: CommandError: it is not UTF-8."""
    try:
        return stream.readline().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise CommandError("the password is not UTF-8") from None


def from_person(prompt: str = "password: ") -> str:
    """Prompt for a password on the terminal, without echo. Raises: CommandError: there was no answer."""
    try:
        return getpass.getpass(prompt)
    except EOFError:
        raise CommandError("no password was given") from None
