"""Lesson 22. One step for each of many items.

`await ctx.map("resize:v1", pictures, resize)` calls `resize` once for each picture, as the steps `resize:v1[0]`,
`resize:v1[1]` and so on, in this process, and hands back the results in the order of the items.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from memable import App, Context, Engine, RetryPolicy, Status, StepFailed, TooManyRecords, WorkflowFailed
from tests.fundamentals.starting import Start
from tests.resting import replayed


class Work:
    """An effect that can be told to fail, and remembers what it did."""

    def __init__(self, *fails: int) -> None:
        self.fails = set(fails)
        self.called: list[int] = []
        self.at_once = self.most_at_once = 0

    async def double(self, number: int) -> int:
        self.called.append(number)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        for _ in range(10):
            await asyncio.sleep(0)
        self.at_once -= 1
        if number in self.fails:
            raise ValueError(f"no {number}")
        return 2 * number


@pytest.mark.spec("map")
async def test_the_results_come_in_the_order_of_the_items(start: Start) -> None:
    app, work = App(), Work()

    @app.workflow("batch")
    async def batch(ctx: Context) -> list[int]:
        return await ctx.map("double:v1", [3, 1, 2], work.double)

    async with start(app) as engine:
        instance = await engine.invoke(batch)
        assert await instance.result() == [6, 2, 4]
        records = await engine.steps(batch, instance.instance_id)
    assert sorted(record.key for record in records) == ["double:v1[0]", "double:v1[1]", "double:v1[2]"]
    assert work.most_at_once == 3


@pytest.mark.spec("map-concurrency")
async def test_at_most_so_many_are_on_their_way_at_a_time(start: Start) -> None:
    app, work = App(), Work()

    @app.workflow("batch")
    async def batch(ctx: Context) -> list[int]:
        return await ctx.map("double:v1", range(10), work.double, concurrency=3)

    async with start(app) as engine:
        assert await (await engine.invoke(batch)).result() == list(range(0, 20, 2))
    assert work.most_at_once == 3


async def test_no_items_are_no_results(start: Start) -> None:
    app, work = App(), Work()

    @app.workflow("batch")
    async def batch(ctx: Context) -> list[int]:
        return await ctx.map("double:v1", [], work.double)

    async with start(app) as engine:
        assert await (await engine.invoke(batch)).result() == []


async def failing(start: Start, work: Work, **options: Any) -> Engine:
    app = App()

    @app.workflow("batch")
    async def batch(ctx: Context) -> list[Any]:
        results = await ctx.map("double:v1", range(6), work.double, **options)
        return [str(each) if isinstance(each, StepFailed) else each for each in results]

    return start(app)


async def test_the_first_failure_lets_no_further_item_begin(start: Start) -> None:
    work = Work(1)
    async with await failing(start, work, concurrency=2) as engine:
        instance = await engine.invoke("batch", id="1")
        with pytest.raises(
            WorkflowFailed, match=r"step 'double:v1\[1\]' of batch/1 failed on call 1: ValueError: no 1"
        ):
            await instance.result()
        # what was on its way when it failed is finished and recorded
        assert {record.key for record in await engine.steps("batch", "1")} == {f"double:v1[{n}]" for n in work.called}
    assert 5 not in work.called


@pytest.mark.spec("map")
async def test_a_resume_calls_all_that_failed_and_nothing_else_again(start: Start) -> None:
    work = Work(1, 2)
    async with await failing(start, work) as engine:
        instance = await engine.invoke("batch", id="1")
        with pytest.raises(WorkflowFailed, match="no 1"):
            await instance.result()
        work.fails, work.called = set(), []
        await instance.resume()
        assert await instance.result() == [0, 2, 4, 6, 8, 10]
    assert sorted(work.called) == [1, 2]


@pytest.mark.spec("map-fail-fast")
async def test_without_fail_fast_a_failure_stands_in_its_place(start: Start) -> None:
    work = Work(1, 4)
    async with await failing(start, work, fail_fast=False, retry=RetryPolicy.fixed(1, delay=0)) as engine:
        instance = await engine.invoke("batch", id="1")
        results = await instance.result()
    assert [each for each in results if isinstance(each, int)] == [0, 4, 6, 10]
    assert results[1] == "step 'double:v1[1]' of batch/1 failed after 2 attempts: ValueError: no 1"
    assert sorted(work.called) == [0, 1, 1, 2, 3, 4, 4, 5]


async def test_live_equals_replay_of_failures_too(start: Start) -> None:
    app, work, seen = App(), Work(4, 1), list[str]()

    @app.workflow("batch")
    async def batch(ctx: Context) -> list[str]:
        try:
            await ctx.map("double:v1", [0, 4, 1, 2], work.double, concurrency=3)
        except StepFailed as error:
            seen.append(f"{error.key} {error}")
        await ctx.suspend("pause:v1")
        return seen

    async with start(app) as engine:
        first, again = await replayed(await engine.invoke(batch), "pause:v1")
    assert first == again
    assert first.startswith("double:v1[1] ")
    assert len(work.called) == len(set(work.called))


async def paused(start: Start, items: list[Any], later: list[Any], work: Work) -> Any:
    """The result of a map that is replayed with the items `later`."""
    app, given = App(), [items, later]

    @app.workflow("batch")
    async def batch(ctx: Context) -> Any:
        results = await ctx.map("double:v1", given.pop(0), work.double)
        await ctx.suspend("pause:v1")
        return results

    async with start(app) as engine:
        return await replayed(await engine.invoke(batch, id="1"), "pause:v1")


@pytest.mark.spec("map-conflict")
async def test_another_item_at_a_place_is_a_conflict(start: Start) -> None:
    with pytest.raises(WorkflowFailed, match=r"StepConflict: step 'double:v1\[1\]' of batch/1 was recorded for an"):
        await paused(start, [1, 2, 3], [1, 3, 2], Work())


async def test_items_may_be_added_at_the_end(start: Start) -> None:
    work = Work()
    assert await paused(start, [1, 2], [1, 2, 3], work) == [2, 4, 6]
    assert work.called == [1, 2, 3]


class Picture(BaseModel):
    name: str
    tags: set[str] = set()


async def test_an_item_may_be_whatever_pydantic_can_write(start: Start) -> None:
    app = App()

    async def name(picture: Picture) -> str:
        return picture.name

    @app.workflow("batch")
    async def batch(ctx: Context) -> list[str]:
        pictures = [Picture(name=each, tags={"a", "b", "c"}) for each in ("sun", "moon")]
        return await ctx.map("name:v1", pictures, name)

    async with start(app) as engine:
        instance = await engine.invoke(batch)
        assert await instance.result() == ["sun", "moon"]
        await instance.resume()
        assert await instance.result() == ["sun", "moon"]


async def test_an_item_that_cannot_be_written_is_refused_before_anything_is_called(start: Start) -> None:
    app, work = App(), Work()

    @app.workflow("batch")
    async def batch(ctx: Context) -> None:
        items: list[Any] = [1, object()]
        await ctx.map("double:v1", items, work.double)

    async with start(app) as engine:
        with pytest.raises(WorkflowFailed, match="SerializationError: item 1 of map 'double:v1' of batch/1 has no"):
            await (await engine.invoke(batch, id="1")).result()
    assert work.called == []


async def test_a_map_can_stand_beside_other_durable_calls(start: Start) -> None:
    app, work = App(), Work()

    @app.workflow("batch")
    async def batch(ctx: Context) -> list[Any]:
        both = await asyncio.gather(
            ctx.map("one:v1", [1, 2], work.double),
            ctx.timer("pause:v1", 0.05),
            ctx.map("two:v1", [3], work.double),
        )
        return list(both)

    async with start(app) as engine:
        assert await (await engine.invoke(batch)).result() == [[2, 4], None, [6]]
    assert sorted(work.called) == [1, 2, 3]


async def test_a_key_of_a_map_is_used_once(start: Start) -> None:
    app, work = App(), Work()

    @app.workflow("batch")
    async def batch(ctx: Context) -> None:
        await ctx.map("double:v1", [1], work.double)
        await ctx.map("double:v1", [1], work.double)

    async with start(app) as engine:
        with pytest.raises(WorkflowFailed, match="DuplicateStep: map 'double:v1' of batch/1 was already used"):
            await (await engine.invoke(batch, id="1")).result()


async def test_a_map_needs_a_concurrency_of_one_or_more(start: Start) -> None:
    app, work = App(), Work()

    @app.workflow("batch")
    async def batch(ctx: Context) -> None:
        await ctx.map("double:v1", [1], work.double, concurrency=0)

    async with start(app) as engine:
        with pytest.raises(WorkflowFailed, match="ValueError: map 'double:v1' needs a concurrency of at least 1"):
            await (await engine.invoke(batch)).result()


# ── how many records an instance may have ────────────────────────────────────────────────────────────────────────────


async def test_more_items_than_there_may_be_records_are_refused_before_the_first_call(start: Start) -> None:
    app, work = App(), Work()

    @app.workflow("batch")
    async def batch(ctx: Context) -> None:
        await ctx.step("before", str)
        await ctx.map("double:v1", range(10), work.double)

    async with start(app, max_records=10) as engine:
        instance = await engine.invoke(batch, id="1")
        with pytest.raises(
            WorkflowFailed, match="TooManyRecords: map 'double:v1' of batch/1 with its 10 items would be too much: an"
        ):
            await instance.result()
    assert work.called == []
    async with start(app, max_records=11) as engine:
        await engine.resume(batch, "1")
        assert (await engine.get(batch, "1").wait()).status is Status.COMPLETED


async def test_a_call_beyond_the_limit_is_refused_before_its_effect_and_records_there_are_handed_back(
    start: Start,
) -> None:
    app, called = App(), list[str]()

    async def effect(name: str) -> str:
        called.append(name)
        return name

    @app.workflow("long")
    async def long(ctx: Context) -> list[str]:
        results = [await ctx.step(f"step {number}", effect, str(number)) for number in range(3)]
        await ctx.suspend("pause")
        for key in ("four", "again"):
            with pytest.raises(TooManyRecords, match=f"step '{key}' of long/1 would be too much: .* may have 4"):
                await ctx.step(key, effect, "four")
        with pytest.raises(TooManyRecords, match="suspend point 'wait' of long/1 would be too much"):
            await ctx.suspend("wait")
        return results

    async with start(app, max_records=4) as engine:
        assert await replayed(await engine.invoke(long, id="1"), "pause") == ["0", "1", "2"]
    assert called == ["0", "1", "2"]


async def test_a_wait_that_was_given_up_leaves_room_for_another(start: Start) -> None:
    app = App()

    @app.workflow("impatient")
    async def impatient(ctx: Context) -> str:
        for number in range(5):
            asking = asyncio.create_task(ctx.suspend(f"answer {number}"))
            await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait([asking])
            assert asking.cancelled()
        return "nobody answers"

    async with start(app, max_records=1) as engine:
        assert await (await engine.invoke(impatient)).result() == "nobody answers"
