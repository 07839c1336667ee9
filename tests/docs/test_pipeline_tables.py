"""The pages with the tables, problems and jobs of the pipeline, compared with the code."""

from __future__ import annotations

import re
from collections.abc import Iterable
from types import ModuleType

import pyarrow as pa
import pytest

from amqpmesh.pipeline import (
    anomalies,
    clocks,
    cost_search,
    latency,
    latency_times,
    live_metrics,
    live_tables,
    losses,
    mesh_picture,
    outliers,
    outlines,
    passages,
    pictures,
    plan,
    rehearsal,
    report,
    summaries,
)
from amqpmesh.pipeline.contingency import FAILURES
from amqpmesh.pipeline.deliveries import ATTEMPTS, CONTRADICTIONS
from amqpmesh.pipeline.events import TABLES, Column, Problem
from amqpmesh.pipeline.jobs import JOBS
from amqpmesh.pipeline.traffic import LINKS, MATRIX, TALKERS
from tests.docs.pages import ROOT

FOLDER = ROOT / "docs" / "analyse"
PIPELINE = (FOLDER / "pipeline.md").read_text(encoding="utf-8")
JOBS_PAGE = (FOLDER / "jobs.md").read_text(encoding="utf-8")
LIVE_PAGE = (FOLDER / "live.md").read_text(encoding="utf-8")
PAGES = "tables.md", "result-tables.md", "hour-tables.md"
TEXT = "\n##\n".join((FOLDER / name).read_text(encoding="utf-8") for name in PAGES)

ALL = {
    **{f"ingest/{name}": columns for name, columns in TABLES.items()},
    "deliveries/attempts": ATTEMPTS,
    "deliveries/quarantine": CONTRADICTIONS,
    "traffic/matrix": MATRIX,
    "traffic/links": LINKS,
    "traffic/talkers": TALKERS,
    **{f"latency/{name}": columns for name, columns in latency.TABLES.items()},
    **{f"losses/{name}": columns for name, columns in losses.TABLES.items()},
    **{f"anomalies/{name}": columns for name, columns in anomalies.TABLES.items()},
    "contingency": FAILURES,
    **plan.TABLES,
}

for each in ("latency/times", "latency/parts", "losses/outlines"):  # on a page of their own
    ALL[each] = ALL.pop(each)

TYPES = {
    pa.int64(): "bigint",
    pa.string(): "string",
    pa.bool_(): "boolean",
    pa.binary(): "binary",
    pa.float64(): "double",
    pa.int32(): "int",
    pa.timestamp("us", "UTC"): "timestamp",
}


def typed(type: pa.DataType) -> str:
    if pa.types.is_list(type):
        return f"array<{typed(type.value_type)}>"
    if pa.types.is_struct(type):
        return f"struct<{', '.join(f'{field.name}: {typed(field.type)}' for field in type)}>"
    return TYPES[type]


def rendered(columns: Iterable[Column]) -> str:
    """Return the table that the page must show. After a change of a column, copy it from the failure."""
    rows = ["| column | type | meaning |", "|---|---|---|"]
    for column in columns:
        what, semicolon, more = column.meaning.partition("; ")
        unit = f", in {column.unit}" if column.unit else ""
        null = "; may be null" if column.optional and "null" not in more else ""
        rows.append(f"| `{column.name}` | {typed(column.type)} | {what}{unit}{semicolon}{more}{null} |")
    return "\n".join(rows)


@pytest.mark.parametrize("name", ALL)
def test_every_column_of_a_table_is_there(name: str) -> None:
    section = TEXT.split(f"\n### {name}\n")[1].split("\n##")[0]
    assert section.split("\n\n")[1].rstrip() == rendered(ALL[name])


@pytest.mark.parametrize("name", live_tables.TABLES)
def test_every_column_of_a_table_of_minutes_is_there(name: str) -> None:
    section = LIVE_PAGE.split(f"\n### live/{name}\n")[1].split("\n##")[0]
    assert section.split("\n\n")[1].rstrip() == rendered(live_tables.TABLES[name])


def test_every_metric_of_a_watch_is_there() -> None:
    rows = [
        f"| `{name}{'_total' if kind == 'counter' else ''}` | {kind} | {told} |"
        for name, (kind, told) in live_metrics.FAMILIES.items()
    ]
    assert "\n\n| metric | type | meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n\n" in LIVE_PAGE


def test_there_are_no_other_tables() -> None:
    assert re.findall(r"^### (.+)$", TEXT, re.MULTILINE) == list(ALL)
    assert re.findall(r"^### (.+)$", LIVE_PAGE, re.MULTILINE) == [f"live/{name}" for name in live_tables.TABLES]


def test_every_problem_is_explained() -> None:
    table = JOBS_PAGE.split("| problem | what it is |\n|---|---|\n")[1].split("\n\n")[0]
    assert re.findall(r"^\| `(.+?)` \| \S.* \|$", table, re.MULTILINE) == [problem.value for problem in Problem]


def test_every_loss_is_explained() -> None:
    table = JOBS_PAGE.split("| finding | what it is |\n|---|---|\n")[1].split("\n\n")[0]
    assert re.findall(r"^\| `(.+?)` \| \S.* \|$", table, re.MULTILINE) == [loss.value for loss in losses.Loss]


@pytest.mark.parametrize(
    ("name", "modules"),
    [
        ("latency", [clocks, latency, latency_times]),
        ("losses", [losses, outlines, passages]),
        ("anomalies", [anomalies, outliers]),
        ("plan", [plan, rehearsal, cost_search]),
    ],
)
def test_every_parameter_of_a_job_is_there(name: str, modules: list[ModuleType]) -> None:
    section = JOBS_PAGE.split(f"\n### {name}\n")[1].split("\n##")[0]
    told = re.findall(r"^\| `([A-Z_]+)` \| \S", section, re.MULTILINE)
    named = {
        each
        for module in modules
        for each, value in vars(module).items()
        if re.fullmatch("[A-Z][A-Z_]+", each) and type(value) in (int, float)
    }
    assert {*told} == named - {"TOP", "SECOND", "DAY", "HOUR", "ALL"}


def test_every_job_is_there_with_its_summary() -> None:
    table = JOBS_PAGE.split("| job | summary | result in `OUT` |\n|---|---|---|\n")[1].split("\n\n")[0]
    told = re.findall(r"^\| `(\w+)` \| (.+?) \| .+ \|$", table, re.MULTILINE)
    assert told == [(job.name, job.summary) for job in JOBS.values()]


def test_every_parameter_of_the_report_is_there() -> None:
    section = PIPELINE.split("\n## The report\n")[1].split("\n## ")[0]
    told = re.findall(r"^\| `([A-Z]+)` \| ([\d,]+)", section, re.MULTILINE)
    values = {name: int(value.replace(",", "")) for name, value in told}
    units = {"LONGEST": 86_400, "FASTEST": 1_000}
    named = {
        name: value // units.get(name, 1)
        for module in (summaries, pictures, mesh_picture)
        for name, value in vars(module).items()
        if re.fullmatch("[A-Z][A-Z_]+", name) and type(value) is int
    }
    assert values == {name: value for name, value in named.items() if name not in ("ALL", "WINDOW")}


def test_every_picture_of_the_report_is_there() -> None:
    table = PIPELINE.split("| picture | what it shows |\n|---|---|\n")[1].split("\n\n")[0]
    told = re.findall(r"^\| `(\w+)` \| \S.* \|$", table, re.MULTILINE)
    assert told == [each.name for drawn in report.DRAWN.values() for each in drawn]
