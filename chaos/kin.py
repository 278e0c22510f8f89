"""Workflows with children."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from chaos.acting import Job, act, app, calling, mended, running
from memable import ChildFailed, Context, PermanentError


class Luck(StrEnum):
    """How a part goes."""

    GOOD = "good"
    BAD = "bad"
    BROKEN = "broken until mended"


@dataclass(frozen=True)
class Part:
    """What a child is to do: a part of a job."""

    of: int
    number: int
    takes_s: float
    luck: Luck = Luck.GOOD


async def act_a_part(run: int, task: Part) -> str:
    with calling(run):
        await asyncio.sleep(task.takes_s)
        if task.luck is Luck.BAD or (task.luck is Luck.BROKEN and not mended(f"job-{task.of}").exists()):
            raise PermanentError("bad luck")
    return f"part {task.of}.{task.number}"


@app.workflow("part")
async def part(ctx: Context, task: Part) -> str:
    """A child, with one effect."""
    with running(ctx) as run:
        return await ctx.step("part", act_a_part, run, task)


def _parts(job: Job, first: int, luck: Sequence[Luck]) -> list[Part]:
    return [Part(job.number, first + at, job.takes_s, each) for at, each in enumerate(luck)]


@app.workflow("family")
async def family(ctx: Context, job: Job) -> list[str]:
    """One child; several, of which few live at a time; several of which one fails, and the rest is given up, or not."""
    with running(ctx) as run:
        said = [await ctx.call("only", part, Part(job.number, 0, job.takes_s))]
        said += await ctx.fan_out("few", _parts(job, 1, [Luck.GOOD] * 5), part, concurrency=2)
        try:
            slow = Part(job.number, 8, job.waits_s)
            await ctx.fan_out("unlucky", [*_parts(job, 6, [Luck.GOOD, Luck.BAD]), slow], part)
        except ChildFailed as error:
            said.append(f"{error.key} {error.index}")
        mixed = await ctx.fan_out("mixed", _parts(job, 9, [Luck.BAD, Luck.GOOD]), part, fail_fast=False)
        said += [each if isinstance(each, str) else f"{each.key} {each.index}" for each in mixed]
        return [*said, await ctx.step("last", act, run, job)]


@app.workflow("repair")
async def repair(ctx: Context, job: Job) -> list[str]:
    """Fails with one of its children, until both are mended and resumed."""
    with running(ctx) as run:
        said = await ctx.fan_out("parts", _parts(job, 0, [Luck.GOOD, Luck.BROKEN, Luck.GOOD]), part)
        return [*said, await ctx.step("last", act, run, job)]


@app.workflow("clan")
async def clan(ctx: Context, job: Job) -> list[str]:
    """A child that has children."""
    with running(ctx) as run:
        first = await ctx.step("first", act, run, job)
        return [first, *await ctx.call("family", family, job)]
