"""`memable list` and `show`: what there is, and how far it has come."""

from __future__ import annotations

import click

from memable.cli.completion import complete_workflow
from memable.cli.naming import InstanceCommand, names_instance
from memable.cli.options import LIMIT_OPTION, Target, label_values, takes_target
from memable.cli.printing import (
    add_row,
    coloured,
    console,
    instance_document,
    local,
    print_json,
    print_rendered,
    table,
)
from memable.cli.root import FINE
from memable.cli.timeline import drawn, look
from memable.client import Client
from memable.labels import lines_of
from memable.state import Status


@click.command(name="list", short_help="List instances, the newest first.")
@click.argument("workflow", required=False, shell_complete=complete_workflow)
@click.option("--status", type=click.Choice([each.value for each in Status]), help="Only those in this status.")
@click.option(
    "--label",
    "labels",
    metavar="NAME=VALUE",
    multiple=True,
    callback=label_values,
    help="Only those with this label; repeatable.",
)
@click.option(
    "--children/--no-children", default=True, help="With those that other instances have started, or without."
)
@LIMIT_OPTION
@click.option("--cursor", metavar="CURSOR", help="Go on where the page before ended, as it said.")
@takes_target
def list_(
    target: Target,
    *,
    workflow: str | None,
    status: str | None,
    labels: dict[str, str],
    children: bool,
    limit: int,
    cursor: str | None,
) -> int:
    """List instances, the newest first: of WORKFLOW or of all."""

    async def act(client: Client) -> int:
        page = await client.list_instances(
            workflow, status=status, labels=labels, children=children, limit=limit, cursor=cursor
        )
        if target.as_json:
            print_json({"items": [instance_document(each) for each in page.items], "cursor": page.cursor})
            return FINE
        out, has_labels = console(), any(each.labels for each in page.items)
        shown = table("INSTANCE", "CREATED", "RUNS", *(["LABELS"] if has_labels else []), "STATE")
        for each in page.items:
            called = [", ".join(lines_of(each.labels))] if has_labels else []
            name = f"{each.workflow}/{each.instance_id}"
            add_row(shown, (name, local(each.created_at), each.attempt, *called, coloured(each.state)))
        if page.items:
            print_rendered(out, shown)
        else:
            others = "" if workflow else " of a workflow that a worker has announced; of another: memable list WORKFLOW"
            out.print(f"no instances{others}", soft_wrap=True)
        if page.cursor is not None:
            out.print(f"more: --cursor {page.cursor}", soft_wrap=True)
        return FINE

    return target.run(act)


@click.command(cls=InstanceCommand, short_help="Show an instance, and a timeline of its steps.")
@names_instance
@takes_target
def show(target: Target, *, workflow: str, id: str) -> int:
    """Show one instance, and its steps in the order in which they began, with attempts, durations, waits and errors.

    A bar shows where in the life of the instance a step or a wait lay. Of a call or fan_out it says how many children
    have ended, and how many of them failed.
    """

    async def act(client: Client) -> int:
        known = await look(client, workflow, id)
        if target.as_json:
            print_json(known.document())
        else:
            out = console()
            print_rendered(out, drawn(known, out))
        return FINE

    return target.run(act)
