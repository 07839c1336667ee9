"""Rights at the management node: to read or to change entities, all of them or those of one type."""

from enum import StrEnum
from typing import Final, NamedTuple


class Manage(StrEnum):
    """The rights of a group at the management node."""

    READ = "read"
    WRITE = "write"
    """Change what can be changed, and read."""


KINDS: Final = (
    *("router", "listener", "connector", "container-link", "policy", "connection", "link", "terminus"),
    *("address", "node", "limit", "rate", "mesh", "neighbour", "route", "lane", "advert", "disagreement"),
    *("address-pattern", "elsewhere", "log", "telemetry", "metrics", "tracing", "resumption", "user"),
)
"""The names of all types of entities, without their prefix."""

CONFIDENTIAL: Final = frozenset({"user"})
"""The types that nobody may read for want of a policy: only those who may change them."""


class Managed(NamedTuple):
    """One right at the management node."""

    right: Manage
    kind: str | None
    """The type of entities that it is for; None: all types."""


def managed(text: str) -> Managed:
    """Return the right that a policy names: `read`, `write`, `read:address`, or `address`, which is the same.

    Raises: ValueError: there is no such right; with the reason.
    """
    words = [each.value for each in Manage]
    if text in words:
        return Managed(Manage(text), None)
    right, separator, kind = text.partition(":")
    if not separator:
        right, kind = Manage.READ.value, text
    if right not in words or kind not in KINDS:
        raise ValueError(f"must be {' or '.join(words)}, alone or before a colon and one of {', '.join(KINDS)}")
    return Managed(Manage(right), kind)


def fault(text: str) -> str | None:
    """Return the reason to refuse the text of a right; None: there is none."""
    try:
        managed(text)
    except ValueError as error:
        return str(error)
    return None
