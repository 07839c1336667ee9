"""The report of a run: its findings, with the basis of all figures first; a page, and its pictures beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from matplotlib.figure import Figure

from amqpmesh.pipeline import days, mesh_picture, pictures, summaries
from amqpmesh.pipeline.deliveries import MANAGEMENT
from amqpmesh.pipeline.drawing import octets, png, printable, seconds
from amqpmesh.pipeline.files import ordinary
from amqpmesh.pipeline.jobs import Account
from amqpmesh.pipeline.mesh_picture import BUSIEST
from amqpmesh.pipeline.page import Report, Section, Shown, Told, page
from amqpmesh.pipeline.pictures import Percentiles
from amqpmesh.pipeline.published import replace_file
from amqpmesh.pipeline.severity import SEVERITIES
from amqpmesh.pipeline.summaries import Basis
from amqpmesh.pipeline.work import Done, Work
from amqpmesh.router.amqp.errors import CommandError

REPORT: Final = "report.html"
"""The page's file in the directory for results."""

PICTURES: Final = "pictures"
"""The directory with the pictures, there."""

LONG: Final = 60
"""Characters of a name in a sentence at most."""

_PNG: Final = ".png"


def destination(out: str) -> Path:
    """Return the page's path. Raises: CommandError: the directory is not on this machine."""
    try:
        return ordinary(out) / REPORT
    except CommandError:
        raise CommandError(f"--out: {out}: a report is written to a path of this machine only") from None


def report(work: Work, accounts: Sequence[Account]) -> Path:
    """Write the findings of all jobs. Args: accounts: of all jobs that ran, in order.

    Returns: the page. Raises: CommandError: see `destination`. OSError: it cannot be written.
    """
    target = destination(work.out)
    told = page(_report(work, accounts, target.parent / PICTURES))
    replace_file(target, told.encode())
    return target


def _report(work: Work, accounts: Sequence[Account], folder: Path) -> Report:
    basis = summaries.basis(work)
    done = {each.job.name: each.done for each in accounts}
    sections = []
    for account in accounts:
        name = account.job.name
        shown = []
        for each in DRAWN.get(name, ()):
            figure = each.drawn(work)
            file = folder / f"{each.name}{_PNG}"
            if not figure.axes:  # there is nothing to show, as the answer says
                file.unlink(missing_ok=True)
                continue
            data = png(figure)
            replace_file(file, data)
            shown.append(Shown(each.name, each.caption, each.alt, data))
        answer = ANSWERS.get(name, _plain)(work, account.done)
        summary = f"{account.job.summary[:1].upper()}{account.job.summary[1:]}"
        title = account.job.title or name
        beside = days.table(work.out) if name == "traffic" else None
        tables = account.done.tables if beside is None else (*account.done.tables, beside)
        sections.append(Section(name, title, summary, answer, account.place, shown, tables))
    found = list(_findings(done, {each.id: each.answer for each in sections}))
    facts, told = list(_facts(work, basis)), list(_completeness_notes(basis, done))
    return Report("Telemetry of the mesh", facts, told, sections, found)


def _findings(done: Mapping[str, Done], answers: Mapping[str, str]) -> Iterator[Told]:
    """Yield the findings, the worst first, a sentence each."""
    losses = done["losses"].tables[0].rows if "losses" in done and done["losses"].tables else ()
    for _, _, sentence in losses[: summaries.FOUND]:
        yield Told(f"{sentence}.", is_warning=True)
    if "losses" in answers and len(losses) != 1:
        yield Told(answers["losses"])
    for name in ("anomalies", "contingency", "plan"):
        if name in answers:
            yield Told(answers[name])


# ----------------------------------------------------------------------------------------------------------- the basis


