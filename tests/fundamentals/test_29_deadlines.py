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
from tests.resting import hasten, rests_at

HOUR = timedelta(hours=1)


@pytest.mark.spec("deadline")
async def test_an_instance_that_waits_for_too_long_fails(start: Start) -> None:
    app = App()

    @app.workflow("order", deadline=HOUR)
    async def order(ctx: Context) -> None:
        await ctx.suspend("approval")

    async with start(app) as engine:
        instance = await engine.invoke(order, id="42")
        await rests_at(instance, "approval")
        await hasten(engine, HOUR)
        with pytest.raises(WorkflowFailed) as caught:
            await instance.result()
        assert caught.value.error_type == "DeadlineExceeded"
        assert "order/42 has not ended within its deadline of 3600 s" in caught.value.error_message


@pytest.mark.spec("deadline")
async def test_one_that_runs_is_stopped_as_by_a_cancel(start: Start) -> None:
    app, begun, stopped = App(), asyncio.Event(), asyncio.Event()

    async def endless() -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            stopped.set()

    @app.workflow("report", deadline=HOUR)
    async def report(ctx: Context) -> None:
        await ctx.step("endless", endless)

    async with start(app) as engine:
        instance = await engine.invoke(report)
        await begun.wait()
        await hasten(engine, HOUR)
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

    @app.workflow("order", deadline=HOUR)
    async def order(ctx: Context) -> str:
        await ctx.step("charge", lambda: called.append("charge"))
        return await ctx.suspend(SuspendPoint("address", str))

    async with start(app) as engine:
        instance = await engine.invoke(order)
        await rests_at(instance, "address")
        await hasten(engine, HOUR)
        with pytest.raises(WorkflowFailed):
            await instance.result()
        await instance.resume()
        await rests_at(instance, "address")
        await hasten(engine, 0.9 * HOUR)
        await instance.signal("address", "1 Main Street")
        assert await instance.result() == "1 Main Street"
    assert called == ["charge"]


@pytest.mark.spec("continue-as-deadline")
async def test_each_life_has_the_whole_time(start: Start) -> None:
    app = App()

    @app.workflow("counter", deadline=HOUR)
    async def counter(ctx: Context, life: int) -> int:
        await ctx.timer(f"most of the time of life {life}", 0.9 * HOUR)
        if life < 4:
            ctx.continue_as(life + 1)
        return life

    async with start(app) as engine:
        instance = await engine.invoke(counter, 1)
        for life in range(1, 5):
            await rests_at(instance, f"most of the time of life {life}")
            await hasten(engine, 0.9 * HOUR)
        assert await instance.result() == 4


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), "soon", timedelta(0)])
def test_a_deadline_is_a_positive_duration(wrong: object) -> None:
    async def order(ctx: Context) -> None: ...

    with pytest.raises(ValueError, match="the deadline of workflow 'order' must be"):
        App().register("order", order, deadline=wrong)  # type: ignore[call-overload]
