"""`amqpmesh pipeline watch`: minutes of the mesh as they pass, until a signal."""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import Any, Final

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.cli import arguments, results
from amqpmesh.router.cli.exit_status import EPILOG, Exit
from amqpmesh.router.cli.output.bodies import dump
from amqpmesh.router.cli.output.terminal import printable

PERIOD: Final = 0.5
"""Seconds between two looks whether the query has failed."""

BEFORE: Final = timedelta(hours=1)
"""The greatest age of a segment's file when a watch begins."""

SETTINGS: Final[Mapping[str, str]] = {"spark.sql.streaming.minBatchesToRetain": "20"}
"""Settings of Spark, unless others are given: the checkpoint stays small."""


def declare(actions: Any) -> None:
    """Declare the command. Args: actions: the subparsers of `amqpmesh pipeline`."""
    command = actions.add_parser(
        "watch",
        help="traffic, latency, losses and anomalies of each minute, as they happen",
        description="Read segments as they close, and write tables of each minute into DIR/live, until SIGINT or "
        "SIGTERM. SOURCE is a directory in which routers record, or the URL of a router of a mesh whose routers "
        "publish. `amqpmesh pipeline show live` prints the minutes.",
        epilog=EPILOG,
    )
    command.add_argument(
        "sources", metavar="SOURCE", nargs="+", type=arguments.place, help="a directory, or amqp(s)://HOST[:PORT]"
    )
    command.add_argument(
        "--to", metavar="DIR", type=arguments.place, required=True, help="the directory for the results"
    )
    command.add_argument(
        "--checkpoint",
        metavar="DIR",
        type=arguments.place,
        help="where a later watch of the same sources goes on from; default: DIR/live/checkpoint of --to",
    )
    command.add_argument(
        "--delay",
        metavar="DURATION",
        type=arguments.age,
        default=timedelta(seconds=90),
        help="close a minute when records are so much later; what comes then is counted as late; default: 90s",
    )
    command.add_argument(
        "--keep",
        metavar="DURATION",
        type=arguments.age,
        default=timedelta(days=1),
        help=f"remove minutes that are older ({', '.join(arguments.UNITS)}); default: 1d",
    )
    command.add_argument(
        "--since",
        metavar="TIME",
        type=arguments.moment,
        help="read files that were closed at this time or later, when a watch begins; default: -1h",
    )
    command.add_argument(
        "--option",
        metavar="KEY=VALUE",
        type=arguments.setting,
        action="append",
        default=[],
        help="an option of the connector for URLs, such as user=ops or trust=ca.pem; may be repeated",
    )
    command.add_argument(
        "--metrics",
        metavar="[ADDRESS]:PORT",
        help="serve the last hour as OpenMetrics at http://ADDRESS:PORT/metrics; ADDRESS is 127.0.0.1 unless told",
    )
    command.add_argument("--once", action="store_true", help="end when what is there was read")
    results.declare_spark(command)
    command.add_argument("--json", action="store_true", help="print the summary as one JSON object")
    arguments.take_durations_before_now(command)
    command.set_defaults(command=watch)


def watch(given: argparse.Namespace) -> int:
    """Watch until a signal. Returns: 0.

    Raises: CommandError: wrong arguments, a missing package, or a checkpoint that cannot be used. SparkError: Spark, or
        the connector, failed. OSError: a file cannot be written.
    """
    with results.extra():
        from amqpmesh.pipeline.files import ordinary
        from amqpmesh.pipeline.live import Live, alone
        from amqpmesh.pipeline.live_metrics import Exposition, place, served
        from amqpmesh.pipeline.session import check_master, explained, is_running, session
        from amqpmesh.pipeline.watch import Watch, is_mesh

    check_master(given.master)
    at = None if given.metrics is None else place(given.metrics)
    for each in given.sources:
        if not is_mesh(each) and not os.path.isdir(ordinary(each)):
            raise CommandError(f"SOURCE: no directory, and no amqp(s) URL: {each}")
    out = ordinary(given.to)
    checkpoint = ordinary(given.checkpoint) if given.checkpoint else out / "live" / "checkpoint"
    since = given.since or datetime.now(UTC) - BEFORE
    keep = max(1, -(-given.keep // timedelta(hours=1)))
    with ExitStack() as stack:
        for each in (out / "live", checkpoint):
            stack.enter_context(alone(each))
        delay = round(given.delay.total_seconds() * 1e9)
        live = Live(out, checkpoint, given.sources, delay, keep=keep, since=since.timestamp())
        exposition = None
        if at is not None:
            exposition = Exposition()
            exposition.note(live, time.time_ns())
            print(f"metrics: {stack.enter_context(served(exposition, *at))}", file=sys.stderr, flush=True)
        ended = threading.Event()
        stack.enter_context(_set_by_signals(ended))
        lasting = is_running()
        spark = session("amqpmesh pipeline watch", given.master, {**SETTINGS, **dict(given.conf)})
        if not lasting:
            stack.callback(spark.stop)
        stack.enter_context(_set_by_signals(ended))  # once more: Spark takes SIGINT for itself
        stack.enter_context(explained("watch"))
        with Watch(
            spark,
            given.sources,
            live,
            checkpoint,
            since=datetime.fromtimestamp(live.since, UTC),
            options=dict(given.option),
            told=_tell,
            noted=None if exposition is None else exposition.note,
            trigger={"availableNow": True} if given.once else None,
        ) as query:
            while query.check() and not ended.wait(PERIOD):
                pass
    counts = {name: live.counts[name] for name in ("segments", "again", "records", "late", "ahead", "faults")}
    if given.json:
        print(dump({"to": str(out), **counts, "problems": dict(live.problems), "minutes": live.counts["minutes"]}))
    else:
        told = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        print(f"watched: {told}", file=sys.stderr)
    return Exit.DONE


def _tell(wrong: Sequence[tuple[str, str, str]]) -> None:
    for source, problem, sentence in wrong:
        print(printable(f"{source}: {problem}: {sentence}"), file=sys.stderr)


@contextmanager
def _set_by_signals(ended: threading.Event) -> Iterator[None]:
    """Set an event at SIGINT or SIGTERM during the block."""

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()

    if threading.current_thread() is not threading.main_thread():  # only the main thread has signals
        yield
        return
    before = {each: signal.signal(each, end) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
