"""Lesson 29. Deadlines.

A workflow may have a `deadline`, counted from the invoke. An instance that lives longer is failed then, with
`error_type` `DeadlineExceeded`, wherever it is; `resume` gives it the whole time again.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from memable import App, Context, Status, SuspendPoint, WorkflowFailed
from tests.fundamentals.starting import Start


@pytest.mark.spec("deadline")
async def test_an_instance_that_waits_for_too_long_fails(start: Start) -> None:
    app = App()

    @app.workflow("order", deadline=0.2)
    async def order(ctx: Context) -> None:
        await ctx.suspend("approval")

    async with start(app) as engine:
        instance = await engine.invoke(order, id="42")
        with pytest.raises(WorkflowFailed) as caught:
            await instance.result()
        assert caught.value.error_type == "DeadlineExceeded"
        assert "order/42 has not ended within its deadline of 0.2 s" in caught.value.error_message


@pytest.mark.spec("deadline")
async def test_one_that_runs_is_stopped_as_by_a_cancel(start: Start) -> None:
    app, stopped = App(), asyncio.Event()

    async def endless() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            stopped.set()

    @app.workflow("report", deadline=timedelta(milliseconds=200))
    async def report(ctx: Context) -> None:
        await ctx.step("endless", endless)

    async with start(app) as engine:
        instance = await engine.invoke(report)
        await stopped.wait()
        assert (await instance.wait()).status is Status.FAILED


async def test_one_that_ends_in_time_hears_nothing_of_it(start: Start) -> None:
    app = App()

    @app.workflow("quick", deadline=timedelta(days=1))
    async def quick(ctx: Context) -> str:
        await ctx.timer("nap", 0.01)
        return "done"

    async with start(app) as engine:
        assert await (await engine.invoke(quick)).result() == "done"


async def test_resume_gives_it_the_whole_time_again(start: Start) -> None:
    app, called = App(), list[str]()

    @app.workflow("order", deadline=1)
    async def order(ctx: Context) -> str:
        await ctx.step("charge", lambda: called.append("charge"))
        return await ctx.suspend(SuspendPoint("address", str))

    async with start(app) as engine:
        instance = await engine.invoke(order)
        with pytest.raises(WorkflowFailed):
            await instance.result()
        await instance.resume()
        assert (await instance.wait()).status is Status.SUSPENDED
        await instance.signal("address", "1 Main Street")
        assert await instance.result() == "1 Main Street"
    assert called == ["charge"]


@pytest.mark.spec("continue-as-deadline")
async def test_each_life_has_the_whole_time(start: Start) -> None:
    app = App()

    @app.workflow("counter", deadline=1)
    async def counter(ctx: Context, life: int) -> int:
        await ctx.timer("a while", 0.4)
        if life < 4:
            ctx.continue_as(life + 1)
        return life

    async with start(app) as engine:
        assert await (await engine.invoke(counter, 1)).result() == 4


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), "soon", timedelta(0)])
def test_a_deadline_is_a_positive_duration(wrong: object) -> None:
    async def order(ctx: Context) -> None: ...

    with pytest.raises(ValueError, match="the deadline of workflow 'order' must be"):
        App().register("order", order, deadline=wrong)  # type: ignore[call-overload]
