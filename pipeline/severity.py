"""The severity of findings, by their kind. Importing this needs no Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from amqpmesh.pipeline.jobs import Account


class Severity(StrEnum):
    """The classes of findings, the least first."""

    NOTICE = "notice"
    """Somebody wanted it so, or may have."""
    WARNING = "warning"
    """A message did not arrive, or may soon not, and its sender knows."""
    SERIOUS = "serious"
    """A message may be lost, and its sender does not know."""


SEVERITIES: Final[Mapping[str, Mapping[str, Severity]]] = {
    "losses": {
        "broken": Severity.SERIOUS,
        "unanswered": Severity.SERIOUS,
        "dropped": Severity.SERIOUS,
        "rejected": Severity.WARNING,
        "undelivered": Severity.WARNING,
        "expired": Severity.WARNING,
        "modified": Severity.WARNING,
        "loop": Severity.WARNING,
        "repeated": Severity.WARNING,
        "storm": Severity.WARNING,
        "growing": Severity.WARNING,
        "released": Severity.NOTICE,
        "aborted": Severity.NOTICE,
        "slow": Severity.NOTICE,
        "no credit": Severity.NOTICE,
    },
    "anomalies": {"episodes": Severity.WARNING},
    "forecasts": {"above limit": Severity.WARNING, "near limit": Severity.NOTICE},
}
"""For each job with findings: the severity of each kind, which is one of its figures. Forecasts are of no job."""


def found(accounts: Iterable[Account]) -> Counter[Severity]:
    """Count the findings of jobs by their severity."""
    counted: Counter[Severity] = Counter()
    for account in accounts:
        for kind, severity in SEVERITIES.get(account.job.name, {}).items():
            counted[severity] += int(account.done.figures.get(kind, 0))
    return counted


def at_least(counted: Mapping[Severity, int], least: Severity) -> bool:
    """Return True if there are findings of a severity, or of a worse one."""
    order = list(Severity)
    return any(number for severity, number in counted.items() if order.index(severity) >= order.index(least))
