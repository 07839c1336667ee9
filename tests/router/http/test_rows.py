"""Rows of metrics: those of subjects in use stay, and all else is counted under `other`, which never goes back."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh.router.http.families import COUNTER, GAUGE, Family
from amqpmesh.router.http.rows import OTHER, Subject, Table, lines

FAMILIES = (
    Family("events", COUNTER, "Events.", ((("direction", "in"),), (("direction", "out"),))),
    Family("level", GAUGE, "A level."),
)


def table(rows: int) -> Table:
    return Table(FAMILIES, ("name",), (rows + 1) * 3)


def subject(name: str, into: int, out: int = 0, level: int = 0, *, key: object = None, tenant: str = "") -> Subject:
    return Subject(name if key is None else key, (name,), (into, out, level), tenant)


def update(made: Table, *subjects: Subject, part: Callable[[int], int] | None = None) -> None:
    for _ in made.update(subjects, part):
        pass


def shown(made: Table) -> dict[str, tuple[float, ...]]:
    return {name: row.values for (name,), row in made.rows.items()}


def test_a_row_stays_while_its_subject_is_used_and_makes_room_then() -> None:
    made = table(2)
    update(made, *(subject(each, 1) for each in "abc"))
    assert set(shown(made)) == {"a", "b"}
    update(made, *(subject(each, 2) for each in "dcba"))
    assert set(shown(made)) == {"a", "b"}
    update(made, *(subject(each, 3) for each in "dcb"))
    assert set(shown(made)) == {"b", "d"}
    update(made)
    assert shown(made) == {}


def test_other_keeps_what_was_counted_by_those_that_go_or_get_a_row() -> None:
    made = table(1)
    update(made, subject("a", 1), subject("b", 10, level=5), subject("c", 100, level=7))
    assert dict(made.others()) == {"": (110, 0, 12)}
    update(made, subject("a", 1), subject("b", 15, level=5))
    assert dict(made.others()) == {"": (115, 0, 5)}
    update(made, subject("b", 20))  # it gets the row: what it counts from now on is shown there
    assert dict(made.others()) == {"": (115, 0, 0)}
    assert shown(made) == {"b": (20, 0, 0)}


def test_a_count_that_is_lower_for_a_moment_is_not_shown_lower() -> None:
    made = table(1)
    update(made, subject("a", 10, level=3), subject("b", 10))
    update(made, subject("a", 4, level=1), subject("b", 4))
    assert shown(made) == {"a": (10, 0, 1)}
    update(made, subject("a", 11), subject("b", 11))
    assert shown(made) == {"a": (11, 0, 0)}
    assert dict(made.others()) == {"": (11, 0, 0)}


def test_a_name_that_is_used_anew_begins_anew() -> None:
    made = table(1)
    update(made, subject("a", 10, key=1), subject("b", 10, key=2))
    update(made, subject("a", 1, key=3), subject("b", 1, key=4))
    assert shown(made) == {"a": (1, 0, 0)}
    assert dict(made.others()) == {"": (11, 0, 0)}


def test_a_subject_called_other_has_no_row() -> None:
    made = table(5)
    update(made, subject(OTHER, 1), subject("a", 2))
    assert set(shown(made)) == {"a"}
    assert dict(made.others()) == {"": (1, 0, 0)}


def test_tenants_have_equal_parts_of_the_rows() -> None:
    made = table(10)
    update(made, *(subject(f"one/{n}", 1, tenant="one") for n in range(50)), part=lambda most: most // 3)
    assert len(made.rows) == 3
    both = [*_of(made), *(subject(f"two/{n}", 1, tenant="two") for n in range(50))]
    update(made, *both, part=lambda most: most // 3)
    assert [sum(row.tenant == each for row in made.rows.values()) for each in ("one", "two")] == [3, 3]
    assert {tenant for tenant, _ in made.others()} == {"one", "two"}


def _of(made: Table) -> Iterable[Subject]:
    return [each._replace(labels=each.labels) for each in made.subjects()]


Counts = st.tuples(st.integers(0, 100), st.integers(0, 100), st.integers(0, 9))


@settings(derandomize=True, max_examples=100)
@given(st.lists(st.dictionaries(st.sampled_from("abcdefg"), Counts, max_size=7), max_size=12), st.integers(0, 4))
def test_no_counter_goes_back_and_the_table_has_its_size(
    history: list[dict[str, tuple[int, int, int]]], most: int
) -> None:
    made = table(most)
    before: tuple[float, ...] = (0, 0)
    rows: dict[str, tuple[float, ...]] = {}
    for moment in history:
        update(made, *(Subject(name, (name,), values) for name, values in moment.items()))
        assert len(made.rows) <= most
        assert set(shown(made)) <= set(moment)
        (other,) = [values for _, values in made.others()] or [(0, 0, 0)]
        assert all(now >= then for now, then in zip(other[:2], before, strict=True))
        before = other[:2]
        for name, values in shown(made).items():
            assert all(now >= then for now, then in zip(values[:2], rows.get(name, (0, 0)), strict=False))
        rows = shown(made)
        gauges = sum(values[2] for values in moment.values())
        assert other[2] + sum(values[2] for values in rows.values()) == gauges


@settings(derandomize=True, max_examples=100)
@given(st.dictionaries(st.text(max_size=20), Counts, max_size=5))
def test_any_names_are_read_by_prometheus_own_parsers(named: dict[str, tuple[int, int, int]]) -> None:
    pytest.importorskip("prometheus_client", reason="NOT TESTED, missing: prometheus-client")
    from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open
    from prometheus_client.parser import text_string_to_metric_families as read_plain

    named = {name: values for name, values in named.items() if name.encode(errors="replace").decode() == name}
    made = table(10)
    update(made, *(Subject(name, (name,), values) for name, values in named.items()))
    for read, is_open, end in ((read_open, True, "# EOF\n"), (read_plain, False, "")):
        text = "".join(lines(FAMILIES, list(made.rows.values()), is_open=is_open)) + end
        found = {
            (sample.name, sample.labels["name"], sample.labels.get("direction")): sample.value
            for family in read(text)
            for sample in family.samples
        }
        expected = {}
        for name, (into, out, level) in named.items():
            if name != OTHER:
                expected["amqpmesh_events_total", name, "in"] = into
                expected["amqpmesh_events_total", name, "out"] = out
                expected["amqpmesh_level", name, None] = level
        assert found == expected
