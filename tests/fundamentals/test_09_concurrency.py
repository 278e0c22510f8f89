"""Lesson 9. Several things at once.

Steps, waits and timers may run concurrently, with asyncio's own tools: `gather`, `TaskGroup`, `wait`, `wait_for`. An
instance comes to rest only when nothing of it can go on without a signal or a timer. Waiting is not an exception: no
`except` can swallow it. `finally` blocks do run when the instance comes to rest, but make no durable calls then.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from memable import App, Context, SignalRejected, Status, WorkflowFailed
from tests.fundamentals.starting import Start


@pytest.mark.spec("concurrency", "calls-are-objects")
async def test_gathered_steps_run_concurrently(start: Start) -> None:
    app, both = App(), asyncio.Barrier(2)

    async def meet(name: str) -> str:
        await both.wait()  # passes when both are there
        return name

    @app.workflow("pair")
    async def pair(ctx: Context) -> list[str]:
        return [*await asyncio.gather(ctx.step("a", meet, "a"), ctx.step("b", meet, "b"))]

    async with start(app) as engine:
        assert await (await engine.invoke(pair)).result() == ["a", "b"]


@pytest.mark.spec("concurrency")
async def test_gathered_waits_are_all_open_and_take_their_signals_in_any_order(start: Start) -> None:
    app = App()

    @app.workflow("votes")
    async def votes(ctx: Context) -> list[Any]:
        return await asyncio.gather(*(ctx.suspend(name) for name in ("ada", "bob", "cyd")))

    async with start(app) as engine:
        instance = await engine.invoke(votes)
        await instance.wait()
        metadata = await instance.metadata()
        assert metadata is not None
        assert metadata.waiting_on == ["ada", "bob", "cyd"]
        for name in ("cyd", "ada", "bob"):
            await instance.signal(name, f"{name} says yes")
        assert await instance.result() == ["ada says yes", "bob says yes", "cyd says yes"]


@pytest.mark.spec("in-flight")
async def test_a_step_beside_a_wait_is_done_before_the_instance_comes_to_rest(start: Start) -> None:
    app, called = App(), list[str]()

    async def prepare() -> str:
        called.append("prepare")
        return "prepared"

    @app.workflow("order")
    async def order(ctx: Context) -> list[Any]:
        return [*await asyncio.gather(ctx.suspend("approval"), ctx.step("prepare", prepare))]

    async with start(app) as engine:
        instance = await engine.invoke(order)
        await instance.wait()
        assert called == ["prepare"]
        await instance.signal("approval", True)
        assert await instance.result() == [True, "prepared"]
    assert called == ["prepare"]


@pytest.mark.spec("in-flight-signal")
async def test_a_signal_that_comes_while_a_step_is_in_flight_is_delivered_at_once(start: Start) -> None:
    app, begun, go_on = App(), asyncio.Event(), asyncio.Event()

    async def long_step() -> None:
        begun.set()
        await go_on.wait()

    @app.workflow("order")
    async def order(ctx: Context) -> str:
        async def approval() -> str:
            answer: str = await ctx.suspend("approval")
            go_on.set()  # the step ends only after the signal has been delivered
            return answer

        answer, _ = await asyncio.gather(approval(), ctx.step("long", long_step))
        return answer

    async with start(app) as engine:
        instance = await engine.invoke(order)
        await begun.wait()
        while True:  # the point is open although the instance runs
            metadata = await instance.metadata()
            assert metadata is not None
            assert metadata.status is Status.RUNNING
            if metadata.waiting_on:
                break
        await instance.signal("approval", "yes")
        assert await instance.result() == "yes"


@pytest.mark.spec("concurrency", "calls-are-objects")
async def test_a_task_group(start: Start) -> None:
    app = App()

    async def double(number: int) -> int:
        return number * 2

    @app.workflow("group")
    async def group(ctx: Context) -> list[Any]:
        async with asyncio.TaskGroup() as tasks:
            step = tasks.create_task(ctx.step("double", double, 21))
            wait = tasks.create_task(ctx.suspend("answer"))
            timer = tasks.create_task(ctx.timer("soon", 0.01))
        return [step.result(), wait.result(), timer.result()]

    async with start(app) as engine:
        instance = await engine.invoke(group)
        async for state in instance.states():
            if state.status is Status.SUSPENDED and state.key == "answer":
                break
        await instance.signal("answer", "yes")
        assert await instance.result() == [42, "yes", None]


@pytest.mark.spec("asyncio-wait")
async def test_the_first_of_two(start: Start) -> None:
    """On a replay both may be done at once; `ctx.first` will record the choice, where it matters."""
    app = App()

    @app.workflow("deadline")
    async def deadline(ctx: Context) -> str:
        answer = asyncio.ensure_future(ctx.suspend("answer"))
        timeout = asyncio.ensure_future(ctx.timer("timeout", 3600))
        done, pending = await asyncio.wait({answer, timeout}, return_when=asyncio.FIRST_COMPLETED)
        for each in pending:
            each.cancel()
        await ctx.suspend("pause")
        return str(answer.result()) if answer in done else "too late"

    async with start(app) as engine:
        for winner, expected in (("answer", "yes"), ("timeout", "too late")):
            instance = await engine.invoke(deadline, id=winner)
            await instance.wait()
            await instance.signal(winner, "yes" if winner == "answer" else None)
            assert (await instance.wait()).key == "pause"
            loser = {"answer": "timeout", "timeout": "answer"}[winner]
            with pytest.raises(SignalRejected):  # who was cancelled waits no more
                await instance.signal(loser)
            await instance.signal("pause")
            assert await instance.result() == expected


async def test_a_step_may_be_given_up_and_called_again(start: Start) -> None:
    """A cancelled step has no record: whether its effect has happened is not known."""
    app, given_up = App(), False

    async def slow_at_first() -> str:
        if not given_up:
            await asyncio.Event().wait()
        return "second"

    @app.workflow("impatient")
    async def impatient(ctx: Context) -> str:
        nonlocal given_up
        try:
            return await asyncio.wait_for(ctx.step("call:v1", slow_at_first), 0.01)
        except TimeoutError:
            given_up = True
            return await ctx.step("call:v1", slow_at_first)

    async with start(app) as engine:
        assert await (await engine.invoke(impatient, id="1")).result() == "second"
        assert [step.result for step in await engine.steps(impatient, "1")] == ["second"]


@pytest.mark.spec("landing")
async def test_when_one_gathered_step_fails_the_others_are_recorded_all_the_same(start: Start) -> None:
    app, failed = App(), asyncio.Event()

    async def fails() -> None:
        failed.set()
        raise ValueError("no")

    async def ends_later() -> str:
        await failed.wait()
        return "recorded"

    @app.workflow("pair")
    async def pair(ctx: Context) -> None:
        await asyncio.gather(ctx.step("fails", fails), ctx.step("ends later", ends_later))

    async with start(app) as engine:
        instance = await engine.invoke(pair, id="1")
        with pytest.raises(WorkflowFailed) as it:
            await instance.result()
        assert it.value.failed_step == "fails"
        results = {step.key: step.result for step in await engine.steps(pair, "1")}
        assert results == {"fails": None, "ends later": "recorded"}


@pytest.mark.spec("no-swallowing")
async def test_except_exception_around_a_wait_is_never_entered_because_of_the_wait(start: Start) -> None:
    app, swallowed = App(), list[str]()

    @app.workflow("cautious")
    async def cautious(ctx: Context) -> str:
        try:
            answer: str = await ctx.suspend("answer")
        except Exception as error:
            swallowed.append(repr(error))
            return "swallowed"
        return answer

    async with start(app) as engine:
        instance = await engine.invoke(cautious)
        assert (await instance.wait()).status is Status.SUSPENDED
        await instance.signal("answer", "yes")
        assert await instance.result() == "yes"
    assert swallowed == []


@pytest.mark.spec("finally")
async def test_finally_around_a_wait_runs_each_time_but_makes_durable_calls_only_at_the_end(start: Start) -> None:
    app, closed, cleaned = App(), list[str](), list[str]()

    @app.workflow("tidy")
    async def tidy(ctx: Context) -> str:
        try:
            answer: str = await ctx.suspend("answer")
        finally:
            closed.append("closed")  # a file, a lock: whatever was opened in this process
            await ctx.step("clean up", cleaned.append, "cleaned")
        return answer

    async with start(app) as engine:
        instance = await engine.invoke(tidy)
        await instance.wait()
        assert cleaned == []
        await instance.signal("answer", "yes")
        assert await instance.result() == "yes"
    assert closed == ["closed", "closed"]
    assert cleaned == ["cleaned"]


async def test_a_workflow_that_catches_even_cancellation_comes_to_rest_all_the_same(start: Start) -> None:
    app = App()

    @app.workflow("stubborn")
    async def stubborn(ctx: Context) -> str:
        try:
            answer: str = await ctx.suspend("answer")
        except BaseException:
            return "swallowed"
        return answer

    async with start(app) as engine:
        instance = await engine.invoke(stubborn)
        assert (await instance.wait()).status is Status.SUSPENDED
        await instance.signal("answer", "yes")
        assert await instance.result() == "yes"
