"""`memable completion`, and what a shell is told of workflows and instances: quickly, or nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from memable.cli.root import FINE

_VARIABLE: Final = "_MEMABLE_COMPLETE"
_PATIENCE_S: Final = 0.7
"""For how long a Tab may wait for Redis."""
_INSTANCES: Final = 200
"""How many of a workflow's instances are looked at, the newest."""

_SHELLS: Final = ("bash", "zsh", "fish")


@click.command(short_help="Print what makes a shell complete commands.")
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(ctx: click.Context, *, shell: str) -> int:
    """Print the script that makes SHELL complete memable's commands and options, workflows and instances.

    \b
    bash   eval "$(memable completion bash)"   in ~/.bashrc
    zsh    eval "$(memable completion zsh)"   in ~/.zshrc, below compinit
    fish   memable completion fish > ~/.config/fish/completions/memable.fish

    Workflows and instances are asked of Redis, by MEMABLE_REDIS_URL and MEMABLE_NAMESPACE or by the options that stand
    before them: of a workflow its newest 200. Without an answer in 0.7 s there are none.
    """
    group = ctx.find_root().command
    made = get_completion_class(shell)
    assert made is not None
    # not the one of bash, which starts a bash to see how old it is
    click.echo(ShellComplete.source(made(group, {}, "memable", _VARIABLE)))
    return FINE


# ── asked for by the script ──────────────────────────────────────────────────────────────────────────────────────────


def complete_workflow(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The workflows that begin so."""
    return _quickly(ctx, lambda client: _workflows(client, incomplete))


def complete_instance(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The instances that begin so, once the workflow's name is complete."""
    workflow, slash, id = incomplete.partition("/")
    if not slash:
        return _quickly(ctx, lambda client: _workflows(client, incomplete))
    return _quickly(ctx, lambda client: _ids(client, workflow, id, before=f"{workflow}/"))


def complete_id(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The ids that begin so."""
    workflow = ctx.params.get("workflow")
    return _quickly(ctx, lambda client: _ids(client, workflow, incomplete)) if isinstance(workflow, str) else []


async def _workflows(client: Any, incomplete: str) -> list[str]:
    from memable.fleet import workflow_names

    return [name for name in await workflow_names(client._online().store) if name.startswith(incomplete)]


async def _ids(client: Any, workflow: str, incomplete: str, *, before: str = "") -> list[str]:
    page = await client.list_instances(workflow, limit=_INSTANCES)
    return [f"{before}{each.instance_id}" for each in page.items if each.instance_id.startswith(incomplete)]


def _quickly(ctx: click.Context, ask: Callable[[Any], Coroutine[Any, Any, list[str]]]) -> list[CompletionItem]:
    from memable.client import connect

    async def asked() -> list[str]:
        async with (
            asyncio.timeout(_PATIENCE_S),
            connect(ctx.params.get("url"), namespace=ctx.params.get("namespace")) as client,
        ):
            return await ask(client)

    # whatever goes wrong, it is no time to say so: somebody is typing
    before = logging.root.manager.disable
    logging.disable()
    try:
        return [CompletionItem(name) for name in asyncio.run(asked())]
    except Exception:
        return []
    finally:
        logging.disable(before)
