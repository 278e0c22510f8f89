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
    assert (table["instances"], table["completed"], table["failed, as they must"]) == (200, 199, 1)
    assert table["killed by an instance"] >= 1  # of five losses some may be others' doing
    assert table["faults injected"] >= 10 + table["killed by an instance"]


@pytest.mark.timeout(240)
def test_workers_without_a_fence_are_caught(tmp_path: Path) -> None:
    words = ("--seconds", "8", "--rate", "10", "--lease", "1", "--settle", "20")
    code, told = perform(tmp_path, *words, "--poison", "0", "--faults", "stop", "--breakage", "fence")
    assert code == 1
    violations = "\n".join(told["violations"])
    assert "after its record was written" in violations
    assert "had begun" in violations
    assert "and became" in violations
