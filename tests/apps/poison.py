"""Instances that kill their worker, and neighbours that take their time: `arq tests.apps.poison.WorkerSettings`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import memable
from memable import App, Context

app = App()


async def die(after_s: float) -> None:
    with (Path(os.environ["HOSTED_DIR"]) / "deaths").open("a") as file:
        file.write(f"{os.getpid()}\n")
    await asyncio.sleep(after_s)
    os._exit(9)


async def take_time() -> str:
    await asyncio.sleep(1)
    return "unharmed"


@app.workflow("poison")
async def poison(ctx: Context, after_s: float) -> None:
    await ctx.step("die:v1", die, after_s)


@app.workflow("neighbour")
async def neighbour(ctx: Context) -> str:
    return await ctx.step("take-time:v1", take_time)


WorkerSettings = memable.worker_settings(app)
