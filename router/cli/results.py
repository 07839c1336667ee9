"""`amqpmesh pipeline`: questions to results that are there. Nothing here starts Spark."""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from amqpmesh.pipeline.severity import Severity
from amqpmesh.pipeline.work import Selection
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.cli import arguments
from amqpmesh.router.cli.exit_status import EPILOG, Exit, RefusedError
from amqpmesh.router.cli.output.bodies import dump
from amqpmesh.router.cli.output.summary import duration
from amqpmesh.router.cli.output.terminal import printable, table
from amqpmesh.router.management.cost_plan import from_json

WIDTH: Final = 100
"""Columns of a terminal that does not report its width."""


def declare(actions: Any) -> None:
    """Declare the commands. Args: actions: the subparsers of `amqpmesh pipeline`."""
    _declare_show(
        actions.add_parser(
            "show",
            help="findings, and rows of the results, without Spark",
            description="Print rows of the results of earlier runs. TABLE is `findings`, for those of all jobs; a job, "
            "for its main table; or JOB/NAME.",
            epilog=EPILOG,
        )
    )
    _declare_alert(
        actions.add_parser(
            "alert",
            help="tell a file or a webhook of new findings, and of their end",
            description="Tell of findings that are new since the last time, and of those that are over. Each episode "
            "is told once. Call it after each run of the jobs.",
            epilog=EPILOG,
        )
    )
    _declare_maintenance(
        actions.add_parser(
            "maintenance",
            help="predict the effect of taking routers or links out of the mesh",
            description="Predict, from the results of `traffic` and `plan`, which addresses are cut off and how links "
            "are loaded without some routers and links, and what to do first.",
            epilog=EPILOG,
        )
    )
    _declare_promise(
        actions.add_parser(
            "promise",
            help="compare an applied plan with the traffic since",
            description="Compare what a plan has promised with what links have carried since it was applied. Its exit "
            "status is 5 if the promise was not kept.",
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


def _declare_show(command: argparse.ArgumentParser) -> None:
    command.add_argument("table", metavar="TABLE", help="such as findings, losses, latency/links or traffic")
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
    command.add_argument(
        "--finding", metavar="N", type=arguments.count, help="only rows of the finding with this number"
    )
    declare_times(command, "rows")
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


def _declare_alert(command: argparse.ArgumentParser) -> None:
    _declare_out(command)
    command.add_argument(
        "--webhook", metavar="FILE", type=Path, help="a TOML file with the url that alerts are posted to, and its token"
    )
    command.add_argument("--file", metavar="FILE", type=Path, help="a file that alerts are appended to, a line each")
    command.add_argument(
        "--severity",
        choices=[*Severity],
        default=str(Severity.WARNING),
        help="only findings as bad as that; default: %(default)s",
    )
    command.add_argument(
        "--quiet",
        metavar="DURATION",
        type=arguments.age,
        default=timedelta(hours=1),
        help="an episode is over if it was not seen for that long; default: 1h",
    )
    command.add_argument(
        "--since",
        metavar="TIME",
        type=arguments.moment,
        default="-1d",
        help="do not tell of episodes that were over before; default: %(default)s",
    )
    command.add_argument("--json", action="store_true", help="print the alerts as one JSON object")
    arguments.take_durations_before_now(command)
    command.set_defaults(command=alert)


def _declare_maintenance(command: argparse.ArgumentParser) -> None:
    _declare_out(command)
    command.add_argument(
        "--without", metavar="ROUTER", action="append", default=[], help="without this router; may be repeated"
    )
    command.add_argument(
        "--without-link",
        metavar=("ROUTER", "ROUTER"),
        nargs=2,
        action="append",
        default=[],
        help="without the link between these routers; may be repeated",
    )
    declare_times(command, "traffic")
    command.add_argument(
        "--limit", metavar="N", type=arguments.count, default=10, help="rows at most; default: %(default)s"
    )
    command.add_argument("--json", action="store_true", help="print all as one JSON object")
    command.set_defaults(command=maintenance)


def _declare_promise(command: argparse.ArgumentParser) -> None:
    command.add_argument("plan", metavar="PLAN", type=Path, help="the file of the plan that was applied, a copy")
    command.add_argument(
        "--out",
        metavar="DIR",
        type=arguments.place,
        required=True,
        help="the directory with results of a later run",
    )
    declare_times(command, "traffic")
    command.add_argument("--json", action="store_true", help="print all as one JSON object")
    command.set_defaults(command=promise)


def _declare_prune(command: argparse.ArgumentParser) -> None:
    _declare_out(command)
    command.add_argument(
        "--keep",
        metavar="DURATION",
        type=arguments.age,
        required=True,
        help=f"such as 90d ({', '.join(arguments.UNITS)}): remove what is older",
    )
    command.add_argument("--json", action="store_true", help="print what was removed as one JSON object")
    command.set_defaults(command=prune)


def _declare_out(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--out", metavar="DIR", type=arguments.place, required=True, help="the directory with the results"
    )


def declare_spark(command: argparse.ArgumentParser) -> None:
    """Declare `--master` and `--conf`."""
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


def declare_times(command: argparse.ArgumentParser, what: str) -> None:
    """Declare `--since` and `--until`. Args: what: of which they select some."""
    arguments.take_durations_before_now(command)
    for option, which in (("--since", "at this time or later"), ("--until", "before this time")):
        command.add_argument(
            option,
            metavar="TIME",
            type=arguments.moment,
            help=f"only {what} {which}: 2026-05-01T12:00:00Z (UTC if it has no zone), or -1h for an hour ago "
            f"({', '.join(arguments.UNITS)})",
        )


def show(given: argparse.Namespace) -> int:
    """Print rows of a result. Returns: 0. Raises: CommandError: there is no such table, or no such column."""
    check_times(given)
    with extra():
        from amqpmesh.pipeline.findings import select
        from amqpmesh.pipeline.result_rows import DURATIONS

    columns = given.columns.split(",") if given.columns else ()
    selection = Selection(
        given.address, given.tenant, given.router, given.since, given.until, given.limit, given.finding
    )
    selected = select(given.out, given.table, selection, columns)
    if given.json:
        print(dump({"table": given.table, "found": selected.found, "rows": selected.rows}))
        return Exit.DONE
    names = selected.columns
    lasts = [name in DURATIONS or name.endswith("_ns") for name in names]
    headings = [name.removesuffix("_ns").upper() for name in names]
    rows = [[_cell(row[name], is_time) for name, is_time in zip(names, lasts, strict=True)] for row in selected.rows]
    lines = table(headings, rows, width(), headings)
    if selected.found is None:
        lines += ["", f"the first {given.limit:,} rows; --limit shows more"]
    elif selected.found > len(rows):
        lines += ["", f"the first {len(rows):,} of {selected.found:,} rows; --limit shows more"]
    print("\n".join(printable(line) for line in lines))
    return Exit.DONE


def alert(given: argparse.Namespace) -> int:
    """Tell of findings. Returns: 0.

    Raises: CommandError: wrong arguments, or no results. RefusedError: a webhook did not take the alerts. OSError: a
        file cannot be written.
    """
    if given.webhook is None and given.file is None:
        raise CommandError("--webhook or --file: where to?")
    with extra():
        from amqpmesh.pipeline import alerts, webhook
        from amqpmesh.pipeline.files import ordinary
        from amqpmesh.pipeline.findings import findings

    out = ordinary(given.out)
    hook = None if given.webhook is None else webhook.Webhook.of(given.webhook)
    found = findings(given.out)
    now, quiet, since = time.time_ns(), int(given.quiet.total_seconds() * 1e9), int(given.since.timestamp() * 1e9)
    told: dict[str, list[alerts.Alert]] = {}
    failure: Exception | None = None
    untold = 0
    with alerts.memory(out) as known:
        for target in [name for name in ("file", "webhook") if getattr(given, name) is not None]:
            key = f"{target} {getattr(given, target).resolve()}"  # there may be several webhooks, one after another
            some, after, more = alerts.news(
                found, known.get(key, {}), now, quiet, least=Severity(given.severity), since=since
            )
            untold = max(untold, more)
            try:
                if some and target == "file":
                    alerts.append(given.file, some)
                elif some and hook is not None:
                    hook.post(alerts.document(some, now))
            except webhook.WebhookError as error:
                failure = RefusedError(str(error))
                continue
            except (CommandError, OSError) as error:  # the webhook is told, even if the disk is full
                failure = error
                continue
            told[target] = some
            known[key] = after
            alerts.remember(out, known)
    if given.json:
        print(dump({target: [asdict(each) for each in some] for target, some in told.items()}))
    else:
        for target, some in told.items():
            ended = sum(each.state == "ended" for each in some)
            print(f"{target}: told of {len(some) - ended:,} that began, and of {ended:,} that ended")
        if untold:
            print(f"not told: {untold:,}, since no more than {alerts.MOST_KNOWN:,} episodes are remembered")
    if failure is not None:
        raise failure
    return Exit.DONE


def maintenance(given: argparse.Namespace) -> int:
    """Predict the effect of maintenance. Returns: 5 if an address is cut off, else 0.

    Raises: CommandError: wrong arguments, or no results.
    """
    check_times(given)
    away = [*((each,) for each in given.without), *(tuple(each) for each in given.without_link)]
    if not away:
        raise CommandError("--without or --without-link: which?")
    with extra():
        from amqpmesh.pipeline.maintenance import flows, graph, outlook

    found = outlook(graph(given.out), flows(given.out, given.since, given.until), list(dict.fromkeys(away)))
    if given.json:
        print(dump(asdict(found)))
    else:
        told = f"{found.lost:,.0f} messages lost, {found.own:,.0f} sent there, {found.moved:,.0f} on longer paths"
        lines = [f"without {found.without}: {told}"]
        lines += ["", "first:", *(f"{number}. {step}" for number, step in enumerate(found.steps, start=1))]
        cut_off = [(each.address, each.tenant, round(each.messages)) for each in found.cut_off[: given.limit]]
        if cut_off:
            lines += ["", f"addresses cut off: {len(found.cut_off):,}"]
            lines += table(("ADDRESS", "TENANT", "MESSAGES"), cut_off, width(), ("ADDRESS", "TENANT"))
        links = [(each.router, each.neighbour, each.before, each.after) for each in found.links[: given.limit]]
        lines += ["", "links used most then:"]
        lines += table(("ROUTER", "NEIGHBOUR", "USE", "USE THEN"), links, width(), ("ROUTER", "NEIGHBOUR"))
        print("\n".join(printable(line) for line in lines))
    return Exit.NO if found.cut_off else Exit.DONE


def promise(given: argparse.Namespace) -> int:
    """Compare a plan with what came of it. Returns: 5 if its promise was not kept, else 0.

    Raises: CommandError: it is no plan, or there are no results.
    """
    check_times(given)
    try:
        plan = from_json(given.plan.read_bytes())
    except OSError as error:
        raise CommandError(f"{given.plan}: {error.strerror or error}") from None
    except CommandError as error:
        raise CommandError(f"{given.plan}: {error}") from None
    with extra():
        from amqpmesh.pipeline.maintenance import carried, flows, graph, minutes, repeated
        from amqpmesh.pipeline.promise import kept
        from amqpmesh.pipeline.traffic_limits import read

    times = given.since, given.until
    load = carried(given.out, *times)
    for edge, more in repeated(given.out, *times).items():
        load[edge] = load.get(edge, 0.0) + more
    limits = read(given.out)
    capacity = limits.of(*minutes(given.out, *times)).links if limits.links else None
    found = kept(plan, graph(given.out), flows(given.out, *times), load, capacity)
    if given.json:
        print(dump(asdict(found)))
    else:
        print("\n".join(printable(line) for line in (*found.sentences, "kept" if found.is_kept else "not kept")))
    return Exit.DONE if found.is_kept else Exit.NO


def prune(given: argparse.Namespace) -> int:
    """Remove old results. Returns: 0. Raises: CommandError: there are none. OSError: a file cannot be removed."""
    with extra():
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
def extra() -> Iterator[None]:
    """Tell of a missing package. Raises: CommandError: it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "amqpmesh").partition(".")[0] == "amqpmesh":
            raise
        raise CommandError(f"pipeline: {error.name} is not installed: pip install 'amqpmesh[pipeline]'") from None


def check_times(given: argparse.Namespace) -> None:
    """Check the times. Raises: CommandError: the time ends before it begins."""
    if given.since and given.until and given.since >= given.until:
        raise CommandError("--since: must be before --until")


def width() -> int:
    """Return the columns of a line: in pipes and files names are not cut, unless `COLUMNS` is set."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS"):
        return shutil.get_terminal_size((WIDTH, 0)).columns
    return sys.maxsize
