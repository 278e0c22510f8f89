"""The workflows that run in the storm: `memable worker chaos.app:app`. Each returns what its durable calls gave it.

Every run, every call of a step and every worker that may lead is written to the ledger in CHAOS_DIR. With
CHAOS_BREAK=fence the workers of this app do not heed leases any more: see breakage.py.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final

from chaos.breakage import break_on_request
from chaos.ledger import Ledger, What
from memable import App, Context, PermanentError, RetryPolicy, StepFailed, SuspendPoint, current_step

break_on_request()

POISONED: Final = 86
"""The exit code of a worker that an instance has killed."""


@asynccontextmanager
async def _tell_who_leads(_: App) -> AsyncIterator[Mapping[str, Any]]:
    """Have the leaders of this worker put their tokens into the ledger: of who leads, Redis has the token alone."""
    # workers only: a client does not import it
    from memable.runtime.leader import Leader

    start: Any = Leader.start

    async def tell_and_start(leader: Any, *args: Any) -> None:
        _ledger().write(What.MAY_LEAD, leader._token, 0)
        await start(leader, *args)

    patched: Any = Leader
    patched.start = tell_and_start
    yield {}


app = App(lifespan=_tell_who_leads)
ANSWER = SuspendPoint("answer:v1", str)


@dataclass(frozen=True)
class Job:
    """What an instance is to do."""

    number: int
    takes_s: float
    """How long each of its steps takes."""
    waits_s: float
    """How long each of its timers is."""


def directory() -> Path:
    """Where all processes of a performance meet."""
    return Path(os.environ["CHAOS_DIR"])


def mended(instance_id: str) -> Path:
    """The file whose being there mends the broken step of an instance."""
    return directory() / f"mended-{instance_id}"


@cache
def _ledger() -> Ledger:
    return Ledger(directory() / "ledger")


@contextmanager
def _run(ctx: Context) -> Iterator[int]:
    """The number of this run. Only the claim knows it: no public name says which of two runs is the later one."""
    run: Any = ctx._run
    number: int = run._claim.attempt
    name = f"{ctx.workflow_name}/{ctx.instance_id}"
    _ledger().write(What.RUN, name, number)
    try:
        yield number
    finally:
        _ledger().write(What.REST, name, number)


@contextmanager
def _call(run: int) -> Iterator[int]:
    """The attempt of this call."""
    step = current_step()
    called = (f"{step.workflow_name}/{step.instance_id}", run, step.key, step.attempt)
    _ledger().write(What.BEGIN, *called)
    try:
        yield step.attempt
    finally:
        _ledger().write(What.END, *called)


# ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def act(run: int, job: Job, failures: int = 0) -> str:
    with _call(run) as attempt:
        await asyncio.sleep(job.takes_s)
        if attempt <= failures:
            raise ConnectionError("try again")
    return f"{current_step().key} {job.number}"


def act_in_thread(run: int, job: Job, failures: int = 0) -> str:
    with _call(run) as attempt:
        time.sleep(job.takes_s)
        if attempt <= failures:
            raise ConnectionError("try again")
    return f"{current_step().key} {job.number}"


async def refuse(run: int) -> str:
    with _call(run):
        raise PermanentError("never")


async def act_once_mended(run: int, job: Job) -> str:
    with _call(run):
        if not mended(current_step().instance_id).exists():
            raise PermanentError("broken")
    return f"{current_step().key} {job.number}"


async def wake_at(run: int, job: Job) -> datetime:
    with _call(run):
        return datetime.now(UTC) + timedelta(seconds=job.waits_s)


async def die(run: int) -> str:
    with _call(run):
        os._exit(POISONED)


async def block(run: int, job: Job) -> str:
    with _call(run):
        time.sleep(job.takes_s)  # noqa: ASYNC251 (that is the point)
    return f"{current_step().key} {job.number}"


# ── workflows ────────────────────────────────────────────────────────────────────────────────────────────────────────

_PERSISTENT = RetryPolicy.fixed(3, 0.02)


@app.workflow("chain")
async def chain(ctx: Context, job: Job) -> list[str]:
    """Steps of both kinds, failures that are tried again, a failure that is caught, a status."""
    with _run(ctx) as run:
        said = [await ctx.step("first", act, run, job)]
        ctx.set_status("half-way")
        said.append(await ctx.step("flaky", act, run, job, 1, retry=_PERSISTENT))
        said.append(await ctx.step("thread", act_in_thread, run, job, 2, retry=_PERSISTENT))
        try:
            await ctx.step("hopeless", refuse, run, retry=_PERSISTENT)
        except StepFailed as error:
            said.append(error.error_message)
        said.append(await ctx.step("last", act, run, job))
        return said


@app.workflow("ask")
async def ask(ctx: Context, job: Job) -> list[str]:
    """A signal between two steps."""
    with _run(ctx) as run:
        asked = await ctx.step("ask", act, run, job)
        answer = await ctx.suspend(ANSWER, status="waiting for an answer")
        return [asked, answer, await ctx.step("thank", act_in_thread, run, job)]


@app.workflow("nap")
async def nap(ctx: Context, job: Job) -> list[str]:
    """Both kinds of timers."""
    with _run(ctx) as run:
        await ctx.timer("nap", job.waits_s)
        await ctx.sleep_until("sleep", await ctx.step("wake at", wake_at, run, job))
        return [await ctx.step("wake", act, run, job)]


@app.workflow("crowd")
async def crowd(ctx: Context, job: Job) -> list[str]:
    """Steps, a signal and a timer side by side: signals and timers come while it runs."""
    with _run(ctx) as run:
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
    with _run(ctx) as run:
        before = await ctx.step("before", act, run, job)
        return [before, await ctx.step("broken", act_once_mended, run, job), await ctx.step("after", act, run, job)]


@app.workflow("long")
async def long(ctx: Context, job: Job) -> list[str]:
    """A step that outlasts a lease, in a thread and outside of one."""
    with _run(ctx) as run:
        return list(await asyncio.gather(ctx.step("task", act, run, job), ctx.step("thread", act_in_thread, run, job)))


@app.workflow("poison")
async def poison(ctx: Context, job: Job) -> list[str]:
    """Kills its worker, whoever that is: it must end as failed, and nobody else with it."""
    with _run(ctx) as run:
        return [await ctx.step("before", act, run, job), await ctx.step("die", die, run)]


@app.workflow("blocker")
async def blocker(ctx: Context, job: Job) -> list[str]:
    """Blocks the event loop of its worker for longer than a lease, which it keeps nevertheless."""
    with _run(ctx) as run:
        return [await ctx.step("block", block, run, job)]


def expected(workflow: str, job: Job, answer: str) -> list[str]:
    """What an instance returns if all went well."""
    by_workflow: dict[str, list[str]] = {
        chain.name: ["first", "flaky", "thread", "=never", "last"],
        ask.name: ["ask", f"={answer}", "thank"],
        nap.name: ["wake"],
        crowd.name: ["one", "two", "three", f"={answer}", "last"],
        mend.name: ["before", "broken", "after"],
        long.name: ["task", "thread"],
        poison.name: [],
        blocker.name: ["block"],
    }
    return [each[1:] if each.startswith("=") else f"{each} {job.number}" for each in by_workflow[workflow]]
