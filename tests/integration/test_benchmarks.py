"""The benchmarks run, and tell what they promise; how fast anything is, is no matter of a test."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import benchmarks
from benchmarks import environments, queues, report
from benchmarks.__main__ import MEASURES
from benchmarks.bench import FLOOR, MEMABLE, Goal, Line, run_once
from benchmarks.report import Results, verdict

_TINY = 0.001


def _measured(measure: Any) -> list[Line]:
    lines: list[Line] = []
    run_once(measure, 0, _TINY, lines.append)
    return lines


@pytest.mark.timeout(400)  # several processes, one after another
@pytest.mark.parametrize("name", [each for each in MEASURES if each != "queues"])
def test_a_measure_tells_what_its_goals_are_about(name: str) -> None:
    measure = import_module(f"benchmarks.{name}")
    told = {(line.what, line.who) for line in _measured(measure)}
    assert told
    for goal in measure.GOALS:
        assert (goal.what, MEMABLE) in told
        assert goal.of != FLOOR or (goal.what, FLOOR) in told


@pytest.mark.timeout(400)
def test_a_queue_is_measured_as_memable_is(monkeypatch: pytest.MonkeyPatch) -> None:
    # arq is here anyway; the others need environments of their own
    monkeypatch.setattr(queues, "PROGRAMS", {"arq": queues.PROGRAMS["arq"]})
    monkeypatch.setattr(environments, "program", lambda _: sys.executable)
    goals = [goal for name in MEASURES for goal in import_module(f"benchmarks.{name}").GOALS]
    told = {line.what for line in _measured(queues) if line.who == "arq"}
    assert {goal.what for goal in goals if goal.of == "queues"} < told
    assert {"invoke to result, ms, p50", "timer late, ms, p99"} < told


def test_a_queue_that_cannot_be_installed_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environments, "DIRECTORY", tmp_path)
    monkeypatch.setattr(environments, "PACKAGES", {"arq": ("./no-such-package.whl",)})
    monkeypatch.setattr(queues, "PROGRAMS", {"arq": queues.PROGRAMS["arq"]})
    assert _measured(queues) == []
    assert capsys.readouterr().err.startswith("arq is left out: ")


def test_the_package_says_where_each_measure_is() -> None:
    shown = re.findall(r"python -m benchmarks\.(\w+)", benchmarks.__doc__ or "")
    assert shown == list(MEASURES)


# ── the report ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _results(*lines: tuple[str, str, int, float]) -> Results:
    return Results({**Results.here_and_now().facts, "queues": {"arq": "arq 0.28.0"}}, [Line(*each) for each in lines])


_RATES: Sequence[tuple[str, str, int, float]] = (
    ("rate", MEMABLE, 0, 500),
    ("rate", FLOOR, 0, 1000),
    # a run in which the machine was slow for both
    ("rate", MEMABLE, 1, 60),
    ("rate", FLOOR, 1, 100),
    ("rate", MEMABLE, 2, 540),
    ("rate", FLOOR, 2, 900),
    ("rate", "arq", 0, 100),
    ("rate", "SAQ", 0, 200),
)


@pytest.mark.parametrize(
    ("goal", "said"),
    [
        (Goal("rate", at_least=0.6, of=FLOOR), "≥ 0.6 × floor: 0.60 in the median run, met"),
        (Goal("rate", at_least=0.7, of=FLOOR), "≥ 0.7 × floor: 0.60 in the median run, NOT MET"),
        (Goal("rate", at_least=3, of="queues"), "≥ 3 × best queue: 2.50, NOT MET"),
        (Goal("rate", at_least=500), "≥ 500, met"),
        (Goal("rate", at_most=499), "≤ 499, NOT MET"),
        (Goal("other", at_most=1), "≤ 1: not measured"),
    ],
)
def test_a_goal_is_judged_by_medians_and_against_the_floor_run_by_run(goal: Goal, said: str) -> None:
    assert verdict(_results(*_RATES), goal) == said


def test_the_page_gets_the_results_between_its_marks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (page := tmp_path / "page.md").write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    monkeypatch.setattr(report, "PAGE", page)
    results = _results(*_RATES, ("rate: of which slow", MEMABLE, 0, 7))
    for _ in range(2):
        report.write_page(results, [Goal("rate", at_least=1)])
    before, *shown, after = page.read_text().splitlines()
    assert (before, shown[0], shown[-1], after) == ("before", report.BEGIN, report.END, "after")
    assert "| rate | 500 | 900 | 100 | 200 | ≥ 1, met |" in shown
    assert "- rate: of which slow 7" in shown
    assert "old" not in shown


def test_results_are_kept_as_they_were(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path / "build" / "results.jsonl")
    results = _results(*_RATES)
    results.lines.append(Line("latency", MEMABLE, 0, 1.5, samples=(1.0, 1.5, 2.0)))
    results.save()
    assert Results.load() == results


def test_the_page_has_its_marks() -> None:
    text = report.PAGE.read_text("utf-8")
    assert text.count(report.BEGIN) == text.count(report.END) == 1
