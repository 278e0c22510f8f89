"""Lesson 27. Deleting.

An instance that has ended is kept for its retention. `delete` forgets it now: its result, its steps, its place in
listings; and its id is free again.
"""

from __future__ import annotations

import contextlib
import itertools
from datetime import timedelta

import pytest

from memable import App, Context, InstanceBusy, InstanceNotFound, current_step
from tests.fundamentals.starting import Start
from tests.worker_process import until


@pytest.mark.spec("retention")
async def test_what_has_ended_is_kept_for_its_retention(start: Start) -> None:
    """Of the workflow, else of the app, else seven days; however it ended."""
    days = timedelta(days=1)
    apps = {7: App(), 3: App(retention=3 * days)}

    async def ends(ctx: Context, fails: bool) -> None:
        if fails:
            raise ValueError("no")

    async with contextlib.AsyncExitStack() as engines:
        for by_default, app in apps.items():
            kept = {f"of app {by_default}": by_default, f"own {by_default}": 1}
            app.register(f"of app {by_default}", ends)
            app.register(f"own {by_default}", ends, retention=days)
            engine = await engines.enter_async_context(start(app))
            for (name, expected), fails in itertools.product(kept.items(), (True, False)):
                instance = await engine.invoke(name, fails)
                await instance.wait()
                online = engine._online()
                keys = online.store.keys.of(name, instance.instance_id)
                left_ms = await online.connection.command("PTTL", keys.instance)
                assert expected * 86_400_000 - 3_600_000 < left_ms <= expected * 86_400_000


@pytest.mark.spec("retention")
async def test_when_its_retention_has_ended_it_was_never_there(start: Start) -> None:
    app = App(retention=timedelta(milliseconds=1))

    @app.workflow("brief")
    async def brief(ctx: Context) -> None: ...

    async with start(app) as engine:
        instance = await engine.invoke(brief, id="1")

        async def is_gone() -> bool:
            return await instance.metadata() is None

        await until(is_gone, "its retention has ended")
        assert (await engine.invoke(brief, id="1")).created


@pytest.mark.spec("delete")
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


@pytest.mark.spec("delete", "idempotency-key-lives")
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


@pytest.mark.spec("delete-busy")
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
