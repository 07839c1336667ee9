"""Patterns of addresses, and the most specific match."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.policies.patterns import PatternTable, steps


def pattern_of(table: PatternTable[None], address: str) -> str | None:
    found = table.find(address)
    return None if found is None else found[0]


def table_of(*patterns: str) -> PatternTable[None]:
    return PatternTable((pattern, None) for pattern in patterns)


@pytest.mark.parametrize(
    ("pattern", "takes", "leaves"),
    [
        ("a", ["a"], ["", "b", "aa", "a/a", "a.", "A"]),
        ("a.b", ["a.b"], ["a/b", "a", "a.b.c"]),
        ("*", ["a", ""], ["a/b", "a."]),
        ("a/*", ["a/b", "a/"], ["a", "a.b", "a/b/c", "b/a"]),
        ("*/b", ["a/b", "/b"], ["b", "a.b", "a/a/b"]),
        ("a/*.c", ["a/b.c"], ["a/b/c", "a.b.c", "a/c"]),
        ("#", ["", "a", "a/b.c//"], []),
        ("news/#", ["news", "news/", "news/a", "news/a/b", "news/a.b"], ["news.a", "newsx", "a/news"]),
        ("#/news", ["news", "a/news", "a.b/news"], ["a.news", "news/a"]),
        ("a/#/b", ["a/b", "a/x/b", "a/x.y/b"], ["a", "b", "a.b", "a.x/b", "a/x.b"]),
        ("a/#.b", ["a.b", "a/x.b"], ["a/b", "a/x/b"]),
        ("#/a/#", ["a", "x/a", "a/x", "x.y/a/z"], ["x", "x/b/y"]),
        ("a*", ["a*"], ["ab", "a"]),
        ("a#", ["a#"], ["ab", "a"]),
    ],
)
def test_a_pattern_takes_what_it_says(pattern: str, takes: list[str], leaves: list[str]) -> None:
    table = table_of(pattern)
    assert [address for address in takes if pattern_of(table, address) is None] == []
    assert [address for address in leaves if pattern_of(table, address) is not None] == []


@pytest.mark.parametrize(
    ("address", "patterns"),
    [
        ("a/b", ["a/b", "a/*", "a/#", "*/b", "*/*", "*/#", "#/b", "#"]),
        ("a", ["a", "a/#", "*", "*/#", "#"]),
        ("a/x/b", ["a/x/#", "a/*/b", "a/#/b", "a/#/*", "a/#"]),
        ("a/b", ["#.a/#", "#/a/#", "#/b/#"]),
    ],
)
def test_the_most_specific_pattern_wins(address: str, patterns: list[str]) -> None:
    while patterns:
        assert pattern_of(table_of(*patterns), address) == patterns[0]
        assert pattern_of(table_of(*reversed(patterns)), address) == patterns[0]
        del patterns[0]


def test_a_lookup_gives_the_value_of_the_pattern_also_when_that_is_nothing() -> None:
    table = PatternTable([("a/#", 1), ("a/b", 0)])
    assert (table.lookup("a/x"), table.lookup("a/b"), table.lookup("b")) == (1, 0, None)


@pytest.mark.parametrize("pattern", ["", "a", "a/*", "#", "#.a"])
def test_two_equal_patterns_are_an_error_that_names_them(pattern: str) -> None:
    with pytest.raises(ValueError, match="given twice") as error:
        table_of(pattern, "other", pattern)
    assert repr(pattern) in str(error.value)


def test_patterns_that_differ_in_the_separator_are_two() -> None:
    table = PatternTable([("a.*", 1), ("a/*", 2)])
    assert (table.lookup("a.b"), table.lookup("a/b")) == (1, 2)


texts = st.builds(
    lambda first, rest: first + "".join(separator + token for separator, token in rest),
    st.sampled_from(["a", "b", ""]),
    st.lists(st.tuples(st.sampled_from("/."), st.sampled_from(["a", "b", ""])), max_size=6),
)
patterns = st.builds(
    lambda first, rest: first + "".join(separator + token for separator, token in rest),
    st.sampled_from(["a", "*", "#"]),
    st.lists(st.tuples(st.sampled_from("//."), st.sampled_from(["a", "b", "*", "#"])), max_size=5),
)


def takes(pattern: list[tuple[str, str]], address: list[tuple[str, str]], begun: bool = False) -> bool:
    """Match by the definition, word for word and as slow."""
    if not pattern:
        return not address
    (separator, token), later = pattern[0], pattern[1:]
    fits = bool(address) and (not begun or address[0][0] == separator)
    if token == "#":
        return takes(later, address, begun) or (
            fits and any(takes(later, address[n:], True) for n in range(1, len(address) + 1))
        )
    return fits and token in ("*", address[0][1]) and takes(later, address[1:], True)


def rank(pattern: str) -> list[tuple[int, str, str]]:
    order = {"*": 1, "#": 3}
    return [*((order.get(token, 0), separator, token) for separator, token in steps(pattern)), (2, "", "")]


@given(st.sets(patterns, max_size=8), texts)
def test_the_table_agrees_with_the_definition(given_patterns: set[str], address: str) -> None:
    expected = min((p for p in given_patterns if takes(steps(p), steps(address))), key=rank, default=None)
    assert pattern_of(table_of(*given_patterns), address) == expected


@given(st.text(alphabet="ab*#/."))
def test_steps_joined_give_the_text_again(text: str) -> None:
    assert "".join(separator + token for separator, token in steps(text)) == text


@pytest.mark.parametrize("address", ["a/" * 100, "a/" * 30_000, "./" * 30_000, "/a.b" * 15_000])
def test_an_address_made_to_be_slow_is_not(address: str) -> None:
    # A matcher that tries one position after the other needs more than 10**12 steps for the first address.
    table = table_of(*("#/" + "a/#/" * n + "b" for n in range(40)))
    started = time.process_time()
    assert pattern_of(table, address) is None
    assert time.process_time() - started < 1.0


def test_text_behind_the_255th_separator_is_one_token() -> None:
    long = "a/" * 255 + "b.c"
    assert pattern_of(table_of("#.c"), "a/b.c") == "#.c"
    assert pattern_of(table_of("#.c"), long) is None
    assert pattern_of(table_of("#/*"), long) == "#/*"
    assert pattern_of(table_of(long, "#"), long) == long
    assert pattern_of(table_of("*/" * 255 + "b.c"), long) == "*/" * 255 + "b.c"
