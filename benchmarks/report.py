"""The table of all measures, which goals are met, and docs/performance.md: from the lines in build/benchmarks."""

from __future__ import annotations

import json
import os
import platform
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.bench import FLOOR, MEMABLE, ROOT, Goal, Line
from memable.embedded import find_server

RESULTS = ROOT / "build" / "benchmarks" / "results.jsonl"
PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- results of make bench -->", "<!-- end of the results -->"


@dataclass
class Results:
    """What was measured, where and when."""

    facts: dict[str, Any]
    lines: list[Line] = field(default_factory=list)

    @classmethod
    def here_and_now(cls) -> Results:
        binary = find_server()
        packages = ("arq", "redis", "hiredis", "orjson", "pydantic", "uvloop")
        return cls(
            {
                "date": time.strftime("%F"),
                "machine": f"{os.cpu_count()} cores ({_processor()}), {platform.system()} {platform.machine()}",
                "load": round(os.getloadavg()[0], 1),
                "server": f"{binary.kind} {'.'.join(map(str, binary.version))}",
                "python": platform.python_version(),
                "packages": ", ".join(f"{each} {version(each)}" for each in packages),
                "queues": {},
            }
        )

    def save(self) -> None:
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        lines = [self.facts, *map(asdict, self.lines)]
        RESULTS.write_text("".join(json.dumps(each, ensure_ascii=False) + "\n" for each in lines), "utf-8")

    @classmethod
    def load(cls) -> Results:
        facts, *lines = map(json.loads, RESULTS.read_text("utf-8").splitlines())
        return cls(facts, [Line(**{**line, "samples": tuple(line["samples"])}) for line in lines])

    # ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────

    def whats(self) -> list[str]:
        return list(dict.fromkeys(line.what for line in self.lines))

    def whos(self) -> list[str]:
        """memable, floor, and then the queues."""
        return sorted(dict.fromkeys(line.who for line in self.lines), key=lambda who: (who != MEMABLE, who != FLOOR))

    def median(self, what: str, who: str) -> float | None:
        values = [line.value for line in self.lines if (line.what, line.who) == (what, who)]
        return median(values) if values else None

    def samples(self, what: str, who: str) -> list[float]:
        return [each for line in self.lines if (line.what, line.who) == (what, who) for each in line.samples]

    def reached(self, goal: Goal) -> float | None:
        """The value that the goal speaks of; nothing if it was not measured."""
        ours = self.median(goal.what, MEMABLE)
        if ours is None or goal.of is None:
            return ours
        if goal.of == FLOOR:
            by_run = {(line.who, line.run): line.value for line in self.lines if line.what == goal.what}
            ratios = [
                value / by_run[FLOOR, run]
                for (who, run), value in by_run.items()
                if who == MEMABLE and (FLOOR, run) in by_run
            ]
            return median(ratios) if ratios else None
        queues = [self.median(goal.what, who) for who in self.whos() if who not in (MEMABLE, FLOOR)]
        best = max((each for each in queues if each is not None), default=None)
        return None if best is None else ours / best


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", cpuinfo.read_text("utf-8")) if cpuinfo.exists() else None
    return found[1] if found else platform.processor()


# ── the table ────────────────────────────────────────────────────────────────────────────────────────────────────────


def verdict(results: Results, goal: Goal) -> str:
    reached = results.reached(goal)
    sign, limit = ("≥", goal.at_least) if goal.at_least is not None else ("≤", goal.at_most)
    assert limit is not None
    of = {None: "", FLOOR: " × floor", "queues": " × best queue"}[goal.of]
    if reached is None:
        return f"{sign} {limit:,g}{of}: not measured"
    is_met = reached >= limit if sign == "≥" else reached <= limit
    said = f": {reached:.2f}" if goal.of else ""
    if goal.of == FLOOR:
        said += " in the median run"  # which is not the ratio of the medians beside it
    return f"{sign} {limit:,g}{of}{said}, {'met' if is_met else 'NOT MET'}"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def rows(results: Results, goals: Iterable[Goal]) -> list[list[str]]:
    """The heading, and a row for each thing measured; what it consists of is told by `details`."""
    whos = results.whos()
    goals = list(goals)
    table = [["", *whos, "goal"]]
    for what in results.whats():
        if ": " not in what:
            said = "; ".join(verdict(results, goal) for goal in goals if goal.what == what)
            table.append([what, *(_number(results.median(what, who)) for who in whos), said])
    return table


def details(results: Results) -> list[str]:
    """What a measured thing consists of, in a line."""
    parts: dict[str, list[str]] = {}
    for what in results.whats():
        whole, _, part = what.partition(": ")
        if part:
            parts.setdefault(whole, []).append(f"{part} {_number(results.median(what, MEMABLE))}")
    return [f"{whole}: {', '.join(each)}" for whole, each in parts.items()]


def heading(results: Results) -> list[str]:
    facts = results.facts
    runs = max((line.run for line in results.lines), default=0) + 1
    queues = [f"{name}: {said}" for name, said in facts["queues"].items()]
    where = f"{facts['date']}, {facts['machine']}, load {facts['load']} at the start"
    software = f"{facts['server']} with AOF everysec; Python {facts['python']}, {facts['packages']}"
    return [f"{where}; {software}. Medians of up to {runs} runs, the queues once.", *queues]


def text(results: Results, goals: Iterable[Goal]) -> str:
    table = rows(results, goals)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [_aligned(row, widths) for row in table]
    return "\n".join([*heading(results), "", *lines, "", *details(results)])


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    what, *numbers, goal = row
    cells = [number.rjust(width) for number, width in zip(numbers, widths[1:-1], strict=True)]
    return "  ".join([what.ljust(widths[0]), *cells, goal]).rstrip()


# ── the page ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def write_page(results: Results, goals: Iterable[Goal]) -> None:
    """Put the results between the marks of docs/performance.md."""
    first, *rest = rows(results, goals)
    columns = [":--", *("--:" for _ in results.whos()), ":--"]
    table = [f"| {' | '.join(row)} |" for row in (first, columns, *rest)]
    lines = [*heading(results)[:1], "", *table, "", *(f"- {each}" for each in details(results))]
    lines += ["", *(f"- {each}" for each in heading(results)[1:])]
    page = PAGE.read_text("utf-8")
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n" + "\n".join(lines).strip() + f"\n{END}{after}", "utf-8")
