"""Workflows that wait: for signals that come early, late or against each other, for messages, for further attempts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Final

from chaos.acting import ANSWER, Job, act, act_in_thread, app, calling, running
from chaos.kin import Part, part
from memable import Context, RetriesExhausted, RetryPolicy, SuspendPoint, SuspendTimeout

SECOND = SuspendPoint("second:v1", str)
LEFT, RIGHT = SuspendPoint("left:v1", str), SuspendPoint("right:v1", str)
MAILBOX: Final = "talk"
BACK_OFF_S: Final = 3.0
"""As long as it takes to be kept in Redis."""
_BACKS_OFF: Final = RetryPolicy.fixed(2, BACK_OFF_S)
_SILENCE_S: Final = 0.3


@app.workflow("early")
async def early(ctx: Context, job: Job) -> list[str]:
    """Signals that are sent before their points are reached."""
    with running(ctx) as run:
        said = [await ctx.step("before", act, run, job), await ctx.suspend(ANSWER)]
        await ctx.timer("pause", job.waits_s)
        return [*said, await ctx.suspend(SECOND), await ctx.step("after", act, run, job)]


@app.workflow("hurry")
async def hurry(ctx: Context, job: Job) -> list[str]:
    """A signal against a deadline."""
    with running(ctx) as run:
        try:
            answer = await ctx.suspend(ANSWER, timeout=job.waits_s)
        except SuspendTimeout:
            answer = "too late"
        return [answer, await ctx.step("last", act, run, job)]


@app.workflow("talk")
async def talk(ctx: Context, job: Job) -> list[str]:
    """Messages: one after the other, two at a time, and one that never comes."""
    with running(ctx) as run:
        said = [await ctx.receive("first", MAILBOX, returns=str), await ctx.step("think", act, run, job)]
        said += await asyncio.gather(
            ctx.receive("second", MAILBOX, returns=str), ctx.receive("third", MAILBOX, returns=str)
        )
        try:
            await ctx.receive("fourth", "empty", timeout=_SILENCE_S)
        except SuspendTimeout:
            said.append("silence")
        return said


@app.workflow("race")
async def race(ctx: Context, job: Job) -> list[str]:
    """Signals against each other, a timer and a child; and, every other time, a step."""
    with running(ctx) as run:
        calls: dict[str, Any] = {
            LEFT.key: ctx.suspend(LEFT),
            RIGHT.key: ctx.suspend(RIGHT),
            "timer": ctx.timer("timer", job.waits_s),
            "child": ctx.call("child", part, Part(job.number, 0, 4 * job.takes_s)),
        }
        if job.number % 2:
            calls["step"] = ctx.step(
                "step", act_in_thread, run, replace(job, takes_s=(3 + 5 * (job.number % 3)) * job.takes_s)
            )
        name, value = await ctx.first("choice", calls)
        return [name, value or "", await ctx.step("last", act, run, job)]


async def act_in_vain(run: int) -> str:
    with calling(run):
        raise ConnectionError("as ever")


@app.workflow("patient")
async def patient(ctx: Context, job: Job) -> list[str]:
    """Steps that are called again so much later that the instance comes to rest meanwhile."""
    with running(ctx) as run:
        done, in_vain = await asyncio.gather(
            ctx.step("patient", act, run, job, 1, retry=_BACKS_OFF),
            ctx.step("vain", act_in_vain, run, retry=_BACKS_OFF),
            return_exceptions=True,
        )
        # anything else is no result, and is seen as such
        counted = f"{in_vain.attempts} attempts" if isinstance(in_vain, RetriesExhausted) else repr(in_vain)
        return [str(done), counted]
