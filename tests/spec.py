"""Which test shows which statement of the contract: `python -m tests.spec` writes docs/spec-coverage.md.

The statements are in spec.toml; a test names those that it shows by `@pytest.mark.spec("…")`.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tomllib
from collections import defaultdict
from collections.abc import Mapping

import pytest

from tests.markdown import ROOT

PAGE = ROOT / "docs" / "spec-coverage.md"

SECTIONS: Mapping[str, Mapping[str, str]] = tomllib.loads((ROOT / "tests" / "spec.toml").read_text("utf-8"))
STATEMENTS = {name: text for section in SECTIONS.values() for name, text in section.items()}
assert len(STATEMENTS) == sum(map(len, SECTIONS.values())), "two statements have the same id"

_HEAD = """\
# The contract, and the tests that show it

Made by `python -m tests.spec` from `tests/spec.toml` and the tests' own marks; a test compares. Every statement has at
least one test against a real server, or, where it is arithmetic, a unit test.
"""


class Marks:
    """Collects who names which statement."""

    def __init__(self) -> None:
        self.tests: defaultdict[str, set[str]] = defaultdict(set)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            for mark in item.iter_markers("spec"):
                path = item.path.relative_to(ROOT).as_posix()
                for name in mark.args:
                    self.tests[name].add(
                        f"{path}::{item.originalname if isinstance(item, pytest.Function) else item.name}"
                    )


def collected() -> Mapping[str, set[str]]:
    """By statement, the tests that name it."""
    marks = Marks()
    words = [
        "--collect-only",
        "-q",
        "-p",
        "no:randomly",
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
        str(ROOT / "tests"),
    ]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = pytest.main(words, plugins=[marks])
    if code:
        raise RuntimeError(said.getvalue())
    return marks.tests


def page(tests: Mapping[str, set[str]]) -> str:
    """The page as it must be."""
    lines = [_HEAD]
    for title, statements in SECTIONS.items():
        lines += [f"## {title}\n", "| statement | tests |", "|---|---|"]
        for name, text in statements.items():
            links = ", ".join(_link(each) for each in sorted(tests.get(name, ())))
            lines.append(f'| <a id="{name}"></a>{text} | {links or "**none**"} |')
        lines.append("")
    return "\n".join(lines)


def _link(test: str) -> str:
    path, _, function = test.partition("::")
    return f"[{function.removeprefix('test_').replace('_', ' ')}](../{path})"


if __name__ == "__main__":
    if sys.argv[1:] == ["--json"]:
        sys.stdout.write(json.dumps({name: sorted(tests) for name, tests in collected().items()}))
    else:
        PAGE.write_text(page(collected()), "utf-8")
