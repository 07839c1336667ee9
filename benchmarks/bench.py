"""The rounds of a benchmark: they take turns between targets, are as long as is wanted, and their medians count."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.tables import Figures, median
from benchmarks.targets import Target, Traffic, run

LEAST = {"64 KiB": 200, "1 MiB": 20}
"""Messages of a first look at how fast a target is; of shapes that are not here 2,000."""

ENOUGH = 0.1  # seconds that say how fast a target is
MOST = 1 << 22  # messages of one run
LONGER = 3  # times that a run at a rate takes longer: the slowest of a thousand are looked for
FEWEST = 3_000  # messages of a run at a rate, or as many as two seconds have
KEEPING_UP = 0.9  # who does this part of a rate at most as fast as it can has no latency to speak of: a queue grows

Results = dict[str, dict[str, dict[str, Figures]]]
"""By part, case and target."""


@dataclass
class Bench:
    """The settings and the results of a benchmark."""

    rounds: int = 5
    seconds: float = 1.0
    """The time of a run at full speed; runs at a rate take longer."""
    extent: int = 1
    """0: a few cases of each part; 1: the most telling cases; 2: all."""
    router: Target | None = None
    """A running router to measure, in place of routers that the benchmark starts."""
    results: Results = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    """The failed measurements, each with its reason."""
    _speeds: dict[tuple[object, ...], float] = field(default_factory=dict)

    def speed(self, target: Target, traffic: Traffic) -> float:
        """Return the messages a second of a traffic at full speed. It is measured once."""
        traffic = replace(traffic, rate=0.0)
        key = (target.name, target.hops, target.certificate, target.pids, traffic)
        if key not in self._speeds:
            pairs = traffic.connections * traffic.links
            count = max(LEAST.get(traffic.shape, 2_000), 2 * pairs)
            while True:
                found = run(target, traffic, count)["rate_reached"]
                if count / found > min(ENOUGH, self.seconds) or count >= MOST:
                    break
                count *= 4
            self._speeds[key] = found
        return self._speeds[key]

    def count(self, target: Target, traffic: Traffic) -> int:
        """Messages of a run."""
        if traffic.rate:
            return int(traffic.rate * max(LONGER * self.seconds, min(2.0, FEWEST / traffic.rate)))
        pairs = traffic.connections * traffic.links
        return min(MOST, max(int(self.speed(target, traffic) * self.seconds), 2 * pairs, 20))

    def compare(self, part: str, targets: Sequence[Target], traffic: Traffic, name: str = "") -> dict[str, Figures]:
        """Measure targets in turns, and keep the results of the part. Returns: the medians of each target."""

        def once(target: Target) -> Figures:
            return run(target, traffic, self.count(target, traffic))

        return self.keep(part, name or traffic.name, self.take_turns(targets, once))

    def take_turns(self, targets: Sequence[Target], once: Callable[[Target], Figures]) -> dict[str, Figures]:
        """Measure targets in turns by `once`. Returns: the medians of each target."""
        found: dict[str, list[Figures]] = {target.name: [] for target in targets}
        for _ in range(self.rounds):
            for target in targets:
                found[target.name].append(once(target))
        return {name: median(each) for name, each in found.items()}

    def keep(self, part: str, name: str, found: dict[str, Figures]) -> dict[str, Figures]:
        """Remember what a case has found, beside what is known of it already."""
        kept = self.results.setdefault(part, {}).setdefault(name, {})
        for target, figures in found.items():
            kept[target] = kept.get(target, {}) | figures
        return kept

    def keeps_up(self, target: Target, traffic: Traffic) -> bool:
        """Return whether a target can carry a traffic at its rate."""
        return self.speed(target, traffic) * KEEPING_UP > traffic.rate


def progress(text: str) -> None:
    """Print the present step to standard error; it is not part of the results."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
