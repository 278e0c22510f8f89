"""Run the measures, print one table, keep the lines: `make bench`."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import traceback
from importlib import import_module
from typing import Any

from benchmarks import environments, report
from benchmarks.bench import ROOT, Goal, Line, print_line, run_once

MEASURES = (
    "throughput",
    "sequential",
    "interpreter",
    "latency",
    "invoking",
    "commands",
    "scripts",
    "timers",
    "resuming",
    "memory",
    "idling",
    "scaling",
    "fan_out",
    "client_cpu",
    "awaiting",
    "queues",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("measures", nargs="*", help=f"of {', '.join(MEASURES)} (default: all)")
    parser.add_argument("--without-queues", action="store_true", help="leave the other job queues out")
    parser.add_argument("--runs", type=int, help="in how many runs (default: what each measure needs)")
    parser.add_argument("--scale", type=float, default=1.0, help="how much of everything (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="JSON lines, no table")
    parser.add_argument(
        "--page", action="store_true", help="write docs/performance.md with its plot, if all was measured"
    )
    given = parser.parse_args()
    if unknown := set(given.measures) - set(MEASURES):
        parser.error(f"there is no measure {', '.join(sorted(unknown))}: choose from {', '.join(MEASURES)}")
    names = [
        each
        for each in MEASURES
        if each in (given.measures or MEASURES) and not (given.without_queues and each == "queues")
    ]
    measures = [import_module(f"benchmarks.{each}") for each in names]
    goals: list[Goal] = [goal for each in measures for goal in each.GOALS]
    results = report.Results.here_and_now()
    if "queues" in names:
        results.facts["queues"] = _queues()

    def tell(line: Line) -> None:
        results.lines.append(line)
        if given.json:
            print_line(line)

    begin_s = time.monotonic()
    failed = _run(measures, given.runs, given.scale, tell)
    results.save()
    if not given.json:
        print(report.text(results, goals))
        print(f"\nmeasured in {time.monotonic() - begin_s:.0f} s")
    if given.page:
        if names != list(MEASURES) or given.scale < 1 or failed:
            sys.stderr.write("docs/performance.md is left as it is: not all was measured\n")
        else:
            report.write_page(results, goals)
            _plot()
    if failed:
        raise SystemExit(f"failed, see above: {', '.join(failed)}")


def _run(measures: list[Any], runs: int | None, scale: float, tell: Any) -> list[str]:
    """In turns: what else the machine does for a minute falls on one run of each, not on all runs of one.

    A measure that fails keeps nothing from the others; which did.
    """
    failed: list[str] = []
    wanted = {each.__name__: each.WHOLE_RUNS if runs is None else min(runs, each.WHOLE_RUNS) for each in measures}
    for run in range(max(wanted.values())):
        for each in measures:
            if run < wanted[each.__name__]:
                name, begin_s = each.__name__.rpartition(".")[2], time.monotonic()
                try:
                    run_once(each, run, scale, tell)
                except Exception:
                    traceback.print_exc()
                    failed.append(f"{name} in run {run + 1}")
                sys.stderr.write(f"run {run + 1}, {name}: {time.monotonic() - begin_s:.1f} s\n")
    return failed


def _queues() -> dict[str, str]:
    from benchmarks.queues import PROGRAMS

    found: dict[str, str] = {}
    for name in PROGRAMS:
        try:
            found[name] = environments.versions(name)
        except environments.NotInstalled as error:
            found[name] = f"left out, it cannot be installed here ({error})"
    return found


def _plot() -> None:
    try:
        python = environments.program("plot")
    except environments.NotInstalled as error:
        sys.stderr.write(f"no plot: {error}\n")
        return
    plot = report.PAGE.with_suffix(".svg")
    subprocess.run([python, "benchmarks/plot.py", report.RESULTS, plot], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
