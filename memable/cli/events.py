"""`memable events`: state changes as they happen."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import click

from memable.cli.naming import InstanceCommand, may_name_instance
from memable.cli.options import Target, takes_target
from memable.cli.printing import coloured, console, now, one_line, print_json_line
from memable.cli.root import FINE
from memable.client import Client
from memable.codec import from_json
from memable.listening import Change, listen


@click.command(cls=InstanceCommand, short_help="Print state changes as they happen.")
@may_name_instance
@click.option("--limit", type=click.IntRange(min=1), help="End after so many. [default: go on until Ctrl-C]")
@takes_target(stream=True)
def events(target: Target, *, workflow: str | None, id: str | None, limit: int | None) -> int:
    """Print each state change as it happens: of all instances, of those of WORKFLOW, or of one.

    Each costs Redis one message more to send, and nothing is kept: what happens while the connection is lost is missed,
    and a line on stderr says so. With --json one JSON object a line.
    """

    async def act(client: Client) -> int:
        online, left = client._online(), limit
        out = console()
        is_connected = False
        async with aclosing(listen(online.subscriptions.endpoint, online.store.keys, workflow, id)) as changes:
            async for change in changes:
                if change is None:
                    click.echo(_lost() if is_connected else _listening(online.store.keys.namespace), err=True)
                    is_connected = True
                    continue
                if target.as_json:
                    print_json_line(_document(change))
                else:
                    line = coloured(change.seen.state)
                    name = one_line(f"{change.workflow}/{change.instance_id}")
                    out.print(f"{now().astimezone():%H:%M:%S.%f}"[:-3], name, line, soft_wrap=True)
                left = None if left is None else left - 1
                if left == 0:
                    break
        return FINE

    return target.run(act)


def _listening(namespace: str) -> str:
    return f"memable: listening in namespace {namespace}; Ctrl-C ends it"


def _lost() -> str:
    return "memable: the connection was lost and is back: what happened meanwhile is missed"


def _document(change: Change) -> dict[str, Any]:
    seen = change.seen
    return {
        "at": now().isoformat(),
        "workflow": change.workflow,
        "instance_id": change.instance_id,
        "version": seen.version,
        "status": str(seen.state.status),
        "state": str(seen.state),
        "key": seen.state.key,
        "output": None if seen.output is None else from_json(seen.output),
        "error": None if seen.error is None else from_json(seen.error),
    }
