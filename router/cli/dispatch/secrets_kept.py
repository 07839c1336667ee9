"""Passwords of a configuration, which this router's configuration names by a file or a variable, and never contains."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from amqpmesh.router.cli.dispatch.toml_document import Value


class Secrets:
    """The passwords that stood in the file. `files` has those to write, by the names of their files."""

    WORDS: Final = "a password that stood in the file is in a file of its own"

    def __init__(self) -> None:
        self.files: dict[str, str] = {}

    def source(self, written: str, stem: str) -> Value:
        """Return the table that says where a password is.

        Args: written: `env:VARIABLE`, `file:PATH`, or the password, also as `pass:...` or `literal:...`.
            stem: of the name of the file that is to have it.
        """
        kind, colon, rest = written.partition(":")
        if colon and kind == "env":
            return {"env": rest}
        if colon and kind == "file":
            return {"file": rest}
        password = rest if colon and kind in ("pass", "literal") else written
        name = free(f"{re.sub(r'[^A-Za-z0-9_.-]', '-', stem).lstrip('.') or 'mesh'}.password", password, self.files)
        self.files[name] = password
        return {"file": name}


def free(name: str, content: str, taken: dict[str, str]) -> str:
    """Return a name of a file that has this content, or that no other file has: `broker.password-2`."""
    number, found = 1, name
    while taken.get(found, content) != content:
        number += 1
        found = f"{name}-{number}"
    return found
