"""Alerts: each episode of a finding is told once when it is found, and once when it is over, to each target.

An episode is told by what identifies its finding in every run (`Finding.place`), and by its times: rows that come
within `quiet` of its last one belong to the same episode, until its end was told. Memory of what was told is a file
beside the results, for each target by itself. It is written after the target has taken the alerts: a run that is killed
in between tells them again, with the same ids.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from amqpmesh.pipeline.published import digest, replace_file
from amqpmesh.pipeline.severity import Severity
from amqpmesh.router.amqp.errors import CommandError

if TYPE_CHECKING:
    from amqpmesh.pipeline.findings import Finding

FILE: Final = "alerts.json"
"""The name of the file with what was told, in the directory of results."""

FORMAT: Final = 1
"""The version of that file, and of the documents that targets are given."""

MOST_TOLD: Final = 200
"""Alerts in a document at most, the worst; the others are counted."""

MOST_KNOWN: Final = 10_000
"""Episodes of a target that are remembered at most.

Those that ended before the time that is asked about are forgotten first. What could not be remembered is not told: it
would be told again each time.
"""

LONGEST_TEXT: Final = 1_000
"""Characters of a text in an alert at most: clients choose names."""

LARGEST_FILE: Final = 10 * 2**20
"""Octets of a file with alerts, from which on it is renamed to `NAME.1`."""

_LOCK: Final = ".alerts.lock"


@dataclass(frozen=True)
class Alert:
    """The news of an episode.

    Args: id: the same for all news of an episode. state: `began`, or `ended`. begin, end: ISO 8601, in UTC; of one that
        began, `end` is when it was seen last. The others are as in `Finding`.
    """

    id: str
    state: str
    severity: str
    job: str
    kind: str
    address: str | None
    tenant: str | None
    router: str | None
    peer: str | None
    begin: str
    end: str
    sentence: str
    evidence: str
    advice: str


@dataclass
class Episode:
    """An episode that a target knows. Args: begin, end: ns since 1970. is_over: its end was told. alert: as told."""

    begin: int
    end: int
    is_over: bool
    alert: dict[str, Any]


Known = dict[str, Episode]
"""The memory of a target: by the digest of a finding's place, the last episode there."""


def news(
    found: Iterable[Finding], known: Known, now: int, quiet: int, *, least: Severity, since: int
) -> tuple[list[Alert], Known, int]:
    """Return the alerts that a target does not have yet, the worst first, and what it knows with them.

    The third value is the number of places of which nothing is told, since no more can be remembered. What goes on is
    preferred to what is over, then the more severe, then what was told before, then what was seen last.

    Args: found: the findings of the last run. known: it is not modified. now, since: ns since 1970; episodes that were
        over before `since` are not told. quiet: ns without a row, after which an episode is over. least: severities
        below it are not told.
    """
    order = list(Severity)
    by_place: dict[str, list[Finding]] = defaultdict(list)
    for each in found:
        if order.index(Severity(each.severity)) >= order.index(least):
            by_place[digest(each.job, each.place)].append(each)
    after = {place: Episode(each.begin, each.end, each.is_over, each.alert) for place, each in known.items()}
    told: list[tuple[str, Alert]] = []
    for place, together in by_place.items():
        for begin, end, finding in _merged(together, now, quiet):
            episode = after.get(place)
            if episode is not None and end <= episode.end:
                continue
            if episode is not None and not episode.is_over and begin <= episode.end + quiet:
                episode.end = end
                continue
            if episode is not None:
                if not episode.is_over:
                    told.append((place, _ended(episode)))
                begin = max(begin, episode.end + 1)
            alert = _alert(finding, digest(place, begin), begin, end)
            after[place] = Episode(begin, end, False, asdict(alert))
            is_over = after[place].is_over = end < now - quiet
            if not is_over:
                told.append((place, alert))
            elif end >= since:
                told.append((place, _ended(after[place])))
    for place, episode in after.items():
        if not episode.is_over and episode.end < now - quiet:
            told.append((place, _ended(episode)))
            episode.is_over = True
    kept, untold = _remembered(after, known, since)
    some = [alert for place, alert in told if place not in untold]
    some.sort(key=lambda each: (-order.index(Severity(each.severity)), each.begin, each.id))
    return some, kept, len(untold)


def _remembered(after: Known, known: Known, since: int) -> tuple[Known, set[str]]:
    """Return the episodes to remember, and the new ones for which there is no room. Args: as of `news`."""
    order = list(Severity)

    def rank(place: str) -> tuple[bool, bool, int, bool, int]:
        episode = after[place]
        is_needed = not episode.is_over or episode.end >= since  # else it is told by no run
        severity = order.index(Severity(episode.alert["severity"]))
        return is_needed, not episode.is_over, severity, place in known, episode.end

    places = sorted(after, key=rank)
    left_out = places[:-MOST_KNOWN]
    untold = {each for each in left_out if each not in known and rank(each)[0]}
    return {each: after[each] for each in places[-MOST_KNOWN:]}, untold


