"""The CPU of a message with resumption off, and granted but unused, beside that of another version of the router.

    python -m benchmarks.beside PATH [--rounds 7] [--count 100000]

PATH is a checkout with its own environment, `PATH/.venv`, and a compiled kernel. The version before resumption came in
is 23c8083c, the parent of the first commit with the room `router/resumption`. Each round starts all routers anew, since
two processes of one version differ as well, and measures them in turns; every second round the other way round. The
ratios are medians of those of the rounds.
"""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks.bench import progress
from benchmarks.resumption import LASTING
from benchmarks.tables import table
from benchmarks.targets import MODES, Target, Traffic, router, run, under

OFF = "[resumption]\ntimeout = 0\n"


def measure(path: Path, rounds: int, count: int) -> dict[str, dict[str, list[float]]]:
    """Return the CPU of a message in each round, microseconds, by mode and router."""
    found: dict[str, dict[str, list[float]]] = {mode: {} for mode in MODES}
    for number in range(rounds):
        with ExitStack() as stack:
            before = under(stack.enter_context(router(tree=path)), "before")
            off = under(stack.enter_context(router(settings=OFF)), "off")
            granted = under(stack.enter_context(router()), "granted")
            targets: list[Target] = [before, off, replace(granted, lasting=(*LASTING, "--whole"))]
            for target in targets:  # nothing is warm before
                run(target, Traffic(), count // 10)
            for mode in MODES:
                for target in targets[:: -1 if number % 2 else 1]:
                    cpu = run(target, Traffic(mode=mode), count)["cpu_us"]
                    found[mode].setdefault(target.name, []).append(cpu)
        progress(f"round {number + 1}: {json.dumps({mode: _ratios(each, -1) for mode, each in found.items()})}")
    return found


def _ratios(found: dict[str, list[float]], of: int) -> dict[str, float]:
    """Return the change of each router's CPU from the version before, in one round."""
    return {name: round(each[of] / found["before"][of] - 1, 4) for name, each in found.items() if name != "before"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="a checkout of the other version")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=100_000, help="messages of a run")
    options = parser.parse_args()
    found = measure(options.path.resolve(), options.rounds, options.count)
    rows = []
    for mode, each in found.items():
        row = [f"{median(each['before']):.3f} us"]
        for name in ("off", "granted"):
            change = median(_ratios(each, of)[name] for of in range(options.rounds))
            row += [f"{median(each[name]):.3f} us", f"{change:+.1%}"]
        rows.append((f"100 B {mode}", row))
    table("CPU of a message", ["before", "off", "", "granted, unused", ""], rows)


if __name__ == "__main__":
    main()
