"""Instances whose every call of a step can be counted: `arq tests.apps.errands.WorkerSettings`.

Each call is told in HOSTED_DIR/calls and hands back what was told, which no other call does: from what an instance
hands back can be seen which calls it goes by. The health of the process is told in HOSTED_DIR/health whenever it
changes.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import memable
from memable import App, Context, SuspendPoint
from tests.apps.hosted import directory, tell

NEXT = SuspendPoint("next:v1", str)

app = App()
_watching: set[asyncio.Task[None]] = set()


async def do(name: str) -> str:
    call = f"{name} {uuid4().hex}"
    tell("calls", call)
    return call


@app.workflow("errand")
async def errand(ctx: Context, name: str) -> list[str]:
    """Three steps; between them a signal and a timer."""
    first = await ctx.step("first:v1", do, f"{name}-first")
    word = await ctx.suspend(NEXT)
    middle = f"{name}-{word}"
    second = await ctx.step("second:v1", do, middle)
    await ctx.timer("rest:v1", timedelta(seconds=0.02))
    return [first, second, await ctx.step("third:v1", do, f"{name}-third")]


@app.workflow("nap")
async def nap(ctx: Context, for_s: float) -> str:
    await ctx.timer("asleep:v1", timedelta(seconds=for_s))
    return await ctx.step("awake:v1", do, "awake")


async def do_when_allowed(name: str) -> str:
    call = await do(name)
    while not (directory() / "go").exists():
        await asyncio.sleep(0.01)
    return call


@app.workflow("wait")
async def wait(ctx: Context, name: str) -> list[str]:
    """Two steps; the first ends when HOSTED_DIR/go is there."""
    return [
        await ctx.step("first:v1", do_when_allowed, f"{name}-first"),
        await ctx.step("second:v1", do, f"{name}-second"),
    ]


def calls(told_in: Path) -> list[str]:
    """All calls of steps so far, in order."""
    told = told_in / "calls"
    return told.read_text().split("\n")[:-1] if told.exists() else []


async def watch(ctx: dict[str, Any]) -> None:
    """`on_startup`: tell of health from now on."""

    async def look() -> None:
        before: bool | None = None
        while True:
            if (now := ctx["memable"].runtime.is_healthy) is not before:
                tell("health", "green" if now else "red")
            before = now
            await asyncio.sleep(0.02)

    task = asyncio.get_running_loop().create_task(look())
    _watching.add(task)
    task.add_done_callback(_watching.discard)


WorkerSettings = memable.worker_settings(app, on_startup=watch, poll_delay=0.05, health_check_interval=1)
