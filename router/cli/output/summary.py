"""Counts of a client's work: outcomes, rate and latency."""

import json
import math
import time
from collections import Counter
from typing import Final

FINENESS: Final = 1.01
"""Latencies are accurate to one percent: a few hundred counters then cover any range."""

OUTCOMES: Final = ("accepted", "rejected", "released", "modified", "settled", "in doubt")
"""Ends of a delivery. Settled: sent pre-settled, without an outcome. In doubt: the link ended before the outcome
arrived.
"""


class Latencies:
    """A histogram of latencies."""

    def __init__(self) -> None:
        self._steps: Counter[int] = Counter()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, seconds: float) -> None:
        """Count a latency."""
        # At least a nanosecond: with another machine's clock a latency can be negative.
        self._steps[math.floor(math.log(max(seconds, 1e-9), FINENESS))] += 1
        self._size += 1

    def percentile(self, percent: float) -> float:
        """Return the seconds within which so many percent were done. Raises: ValueError: nothing was added."""
        rank = max(1, math.ceil(self._size * percent / 100))
        for step, size in sorted(self._steps.items()):
            rank -= size
            if rank <= 0:
                return float(FINENESS ** (step + 0.5))
        raise ValueError("nothing was added")


class Summary:
    """The summary of messages sent or received."""

    def __init__(self, verb: str) -> None:
        """Args: verb: `sent` or `received`."""
        self.verb = verb
        self.count = 0
        self.outcomes: Counter[str] = Counter()
        self.latencies = Latencies()
        #: The reason of the first message that was not accepted.
        self.first_failure: str | None = None
        self._began: float | None = None
        self._ended = 0.0

    def begin(self) -> float:
        """Note the start of a message; the caller counts it by `count`. Returns: the current time in seconds, to
        measure latency.
        """
        now = time.perf_counter()
        if self._began is None:
            self._began = self._ended = now
        return now

    def end(self, outcome: str, *, latency: float | None = None, failure: str | None = None) -> None:
        """Count an outcome. Args: latency: seconds; failure: the reason of one that is not `accepted`."""
        self._ended = time.perf_counter()
        self.outcomes[outcome] += 1
        if latency is not None:
            self.latencies.add(latency)
        self.first_failure = self.first_failure or failure

    @property
    def undecided(self) -> int:
        """Messages without an outcome so far."""
        return self.count - self.outcomes.total()

    @property
    def all_accepted(self) -> bool:
        """True if no message had another outcome; pre-settled messages have none."""
        return self.outcomes["accepted"] + self.outcomes["settled"] == self.count

    @property
    def seconds(self) -> float:
        """Seconds from the first to the last message."""
        return 0.0 if self._began is None else self._ended - self._began

    @property
    def rate(self) -> float | None:
        """Messages a second; None: too few to tell."""
        return (self.count - 1) / self.seconds if self.count > 1 and self.seconds else None

    def text(self) -> str:
        """Return one line for people."""
        line = f"{self.verb} {self.count:,}"
        if self.count:
            line += f" in {self.seconds:.2f} s"
        if self.rate is not None:
            line += f" ({self.rate:,.0f}/s)"
        if self.count:
            line += ": " + ", ".join(f"{name} {self.outcomes[name]:,}" for name in OUTCOMES if self.outcomes[name])
        if len(self.latencies):
            p50, p99 = (duration(self.latencies.percentile(percent)) for percent in (50, 99))
            line += f"; latency p50 {p50}, p99 {p99}"
        return line

    def json(self) -> str:
        """Return one line of JSON for programs; times are seconds, unknown values null."""
        known = len(self.latencies) > 0
        return json.dumps(
            {
                self.verb: self.count,
                **{name.replace(" ", "_"): self.outcomes[name] for name in OUTCOMES},
                "seconds": round(self.seconds, 6),
                "rate": None if self.rate is None else round(self.rate, 1),
                "latency": {
                    f"p{percent}": round(self.latencies.percentile(percent), 6) if known else None
                    for percent in (50, 99)
                },
                "first_failure": self.first_failure,
            }
        )


def duration(seconds: float) -> str:
    """Return a time as text, in a suitable unit."""
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
