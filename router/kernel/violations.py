"""Errors that the kernel raises."""

from __future__ import annotations

from typing import Final

LINK: Final = "link"
SESSION: Final = "session"


class Violation(Exception):  # noqa: N818 - the name says what happened; what it becomes is a ProtocolError
    """The peer broke the standard in a hot frame: what to answer, and at which level (link, session)."""

    def __init__(self, scope: str, condition: str, description: str) -> None:
        super().__init__(description)
        self.scope = scope
        self.condition = condition
        self.description = description


class Incomplete(Exception):  # noqa: N818 - no error: more bytes may come
    """The bytes end inside the value that is being skipped; more may follow in the next frame."""
