"""A run that has ended leaves no work to the garbage collector: thousands do so each second."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from memable import App, Context, Engine, Settings
from memable.runtime.run import Run

app = App()


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def nothing() -> str:
    return "done"


@app.workflow("steps")
async def steps(ctx: Context) -> list[str]:
    return [await ctx.step("one", nothing), *await asyncio.gather(ctx.step("two", nothing), ctx.step("three", nothing))]


async def test_runs_are_gone_once_they_are_over(redis_url: str, namespace: str) -> None:
    async with Engine(app, url=redis_url, settings=Settings(namespace=namespace)) as engine:
        assert await (await engine.invoke(steps)).result() == ["done"] * 3
        while engine._runtime.running:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        left = [each.name for each in gc.get_objects() if isinstance(each, Run)]
        assert not left, "something of a run refers to it in a circle"
