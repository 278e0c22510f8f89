"""Instances that hold their worker until a test lets it go on: `arq tests.apps.labour.WorkerSettings`.

What is called is told in HOSTED_DIR/ledger, a line `NAME PID`; a process goes on when HOSTED_DIR/PID.go is there.
"""

from __future__ import annotations

import asyncio
import os
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import memable
from memable import App, Context, PermanentError, RetryPolicy, current_step
from memable.runtime.steps import DURABLE_BACK_OFF_FROM_S

SPARE_TIMER_S = 0.5
PACES = 10

app = App()


def directory() -> Path:
    return Path(os.environ["HOSTED_DIR"])


def tell(name: str) -> int:
    """Add a line to the ledger, which outlives every process; short ones are never mixed with another's."""
    with (directory() / "ledger").open("a") as ledger:
        ledger.write(f"{name} {os.getpid()}\n")
    return os.getpid()


def may_go_on() -> bool:
    return (directory() / f"{os.getpid()}.go").exists()


async def stay(name: str) -> int:
    """Until this process may go on."""
    tell(name)
    while not may_go_on():
        await asyncio.sleep(0.01)
    return os.getpid()


def stay_in_thread(name: str) -> int:
    tell(name)
    while not may_go_on():
        time.sleep(0.01)
    return os.getpid()


async def stay_for_ever(name: str) -> None:
    tell(name)
    await asyncio.Event().wait()


@app.workflow("brief")
async def brief(ctx: Context, name: str) -> int:
    return await ctx.step("brief:v1", tell, name)


@app.workflow("hold")
async def hold(ctx: Context, name: str) -> int:
    """The pid of the process whose call was recorded."""
    return await ctx.step("hold:v1", stay, name)


@app.workflow("listening")
async def listening(ctx: Context, count: int) -> list[Any]:
    """Receives an even number of messages, two at a time."""
    heard = list[Any]()
    for number in range(0, count, 2):
        heard += await asyncio.gather(ctx.receive(str(number), "chat"), ctx.receive(str(number + 1), "chat"))
    return heard


@app.workflow("mortal", deadline=timedelta(hours=1))
async def mortal(ctx: Context, name: str) -> int:
    return await ctx.step("mortal:v1", stay, name)


@app.workflow("chain")
async def chain(ctx: Context, name: str) -> list[int]:
    """Three steps; in the middle one, a thread's if the name says so, a worker can be caught."""
    before = await ctx.step("before:v1", tell, f"{name}-before")
    if "thread" in name:
        middle = await ctx.step("middle:v1", stay_in_thread, f"{name}-middle")
    else:
        middle = await ctx.step("middle:v1", stay, f"{name}-middle")
    return [before, middle, await ctx.step("after:v1", tell, f"{name}-after")]


async def fail_at_first(name: str, stays: bool) -> int:
    attempt = current_step().attempt
    tell(f"{name}-attempt-{attempt}")
    while stays and attempt == 1 and not may_go_on():
        await asyncio.sleep(0.01)
    if attempt == 1:
        tell(f"{name}-failed")
        raise ConnectionError("the payment API does not answer")
    return os.getpid()


@app.workflow("retried")
async def retried(ctx: Context, name: str) -> int:
    """The first attempt fails; a worker can be caught in it, or in the back-off if the name says so."""
    in_backoff = "backoff" in name
    delay_s = 0.9 * DURABLE_BACK_OFF_FROM_S if in_backoff else 0
    await ctx.step("try:v1", fail_at_first, name, not in_backoff, retry=RetryPolicy.fixed(3, delay_s))
    return await ctx.step("then:v1", stay, f"{name}-then")


async def fail_twice(name: str) -> int:
    attempt = current_step().attempt
    tell(f"{name}-attempt-{attempt}")
    while attempt == 2 and not may_go_on():
        await asyncio.sleep(0.01)
    if attempt <= 2:
        raise ConnectionError("the payment API does not answer")
    return os.getpid()


@app.workflow("persistent")
async def persistent(ctx: Context, name: str) -> int:
    """Two attempts fail, and each time the next comes an hour later; in the second one a worker can be caught."""
    return await ctx.step("try:v1", fail_twice, name, retry=RetryPolicy.fixed(4, 3600))


@app.workflow("write")
async def write(ctx: Context, what: str) -> int:
    """Once its process goes on, the first that its run has to say to Redis is `what`."""
    match what:
        case "record":
            await ctx.step("record:v1", stay, what)
        case "park":
            await stay(what)
            await ctx.suspend("park:v1")
        case "open":

            async def wait_beside_the_step() -> None:
                await stay(what)
                await ctx.suspend("open:v1")

            await asyncio.gather(ctx.step("beside:v1", stay_for_ever, "beside"), wait_beside_the_step())
        case "set_status":
            await stay(what)
            ctx.set_status("a status")
            await asyncio.Event().wait()
        case "fail":
            await stay(what)
            raise PermanentError("it fails")
        case "complete":
            await stay(what)
        case _:
            await stay_for_ever(what)
    return os.getpid()


def block(name: str, for_s: float) -> int:
    """What async code must not do."""
    tell(name)
    time.sleep(for_s)
    return os.getpid()


async def block_step(name: str, for_s: float) -> int:
    return block(name, for_s)


async def sleep_step(name: str, for_s: float) -> int:
    tell(name)
    await asyncio.sleep(for_s)
    return os.getpid()


@app.workflow("long")
async def long(ctx: Context, task: tuple[str, float]) -> int:
    """One step, of the kind and length that `task` says."""
    kind, for_s = task
    match kind:
        case "async":
            return await ctx.step("async:v1", sleep_step, kind, for_s)
        case "thread":
            return await ctx.step("thread:v1", block, kind, for_s)
        case "blocking":
            return await ctx.step("blocking:v1", block_step, kind, for_s)
        case _:
            block(kind, for_s)  # outside of a step
            return await ctx.step("end:v1", tell, "end")


async def hang_step(name: str) -> int:
    return stay_in_thread(name)


@app.workflow("hang")
async def hang(ctx: Context, name: str) -> int:
    """Takes the whole process with it, until that may go on."""
    return await ctx.step("hang:v1", hang_step, name)


@app.workflow("errand")
async def errand(ctx: Context, name: str) -> int:
    """What a worker is full of: steps, one of them retried, and a timer."""
    await ctx.step("go:v1", tell, f"{name}-go")
    await ctx.timer("rest:v1", timedelta(seconds=0.02))
    await ctx.step("buy:v1", fail_at_first, name, False, retry=RetryPolicy.fixed(3, 0.05))
    return await ctx.step("return:v1", tell, f"{name}-return")


async def pace(name: str) -> None:
    tell(name)
    await asyncio.sleep(0.05)


@app.workflow("walk")
async def walk(ctx: Context, name: str) -> str:
    """Short steps, so that whatever becomes of its workers it gets on."""
    for number in range(PACES):
        await ctx.step(f"pace-{number}", pace, f"{name}-pace-{number}")
    return name


@app.workflow("clock")
async def clock(ctx: Context) -> tuple[float, datetime]:
    """The worker's own clock, and when memable says that this instance was started."""
    said_s = await ctx.step("look:v1", time.time)
    await ctx.timer("rest:v1", timedelta(seconds=SPARE_TIMER_S))
    return said_s, ctx.started_at


WorkerSettings = memable.worker_settings(app, poll_delay=0.05)
