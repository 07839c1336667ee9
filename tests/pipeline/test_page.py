"""The page of the report: complete, without other files, and safe for any names."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.pipeline.drawing import nothing, picture, png
from amqpmesh.pipeline.page import Report, Section, Shown, Told, page
from amqpmesh.pipeline.work import Table
from tests.support.data.html import whole

PNG = png(picture(nothing)())


def report(name: str) -> Report:
    """With a name wherever one can stand."""
    table = Table(name, ("address", name, "messages", "share"), ((name, None, 12_345, 0.5), (None, name, 1, None)))
    section = Section(name, name, name, name, name, (Shown("p", name, name, PNG),), (table, Table("empty", ("a",), ())))
    return Report(name, [(name, name)], [Told(name), Told(name, is_warning=True)], [section])


@pytest.mark.parametrize(
    "name",
    [
        "orders",
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "</style><script>",
        "' onmouseover='alert(1)",
        "&lt;b&gt; &amp; &",
        "<!-- ",
        "]]>",
        "注文 Grüße",
    ],
)
def test_a_name_is_text_wherever_it_stands(name: str) -> None:
    read = whole(page(report(name)))
    for tag in ("title", "h1", "h2", "dt", "dd", "li", "p", "figcaption", "caption", "th", "bdi"):
        assert name in "".join(read.texts[tag]), tag
    assert read.all("img")[0]["alt"] == name


@given(st.text(max_size=300))
def test_no_name_breaks_the_page(name: str) -> None:
    text = page(report(name or "x"))
    whole(text)
    text.encode()
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)


def test_a_long_name_is_shortened_in_tables_and_whole_where_there_is_room() -> None:
    name = "a" * 300 + "b" * 300
    read = whole(page(report(name)))
    assert max(len(each) for each in read.texts["bdi"]) == 160
    assert read.texts["bdi"][0].startswith("aaa")
    assert read.texts["bdi"][0].endswith("bbb")
    assert name in read.texts["dd"]


def test_numbers_stand_at_the_right_and_what_is_unknown_is_a_dash() -> None:
    read = whole(page(report("orders")))
    cells = [attributes.get("class") for attributes in read.all("td")]
    assert cells == [None, None, "number", "number"] * 2
    assert read.texts["td"] == ["–", "12,345", "0.50", "–", "1", "–"]
    assert read.all("th") == [{"scope": "col"}, {"scope": "col"}] + [{"scope": "col", "class": "number"}] * 2


def test_a_table_without_rows_is_none() -> None:
    assert len(whole(page(report("orders"))).all("table")) == 1


def test_what_is_missing_is_marked() -> None:
    read = whole(page(report("orders")))
    assert [each.get("class") for each in read.all("li")][-2:] == [None, "warn"]


def test_what_was_found_stands_before_what_it_rests_on() -> None:
    read = whole(page(Report("found", [], [Told("rests")], [], [Told("is lost", is_warning=True)])))
    assert read.texts["h2"] == ["What was found", "What the figures rest on"]
    assert [each for each in read.texts["li"] if each in ("rests", "is lost")] == ["is lost", "rests"]


def test_a_page_without_jobs_is_a_page() -> None:
    read = whole(page(Report("nothing", [], [], [])))
    assert read.values("href") == ["#job-basis"]
