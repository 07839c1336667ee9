"""The conformance statement: data in `conformance.toml`, pages in `internals/conformance`.

`python -m docs.conformance` writes the pages. A test checks that they are up to date, and that the tests which the data
cites exist.
"""

import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path

ROOT = Path(__file__).parents[1]
DATA = ROOT / "docs" / "conformance.toml"
PAGES = ROOT / "docs" / "internals" / "conformance"

#: The table of illegal sequences. Its rows are cited by their names; one test plays all of them.
HOSTILE = "tests/hostile/table.py"

PARTS = {
    0: "Part 0: Overview",
    1: "Part 1: Types",
    2: "Part 2: Transport",
    3: "Part 3: Messaging",
    4: "Part 4: Transactions",
    5: "Part 5: Security",
}

CHAPTERS = {
    "types.md": ("Conformance: overview and types", ("0.", "1.")),
    "connections-and-sessions.md": ("Conformance: connections and sessions", ("2.1", "2.2", "2.3", "2.4", "2.5")),
    "links.md": ("Conformance: links", ("2.6",)),
    "performatives.md": ("Conformance: performatives", ("2.7", "2.8")),
    "messaging.md": ("Conformance: messaging", ("3.",)),
    "transactions.md": ("Conformance: transactions", ("4.",)),
    "security.md": ("Conformance: security", ("5.",)),
}
"""The pages with clauses, in their order: the title, and the beginnings of the numbers of their sections."""


class Verdict(Enum):
    """The verdict on a clause."""

    HOLDS = "holds"
    DOES_NOT_APPLY = "does not apply"
    NOT_YET = "not yet"


class Keyword(Enum):
    """The keyword of a clause (RFC 2119)."""

    MUST = "MUST"
    MUST_NOT = "MUST NOT"
    REQUIRED = "REQUIRED"
    SHOULD = "SHOULD"
    SHOULD_NOT = "SHOULD NOT"
    RECOMMENDED = "RECOMMENDED"
    MAY = "MAY"


@dataclass(frozen=True)
class Clause:
    """One sentence of the standard that requires or permits something."""

    #: The section, and the clause's number in it: "2.6.7#3".
    id: str
    keyword: Keyword
    #: The requirement, in our words.
    asks: str
    verdict: Verdict
    #: The behaviour of amqpmesh, the reason why the clause does not apply, or the missing part.
    answer: str
    #: "tests/a.py::test_b", or "tests/hostile/table.py::the name of a row".
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Section:
    """A section of the standard that has clauses."""

    number: str
    title: str
    #: The number of its clauses, and so of its rows.
    count: int
    clauses: tuple[Clause, ...]

    @property
    def order(self) -> tuple[int, ...]:
        """The section's place in the standard, as numbers to sort by."""
        return tuple(map(int, self.number.split(".")))

    @property
    def part(self) -> int:
        """The part of the standard that has the section."""
        return self.order[0]


def read(path: Path = DATA) -> tuple[Section, ...]:
    """Read the sections with their clauses, in the order of the file.

    Raises: ValueError: a key, a keyword or a verdict is unknown. KeyError: a key is missing.
    """
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    if document.keys() != {"section"}:
        raise ValueError(f"{path.name}: unknown tables {sorted(document.keys() - {'section'})}")
    return tuple(_section(table) for table in document["section"])


def _section(table: dict[str, object]) -> Section:
    _check_keys(table, {"number", "title", "count", "clause"}, str(table.get("number")))
    rows = table["clause"]
    assert isinstance(rows, list)
    count = table["count"]
    assert isinstance(count, int)
    return Section(str(table["number"]), str(table["title"]), count, tuple(map(_clause, rows)))


def _clause(row: dict[str, object]) -> Clause:
    _check_keys(row, {field.name for field in fields(Clause)}, str(row.get("id")))
    tests = row.get("tests", [])
    assert isinstance(tests, list)
    return Clause(
        id=str(row["id"]),
        keyword=Keyword(row["keyword"]),
        asks=str(row["asks"]),
        verdict=Verdict(row["verdict"]),
        answer=str(row["answer"]),
        tests=tuple(tests),
    )


def _check_keys(table: dict[str, object], known: set[str], where: str) -> None:
    if unknown := table.keys() - known:
        raise ValueError(f"{where}: unknown keys {sorted(unknown)}")


# ----------------------------------------------------------------------------------------------------------- the pages

MADE = "<!-- Made from conformance.toml by `python -m docs.conformance`. -->\n"

