"""Workflows of steps, signals and timers; and the ones that are faults themselves."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import UTC, datetime, timedelta
from typing import Final

from chaos.acting import ANSWER, PERSISTENT, Job, act, act_in_thread, app, calling, mended, refuse, running
from memable import Context, PermanentError, StepFailed, current_step

POISONED: Final = 86
"""The exit code of a worker that an instance has killed."""


async def act_once_mended(run: int, job: Job) -> str:
    with calling(run):
        if not mended(current_step().instance_id).exists():
            raise PermanentError("broken")
    return f"{current_step().key} {job}"


async def wake_at(run: int, job: Job) -> datetime:
    with calling(run):
        return datetime.now(UTC) + timedelta(seconds=job.waits_s)


async def die(run: int) -> str:
    with calling(run):
        os._exit(POISONED)


async def block(run: int, job: Job) -> str:
    with calling(run):
        time.sleep(job.takes_s)  # noqa: ASYNC251 (that is the point)
    return f"{current_step().key} {job}"


@app.workflow("chain")
async def chain(ctx: Context, job: Job) -> list[str]:
    """Steps of both kinds, failures that are tried again, a failure that is caught, a status."""
    with running(ctx) as run:
        said = [await ctx.step("first", act, run, job)]
        ctx.set_status("half-way")
        said.append(await ctx.step("flaky", act, run, job, 1, retry=PERSISTENT))
        said.append(await ctx.step("thread", act_in_thread, run, job, 2, retry=PERSISTENT))
        try:
            await ctx.step("hopeless", refuse, run, retry=PERSISTENT)
        except StepFailed as error:
            said.append(error.error_message)
        said.append(await ctx.step("last", act, run, job))
        return said


@app.workflow("ask")
async def ask(ctx: Context, job: Job) -> list[str]:
    """A signal between two steps."""
    with running(ctx) as run:
        asked = await ctx.step("ask", act, run, job)
        answer = await ctx.suspend(ANSWER, status="waiting for an answer")
        return [asked, answer, await ctx.step("thank", act_in_thread, run, job)]


@app.workflow("nap")
async def nap(ctx: Context, job: Job) -> list[str]:
    """Both kinds of timers."""
    with running(ctx) as run:
        await ctx.timer("nap", job.waits_s)
        await ctx.sleep_until("sleep", await ctx.step("wake at", wake_at, run, job))
        return [await ctx.step("wake", act, run, job)]


@app.workflow("crowd")
async def crowd(ctx: Context, job: Job) -> list[str]:
    """Steps, a signal and a timer side by side: signals and timers come while it runs."""
    with running(ctx) as run:
        first, second, third, answer, _ = await asyncio.gather(
            ctx.step("one", act, run, job),
            ctx.step("two", act_in_thread, run, job),
            ctx.step("three", act_in_thread, run, job),
            ctx.suspend(ANSWER),
            ctx.timer("pause", job.waits_s),
        )
        return [first, second, third, answer, await ctx.step("last", act, run, job)]


@app.workflow("mend")
async def mend(ctx: Context, job: Job) -> list[str]:
    """Fails, until it is mended and resumed."""
    with running(ctx) as run:
        before = await ctx.step("before", act, run, job)
        return [before, await ctx.step("broken", act_once_mended, run, job), await ctx.step("after", act, run, job)]


@app.workflow("long")
async def long(ctx: Context, job: Job) -> list[str]:
    """A step that outlasts a lease, in a thread and outside of one."""
    with running(ctx) as run:
        return list(await asyncio.gather(ctx.step("task", act, run, job), ctx.step("thread", act_in_thread, run, job)))


@app.workflow("poison")
async def poison(ctx: Context, job: Job) -> list[str]:
    """Kills its worker, whoever that is: it must end as failed, and nobody else with it."""
    with running(ctx) as run:
        return [await ctx.step("before", act, run, job), await ctx.step("die", die, run)]


@app.workflow("blocker")
async def blocker(ctx: Context, job: Job) -> list[str]:
    """Blocks the event loop of its worker for longer than a lease, which it keeps nevertheless."""
    with running(ctx) as run:
        return [await ctx.step("block", block, run, job)]
