"""Lesson 11. Telling a replay from the first time.

`ctx.is_replaying` is true from the claim until every record that existed then has been handed back, or until the
first durable call without a record. `ctx.logger` is silent meanwhile, so that a log has each line once.
"""

from __future__ import annotations

import logging

import pytest

from memable import App, Context
from tests.fundamentals.starting import Start


@pytest.mark.spec("replaying-never")
async def test_a_first_run_is_never_replaying(start: Start) -> None:
    app, seen = App(), list[bool]()

    @app.workflow("flow")
    async def flow(ctx: Context) -> None:
        seen.append(ctx.is_replaying)
        await ctx.step("a", str)
        seen.append(ctx.is_replaying)

    async with start(app) as engine:
        await (await engine.invoke(flow)).result()
    assert seen == [False, False]


@pytest.mark.spec("replaying-ends", "context")
async def test_a_replay_ends_when_every_record_has_been_handed_back(start: Start) -> None:
    app, runs = App(), list[list[bool]]()

    @app.workflow("flow")
    async def flow(ctx: Context) -> None:
        runs.append(seen := [ctx.is_replaying])
        for key in "ab":
            await ctx.step(key, str)
            seen.append(ctx.is_replaying)
        await ctx.suspend("pause")
        seen.append(ctx.is_replaying)
        await ctx.step("c", str)
        seen.append(ctx.is_replaying)

    async with start(app) as engine:
        instance = await engine.invoke(flow)
        await instance.wait()
        await instance.signal("pause")
        await instance.result()
    first, second = runs
    assert first == [False, False, False]
    # at the start, after a, after b; the signal is the last record
    assert second == [True, True, True, False, False]


@pytest.mark.spec("replaying-ends")
async def test_a_replay_ends_at_the_first_call_that_has_no_record(start: Start) -> None:
    app, runs = App(), list[list[bool]]()

    @app.workflow("flow")
    async def flow(ctx: Context) -> None:
        runs.append(seen := [ctx.is_replaying])
        if len(runs) == 2:
            await ctx.step("new", str)  # added to the code meanwhile
            seen.append(ctx.is_replaying)
        await ctx.step("old", str)
        seen.append(ctx.is_replaying)
        await ctx.suspend("pause")

    async with start(app) as engine:
        instance = await engine.invoke(flow)
        await instance.wait()
        await instance.signal("pause")
        await instance.result()
    assert runs == [[False, False], [True, False, False]]


async def test_a_resume_of_a_wait_is_a_replay_up_to_the_wait(start: Start) -> None:
    app, seen = App(), list[list[bool]]()

    @app.workflow("flow")
    async def flow(ctx: Context) -> None:
        seen.append([ctx.is_replaying])
        await ctx.step("a", str)
        seen[-1].append(ctx.is_replaying)
        await ctx.suspend("pause")

    async with start(app) as engine:
        instance = await engine.invoke(flow)
        await instance.wait()
        await instance.resume()
        await instance.wait()
    assert seen == [[False, False], [True, False]]


async def test_an_instance_that_has_recorded_nothing_has_nothing_to_replay(start: Start) -> None:
    app, seen = App(), list[bool]()

    @app.workflow("flow")
    async def flow(ctx: Context) -> None:
        seen.append(ctx.is_replaying)
        await ctx.suspend("pause")

    async with start(app) as engine:
        instance = await engine.invoke(flow)
        await instance.wait()
        await instance.resume()
        await instance.wait()
    assert seen == [False, False]


@pytest.mark.spec("logger")
async def test_the_logger_names_the_instance_and_is_silent_in_a_replay(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()

    @app.workflow("order")
    async def order(ctx: Context) -> None:
        ctx.logger.info("charging %s", "Ada")
        await ctx.step("charge", str)
        ctx.logger.info("charged")
        await ctx.suspend("pause")
        ctx.logger.info("shipping")

    with caplog.at_level(logging.INFO, logger="memable.workflow"):
        async with start(app) as engine:
            instance = await engine.invoke(order, id="42")
            await instance.wait()
            await instance.signal("pause")
            await instance.result()
    records = [record for record in caplog.records if record.name == "memable.workflow"]
    assert [record.getMessage() for record in records] == [
        "[order/42] charging Ada",
        "[order/42] charged",
        "[order/42] shipping",
    ]
    assert {(vars(record)["workflow"], vars(record)["instance_id"]) for record in records} == {("order", "42")}


@pytest.mark.spec("context")
async def test_the_start_of_an_instance_is_the_same_in_every_replay(start: Start) -> None:
    app, seen = App(), list[object]()

    @app.workflow("flow")
    async def flow(ctx: Context) -> None:
        seen.append(ctx.started_at)
        await ctx.suspend("pause")

    async with start(app) as engine:
        instance = await engine.invoke(flow)
        await instance.wait()
        await instance.signal("pause")
        await instance.result()
        metadata = await instance.metadata()
    assert metadata is not None
    assert seen == [metadata.started_at] * 2
