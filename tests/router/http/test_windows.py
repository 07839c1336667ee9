"""Windows of lists: the orders of rows, what they are searched for, and malformed requests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh.router.http.requests import HttpError
from amqpmesh.router.http.windows import OCTETS, RATE, ROWS, STEP, Rates, Window, ordered, rows, window_of
from amqpmesh.router.incremental import run_to_end
from amqpmesh.router.management.entities import PREFIX, TYPES

ADDRESS, LINK = TYPES[f"{PREFIX}address"], TYPES[f"{PREFIX}link"]


@dataclass
class Row:
    """The attributes of an address that these tests look at."""

    name: str
    tenant: str = ""
    waiting: int = 0
    oldest_unsettled: float | None = None
    deliveries_in: int = 0
    deliveries_out: int = 0


def no_rate(_: str) -> None:
    return None


def names(entities: list[Any], **query: str) -> list[str]:
    window = window_of(query, ADDRESS)
    assert window is not None
    return [each.name for each in run_to_end(ordered(ADDRESS, entities, window, no_rate))]


@settings(derandomize=True, max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.none() | st.floats(0, 9)), max_size=3 * STEP // 100), st.integers(1, 60)
)
def test_rows_are_sorted_as_by_pythons_sort_and_equals_stay_in_place(
    values: list[tuple[int, float | None]], times: int
) -> None:
    entities = [Row(f"a{n}", waiting=w, oldest_unsettled=o) for n, (w, o) in enumerate(values * times)]
    assert names(entities, sort="waiting") == [e.name for e in sorted(entities, key=lambda e: e.waiting)]
    assert names(entities, sort="-waiting") == [e.name for e in sorted(entities, key=lambda e: -e.waiting)]
    with_age = [e for e in entities if e.oldest_unsettled is not None]
    without = [e.name for e in entities if e.oldest_unsettled is None]
    by_age = [e.name for e in sorted(with_age, key=lambda e: -(e.oldest_unsettled or 0))]
    assert names(entities, sort="-oldest_unsettled") == by_age + without


def test_no_step_sorts_more_than_a_part() -> None:
    entities = [Row(f"a{n:06}", waiting=20 * STEP - n) for n in range(20 * STEP)]
    window = window_of({"sort": "waiting"}, ADDRESS)
    assert window is not None
    steps = ordered(ADDRESS, entities, window, no_rate)
    assert sum(1 for _ in steps) >= 3 * 20


@pytest.mark.parametrize(
    ("text", "found"),
    [("", ["News", "orders/eu", "other"]), ("new", ["News"]), ("EU", ["orders/eu"]), ("apples", ["other"]), ("x", [])],
)
def test_rows_are_searched_for_a_text_in_any_case(text: str, found: list[str]) -> None:
    entities = [Row("News"), Row("orders/eu"), Row("other", tenant="apples")]
    assert names(entities, filter=text) == found


def test_a_search_does_not_find_the_secret_of_a_dynamic_node() -> None:
    secret = "$dynamic/A/0123456789abcdef0123456789abcdef"
    shown = ADDRESS.entity_name(Row(secret))
    assert shown != secret
    assert names([Row(secret)], filter=secret[-10:]) == []
    assert names([Row(secret)], filter="$dynamic/") == [secret]


def test_a_rate_is_between_two_readings_of_a_list() -> None:
    rates = Rates()
    run_to_end(rates.take(ADDRESS, [Row("a", deliveries_in=5)], 10.0))
    assert rates.of("address/a") is None
    run_to_end(rates.take(ADDRESS, [Row("a", deliveries_in=25, deliveries_out=4), Row("b")], 12.0))
    run_to_end(rates.take(ADDRESS, [Row("a", deliveries_in=99)], 12.0))  # the same reading again
    assert rates.of("address/a") == 12.0
    assert rates.of("address/b") is None
    window = Window(0, 10, RATE, True, "", ())
    # Without rates yet, those that have had more come first.
    entities = [Row("c", deliveries_in=1), Row("d", deliveries_in=9), Row("a")]
    assert [e.name for e in run_to_end(ordered(ADDRESS, entities, window, rates.of))] == ["a", "d", "c"]


def test_a_window_has_no_more_octets_than_a_slow_reader_may_hold() -> None:
    entities = [Row("n" * 60_000) for _ in range(ROWS)]
    found = run_to_end(rows(ADDRESS, entities, Window(0, ROWS, None, False, "", ("name", RATE)), no_rate))
    assert OCTETS - 61_000 < sum(map(len, found)) <= OCTETS
    assert json.loads(found[0]) == {"name": "n" * 60_000, "rate": None}
    huge = [Row("n" * 2 * OCTETS)]
    assert len(run_to_end(rows(ADDRESS, huge, Window(0, ROWS, None, False, "", ("name",)), no_rate))) == 1


def test_a_request_without_parameters_asks_for_no_window() -> None:
    assert window_of({}, ADDRESS) is None
    assert window_of({"router": "A.1"}, ADDRESS) is None
    asked = window_of({"count": "100000", "offset": "7", "router": "A.1"}, ADDRESS)
    assert asked == Window(7, ROWS, None, False, "", (*ADDRESS.attributes, RATE))


@pytest.mark.parametrize(
    "query",
    [
        {"count": "-1"},
        {"count": "٣"},
        {"offset": "9" * 10},
        {"count": ""},
        {"sort": "secret"},
        {"sort": "--name"},
        {"sort": "decisions"},  # a map has no order
        {"sort": "__class__"},
        {"attributes": "name,__dict__"},
        {"filter": "x" * 101},
        {"count": "1", "order": "name"},
    ],
)
def test_a_malformed_window_is_refused(query: Mapping[str, str]) -> None:
    with pytest.raises(HttpError) as refused:
        window_of(query, ADDRESS)
    assert refused.value.status == 400


def test_links_are_sorted_by_what_addresses_have_not() -> None:
    assert window_of({"sort": "credit"}, LINK) is not None
    with pytest.raises(HttpError):
        window_of({"sort": "credit"}, ADDRESS)
