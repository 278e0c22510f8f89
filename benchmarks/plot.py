"""Draw the results: throughput, latency, steps/s by length, scaling. Runs where matplotlib is, and nothing of memable.

python benchmarks/plot.py build/benchmarks/results.jsonl docs/performance.svg
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt

MEMABLE, FLOOR = "memable", "floor"
COLOURS = {MEMABLE: "#c2410c", FLOOR: "#9ca3af"}
OTHER = "#4b7bb5"
_POINTS = 200

Lines = list[dict[str, Any]]


def medians(lines: Lines, what: str) -> dict[str, float]:
    """By who."""
    values: dict[str, list[float]] = {}
    for line in lines:
        if line["what"] == what:
            values.setdefault(line["who"], []).append(line["value"])
    return {who: median(each) for who, each in values.items()}


def series(lines: Lines, pattern: str, who: str) -> tuple[list[int], list[float]]:
    """Medians by the number that the pattern finds."""
    values: dict[int, list[float]] = {}
    for line in lines:
        if line["who"] == who and (found := re.fullmatch(pattern, line["what"])):
            values.setdefault(int(found[1]), []).append(line["value"])
    numbers = sorted(values)
    return numbers, [median(values[number]) for number in numbers]


def draw_throughput(axes: Any, lines: Lines) -> None:
    rates = sorted(medians(lines, "one-step instances/s").items(), key=lambda each: each[1])
    bars = axes.barh([who for who, _ in rates], [rate for _, rate in rates])
    for bar, (who, _) in zip(bars, rates, strict=True):
        bar.set_color(COLOURS.get(who, OTHER))
    axes.bar_label(bars, fmt="{:,.0f}", padding=3, fontsize=8)
    axes.margins(x=0.15)
    axes.set_title("no-op jobs or one-step instances a second")


def draw_latency(axes: Any, lines: Lines) -> None:
    samples: dict[str, list[float]] = {}
    for line in lines:
        if line["what"] == "invoke to result, ms, p50":
            samples.setdefault(line["who"], []).extend(line["samples"])
    for who, each in samples.items():
        ordered = sorted(each)[:: max(1, len(each) // _POINTS)]
        shares = [(at + 1) / len(ordered) for at in range(len(ordered))]
        axes.step(
            ordered, shares, where="post", label=who, color=COLOURS.get(who), linewidth=2 if who == MEMABLE else 1
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("ms")
    axes.set_ylabel("share that is faster")
    axes.legend(fontsize=8)
    axes.set_title("from invoke to result, idle worker")


def draw_lengths(axes: Any, lines: Lines) -> None:
    for who in (FLOOR, MEMABLE):
        lengths, rates = series(lines, r"steps/s, instances of (\d+) steps", who)
        first = medians(lines, "one-step instances/s").get(who)
        if first is not None:
            lengths, rates = [1, *lengths], [first, *rates]
        axes.plot(lengths, rates, marker="o", label=who, color=COLOURS[who])
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("steps of an instance")
    axes.legend(fontsize=8)
    axes.set_title("steps a second, one worker process")


def draw_scaling(axes: Any, lines: Lines) -> None:
    for kind, colour in (("steps of 2 ms I/O", COLOURS[MEMABLE]), ("steps of 2 ms CPU", OTHER)):
        workers, rates = series(lines, rf"{kind}/s, (\d+) workers?", MEMABLE)
        if rates:
            axes.plot(workers, [rate / rates[0] for rate in rates], marker="o", label=kind, color=colour)
    axes.plot([1, 4], [1, 4], linestyle=":", color=COLOURS[FLOOR], label="linear")
    axes.set_xticks([1, 2, 4])
    axes.set_xlabel("worker processes")
    axes.legend(fontsize=8)
    axes.set_title("steps a second, by worker processes (one: 1)")


def main() -> None:
    source, target = map(Path, sys.argv[1:])
    _, *lines = map(json.loads, source.read_text("utf-8").splitlines())
    # the same picture from the same lines
    mpl.rcParams.update({"svg.hashsalt": "memable", "svg.fonttype": "none", "font.size": 9})
    mpl.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(2, 2, figsize=(11, 7), layout="constrained")
    for draw, each in zip((draw_throughput, draw_latency, draw_lengths, draw_scaling), axes.flat, strict=True):
        draw(each, lines)
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    main()
