"""Text for a terminal: aligned tables, and text without control characters."""

import unicodedata
from collections.abc import Collection, Sequence
from typing import Final

ENDS_AND_TABS: Final = "\n\t"

GAP: Final = "  "

NARROWEST: Final = 8
"""Columns that remain of a name, however narrow the terminal is."""

Cell = str | int | float | None


def printable(text: str, besides: str = "") -> str:
    """Escape characters that are not printable, except those in `besides`.

    Peers choose much of what is printed, and must not control the terminal.
    """
    return "".join(each if each.isprintable() or each in besides else f"\\u{ord(each):04x}" for each in text)


def table(headings: Sequence[str], rows: Sequence[Sequence[Cell]], width: int, cut: Collection[str]) -> list[str]:
    """Return lines of at most `width` columns, if cutting the words under the headings `cut` suffices.

    Numbers are aligned right, words left; None is a hyphen. Fractions have two digits. A cut word ends with an
    ellipsis.
    """
    texts = [[_text(cell) for cell in row] for row in rows]
    numeric = [
        all(isinstance(row[at], int | float) or row[at] is None for row in rows)
        and any(row[at] is not None for row in rows)
        for at in range(len(headings))
    ]
    widths = [
        max(_width(heading), *(_width(row[at]) for row in texts), 0) if texts else _width(heading)
        for at, heading in enumerate(headings)
    ]
    _narrow_columns(widths, [at for at, heading in enumerate(headings) if heading in cut], width)
    return [
        GAP.join(_fit(cell, widths[at], right=numeric[at]) for at, cell in enumerate(line)).rstrip()
        for line in (headings, *texts)
    ]


def _narrow_columns(widths: list[int], words: Sequence[int], width: int) -> None:
    """Narrow the widest of these columns until the table fits."""
    over = sum(widths) + len(GAP) * (len(widths) - 1) - width
    while over > 0 and words:
        widest = max(words, key=lambda at: widths[at])
        if widths[widest] <= NARROWEST:
            return
        widths[widest] -= 1
        over -= 1


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.2f}"
    return f"{cell:,}" if isinstance(cell, int) else cell


def _fit(text: str, width: int, *, right: bool) -> str:
    if _width(text) > width:
        kept = ""
        for each in text:
            if _width(kept + each) >= width:
                break
            kept += each
        text = f"{kept}…"
    blank = " " * (width - _width(text))
    return blank + text if right else text + blank


def _width(text: str) -> int:
    """Return the columns of a text on a terminal; East Asian characters take two."""
    return len(text) if text.isascii() else sum(1 + (unicodedata.east_asian_width(each) in "WF") for each in text)
