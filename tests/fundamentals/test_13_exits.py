"""Lesson 13. SystemExit and its like.

A `sys.exit()` in some library, in a step or in a workflow, is a failure like any other. It is recorded, never
retried, and does not stop the worker, which has other instances to run.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from memable import App, Context, RetryPolicy, Status, StepFailed
from tests.fundamentals.starting import Start


class Boom(BaseException):
    """Neither an Exception nor one of Python's own."""


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("error", [SystemExit("3"), KeyboardInterrupt("^C"), Boom("x")], ids=repr)
@pytest.mark.spec("base-exception")
async def test_an_exit_in_a_step_is_its_failure_recorded_and_never_retried(
    start: Start, error: BaseException, kind: str
) -> None:
    app, called, failures = App(default_retry=RetryPolicy.fixed(3, delay=0)), list[str](), list[StepFailed]()

    async def async_exit() -> None:
        called.append("call")
        raise error

    def sync_exit() -> None:
        called.append("call")
        raise error

    @app.workflow("exits")
    async def exits(ctx: Context) -> None:
        try:
            await ctx.step("exit", async_exit if kind == "async" else sync_exit)
        except StepFailed as failure:
            failures.append(failure)
        await ctx.suspend("pause")

    @app.workflow("other")
    async def other(ctx: Context) -> str:
        return "fine"

    async with start(app) as engine:
        instance = await engine.invoke(exits)
        await instance.wait()
        assert await (await engine.invoke(other)).result() == "fine"
        await instance.signal("pause")
        await instance.result()
    live, replayed = failures
    assert type(live) is type(replayed) is StepFailed
    assert vars(live) == vars(replayed)
    assert (live.error_type, live.error_message) == (type(error).__name__, str(error))
    assert called == ["call"]


@pytest.mark.parametrize("error", [SystemExit("3"), KeyboardInterrupt("^C"), Boom("x")], ids=repr)
@pytest.mark.parametrize("where", ["function", "task", "after a step", "after a wait"])
async def test_an_exit_in_a_workflow_fails_the_instance_and_not_the_worker(
    start: Start, error: BaseException, where: str
) -> None:
    app = App()

    async def in_a_task() -> None:
        raise error

    @app.workflow("exits")
    async def exits(ctx: Context) -> None:
        if where == "task":
            await asyncio.gather(in_a_task())
        elif where == "after a step":
            await ctx.step("step", str)
        elif where == "after a wait":
            await ctx.timer("wait", 0)
        raise error

    @app.workflow("other")
    async def other(ctx: Context) -> str:
        return await ctx.step("works", str)

    async with start(app) as engine:
        state = await (await engine.invoke(exits)).wait()
        assert state.status is Status.FAILED
        assert str(state) == f"failed: {type(error).__name__}: {error}"
        assert await (await engine.invoke(other)).result() == ""


async def test_sys_exit_may_be_caught_as_always(start: Start) -> None:
    app = App()

    @app.workflow("catches")
    async def catches(ctx: Context) -> str:
        try:
            sys.exit("enough")
        except SystemExit as exit:
            return await ctx.step("recover", str, exit)

    async with start(app) as engine:
        assert await (await engine.invoke(catches)).result() == "enough"


@pytest.mark.spec("shutdown")
async def test_a_cancelled_error_of_a_steps_own_is_its_failure(start: Start) -> None:
    """A library that cancels itself is not the worker being shut down."""
    app, called = App(), list[str]()

    async def cancels_itself() -> Any:
        called.append("call")
        raise asyncio.CancelledError("by the library")

    @app.workflow("flow")
    async def flow(ctx: Context) -> str:
        with pytest.raises(StepFailed) as failed:
            await ctx.step("call", cancels_itself)
        return failed.value.error_type

    async with start(app) as engine:
        assert await (await engine.invoke(flow)).result() == "CancelledError"
    assert called == ["call"]
