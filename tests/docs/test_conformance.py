"""The conformance statement: complete, and each claim shown by a test that exists."""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from docs.conformance import HOSTILE, PAGES, Clause, Section, Verdict, pages, read
from tests.hostile.table import ROWS

ROOT = Path(__file__).parents[2]

#: How many clauses the standard has in each part.
TOTALS = {0: 20, 1: 5, 2: 179, 3: 76, 4: 34, 5: 17}

SECTIONS = read()
CLAUSES = [clause for section in SECTIONS for clause in section.clauses]


@cache
def defined(path: str) -> Counter[str]:
    """Return the tests that a file defines at its top level: pytest collects these here."""
    if path == HOSTILE:
        return Counter(row.name for row in ROWS)
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return Counter(function.name for function in functions if function.name.startswith("test_"))


def by_id(thing: Clause | Section) -> str:
    return thing.id if isinstance(thing, Clause) else thing.number


def test_every_clause_of_the_standard_has_a_row() -> None:
    assert Counter(section.part for section in SECTIONS for _ in section.clauses) == TOTALS


def test_sections_are_in_the_standards_order_and_each_is_there_once() -> None:
    orders = [section.order for section in SECTIONS]
    assert orders == sorted(set(orders))


@pytest.mark.parametrize("section", SECTIONS, ids=by_id)
def test_the_clauses_of_a_section_are_all_there_in_their_order(section: Section) -> None:
    assert [clause.id for clause in section.clauses] == [
        f"{section.number}#{number}" for number in range(1, section.count + 1)
    ]


@pytest.mark.parametrize("clause", CLAUSES, ids=by_id)
def test_a_row_says_what_is_asked_and_what_becomes_of_it(clause: Clause) -> None:
    for text, limit in ((clause.asks, 200), (clause.answer, 400)):
        assert text == text.strip()
        assert text.endswith("."), text
        assert 10 < len(text) <= limit, len(text)


@pytest.mark.parametrize("clause", [each for each in CLAUSES if each.verdict is Verdict.HOLDS], ids=by_id)
def test_what_holds_is_shown_by_a_test(clause: Clause) -> None:
    plain = [test for test in clause.tests if not test.startswith(("tests/interop/", "tests/slow/"))]
    assert plain, "of those that always run"


@pytest.mark.parametrize("clause", CLAUSES, ids=by_id)
def test_every_test_that_is_cited_exists(clause: Clause) -> None:
    assert len(set(clause.tests)) == len(clause.tests)
    for test in clause.tests:
        path, separator, name = test.partition("::")
        assert separator
        assert defined(path)[name] == 1, test


def test_the_pages_are_what_the_data_makes() -> None:
    written = {page.name: page.read_text(encoding="utf-8") for page in PAGES.iterdir()}
    assert written == pages(SECTIONS), "python -m docs.conformance"


def test_every_section_stands_in_one_page() -> None:
    text = "".join(pages(SECTIONS).values())
    for section in SECTIONS:
        assert text.count(f"\n## {section.number} {section.title}\n") == 1
