"""Lesson 18. Partitions.

A namespace has one or more partitions, so that it can be spread over a Redis Cluster: `MEMABLE_PARTITIONS`, fixed
when the namespace is first used. Nothing else changes: each test here is about something that touches many instances
at once.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import memable
from memable import App, Context, Engine, Settings, Status, StorageError
from tests.fundamentals.starting import Start

COUNT = 40


def shop() -> App:
    app = App()

    @app.workflow("order")
    async def order(ctx: Context, number: int) -> int:
        doubled = await ctx.step("double", int, number * 2)
        await ctx.timer("soon", 0.01)
        await ctx.suspend("go on")
        return doubled

    return app


async def waiting_at(engine: Engine, key: str) -> None:
    """Until all instances wait at `key`."""

    async def until(id: str) -> None:
        async for state in engine.subscribe("order", id):
            if state.key == key:
                return

    await asyncio.gather(*(until(str(number)) for number in range(COUNT)))


@pytest.mark.parametrize("partitions", [1, 4])
async def test_everything_works_whatever_their_number(start: Start, partitions: int) -> None:
    async with start(shop(), partitions=partitions) as engine:
        ids = [str(number) for number in range(COUNT)]
        handles: list[Any] = await engine.invoke_many("order", range(COUNT), ids=ids)
        await waiting_at(engine, "go on")  # steps are recorded, timers have fired
        assert len((await engine.list_instances("order", status=Status.SUSPENDED)).items) == COUNT
        await asyncio.gather(*(each.signal("go on") for each in handles))
        assert [await each.result() for each in handles] == [number * 2 for number in range(COUNT)]

        listed, cursor = list[str](), None
        while not listed or cursor:
            page = await engine.list_instances(limit=7, cursor=cursor)
            listed += [each.instance_id for each in page.items]
            cursor = page.cursor
        assert len(listed) == COUNT
        assert set(listed) == set(ids)
        await engine.wait_all()

        used = {engine._online().store.keys.of("order", id).partition.prefix for id in ids}
        assert len(used) == partitions


@pytest.mark.parametrize("partitions", [1, 4])
async def test_work_is_shared_by_several_workers(start: Start, partitions: int) -> None:
    async with start(shop(), partitions=partitions) as one, start(shop(), concurrency=3):
        ids = [str(number) for number in range(COUNT)]
        await one.invoke_many("order", range(COUNT), ids=ids)
        await waiting_at(one, "go on")
        handles = [one.get("order", id) for id in ids]
        await asyncio.gather(*(each.signal("go on") for each in handles))
        assert [await each.result() for each in handles] == [number * 2 for number in range(COUNT)]


async def test_their_number_is_read_from_the_namespace_and_another_is_refused(
    start: Start, redis_url: str, namespace: str
) -> None:
    async with start(shop(), partitions=4) as engine:
        await engine.invoke("order", 1, id="1")
        async with memable.connect(redis_url, namespace=namespace) as client:
            assert await client.get_metadata("order", "1") is not None
        with pytest.raises(StorageError, match="has 4 partitions, not 2"):
            await memable.connect(redis_url, settings=Settings(namespace=namespace, partitions=2))