OPENING = f"""\
{MADE}
# Conformance

These pages list the requirements of the AMQP 1.0 standard, clause by clause, and say how amqpmesh meets each. A clause
is a sentence with a keyword such as MUST, SHOULD or MAY. `2.6.7#3` is the third clause of section 2.6.7. The clauses
are counted in
[Committee Specification Draft 02](http://docs.oasis-open.org/amqp/core/v1.0/csprd02/amqp-core-complete-v1.0-csprd02.pdf),
which has the same sections as the published standard. The pages paraphrase each clause. Only the standard's own words
are binding.

- **holds**: amqpmesh meets the clause. The named tests fail if it does not.
- **does not apply**: the clause is about a feature that amqpmesh does not have, or permits something that amqpmesh does
  not do.
- **not yet**: a part is missing. The row says which.

The statement covers the router, which relays messages and stores none, and the client library, which connects to any
peer. Both use the same protocol engine.
"""


def pages(sections: tuple[Section, ...]) -> Mapping[str, str]:
    """Return each page in Markdown, by the name of its file."""
    made = {"index.md": "\n".join([OPENING, *_summary(sections), *_shortcomings(sections), _contents()])}
    for name, (title, starts) in CHAPTERS.items():
        blocks = [f"{MADE}\n# {title}\n"]
        for section in sections:
            if section.number.startswith(starts):
                entries = "\n".join(map(_entry, section.clauses))
                blocks.append(f"## {section.number} {section.title}\n\n{entries}\n")
        made[name] = "\n".join(blocks)
    return made


def _contents() -> str:
    """Return the list of the other pages."""
    names = "\n".join(name.removesuffix(".md") for name in CHAPTERS)
    return f"## Clause by clause\n\n```{{toctree}}\n:maxdepth: 1\n\n{names}\n```\n"


def _chapter(section: Section) -> str:
    """Return the name of the page that has the section."""
    return next(name for name, (_, starts) in CHAPTERS.items() if section.number.startswith(starts))


def _summary(sections: tuple[Section, ...]) -> Iterator[str]:
    clauses = [(section.part, clause) for section in sections for clause in section.clauses]
    counts = Counter((part, clause.verdict) for part, clause in clauses)
    lines = ["| Part | Holds | Does not apply | Not yet |", "|---|---:|---:|---:|"]
    parts = sorted({part for part, _ in clauses})
    lines += [_row(PARTS[part], [counts[part, verdict] for verdict in Verdict]) for part in parts]
    lines.append(_row("**all**", [sum(counts[part, verdict] for part in parts) for verdict in Verdict]))
    yield "\n".join(lines) + "\n"


def _row(name: str, counts: list[int]) -> str:
    return f"| {name} | " + " | ".join(map(str, counts)) + " |"


def _shortcomings(sections: tuple[Section, ...]) -> Iterator[str]:
    missing = [
        f"- [{clause.id}]({_chapter(section)}#{_slug(section)}) ({clause.keyword.value}) {clause.asks}\\\n"
        f"  **Now:** {clause.answer}"
        for section in sections
        for clause in section.clauses
        if clause.verdict is Verdict.NOT_YET
    ]
    if missing:
        yield "\n".join(["## Not yet", "", "The clauses that do not hold yet, and what happens now.", "", *missing, ""])


def _entry(clause: Clause) -> str:
    lines = [
        f'- <a id="{_anchor(clause)}"></a>**{clause.id}** ({clause.keyword.value}) {clause.asks}',
        f"  **{clause.verdict.value.capitalize()}:** {clause.answer}",
    ]
    if clause.tests:
        by = "Shown by" if clause.verdict is Verdict.HOLDS else "See"
        lines.append(f"  {by} {', '.join(map(_link, clause.tests))}.")
    return "\\\n".join(lines)


def _anchor(clause: Clause) -> str:
    return "c" + clause.id.replace("#", "-")


def _slug(section: Section) -> str:
    """Return the anchor of a section's heading."""
    words = f"{section.number} {section.title}".lower().replace(".", "").replace(",", "")
    return words.replace(" ", "-")


def _link(test: str) -> str:
    """Return a link to a test, with the sentence of its name."""
    path, _, name = test.partition("::")
    sentence = f"hostile peer: {name}" if path == HOSTILE else name.removeprefix("test_").replace("_", " ")
    return f"[{sentence}](../../../{path})"


def main() -> None:
    """Write the pages."""
    PAGES.mkdir(exist_ok=True)
    for name, text in pages(read()).items():
        (PAGES / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
