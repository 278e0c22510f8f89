"""Lesson 6. Sync steps run in threads.

A step function without `async` runs in a thread, so that it blocks nothing. The threads are memable's own: as many
as `CONCURRENCY`, with the context variables of the workflow, and without a say in when the process ends.
"""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading

import pytest

from memable import App, Context, current_step
from tests.fundamentals.starting import Start
from tests.worker_process import TOO_LONG_S

tenant = contextvars.ContextVar[str]("tenant", default="nobody")


@pytest.mark.spec("step-threads")
async def test_a_sync_step_runs_in_another_thread(start: Start) -> None:
    app = App()

    @app.workflow("where")
    async def where(ctx: Context) -> bool:
        return await ctx.step("where:v1", threading.get_ident) != threading.get_ident()

    async with start(app) as engine:
        assert await (await engine.invoke(where)).result()


@pytest.mark.spec("step-threads")
async def test_a_hundred_sync_steps_run_at_once(start: Start) -> None:
    app, barrier = App(), threading.Barrier(100)

    @app.workflow("many")
    async def many(ctx: Context) -> int:
        # nobody passes the barrier until all hundred have reached it
        return len({*await asyncio.gather(*(ctx.step(f"meet[{n}]:v1", barrier.wait) for n in range(100)))})

    async with start(app, concurrency=100) as engine:
        assert await (await engine.invoke(many)).result() == 100


async def test_a_thread_sees_the_context_variables_of_the_workflow_and_changes_only_its_own(start: Start) -> None:
    app = App()

    def read_and_set() -> str:
        seen = tenant.get()
        tenant.set("the thread's")
        return seen

    @app.workflow("tenants")
    async def tenants(ctx: Context, name: str) -> list[str]:
        tenant.set(name)
        return [await ctx.step("read:v1", read_and_set), tenant.get()]

    async with start(app) as engine:
        instances = [await engine.invoke(tenants, name) for name in ("a", "b")]
        assert [await each.result() for each in instances] == [["a", "a"], ["b", "b"]]
    assert tenant.get() == "nobody"


@pytest.mark.spec("current-step")
async def test_a_thread_knows_its_step(start: Start) -> None:
    app = App()

    def who() -> str:
        step = current_step()
        return f"{step.workflow_name}/{step.instance_id} {step.key} {step.attempt}"

    @app.workflow("flow")
    async def flow(ctx: Context) -> str:
        return await ctx.step("who:v1", who)

    async with start(app) as engine:
        assert await (await engine.invoke(flow, id="1")).result() == "flow/1 who:v1 1"


async def test_a_sync_step_does_not_block_others(start: Start) -> None:
    app, go_on = App(), threading.Event()

    @app.workflow("blocks")
    async def blocks(ctx: Context) -> bool:
        return await ctx.step("wait:v1", go_on.wait)

    @app.workflow("frees")
    async def frees(ctx: Context) -> None:
        await ctx.step("set:v1", go_on.set)

    async with start(app) as engine:
        blocked = await engine.invoke(blocks)
        await (await engine.invoke(frees)).result()
        assert await blocked.result() is True


HANGING = """
import asyncio, threading
from memable import App, Context, Engine, StepTimeout

app = App()

def hang() -> None:
    threading.Event().wait()

@app.workflow("hangs")
async def hangs(ctx: Context) -> str:
    try:
        await ctx.step("hang:v1", hang, timeout=0.05)
    except StepTimeout:
        pass
    return "went on"

async def main() -> None:
    async with Engine(app) as engine:
        print(await (await engine.invoke(hangs)).result(), flush=True)

asyncio.run(main())
"""


async def test_a_thread_that_hangs_does_not_hold_up_the_end_of_the_process() -> None:
    ended = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=TOO_LONG_S, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "went on\n"), ended.stderr
