"""cancel: an instance ends at once, wherever it is; its worker stops what it does, and nobody is told a lie."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import memable
from memable import App, Client, Context, Engine, InstanceNotFound, RetryPolicy, Settings, Status, WorkflowCancelled
from memable.errors import InvalidKey, NotStarted, SignalRejected
from memable.runtime import farewell
from tests.proxy import Proxy
from tests.worker_process import TOO_LONG_S, until

Author = Callable[[Context], Awaitable[Any]]
LONG_S = 600
"""A lease that never ends here: what a worker learns, it is told."""


class Stage:
    """An engine that runs one author's workflow, and what that noted."""

    def __init__(self, url: str, namespace: str) -> None:
        self.url, self.settings = url, Settings(namespace=namespace, lease=LONG_S, park_grace=LONG_S, shutdown_grace=0)
        self.noted: list[str] = []
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()

    def engine(self, author: Author) -> Engine:
        app = App()
        app.register("work", author)
        return Engine(app, url=self.url, settings=self.settings)

    async def hold(self) -> str:
        """In flight until `go_on`."""
        self.noted.append("begun")
        self.reached.set()
        try:
            await self.go_on.wait()
        finally:
            self.noted.append("over")
        return "held"


@pytest.fixture
def stage(redis_url: str, namespace: str) -> Stage:
    return Stage(redis_url, namespace)


async def at_rest_in(engine: Engine) -> None:
    await until(lambda: engine._runtime.running == 0, "no task of the run is left")


# ── wherever it is ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("cancel")
async def test_queued_it_is_never_run(stage: Stage) -> None:
    async def work(ctx: Context) -> None:
        stage.noted.append("run")

    app = App()
    workflow = app.register("work", work)
    async with Client(stage.url, app=app, settings=stage.settings, namespace=stage.settings.namespace) as client:
        instance = await client.invoke(workflow, id="1")
        state = await instance.cancel(reason="changed my mind")
        assert (state.status, str(state)) == (Status.CANCELLED, "cancelled: changed my mind")
        assert await client.get_metadata(workflow, "1") == await instance.metadata()
        async with Engine(app, url=stage.url, settings=stage.settings) as engine:
            other = await engine.invoke(workflow, id="2")
            await other.result(TOO_LONG_S)
    assert stage.noted == ["run"]


@pytest.mark.spec("cancel-running")
async def test_in_an_async_step_its_worker_cancels_it(stage: Stage) -> None:
    async def work(ctx: Context) -> None:
        await ctx.step("hold", stage.hold)

    async with stage.engine(work) as engine:
        instance = await engine.invoke("work", id="1")
        await stage.reached.wait()
        assert str(await instance.cancel()) == "cancelled"
        await at_rest_in(engine)
        assert stage.noted == ["begun", "over"]
        assert await engine.steps("work", "1") == []
        with pytest.raises(WorkflowCancelled) as caught:
            await instance.result(TOO_LONG_S)
    assert (caught.value.workflow, caught.value.instance_id, caught.value.reason) == ("work", "1", None)


async def test_in_a_thread_the_call_goes_on_and_nothing_of_it_is_recorded(stage: Stage) -> None:
    began, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def blocks() -> str:
        began.set()
        go_on.wait(TOO_LONG_S)
        ended.set()
        return "too late"

    async def work(ctx: Context) -> None:
        await ctx.step("blocks", blocks)
        stage.noted.append("went on")

    async with stage.engine(work) as engine:
        instance = await engine.invoke("work", id="1")
        await asyncio.to_thread(began.wait, 20)
        await instance.cancel()
        await at_rest_in(engine)
        go_on.set()
        assert await asyncio.to_thread(ended.wait, 20)
        assert await engine.steps("work", "1") == []
        assert stage.noted == []


@pytest.mark.spec("cancel")
async def test_in_a_back_off_there_is_no_further_attempt(stage: Stage) -> None:
    async def fails() -> None:
        stage.noted.append("attempt")
        stage.reached.set()
        raise ConnectionError("no answer")

    async def work(ctx: Context) -> None:
        await ctx.step("fails", fails, retry=RetryPolicy.fixed(1000, 0.2))

    async with stage.engine(work) as engine:
        instance = await engine.invoke("work", id="1")
        await stage.reached.wait()
        await instance.cancel()
        await at_rest_in(engine)
        assert (await instance.wait(TOO_LONG_S)).status is Status.CANCELLED
        assert stage.noted == ["attempt"]


async def test_suspended_it_takes_no_signal_any_more(stage: Stage) -> None:
    async def work(ctx: Context) -> Any:
        return await asyncio.gather(ctx.suspend("p"), ctx.timer("t", 3600))

    async with stage.engine(work) as engine:
        instance = await engine.invoke("work", id="1")
        assert (await instance.wait(TOO_LONG_S)).status is Status.SUSPENDED
        assert str(await instance.cancel(reason="no more")) == "cancelled: no more"
        with pytest.raises(SignalRejected, match="cancelled"):
            await instance.signal("p", 1)


