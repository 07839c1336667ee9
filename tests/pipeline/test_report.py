"""The report of a run, compared with the records and the tables."""

from __future__ import annotations

import base64
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow.parquet as pq
import pytest

from amqpmesh.pipeline import anomalies, deliveries, events, latency, losses, plan, summaries, traffic
from amqpmesh.pipeline.contingency import FAILURES
from amqpmesh.pipeline.events import arrow_schema
from amqpmesh.pipeline.jobs import JOBS, Account
from amqpmesh.pipeline.mesh_picture import Carried
from amqpmesh.pipeline.pictures import ALL_OTHERS
from amqpmesh.pipeline.report import ANSWERS, DRAWN, PICTURES, REPORT, destination, report
from amqpmesh.pipeline.work import Done, Table, Work
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.telemetry.schema import Kind, Outcome
from tests.support.data.html import Page, whole
from tests.support.data.known_traffic import Known
from tests.support.data.segments import BEGAN, WHOLE_SAMPLE, Recorder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = {
    **{f"ingest/{name}": columns for name, columns in events.TABLES.items()},
    "deliveries/attempts": deliveries.ATTEMPTS,
    "deliveries/quarantine": deliveries.CONTRADICTIONS,
    "traffic/matrix": traffic.MATRIX,
    "traffic/links": traffic.LINKS,
    "traffic/talkers": traffic.TALKERS,
    **{f"latency/{name}": columns for name, columns in latency.TABLES.items()},
    **{f"losses/{name}": columns for name, columns in losses.TABLES.items()},
    **{f"anomalies/{name}": columns for name, columns in anomalies.TABLES.items()},
    "contingency": FAILURES,
    **plan.TABLES,
}

HOSTILE = "<script>alert(1)</script>"
MATHS = "$x^2$ \n"
LONG = "n" * 300
MINUTES = 130
SILENT = range(100, 106)
OWN = 30
"""Questions to routers, and as many answers."""


def test_of_nothing_there_is_a_report_that_says_so(spark: SparkSession, tmp_path: Path) -> None:
    """All tables exist, without a row."""
    for name, columns in TABLES.items():
        (tmp_path / name).mkdir(parents=True)
        pq.write_table(arrow_schema(columns).empty_table(), tmp_path / name / "0.parquet")
    nothing = Counter[str]()  # of whatever is asked
    figures = {"losses": {"findings": 0, "not to be judged": 0}}
    tables = {"deliveries": (Table("outcomes", ("outcome", "deliveries"), ()),)}
    work = Work(spark, ("/nowhere",), str(tmp_path))
    names = [name for name in JOBS if any(table.partition("/")[0] == name for table in TABLES)]
    accounts = [
        Account(JOBS[name], work.place(name), 1.0, Done(0, figures.get(name, nothing), tables.get(name, ())))
        for name in names
    ]
    assert report(work, accounts) == tmp_path / REPORT
    read = whole((tmp_path / REPORT).read_text(encoding="utf-8"))
    assert "No router has recorded anything." in read.texts["li"]
    assert {"No delivery was recorded.", "No traffic was recorded.", "Nothing was found that went wrong."} <= {
        *read.texts["p"]
    }
    assert read.all("img") == []
    assert read.all("td") == []


# ------------------------------------------------------------------------------------------------- all of it


class Ran(NamedTuple):
    known: Known
    work: Work
    accounts: list[Account]
    page: Page


