"""Differences between configurations, and answers to changes, as lines for people."""

from collections.abc import Mapping
from typing import Any, Final

from amqpmesh.router.config.differences import Difference
from amqpmesh.router.management.service import (
    BAD_REQUEST,
    CONFLICT,
    FORBIDDEN,
    NOT_ALLOWED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
)
from amqpmesh.router.message.content import Message

SAYS_NO: Final = frozenset({BAD_REQUEST, FORBIDDEN, NOT_FOUND, NOT_ALLOWED, CONFLICT, NOT_IMPLEMENTED})
"""The statuses of answers that refuse a change."""


def why_not(answer: Message) -> str | None:
    """Return the reason for which a router refuses a change; None: it does not."""
    if answer.application_properties.get("statusCode") not in SAYS_NO:
        return None
    return str(answer.application_properties.get("statusDescription")).partition(": ")[2]


def difference_map(found: Difference) -> dict[str, str | None]:
    """Return a difference as an answer of `$management` has it."""
    return {
        "key": found.key,
        "effect": found.effect.value,
        "from": found.before,
        "to": found.after,
        "reason": found.reason or None,
    }


def difference_line(told: Mapping[Any, Any]) -> str:
    """Return a line for a difference. Args: told: in an answer of `$management`, or by `difference_map`."""
    change = " ".join((told["key"], *(f"{word} {told[word]}" for word in ("from", "to") if told[word] is not None)))
    reason = f": {told['reason']}" if told["reason"] else ""
    return f"{change} ({told['effect']}{reason})"
