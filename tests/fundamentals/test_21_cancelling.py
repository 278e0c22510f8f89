"""Lesson 21. Cancelling.

`cancel` ends an instance at once, wherever it is, and needs no living worker for it. If it runs, its worker cancels
what its tasks wait for; their `finally` blocks have 0.9 s for cleaning up, without durable calls. What has been
recorded stays, and `resume` goes on from there.
"""

from __future__ import annotations

import asyncio

import pytest

from memable import App, Context, Status, SuspendPoint, WorkflowCancelled
from memable.errors import SignalRejected
from tests.fundamentals.starting import Start


@pytest.mark.spec("cancel", "state-ended", "result-raises", "signal-terminal")
async def test_a_suspended_instance_is_cancelled(start: Start) -> None:
    app = App()

    @app.workflow("order")
    async def order(ctx: Context) -> None:
        await ctx.suspend("approval")

    async with start(app) as engine:
        instance = await engine.invoke(order)
        await instance.wait()
        state = await instance.cancel(reason="the customer has called")
        assert state.status is Status.CANCELLED
        assert str(state) == "cancelled: the customer has called"
        with pytest.raises(SignalRejected):
            await instance.signal("approval")
        with pytest.raises(WorkflowCancelled, match="the customer has called"):
            await instance.result()


@pytest.mark.spec("cancel-running")
async def test_a_running_one_too_and_its_finally_blocks_clean_up(start: Start) -> None:
    app, reached, cleaned = App(), asyncio.Event(), asyncio.Event()

    async def upload() -> None:
        reached.set()
        try:
            await asyncio.sleep(3600)
        finally:
            cleaned.set()

    @app.workflow("upload")
    async def uploading(ctx: Context) -> None:
        await ctx.step("upload", upload)

    async with start(app) as engine:
        instance = await engine.invoke(uploading, id="1")
        await reached.wait()
        await engine.cancel("upload", "1")
        await cleaned.wait()
        assert await engine.steps("upload", "1") == []  # whatever the step still did, nothing is recorded
        assert (await instance.wait()).status is Status.CANCELLED


@pytest.mark.spec("cancel-twice")
async def test_twice_is_fine_and_what_has_ended_stays_as_it_is(start: Start) -> None:
    app = App()

    @app.workflow("quick")
    async def quick(ctx: Context) -> str:
        return "done"

    @app.workflow("slow")
    async def slow(ctx: Context) -> None:
        await ctx.timer("a day", 86_400)

    async with start(app) as engine:
        ended, waiting = await engine.invoke(quick), await engine.invoke(slow)
        await ended.result()
        assert str(await ended.cancel()) == "completed"
        assert str(await waiting.cancel(reason="first")) == "cancelled: first"
        assert str(await waiting.cancel(reason="second")) == "cancelled: first"


@pytest.mark.spec("resume", "invocation")
async def test_resume_goes_on_from_what_is_recorded(start: Start) -> None:
    app, called = App(), list[str]()

    @app.workflow("order")
    async def order(ctx: Context) -> str:
        await ctx.step("charge", lambda: called.append("charge"))
        return await ctx.suspend(SuspendPoint("address", str))

    async with start(app) as engine:
        instance = await engine.invoke(order)
        await instance.wait()
        await instance.cancel()
        await instance.resume()
        await instance.wait()
        await instance.signal("address", "1 Main Street")
        assert await instance.result() == "1 Main Street"
    assert called == ["charge"]
