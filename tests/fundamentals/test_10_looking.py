"""Lesson 10. Looking at instances.

`ctx.set_status(…)` says what an instance is doing. `invocation.states()` follows it, `metadata()` says what is known
of it, and `list_instances` gives pages of them, newest first.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, timedelta

import pytest

from memable import App, Context, Engine, InvalidCursor, NotStarted, Status, Workflow, WorkflowMetadata, WorkflowState
from tests.fundamentals.starting import Start


@pytest.mark.spec("set-status", "state-running", "state-ended")
async def test_a_status_shows_while_the_instance_runs_and_after_it_has_completed(start: Start) -> None:
    app, go_on = App(), asyncio.Event()

    @app.workflow("order")
    async def order(ctx: Context) -> None:
        ctx.set_status("charging the card")
        await ctx.step("wait", go_on.wait)
        ctx.set_status("all done")

    async with start(app) as engine:
        instance = await engine.invoke(order)
        async for state in instance.states():
            if str(state) == "in progress: charging the card":
                go_on.set()
        assert str(await instance.wait()) == "completed: all done"


@pytest.mark.spec("subscribe")
async def test_states_come_in_order_and_end_with_the_terminal_one(start: Start) -> None:
    app = App()

    @app.workflow("order")
    async def order(ctx: Context) -> None:
        await ctx.suspend("approval")

    async with start(app) as engine:
        instance = await engine.invoke(order)
        seen = list[WorkflowState]()
        async for state in instance.states():
            seen.append(state)
            if state.status is Status.SUSPENDED:
                await instance.signal("approval")
        ranks = [list(Status).index(state.status) for state in seen]
        at_rest = ranks.index(list(Status).index(Status.SUSPENDED))
        assert ranks[: at_rest + 1] == sorted(ranks[: at_rest + 1])
        assert ranks[at_rest + 1 :] == sorted(ranks[at_rest + 1 :])
        assert seen[-1] == await instance.wait()
        assert str(seen[-1]) == "completed"


@pytest.mark.spec("set-status-replay")
async def test_a_status_is_silent_in_a_replay_and_the_last_one_is_restored(start: Start) -> None:
    app, replayed, go_on = App(), asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        replayed.set()
        await go_on.wait()

    @app.workflow("order")
    async def order(ctx: Context) -> None:
        ctx.set_status("charging")
        for _ in range(20):  # time enough for it to be said
            await asyncio.sleep(0)
        await ctx.step("charge", str)
        ctx.set_status("waiting for approval")
        await ctx.suspend("approval")
        await ctx.step("hold", hold)
        ctx.set_status("shipping")

    async with start(app) as engine:
        instance = await engine.invoke(order)
        await instance.wait()
        seen = list[str]()

        async def watch() -> None:
            async for state in instance.states():
                seen.append(str(state))

        watching = asyncio.ensure_future(watch())
        await instance.signal("approval")
        await replayed.wait()
        metadata = await instance.metadata()
        assert metadata is not None
        assert str(metadata.state) == "in progress: waiting for approval"
        go_on.set()
        await watching
    assert not any("charging" in state for state in seen)
    assert seen[-1] == "completed: shipping"


async def metadata_of(engine: Engine, workflow: Workflow[None, None], id: str) -> WorkflowMetadata:
    metadata = await engine.get_metadata(workflow, id)
    assert metadata is not None
    return metadata


@pytest.mark.spec("get-metadata", "invocation")
async def test_metadata_of_an_instance_that_completed(start: Start) -> None:
    app = App()

    @app.workflow("order")
    async def order(ctx: Context) -> None: ...

    async with start(app) as engine:
        instance = await engine.invoke(order, id="42")
        await instance.result()
        known = await metadata_of(engine, order, "42")
        assert known == await instance.metadata()
    assert (known.workflow, known.instance_id) == ("order", "42")
    assert (known.status, str(known.state)) == (Status.COMPLETED, "completed")
    assert (known.attempt, known.worker, known.error, known.waiting_on) == (1, None, None, [])
    assert known.started_at is not None
    assert known.completed_at is not None
    assert known.created_at <= known.started_at <= known.completed_at
    assert {known.created_at.tzinfo, known.started_at.tzinfo, known.completed_at.tzinfo} == {UTC}


@pytest.mark.spec("get-metadata")
async def test_metadata_of_an_instance_that_runs_names_its_worker(start: Start) -> None:
    app, begun, go_on = App(), asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        begun.set()
        await go_on.wait()

    @app.workflow("order")
    async def order(ctx: Context) -> None:
        await ctx.step("hold", hold)

    async with start(app) as engine:
        instance = await engine.invoke(order, id="42")
        await begun.wait()
        known = await metadata_of(engine, order, "42")
        assert (known.status, known.completed_at) == (Status.RUNNING, None)
        assert known.worker is not None
        go_on.set()
        await instance.result()


@pytest.mark.spec("get-metadata", "state-ended", "error-text")
async def test_metadata_of_an_instance_that_failed_and_after_it_was_resumed(start: Start) -> None:
    app, runs = App(), list[str]()

    @app.workflow("order")
    async def order(ctx: Context) -> None:
        runs.append("run")
        if len(runs) == 1:
            raise ConnectionError("no answer")

    async with start(app) as engine:
        instance = await engine.invoke(order, id="42")
        await instance.wait()
        failed = await metadata_of(engine, order, "42")
        assert (failed.status, failed.attempt) == (Status.FAILED, 1)
        assert (failed.error, str(failed.state)) == ("ConnectionError: no answer", "failed: ConnectionError: no answer")
        assert failed.completed_at is not None

        await instance.resume()
        await instance.result()
        resumed = await metadata_of(engine, order, "42")
        assert (resumed.status, resumed.attempt, resumed.error) == (Status.COMPLETED, 2, None)
        assert (resumed.created_at, resumed.started_at) == (failed.created_at, failed.started_at)
        assert resumed.completed_at is not None


async def test_there_is_no_metadata_of_what_never_was(start: Start) -> None:
    async with start(App()) as engine:
        assert await engine.get_metadata("order", "42") is None
        assert await engine.get("order", "42").metadata() is None


def three_ends() -> App:
    """Workflows that come to rest in three ways."""
    app = App()

    @app.workflow("good")
    async def good(ctx: Context) -> None: ...

    @app.workflow("bad")
    async def bad(ctx: Context) -> None:
        raise ValueError("no")

    @app.workflow("waiting")
    async def waiting(ctx: Context) -> None:
        await ctx.suspend("for ever")

    return app


async def invoke_all(engine: Engine, *ids: str) -> None:
    for id in ids:
        for name in ("good", "bad", "waiting"):
            await (await engine.invoke(name, id=id)).wait()


@pytest.mark.spec("list-instances", "list-unknown")
async def test_listing_all_by_workflow_and_by_status(start: Start) -> None:
    async with start(three_ends()) as engine:
        await invoke_all(engine, "1", "2")

        async def names(workflow: str | None = None, status: Status | str | None = None) -> list[str]:
            page = await engine.list_instances(workflow, status=status)
            assert page.cursor is None
            return [f"{each.workflow}/{each.instance_id}" for each in page.items]

        assert await names() == ["waiting/2", "bad/2", "good/2", "waiting/1", "bad/1", "good/1"]  # newest first
        assert await names("good") == ["good/2", "good/1"]
        assert await names(status=Status.FAILED) == ["bad/2", "bad/1"]
        assert await names("waiting", "suspended") == ["waiting/2", "waiting/1"]
        assert await names("good", Status.FAILED) == []
        assert await names("unknown") == []


@pytest.mark.spec("list-instances")
async def test_a_listing_comes_in_pages(start: Start) -> None:
    async with start(three_ends()) as engine:
        await invoke_all(engine, "1", "2", "3")
        pages, cursor = list[list[str]](), None
        while not pages or cursor:
            page = await engine.list_instances(limit=4, cursor=cursor)
            pages.append([f"{each.workflow}/{each.instance_id}" for each in page.items])
            cursor = page.cursor
        assert [len(page) for page in pages] == [4, 4, 1]
        listed = [name for page in pages for name in page]
        assert listed == [f"{name}/{id}" for id in "321" for name in ("waiting", "bad", "good")]
        with pytest.raises(InvalidCursor):
            await engine.list_instances(cursor="page 2")
        with pytest.raises(ValueError, match="limit must be a whole number from 1"):
            await engine.list_instances(limit=0)


@pytest.mark.spec("result-timeout", "durations")
async def test_waiting_may_have_an_end_and_leaves_the_instance_alone(start: Start) -> None:
    async with start(three_ends()) as engine:
        instance = await engine.invoke("waiting", id="1")
        await instance.wait()
        for timeout in (0, timedelta(milliseconds=1)):
            with pytest.raises(TimeoutError):
                await instance.result(timeout=timeout)
        assert (await instance.wait()).status is Status.SUSPENDED


async def test_whoever_still_waits_when_the_engine_stops_is_told(start: Start) -> None:
    async with start(three_ends()) as engine:
        instance = await engine.invoke("waiting", id="1")
        await instance.wait()
        waiting = asyncio.ensure_future(instance.result())
        await asyncio.sleep(0)
    with pytest.raises(NotStarted):
        await waiting
