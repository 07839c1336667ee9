"""`amqpmesh pipeline JOB`: analyses of recorded telemetry. Code that needs Spark is in the room `pipeline`."""

import argparse
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from amqpmesh.pipeline.jobs import JOBS, RUN, Account, Job, chosen
from amqpmesh.pipeline.work import Done, Work
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

WIDTH: Final = 100
"""Columns of a terminal that does not report its width."""


def declare(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    jobs = "; ".join(f"{job.name}: {job.summary}" for job in JOBS.values())
    command.description = (
        "Analyse the telemetry that routers recorded, with Spark. Without --master, Spark runs in this process. "
        f"Jobs: {jobs}; {RUN}: all jobs, and a report. A job first runs the jobs that it needs. The results are "
        "Parquet files in DIR/JOB of --out, and the report is DIR/report.html. Install the packages with pip install "
        "'amqpmesh[pipeline]'."
    )
    command.epilog = EPILOG
    # A duration such as -1h is a value, as a negative number would be, and no option.
    command._negative_number_matcher = re.compile(r"-\d")
    command.add_argument("job", metavar="JOB", choices=(*JOBS, RUN), help=", ".join((*JOBS, RUN)))
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
    for option, which in (("--since", "at this time or later"), ("--until", "before this time")):
        command.add_argument(
            option,
            metavar="TIME",
            type=arguments.moment,
            help=f"only records {which}: 2026-05-01T12:00:00Z (UTC if it has no zone), or -1h for an hour ago "
            f"({', '.join(arguments.UNITS)})",
        )
    command.add_argument("--json", action="store_true", help="print the summary as one JSON object; times are seconds")
    command.set_defaults(command=pipeline)


def pipeline(given: argparse.Namespace) -> int:
    """Run jobs. Returns: 0. Raises: CommandError: wrong arguments, or a missing package. SparkError: Spark failed."""
    jobs = chosen(given.job)
    _check_places(given)
    try:
        accounts, report = _perform(jobs, given)
    except ModuleNotFoundError as error:
        if (error.name or "amqpmesh").partition(".")[0] == "amqpmesh":
            raise
        raise CommandError(f"pipeline: {error.name} is not installed: pip install 'amqpmesh[pipeline]'") from None
    if given.json:
        print(dump({"out": given.out, "jobs": [_object(each) for each in accounts], "report": report}))
    else:
        lines = [*_lines(accounts, _width()), *([] if report is None else ["", f"report: {report}"])]
        print("\n".join(printable(line) for line in lines))
    return Exit.DONE


def _check_places(given: argparse.Namespace) -> None:
    """Check local directories; Spark checks others. Raises: CommandError: one is no directory."""
    if given.since and given.until and given.since >= given.until:
        raise CommandError("--since: must be before --until")
    for each in given.events:
        if os.path.isabs(each) and not os.path.isdir(each):
            raise CommandError(f"--events: no directory: {each}")
    if os.path.isabs(given.out) and os.path.exists(given.out) and not os.path.isdir(given.out):
        raise CommandError(f"--out: no directory: {given.out}")


def _perform(jobs: Sequence[Job], given: argparse.Namespace) -> tuple[list[Account], str | None]:
    """Run the jobs. Returns: the account of each; the path of the report, if all jobs ran."""
    functions = [job.load() for job in jobs]
    from amqpmesh.pipeline.session import explained, is_running, session  # here: it needs the extra

    reported = given.job == RUN
    if reported:
        from amqpmesh.pipeline.report import destination, report

        destination(given.out)
    progress = Progress("starting Spark", None, shown=True)
    accounts = []
    steps = len(jobs) + reported
    written = None
    try:
        lasting = is_running()
        spark = session(f"amqpmesh pipeline {given.job}", given.master, dict(given.conf))
        try:
            work = Work(spark, tuple(given.events), given.out, given.since, given.until)
            for number, (job, function) in enumerate(zip(jobs, functions, strict=True), start=1):
                began = time.monotonic()
                with _watched(spark, progress, f"{job.name}, {number} of {steps}"), explained(job.name):
                    done = function(work)
                accounts.append(Account(job, work.place(job.name), time.monotonic() - began, done))
            if reported:
                with _watched(spark, progress, f"report, {steps} of {steps}"), explained("report"):
                    written = str(report(work, accounts))
        finally:
            if not lasting:
                spark.stop()
    finally:
        progress.close()
    return accounts, written


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
    rows = [
        (each.job.name, each.done.rows, duration(each.seconds), _figures(each.done), each.place) for each in accounts
    ]
    yield from table(("JOB", "ROWS", "TIME", "FIGURES", "RESULT"), rows, width, ("FIGURES", "RESULT"))
    for each in accounts:
        for shown in each.done.tables:
            yield ""
            yield f"{each.job.name}: {shown.title}"
            headings = [heading.upper() for heading in shown.headings]
            yield from table(headings, shown.rows, width, headings)


def _figures(done: Done) -> str:
    return ", ".join(
        f"{name} {value:,}" if isinstance(value, int) else f"{name} {value:,.2f}"
        for name, value in done.figures.items()
    )


def _object(account: Account) -> dict[str, Any]:
    return {
        "job": account.job.name,
        "out": account.place,
        "seconds": round(account.seconds, 3),
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
