"""Counts of a client's work: outcomes, rate and latency."""

import json
import math
import time
from collections import Counter
from typing import Final

FINENESS: Final = 1.01
"""Latencies are told to one percent: so a few hundred counters hold any number of them."""

OUTCOMES: Final = ("accepted", "rejected", "released", "modified", "settled", "in doubt")
"""Ends of a delivery. Settled: sent so, without an outcome. In doubt: the link ended before the outcome came."""


class Latencies:
    """A histogram of latencies."""

    def __init__(self) -> None:
        self._steps: Counter[int] = Counter()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, seconds: float) -> None:
        """One more."""
        # Nothing is faster than a nanosecond; a clock of another machine may say so.
        self._steps[math.floor(math.log(max(seconds, 1e-9), FINENESS))] += 1
        self._size += 1

    def percentile(self, percent: float) -> float:
        """Seconds within which so many percent were done. Raises: ValueError: nothing was added."""
        rank = max(1, math.ceil(self._size * percent / 100))
        for step, size in sorted(self._steps.items()):
            rank -= size
            if rank <= 0:
                return float(FINENESS ** (step + 0.5))
        raise ValueError("nothing was added")


class Summary:
    """Of messages that were sent, or received."""

    def __init__(self, verb: str) -> None:
        """Args: verb: what was done with them: `sent`, `received`."""
        self.verb = verb
        self.count = 0
        self.outcomes: Counter[str] = Counter()
        self.latencies = Latencies()
        #: Said of the first that was not accepted.
        self.first_failure: str | None = None
        self._began: float | None = None
        self._ended = 0.0

    def begin(self) -> float:
        """Another has begun; `count` is for the caller to raise. Returns: now, in seconds, to tell how long it took."""
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
        """Those that have no outcome yet."""
        return self.count - self.outcomes.total()

    @property
    def all_accepted(self) -> bool:
        """True if no message had another outcome; messages that were sent settled have none."""
        return self.outcomes["accepted"] + self.outcomes["settled"] == self.count

    @property
    def seconds(self) -> float:
        """From the first to the last."""
        return 0.0 if self._began is None else self._ended - self._began

    @property
    def rate(self) -> float | None:
        """Messages in a second; None: there were too few to tell."""
        return (self.count - 1) / self.seconds if self.count > 1 and self.seconds else None

    def text(self) -> str:
        """One line for people."""
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
    """Return a time as text, in a unit that suits it."""
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
