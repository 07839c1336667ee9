"""Tables of text, and medians of rounds."""

from __future__ import annotations

import statistics
import sys

KIB, MIB = 1 << 10, 1 << 20

Figures = dict[str, float]
"""The results of one measurement, by name; the name has the unit."""


def median(rounds: list[Figures]) -> Figures:
    """Return the median of each figure that all rounds have."""
    return {
        key: statistics.median(each[key] for each in rounds) for key in rounds[0] if all(key in it for it in rounds)
    }


def table(title: str, columns: list[str], rows: list[tuple[str, list[str]]]) -> None:
    """Print a table."""
    widths = [max(len(title), *(len(name) for name, _ in rows))]
    widths += [max(len(column), *(len(cells[i]) for _, cells in rows)) for i, column in enumerate(columns)]
    print()
    for name, cells in [(title, columns), *rows]:
        print(
            "  ".join(
                [name.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))]
            )
        )
    sys.stdout.flush()
