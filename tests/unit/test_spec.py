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
    assert tests.keys() <= STATEMENTS.keys(), "a test names a statement that there is not"
    assert tests.keys() == STATEMENTS.keys(), "no test shows it: " + ", ".join(STATEMENTS.keys() - tests.keys())
    assert PAGE.read_text("utf-8") == page(tests), "run `python -m tests.spec`"
