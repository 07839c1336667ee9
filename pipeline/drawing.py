"""The style of all pictures, and their texts and numbers.

Peers choose the names of addresses, routers and clients: in a picture they are plain text, on one line, and short.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, wraps
from io import BytesIO
from typing import Any, Final, ParamSpec

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font

P = ParamSpec("P")

COLORS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
"""The colours of Okabe and Ito, which people with colour blindness can tell apart."""

OTHERS: Final = "#B8B8B8"
"""The colour of everything that is summed up as others."""

INK: Final = "#303030"

FAINT: Final = "#9A9A9A"

BLUES: Final = LinearSegmentedColormap.from_list("blues", ["#CFE3F1", COLORS[0], "#00263D"])
"""From little to much, darker all the way: readable without colour, too."""

WIDTH: Final = 9.0
"""Inches; with `DPI` it fills a page on a screen, and on paper."""

DPI: Final = 140

LONGEST: Final = 30
"""Characters of a name at most."""

_FONT: Final = "DejaVu Sans"
"""The font that matplotlib brings along."""

_STYLE: Final[Mapping[Any, Any]] = {
    "axes.axisbelow": True,
    "axes.edgecolor": FAINT,
    "axes.formatter.use_mathtext": False,
    "axes.grid": False,
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "axes.unicode_minus": True,
    "figure.constrained_layout.h_pad": 0.06,
    "figure.constrained_layout.w_pad": 0.06,
    "figure.facecolor": "white",
    "font.family": [_FONT],
    "font.size": 9,
    "grid.alpha": 0.6,
    "grid.color": "#D8D8D8",
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "text.color": INK,
    "text.parse_math": False,  # a name with two dollar signs is not a formula
    "text.usetex": False,
    "timezone": "UTC",
    "xtick.color": INK,
    "xtick.labelsize": 8.5,
    "ytick.color": INK,
    "ytick.labelsize": 8.5,
}


@contextmanager
def styled() -> Iterator[None]:
    """Apply this style within the block, whatever the user's settings; restore them after it."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield


def picture(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Apply this style to the figure that a function makes."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with styled():
            return draw(*args, **kwargs)

    return drawn


def sheet(height: float, width: float = WIDTH) -> Figure:
    """Make an empty figure without a window. Args: height, width: inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def nothing(sentence: str = "nothing was recorded of this") -> Figure:
    """Make a picture with a sentence that there is nothing to show."""
    figure = sheet(0.9)
    figure.text(0.5, 0.5, sentence, ha="center", va="center", color="#6A6A6A", fontsize=10)
    return figure


def png(figure: Figure) -> bytes:
    """Return a PNG: the same octets for the same figure."""
    with styled(), BytesIO() as octets:
        figure.savefig(octets, format="png", dpi=DPI, metadata={"Software": None})
        return octets.getvalue()


# ----------------------------------------------------------------------------------------------------------------- text


def name(text: str | None, longest: int = LONGEST) -> str:
    """Return a name for a picture: as `printable`, with characters without a glyph escaped, too."""
    shown = "".join(each if _has_glyph(each) else _escaped(each) for each in printable(text, longest))
    return _shortened(shown, longest)


def printable(text: str | None, longest: int) -> str:
    """Return a readable name. Args: text: None: unknown.

    Characters that cannot be printed are escaped. A long name is shortened in its middle, since its ends say most.
    """
    if text is None:
        return "(unknown)"
    # Shortened first, since a name may have any number of characters.
    some = _shortened(text, 4 * longest)
    return _shortened("".join(each if each.isprintable() else _escaped(each) for each in some), longest) or "(empty)"


def _shortened(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    head = longest // 2
    return f"{text[:head]}…{text[len(text) - (longest - head - 1) :]}"


def _escaped(character: str) -> str:
    return f"\\u{ord(character):04x}"


@cache
def _has_glyph(character: str) -> bool:
    return bool(get_font(findfont(FontProperties(family=[_FONT]))).get_char_index(ord(character)))


def octets(value: float) -> str:
    """Return an amount of octets as text, by thousands."""
    return _scaled(value, (" B", " kB", " MB", " GB", " TB", " PB"))


def count(value: float) -> str:
    """Return a number as text, by thousands if it is large."""
    return _scaled(value, ("", "k", "M", "G", "T"))


def percent(value: float) -> str:
    """Return a share as text, in whole percent."""
    return f"{value:.0%}"


def seconds(value: float) -> str:
    """Return a time as text, in a unit that suits it. Args: value: nanoseconds."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(value) >= size:
            return f"{_three(value / size)} {unit}"
    return f"{value:.0f} ns"


def _scaled(value: float, units: tuple[str, ...]) -> str:
    step = 0
    while abs(value) >= 999.5 and step < len(units) - 1:
        value, step = value / 1000, step + 1
    return f"{_three(value)}{units[step]}"


def _three(value: float) -> str:
    """Return three significant digits, without trailing zeros after the point."""
    if not value:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


# ----------------------------------------------------------------------------------------------------------------- axes


def quiet(axes: Axes, lines: str = "x") -> None:
    """Remove marks that are not needed. Args: lines: the axis with grid lines."""
    axes.grid(axis=lines)  # type: ignore[arg-type]
    axes.tick_params(length=0)


def legend_below(figure: Figure, entries: Mapping[str, Artist], columns: int = 4) -> None:
    """Add a legend under all axes. Args: entries: by name; matplotlib itself would leave out names with a leading
    underscore.
    """
    figure.legend(list(entries.values()), list(entries), loc="outside lower left", ncols=columns)


def entries(axes: Axes) -> Mapping[str, Artist]:
    """Return the entries of the axes' legend; their labels must be chosen by our code."""
    handles, labels = axes.get_legend_handles_labels()
    return dict(zip(labels, handles, strict=True))