async def test_those_who_wait_for_it_are_told(stage: Stage) -> None:
    async def work(ctx: Context) -> None:
        await ctx.step("hold", stage.hold)

    async with stage.engine(work) as engine:
        instance = await engine.invoke("work", id="1")
        await stage.reached.wait()

        async def follow() -> list[str]:
            return [str(state) async for state in instance.states()]

        following, waiting = asyncio.ensure_future(follow()), asyncio.ensure_future(instance.wait(TOO_LONG_S))
        await asyncio.sleep(0)
        await instance.cancel(reason="too slow")
        assert (await following)[-1] == str(await waiting) == "cancelled: too slow"
        known = await instance.metadata()
        assert known is not None
        assert (known.error, known.worker) == (None, None)
        assert known.completed_at is not None


# ── twice, too late, unknown ─────────────────────────────────────────────────────────────────────────────────────────


async def test_what_has_ended_stays_as_it_is_and_its_state_says_how(stage: Stage) -> None:
    async def work(ctx: Context) -> str:
        ctx.set_status("all done")
        return "done"

    async with stage.engine(work) as engine:
        instance = await engine.invoke("work", id="1")
        await instance.result(TOO_LONG_S)
        assert str(await instance.cancel(reason="too late")) == "completed: all done"
        assert await instance.result(TOO_LONG_S) == "done"


async def test_the_second_of_two_cancels_is_fine_and_changes_nothing(stage: Stage) -> None:
    async def work(ctx: Context) -> Any:
        return await ctx.suspend("p")

    async with stage.engine(work) as engine:
        instance = await engine.invoke("work", id="1")
        await instance.wait(TOO_LONG_S)
        states = await asyncio.gather(*(instance.cancel(reason=str(number)) for number in range(5)))
        assert len({str(state) for state in states}) == 1
        assert (await instance.wait(TOO_LONG_S)) == states[0]


@pytest.mark.spec("cancel-twice")
async def test_what_cannot_be_cancelled_is_refused(redis_url: str, namespace: str) -> None:
    async with Client(redis_url, namespace=namespace) as client:
        with pytest.raises(InstanceNotFound, match="work/none"):
            await client.cancel("work", "none")
        with pytest.raises(InvalidKey):
            await client.cancel("a/b", "1")
        with pytest.raises(TypeError, match="reason"):
            await client.cancel("work", "none", reason=5)  # type: ignore[arg-type]
    with pytest.raises(NotStarted):
        await client.cancel("work", "none")


# ── resumed ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_resume_runs_a_cancelled_one_on_from_what_is_recorded(stage: Stage) -> None:
    async def first() -> str:
        stage.noted.append("first")
        return "a"

    async def work(ctx: Context) -> list[str]:
        return [await ctx.step("first", first), await ctx.step("hold", stage.hold), await ctx.suspend("p")]

    async with stage.engine(work) as engine:
        instance = await engine.invoke("work", id="1")
        await stage.reached.wait()
        await instance.cancel()
        await at_rest_in(engine)
        stage.go_on.set()
        await instance.resume()
        assert (await instance.wait(TOO_LONG_S)).status is Status.SUSPENDED
        await instance.cancel()
        await instance.resume()
        assert (await instance.wait(TOO_LONG_S)).status is Status.SUSPENDED
        await instance.signal("p", "c")
        assert await instance.result(TOO_LONG_S) == ["a", "held", "c"]
    assert stage.noted == ["first", "begun", "over", "begun", "over"]


