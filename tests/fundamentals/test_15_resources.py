"""Lesson 15. Resources of a worker.

`App(lifespan=…)` takes an async context manager, as in Starlette. It is entered once in each worker process; the
mapping that it yields (a connection pool, a client) is `ctx.resources` in every run of that process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from memable import App, Context
from tests.fundamentals.starting import Start


@pytest.mark.spec("lifespan", "context")
async def test_what_the_lifespan_yields_is_there_in_every_run(start: Start) -> None:
    events = list[str]()

    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[Mapping[str, Any]]:
        events.append("open")
        yield {"prices": {"hat": 5}}
        events.append("close")

    app = App(lifespan=lifespan)

    @app.workflow("price")
    async def price(ctx: Context, item: str) -> int:
        events.append("run")
        await ctx.suspend("pause")
        prices: dict[str, int] = ctx.resources["prices"]
        return prices[item]

    async with start(app) as engine:
        instance = await engine.invoke(price, "hat")
        await instance.wait()
        await instance.signal("pause")
        assert await instance.result() == 5
    assert events == ["open", "run", "run", "close"]


async def test_resources_are_closed_after_the_last_run(start: Start) -> None:
    events = list[str]()

    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[None]:
        yield
        events.append("close")

    app = App(lifespan=lifespan)

    @app.workflow("flow")
    async def flow(ctx: Context) -> None:
        await ctx.step("step", events.append, "step")
        events.append("end")

    async with start(app) as engine:
        await engine.invoke(flow, id="1")
        await engine.wait_all()
    assert events == ["step", "end", "close"]


async def test_an_app_without_a_lifespan_has_no_resources(start: Start) -> None:
    app = App()

    @app.workflow("flow")
    async def flow(ctx: Context) -> int:
        return len(ctx.resources)

    async with start(app) as engine:
        assert await (await engine.invoke(flow)).result() == 0


async def test_a_lifespan_that_fails_keeps_the_engine_from_starting(start: Start) -> None:
    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[None]:
        await asyncio.open_unix_connection("/no/such/database")
        yield

    with pytest.raises(FileNotFoundError):
        async with start(App(lifespan=lifespan)):
            pass
