"""The report as a page: one HTML file that needs no other, and that fetches and runs nothing.

All text is escaped: peers of the mesh choose names.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

from amqpmesh.pipeline.drawing import printable
from amqpmesh.pipeline.work import Cell, Table

LONGEST: Final = 160
"""Characters of a name, or of a sentence in a table, at most."""

DENSITY: Final = 1.25
"""Pixels of a picture for one of the page: screens have more than they report."""

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1f2428; --soft: #57606a; --page: #ffffff; --card: #f6f8fa; --line: #d8dee4;
  --link: #0b5cad; --warn: #9a4b00; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e3e7eb; --soft: #9aa4ae; --page: #14181c; --card: #1d2329; --line: #343c44; --link: #79b8ff;
    --warn: #f0a860; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main, header, nav, footer { max-width: 66rem; margin: 0 auto; padding: 0 1.25rem; }
header { padding-top: 1.5rem; }
h1 { font-size: 1.7rem; margin: 0 0 .25rem; }
h2 { font-size: 1.3rem; margin: 0 0 .25rem; }
a { color: var(--link); }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1.1rem; list-style: none; padding: .6rem 0; margin: .75rem 0 0;
  border-block: 1px solid var(--line); }
section { padding: 1.75rem 0 .5rem; border-bottom: 1px solid var(--line); }
.summary { color: var(--soft); margin: 0 0 .75rem; }
.answer { font-size: 1.08rem; margin: 0 0 1rem; max-width: 50rem; overflow-wrap: anywhere; }
.where { color: var(--soft); font-size: .85rem; overflow-wrap: anywhere; }
.told { padding-left: 1.2rem; overflow-wrap: anywhere; }
.told .warn { color: var(--warn); }
.told .warn::marker { content: "!  "; font-weight: bold; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.25rem; margin: 1rem 0; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
figure { margin: 0 0 1.25rem; padding: .75rem; background: #fff; border: 1px solid var(--line); border-radius: 6px;
  overflow-x: auto; width: fit-content; max-width: 100%; }
figure img { display: block; max-width: 100%; height: auto; }
figcaption { color: #57606a; font-size: .85rem; padding-top: .4rem; position: sticky; left: 0; }
.tables { display: flex; flex-wrap: wrap; align-items: flex-start; gap: 0 2.5rem; }
.table { overflow-x: auto; margin: 0 0 1.25rem; max-width: 100%; }
table { width: max-content; border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .2rem 0; white-space: nowrap; }
th, td { text-align: left; vertical-align: top; padding: .22rem .9rem .22rem 0; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 500; white-space: nowrap; }
bdi { display: inline-block; max-width: 32rem; overflow-wrap: break-word; }
.number { text-align: right; white-space: nowrap; }
footer { color: var(--soft); font-size: .85rem; padding-block: 1rem 3rem; }
@media (max-width: 40rem) {
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: .5rem; }
  figure img { max-width: 44rem; }
  bdi { max-width: 16rem; }
}
@media print {
  :root { --ink: #000; --soft: #444; --page: #fff; --card: #fff; --line: #bbb; --link: #000; --warn: #000; }
  body { font-size: 11px; }
  nav { display: none; }
  .answer { font-size: 1.1em; }
  figure, table, .answer { break-inside: avoid; }
  h2, .summary, .answer, caption { break-after: avoid; }
}
"""


@dataclass(frozen=True)
class Shown:
    """A picture. Args: name: of its file, without a suffix. caption: a title. alt: a description of it."""

    name: str
    caption: str
    alt: str
    png: bytes


@dataclass(frozen=True)
class Told:
    """A sentence on the basis of the figures. Args: is_warning: something is missing."""

    sentence: str
    is_warning: bool = False


@dataclass(frozen=True)
class Section:
    """The section of a job. Args: id: its name. title: its heading. place: the directory of its result."""

    id: str
    title: str
    summary: str
    answer: str
    place: str
    shown: Sequence[Shown] = ()
    tables: Sequence[Table] = ()


@dataclass(frozen=True)
class Report:
    """The content of the page. Args: facts: its subject and time. told: the basis of the figures. found: the findings,
    in short.
    """

    title: str
    facts: Sequence[tuple[str, str]]
    told: Sequence[Told]
    sections: Sequence[Section] = field(default_factory=tuple)
    found: Sequence[Told] = field(default_factory=tuple)


def page(report: Report) -> str:
    """Return the whole file."""
    return "".join(_page(report))


