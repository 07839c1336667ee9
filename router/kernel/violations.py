"""Errors that the kernel raises."""

from __future__ import annotations

from typing import Final

LINK: Final = "link"
SESSION: Final = "session"
CONNECTION: Final = "connection"


class Violation(Exception):  # noqa: N818 - not an error of ours: the engine turns it into a ProtocolError
    """The peer broke the standard in a hot frame. `scope` is the level of the answer."""

    def __init__(self, scope: str, condition: str, description: str) -> None:
        super().__init__(description)
        self.scope = scope
        self.condition = condition
        self.description = description


class Incomplete(Exception):  # noqa: N818 - no error: more bytes may come
    """The octets end within a value; more may come in the next frame."""