def _facts(work: Work, basis: Basis) -> Iterator[tuple[str, str]]:
    yield "made", _moment(datetime.now(UTC))
    yield "recorded in", ", ".join(work.events)
    if work.since or work.until:
        since = f"from {_moment(work.since)} on" if work.since else ""
        until = f"before {_moment(work.until)}" if work.until else ""
        yield "asked for", ", ".join(each for each in (since, until) if each)
    if basis.first and basis.last:
        yield "deliveries", f"from {_moment(basis.first)} to {_moment(basis.last)}, by the routers' clocks"
    yield (
        "records",
        (
            f"{basis.records:,} of deliveries, in {_plural(basis.segments, 'segment')} ({octets(basis.octets)}) "
            f"of {_plural(basis.routers, 'router')}"
        ),
    )
    yield "results", work.out


def _completeness_notes(basis: Basis, done: Mapping[str, Done]) -> Iterator[Told]:
    """Yield sentences on missing data, or that none is missing."""
    if not basis.routers:
        yield Told("No router has recorded anything.", is_warning=True)
        return
    if basis.silent_count:
        names = _names(basis.silent, basis.silent_count)
        some = f"{_plural(basis.silent_count, 'router')} of the graph"
        yield Told(f"{some} recorded nothing of {'its' if basis.silent_count == 1 else 'their'} own: {names}.", True)
    if basis.shares_count:
        shares = [f"{_name(router)} {share:.3g}" for router, share in basis.shares.items()]
        more = f" and {basis.shares_count - len(shares)} others" if basis.shares_count > len(shares) else ""
        yield Told(
            f"{basis.shares_count} of {_plural(basis.routers, 'router')} recorded a share of the deliveries: "
            f"{', '.join(shares)}{more}. Their counters are exact, and traffic is scaled to the counters.",
            is_warning=True,
        )
    else:
        yield Told("Each router that recorded did so of all of its deliveries.")
    if basis.dropped:
        yield Told(f"{_plural(basis.dropped, 'record')} found no room in a router, and are lost.", is_warning=True)
    if basis.not_whole:
        yield Told(f"{basis.not_whole:,} of {_plural(basis.segments, 'segment')} are not whole.", is_warning=True)
    if basis.quarantined:
        kinds = ", ".join(f"{problem} {number:,}" for problem, number in basis.quarantined.items())
        rows = _plural(sum(basis.quarantined.values()), "row")
        yield Told(f"Quarantined telemetry: {rows} ({kinds}).", is_warning=True)
    if not (basis.dropped or basis.not_whole or basis.quarantined):
        yield Told("No record is known to be lost, and none is quarantined.")
    for job, sentences in _RESERVATIONS.items():
        figures = done[job].figures if job in done else {}
        for figure, sentence in sentences.items():
            if figures.get(figure):
                yield Told(sentence.format(figures[figure], of=figures.get("deliveries", 0)), is_warning=True)
    error = done["latency"].figures["largest error in ms"] if "latency" in done else 0
    if error:
        yield Told(f"How far clocks are apart is known to {seconds(error * 1e6)}, where it is known worst.")


_RESERVATIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "deliveries": {
        "incomplete": "{:,} of {of:,} deliveries lack the record of a router on their way.",
        "contradictions": "Records of {:,} deliveries say things that cannot all be true.",
    },
    "traffic": {"rows not exact": "{:,} rows of the traffic matrix are estimates from counters."},
    "latency": {
        "without clocks": "{:,} of {of:,} latencies are between clocks that could not be compared: taken as they are.",
        "negative": "{:,} of {of:,} latencies are less than nothing by the clocks: taken as they are.",
    },
    "losses": {"not to be judged": "{:,} passages from router to router cannot be judged: records may be missing."},
    "anomalies": {"too short": "{:,} series are too short to be judged: that takes an hour at least."},
}
"""Reservations about the figures of jobs, by job and figure."""


# ------------------------------------------------------------------------------------------------------------- answers


def _plain(work: Work, done: Done) -> str:
    told = ", ".join(
        f"{figure} {value:,}" if isinstance(value, int) else f"{figure} {value:,.2f}"
        for figure, value in done.figures.items()
    )
    return f"{_plural(done.rows, 'row')}{': ' if told else ''}{told}."


def _ingest(work: Work, done: Done) -> str:
    figures = done.figures
    new = f"{_plural(int(figures['converted']), 'segment')} converted now, {figures['unchanged']:,} before"
    still = f", {figures['open']:,} still being written" if figures["open"] else ""
    return f"{figures['hops']:,} records of deliveries, {figures['counts']:,} of counters; {new}{still}."


