"""`memable workers`, `schedules` and `stats`: who is there, what is to come, how much there is."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import click

from memable.cli.completion import complete_workflow
from memable.cli.frames import load_cells, load_document, numbers_table, span, worker_document, workers_table
from memable.cli.options import LIMIT_OPTION, Target, takes_target
from memable.cli.printing import add_row, console, local, print_json, print_rendered, table
from memable.cli.root import FINE
from memable.client import Client
from memable.fleet import failed_since, fleet, memory_bytes
from memable.schedule import Scheduled, scheduled
from memable.server import Server, server
from memable.state import Status

_RECENTLY: Final = timedelta(hours=1)


@click.command(short_help="List the workers that live.")
@takes_target
def workers(target: Target) -> int:
    """List the workers that live: where, since when, how busy, what they run, who leads.

    A worker shows itself every 5 s; one that has been silent for 30 s is taken to be gone. How many of its slots are in
    use is what Redis has given it now.
    """

    async def act(client: Client) -> int:
        seen = await fleet(client._online().store)
        if target.as_json:
            print_json([worker_document(seen, each) for each in seen.workers])
            return FINE
        out = console()
        if seen.workers:
            print_rendered(out, workers_table(seen, seen.workers))
        else:
            out.print("no workers")
        return FINE

    return target.run(act)


@click.command(short_help="List what waits for a time, the earliest first.")
@LIMIT_OPTION
@click.option("--cursor", metavar="CURSOR", help="Go on where the page before ended, as it said.")
@takes_target
def schedules(target: Target, *, limit: int, cursor: str | None) -> int:
    """List what waits for a time, the earliest first.

    That is: instances whose beginning is delayed (delay), timers (timer), steps that are called again (retry), waits
    for a signal or message that end (timeout), and deadlines of instances (deadline).

    Cron jobs are arq's: which there are is in the code of the workers, and Redis does not know them.
    """

    async def act(client: Client) -> int:
        page = await scheduled(client._online().store, limit, cursor)
        if target.as_json:
            print_json({"items": [_schedule_document(each) for each in page.items], "cursor": page.cursor})
            return FINE
        out = console()
        if page.items:
            shown = table("DUE", "LEFT", "WHAT", "INSTANCE", "KEY")
            for each in page.items:
                left = f"{span(-each.in_s)} late" if each.in_s < 0 else f"in {span(each.in_s)}"
                name = f"{each.workflow}/{each.instance_id}"
                add_row(shown, (local(each.due_at), left, each.what, name, each.key))
            print_rendered(out, shown)
        else:
            out.print("nothing waits for a time")
        if page.cursor is not None:
            out.print(f"more: --cursor {page.cursor}", soft_wrap=True)
        return FINE

    return target.run(act)


def _schedule_document(each: Scheduled) -> dict[str, Any]:
    return {
        "due_at": each.due_at.isoformat(),
        "in_s": round(each.in_s, 3),
        "what": str(each.what),
        "workflow": each.workflow,
        "instance_id": each.instance_id,
        "key": each.key,
    }


@click.command(short_help="Count instances and backlog of each workflow.")
@click.argument("workflow", required=False, shell_complete=complete_workflow)
@takes_target
def stats(target: Target, *, workflow: str | None) -> int:
    """Count, of WORKFLOW or of each: instances by status, how many wait for a slot, and the oldest of these.

    FAILED 1H are those made in the last hour which have failed. SAMPLE is what the newest instance takes of Redis's
    memory. The costs do not grow with the number of instances; counts may include some whose retention has just ended.
    """

    async def act(client: Client) -> int:
        online = client._online()
        store = online.store
        seen = await fleet(store, None if workflow is None else [workflow])
        names = [load.workflow for load in seen.loads]
        failed = await failed_since(store, names, seen.at - _RECENTLY)
        samples = {name: await _sample(client, name) for name in names}
        host = await server(store.connection)
        if target.as_json:
            loads = [
                {
                    **load_document(seen, load),
                    "failed_last_hour": failed.get(load.workflow, 0),
                    "sample_bytes": samples[load.workflow],
                }
                for load in seen.loads
            ]
            print_json({"namespace": store.keys.namespace, "server": _server_document(host), "workflows": loads})
            return FINE
        out = console()
        columns = ("WORKFLOW", "WORKERS", "WAITING", "OLDEST", "RUNNING", "POSTPONED", "SUSPENDED")
        shown = numbers_table(*columns, "COMPLETED", "FAILED", "FAILED 1H", "CANCELLED", "SAMPLE")
        for load in seen.loads:
            bytes_ = samples[load.workflow]
            add_row(
                shown,
                (
                    *load_cells(seen, load),
                    load.counts[Status.COMPLETED],
                    load.counts[Status.FAILED],
                    failed.get(load.workflow, 0),
                    load.counts[Status.CANCELLED],
                    "" if bytes_ is None else size(bytes_),
                ),
            )
        if seen.loads:
            print_rendered(out, shown)
        else:
            out.print("no workflow was ever announced")
        if host is not None:
            out.print()
            out.print(_server_line(host, online.subscriptions.endpoint.safe_url, store.keys.namespace), soft_wrap=True)
        return FINE

    return target.run(act)


async def _sample(client: Client, workflow: str) -> int | None:
    page = await client.list_instances(workflow, limit=1)
    if not page.items:
        return None
    store = client._online().store
    return await memory_bytes(store, store.keys.of(workflow, page.items[0].instance_id))


def _server_line(host: Server, where: str, namespace: str) -> str:
    limit = f" of {size(host.max_memory_bytes)}" if host.max_memory_bytes else ""
    return (
        f"namespace {namespace}; {host.name} {host.version} at {where}, up {span(host.up_s)}, "
        f"{size(host.used_memory_bytes)}{limit} used, {host.clients} clients, AOF {'on' if host.has_aof else 'off'}"
    )


def _server_document(host: Server | None) -> dict[str, Any] | None:
    if host is None:
        return None
    return {
        "name": host.name,
        "version": host.version,
        "up_s": host.up_s,
        "used_memory_bytes": host.used_memory_bytes,
        "max_memory_bytes": host.max_memory_bytes or None,
        "clients": host.clients,
        "aof": host.has_aof,
    }


def size(bytes_: int) -> str:
    """A number of bytes in the unit that suits it.

    >>> size(512), size(2048), size(3_500_000)
    ('512 B', '2.0 kB', '3.5 MB')
    """
    number = float(bytes_)
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"
