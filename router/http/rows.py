"""Rows of metrics: the series of one subject, such as an address, in a table of limited size.

A subject has a row of its own while it is used and the table has room. All others share the row `other`, which counts
what they have counted since they were first seen, and never goes back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from amqpmesh.router.http.families import COUNTER, PREFIX, counters, series

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from amqpmesh.router.http.families import Family

OTHER: Final = "other"
"""The value of the labels of all subjects without a row of their own. One of that name never has a row."""

STEP: Final = 16
"""Subjects that a step looks at."""

Values: TypeAlias = tuple[float, ...]
"""The values of a row: counters first, then gauges."""

Labels: TypeAlias = tuple[tuple[str, str], ...]


class Subject(NamedTuple):
    """A subject, as it is now."""

    key: Hashable
    """Of this subject alone: if it is used again later, it has another key."""
    labels: tuple[str, ...]
    values: Values
    tenant: str = ""


class Row:
    """The series of one subject."""

    __slots__ = ("key", "prefixes", "tenant", "values")

    def __init__(self, families: Sequence[Family], labels: Labels, subject: Subject) -> None:
        """Args: labels: their names, with the values of the subject."""
        self.key = subject.key
        self.tenant = subject.tenant
        self.values = subject.values
        #: What each series begins with, up to its value, by family.
        self.prefixes = tuple(
            tuple(f"{PREFIX}{each.name}{end}{_shown((*labels, *more))} " for end, more in each.samples)
            for each in families
        )


class Table:
    """The rows of all subjects of one kind."""

    def __init__(self, families: tuple[Family, ...], names: tuple[str, ...], room: int, fixed: Labels = ()) -> None:
        """Args: names: of the labels. room: series at most, those of `other` included. fixed: further labels."""
        self.families = families
        self.rows: dict[tuple[str, ...], Row] = {}
        self._names = names
        self._fixed = fixed
        self._counters = counters(families)
        self._series = series(families)
        self.resize(room)
        #: The subjects without a row, by key; and the sums of what such have counted, and of their gauges, by tenant.
        self._seen: dict[Hashable, Subject] = {}
        self._counted: dict[str, list[float]] = {}
        self._gauges: dict[str, list[float]] = {}

    def resize(self, room: int) -> None:
        """Have room for other many series. If it has shrunk, rows stay while their subjects are used."""
        self._most = max(0, room // self._series - 1)

    def update(self, subjects: Iterable[Subject], part: Callable[[int], int] | None = None) -> Iterator[None]:
        """Take the values of all subjects now, in steps.

        Args: part: returns how many of a number of rows one tenant has, whatever the others use; None: they have one
            room for all.
        """
        most = self._most if part is None else part(self._most)
        rows, before = self.rows, self._seen
        self.rows, self._seen, self._gauges = {}, {}, {}
        left: list[Subject] = []
        taken: dict[str, int] = {}
        for number, subject in enumerate(subjects):
            labels = subject.labels
            row = rows.get(labels)
            if row is None or labels in self.rows:
                left.append(subject)
            else:
                self._keep(row, subject)
                self.rows[labels] = row
                taken[subject.tenant] = taken.get(subject.tenant, 0) + 1
            if number % STEP == 0:
                yield
        for number, subject in enumerate(left):
            labels = subject.labels
            used = len(self.rows) if part is None else taken.get(subject.tenant, 0)
            if used < most and labels not in self.rows and OTHER not in labels:
                self.rows[labels] = self.row(subject)
                taken[subject.tenant] = taken.get(subject.tenant, 0) + 1
            else:
                self._count(subject, before.get(subject.key))
            if number % STEP == 0:
                yield

    def others(self) -> Iterator[tuple[str, Values]]:
        """Return the values of all subjects without a row together, for each tenant that has had some."""
        none = [0] * (self._series - self._counters)
        for tenant, counted in self._counted.items():
            yield tenant, (*counted, *self._gauges.get(tenant, none))

    def with_other(self) -> list[Row]:
        """Return all rows, and that of the other subjects, if there were some."""
        others = [values for _, values in self.others()]
        if not others:
            return list(self.rows.values())
        labels = (OTHER,) * len(self._names)
        return [*self.rows.values(), self.row(Subject(labels, labels, tuple(map(sum, zip(*others, strict=True)))))]

    def row(self, subject: Subject) -> Row:
        """Return a row for a subject, without keeping it."""
        labels = (*self._fixed, *zip(self._names, subject.labels, strict=True))
        return Row(self.families, labels, subject)

    def subjects(self) -> Iterator[Subject]:
        """Return all subjects as they were seen last, with a row or without."""
        for labels, row in self.rows.items():
            yield Subject(row.key, labels, row.values, row.tenant)
        yield from self._seen.values()

    def _keep(self, row: Row, subject: Subject) -> None:
        values, n = subject.values, self._counters
        if row.key != subject.key:
            row.key, row.values = subject.key, values
        elif row.values != values:
            # Counts of links that are ending may be missing for a moment.
            row.values = (*map(max, row.values[:n], values[:n]), *values[n:])

    def _count(self, subject: Subject, before: Subject | None) -> None:
        values, n = subject.values, self._counters
        counted = self._counted.get(subject.tenant)
        if counted is None:
            counted = self._counted[subject.tenant] = [0] * n
        if before is None:
            for position in range(n):
                counted[position] += values[position]
        elif before.values != values:
            highest = tuple(map(max, before.values[:n], values[:n]))
            for position in range(n):
                counted[position] += highest[position] - before.values[position]
            subject = subject._replace(values=(*highest, *values[n:]))
        self._seen[subject.key] = subject
        gauges = self._gauges.get(subject.tenant)
        if gauges is None:
            self._gauges[subject.tenant] = list(values[n:])
        else:
            for position, value in enumerate(values[n:]):
                gauges[position] += value


def lines(families: Sequence[Family], rows: Sequence[Row], *, is_open: bool) -> Iterator[str]:
    """Return the lines of some families, family by family, some lines at a time.

    Args: is_open: in the format of OpenMetrics 1.0, else in that of Prometheus 0.0.4.
    """
    at = 0
    for number, family in enumerate(families):
        name = f"{PREFIX}{family.name}" if is_open and family.kind == COUNTER else family.full_name
        yield f"# HELP {name} {family.help}\n# TYPE {name} {family.kind}\n"
        count = len(family.samples)
        for begin in range(0, len(rows), STEP):
            part = []
            for row in rows[begin : begin + STEP]:
                prefixes, values = row.prefixes[number], row.values
                for each in range(count):
                    value = values[at + each]
                    part.append(prefixes[each])
                    part.append(f"{value}\n" if type(value) is int else f"{value:.3f}\n")
            yield "".join(part)
        at += count


def _shown(labels: Labels) -> str:
    inner = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{inner}}}" if inner else ""


def _escaped(value: str) -> str:
    text = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return text if text.isascii() else text.encode(errors="replace").decode()
