"""Types of arguments. Each raises `ArgumentTypeError` with the valid values; argparse adds the argument's name."""

import argparse
import math
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

from amqpmesh.policies.redirect import pattern_refusal
from amqpmesh.router.amqp.sasl.mechanisms import MAX_ITERATIONS, MIN_ITERATIONS

URL_VARIABLE: Final = "AMQPMESH_URL"
"""The environment variable with the peer's URL, for commands without `--url`."""

MAX_COUNT: Final = 10**12
"""Messages at most: some weeks at full speed."""

MAX_CREDIT: Final = 2**31 - 1
"""Credit at most: half of the range of the standard's counters, which are compared by their difference (§2.8.10)."""

MAX_SIZE: Final = 256 * 2**20
"""Octets of a generated message at most: it is made, encoded and sent in one piece."""


UNITS: Final[Mapping[str, timedelta]] = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
"""Units of a duration before now."""


def seconds(text: str) -> float:
    """Read a number of seconds, more than 0."""
    return _positive(text, "a number of seconds, more than 0")


def rate(text: str) -> float:
    """Read a number per second, more than 0."""
    return _positive(text, "a number, more than 0")


def count(text: str) -> int:
    """Read a number of messages, at least 1."""
    return _whole(text, 1, MAX_COUNT)


def credit(text: str) -> int:
    """Read a number of deliveries that may be in flight, at least 1."""
    return _whole(text, 1, MAX_CREDIT)


def iterations(text: str) -> int:
    """Read the number of iterations for checking a password (RFC 5802, 5.1)."""
    return _whole(text, MIN_ITERATIONS, MAX_ITERATIONS)


def size(text: str) -> int:
    """Read a number of octets, at least 0."""
    return _whole(text, 0, MAX_SIZE)


def name(text: str) -> str:
    """Read an address or a user's name: not empty, and valid UTF-8."""
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    try:
        text.encode()
    except UnicodeEncodeError:  # octets that are not UTF-8 appear as lone surrogates
        raise argparse.ArgumentTypeError("must be UTF-8") from None
    return text


def host(text: str) -> str:
    """Read a host, or `*.NAME` for several hosts."""
    refusal = pattern_refusal([name(text)])
    if refusal is not None:
        raise argparse.ArgumentTypeError(refusal)
    return text


def moment(text: str) -> datetime:
    """Read a time: ISO 8601, UTC if it names no zone, or a duration before now. Returns: in UTC."""
    with suppress(ValueError, OverflowError):
        if before := re.fullmatch(r"-(\d+(?:\.\d+)?)([a-z])", text):
            return datetime.now(UTC) - float(before[1]) * UNITS.get(before[2], timedelta.max)
        named = datetime.fromisoformat(text)
        return named.replace(tzinfo=UTC) if named.tzinfo is None else named.astimezone(UTC)
    raise argparse.ArgumentTypeError(
        f"must be a time such as 2026-05-01T12:00:00Z, or such as -1h ({', '.join(UNITS)}), not {text!r}"
    )


def take_durations_before_now(command: argparse.ArgumentParser) -> None:
    """Have a command take a duration such as -1h for a value, as a negative number would be, and for no option."""
    command._negative_number_matcher = re.compile(r"-\d")


def age(text: str) -> timedelta:
    """Read how long ago something may be: a number with a unit."""
    with suppress(OverflowError):
        if (told := re.fullmatch(r"(\d+(?:\.\d+)?)([a-z])", text)) and told[2] in UNITS and float(told[1]) > 0:
            return float(told[1]) * UNITS[told[2]]
    raise argparse.ArgumentTypeError(f"must be a duration such as 90d ({', '.join(UNITS)}), not {text!r}")


def place(text: str) -> str:
    """Read a directory: keep a URI, and make a path absolute."""
    return text if re.match(r"[a-z][a-z0-9+.-]*://", name(text)) else os.path.abspath(text)


def setting(text: str) -> tuple[str, str]:
    """Read KEY=VALUE."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"must be KEY=VALUE, not {text!r}")
    return key, value


def _whole(text: str, low: int, high: int) -> int:
    with suppress(ValueError):
        number = int(text)
        if low <= number <= high:
            return number
    raise argparse.ArgumentTypeError(f"must be a whole number from {low} to {high}, not {text!r}")


def _positive(text: str, what: str) -> float:
    with suppress(ValueError):
        number = float(text)
        if 0 < number < math.inf:
            return number
    raise argparse.ArgumentTypeError(f"must be {what}, not {text!r}")
