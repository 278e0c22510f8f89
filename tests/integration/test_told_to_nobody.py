"""Several steps fail at once, and the first whose failure is told ends the run before the others are heard of."""

from __future__ import annotations

import asyncio

import pytest

from memable import App, Context, Engine, Settings, Status
from memable.holding import Held
from memable.journal import Draft
from memable.store import Store


async def test_a_failure_that_was_recorded_and_told_to_nobody_is_tried_again(
    redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, called, record = App(), list[str](), Store.record

    async def record_and_hear_late(self: Store, held: Held, key: str, draft: Draft, elapsed_ms: float) -> bytes | None:
        there = await record(self, held, key, draft, elapsed_ms)
        if key == "b" and there is None:
            await asyncio.Event().wait()  # until the failure of a cancels whoever waits for b
        return there

    async def fails_once(name: str) -> str:
        called.append(name)
        if called.count(name) == 1:
            raise ValueError(name)
        return name

    @app.workflow("order")
    async def order(ctx: Context) -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ctx.step(name, fails_once, name)) for name in "ba"]
        return [task.result() for task in tasks]

    async with Engine(app, url=redis_url, settings=Settings(namespace=namespace)) as engine:
        with monkeypatch.context() as late:
            late.setattr(Store, "record", record_and_hear_late)
            instance = await engine.invoke(order)
            assert (await instance.wait()).status is Status.FAILED
        await instance.resume()
        assert await instance.result() == ["b", "a"]