def _deliveries(work: Work, done: Done) -> str:
    (outcomes,) = done.tables
    if not outcomes.rows:
        return "No delivery was recorded."
    words = {"none": "without an outcome (settled deliveries have none)", "unknown": "with an unknown outcome"}
    told = ", ".join(f"{number:,} {words.get(str(outcome), outcome)}" for outcome, number in outcomes.rows)
    return f"{done.figures['deliveries']:,} attempts to deliver: {told}."


def _traffic(work: Work, done: Done) -> str:
    figures = done.figures
    if not figures["messages"]:
        return "No traffic was recorded."
    sentences = [f"{figures['messages']:,} messages with {octets(figures['bytes'])} of payload."]
    if own := figures["of the routers' own"]:
        sentences.append(
            f"{own:,} of them are questions to routers ({MANAGEMENT}) and answers to those: they are in the Parquet, "
            "and not among the addresses that are shown."
        )
    links = done.tables[-1].rows
    if links:
        sentences.append(
            f"The link that carried most in a minute leads from {_name(links[0][0])} to {_name(links[0][1])}."
        )
    return " ".join(sentences)


def _latency(work: Work, done: Done) -> str:
    rows = summaries.percentiles(work)
    if not rows:
        return "No delivery is known to have left the mesh."
    slowest, fastest = rows[0], rows[-1]
    if len(rows) == 1:
        return f"To {_name(slowest.address)}, {_times(slowest)}."
    return (
        f"Of the {len(rows)} addresses with most deliveries, {_name(slowest.address)} is the slowest: "
        f"{_times(slowest)}. {_name(fastest.address)} is the fastest: {_times(fastest)}."
    )


def _times(row: Percentiles) -> str:
    known = "some by clocks that could not be compared" if row.error is None else f"give or take {seconds(row.error)}"
    exact = "" if row.error == 0 else f", {known}"
    return (
        f"half of the deliveries take no more than {seconds(row.p50)}, 99 of 100 no more than {seconds(row.p99)}{exact}"
    )


def _losses(work: Work, done: Done) -> str:
    figures = dict(done.figures)
    number = int(figures.pop("findings"))
    if not number:
        return "Nothing was found that went wrong."
    kinds = ", ".join(f"{kind} {found:,}" for kind, found in figures.items() if kind in SEVERITIES["losses"])
    return f"{_plural(number, 'finding')}: {kinds}."


def _anomalies(work: Work, done: Done) -> str:
    figures = done.figures
    judged = (
        f"{_plural(int(figures['windows judged']), 'window')} of {_plural(int(figures['series']), 'series', 'series')}"
    )
    if not figures["windows judged"]:
        return f"Nothing can be said: none of {_plural(int(figures['series']), 'series', 'series')} has history enough."
    if not figures["episodes"]:
        return f"No anomaly in {judged}."
    worst = done.tables[0].rows[0][2]
    return f"{_plural(int(figures['episodes']), 'episode')} in {judged}. The worst: {worst}."


def _contingency(work: Work, done: Done) -> str:
    rows = summaries.contingency(work)
    if not rows:
        return "There is nothing that could fail."
    alone = summaries.alone(work)
    whole = "No link and no router that fails alone cuts off an address."
    some = f"{alone['cut off']:,} of {alone.total():,} links and routers cut off an address if they fail alone."
    worst = rows[0]
    lost = f"{_plural(worst.cut_off, 'address', 'addresses')} and {worst.lost:,.0f} messages"
    most = f" The worst of all failures that were tried is {_name(worst.failure)}: it costs {lost}."
    return (some if alone["cut off"] else whole) + (most if worst.cut_off or worst.lost else "")


def _plan(work: Work, done: Done) -> str:
    figures = done.figures
    if not figures["changes"]:
        return "No other costs are proposed."
    changes, before, after = _plural(int(figures["changes"]), "change"), figures["use before"], figures["after"]
    return f"With {changes} of costs the most used link would be used {after:.2f} instead of {before:.2f}."


