"""How instances and steps are shown: tables for people, JSON with stable names for programs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from memable.family import ChildrenSeen
from memable.state import Status, StepRecord, StepState, WorkflowMetadata, WorkflowState

_WIDE: Final = 1000
"""Columns of an output that is no terminal: nothing is folded or cut there."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]+")
"""Also what turns the direction of a line, so that it reads as another."""

COLOURS: Final[Mapping[str, str]] = {
    Status.COMPLETED: "green",
    Status.RUNNING: "cyan",
    Status.SUSPENDED: "yellow",
    Status.FAILED: "red",
    Status.CANCELLED: "red",
    StepState.RETRYING: "magenta",
}


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Not rich's own way, which is to end the process as one that has failed: see root.py."""
        raise BrokenPipeError


def console() -> Console:
    """Where people look: markup off, since what is shown comes from authors' values."""
    is_terminal = sys.stdout.isatty()
    return _Console(markup=False, emoji=False, highlight=False, width=None if is_terminal else _WIDE)


def table(*columns: str) -> Table:
    """An empty table, a line each row; in a narrow terminal the widest columns give way, so that none is lost."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        # rich takes only from columns that may wrap; what stands in them does not
        made.add_column(_in_a_line(Text(column)))
    return made


def _in_a_line(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def print_rendered(out: Console, made: RenderableType) -> None:
    """Without the blanks at the ends of lines that a table has, where they would be in the way."""
    if out.is_terminal:
        out.print(made)
        return
    with out.capture() as captured:
        out.print(made)
    out.out("\n".join(line.rstrip() for line in captured.get().splitlines()), highlight=False)


def add_row(made: Table, cells: Iterable[object]) -> None:
    """One line, whatever the cells hold."""
    made.add_row(*(_in_a_line(cell if isinstance(cell, Text) else Text(one_line(cell))) for cell in cells))


def coloured(state: Status | StepState | WorkflowState) -> Text:
    """A state in its colour."""
    status = state.status if isinstance(state, WorkflowState) else state
    return Text(one_line(state), style=COLOURS.get(status, ""))


def one_line(value: object) -> str:
    """Without control characters, which a value could steer the reader's terminal with."""
    return "" if value is None else _CONTROL.sub(" ", str(value))


def compact(value: Any, longest: int = 60) -> str:
    """A result as short JSON."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def local(moment: datetime | None) -> str:
    """A time as people of this place write it."""
    return "" if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def duration(seconds: float | None) -> str:
    """A span of time in the unit that suits it.

    >>> duration(0.0042), duration(4.2), duration(4200)
    ('4 ms', '4.20 s', '1:10:00')
    """
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.2f} s"
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


def taken_s(step: StepRecord, until: datetime | None = None) -> float | None:
    """How long a step took or a wait lasted; one that lasts still, until `until`."""
    end = step.completed_at or until
    return None if step.started_at is None or end is None else max(0.0, (end - step.started_at).total_seconds())


def now() -> datetime:
    """The reader's clock; it decides nothing."""
    return datetime.now(UTC)


# ── for programs ─────────────────────────────────────────────────────────────────────────────────────────────────


def print_json(document: Any) -> None:
    """One JSON document, in one line unless a person looks."""
    print(json.dumps(document, indent=2 if sys.stdout.isatty() else None))


def print_json_line(document: Any) -> None:
    """One JSON document in one line, at once: whoever reads a stream waits for it."""
    print(json.dumps(document), flush=True)


def instance_document(known: WorkflowMetadata) -> dict[str, Any]:
    """An instance with stable names; times are ISO 8601, in UTC."""
    document = {name: _plain(value) for name, value in asdict(known).items() if name != "state"}
    return {**document, "state": str(known.state)}


def step_document(step: StepRecord) -> dict[str, Any]:
    """A step with stable names."""
    return {name: _plain(value) for name, value in asdict(step).items()} | {"duration_s": taken_s(step)}


def children_document(children: ChildrenSeen | None) -> dict[str, Any] | None:
    """The children of a call, with stable names."""
    return None if children is None else children._asdict()


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
