"""Quantities in a policy file, written as people write them: `"32 MiB"`, `"20_000/s"`, `"25 %"`."""

from __future__ import annotations

import math
import re
from typing import Final, Self

from amqpmesh.policies.limits import Part

_UNITS: Final = {
    "": 1,
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
}
_TIMES: Final = {"s": 1, "min": 60, "h": 3600}
_NUMBER: Final = r"(?P<number>[0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?)"
_SIZE: Final = re.compile(rf"{_NUMBER} ?(?P<unit>[A-Za-z]*)")
_RATE: Final = re.compile(rf"{_NUMBER} ?(?P<unit>[A-Za-z]*) ?/ ?(?P<time>[a-z]+)")
_SHARE: Final = re.compile(rf"{_NUMBER} ?%")

LARGEST: Final = 2**63 - 1
"""The largest number of octets: more than any machine has. Rates have no more in a text."""


def _size(found: re.Match[str]) -> float:
    unit = _UNITS.get(found["unit"])
    if unit is None:
        raise ValueError(f'has an unknown unit "{found["unit"]}"; known are {", ".join(filter(None, _UNITS))}')
    return float(found["number"]) * unit


def _bounded(number: float) -> float:
    if number > LARGEST:
        raise ValueError(f"must be at most {LARGEST}")
    return number


class Octets(int):
    """A number of octets: a whole number, or a text with a unit, `"32 MiB"`."""

    @classmethod
    def from_toml(cls, value: object) -> Self:
        """Return the quantity of a value of TOML. Raises: ValueError: with the reason."""
        if isinstance(value, int) and not isinstance(value, bool):
            return cls(value)
        found = _SIZE.fullmatch(value) if isinstance(value, str) else None
        if found is None:
            raise ValueError('must be a number of octets, or a text such as "32 MiB"')
        return cls(int(_bounded(_size(found))))


class Rate(float):
    """A number in a second: a number, or a text, `"20_000/s"`, `"600/min"`, `"50/h"`."""

    @classmethod
    def from_toml(cls, value: object) -> Self:
        """Return the quantity of a value of TOML. Raises: ValueError: with the reason."""
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            return cls(value)
        found = _RATE.fullmatch(value) if isinstance(value, str) else None
        if found is None or found["unit"]:
            raise ValueError('must be a number in a second, or a text such as "20_000/s"')
        return cls(_bounded(float(found["number"])) / _seconds(found))


class OctetRate(float):
    """A number of octets in a second: a number, or a text, `"50 MiB/s"`."""

    @classmethod
    def from_toml(cls, value: object) -> Self:
        """Return the quantity of a value of TOML. Raises: ValueError: with the reason."""
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            return cls(value)
        found = _RATE.fullmatch(value) if isinstance(value, str) else None
        if found is None:
            raise ValueError('must be a number of octets in a second, or a text such as "50 MiB/s"')
        return cls(_bounded(_size(found)) / _seconds(found))


class Memory(Part):
    """A part of the router's memory: octets, as `Octets`, or a share, `"25 %"`."""

    @classmethod
    def from_toml(cls, value: object) -> Self:
        """Return the quantity of a value of TOML. Raises: ValueError: with the reason."""
        found = _SHARE.fullmatch(value) if isinstance(value, str) else None
        if found is not None:
            share = float(found["number"]) / 100
            if share > 1:
                raise ValueError("must be at most 100 %")
            return cls(share=share)
        try:
            return cls(octets=int(Octets.from_toml(value)))
        except ValueError:
            raise ValueError('must be a number of octets, or a text such as "32 MiB" or "25 %"') from None


def _seconds(found: re.Match[str]) -> int:
    seconds = _TIMES.get(found["time"])
    if seconds is None:
        raise ValueError(f'has an unknown time "{found["time"]}"; known are {", ".join(_TIMES)}')
    return seconds