def document(alerts: Sequence[Alert], now: int) -> bytes:
    """Return the JSON object that a webhook is given: at most `MOST_TOLD` alerts, and how many are left out."""
    told = [asdict(each) for each in alerts[:MOST_TOLD]]
    left_out = max(0, len(alerts) - MOST_TOLD)
    return json.dumps({"format": FORMAT, "sent": _moment(now), "alerts": told, "left_out": left_out}).encode()


def append(path: Path, alerts: Sequence[Alert]) -> None:
    """Append alerts to a file, a line of JSON each. Raises: CommandError: it is no file. OSError."""
    # A FIFO without a reader, or a device, must not hold the command.
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o640)
    with os.fdopen(descriptor, "rb+", buffering=0) as stream:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise CommandError(f"{path}: no file")
        lines = [json.dumps(asdict(each)) for each in alerts]
        if state.st_size and os.pread(descriptor, 1, state.st_size - 1) != b"\n":
            lines.insert(0, "")  # a run before was killed while it wrote
        data = memoryview("".join(f"{line}\n" for line in lines).encode())
        while data:
            data = data[stream.write(data) :]
        os.fsync(descriptor)
        if os.fstat(descriptor).st_size > LARGEST_FILE:
            os.replace(path, path.with_name(f"{path.name}.1"))


@contextmanager
def memory(out: Path) -> Iterator[dict[str, Known]]:
    """Have what each target knows; let no other command change it meanwhile.

    Raises: CommandError: the file is damaged, or of a newer version. OSError: it cannot be read.
    """
    with open(out / _LOCK, "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield _load(out / FILE)


def remember(out: Path, known: Mapping[str, Known]) -> None:
    """Write what each target knows, within `memory`. Raises: OSError."""
    told = {target: {place: asdict(each) for place, each in some.items()} for target, some in known.items()}
    replace_file(out / FILE, json.dumps({"format": FORMAT, "known": told}).encode())


def _load(path: Path) -> dict[str, Known]:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        if told["format"] != FORMAT:
            raise CommandError(f"{path} has format {told['format']!r}, and this program reads {FORMAT}")
        known = {}
        for target, some in told["known"].items():
            known[str(target)] = {str(place): _episode(each) for place, each in some.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CommandError(f"{path} is damaged ({error}): remove it, and alerts are told again") from None
    return known


def _episode(told: Mapping[str, Any]) -> Episode:
    alert = asdict(Alert(**told["alert"]))
    begin, end, is_over = told["begin"], told["end"], told["is_over"]
    if (
        type(begin) is not int
        or type(end) is not int
        or type(is_over) is not bool
        or alert["severity"] not in [*Severity]
    ):
        raise ValueError("no episode")
    if not all(value is None or isinstance(value, str) for value in alert.values()):
        raise ValueError("no alert")
    _moment(end)
    return Episode(begin, end, is_over, alert)


def _merged(found: Sequence[Finding], now: int, quiet: int) -> Iterator[tuple[int, int, Finding]]:
    """Yield the episodes of one place, in order of time: the begin, the end, and the last finding of each."""
    spans = sorted(
        ((now if each.begin_time is None else each.begin_time, now if each.end_time is None else each.end_time, each)
         for each in found),
        key=lambda each: each[:2],
    )  # fmt: skip
    begin, end, last = spans[0]
    for first, until, finding in spans[1:]:
        if first > end + quiet:
            yield begin, end, last
            begin, end, last = first, until, finding
        elif until > end:
            end, last = until, finding
    yield begin, end, last


def _alert(finding: Finding, id: str, begin: int, end: int) -> Alert:
    texts = ("severity", "job", "kind", "address", "tenant", "router", "peer", "sentence", "evidence", "advice")
    told = {name: _short(getattr(finding, name)) for name in texts}
    return Alert(id=id, state="began", begin=_moment(begin), end=_moment(end), **told)  # type: ignore[arg-type]


def _ended(episode: Episode) -> Alert:
    return Alert(**{**episode.alert, "state": "ended", "end": _moment(episode.end)})


def _short(text: str | None) -> str | None:
    return text if text is None or len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"


def _moment(ns: int) -> str:
    try:
        return datetime.fromtimestamp(ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, OSError, ValueError):
        raise CommandError(f"no time: {ns} ns since 1970") from None
