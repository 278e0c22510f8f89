"""Lesson 12. Resuming.

`resume` runs an instance at rest again. Finished steps keep their records. Of a failed instance it clears the
records of the failure that ended it, so that what failed is tried anew; failures that the workflow caught and
survived stay. `rerun` names further records to drop.
"""

from __future__ import annotations

import asyncio

import pytest

from memable import (
    App,
    Context,
    InstanceBusy,
    InstanceNotFound,
    InvalidKey,
    RecordNotFound,
    Status,
    StepFailed,
    SuspendPoint,
)
from tests.fundamentals.starting import Start


@pytest.mark.spec("resume", "resume-failure")
async def test_the_step_that_failed_is_called_again(start: Start) -> None:
    app, called = App(), list[str]()

    async def ship() -> str:
        called.append("ship")
        if len(called) < 3:
            raise ConnectionError("no answer")
        return "shipped"

    @app.workflow("order")
    async def order(ctx: Context) -> str:
        return await ctx.step("ship", ship)

    async with start(app) as engine:
        instance = await engine.invoke(order)
        for _ in range(2):
            assert (await instance.wait()).status is Status.FAILED
            await instance.resume()
        assert await instance.result() == "shipped"


@pytest.mark.spec("resume-survived")
async def test_a_failure_that_was_survived_is_not_tried_again(start: Start) -> None:
    app, called = App(), list[str]()

    async def fails(name: str) -> None:
        called.append(name)
        raise ValueError(name)

    @app.workflow("order")
    async def order(ctx: Context) -> None:
        try:
            await ctx.step("optional", fails, "optional")
        except StepFailed:
            called.append("survived")
        await ctx.step("needed", fails, "needed")

    async with start(app) as engine:
        instance = await engine.invoke(order)
        await instance.wait()
        await instance.resume()
        await instance.wait()
    assert called == ["optional", "survived", "needed", "survived", "needed"]


@pytest.mark.spec("resume-failure")
async def test_what_an_escaping_exception_was_raised_from_is_tried_again_too(start: Start) -> None:
    app, called = App(), list[str]()

    async def fails_once() -> str:
        called.append("call")
        if len(called) == 1:
            raise ValueError("first")
        return "fine"

    @app.workflow("order")
    async def order(ctx: Context) -> str:
        try:
            return await ctx.step("call", fails_once)
        except StepFailed as failure:
            raise RuntimeError("the order cannot go on") from failure

    async with start(app) as engine:
        instance = await engine.invoke(order)
        assert "RuntimeError: the order cannot go on" in str(await instance.wait())
        await instance.resume()
        assert await instance.result() == "fine"


@pytest.mark.spec("resume-failure")
async def test_all_failures_of_a_group_are_tried_again(start: Start) -> None:
    app, called = App(), list[str]()
    both = asyncio.Barrier(2)

    async def fails_once(name: str) -> str:
        called.append(name)
        if called.count(name) == 1:
            await both.wait()  # so that neither is cancelled by the other's failure
            raise ValueError(name)
        return name

    @app.workflow("order")
    async def order(ctx: Context) -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ctx.step(name, fails_once, name)) for name in "ab"]
        return [task.result() for task in tasks]

    async with start(app) as engine:
        instance = await engine.invoke(order)
        assert (await instance.wait()).status is Status.FAILED
        await instance.resume()
        assert await instance.result() == ["a", "b"]


@pytest.mark.spec("resume")
async def test_a_completed_instance_comes_to_the_same_end(start: Start) -> None:
    app, called = App(), list[str]()

    @app.workflow("order")
    async def order(ctx: Context) -> str:
        await ctx.step("charge", called.append, "charge")
        return "done"

    async with start(app) as engine:
        instance = await engine.invoke(order)
        assert await instance.result() == "done"
        await instance.resume()
        assert await instance.result() == "done"
    assert called == ["charge"]


@pytest.mark.spec("resume-joined")
async def test_a_running_instance_is_joined_not_doubled(start: Start) -> None:
    app, begun, go_on, runs = App(), asyncio.Event(), asyncio.Event(), list[str]()

    async def hold() -> None:
        begun.set()
        await go_on.wait()

    @app.workflow("order")
    async def order(ctx: Context) -> str:
        runs.append("run")
        await ctx.step("hold", hold)
        return "done"

    async with start(app) as engine:
        instance = await engine.invoke(order)
        await begun.wait()
        await instance.resume()
        go_on.set()
        assert await instance.result() == "done"
        metadata = await instance.metadata()
        assert metadata is not None
        assert metadata.attempt == 1
    assert runs == ["run"]


