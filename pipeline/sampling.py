"""The hours in which a router has not recorded all of its deliveries: those of its segments that tell so. No Spark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

ALL: Final = 1 << 32
"""The share of all deliveries, in 2**-32."""

BEFORE: Final = 2
"""Hours before a segment, at most, that its counters are about."""

AFTER: Final = 1
"""Hours behind the last record of a delivery, at most, in which a segment of a sample has counters."""

LONGEST: Final = 48
"""Hours of a segment at most: none lasts longer than a day, and more means that a clock was changed."""

_HOUR: Final = 3_600_000_000_000


def sampled_hours(segments: Iterable[Mapping[str, Any]]) -> dict[int, dict[str, int]]:
    """Return for each hour the routers that have recorded a sample, or lost records, with the least share recorded.

    A segment speaks of the hours from its beginning to that of the next one. One that is not whole, that has lost
    records, or is beside one that is missing, does so with the share of all.
    Args: segments: rows of the table `segments`. Returns: by hours since 1970 and router; shares are of `ALL`.
    """
    lives: dict[tuple[str, int], list[Mapping[str, Any]]] = defaultdict(list)
    for row in segments:
        lives[row["router"], row["epoch"]].append(row)
    found: dict[int, dict[str, int]] = defaultdict(dict)
    for (router, _), rows in lives.items():
        rows.sort(key=lambda row: row["segment"])
        dropped = 0 if rows[0]["segment"] == 1 else rows[0]["dropped"] or 0
        for place, row in enumerate(rows):
            follows = place == 0 or rows[place - 1]["segment"] + 1 == row["segment"]
            later = rows[place + 1] if place + 1 < len(rows) else None
            is_followed = later is None or later["segment"] == row["segment"] + 1
            lost = (row["dropped"] or 0) > dropped
            dropped = max(dropped, row["dropped"] or 0)
            share = ALL if row["sample"] is None else row["sample"]
            if share >= ALL and row["whole"] and not lost and follows and is_followed:
                continue
            for hour in _hours(row, later, share < ALL, follows):
                found[hour][router] = min(share, found[hour].get(router, ALL))
    return dict(found)


def _hours(row: Mapping[str, Any], later: Mapping[str, Any] | None, is_sample: bool, follows: bool) -> range:
    """Return the hours that a segment speaks of. Args: later: the next one of the same life."""
    begin = row["time"] // _HOUR
    times = [row["time"], *(row[each] for each in ("first_time", "last_time") if row[each] is not None)]
    if later is not None:
        times.append(later["time"])
    first = max(min(times) // _HOUR, begin - LONGEST)
    last = min(max(times) // _HOUR, begin + LONGEST)
    return range(first - (BEFORE if is_sample or not follows else 0), last + (AFTER if is_sample else 0) + 1)
