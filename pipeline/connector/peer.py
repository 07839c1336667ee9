"""The connection of the data source to its peer, made from the options."""

from __future__ import annotations

import os
import socket
from secrets import token_hex
from typing import TYPE_CHECKING

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.client.connect import connect
from amqpmesh.router.io.dialing import Backoff

if TYPE_CHECKING:
    from pathlib import Path

    from amqpmesh.pipeline.connector.options import Options
    from amqpmesh.router.client.connect import Connection

BACKOFF = Backoff(first=0.1, longest=5.0)
"""Between two tries to connect."""


def connection(options: Options, task: str) -> Connection:
    """Return a connection with these options, for `async with`; it reconnects when it is lost.

    Args: task: the purpose of the connection, a part of our container-id, so that others can identify the client.
    Raises: CommandError: the options contradict each other, or a file cannot be read or is not valid.
    """
    try:
        return connect(
            options["url"],
            id=f"spark-{task}-{socket.gethostname()}-{os.getpid()}-{token_hex(3)}",
            user=options["user"],
            password=_password(options["passwordFile"]),
            mechanisms=options["mechanisms"],
            insecure=options["insecure"],
            trust=options["trust"],
            certificate=options["certificate"],
            key=options["key"],
            hostname=options["hostname"],
            redirects=options["redirects"],
            reconnect=BACKOFF,
        )
    except OSError as error:
        files = [str(options[name]) for name in ("trust", "certificate", "key") if options[name] is not None]
        raise CommandError(f"{error.filename or ', '.join(files)}: {error.strerror or error}") from None


def _password(file: Path | None) -> str | None:
    """Return the first line of the file; None: no file. Raises: CommandError: it cannot be read, or is not UTF-8."""
    if file is None:
        return None
    try:
        with file.open(encoding="utf-8", newline="\n") as stream:
            return stream.readline().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise CommandError(f"{file}: is not UTF-8") from None
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror or error}") from None
