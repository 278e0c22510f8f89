"""An instance that kills its worker, and neighbours that take their time: `arq tests.apps.poison.WorkerSettings`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import memable
from memable import App, Context

app = App()


def told(name: str) -> Path:
    """A file with a line for each time that something has happened."""
    return Path(os.environ["HOSTED_DIR"]) / name


def tell(name: str) -> None:
    with told(name).open("a") as file:
        file.write(f"{os.getpid()}\n")


async def die(company: int) -> None:
    while not told("deaths").exists() and len(told("company").read_text().split()) < company:
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.05)
    tell("deaths")
    os._exit(9)


async def take_time(takes_s: float) -> str:
    tell("company")
    while not told("deaths").exists():
        await asyncio.sleep(0.05)
    await asyncio.sleep(takes_s)
    return "unharmed"


@app.workflow("poison")
async def poison(ctx: Context, company: int) -> None:
    """Kills its worker whenever it runs; the first time not before as many neighbours as it is given run too."""
    await ctx.step("die:v1", die, company)


@app.workflow("neighbour")
async def neighbour(ctx: Context, takes_s: float) -> str:
    """Is there when a worker is first killed, and makes no progress before."""
    return await ctx.step("take-time:v1", take_time, takes_s)


WorkerSettings = memable.worker_settings(app)
