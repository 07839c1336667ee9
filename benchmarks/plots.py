"""Pictures of the figures; they need matplotlib: pip install 'amqpmesh[bench]'."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.bench import Results

COLORS = {"router": "#1b6ca8", "forwarder": "#d9903f", "direct": "#9a9a9a"}
PERCENTILES = {"p50_us": "50", "p90_us": "90", "p99_us": "99", "p99.9_us": "99.9"}


def bars(axes: Axes, results: Results, part: str, figure: str, unit: str) -> None:
    """Draw a bar for each case and target, on a logarithmic scale: sizes differ by thousands."""
    cases = results[part]
    names = [name for name in COLORS if any(found.get(name, {}).get(figure) for found in cases.values())]
    height = 0.8 / len(names)
    for turn, name in enumerate(names):
        at = [place + (turn - (len(names) - 1) / 2) * height for place in range(len(cases))]
        values = [found.get(name, {}).get(figure, 0.0) for found in cases.values()]
        drawn = axes.barh(at, values, height, color=COLORS[name], label=name)
        labels = [f"{value:,.0f}" if value >= 100 else f"{value:.2g}" for value in values]
        axes.bar_label(drawn, labels, padding=2, fontsize=7)
    axes.set_yticks(range(len(cases)), list(cases))
    axes.set_xscale("log")
    axes.set_xlabel(unit)
    axes.margins(x=0.15)
    axes.legend(frameon=False, fontsize=8)


def two_sides(results: Results, part: str, file: Path) -> None:
    """Draw messages a second beside CPU seconds."""
    cases = len(results[part])
    picture = Figure(figsize=(12, 1.5 + 0.5 * cases), layout="constrained")
    left, right = picture.subplots(1, 2, sharey=True)
    bars(left, results, part, "messages_per_second", "messages a second")
    left.invert_yaxis()
    bars(right, results, part, "cpu_us", "CPU seconds for a million messages, in the middle")
    picture.suptitle(part)
    picture.savefig(file)


def percentiles(results: Results, file: Path) -> None:
    """Latency at each rate, by percentile."""
    cases = results["latency"]
    picture = Figure(figsize=(4 * len(cases), 3.6), layout="constrained")
    all_axes = picture.subplots(1, len(cases), sharey=True, squeeze=False)[0]
    for axes, (case, found) in zip(all_axes, cases.items(), strict=True):
        for name, figures in found.items():
            values = [figures[key] for key in PERCENTILES]
            axes.plot(list(PERCENTILES.values()), values, marker="o", color=COLORS[name], label=name)
        axes.set_yscale("log")
        axes.set_title(case)
        axes.set_xlabel("percentile")
        axes.grid(axis="y", alpha=0.3)
    all_axes[0].set_ylabel("us from when it was due")
    all_axes[0].legend(frameon=False)
    picture.savefig(file)


def draw(results: Results, folder: Path) -> list[Path]:
    """All that there is to be drawn, as PNG. Returns: the files."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for part in ("throughput", "spread", "tls"):
        if part in results:
            two_sides(results, part, folder / f"{part}.png")
            drawn.append(folder / f"{part}.png")
    if "latency" in results:
        percentiles(results, folder / "latency.png")
        drawn.append(folder / "latency.png")
    return drawn
