"""What workers wrote into their logs, and what of it is no fault.

A line at level ERROR, one with a traceback, and one that did not come from the log at all are complaints, unless they
are listed here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from textwrap import shorten
from typing import Any, Final

from chaos.evidence import Evidence, Said

_HARMLESS: Final = frozenset({"debug", "info"})
_ERRORS: Final = frozenset({"error", "critical"})
_SHOWN_CHARACTERS: Final = 200


@dataclass(frozen=True, slots=True)
class _Allowed:
    level: str
    message: re.Pattern[str]
    reason: str


_ALLOWED: Final = [
    _Allowed("warning", re.compile(r"(mend|repair)/\S+ failed"), "it has a step that fails until it is mended"),
    _Allowed("warning", re.compile(r"(DeadlineExceeded: )?doomed/"), "its deadline ends it"),
    _Allowed("warning", re.compile(r"part/\S+ failed"), "some are to fail"),
    _Allowed(
        "error", re.compile(r"WorkerLost: poison/\S+ has lost its worker \d+ times in a row"), "it kills its workers"
    ),
]


def judge_logs(seen: Evidence) -> Iterator[str]:
    """What should not have been said."""
    for said in seen.said:
        if said.at_s is None:
            yield f"worker {said.pid} wrote past its log: {said.message}"
        elif (said.level in _ERRORS or said.traceback) and not any(
            said.level == each.level and each.message.match(said.message) for each in _ALLOWED
        ):
            text = shorten(f"{said.message} {said.traceback[-_SHOWN_CHARACTERS:]}", 2 * _SHOWN_CHARACTERS)
            yield f"worker {said.pid} logged at {said.at_s:.3f}, level {said.level}: {text}"


def read_log(path: Path, pid: int) -> Iterator[Said]:
    """Warnings, errors and whatever is not from the log; MEMABLE_LOG_FORMAT has to be `json`."""
    for line in path.read_text(errors="replace").splitlines():
        try:
            facts: dict[str, Any] = json.loads(line)
            at_s = datetime.fromisoformat(facts["time"]).timestamp()
        except (ValueError, TypeError, KeyError):
            if line.strip():
                yield Said(pid, None, "", "", line)
            continue
        if facts["level"] not in _HARMLESS or "error" in facts:
            yield Said(pid, at_s, facts["level"], facts["logger"], facts["message"], facts.get("error", ""))
