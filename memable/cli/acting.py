"""`memable invoke`, `signal`, `send`, `resume`, `fork`, `cancel`, `delete`: what is done with instances."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import click

from memable.cli.completion import complete_workflow
from memable.cli.naming import InstanceCommand, names_instance
from memable.cli.options import Target, delay_value, json_value, label_values, takes_target
from memable.cli.printing import instance_document, one_line, print_json
from memable.cli.root import FINE, INSTANCE_FAILED
from memable.client import Client
from memable.errors import InstanceNotFound
from memable.invocation import Invocation
from memable.missing import MISSING
from memable.state import Status, WorkflowMetadata


@click.command(short_help="Start an instance.")
@click.argument("workflow", shell_complete=complete_workflow)
@click.argument("input", metavar="[INPUT_JSON]", required=False, callback=json_value)
@click.option(
    "--id", metavar="ID", help="The instance's id: the same call again starts nothing. [default: a random one]"
)
@click.option(
    "--delay",
    metavar="WHEN",
    callback=delay_value,
    help="Start it later: in 90 (seconds), 15m, 2h or 1d, or at a time such as 2030-01-31T12:00:05Z.",
)
@click.option(
    "--label",
    "labels",
    metavar="NAME=VALUE",
    multiple=True,
    callback=label_values,
    help="Call it so, for `list --label` to find it; repeatable.",
)
@click.option(
    "--wait",
    is_flag=True,
    help="Wait until it comes to rest: it has ended, or waits for a signal, a timer or children.",
)
@takes_target
def invoke(
    target: Target,
    *,
    workflow: str,
    input: Any,
    id: str | None,
    delay: timedelta | datetime | None,
    labels: dict[str, str],
    wait: bool,
) -> int:
    """Start an instance of WORKFLOW, once, with INPUT_JSON ('-' reads it from stdin).

    With --wait the result is printed, and the exit code is 1 if the instance failed or was cancelled.
    """

    async def act(client: Client) -> int:
        invocation = await client.invoke(workflow, input, id=id, delay=delay, labels=labels)
        if wait:
            state = await invocation.wait()
            output = await invocation.result() if state.status is Status.COMPLETED else None
        else:
            output = None
        known = await _metadata(invocation)
        has_failed = wait and known.status in (Status.FAILED, Status.CANCELLED)
        if target.as_json:
            print_json({**instance_document(known), "created": invocation.created, "output": output})
        else:
            click.echo(_started(invocation, known))
            if wait and known.status is Status.COMPLETED:
                click.echo(json.dumps(output, ensure_ascii=False, indent=2))
        return INSTANCE_FAILED if has_failed else FINE

    return target.run(act)


@click.command(cls=InstanceCommand, short_help="Complete the point at which an instance waits.")
@names_instance
@click.argument("key")
@click.argument("payload", metavar="[PAYLOAD_JSON]", required=False, callback=json_value)
@click.option("--buffer", is_flag=True, help="Keep the signal for a point that is not reached yet.")
@click.option("--signal-id", metavar="ID", help="Names this signal: sent again, it is a success without an effect.")
@takes_target
def signal(
    target: Target, *, workflow: str, id: str, key: str, payload: Any, buffer: bool, signal_id: str | None
) -> int:
    """Complete the point KEY at which the instance waits, with PAYLOAD_JSON ('-' reads it from stdin)."""

    async def act(client: Client) -> int:
        value = None if payload is MISSING else payload
        await client.signal(workflow, id, key, value, buffer=buffer, signal_id=signal_id)
        if target.as_json:
            print_json({"workflow": workflow, "instance_id": id, "key": key, "accepted": True})
        else:
            click.echo(f"{workflow}/{id} got {key}")
        return FINE

    return target.run(act)


@click.command(cls=InstanceCommand, short_help="Send a message to a mailbox of an instance.")
@names_instance
@click.argument("mailbox")
@click.argument("message", metavar="[MESSAGE_JSON]", required=False, callback=json_value)
@click.option("--message-id", metavar="ID", help="Names this message: sent again, it is a success without an effect.")
@takes_target
def send(target: Target, *, workflow: str, id: str, mailbox: str, message: Any, message_id: str | None) -> int:
    """Send MESSAGE_JSON ('-' reads it from stdin) to the MAILBOX of an instance, which receives it in its turn."""

    async def act(client: Client) -> int:
        value = None if message is MISSING else message
        await client.send(workflow, id, mailbox, value, message_id=message_id)
        if target.as_json:
            print_json({"workflow": workflow, "instance_id": id, "mailbox": mailbox, "accepted": True})
        else:
            click.echo(f"{workflow}/{id} got a message in {mailbox}")
        return FINE

    return target.run(act)


@click.command(cls=InstanceCommand, short_help="Run an instance at rest again.")
@names_instance
@click.option("--rerun", metavar="KEY", multiple=True, help="Drop the record of this key, to run it again; repeatable.")
@takes_target
def resume(target: Target, *, workflow: str, id: str, rerun: tuple[str, ...]) -> int:
    """Run an instance at rest again: finished steps stay, a failed one gets a fresh attempt."""

    async def act(client: Client) -> int:
        known = await _metadata(await client.resume(workflow, id, rerun=rerun))
        if target.as_json:
            print_json(instance_document(known))
        else:
            click.echo(one_line(f"{workflow}/{id} {known.state}"))
        return FINE

    return target.run(act)


@click.command(cls=InstanceCommand, short_help="Start an instance with what another has recorded.")
@names_instance
@click.option("--before", metavar="KEY", help="Take what was started before this. [default: all that is finished]")
@click.option("--new-id", metavar="ID", help="The new instance's id: the same call again starts nothing.")
@takes_target
def fork(target: Target, *, workflow: str, id: str, before: str | None, new_id: str | None) -> int:
    """Start a new instance with the input of another, and with the finished steps that it has recorded."""

    async def act(client: Client) -> int:
        invocation = await client.fork(workflow, id, before=before, new_id=new_id)
        known = await _metadata(invocation)
        if target.as_json:
            print_json({**instance_document(known), "created": invocation.created})
        else:
            click.echo(_started(invocation, known))
        return FINE

    return target.run(act)


@click.command(cls=InstanceCommand, short_help="Forget an instance that has ended.")
@names_instance
@takes_target
def delete(target: Target, *, workflow: str, id: str) -> int:
    """Forget an instance that has ended, with all that it recorded; its id is free again."""

    async def act(client: Client) -> int:
        await client.delete(workflow, id)
        if target.as_json:
            print_json({"workflow": workflow, "instance_id": id, "deleted": True})
        else:
            click.echo(f"{workflow}/{id} deleted")
        return FINE

    return target.run(act)


@click.command(cls=InstanceCommand, short_help="End an instance at once.")
@names_instance
@click.option("--reason", metavar="TEXT", help="Stands behind its status from then on.")
@takes_target
def cancel(target: Target, *, workflow: str, id: str, reason: str | None) -> int:
    """End an instance at once, wherever it is; `memable resume` runs it on.

    One that has ended already stays as it is, which is no error: what is printed says how it ended.
    """

    async def act(client: Client) -> int:
        invocation = client.get(workflow, id)
        state = await invocation.cancel(reason=reason)
        if target.as_json:
            print_json(instance_document(await _metadata(invocation)))
        else:
            click.echo(one_line(f"{workflow}/{id} {state}"))
        return FINE

    return target.run(act)


def _started(invocation: Invocation[Any], known: WorkflowMetadata) -> str:
    origin = "" if invocation.created else " (was there already)"
    return one_line(f"{known.workflow}/{known.instance_id}{origin} {known.state}")


async def _metadata(invocation: Invocation[Any]) -> WorkflowMetadata:
    known = await invocation.metadata()
    if known is None:  # its retention ended between the two calls
        raise InstanceNotFound(invocation.workflow_name, invocation.instance_id)
    return known