@pytest.mark.spec("resume-unknown")
async def test_what_never_was_cannot_be_resumed(start: Start) -> None:
    app = App()

    @app.workflow("order")
    async def order(ctx: Context) -> None: ...

    async with start(app) as engine:
        with pytest.raises(InstanceNotFound, match="no instance order/42"):
            await engine.resume(order, "42")


@pytest.mark.spec("resume-rerun")
async def test_rerun_calls_the_steps_that_it_names_once_more(start: Start) -> None:
    app, called = App(), list[str]()

    async def do(name: str) -> int:
        called.append(name)
        return len(called)

    @app.workflow("report")
    async def report(ctx: Context) -> list[int]:
        return [await ctx.step(name, do, name) for name in ("fetch", "render", "send")]

    async with start(app) as engine:
        instance = await engine.invoke(report)
        assert await instance.result() == [1, 2, 3]
        await instance.resume(rerun=["render", "send"])
        assert await instance.result() == [1, 4, 5]
    assert called == ["fetch", "render", "send", "render", "send"]


@pytest.mark.spec("resume-rerun")
async def test_rerun_of_a_failure_that_was_survived_tries_it_again(start: Start) -> None:
    app, called = App(), list[str]()

    async def discount() -> float:
        called.append("discount")
        if len(called) == 1:
            raise ValueError("no such voucher")
        return 0.1

    @app.workflow("order")
    async def order(ctx: Context) -> float:
        try:
            return await ctx.step("discount", discount)
        except StepFailed:
            return 0.0

    async with start(app) as engine:
        instance = await engine.invoke(order)
        assert await instance.result() == 0.0
        await instance.resume(rerun=["discount"])
        assert await instance.result() == 0.1


async def test_rerun_of_a_point_waits_for_another_signal(start: Start) -> None:
    app, approval = App(), SuspendPoint("approval", bool)

    @app.workflow("order")
    async def order(ctx: Context) -> bool:
        return await ctx.suspend(approval)

    async with start(app) as engine:
        instance = await engine.invoke(order)
        await instance.wait()
        await instance.signal(approval, False)
        assert await instance.result() is False
        await instance.resume(rerun=[approval])
        assert (await instance.wait()).status is Status.SUSPENDED
        await instance.signal(approval, True)
        assert await instance.result() is True


async def test_rerun_of_an_open_wait_begins_its_time_anew(start: Start) -> None:
    app = App()

    @app.workflow("trial")
    async def trial(ctx: Context) -> None:
        await ctx.timer("trial", 1000)

    async with start(app) as engine:
        instance = await engine.invoke(trial)
        await instance.wait()
        [before] = await engine.steps(trial, instance.instance_id)
        await instance.resume(rerun=["trial"])
        await instance.wait()
        [after] = await engine.steps(trial, instance.instance_id)
        assert before.started_at is not None
        assert after.started_at is not None
        assert after.started_at > before.started_at


async def test_nothing_is_done_when_a_key_to_rerun_has_no_record(start: Start) -> None:
    app, called = App(), list[str]()

    @app.workflow("order")
    async def order(ctx: Context) -> None:
        await ctx.step("charge", called.append, "charge")

    async with start(app) as engine:
        instance = await engine.invoke(order)
        await instance.result()
        with pytest.raises(RecordNotFound, match="has no record under 'pack'"):
            await instance.resume(rerun=["charge", "pack"])
        with pytest.raises(InvalidKey):
            await instance.resume(rerun=["_open:charge"])
        with pytest.raises(TypeError, match=r"a list of keys, not one: \['charge'\]"):
            await instance.resume(rerun="charge")
        metadata = await instance.metadata()
        assert metadata is not None
        assert metadata.status is Status.COMPLETED
    assert called == ["charge"]


@pytest.mark.spec("resume-busy")
async def test_what_runs_cannot_be_rerun(start: Start) -> None:
    app, begun, go_on = App(), asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        begun.set()
        await go_on.wait()

    @app.workflow("order")
    async def order(ctx: Context) -> None:
        await ctx.step("charge", str, "charged")
        await ctx.step("hold", hold)

    async with start(app) as engine:
        instance = await engine.invoke(order)
        await begun.wait()
        with pytest.raises(InstanceBusy, match="is running: wait for it to come to rest, or cancel it"):
            await instance.resume(rerun=["charge"])
        go_on.set()
        await instance.result()
