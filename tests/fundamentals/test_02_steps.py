"""Lesson 2. A step happens once.

Whatever a workflow does to the world it does in a *step*: `await ctx.step("charge:v1", charge_card, order)`. The
result is recorded under the key. When the function runs again, after a crash, a resume, or a wait, a step that has a
record hands the record back, and is not called. Recovery is by key, so the order of the code does not matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial

import pytest

from memable import App, Context, DuplicateStep, Status, StepConflict, StepFailed, StepKind, StepState, WorkflowFailed
from tests.fundamentals.starting import Start


@pytest.mark.spec("step")
async def test_a_step_calls_a_function_with_its_arguments(start: Start) -> None:
    app = App()

    async def add(one: int, two: int) -> int:
        return one + two

    @app.workflow("sum")
    async def total(ctx: Context) -> int:
        return await ctx.step("add:v1", add, 1, 2)

    async with start(app) as engine:
        assert await (await engine.invoke(total)).result() == 3


@pytest.mark.spec("step-kinds")
async def test_a_step_may_be_async_or_sync_or_return_an_awaitable(start: Start) -> None:
    app = App()

    async def async_one() -> int:
        return 1

    def sync_two() -> int:
        return 2

    def awaitable_three() -> Awaitable[int]:
        async def three() -> int:
            return 3

        return three()

    class Four:
        async def __call__(self) -> int:
            return 4

    @app.workflow("all")
    async def all_kinds(ctx: Context) -> list[int]:
        return [
            await ctx.step("async", async_one),
            await ctx.step("sync", sync_two),
            await ctx.step("awaitable", awaitable_three),
            await ctx.step("callable object", Four()),
            await ctx.step("partial", partial(pow, 5), 1),
        ]

    async with start(app) as engine:
        assert await (await engine.invoke(all_kinds)).result() == [1, 2, 3, 4, 5]


@pytest.mark.spec("step", "resume")
async def test_finished_steps_keep_their_records_when_an_instance_is_resumed(start: Start) -> None:
    app, called = App(), list[str]()

    async def charge() -> str:
        called.append("charge")
        return "paid"

    async def ship() -> str:
        called.append("ship")
        if called.count("ship") == 1:
            raise ConnectionError("the warehouse does not answer")
        return "shipped"

    @app.workflow("order")
    async def order(ctx: Context) -> list[str]:
        return [await ctx.step("charge:v1", charge), await ctx.step("ship:v1", ship)]

    async with start(app) as engine:
        instance = await engine.invoke(order)
        assert (await instance.wait()).status is Status.FAILED
        await instance.resume()
        assert await instance.result() == ["paid", "shipped"]
    assert called == ["charge", "ship", "ship"]


@pytest.mark.spec("result-raises")
async def test_a_failed_step_fails_its_instance(start: Start) -> None:
    app = App()

    async def charge() -> None:
        raise ValueError("card expired")

    @app.workflow("order")
    async def order(ctx: Context) -> None:
        await ctx.step("charge:v1", charge)

    async with start(app) as engine:
        instance = await engine.invoke(order, id="42")
        with pytest.raises(WorkflowFailed, match=r"instance order/42 failed: StepFailed: .*card expired") as failed:
            await instance.result()
        assert failed.value.error_type == "StepFailed"
        assert failed.value.failed_step == "charge:v1"
        assert str(await instance.wait()).startswith("failed: StepFailed: step 'charge:v1' of order/42 failed")


@pytest.mark.spec("step-failed", "first-cause", "caught-failure")
async def test_a_workflow_can_catch_a_failure_and_go_on(start: Start) -> None:
    app, failures = App(), list[StepFailed]()

    async def charge() -> str:
        raise ValueError("card expired")

    async def send_invoice() -> str:
        return "invoiced"

    @app.workflow("order")
    async def order(ctx: Context) -> str:
        try:
            return await ctx.step("charge:v1", charge)
        except StepFailed as failure:
            failures.append(failure)
            return await ctx.step("invoice:v1", send_invoice)

    async with start(app) as engine:
        assert await (await engine.invoke(order)).result() == "invoiced"
    [failure] = failures
    assert (failure.key, failure.attempts) == ("charge:v1", 1)
    assert (failure.error_type, failure.error_message) == ("ValueError", "card expired")
    assert isinstance(failure.__cause__, ValueError)  # the original, the first time only


@pytest.mark.spec("fails-the-same")
async def test_a_step_fails_the_same_way_in_every_replay_without_being_called(start: Start) -> None:
    app, called, failures = App(), list[str](), list[StepFailed]()

    async def charge() -> None:
        called.append("charge")
        raise ValueError("card expired")

    @app.workflow("order")
    async def order(ctx: Context) -> None:
        try:
            await ctx.step("charge:v1", charge)
        except StepFailed as failure:
            failures.append(failure)
        await ctx.suspend("pause")

    async with start(app) as engine:
        instance = await engine.invoke(order)
        await instance.wait()
        await instance.signal("pause")
        await instance.result()
    live, replayed = failures
    assert type(live) is type(replayed)
    assert vars(live) == vars(replayed)
    assert str(live) == str(replayed)
    assert called == ["charge"]


@pytest.mark.spec("between-steps")
async def test_the_code_between_steps_runs_again_in_a_replay(start: Start) -> None:
    """Which is why everything that has an effect belongs in a step."""
    app, runs, steps = App(), list[str](), list[str]()

    @app.workflow("order")
    async def order(ctx: Context) -> None:
        runs.append("between")
        await ctx.step("effect", steps.append, "in a step")
        await ctx.suspend("pause")

    async with start(app) as engine:
        instance = await engine.invoke(order)
        await instance.wait()
        await instance.signal("pause")
        await instance.result()
    assert runs == ["between", "between"]
    assert steps == ["in a step"]


@pytest.mark.spec("duplicate-step")
async def test_a_key_used_twice_in_one_run_is_refused(start: Start) -> None:
    """It would else hand back another call's value. In a loop, give each round a key of its own."""
    app = App()

    @app.workflow("loop")
    async def loop(ctx: Context) -> list[str]:
        return [await ctx.step("item:v1", str, number) for number in range(2)]

    @app.workflow("numbered")
    async def numbered(ctx: Context) -> list[str]:
        return [await ctx.step(f"item[{number}]:v1", str, number) for number in range(2)]

    async with start(app) as engine:
        with pytest.raises(WorkflowFailed, match="'item:v1' of loop/1 was already used") as failed:
            await (await engine.invoke(loop, id="1")).result()
        assert failed.value.error_type == DuplicateStep.__name__
        assert await (await engine.invoke(numbered)).result() == ["0", "1"]


