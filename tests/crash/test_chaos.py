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
        [sys.executable, "-m", "chaos", "--json", "--any-stall", *words],
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
    code, told = perform(tmp_path, "--seconds", "20", "--rate", "10", "--lease", "2", "--settle", "120")
    assert told["violations"] == [], told
    assert code == 0
    assert told["table"]["instances"] == told["table"]["completed"] == 200
    assert told["table"]["faults"] >= 10


@pytest.mark.timeout(240)
def test_workers_without_a_fence_are_caught(tmp_path: Path) -> None:
    words = ("--seconds", "8", "--rate", "10", "--lease", "1", "--settle", "20")
    code, told = perform(tmp_path, *words, "--faults", "stop", "--breakage", "fence")
    assert code == 1
    violations = "\n".join(told["violations"])
    assert "after its record was written" in violations
    assert "had begun" in violations
    assert "and became" in violations
