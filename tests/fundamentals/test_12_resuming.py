"""Lesson 12. Resuming.

`resume` runs an instance at rest again. Finished steps keep their records. Of a failed instance it clears the
records of the failure that ended it, so that what failed is tried anew; failures that the workflow caught and
survived stay.
"""

from __future__ import annotations

import asyncio

import pytest

from memable import App, Context, InstanceNotFound, Status, StepFailed
from tests.fundamentals.starting import Start


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


async def test_what_never_was_cannot_be_resumed(start: Start) -> None:
    app = App()

    @app.workflow("order")
    async def order(ctx: Context) -> None: ...

    async with start(app) as engine:
        with pytest.raises(InstanceNotFound, match="no instance order/42"):
            await engine.resume(order, "42")