@pytest.mark.spec("inside-step")
async def test_a_step_can_make_no_durable_calls_of_its_own(start: Start) -> None:
    app = App()

    @app.workflow("nested")
    async def nested(ctx: Context) -> str:
        async def outer() -> str:
            return await ctx.step("inner", str)

        with pytest.raises(StepFailed, match="'inner' of nested/1 was called inside step 'outer'") as failed:
            await ctx.step("outer", outer)
        return failed.value.error_type

    @app.workflow("waits inside")
    async def waits_inside(ctx: Context) -> str:
        async def outer() -> None:
            await asyncio.gather(ctx.suspend("inner"))  # in a task, too

        with pytest.raises(StepFailed, match="inside step 'outer'") as failed:
            await ctx.step("outer", outer)
        return failed.value.error_type

    async with start(app) as engine:
        assert await (await engine.invoke(nested, id="1")).result() == StepConflict.__name__
        assert await (await engine.invoke(waits_inside, id="1")).result() == StepConflict.__name__


async def test_what_is_no_function_is_no_step(start: Start) -> None:
    app = App()

    async def fine() -> int:
        return 1

    @app.workflow("called too early")
    async def called_too_early(ctx: Context) -> int:
        coroutine = fine()
        try:
            return await ctx.step("fine", coroutine)  # type: ignore[call-overload, no-any-return]  # that is the point
        finally:
            coroutine.close()

    async with start(app) as engine:
        with pytest.raises(WorkflowFailed, match="is not callable: pass the function and its arguments") as failed:
            await (await engine.invoke(called_too_early)).result()
        assert failed.value.error_type == "TypeError"


@pytest.mark.spec("steps")
async def test_the_records_of_an_instance_can_be_looked_at(start: Start) -> None:
    app = App()

    async def charge() -> dict[str, int]:
        return {"charged": 5}

    async def ship() -> None:
        raise ConnectionError("no answer")

    @app.workflow("order")
    async def order(ctx: Context) -> None:
        await ctx.step("charge:v1", charge)
        await ctx.step("ship:v1", ship)

    async with start(app) as engine:
        await (await engine.invoke(order, id="42")).wait()
        charged, shipped = await engine.steps(order, "42")
    assert (charged.key, charged.kind, charged.state) == ("charge:v1", StepKind.STEP, StepState.COMPLETED)
    assert (charged.result, charged.error, charged.attempts) == ({"charged": 5}, None, 1)
    assert (shipped.key, shipped.state, shipped.result) == ("ship:v1", StepState.FAILED, None)
    assert shipped.error == "ConnectionError: no answer"
    assert charged.started_at is not None
    assert charged.completed_at is not None
    assert charged.started_at <= charged.completed_at


@pytest.mark.spec("landing")
async def test_steps_in_flight_when_the_function_ends_are_finished_and_recorded_first(start: Start) -> None:
    app, begun, go_on = App(), asyncio.Event(), asyncio.Event()

    async def send_mail() -> str:
        begun.set()
        await go_on.wait()
        return "sent"

    @app.workflow("order")
    async def order(ctx: Context) -> str:
        asyncio.ensure_future(ctx.step("mail:v1", send_mail))  # noqa: RUF006  (nobody waits for it)
        await begun.wait()
        return "done"

    async with start(app) as engine:
        instance = await engine.invoke(order, id="42")
        await begun.wait()
        go_on.set()
        assert await instance.result() == "done"
        assert [(step.key, step.result) for step in await engine.steps(order, "42")] == [("mail:v1", "sent")]
