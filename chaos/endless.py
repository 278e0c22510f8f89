"""A workflow that has several lives, and one that never comes to its end."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from chaos.acting import ANSWER, Job, act, app, running
from chaos.kin import Part, part
from chaos.waits import MAILBOX
from memable import Context, SuspendTimeout

LIVES: Final = 3
DEADLINE_S: Final = 2.0
_SILENCE_S: Final = 0.3
_FOR_EVER_S: Final = 3600.0


@app.workflow("lives")
async def lives(ctx: Context, job: Job) -> list[str]:
    """A message and a step in each life; a signal in the first, which the second must not hear again.

    Each life leaves a child behind that would never end.
    """
    with running(ctx, job.life) as run:
        left_behind = asyncio.ensure_future(ctx.call("left", part, Part(job.number, job.life, _FOR_EVER_S)))
        heard = await ctx.receive("hear", MAILBOX, returns=str)
        said = [*job.said, heard, await ctx.step("work", act, run, job)]
        if job.life == 1:
            said.append(await ctx.suspend(ANSWER))
        if job.life == 2:
            try:
                said.append(await ctx.suspend(ANSWER, timeout=_SILENCE_S))
            except SuspendTimeout:
                said.append("silence")
        assert not left_behind.done()
        if job.life < LIVES:
            ctx.continue_as(replace(job, life=job.life + 1, said=tuple(said)))
        return said


@app.workflow("doomed", deadline=DEADLINE_S)
async def doomed(ctx: Context, job: Job) -> list[str]:
    """Its deadline ends it: at rest, or, every other time, in a step, which is called again and again until then."""
    with running(ctx) as run:
        turn = 0
        while job.number % 2:
            turn += 1
            await ctx.step(f"turn {turn}", act, run, job)
        return [await ctx.suspend(ANSWER)]
