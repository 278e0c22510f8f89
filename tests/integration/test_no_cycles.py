"""A run that has ended leaves no work to the garbage collector: thousands do so each second."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from memable import App, Context, Engine, Settings
from memable.runtime.run import Run
from tests.worker_process import until

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

        def left() -> list[str]:
            runs = [each for each in gc.get_objects() if isinstance(each, Run)]
            # this process may have runs of other tests
            return [each.name for each in runs if each.held.keys.instance.startswith(f"{namespace}:")]

        # the last task of each takes a moment to end; a circle would stay for ever
        await until(lambda: not left(), "the end of all runs")
