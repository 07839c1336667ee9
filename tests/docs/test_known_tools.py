"""The page on tools of other routers, compared with the attributes that they get."""

import re

import pytest

from amqpmesh.router.management.known_tools.tables import TABLES, null
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "operate" / "known-tools.md").read_text(encoding="utf-8")
SECTIONS = {
    found[1]: found[2] for found in re.finditer(r"^## `([^`]+)`\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
}


def names(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


@pytest.mark.parametrize("name", [name for name, table in TABLES.items() if table.columns and name != "routerMetrics"])
def test_each_attribute_is_explained_or_named_as_null(name: str) -> None:
    section = SECTIONS[name]
    filled = set().union(*(names(line.split("|")[1]) for line in section.splitlines() if line.startswith("| `")), set())
    nulls = names(section.split("\nNull: ")[1]) if "\nNull: " in section else set()
    columns = TABLES[name].columns
    assert nulls == {each for each, read in columns.items() if read is null}
    assert filled == set(columns) - nulls - {"name", "identity"}


def test_types_without_entities_are_named() -> None:
    introduction = PAGE.split("\n## ")[0].split("```")[2]
    assert {name for name, table in TABLES.items() if not table.columns} <= names(introduction)


def test_metrics_are_a_part_of_the_router() -> None:
    assert set(TABLES["routerMetrics"].columns) < set(TABLES["router"].columns)
