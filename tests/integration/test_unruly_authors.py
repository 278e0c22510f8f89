"""Authors who catch everything, and errors that cannot be told: the worker goes on, and nothing is lost."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from memable import App, Context, Engine, Settings, Status, WorkflowFailed
from tests.worker_process import TOO_LONG_S


async def catches_and_tries_again(ctx: Context) -> Any:
    for _ in range(12):
        try:
            return await ctx.suspend("p")
        except BaseException:
            continue
    return "gave up"


async def catches_and_sleeps(ctx: Context) -> Any:
    try:
        return await ctx.suspend("p")
    except BaseException:
        await asyncio.sleep(3600)


@pytest.mark.parametrize("unruly", [catches_and_tries_again, catches_and_sleeps])
async def test_a_parked_run_that_refuses_to_end_keeps_neither_the_loop_nor_its_slot(
    redis_url: str, namespace: str, unruly: Any
) -> None:
    app = App()
    app.register("unruly", unruly)

    @app.workflow("other")
    async def other(ctx: Context) -> str:
        return "done"

    settings = Settings(redis_url=redis_url, namespace=namespace, concurrency=1)
    async with Engine(app, url=redis_url, settings=settings) as engine:
        instance = await engine.invoke("unruly", id="1")
        assert (await instance.wait(TOO_LONG_S)).status is Status.SUSPENDED
        assert await (await engine.invoke(other)).result(TOO_LONG_S) == "done"
        await instance.signal("p", 5)
        assert await instance.result(TOO_LONG_S) == 5


class Untellable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("in_step", [True, False])
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError("no file 'a\udcff'"), r"no file 'a\udcff'"),
        (Untellable(), "(its text cannot be had: RuntimeError)"),
        (ValueError("x" * 3_000_000), "characters in all)"),
    ],
    ids=["surrogate", "untellable", "huge"],
)
async def test_an_error_whose_text_cannot_be_stored_fails_the_instance_all_the_same(
    redis_url: str, namespace: str, caplog: pytest.LogCaptureFixture, error: Exception, told: str, *, in_step: bool
) -> None:
    caplog.set_level(
        logging.CRITICAL, logger="memable.run"
    )  # a log with a surrogate is more than pytest-xdist can carry
    app = App()

    def fail() -> None:
        raise error

    @app.workflow("fails")
    async def fails(ctx: Context) -> None:
        if in_step:
            await ctx.step("fail", fail)
        fail()

    async with Engine(app, url=redis_url, settings=Settings(redis_url=redis_url, namespace=namespace)) as engine:
        with pytest.raises(WorkflowFailed) as failed:
            await (await engine.invoke(fails)).result(TOO_LONG_S)
    assert told in failed.value.error_message


async def test_a_status_with_a_lone_surrogate_is_shown_escaped(redis_url: str, namespace: str) -> None:
    app = App()

    @app.workflow("says")
    async def says(ctx: Context) -> Any:
        ctx.set_status("a\udcff")
        return await ctx.suspend("p", status="b\udcff")

    async with Engine(app, url=redis_url, settings=Settings(redis_url=redis_url, namespace=namespace)) as engine:
        instance = await engine.invoke(says)
        assert str(await instance.wait(TOO_LONG_S)) == r"suspended: b\udcff"
        await instance.signal("p", 1)
        assert await instance.result(TOO_LONG_S) == 1
