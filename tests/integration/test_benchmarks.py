"""The benchmarks run, and tell what they promise; how fast anything is, is no matter of a test."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

_THROUGHPUT = Path(__file__).parents[2] / "benchmarks" / "throughput.py"


@pytest.mark.timeout(400)  # seven processes, one after another
def test_each_measure_of_memable_stands_beside_that_of_the_floor() -> None:
    words = [sys.executable, str(_THROUGHPUT), "--instances", "10", "--runs", "1"]
    said = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout
    told, _, table = said.partition("\n\n")
    measures = Counter(each["what"] for each in map(json.loads, told.splitlines()))
    assert measures == {"invokes": 2, "instances": 2, "steps, 10 an instance": 2, "latency": 1}
    assert all(what in table for what in measures)
