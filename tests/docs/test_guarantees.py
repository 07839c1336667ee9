"""The table of guarantees: each promise names tests that exist, and the README links to it."""

import re

import pytest

from tests.docs.pages import ROOT
from tests.docs.test_conformance import defined

PAGE = (ROOT / "docs" / "operate" / "guarantees.md").read_text(encoding="utf-8")
ROWS = [line.strip("|").split("|") for line in PAGE.split("\n## ")[0].splitlines() if line.startswith("| ")][1:]
TESTS = dict(re.findall(r"^(\d+)\. `(\S+)`$", PAGE, re.MULTILINE))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip()[:60])
def test_each_promise_names_a_test(row: list[str]) -> None:
    assert len(row) == 4
    for cell in row[1:]:
        cited = re.findall(r"\[(\d+)\]", cell)
        assert cited, cell
        assert set(cited) <= TESTS.keys()


@pytest.mark.parametrize("test", TESTS.values(), ids=lambda test: test.rpartition("::")[2][:60])
def test_each_test_exists(test: str) -> None:
    path, _, name = test.partition("::")
    assert defined(path)[name] == 1


def test_each_test_is_cited() -> None:
    table = " ".join(cell for row in ROWS for cell in row)
    assert list(TESTS) == [str(number) for number in range(1, len(TESTS) + 1)]
    assert set(re.findall(r"\[(\d+)\]", table)) == TESTS.keys()


def test_the_readme_says_exactly_once_beside_a_link_to_the_table() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    said = [line for line in readme.splitlines() if re.search(r"exactly[ -]once", line, re.IGNORECASE)]
    assert said
    assert all("docs/operate/guarantees.md" in line for line in said)
