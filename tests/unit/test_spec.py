"""The contract is covered: every statement of sections 2 and 3 has a test, and the page that says so is up to date."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.markdown import ROOT
from tests.spec import PAGE, STATEMENTS, page


def test_every_statement_is_shown_by_a_test_and_the_page_says_by_which() -> None:
    # in a process of its own: pytest cannot collect inside pytest
    words = [sys.executable, "-m", "tests.spec", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    tests = {name: set(each) for name, each in json.loads(done.stdout).items()}
    assert not tests.keys() - STATEMENTS.keys(), "a test names a statement that tests/spec.toml has not"
    assert STATEMENTS.keys() == tests.keys(), f"no test is marked with {STATEMENTS.keys() - tests.keys()}"
    assert PAGE.read_text("utf-8") == page(tests), "docs/spec-coverage.md is out of date: run `python -m tests.spec`"
