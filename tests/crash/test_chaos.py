"""`make chaos`, for a short time; and its checker before workers that heed no lease."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def perform(directory: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and what was told in JSON."""
    done = subprocess.run(
        # machines that run tests are busy: here nothing is late that comes at all
        [sys.executable, "-m", "chaos", "--json", "--beyond-lease", "60", *words],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(directory)},  # logs stay if something is wrong
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, told


@pytest.mark.timeout(240)
def test_nothing_is_lost_and_nothing_doubled_whatever_is_killed_stopped_or_cut(tmp_path: Path) -> None:
    words = ("--seconds", "20", "--rate", "10", "--lease", "2", "--settle", "120", "--partitions", "2", "--poison", "1")
    code, told = perform(tmp_path, *words)
    assert told["violations"] == [], told
    assert code == 0
    table = told["table"]
    assert table["instances"] == 200
    assert table["completed"] + table["cancelled by the client"] + table["failed, as they must"] == 200
    assert min(table["cancelled by the client"], table["failed, as they must"], table["children"]) > 1
    assert table["killed by an instance"] >= 1  # of five losses some may be others' doing
    assert table["faults injected"] >= 5 + table["killed by an instance"]


@pytest.mark.timeout(600)
def test_workers_without_a_fence_are_caught(tmp_path: Path) -> None:
    # of two workers one is stopped, and no other with it, while it is in the middle of some ten steps, and for so long
    # that the other has done and recorded them by the time it goes on: no luck is needed, but on a slow machine longer
    words = ["--workers", "2", "--lease", "1", "--settle", "30", "--poison", "0"]
    words += ["--faults", "stop", "--burst", "1", "--breakage", "fence"]
    violations: list[str] = []
    for slower in (1, 3, 6):
        pace = ("--seconds", str(12 * slower), "--rate", str(40 / slower), "--stopped", str(4 * slower))
        code, told = perform(tmp_path, *words, *pace)
        assert code == 1
        # each rule of the checker has tests of its own; this one is what no run with steps in the middle can be spared
        violations = told["violations"]
        if any("and became" in each for each in violations):
            break
    else:
        raise AssertionError(violations)
