"""Lesson 5. Timeouts.

`ctx.step(…, timeout=10)` limits one attempt. A step that takes longer is a `StepTimeout`. It is not retried unless
the policy says `retry_timeouts=True`: whether the effect has happened is not known.
"""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

from memable import App, Context, RetriesExhausted, RetryPolicy, StepFailed, StepTimeout, WorkflowFailed, current_step
from tests.fundamentals.starting import Start

SHORT_S = 0.02


async def for_ever() -> None:
    await asyncio.Event().wait()


@pytest.mark.spec("step-timeout", "durations")
async def test_a_step_that_takes_too_long_fails(start: Start) -> None:
    app = App()

    @app.workflow("slow")
    async def slow(ctx: Context) -> None:
        await ctx.step("call:v1", for_ever, timeout=timedelta(milliseconds=20))

    async with start(app) as engine:
        with pytest.raises(
            WorkflowFailed, match=r"step 'call:v1' of slow/1 timed out on call 1: .* within 0.02 s"
        ) as it:
            await (await engine.invoke(slow, id="1")).result()
        assert (it.value.error_type, it.value.failed_step) == ("StepTimeout", "call:v1")


@pytest.mark.spec("step-failed-classes", "retry-timeouts")
async def test_a_timeout_is_not_retried_by_default(start: Start) -> None:
    app, attempts = App(), list[int]()

    async def call() -> None:
        attempts.append(current_step().attempt)
        await for_ever()

    @app.workflow("slow")
    async def slow(ctx: Context) -> str:
        with pytest.raises(StepTimeout):
            await ctx.step("call:v1", call, timeout=SHORT_S, retry=RetryPolicy.fixed(3, delay=0))
        return "caught"

    async with start(app) as engine:
        assert await (await engine.invoke(slow)).result() == "caught"
    assert attempts == [1]


@pytest.mark.spec("step-timeout", "retry-timeouts")
async def test_a_timeout_is_of_one_attempt_not_of_all(start: Start) -> None:
    app, attempts = App(), list[int]()

    async def call() -> str:
        attempts.append(current_step().attempt)
        if len(attempts) < 4:
            await for_ever()
        return "fourth"

    @app.workflow("slow")
    async def slow(ctx: Context) -> str:
        policy = RetryPolicy.fixed(3, delay=0, retry_timeouts=True)
        return await ctx.step("call:v1", call, timeout=SHORT_S, retry=policy)

    async with start(app) as engine:
        assert await (await engine.invoke(slow)).result() == "fourth"
    assert attempts == [1, 2, 3, 4]


async def test_retried_timeouts_exhaust_the_retries(start: Start) -> None:
    app, failures = App(), list[StepFailed]()

    @app.workflow("slow")
    async def slow(ctx: Context) -> None:
        policy = RetryPolicy.fixed(1, delay=0, retry_timeouts=True)
        try:
            await ctx.step("call:v1", for_ever, timeout=SHORT_S, retry=policy)
        except StepFailed as failure:
            failures.append(failure)

    async with start(app) as engine:
        await (await engine.invoke(slow)).result()
    assert isinstance(failures[0], RetriesExhausted)
    assert "2 attempts" in str(failures[0])


async def test_a_record_beats_the_timeout(start: Start) -> None:
    """In a replay there is nothing to wait for, however short the timeout has become."""
    app, timeouts = App(), [60.0, 0.0]

    async def call() -> str:
        return "in time"

    @app.workflow("flow")
    async def flow(ctx: Context) -> str:
        result = await ctx.step("call:v1", call, timeout=timeouts.pop(0))
        await ctx.suspend("pause")
        return result

    async with start(app) as engine:
        instance = await engine.invoke(flow)
        await instance.wait()
        await instance.signal("pause")
        assert await instance.result() == "in time"
    assert timeouts == []


@pytest.mark.spec("fails-the-same")
async def test_a_timeout_comes_back_in_a_replay(start: Start) -> None:
    app, failures = App(), list[StepTimeout]()

    @app.workflow("slow")
    async def slow(ctx: Context) -> None:
        try:
            await ctx.step("call:v1", for_ever, timeout=SHORT_S)
        except StepTimeout as failure:
            failures.append(failure)
        await ctx.suspend("pause")

    async with start(app) as engine:
        instance = await engine.invoke(slow)
        await instance.wait()
        await instance.signal("pause")
        await instance.result()
    live, replayed = failures
    assert vars(live) == vars(replayed)
    assert str(live) == str(replayed)


async def test_a_timeout_of_the_functions_own_is_an_ordinary_failure(start: Start) -> None:
    app, failures, attempts = App(), list[StepFailed](), list[int]()

    async def call() -> None:
        attempts.append(current_step().attempt)
        raise TimeoutError("the bank's, not ours")

    @app.workflow("flow")
    async def flow(ctx: Context) -> None:
        try:
            await ctx.step("call:v1", call, timeout=60, retry=RetryPolicy.fixed(1, delay=0))
        except StepFailed as failure:
            failures.append(failure)

    async with start(app) as engine:
        await (await engine.invoke(flow)).result()
    assert type(failures[0]) is RetriesExhausted
    assert attempts == [1, 2]


@pytest.mark.spec("timed-out-thread")
async def test_a_thread_that_is_timed_out_is_left_to_itself(start: Start) -> None:
    """A thread cannot be stopped: its result is dropped, and it may overlap what follows."""
    app, begun, go_on, ended = App(), threading.Event(), threading.Event(), threading.Event()

    def call() -> str:
        begun.set()
        go_on.wait()
        ended.set()
        return "too late"

    @app.workflow("slow")
    async def slow(ctx: Context) -> str:
        # keeps the loop, and so the time, until the thread has begun: one that has not is never called
        asyncio.get_running_loop().call_soon(begun.wait)
        try:
            return await ctx.step("call:v1", call, timeout=SHORT_S)
        except StepTimeout:
            return "timed out"

    async with start(app) as engine:
        instance = await engine.invoke(slow, id="1")
        assert await instance.result() == "timed out"
        assert not ended.is_set()
        go_on.set()
        assert await asyncio.to_thread(ended.wait)
        assert [step.error for step in await engine.steps(slow, "1")] == ["TimeoutError: no result within 0.02 s"]


@pytest.mark.parametrize("timeout", [float("nan"), float("inf"), "10"])
async def test_what_is_no_duration_is_no_timeout(start: Start, timeout: float) -> None:
    app = App()

    @app.workflow("flow")
    async def flow(ctx: Context) -> None:
        await ctx.step("call:v1", for_ever, timeout=timeout)

    async with start(app) as engine:
        state = await (await engine.invoke(flow)).wait()
        assert str(state).startswith("failed: ValueError: the timeout of step 'call:v1' must be a finite number")
