"""`amqpmesh pipeline JOB`: analyses of recorded telemetry. Code that needs Spark is in the room `pipeline`."""

import argparse
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from amqpmesh.pipeline.jobs import JOBS, RUN, Account, Job, chosen
from amqpmesh.pipeline.published import Result, digest, done_before, is_there, load
from amqpmesh.pipeline.severity import Severity, at_least, found
from amqpmesh.pipeline.work import Done, Work
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.cli import arguments, live_watch, results
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
    live_watch.declare(actions)
    results.declare(actions)


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
    results.declare_spark(command)
    results.declare_times(command, "records")
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


def pipeline(given: argparse.Namespace) -> int:
    """Run jobs. Returns: 5 if there is what `--fail-on` names, else 0.

    Raises: CommandError: wrong arguments, or a missing package. SparkError: Spark failed.
    """
    jobs = chosen(given.job)
    _check_places(given)
    with results.extra():
        accounts, report = _perform(jobs, given)
    counted = found(accounts)
    if given.json:
        findings = {str(each): counted[each] for each in Severity}
        jobs_told = [_object(each) for each in accounts]
        print(dump({"out": given.out, "jobs": jobs_told, "findings": findings, "report": report}))
    else:
        lines = [*_lines(accounts, results.width()), *([] if report is None else ["", f"report: {report}"])]
        print("\n".join(printable(line) for line in lines))
    return Exit.NO if given.fail_on and at_least(counted, Severity(given.fail_on)) else Exit.DONE


def _check_places(given: argparse.Namespace) -> None:
    """Check local directories; Spark checks others. Raises: CommandError: one is no directory."""
    results.check_times(given)
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

        from amqpmesh.pipeline.traffic_limits import octets  # here: it needs the extra

        self._step += 1
        began = time.monotonic()
        place = self._work(None).place(job.name)
        if job.name == "ingest":
            done, is_same = self._ingest(job)
            return Account(job, place, time.monotonic() - began, done, is_same)
        limits = (octets(self._given.out).decode(errors="replace"),) if job.limited else ()
        given = self._digest(job.name, job.version, self._tables(job.needs), *limits) if job.needs else None
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
