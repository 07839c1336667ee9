"""User-ids that the messages of a peer may have (§3.2.4, user-id)."""

from __future__ import annotations

from enum import IntFlag, StrEnum
from typing import Final


class UserId(StrEnum):
    """The user-ids that a group permits."""

    NONE = "none"
    """No user-id."""
    MATCH = "match"
    """No user-id, or that of the connection's user."""
    REQUIRED = "required"
    """That of the connection's user, and not none."""
    ANY = "any"
    """All user-ids, also those of others."""


class UserIds(IntFlag):
    """Kinds of user-ids that a peer may use."""

    ABSENT = 1
    OWN = 2
    """That of the connection's user."""
    OTHER = 4


ALL: Final = UserIds.ABSENT | UserIds.OWN | UserIds.OTHER
"""The kinds that a peer may use of which no group says anything."""

KINDS: Final = {
    UserId.NONE: UserIds.ABSENT,
    UserId.MATCH: UserIds.ABSENT | UserIds.OWN,
    UserId.REQUIRED: UserIds.OWN,
    UserId.ANY: ALL,
}
"""The kinds that a group permits."""


def kind_of(user_id: bytes | None, user: str | None) -> UserIds:
    """Return the kind of a message's user-id. An empty one counts as none.

    Args: user: of the connection; None: it has none, and each user-id is that of another one.
    """
    if not user_id:
        return UserIds.ABSENT
    return UserIds.OWN if user is not None and user_id == user.encode() else UserIds.OTHER