def record(directory: Path) -> Known:
    """Two hours of a line A-B-C: an address falls silent, something is lost, and much is missing."""
    known = Known(directory, "ABC")
    chance = random.Random(7)
    for minute in range(MINUTES):
        for address, way, often in (("orders", "ABC", 25), (HOSTILE, "CB", 6), (MATHS, "BA", 2), (LONG, "B", 1)):
            for _ in range(0 if address == "orders" and minute in SILENT else often):
                known.deliver(way, seconds=60 * minute + 60 * chance.random(), address=address, size=100)
    for _ in range(3):
        known.deliver("AB", seconds=300, address="gone", outcome=Outcome.NONE, receivers=[""], size=100)
    for each in range(9):  # each with an address of its own for replies
        known.deliver("AB", seconds=400 + each, address=f"$dynamic/client/{each}", size=100)
    for each in range(OWN):
        known.deliver("AB", seconds=500 + each, address="$management", sender="web", receivers=["B"], size=100)
        known.deliver("BA", seconds=500 + each, address="$dynamic/web/x", sender="B", receivers=["web"], size=100)
    edges = [(*"AB", 1), (*"BA", 1), (*"BC", 1), (*"CB", 1), (*"CE", 5), (*"EC", 5)]
    for recorder in known.recorders.values():
        recorder.put(
            Kind.EDGE,
            [
                {"time": BEGAN * 1_000_000, "origin": origin, "neighbour": neighbour, "cost": cost, "whole": True}
                for origin, neighbour, cost in edges
            ],
        )
    known.close()
    half = Recorder(directory / "D", "D", sample=WHOLE_SAMPLE // 2)
    half.lose(4)
    half.close()
    (directory / "notes.events").write_text("no segment")
    return known


@pytest.fixture(scope="module")
def ran(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """All jobs, and their report."""
    root = tmp_path_factory.mktemp("reported")
    known = record(root / "events")
    work = Work(spark, (str(root / "events"),), str(root / "out"))
    accounts = [Account(job, work.place(name), 1.0, job.load()(work)) for name, job in JOBS.items()]
    path = report(work, accounts)
    return Ran(known, work, accounts, whole(path.read_text(encoding="utf-8")))


def test_each_job_has_its_question_its_answer_its_tables_and_its_result(ran: Ran) -> None:
    texts = ran.page.texts
    for account in ran.accounts:
        assert account.job.title in texts["h2"]
        assert any(each.casefold() == account.job.summary.casefold() for each in texts["p"])
        assert f"All rows, as Parquet: {account.place}" in texts["p"]
        assert {table.title for table in account.done.tables if table.rows} <= {*texts["caption"]}
    assert ran.page.values("href") == ["#job-findings", "#job-basis", *(f"#job-{name}" for name in JOBS)]
    assert f"{len(ran.known.deliveries):,} attempts to deliver: " in "".join(texts["p"])
    assert "1 finding: unanswered 1." in texts["p"]
    assert any(f" {2 * OWN} of them are questions to routers ($management)" in each for each in texts["p"])
    assert any("messages to orders in 60 s fell to 0" in each for each in texts["p"])
    assert any("links and routers cut off an address if they fail alone" in each for each in texts["p"])


def test_what_was_found_comes_first_and_the_worst_of_it_before_all_else(ran: Ran) -> None:
    assert ran.page.texts["h2"][0] == "What was found"
    unanswered, unusual, breaks, costs = ran.page.texts["li"][-len(ran.page.texts["li"]) + len(JOBS) + 2 :][:4]
    assert unanswered == "3 of 3 deliveries to gone by A ended without an outcome."
    assert "messages to orders in 60 s fell to 0, usually 2" in unusual
    assert "cut off an address if they fail alone" in breaks
    assert "costs" in costs


def test_what_the_figures_rest_on_tells_what_is_missing(ran: Ran) -> None:
    assert ran.page.texts["h2"][1] == "What the figures rest on"
    told = ran.page.texts["li"]
    assert "1 router of the graph recorded nothing of its own: E." in told
    assert any(each.startswith("1 of 4 routers recorded a share of the deliveries: D 0.5. ") for each in told)
    assert "4 records found no room in a router, and are lost." in told
    assert any(each.startswith("Quarantined telemetry: ") for each in told)
    assert any("foreign 1" in each for each in told)
    times = sorted(each.time // 1_000_000_000 for each in ran.known.deliveries)
    first, last = (
        datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") for time in (times[0], times[-1])
    )
    assert f"from {first} to {last}, by the routers' clocks" in ran.page.texts["dd"]


def test_names_are_text_and_pictures_are_in_the_page_and_beside_it(ran: Ran) -> None:
    assert HOSTILE in ran.page.texts["bdi"]
    assert not any("\n" in each for each in ran.page.texts["bdi"])
    folder = Path(ran.work.out, PICTURES)
    names = [each.name for name in JOBS for each in DRAWN.get(name, ())]
    shown = [name for name in names if (folder / f"{name}.png").exists()]
    assert {*names} - {*shown} <= {"plan"}  # a picture of nothing is none
    assert len([*folder.iterdir()]) == len(shown)
    for name, source in zip(shown, ran.page.values("src"), strict=True):
        assert base64.b64decode(source.partition(",")[2]) == (folder / f"{name}.png").read_bytes()
    assert not [each for each in Path(ran.work.out).iterdir() if each.name.startswith(".")]


def test_what_is_shown_of_traffic_is_all_of_it(ran: Ran) -> None:
    sizes = sum(each.size for each in ran.known.deliveries)
    sent = summaries.matrix(ran.work)
    assert sum(sent.values()) == sizes
    assert sent["A", "C"] == 100 * sum(each.address == "orders" for each in ran.known.deliveries)
    edges, rates = summaries.over_time(ran.work)
    assert len(edges) == MINUTES + 2  # windows begin with minutes, and what was recorded does not
    seconds = edges[1] - edges[0]
    assert sum(map(sum, rates.values())) * seconds == pytest.approx(len(ran.known.deliveries) - 2 * OWN)
    assert sum(rates["$dynamic"]) * seconds == pytest.approx(9)
    routers, links = summaries.mesh(ran.work)
    assert routers == [*"ABCE"]
    passed = sum(each.size for each in ran.known.deliveries if each.ways[0][:2] == ("A", "B"))
    assert Carried("A", "B", passed) in links
    assert Carried("C", "E", 0.0) in links


def test_what_is_too_much_to_be_shown_is_summed_up(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summaries, "ENDS", 1)
    monkeypatch.setattr(summaries, "STACKED", 2)
    monkeypatch.setattr(summaries, "BINS", 10)
    monkeypatch.setattr(summaries, "ADDRESSES", 2)
    sent = summaries.matrix(ran.work)
    assert {*sent} == {("A", "C"), ("A", ALL_OTHERS), (ALL_OTHERS, ALL_OTHERS)}
    assert sum(sent.values()) == sum(each.size for each in ran.known.deliveries)
    edges, rates = summaries.over_time(ran.work)
    assert {*rates} == {"orders", HOSTILE, ALL_OTHERS}
    assert len(edges) <= 11
    assert edges[1] - edges[0] == 14 * 60
    assert sum(map(sum, rates.values())) * 14 * 60 == pytest.approx(len(ran.known.deliveries) - 2 * OWN)
    assert {each.address for each in summaries.percentiles(ran.work)} == {"orders", HOSTILE}
    assert len(summaries.shares(ran.work)) == 2


def test_what_is_shown_of_latency_is_what_the_tables_say(ran: Ran) -> None:
    rows = summaries.percentiles(ran.work)
    assert [each.address for each in rows][:1] == ["orders"]
    assert {each.address for each in rows} == {"orders", HOSTILE, MATHS, LONG, "$dynamic"}
    for parts in summaries.shares(ran.work).values():
        assert sum(parts.values()) == pytest.approx(1)
    for clock in summaries.clocks(ran.work):
        assert clock.router != clock.against
        assert len(clock.times) == len(clock.offsets) == len(clock.errors) > 0
        assert list(clock.times) == sorted(clock.times)


def test_an_episode_is_shown_with_what_was_before_it(ran: Ran) -> None:
    (worst, *_) = summaries.anomalies(ran.work)
    assert worst.title.startswith("messages to orders in 60 s fell to 0, usually ")
    assert "between" not in worst.title
    inside = [at for at, time in enumerate(worst.times) if worst.begin <= time < worst.end]
    assert len(inside) * 60 == worst.end - worst.begin
    assert all(worst.values[at] < worst.low[at] <= worst.usual[at] <= worst.high[at] for at in inside)
    assert worst.begin - worst.times[0] == summaries.BEFORE * 60
    begins = timedelta(seconds=worst.begin - BEGAN / 1_000)
    assert timedelta(minutes=SILENT.start - 1) <= begins <= timedelta(minutes=SILENT.start + 1)


def test_a_second_report_takes_the_place_of_the_first_and_a_failed_one_leaves_nothing(ran: Ran) -> None:
    before = Path(ran.work.out, REPORT).stat().st_ino
    assert report(ran.work, ran.accounts[:1]) == Path(ran.work.out, REPORT)
    assert Path(ran.work.out, REPORT).stat().st_ino != before
    Path(ran.work.out, REPORT).unlink()
    Path(ran.work.out, REPORT).mkdir()
    with pytest.raises(OSError, match=REPORT):
        report(ran.work, ran.accounts[:1])
    assert not [each for each in Path(ran.work.out).iterdir() if each.name.startswith(".")]


# ------------------------------------------------------------------------------------------------------------ no Spark


@pytest.mark.parametrize("out", ["hdfs://there/out", "s3a://bucket/out", "file://there/out"])
def test_a_report_is_not_written_to_what_is_no_path_of_this_machine(out: str) -> None:
    with pytest.raises(CommandError, match=f"--out: {out}: a report is written to a path of this machine only"):
        destination(out)


def test_a_report_goes_where_results_go() -> None:
    assert destination("/there/out") == destination("file:///there/out") == Path("/there/out/report.html")


def test_every_job_has_an_answer_and_all_pictures_have_different_names() -> None:
    assert JOBS.keys() <= ANSWERS.keys()
    names = [each.name for drawn in DRAWN.values() for each in drawn]
    assert len({*names}) == len(names)
