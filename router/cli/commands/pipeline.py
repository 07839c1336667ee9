"""`amqpmesh pipeline JOB`: analyses of recorded telemetry. Code that needs Spark is in the room `pipeline`."""

import argparse
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from amqpmesh.pipeline.jobs import JOBS, RUN, Account, Job, chosen
from amqpmesh.pipeline.published import Result, digest, done_before, is_there, load
from amqpmesh.pipeline.severity import Severity, at_least, found
from amqpmesh.pipeline.work import Done, Selection, Work
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.cli import arguments
from amqpmesh.router.cli.exit_status import EPILOG, Exit
from amqpmesh.router.cli.output.bodies import dump
from amqpmesh.router.cli.output.progress import Progress
from amqpmesh.router.cli.output.summary import duration
from amqpmesh.router.cli.output.terminal import printable, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PERIOD: Final = 0.2
"""Seconds between two queries of Spark's progress."""

REPORT: Final = "report"
"""The name under which the report's input is published."""

WIDTH: Final = 100
"""Columns of a terminal that does not report its width."""


def declare(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    command.description = (
        "Analyse the telemetry that routers recorded, with Spark. A job first runs the jobs that it needs. The results "
        "are Parquet files in DIR/JOB of --out, and the report is DIR/report.html. `show` prints rows of them, without "
        "Spark. Install the packages with pip install 'amqpmesh[pipeline]'."
    )
    command.epilog = EPILOG
    actions = command.add_subparsers(metavar="JOB", dest="job", required=True)
    summaries = {job.name: job.summary for job in JOBS.values()} | {RUN: "all jobs, and a report"}
    for name, summary in summaries.items():
        _declare_job(actions.add_parser(name, help=summary, description=f"Make {summary}.", epilog=EPILOG))
    _declare_show(
        actions.add_parser(
            "show",
            help="rows of the results, without Spark",
            description="Print rows of the results of earlier runs. TABLE is a job, for its main table, or JOB/NAME.",
            epilog=EPILOG,
        )
    )
    _declare_prune(
        actions.add_parser(
            "prune",
            help="remove old records and deliveries from the results, without Spark",
            description="Remove segments that were last written longer ago than --keep, and deliveries that began so.",
            epilog=EPILOG,
        )
    )


def _declare_job(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--events",
        metavar="DIR",
        type=arguments.place,
        action="append",
        required=True,
        help="a telemetry directory of routers; may be repeated",
    )
    command.add_argument(
        "--out", metavar="DIR", type=arguments.place, required=True, help="the directory for the results"
    )
    command.add_argument(
        "--master",
        metavar="URL",
        help="the Spark master, as for spark-submit: local[N], spark://HOST:PORT, ...; default: local[*]",
    )
    command.add_argument(
        "--conf",
        metavar="KEY=VALUE",
        type=arguments.setting,
        action="append",
        default=[],
        help="a setting of Spark; may be repeated",
    )
    _declare_times(command, "records")
    command.add_argument(
        "--anew", action="store_true", help="make all tables again, also those whose records are the same as before"
    )
    command.add_argument(
        "--fail-on",
        metavar="SEVERITY",
        choices=[*Severity],
        help="end with status 5 if there are findings as bad as that: notice, warning or serious",
    )
    command.add_argument("--json", action="store_true", help="print the summary as one JSON object; times are seconds")
    command.set_defaults(command=pipeline)


def _declare_show(command: argparse.ArgumentParser) -> None:
    command.add_argument("table", metavar="TABLE", help="such as losses, latency/links or traffic")
    command.add_argument(
        "--out",
        metavar="DIR",
        type=arguments.place,
        default=os.curdir,
        help="the directory with the results; default: the current directory",
    )
    command.add_argument("--address", metavar="PATTERN", help="only rows of these addresses: orders, orders/#")
    command.add_argument("--tenant", metavar="NAME", help="only rows of this tenant")
    command.add_argument("--router", metavar="ID", help="only rows that name this router")
    _declare_times(command, "rows")
    command.add_argument(
        "--columns",
        metavar="NAME,...",
        type=arguments.name,
        help="these columns; default: what people read first",
    )
    command.add_argument(
        "--limit", metavar="N", type=arguments.count, default=Selection.limit, help="rows at most; default: %(default)s"
    )
    command.add_argument("--json", action="store_true", help="print the rows as one JSON object; times are UTC")
    command.set_defaults(command=show)


def _declare_prune(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--out", metavar="DIR", type=arguments.place, required=True, help="the directory with the results"
    )
    command.add_argument(
        "--keep",
        metavar="DURATION",
        type=arguments.age,
        required=True,
        help=f"such as 90d ({', '.join(arguments.UNITS)}): remove what is older",
    )
    command.add_argument("--json", action="store_true", help="print what was removed as one JSON object")
    command.set_defaults(command=prune)


def _declare_times(command: argparse.ArgumentParser, what: str) -> None:
    # A duration such as -1h is a value, as a negative number would be, and no option.
    command._negative_number_matcher = re.compile(r"-\d")
    for option, which in (("--since", "at this time or later"), ("--until", "before this time")):
        command.add_argument(
            option,
            metavar="TIME",
            type=arguments.moment,
            help=f"only {what} {which}: 2026-05-01T12:00:00Z (UTC if it has no zone), or -1h for an hour ago "
            f"({', '.join(arguments.UNITS)})",
        )


def pipeline(given: argparse.Namespace) -> int:
    """Run jobs. Returns: 5 if there is what `--fail-on` names, else 0.

    Raises: CommandError: wrong arguments, or a missing package. SparkError: Spark failed.
    """
    jobs = chosen(given.job)
    _check_places(given)
    with _extra():
        accounts, report = _perform(jobs, given)
    counted = found(accounts)
    if given.json:
        findings = {str(each): counted[each] for each in Severity}
        jobs_told = [_object(each) for each in accounts]
        print(dump({"out": given.out, "jobs": jobs_told, "findings": findings, "report": report}))
    else:
        lines = [*_lines(accounts, _width()), *([] if report is None else ["", f"report: {report}"])]
        print("\n".join(printable(line) for line in lines))
    return Exit.NO if given.fail_on and at_least(counted, Severity(given.fail_on)) else Exit.DONE


def show(given: argparse.Namespace) -> int:
    """Print rows of a result. Returns: 0. Raises: CommandError: there is no such table, or no such column."""
    _check_times(given)
    with _extra():
        from amqpmesh.pipeline.result_rows import DURATIONS, select

    columns = given.columns.split(",") if given.columns else ()
    selection = Selection(given.address, given.tenant, given.router, given.since, given.until, given.limit)
    selected = select(given.out, given.table, selection, columns)
    if given.json:
        print(dump({"table": given.table, "found": selected.found, "rows": selected.rows}))
        return Exit.DONE
    names = selected.columns
    lasts = [name in DURATIONS or name.endswith("_ns") for name in names]
    headings = [name.removesuffix("_ns").upper() for name in names]
    rows = [[_cell(row[name], is_time) for name, is_time in zip(names, lasts, strict=True)] for row in selected.rows]
    lines = table(headings, rows, _width(), headings)
    if selected.found is None:
        lines += ["", f"the first {given.limit:,} rows; --limit shows more"]
    elif selected.found > len(rows):
        lines += ["", f"the first {len(rows):,} of {selected.found:,} rows; --limit shows more"]
    print("\n".join(printable(line) for line in lines))
    return Exit.DONE


def prune(given: argparse.Namespace) -> int:
    """Remove old results. Returns: 0. Raises: CommandError: there are none. OSError: a file cannot be removed."""
    with _extra():
        from amqpmesh.pipeline import pruning

    try:
        before = datetime.now(UTC) - given.keep
    except OverflowError:
        raise CommandError("--keep: is longer than the time that there is") from None
    removed = pruning.prune(given.out, before)
    if given.json:
        print(dump({"before": before.isoformat(), "segments": removed.segments, "hours": removed.hours}))
    else:
        print(f"removed {removed.segments:,} segments, and {removed.hours:,} hours of deliveries")
    return Exit.DONE


def _cell(value: Any, is_time: bool) -> str | int | float | None:
    if is_time and isinstance(value, int):
        return duration(value / 1e9)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " > ".join(map(str, value))
    return value if value is None or isinstance(value, str | int | float) else str(value)


@contextmanager
def _extra() -> Iterator[None]:
    """Tell of a missing package. Raises: CommandError: it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "amqpmesh").partition(".")[0] == "amqpmesh":
            raise
        raise CommandError(f"pipeline: {error.name} is not installed: pip install 'amqpmesh[pipeline]'") from None


def _check_times(given: argparse.Namespace) -> None:
    if given.since and given.until and given.since >= given.until:
        raise CommandError("--since: must be before --until")


def _check_places(given: argparse.Namespace) -> None:
    """Check local directories; Spark checks others. Raises: CommandError: one is no directory."""
    _check_times(given)
    for each in given.events:
        if os.path.isabs(each) and not os.path.isdir(each):
            raise CommandError(f"--events: no directory: {each}")
    if os.path.isabs(given.out) and os.path.exists(given.out) and not os.path.isdir(given.out):
        raise CommandError(f"--out: no directory: {given.out}")


def _perform(jobs: Sequence[Job], given: argparse.Namespace) -> tuple[list[Account], str | None]:
    """Run the jobs whose input is new. Returns: the account of each; the path of the report, if all jobs ran."""
    functions = [job.load() for job in jobs]
    reported = given.job == RUN
    if reported:
        from amqpmesh.pipeline.report import destination

        page = destination(given.out)
    with _Running(given, len(jobs) + reported) as running:
        accounts = [running.account(job, function) for job, function in zip(jobs, functions, strict=True)]
        if not reported:
            return accounts, None
        return accounts, running.report(accounts, page.exists())


class _Running:
    """Jobs in one session of Spark, which is started when the first one needs it."""

    def __init__(self, given: argparse.Namespace, steps: int) -> None:
        from amqpmesh.pipeline.session import check_master, is_running  # here: it needs the extra

        check_master(given.master)
        self._given, self._steps, self._step = given, steps, 0
        self._lasting = is_running()
        self._spark: SparkSession | None = None
        self._progress: Progress | None = None
        #: The digest of what `ingest` has converted; None: it did not run.
        self._ingested: str | None = None

    def __enter__(self) -> "_Running":
        return self

    def __exit__(self, *_: object) -> None:
        if self._spark is not None and not self._lasting:
            self._spark.stop()
        if self._progress is not None:
            self._progress.close()

    def account(self, job: Job, function: Callable[[Work], Done]) -> Account:
        """Run a job, unless its result is there already."""

        self._step += 1
        began = time.monotonic()
        place = self._work(None).place(job.name)
        if job.name == "ingest":
            done, is_same = self._ingest(job)
            return Account(job, place, time.monotonic() - began, done, is_same)
        given = self._digest(job.name, job.version, self._tables(job.needs)) if job.needs else None
        if (result := self._result(job.name, given)) is not None:
            return Account(job, place, time.monotonic() - began, done_before(result), unchanged=True)
        with self._shown(job.name) as spark:
            work = self._work(spark)
            done = function(work)
            work.publish(job.name, given or "", done)
        return Account(job, place, time.monotonic() - began, done)

    def report(self, accounts: Sequence[Account], exists: bool) -> str:
        """Write the report, unless it is there and says the same. Returns: its path."""
        from amqpmesh.pipeline.report import destination, report

        self._step += 1
        jobs = [each.job for each in accounts]
        given = self._digest([(each.name, each.version) for each in jobs], self._tables(each.name for each in jobs))
        if exists and self._result(REPORT, given) is not None:
            return str(destination(self._given.out))
        with self._shown(REPORT) as spark:
            work = self._work(spark)
            written = report(work, accounts)
            work.publish(REPORT, given or "", Done(0))
        return str(written)

    def _digest(self, *more: Any) -> str | None:
        """Return a digest of all that a result is made from; None: it is not known."""
        if self._ingested is None:
            return None
        return digest(self._ingested, str(self._given.since), str(self._given.until), *more)

    def _tables(self, jobs: Iterable[str]) -> list[Any]:
        """Return the parts of the tables of some jobs, as they are published now, by whichever run."""
        published = load(self._given.out).jobs
        return [(each, published[each].tables) for each in jobs if each in published]

    def _result(self, name: str, wanted: str | None) -> Result | None:
        """Return what was published of the same input, if it is still there."""
        if wanted is None or self._given.anew:
            return None
        result = load(self._given.out).jobs.get(name)
        return result if result is not None and result.input == wanted and is_there(self._given.out, result) else None

    def _ingest(self, job: Job) -> tuple[Done, bool]:
        """Convert new segments. Returns: also, whether there were none."""
        from amqpmesh.pipeline.ingest import complete, prepare, summary

        prepared = prepare(self._given.events, self._work(None).place(job.name))
        if prepared.tasks:
            with self._shown(job.name) as spark:
                result = complete(prepared, spark)
        else:
            result = complete(prepared, None)
        self._ingested = result.digest
        return summary(result), not prepared.tasks

    def _work(self, spark: "SparkSession | None") -> Work:
        given = self._given
        return Work(spark, tuple(given.events), given.out, given.since, given.until, given.anew)  # type: ignore[arg-type]

    @contextmanager
    def _shown(self, name: str) -> Iterator["SparkSession"]:
        """Run the block in the session, with its progress."""
        from amqpmesh.pipeline.session import explained, session

        if self._progress is None:
            self._progress = Progress("starting Spark", None, shown=True)
        if self._spark is None:
            self._spark = session(f"amqpmesh pipeline {self._given.job}", self._given.master, dict(self._given.conf))
        with _watched(self._spark, self._progress, f"{name}, {self._step} of {self._steps}"), explained(name):
            yield self._spark


@contextmanager
def _watched(spark: "SparkSession", progress: Progress, verb: str) -> Iterator[None]:
    """Show the progress of Spark during the block."""
    if not progress.is_shown:
        yield
        return
    from amqpmesh.pipeline.session import Tasks

    tasks, over = Tasks(spark), threading.Event()

    def watch() -> None:
        while not over.wait(PERIOD):
            progress.show(verb, *tasks())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


# --------------------------------------------------------------------------------------------------------- the summary


def _lines(accounts: Sequence[Account], width: int) -> Iterator[str]:
    rows = [(each.job.name, each.done.rows, duration(each.seconds), _figures(each), each.place) for each in accounts]
    yield from table(("JOB", "ROWS", "TIME", "FIGURES", "RESULT"), rows, width, ("FIGURES", "RESULT"))
    for each in accounts:
        for shown in each.done.tables:
            yield ""
            yield f"{each.job.name}: {shown.title}"
            headings = [heading.upper() for heading in shown.headings]
            yield from table(headings, shown.rows, width, headings)


def _figures(account: Account) -> str:
    figures = [
        f"{name} {value:,}" if isinstance(value, int) else f"{name} {value:,.2f}"
        for name, value in account.done.figures.items()
    ]
    return ", ".join((["as before"] if account.unchanged else []) + figures)


def _object(account: Account) -> dict[str, Any]:
    return {
        "job": account.job.name,
        "out": account.place,
        "seconds": round(account.seconds, 3),
        "unchanged": account.unchanged,
        "rows": account.done.rows,
        "figures": dict(account.done.figures),
        "tables": [
            {"title": each.title, "rows": [dict(zip(each.headings, row, strict=True)) for row in each.rows]}
            for each in account.done.tables
        ],
    }


def _width() -> int:
    """Return the columns of a line: in pipes and files names are not cut, unless `COLUMNS` is set."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS"):
        return shutil.get_terminal_size((WIDTH, 0)).columns
    return sys.maxsize
