"""One instance as people see it: its facts, and its steps as bars in time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.text import Text

from memable.children_call import COUNT
from memable.cli.printing import (
    COLOURS,
    add_row,
    children_document,
    coloured,
    compact,
    duration,
    instance_document,
    local,
    one_line,
    step_document,
    table,
    taken_s,
)
from memable.client import Client
from memable.errors import InstanceNotFound, MemableError
from memable.family import ChildrenSeen, children_of
from memable.fleet import server_time
from memable.labels import lines_of
from memable.state import Status, StepKind, StepRecord, StepState, WorkflowMetadata

_OF_A_CALL: Final = (StepKind.STEP, StepKind.CHILD)
"""What does something, while the other kinds wait."""

_NARROW: Final = 100
"""Columns of a terminal that has no room for bars."""
_TIGHT: Final = 72
"""Columns of one that has room for what matters most."""
_BAR: Final = 24


@dataclass(frozen=True, slots=True)
class Known:
    """What there is to see of an instance at one moment."""

    at: datetime
    """By Redis's clock, as all its other times."""
    facts: WorkflowMetadata
    steps: Sequence[StepRecord]
    children: Mapping[str, ChildrenSeen]
    """By the key of the call that has made them."""
    output: Any = None

    def document(self) -> dict[str, Any]:
        """All of it, with stable names."""
        steps = [
            {**step_document(each), "children": children_document(self.children.get(each.key))} for each in self.steps
        ]
        return {**instance_document(self.facts), "output": self.output, "steps": steps}


async def look(client: Client, workflow: str, id: str) -> Known:
    """The instance now; `InstanceNotFound`."""
    facts = await client.get_metadata(workflow, id)
    if facts is None:
        raise InstanceNotFound(workflow, id)
    steps = await client.steps(workflow, id)
    store = client._online().store
    calls = [each.key for each in steps if each.kind is StepKind.CHILD]
    children = await children_of(store, store.keys.of(workflow, id), calls)
    return Known(await server_time(store), facts, steps, children, await _output(client, facts))


async def _output(client: Client, facts: WorkflowMetadata) -> Any:
    if facts.status is Status.COMPLETED:
        # resumed or gone since: then there is no output to show
        with suppress(TimeoutError, MemableError):
            return await client.get(facts.workflow, facts.instance_id).result(timeout=0)
    return None


def drawn(known: Known, out: Console, *, most_steps: int | None = None) -> RenderableType:
    """Facts above, steps below; of more than `most_steps` the last."""
    steps = known.steps if most_steps is None else known.steps[-most_steps:]
    parts: list[RenderableType] = [_facts(known), Text()]
    if len(steps) < len(known.steps):
        parts.append(Text(f"… {len(known.steps) - len(steps)} earlier", style="dim"))
    parts.append(_steps(known, steps, out) if steps else Text("no steps yet"))
    return Group(*parts)


def _facts(known: Known) -> RenderableType:
    facts = known.facts
    shown = table("", "")
    shown.show_header = False
    rows: list[tuple[str, object]] = [
        ("instance", f"{facts.workflow}/{facts.instance_id}"),
        ("child of", facts.parent),
        ("state", coloured(facts.state)),
        ("waits for", ", ".join(facts.waiting_on)),
        ("labels", ", ".join(lines_of(facts.labels))),
        ("created", local(facts.created_at)),
        ("started", local(facts.started_at)),
        ("ended", local(facts.completed_at)),
        ("took", duration(_span_s(known)) if facts.completed_at else None),
        ("runs", facts.attempt),
        ("worker", facts.worker),
        ("output", compact(known.output, 400) if facts.status is Status.COMPLETED else None),
    ]
    for name, value in rows:
        if value not in (None, ""):
            add_row(shown, (name, value))
    return shown


def _span_s(known: Known) -> float:
    return max(0.001, ((known.facts.completed_at or known.at) - known.facts.created_at).total_seconds())


def _steps(known: Known, steps: Sequence[StepRecord], out: Console) -> RenderableType:
    if out.is_terminal and out.width < _TIGHT:
        return _few_columns(known, steps)
    has_bars = not out.is_terminal or out.width >= _NARROW
    bar = ("TIME",) if has_bars else ()
    shown = table("AFTER", "KEY", "KIND", "STATE", "ATTEMPTS", "DURATION", "WAIT", *bar, "RESULT")
    cells = max(_BAR, out.width - 120) if out.is_terminal else _BAR
    for step in steps:
        took = duration(taken_s(step, known.at)) + ("" if is_over(step) else " …")
        is_call = step.kind in _OF_A_CALL
        add_row(
            shown,
            (
                f"+{duration(_after_s(known, step))}",
                step.key,
                step.kind,
                coloured(step.state),
                step.attempts if step.kind is StepKind.STEP else "",
                took if is_call else "",
                "" if is_call else took,
                *((_bar(known, step, cells, is_plain=not out.encoding.startswith("utf")),) if has_bars else ()),
                said(step, known.children.get(step.key)),
            ),
        )
    return shown


def _few_columns(known: Known, steps: Sequence[StepRecord]) -> RenderableType:
    shown = table("KEY", "STATE", "TOOK", "RESULT")
    for step in steps:
        took = duration(taken_s(step, known.at)) + ("" if is_over(step) else " …")
        add_row(shown, (step.key, coloured(step.state), took, said(step, known.children.get(step.key))))
    return shown


def is_over(step: StepRecord) -> bool:
    """Whether there is nothing more to come."""
    return step.state in (StepState.COMPLETED, StepState.FAILED)


def said(step: StepRecord, children: ChildrenSeen | None) -> str:
    """What came of it: its error, its result, how far its children are."""
    error = one_line(step.error)
    # a `fan_out` of one, too, but not a `call`, whose record has the result of the child
    if children is not None and (children.total > 1 or step.result == {COUNT: children.total}):
        return _counted(children) + (f": {error}" if error else "")
    if error or step.state is StepState.COMPLETED:
        return error or compact(step.result)
    return "" if children is None else f"a {children.workflow}"


def step_line(known: Known, step: StepRecord) -> Text:
    """A step in one line, for where no table can grow."""
    took = duration(taken_s(step)) if is_over(step) else ""
    attempts = f"attempt {step.attempts}" if step.attempts > 1 else ""
    words = (step.key, step.kind, step.state, took, attempts, said(step, known.children.get(step.key)))
    return Text(" ".join(one_line(word) for word in ("  ", *words) if word), style=COLOURS.get(step.state, ""))


def _counted(children: ChildrenSeen) -> str:
    made = "" if children.created == children.total else f", {children.created} begun"
    failed = f", {children.failed} failed" if children.failed else ""
    return f"{children.ended} of {children.total} {children.workflow} ended{made}{failed}"


def _after_s(known: Known, step: StepRecord) -> float:
    started_at = step.started_at or known.at
    return max(0.0, (started_at - known.facts.created_at).total_seconds())


def _bar(known: Known, step: StepRecord, cells: int, *, is_plain: bool) -> Text:
    """Where in the life of the instance it lay: thick where something was done, dotted where it waited."""
    span_s = _span_s(known)
    begin = min(cells - 1, int(cells * _after_s(known, step) / span_s))
    taken = taken_s(step, known.facts.completed_at or known.at) or 0.0
    length = max(1, min(cells - begin, round(cells * taken / span_s)))
    call, wait = ("=", ".") if is_plain else ("━", "┄")
    mark = call if step.kind in _OF_A_CALL else wait
    return Text(" " * begin + mark * length + " " * (cells - begin - length), style=COLOURS.get(step.state, ""))
