"""First commands to try, printed below the URL of a router's listener."""

import os
import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from amqpmesh.router.cli.arguments import URL_VARIABLE
from amqpmesh.router.config.file import DEFAULT_URL, ListenerConfig


def first_steps(listeners: Iterable[tuple[str, ListenerConfig]]) -> list[str]:
    """Return commands to try with the first listener that needs no login; none if there is no such listener.

    Args: listeners: each with its actual URL.
    """
    for url, config in listeners:
        if config.endpoint.secure or config.authenticates:
            continue
        # The default URL needs no --url in another terminal, unless the environment variable is set there, too.
        where = [] if url == DEFAULT_URL and URL_VARIABLE not in os.environ else ["--url", url]
        commands = (["receive", "hello"], ["send", "hello", "--body", "hi"], ["status"])
        return [
            "",
            "In other terminals, the receiver first:",
            "",
            *(f"    {shlex.join([*program(), *command, *where])}" for command in commands),
            "",
        ]
    return []


def program() -> list[str]:
    """Return the words of a command line that starts this program."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return [sys.executable, "-m", "amqpmesh"]
    found = shutil.which(called.name)
    return [called.name if found is not None and Path(found) == called else sys.argv[0]]