def _page(report: Report) -> Iterator[str]:
    # This policy forbids to fetch or run anything, whatever a name contains.
    style = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'"
    yield (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{_text(report.title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
    )
    yield f"<header>\n<h1>{_text(report.title)}</h1>\n</header>\n"
    links = "".join(f'<li><a href="#{_id(name)}">{_text(title)}</a></li>' for name, title in _titles(report))
    yield f"<nav><ul>{links}</ul></nav>\n<main>\n"
    if report.found:
        yield f'<section id="{_id(FINDINGS)}">\n<h2>{_TITLES[FINDINGS]}</h2>\n'
        yield from _list(report.found)
        yield "</section>\n"
    yield f'<section id="{_id(BASIS)}">\n<h2>{_TITLES[BASIS]}</h2>\n<dl>\n'
    for term, value in report.facts:
        yield f"<dt>{_text(term)}</dt><dd>{_text(value, None)}</dd>\n"
    yield "</dl>\n"
    yield from _list(report.told)
    yield "</section>\n"
    for section in report.sections:
        yield from _section(section)
    yield "</main>\n<footer>Times are UTC. All rows are in the Parquet that each part names.</footer>\n"
    yield "</body>\n</html>\n"


FINDINGS: Final = "findings"
BASIS: Final = "basis"
"""The ids of the first two sections, before those of jobs."""

_TITLES: Final = {FINDINGS: "What was found", BASIS: "What the figures rest on"}


def _titles(report: Report) -> Iterable[tuple[str, str]]:
    """Return the headings of all sections, by id."""
    first = [name for name in _TITLES if name != FINDINGS or report.found]
    return (*((name, _TITLES[name]) for name in first), *((each.id, each.title) for each in report.sections))


def _list(told: Iterable[Told]) -> Iterator[str]:
    yield '<ul class="told">\n'
    for each in told:
        kind = ' class="warn"' if each.is_warning else ""
        yield f"<li{kind}>{_text(each.sentence, None)}</li>\n"
    yield "</ul>\n"


def _id(name: str) -> str:
    return "job-" + "".join(each if each.isascii() and each.isalnum() else f"_{ord(each):x}_" for each in name)


def _section(section: Section) -> Iterator[str]:
    yield f'<section id="{_id(section.id)}">\n<h2>{_text(section.title)}</h2>\n'
    yield f'<p class="summary">{_text(section.summary)}</p>\n<p class="answer">{_text(section.answer, None)}</p>\n'
    for each in section.shown:
        data = base64.b64encode(each.png).decode()
        # All in one scale, so that their texts have one size.
        width, height = (round(side / DENSITY) for side in struct.unpack(">II", each.png[16:24]))
        yield (
            f'<figure><img width="{width}" height="{height}" alt="{_text(each.alt, None)}" '
            f'src="data:image/png;base64,{data}"><figcaption>{_text(each.caption, None)}</figcaption></figure>\n'
        )
    if any(table.rows for table in section.tables):
        yield '<div class="tables">\n'
        for table in section.tables:
            yield from _table(table)
        yield "</div>\n"
    yield f'<p class="where">All rows, as Parquet: {_text(section.place, None)}</p>\n</section>\n'


def _table(table: Table) -> Iterator[str]:
    if not table.rows:
        return
    numeric = [all(isinstance(row[at], int | float | None) for row in table.rows) for at in range(len(table.headings))]
    yield f'<div class="table" tabindex="0"><table>\n<caption>{_text(table.title)}</caption>\n<thead><tr>'
    for heading, right in zip(table.headings, numeric, strict=True):
        yield f'<th scope="col"{_cell_class(right)}>{_text(heading)}</th>'
    yield "</tr></thead>\n<tbody>\n"
    for row in table.rows:
        cells = zip(row, numeric, strict=True)
        yield "<tr>" + "".join(f"<td{_cell_class(right)}>{_cell(cell)}</td>" for cell, right in cells) + "</tr>\n"
    yield "</tbody></table></div>\n"


def _cell_class(right: bool) -> str:
    return ' class="number"' if right else ""


def _cell(cell: Cell) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, str):
        # With its own direction: a name may be written from right to left.
        return f"<bdi>{_text(cell)}</bdi>"
    return f"{cell:,.2f}" if isinstance(cell, float) else f"{cell:,}"


def _text(text: str, longest: int | None = LONGEST) -> str:
    """Escape text for any place, attributes included."""
    return escape(printable(text, len(text) + 1 if longest is None else longest))
