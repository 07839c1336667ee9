"""The figures that were committed last, and what has changed since."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.bench import Results
from benchmarks.processes import ROOT
from benchmarks.tables import table

FILE = ROOT / "benchmarks" / "figures.json"
DIGITS = 4  # that are kept: more are noise
NOTABLE = 0.1  # the least change that is shown
COMPARED = ("cpu_us", "messages_per_second", "kib", "octets", "seconds")
COMPARED_IN = {"latency": ("cpu_us", "p50_us", "p99_us"), "scaling": ("cpu_us",), "patterns": ("cpu_us",)}
"""The compared figures of the parts where others would say nothing."""


def committed(file: Path = FILE) -> dict[str, Any]:
    """Return the committed figures; empty: there are none."""
    if not file.exists():
        return {"machines": {}, "results": {}}
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def commit(results: Results, machine: dict[str, Any], file: Path = FILE, *, some_cases: bool = False) -> None:
    """Write the measured parts, with the machine that each was measured on; the committed figures of other parts stay.

    Args: some_cases: other cases of the measured parts stay, too.
    """
    then = committed(file)
    before = then["results"]
    measured = json.loads(json.dumps(results), parse_float=_rounded)
    if some_cases:
        measured = {part: before.get(part, {}) | cases for part, cases in measured.items()}
    parts = before | measured
    machines = then["machines"] | dict.fromkeys(measured, machine)
    found = {"machines": dict(sorted(machines.items())), "results": dict(sorted(parts.items()))}
    file.write_text(json.dumps(found, indent=1) + "\n")


def _rounded(number: str) -> float:
    return float(f"{float(number):.{DIGITS}g}")


def changes(before: Results, now: Results) -> list[tuple[str, float, float, float]]:
    """Return the router's figures: name, old value, new value, and the change of the forwarder's.

    The forwarder's change shows the present speed of the machine: a change of the router's by as much is not its own.
    """
    found = []
    for part, cases in now.items():
        for case, targets in cases.items():
            then = before.get(part, {}).get(case, {})
            for target, figures in targets.items():
                if not target.startswith("router") or target not in then:
                    continue
                beside = target.replace("router", "forwarder")
                for name in COMPARED_IN.get(part, COMPARED):
                    if not figures.get(name) or not then[target].get(name):
                        continue
                    yardstick = targets.get(beside, {}).get(name, 0) / (then.get(beside, {}).get(name, 0) or 1) or 1.0
                    what = f"{part}, {case}, {target}: {name}"
                    found.append((what, then[target][name], figures[name], yardstick))
    return found


def worse(results: Results, before: Results) -> list[str]:
    """Return the router's figures that are worse than committed by more than is noise, each with the change.

    A change of the forwarder's figure by as much is the machine's.
    """
    found = []
    for what, then, now, yardstick in changes(before, results):
        change = now / then / yardstick - 1
        if (-change if what.endswith("messages_per_second") else change) > NOTABLE:
            found.append(f"{what} is {now:,.4g}, committed {then:,.4g}: {change:+.0%}, the machine's change left out")
    return found


def show_changes(results: Results, before: dict[str, Any]) -> None:
    """Print the table of the notable changes."""
    all_of_them = changes(before["results"], results)
    if not all_of_them:
        print("\nnothing of this has been committed")
        return
    rows = []
    for what, then, now, yardstick in all_of_them:
        change = now / then / yardstick - 1
        if abs(change) > NOTABLE:
            forwarder = f"{yardstick - 1:+.0%}" if yardstick != 1.0 else ""
            rows.append((what, [f"{then:,.4g}", f"{now:,.4g}", f"{now / then - 1:+.0%}", forwarder]))
    few = f"{len(all_of_them) - len(rows)} of {len(all_of_them)} figures are within {NOTABLE:.0%} of those committed"
    if rows:
        table("against the committed figures", ["then", "now", "change", "the forwarder's"], rows)
    print(few)
