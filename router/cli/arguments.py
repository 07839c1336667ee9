"""Arguments that are numbers. Each raises ValueError for what is none; argparse tells its name."""

import math


def seconds(text: str) -> float:
    """A time, more than 0."""
    return _positive(float(text))


def rate(text: str) -> float:
    """So many in a second, more than 0."""
    return _positive(float(text))


def count(text: str) -> int:
    """How many, 1 at least."""
    return int(_positive(int(text)))


def size(text: str) -> int:
    """Octets, 0 at least."""
    octets = int(text)
    if octets < 0:
        raise ValueError(text)
    return octets


def _positive(number: float) -> float:
    if not 0 < number < math.inf:
        raise ValueError(number)
    return number