# ── races ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("call", ["park", "finish", "record"])
async def test_a_run_whose_call_is_on_its_way_when_it_is_cancelled(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    async def work(ctx: Context) -> None:
        if call == "park":
            await ctx.suspend("p")
        elif call == "record":
            await ctx.step("quick", lambda: None)
            stage.noted.append("went on")

    async with stage.engine(work) as engine:
        store = engine._runtime._store
        real = getattr(store, call)

        async def slow(*arguments: Any, **options: Any) -> Any:
            stage.reached.set()
            await stage.go_on.wait()
            return await real(*arguments, **options)

        monkeypatch.setattr(store, call, slow)
        instance = await engine.invoke("work", id="1")
        await stage.reached.wait()
        assert (await instance.cancel()).status is Status.CANCELLED
        stage.go_on.set()
        await at_rest_in(engine)
        assert (await instance.wait(TOO_LONG_S)).status is Status.CANCELLED
        assert await engine.steps("work", "1") == []
        assert stage.noted == []


async def test_of_a_cancel_and_an_end_at_the_same_time_one_wins_and_everybody_is_told_which(stage: Stage) -> None:
    async def work(ctx: Context) -> str:
        return "done"

    async with stage.engine(work) as engine:
        told, ended = list[str](), list[str]()
        for number in range(60):
            instance = await engine.invoke("work", id=str(number))
            for _ in range(number % 20):
                await asyncio.sleep(0)
            told.append(str(await instance.cancel()))
            ended.append(str(await instance.wait(TOO_LONG_S)))
    assert told == ended
    assert set(told) <= {"completed", "cancelled"}


async def test_a_run_that_is_cancelled_before_it_has_heard_that_its_claim_came_through_begins_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(ctx: Context) -> None:
        await ctx.step("hold", stage.hold)

    async with stage.engine(work) as engine:
        store = engine._runtime._store
        real, leases, lost = store.claim, engine._runtime._leases, asyncio.Event()
        lose = leases.lose

        async def slow(*arguments: Any) -> Any:
            claim = await real(*arguments)
            stage.reached.set()
            await lost.wait()
            return claim

        def heard(lease: str) -> None:
            lose(lease)
            lost.set()

        monkeypatch.setattr(store, "claim", slow)
        monkeypatch.setattr(leases, "lose", heard)
        instance = await engine.invoke("work", id="1")
        await stage.reached.wait()
        await instance.cancel()
        await at_rest_in(engine)
        assert stage.noted == []


async def test_a_worker_that_redis_answers_late_records_nothing(stage: Stage, proxy: Proxy, redis_url: str) -> None:
    async def work(ctx: Context) -> None:
        await ctx.step("hold", stage.hold)
        stage.noted.append("went on")

    stage.url = proxy.url
    async with (
        stage.engine(work) as engine,
        await memable.connect(redis_url, namespace=stage.settings.namespace) as client,
    ):
        await client.invoke("work", id="1")
        await stage.reached.wait()
        proxy.pause()  # the worker hears nothing, and its step ends
        assert (await client.cancel("work", "1")).status is Status.CANCELLED
        stage.go_on.set()
        await until(lambda: "over" in stage.noted, "the end of the step")
        proxy.resume()
        await at_rest_in(engine)
        assert await client.steps("work", "1") == []
        assert stage.noted == ["begun", "over"]


# ── finally ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def slow_clean_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time enough for a test on a slow machine."""
    monkeypatch.setattr(farewell, "CLEAN_UP_S", 20.0)


@pytest.mark.usefixtures("slow_clean_up")
@pytest.mark.parametrize("where", ["the workflow", "a step", "a task", "a task born in it"])
async def test_finally_blocks_may_await_what_is_not_durable(stage: Stage, where: str) -> None:
    async def clean_up() -> None:
        for _ in range(3):
            await asyncio.sleep(0.02)
        stage.noted.append("clean")

    async def holds() -> None:
        stage.reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            await (asyncio.create_task(clean_up()) if where == "a task born in it" else clean_up())

    async def work(ctx: Context) -> None:
        if where == "a step":
            await ctx.step("holds", holds)
        elif where == "a task":
            await asyncio.gather(holds(), ctx.step("hold", stage.hold))
        else:
            await holds()

    async with stage.engine(work) as engine:
        instance = await engine.invoke("work", id="1")
        await stage.reached.wait()
        await instance.cancel()
        await at_rest_in(engine)
    assert "clean" in stage.noted


@pytest.mark.usefixtures("slow_clean_up")
async def test_they_run_when_the_instance_parks_too(stage: Stage) -> None:
    async def work(ctx: Context) -> Any:
        try:
            return await ctx.suspend("p")
        finally:
            await asyncio.sleep(0.02)
            stage.noted.append("clean")

    async with stage.engine(work) as engine:
        instance = await engine.invoke("work", id="1")
        await instance.wait(TOO_LONG_S)
        await at_rest_in(engine)
        assert stage.noted == ["clean"]
        await instance.signal("p", 5)
        assert await instance.result(TOO_LONG_S) == 5
    assert stage.noted == ["clean", "clean"]


@pytest.mark.usefixtures("slow_clean_up")
async def test_durable_calls_in_them_are_refused(stage: Stage) -> None:
    async def work(ctx: Context) -> None:
        try:
            await ctx.step("hold", stage.hold)
        finally:
            try:
                await ctx.step("compensate", stage.hold)
            except BaseException as refusal:
                stage.noted.append(type(refusal).__name__)
                raise

    async with stage.engine(work) as engine:
        instance = await engine.invoke("work", id="1")
        await stage.reached.wait()
        await instance.cancel()
        await at_rest_in(engine)
        assert await engine.steps("work", "1") == []
    assert stage.noted == ["begun", "over", "RunOver"]


@pytest.mark.parametrize("swallows", [1, 5, 10_000])
async def test_whoever_takes_too_long_is_cancelled_again_and_keeps_no_slot(stage: Stage, swallows: int) -> None:
    async def work(ctx: Context) -> None:
        stage.reached.set()
        for _ in range(swallows + 1):
            try:
                await asyncio.sleep(LONG_S)
            except asyncio.CancelledError:
                if not is_left:
                    continue
                raise

    is_left: list[bool] = []
    async with stage.engine(work) as engine:
        instance = await engine.invoke("work", id="1")
        await stage.reached.wait()
        await instance.cancel()
        await at_rest_in(engine)
        is_left.append(True)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            if "work" in repr(task.get_coro()):
                task.cancel()
