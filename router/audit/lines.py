"""Lines of the audit log: one JSON object each (RFC 8259), in ASCII, whatever a peer's texts contain."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST: Final = 256
"""Characters of a text; peers choose container-ids, addresses and names of users."""

MOST: Final = 20
"""Texts of a list, such as the groups of a peer."""

# JSON can escape half of a surrogate pair, but many readers refuse it.
_LONE: Final = re.compile("[\ud800-\udfff]")

_LARGEST: Final = 2**63


def encode(time: float, fields: Mapping[str, object]) -> bytes:
    """Return a line. Args: time: seconds since 1970. fields: those of value None are left out; texts are cut."""
    said = {name: _value(value) for name, value in fields.items() if value is not None}
    return json.dumps({"time": stamp(time), **said}, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def stamp(time: float) -> str:
    """Return a time as RFC 3339 writes it, in UTC. Args: time: seconds since 1970."""
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def shortened(text: str) -> str:
    """Return a text that is cut if it is too long."""
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."


def _value(value: object) -> object:
    """Return a value as JSON has it: numbers and booleans keep their type, and all else is text."""
    if isinstance(value, bool | float):
        return value
    if isinstance(value, int) and -_LARGEST <= value < _LARGEST:
        return int(value)
    if isinstance(value, tuple):
        texts = [_text(str(each)) for each in value[:MOST]]
        return [*texts, "..."] if len(value) > MOST else texts
    return _text(str(value))


def _text(text: str) -> str:
    return _LONE.sub("\ufffd", shortened(text))
