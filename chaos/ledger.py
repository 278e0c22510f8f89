"""What workflows and steps did, in the order in which they did it: a file outside of Redis, a line for each thing.

Every process appends to the same file. A line is one write with O_APPEND, so that no two are mixed and none is half
there, whatever kills the process. Times are of the wall clock, which is also Redis's: all run on one machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class What(StrEnum):
    """What a line says."""

    RUN = "run"
    """A run has entered its workflow's function."""
    REST = "rest"
    """It has left it, by whatever way but the death of its process."""
    BEGIN = "begin"
    """A step is called."""
    END = "end"
    """The call is over, by whatever way but the death of its process."""
    MAY_LEAD = "may lead"
    """A worker competes for the lead of a partition, with the token that stands in `name`."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the ledger."""

    at_s: float
    pid: int
    what: What
    name: str
    """`WF/ID`, but for `MAY_LEAD`."""
    run: int
    """The number of the run, which its claim counted."""
    key: str = ""
    attempt: int = 0


class Ledger:
    """Appends to a ledger that any number of processes share."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, what: What, name: str, run: int, key: str = "", attempt: int = 0) -> None:
        words = (f"{time.time():.6f}", os.getpid(), what, name, run, key, attempt)
        os.write(self._descriptor, ("\t".join(map(str, words)) + "\n").encode())


def read_ledger(path: Path) -> list[Line]:
    """All lines, by their times."""
    return sorted(_parse(path.read_text().splitlines()), key=lambda line: line.at_s)


def _parse(lines: Iterable[str]) -> Iterable[Line]:
    for line in lines:
        at_s, pid, what, name, run, key, attempt = line.split("\t")
        yield Line(float(at_s), int(pid), What(what), name, int(run), key, int(attempt))