ANSWERS: Final[Mapping[str, Callable[[Work, Done], str]]] = {
    "ingest": _ingest,
    "deliveries": _deliveries,
    "traffic": _traffic,
    "latency": _latency,
    "losses": _losses,
    "anomalies": _anomalies,
    "contingency": _contingency,
    "plan": _plan,
}
"""By job, its findings in a sentence or two; other jobs have their figures."""


# ------------------------------------------------------------------------------------------------------------ pictures


class Drawn:
    """A picture of a job's result. Args: name: of its file, without a suffix. drawn: reads the data and makes the
    figure.
    """

    def __init__(self, name: str, caption: str, alt: str, drawn: Callable[[Work], Figure]) -> None:
        self.name, self.caption, self.alt, self.drawn = name, caption, alt, drawn


DRAWN: Final[Mapping[str, Sequence[Drawn]]] = {
    "traffic": (
        Drawn(
            "mesh",
            f"The mesh. The wider and darker a link, the more it carried; the {BUSIEST} busiest say how much.",
            "Graph of routers and links, with the load of each link",
            lambda work: mesh_picture.mesh(*summaries.mesh(work)),
        ),
        Drawn(
            "matrix",
            "The traffic matrix: payload from each ingress router to each egress router,"
            f" at most {summaries.ENDS} of each side.",
            "Heat map of payload from ingress routers to egress routers",
            lambda work: pictures.matrix(summaries.matrix(work)),
        ),
        Drawn(
            "traffic",
            f"Traffic over time, of the {summaries.STACKED} addresses with most messages, and all others.",
            "Messages in a second over time, stacked by address",
            lambda work: pictures.over_time(*summaries.over_time(work)),
        ),
    ),
    "latency": (
        Drawn(
            "latency",
            f"The latency of the {summaries.ADDRESSES} addresses with most deliveries.",
            "Percentiles of the latency of addresses, on a logarithmic scale",
            lambda work: pictures.percentiles(summaries.percentiles(work)),
        ),
        Drawn(
            "shares",
            f"The parts of the latency, of the {summaries.ADDRESSES} addresses that take most time.",
            "For each address, the shares of time in routers, on links, at receivers, and on the way back",
            lambda work: pictures.shares(summaries.shares(work)),
        ),
        Drawn(
            "clocks",
            f"The offsets of clocks, with their errors: the {summaries.CLOCKS} largest.",
            "Offsets of routers' clocks over time, with their errors",
            lambda work: pictures.clocks(summaries.clocks(work)),
        ),
    ),
    "losses": (
        Drawn(
            "losses",
            "The findings, by kind.",
            "The number of rows of each kind of finding",
            lambda work: pictures.losses(summaries.losses(work)),
        ),
    ),
    "anomalies": (
        Drawn(
            "anomalies",
            f"The worst episodes, at most {summaries.EPISODES}, each of another incident.",
            "Observed and expected values over time around the worst episodes",
            lambda work: pictures.anomalies(summaries.anomalies(work)),
        ),
    ),
    "contingency": (
        Drawn(
            "contingency",
            f"The {summaries.FAILURES} worst of the failures that were tried.",
            "For each failure, addresses that are cut off, messages that are lost, and the most loaded link",
            lambda work: pictures.contingency(summaries.contingency(work)),
        ),
    ),
    "plan": (
        Drawn(
            "plan",
            f"How much links are used, before and after: the {summaries.PLANNED} that are used most.",
            "Use of links, before and after the changes that are proposed",
            lambda work: pictures.plan(summaries.plan(work)),
        ),
    ),
}
"""The pictures by job."""


# ---------------------------------------------------------------------------------------------------------------- words


def _name(name: object) -> str:
    return printable(None if name is None else str(name), LONG)


def _names(names: Sequence[str], count: int) -> str:
    more = f" and {count - len(names)} others" if count > len(names) else ""
    return ", ".join(map(_name, names)) + more


def _plural(number: int, what: str, more: str = "") -> str:
    return f"{number:,} {what if number == 1 else more or what + 's'}"


def _moment(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
