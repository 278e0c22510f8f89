"""Lesson 27. Deleting.

An instance that has ended is kept for its retention. `delete` forgets it now: its result, its steps, its place in
listings; and its id is free again.
"""

from __future__ import annotations

import pytest

from memable import App, Context, InstanceBusy, InstanceNotFound, current_step
from tests.fundamentals.starting import Start


async def test_nothing_is_left_of_a_deleted_instance(start: Start) -> None:
    app = App()

    @app.workflow("order")
    async def order(ctx: Context) -> str:
        return await ctx.step("charge", str, "charged")

    async with start(app) as engine:
        instance = await engine.invoke(order, id="42")
        await instance.result()
        await engine.delete(order, "42")
        assert await engine.get_metadata(order, "42") is None
        assert (await engine.list_instances(order)).items == []
        for gone in (instance.result(), engine.steps(order, "42"), engine.resume(order, "42")):
            with pytest.raises(InstanceNotFound, match="no instance order/42: never invoked, deleted"):
                await gone


async def test_its_id_can_be_used_again(start: Start) -> None:
    """With another input, too; and its steps have other idempotency keys: it is another life."""
    app, used = App(), list[str]()

    async def charge(amount: int) -> int:
        used.append(current_step().idempotency_key)
        return amount

    @app.workflow("order")
    async def order(ctx: Context, amount: int) -> int:
        return await ctx.step("charge", charge, amount)

    async with start(app) as engine:
        assert await (await engine.invoke(order, 1, id="42")).result() == 1
        await engine.delete(order, "42")
        anew = await engine.invoke(order, 2, id="42")
        assert anew.created
        assert await anew.result() == 2
    assert len(set(used)) == 2


async def test_what_has_not_ended_is_not_deleted(start: Start) -> None:
    app = App()

    @app.workflow("order")
    async def order(ctx: Context) -> None:
        await ctx.suspend("approval")

    async with start(app) as engine:
        instance = await engine.invoke(order, id="42")
        await instance.wait()
        with pytest.raises(InstanceBusy, match="order/42 is suspended: wait for it to end, or cancel it"):
            await engine.delete(order, "42")
        await instance.signal("approval")
        await instance.result()
        await engine.delete(order, "42")


async def test_what_never_was_cannot_be_deleted(start: Start) -> None:
    app = App()

    @app.workflow("order")
    async def order(ctx: Context) -> None: ...

    async with start(app) as engine:
        with pytest.raises(InstanceNotFound, match="no instance order/42"):
            await engine.delete(order, "42")
