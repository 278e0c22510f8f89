"""A bit of everything that asks something of Redis: `arq tests.apps.guarded.WorkerSettings`.

A step that holds its worker ends when HOSTED_DIR/go is there.
"""

from __future__ import annotations

import asyncio
from typing import Any

from arq import Retry, cron

import memable
from memable import App, ChildFailed, Context, PermanentError, RetryPolicy, SuspendPoint
from memable.runtime.arq_host import invoke
from tests.apps.hosted import directory, tell

ANSWER = SuspendPoint("answer:v1", str)

app = App()


async def hold_step(name: str) -> str:
    tell("held", name)
    while not (directory() / "go").exists():
        await asyncio.sleep(0.01)
    return name


@app.workflow("hold")
async def hold(ctx: Context, name: str) -> str:
    ctx.set_status("holding")
    return await ctx.step("hold:v1", hold_step, name)


def fail() -> None:
    raise PermanentError("no")


def fail_once() -> str:
    if not (directory() / "failed").exists():
        (directory() / "failed").touch()
        raise ValueError("the first time")
    return "the second time"


@app.workflow("child")
async def child(ctx: Context, what: str) -> str:
    if what == "wait":
        await ctx.suspend(ANSWER)
    if what == "fail":
        await ctx.step("fail:v1", fail)
    return what


@app.workflow("wide", deadline=3600)
async def wide(ctx: Context, wish: str) -> list[Any]:
    """Waits for a signal and a message; then children, a race, a map and a retry."""
    answer = await ctx.suspend(ANSWER, timeout=3600)
    message = await ctx.receive("mail:v1", "mailbox", returns=str)
    named = await ctx.call("one:v1", child, wish)
    many = await ctx.fan_out("many:v1", ["a", "b"], child)
    with_losers = {"child": ctx.call("lost:v1", child, "wait"), "timer": ctx.timer("soon:v1", 0.01)}
    winner, _ = await ctx.first("first:v1", with_losers)
    try:
        await ctx.fan_out("none:v1", ["wait", "fail"], child)
    except ChildFailed:
        ctx.set_status("as it should be")
    mapped = await ctx.map("map:v1", ["x", "y"], str.upper)
    retried = await ctx.step("retry:v1", fail_once, retry=RetryPolicy.fixed(1, 0.01))
    return [answer, message, named, *many, winner, *mapped, retried]


@app.workflow("failing")
async def failing(ctx: Context) -> None:
    await ctx.step("fail:v1", fail)


@app.workflow("bereft")
async def bereft(ctx: Context) -> None:
    """Has a child that it leaves living when it is cancelled."""
    await ctx.call("left:v1", child, "wait")


@app.workflow("brief")
async def brief(ctx: Context, name: str) -> str:
    return name


async def tick(ctx: dict[str, Any]) -> str:
    return await invoke(ctx, "brief", "cron")


@app.workflow("lives")
async def lives(ctx: Context, number: int) -> int:
    await ctx.timer("rest:v1", 0.01)
    if number < 2:
        ctx.continue_as(number + 1)
    return number


async def add_later(ctx: dict[str, Any], left: int, right: int) -> int:
    """A plain arq function that arq tries again."""
    if ctx["job_try"] == 1:
        raise Retry(defer=0.01)
    return left + right


WorkerSettings = memable.worker_settings(
    app,
    functions=[add_later],
    cron_jobs=[cron(tick, second=set(range(60)))],
    allow_abort_jobs=True,
    poll_delay=0.05,
    health_check_interval=1,
)
