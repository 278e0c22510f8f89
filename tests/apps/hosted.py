"""An application for tests of worker processes: `arq tests.apps.hosted.WorkerSettings`.

What happens is told in files of HOSTED_DIR, and steps wait there for what a test lets happen.
"""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

from arq import cron

import memable
from memable import App, Context, SuspendPoint
from memable.runtime.arq_host import invoke

GO = SuspendPoint("go:v1", str)

app = App()


def directory() -> Path:
    return Path(os.environ["HOSTED_DIR"])


def tell(name: str, text: str) -> None:
    """Add a line to a file; short ones are never mixed with another process's."""
    with (directory() / name).open("a") as file:
        file.write(f"{text}\n")


async def greet_step(name: str) -> str:
    return f"hello {name}"


@app.workflow("greet")
async def greet(ctx: Context, name: str) -> str:
    return await ctx.step("greet:v1", greet_step, name)


async def hold_step(name: str) -> int:
    tell(f"{name}.started", str(os.getpid()))
    while not (directory() / f"{name}.go").exists():
        await asyncio.sleep(0.01)
    return os.getpid()


@app.workflow("hold")
async def hold(ctx: Context, name: str) -> int:
    """Holds a worker until the test lets it go; the pid of the process that ended the step."""
    return await ctx.step("hold:v1", hold_step, name)


@app.workflow("patient")
async def patient(ctx: Context) -> str:
    """Waits for a signal, then for a timer."""
    word = await ctx.suspend(GO)
    await ctx.timer("rest:v1", timedelta(seconds=0.05))
    return word


async def loop_step() -> str:
    return type(asyncio.get_running_loop()).__module__


@app.workflow("loop")
async def loop(ctx: Context) -> str:
    ctx.logger.info("asking for the loop")
    return await ctx.step("loop:v1", loop_step)


async def add(ctx: dict[str, Any], left: int, right: int) -> int:
    """A plain arq function."""
    return left + right


async def fail(ctx: dict[str, Any]) -> None:
    raise ValueError("no such thing")


async def stop_at_the_end(ctx: dict[str, Any]) -> None:
    """The process is told to stop when this job is over, and its result on the way."""
    asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGTERM)


async def stop_reading(ctx: dict[str, Any]) -> None:
    """Break the runtime as a bug of memable's would: its loop ends, and arq runs on."""
    ctx["memable"].runtime._loops[0].cancel()


async def tick(ctx: dict[str, Any]) -> str:
    """A cron function that starts a workflow: one instance for each time it is due, however many workers there are."""
    return await invoke(ctx, "greet", "cron")


async def on_startup(ctx: dict[str, Any]) -> None:
    ctx["given"] = "by on_startup"
    tell("hooks", "startup")


async def on_shutdown(ctx: dict[str, Any]) -> None:
    tell("hooks", f"shutdown {ctx['given']}")


WorkerSettings = memable.worker_settings(
    app,
    functions=[add, fail, stop_at_the_end, stop_reading],
    cron_jobs=[cron(tick, second=set(range(60)))] if "HOSTED_CRON" in os.environ else [],
    on_startup=on_startup,
    on_shutdown=on_shutdown,
    poll_delay=0.05,
    health_check_interval=1,
)
