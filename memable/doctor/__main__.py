"""Writes what the checks say of themselves into a page: `python -m memable.doctor docs/doctor.md`."""

from __future__ import annotations

import sys
from pathlib import Path

from memable.doctor.registry import CHECKS

BEGIN = "<!-- made by `python -m memable.doctor docs/doctor.md` from the checks' docstrings; a test compares -->\n"
END = "<!-- end -->\n"


def table() -> str:
    """All checks, in their order."""
    rows = "".join(f"| `{each.name}` | {each.question} | {each.meaning} |\n" for each in CHECKS)
    return f"{BEGIN}\n| check | asks | why, and what to do |\n|---|---|---|\n{rows}\n{END}"


def rewritten(page: str) -> str:
    """The page with this table in it."""
    head, _, rest = page.partition(BEGIN)
    return head + table() + rest.partition(END)[2]


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(rewritten(path.read_text("utf-8")), "utf-8")
