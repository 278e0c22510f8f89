"""Lesson 14. At least once, with the effect of once.

A step is *recorded* exactly once, but when a process dies between the effect and the record, it is *called* again.
`memable.current_step().idempotency_key` is a string to hand to a payment API and the like: it stays the same in
every attempt and every run of the step, and is another in another life of the instance.
"""

from __future__ import annotations

import pytest

from memable import App, Context, NotStarted, RetryPolicy, current_step
from tests.fundamentals.starting import Start


@pytest.mark.spec("idempotency-key")
async def test_the_key_is_the_same_in_every_attempt_run_and_thread(start: Start) -> None:
    app, keys = App(default_retry=RetryPolicy.fixed(1, delay=0)), list[str]()

    def charge_in_a_thread() -> None:
        charge()

    async def charge_async() -> None:
        charge()

    def charge() -> None:
        keys.append(current_step().idempotency_key)
        if len(keys) < 6:
            raise ConnectionError("no answer")

    @app.workflow("order")
    async def order(ctx: Context) -> None:
        await ctx.step("charge", charge_in_a_thread if len(keys) < 3 else charge_async)

    async with start(app) as engine:
        instance = await engine.invoke(order)
        for _ in range(2):
            await instance.wait()  # failed, after two attempts
            await instance.resume()
        await instance.result()
    assert len(keys) == 6
    assert len(set(keys)) == 1


async def test_the_key_is_another_for_each_step_instance_workflow_and_life(start: Start) -> None:
    app = App()

    def own_key() -> str:
        return current_step().idempotency_key

    async def flow(ctx: Context) -> list[str]:
        return [await ctx.step(key, own_key) for key in ("a", "b")]

    one, two = app.register("one", flow), app.register("two", flow)

    async with start(app) as engine:
        seen = list[str]()
        for workflow in (one, two):
            for id in ("1", "2"):
                seen += await (await engine.invoke(workflow, id=id)).result()
        assert len(set(seen)) == 8

        # a new life of the same instance: here the old one is gone as its retention ends, or by `delete`
        online = engine._online()
        keys = online.store.keys.of("one", "1")
        await online.connection.command("DEL", keys.instance, keys.steps)
        await online.store.forget(keys)
        seen += await (await engine.invoke(one, id="1")).result()
        assert len(set(seen)) == 10


@pytest.mark.spec("current-step")
async def test_the_current_step_says_what_is_being_called(start: Start) -> None:
    app = App(default_retry=RetryPolicy.fixed(2, delay=0))

    def who() -> str:
        step = current_step()
        if step.attempt < 3:
            raise ConnectionError
        return f"{step.workflow_name}/{step.instance_id} {step.key} attempt {step.attempt}"

    @app.workflow("order")
    async def order(ctx: Context) -> str:
        return await ctx.step("who:v1", who)

    async with start(app) as engine:
        assert await (await engine.invoke(order, id="42")).result() == "order/42 who:v1 attempt 3"


@pytest.mark.spec("current-step")
async def test_concurrent_steps_each_know_their_own(start: Start) -> None:
    import asyncio

    app, all_here = App(), asyncio.Barrier(10)

    async def who() -> str:
        before = current_step().key
        await all_here.wait()
        await asyncio.sleep(0)
        assert current_step().key == before
        return before

    @app.workflow("many")
    async def many(ctx: Context) -> list[str]:
        return await asyncio.gather(*(ctx.step(f"s{n}", who) for n in range(10)))

    async with start(app) as engine:
        assert await (await engine.invoke(many)).result() == [f"s{n}" for n in range(10)]


async def test_outside_of_a_step_there_is_none(start: Start) -> None:
    app = App()

    @app.workflow("flow")
    async def flow(ctx: Context) -> str:
        await ctx.step("step", str)
        try:
            return current_step().key
        except NotStarted as error:
            return str(error)

    with pytest.raises(NotStarted):
        current_step()
    async with start(app) as engine:
        assert "none is running here" in await (await engine.invoke(flow)).result()
