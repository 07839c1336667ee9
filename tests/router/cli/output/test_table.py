"""Tables of text."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.cli.output.terminal import NARROWEST, table

words = st.text(st.characters(categories=["Lu", "Ll", "Lo"]), max_size=40)
rows = st.lists(st.tuples(words, st.one_of(st.none(), st.integers(0, 10**9)), words), max_size=5)


def columns(text: str) -> int:
    return sum(1 + (unicodedata.east_asian_width(each) in "WF") for each in text)


@given(rows, st.integers(20, 120))
def test_a_table_is_as_wide_as_is_wanted_if_names_can_be_cut(
    given_rows: list[tuple[str, int | None, str]], width: int
) -> None:
    lines = table(("name", "number", "reason"), given_rows, width, {"name"})
    assert len(lines) == len(given_rows) + 1
    needed = max([6, *(len(f"{number or 0:,}") for _, number, _ in given_rows)])
    reason = max([6, *(columns(reason) for _, _, reason in given_rows)])
    assert max(map(columns, lines)) <= max(width, NARROWEST + 2 + needed + 2 + reason)
    assert all(line.endswith(reason.rstrip() or "") for line, (_, _, reason) in zip(lines[1:], given_rows, strict=True))


def test_words_stand_at_the_left_and_numbers_at_the_right() -> None:
    assert table(("name", "count"), [("a", 1), ("long name", 12_345), ("none", None)], 100, ()) == [
        "name        count",
        "a               1",
        "long name  12,345",
        "none            -",
    ]


def test_a_cut_cell_ends_with_an_ellipsis() -> None:
    assert table(("name", "why"), [("a name that is long", "x")], 14, {"name"}) == ["name       why", "a name t…  x"]


def test_a_table_without_rows_is_its_headings() -> None:
    assert table(("a", "b"), [], 80, ()) == ["a  b"]
