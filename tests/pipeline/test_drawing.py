"""Names and numbers in pictures, and styles that leave nothing behind."""

from __future__ import annotations

import struct
import subprocess
import sys

import matplotlib as mpl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.pipeline import drawing


@given(st.text(max_size=400), st.integers(min_value=8, max_value=60))
def test_any_name_is_one_short_line_that_can_be_printed(text: str, longest: int) -> None:
    for shown in (drawing.name(text, longest), drawing.printable(text, longest)):
        assert 0 < len(shown) <= longest
        assert shown.isprintable()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("orders", "orders"),
        (None, "(unknown)"),
        ("", "(empty)"),
        ("a\nb", "a\\u000ab"),
        ("a\u202eb", "a\\u202eb"),  # it would turn round what follows
        ("\ud800", "\\ud800"),
        ("x" * 300, "x" * 10 + "…" + "x" * 9),
        ("orders.of.shop.one.and.only", "orders.of.…..and.only"[:10] + "…" + ".and.only"),
        ("Grüße", "Grüße"),
    ],
)
def test_a_name_is_shown_as_it_is_or_escaped_or_shortened_in_its_middle(text: str | None, shown: str) -> None:
    assert drawing.name(text, 20) == shown
    assert drawing.printable(text, 20) == shown


def test_what_the_font_lacks_is_escaped_in_pictures_only() -> None:
    assert drawing.name("注文") == "\\u6ce8\\u6587"
    assert drawing.printable("注文", 20) == "注文"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0 B"), (999, "999 B"), (999.7, "1 kB"), (1_000, "1 kB"), (12_345_678, "12.3 MB"), (5e18, "5,000 PB")],
)
def test_octets_are_told_by_thousands(value: float, shown: str) -> None:
    assert drawing.octets(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0 ns"), (1_000, "1 µs"), (50_300, "50.3 µs"), (2_000_000, "2 ms"), (-1.5e9, "-1.5 s"), (3e12, "3,000 s")],
)
def test_times_are_told_in_the_unit_that_fits(value: float, shown: str) -> None:
    assert drawing.seconds(value) == shown


def test_what_somebody_has_set_does_not_change_a_picture_and_stays_set() -> None:
    before = drawing.png(drawing.nothing())
    with mpl.rc_context({"figure.facecolor": "red", "savefig.dpi": 10, "text.usetex": True, "font.size": 40}):
        assert drawing.png(drawing.picture(drawing.nothing)()) == before
        assert mpl.rcParams["text.usetex"] is True
    assert mpl.rcParams["text.parse_math"] is True


def test_a_picture_is_as_large_as_it_says() -> None:
    data = drawing.png(drawing.picture(drawing.sheet)(2.0))
    assert data.startswith(b"\x89PNG")
    assert struct.unpack(">II", data[16:24]) == (drawing.WIDTH * drawing.DPI, 2.0 * drawing.DPI)


def test_nothing_is_drawn_by_way_of_a_display() -> None:
    check = (
        "import sys, amqpmesh.pipeline.report as report\n"
        "print([name for name in ('matplotlib.pyplot', 'tkinter', 'IPython') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"
