"""`memable list` and `show`: what there is, and how far it has come."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import click
from rich.console import Console

from memable.cli.options import Target, label_values, takes_target
from memable.cli.printing import (
    add_row,
    coloured,
    compact,
    console,
    duration,
    instance_document,
    local,
    now,
    one_line,
    print_json,
    print_table,
    step_document,
    table,
    taken_s,
)
from memable.cli.root import FINE
from memable.client import Client
from memable.errors import InstanceNotFound, MemableError
from memable.labels import lines_of
from memable.state import Status, StepKind, StepRecord, StepState, WorkflowMetadata


@click.command(name="list", short_help="List instances, the newest first.")
@click.argument("workflow", required=False)
@click.option("--status", type=click.Choice([each.value for each in Status]), help="Only those in this status.")
@click.option(
    "--label",
    "labels",
    metavar="NAME=VALUE",
    multiple=True,
    callback=label_values,
    help="Only those with this label; repeatable.",
)
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="How many at most.")
@click.option("--cursor", metavar="CURSOR", help="Go on where the page before ended, as it said.")
@takes_target
def list_(
    target: Target,
    *,
    workflow: str | None,
    status: str | None,
    labels: dict[str, str],
    limit: int,
    cursor: str | None,
) -> int:
    """List instances, the newest first: of WORKFLOW or of all."""

    async def act(client: Client) -> int:
        page = await client.list_instances(workflow, status=status, labels=labels, limit=limit, cursor=cursor)
        if target.as_json:
            print_json({"items": [instance_document(each) for each in page.items], "cursor": page.cursor})
            return FINE
        shown = table("INSTANCE", "CREATED", "RUNS", "STATE")
        for each in page.items:
            name = f"{each.workflow}/{each.instance_id}"
            add_row(shown, (name, local(each.created_at), each.attempt, coloured(each.state)))
        out = console()
        if page.items:
            print_table(out, shown)
        else:
            out.print("no instances")
        if page.cursor is not None:
            out.print(f"more: --cursor {page.cursor}", soft_wrap=True)
        return FINE

    return target.run(act)


@click.command(short_help="Show an instance and its steps.")
@click.argument("workflow")
@click.argument("id")
@takes_target
def show(target: Target, *, workflow: str, id: str) -> int:
    """Show one instance, and its steps in the order in which they began."""

    async def act(client: Client) -> int:
        known = await client.get_metadata(workflow, id)
        if known is None:
            raise InstanceNotFound(workflow, id)
        steps = await client.steps(workflow, id)
        output = await _output(client, known)
        if target.as_json:
            print_json({**instance_document(known), "output": output, "steps": [step_document(each) for each in steps]})
        else:
            _print_instance(console(), known, output, steps)
        return FINE

    return target.run(act)


async def _output(client: Client, known: WorkflowMetadata) -> Any:
    if known.status is Status.COMPLETED:
        # resumed or gone since: then there is no output to show
        with suppress(TimeoutError, MemableError):
            return await client.get(known.workflow, known.instance_id).result(timeout=0)
    return None


def _print_instance(out: Console, known: WorkflowMetadata, output: Any, steps: list[StepRecord]) -> None:
    facts = table("", "")
    facts.show_header = False
    rows: list[tuple[str, object]] = [
        ("instance", f"{known.workflow}/{known.instance_id}"),
        ("state", coloured(known.state)),
        ("waits for", ", ".join(known.waiting_on)),
        ("labels", ", ".join(lines_of(known.labels))),
        ("created", local(known.created_at)),
        ("started", local(known.started_at)),
        ("ended", local(known.completed_at)),
        ("runs", known.attempt),
        ("worker", known.worker),
        ("output", compact(output, 400) if known.status is Status.COMPLETED else None),
    ]
    for name, value in rows:
        if value not in (None, ""):
            add_row(facts, (name, value))
    print_table(out, facts)
    out.print()
    if not steps:
        out.print("no steps yet")
        return
    timeline = table("AFTER", "KEY", "KIND", "STATE", "ATTEMPTS", "DURATION", "WAIT", "RESULT")
    at_the_moment = now()
    for step in steps:
        is_step = step.kind is StepKind.STEP
        is_over = step.state in (StepState.COMPLETED, StepState.FAILED)
        took = duration(taken_s(step, at_the_moment)) + ("" if is_over else " …")
        after = None if step.started_at is None else (step.started_at - known.created_at).total_seconds()
        shown = one_line(step.error) if step.error else compact(step.result) if is_over else ""
        add_row(
            timeline,
            (
                "" if after is None else f"+{duration(max(0.0, after))}",
                step.key,
                step.kind,
                coloured(step.state),
                step.attempts if is_step else "",
                took if is_step else "",
                "" if is_step else took,
                shown,
            ),
        )
    print_table(out, timeline)
