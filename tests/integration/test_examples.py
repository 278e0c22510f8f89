"""Every file of examples/ runs by itself, without a Redis, and prints what the comment at its end says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.markdown import ROOT, assert_printed

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_it_says(example: Path) -> None:
    text = example.read_text("utf-8")
    promised = re.search(r"^# prints:\n((?:#   .*\n)+)\Z", text, re.MULTILINE)
    assert promised, "an example ends with a comment '# prints:' and the lines, each behind '#   '; '…' cuts a line"
    # a server of its own, whatever this environment says
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MEMABLE_REDIS_URL")}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, "-W", "error", example],
        capture_output=True,
        text=True,
        env=environment,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert_printed(done.stdout, [line[4:] for line in promised[1].splitlines()])


def test_there_are_examples() -> None:
    assert EXAMPLES
