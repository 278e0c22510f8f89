"""How a run parks: by quiescence, whatever its tasks are made of (DESIGN section 4)."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import pytest

from memable import App, Context, Engine, RetryPolicy, Settings, Status
from memable.runtime import rest as rest_module
from memable.runtime import run as run_module
from memable.runtime.tasks import install_task_factory
from tests.worker_process import TOO_LONG_S, until

Author = Callable[[Context], Awaitable[Any]]

LONG_S = 600.0


class Stage:
    """An engine with workflows made up by a test, and what their steps did."""

    def __init__(self, url: str, namespace: str) -> None:
        self.called: list[str] = []
        self._url, self._namespace = url, namespace
        self.park_grace_s = LONG_S
        """So long that no slow machine drops what is waited for; who wants that shortens it."""

    def step(self, name: str, *, lasts: int = 3) -> Callable[[], Awaitable[str]]:
        """A step that is in flight for some turns of the loop, and leaves its name."""

        async def effect() -> str:
            self.called.append(name)
            for _ in range(lasts):
                await asyncio.sleep(0.001)
            return name

        return effect

    def engine(self, *authors: Author) -> Engine:
        app = App()
        for author in authors:
            app.register(author.__name__, author)
        return Engine(app, url=self._url, settings=Settings(namespace=self._namespace, park_grace=self.park_grace_s))


@pytest.fixture
def stage(redis_url: str, namespace: str) -> Stage:
    return Stage(redis_url, namespace)


async def play(stage: Stage, author: Author, *signals: tuple[str, Any]) -> tuple[Any, list[int]]:
    """Run `author`, sending each signal when the instance is at rest; its result, and the calls made by each rest."""
    async with stage.engine(author) as engine:
        instance = await engine.invoke(author.__name__, id="1")
        calls: list[int] = []
        for key, payload in signals:
            state = await instance.wait(TOO_LONG_S)
            assert state.status is Status.SUSPENDED, str(state)
            calls.append(len(stage.called))
            await instance.signal(key, payload)
        result = await instance.result(TOO_LONG_S)
        calls.append(len(stage.called))
        return result, calls


async def test_a_sequence_parks_between_its_steps(stage: Stage) -> None:
    async def sequence(ctx: Context) -> list[Any]:
        return [
            await ctx.step("a", stage.step("a")),
            await ctx.suspend("p"),
            await ctx.step("b", stage.step("b")),
        ]

    assert await play(stage, sequence, ("p", 1)) == (["a", 1, "b"], [1, 2])


async def test_gathered_waits_and_steps_park_once_the_step_is_done(stage: Stage) -> None:
    async def gathered(ctx: Context) -> list[Any]:
        return list(await asyncio.gather(ctx.suspend("p"), ctx.step("a", stage.step("a")), ctx.suspend("q")))

    assert await play(stage, gathered, ("q", 1), ("p", 2)) == ([2, "a", 1], [1, 1, 1])


@pytest.mark.parametrize("depth", [1, 5, 20, 200])
@pytest.mark.spec("concurrency", "in-flight")
async def test_a_step_at_the_end_of_nested_gathers_is_reached_before_the_run_parks(stage: Stage, depth: int) -> None:
    async def nested(ctx: Context) -> list[Any]:
        async def deep(level: int) -> Any:
            if level:
                return (await asyncio.gather(deep(level - 1)))[0]
            return await ctx.step("a", stage.step("a"))

        async def branch() -> Any:
            await deep(depth)
            return await ctx.step("b", stage.step("b"))

        return list(await asyncio.gather(ctx.suspend("p"), branch()))

    assert await play(stage, nested, ("p", 1)) == ([1, "b"], [2, 2])


async def test_nested_gathers_without_tasks_in_between(stage: Stage) -> None:
    async def nested(ctx: Context) -> list[Any]:
        async def branch() -> Any:
            future: Any = ctx.step("a", stage.step("a"))
            for _ in range(30):
                future = asyncio.gather(future)
            await future
            return await ctx.step("b", stage.step("b"))

        return list(await asyncio.gather(ctx.suspend("p"), branch()))

    assert await play(stage, nested, ("p", 1)) == ([1, "b"], [2, 2])


async def test_a_task_group_with_a_wait_for_inside(stage: Stage) -> None:
    async def grouped(ctx: Context) -> list[Any]:
        async def chain() -> Any:
            await ctx.step("c1", stage.step("c1"))
            await asyncio.wait_for(ctx.step("c2", stage.step("c2")), 5)
            return await ctx.suspend("q")

        async with asyncio.TaskGroup() as group:
            x, y = group.create_task(ctx.suspend("p")), group.create_task(chain())
        return [x.result(), y.result()]

    assert await play(stage, grouped, ("q", 1), ("p", 2)) == ([2, 1], [2, 2, 2])


@pytest.mark.spec("asyncio-wait")
async def test_the_first_of_two_by_asyncio_wait(stage: Stage) -> None:
    async def first(ctx: Context) -> list[Any]:
        p, q = (asyncio.ensure_future(ctx.suspend(key)) for key in "pq")
        done, pending = await asyncio.wait({p, q}, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await ctx.step("end", stage.step("end"))
        return [task.result() for task in done]

    assert await play(stage, first, ("q", 7)) == ([7], [0, 1])


@pytest.mark.spec("no-swallowing", "finally")
async def test_except_exception_around_a_wait_is_never_entered_and_finally_makes_no_durable_call(stage: Stage) -> None:
    swallowed: list[str] = []

    async def swallowing(ctx: Context) -> Any:
        try:
            return await ctx.suspend("p")
        except Exception as error:
            swallowed.append(repr(error))
            return "swallowed"
        finally:
            stage.called.append("finally")
            await ctx.step("cleanup", stage.step("cleanup"))

    result, _ = await play(stage, swallowing, ("p", 3))
    assert result == 3
    assert not swallowed
    assert stage.called == ["finally", "finally", "cleanup"]


async def test_except_exception_around_a_call_that_is_refused_is_never_entered_either(stage: Stage) -> None:
    swallowed: list[str] = []

    async def swallowing(ctx: Context) -> Any:
        try:
            return await ctx.suspend("p")
        finally:
            try:
                await ctx.step("cleanup", stage.step("cleanup"))
            except Exception as error:
                swallowed.append(repr(error))

    assert await play(stage, swallowing, ("p", 3)) == (3, [0, 1])
    assert not swallowed


async def test_a_wait_under_asyncio_timeout_parks_at_once(stage: Stage) -> None:
    async def with_timeout(ctx: Context) -> Any:
        async with asyncio.timeout(30):
            return await ctx.suspend("p")

    assert await play(stage, with_timeout, ("p", 4)) == (4, [0, 0])


async def test_locks_queues_and_events_between_tasks_of_a_run_are_not_foreign(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    async def coordinated(ctx: Context) -> list[Any]:
        event, queue, lock = asyncio.Event(), asyncio.Queue[Any](), asyncio.Lock()

        async def waits_for_event() -> str:
            await event.wait()
            async with lock:
                return await ctx.step("after", stage.step("after"))

        async def consumer() -> Any:
            return await queue.get()

        async def producer() -> None:
            async with lock:
                await queue.put(await ctx.suspend("p"))
            event.set()

        return list(await asyncio.gather(waits_for_event(), consumer(), producer(), asyncio.shield(consumer_of(queue))))

    async def consumer_of(queue: asyncio.Queue[Any]) -> str:
        return "shielded"

    with caplog.at_level(logging.WARNING):
        assert await play(stage, coordinated, ("p", 5)) == (["after", 5, None, "shielded"], [0, 1])
    assert not caplog.records


@pytest.mark.parametrize("how", ["awaited", "gathered"])
async def test_a_wait_inside_of_what_is_awaited_by_its_own_method_is_not_foreign(
    stage: Stage, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """A map, whose items are tasks; and an author's object that has `__await__`."""

    class Both:
        def __init__(self, *calls: Awaitable[Any]) -> None:
            self._calls = calls

        def __await__(self) -> Generator[Any, Any, Any]:
            return self._both().__await__()

        async def _both(self) -> list[Any]:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._one(each)) for each in self._calls]
            return [task.result() for task in tasks]

        async def _one(self, call: Awaitable[Any]) -> Any:
            return await call

    async def waiting(ctx: Context) -> Any:
        map_ = ctx.map("m", [1, 2], refuse, retry=RetryPolicy.fixed(1, 3600))
        if how == "awaited":
            return await Both(ctx.suspend("p"), map_)
        return await asyncio.gather(ctx.suspend("p"), map_)

    def refuse(item: int) -> int:
        raise ConnectionError(item)

    with caplog.at_level(logging.WARNING):
        async with stage.engine(waiting) as engine:
            assert str(await (await engine.invoke("waiting")).wait(TOO_LONG_S)) == "suspended: p"
    assert not caplog.records


async def test_a_shielded_wait_is_not_foreign(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    async def shielded(ctx: Context) -> Any:
        return await asyncio.shield(ctx.suspend("p"))

    with caplog.at_level(logging.WARNING):
        assert await play(stage, shielded, ("p", 5)) == (5, [0, 0])
    assert not caplog.records


@pytest.mark.parametrize("how", ["sleep", "thread", "executor", "future"])
async def test_a_short_foreign_wait_is_waited_for(stage: Stage, how: str, caplog: pytest.LogCaptureFixture) -> None:
    async def lingers(ctx: Context) -> list[Any]:
        loop = asyncio.get_running_loop()

        async def outside() -> Any:
            if how == "sleep":
                await asyncio.sleep(0.05)
            elif how == "thread":
                await asyncio.to_thread(lambda: None)
            elif how == "executor":
                await loop.run_in_executor(None, lambda: None)
            else:
                future = loop.create_future()
                loop.call_later(0.05, future.set_result, None)
                await future
            return await ctx.step("after", stage.step("after"))

        return list(await asyncio.gather(ctx.suspend("p"), outside()))

    with caplog.at_level(logging.WARNING):
        assert await play(stage, lingers, ("p", 1)) == ([1, "after"], [1, 1])
    assert not caplog.records


@pytest.mark.spec("foreign-waits")
async def test_a_long_foreign_wait_is_dropped_with_a_warning_that_names_it(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.park_grace_s = 0.3

    async def sleeps(ctx: Context) -> list[Any]:
        return list(await asyncio.gather(ctx.suspend("p"), asyncio.wait_for(endless(), None)))

    async def endless() -> str:
        if "again" not in stage.called:
            stage.called.append("again")
            await asyncio.sleep(3600)
        return "awake"

    with caplog.at_level(logging.WARNING):
        assert await play(stage, sleeps, ("p", 1)) == ([1, "awake"], [1, 1])
    assert any("sleeps/1 parks while" in record.message for record in caplog.records)


async def test_a_task_that_spins_is_dropped_with_a_warning(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest_module, "_LIVELY_TURNS", 200)
    stage.park_grace_s = 0.3

    async def spins(ctx: Context) -> Any:
        async def spinner() -> None:
            while True:
                await asyncio.sleep(0)

        spinning = asyncio.create_task(spinner())
        value = await ctx.suspend("p")
        spinning.cancel()
        return value

    with caplog.at_level(logging.WARNING):
        assert await play(stage, spins, ("p", 1)) == (1, [0, 0])
    assert any("spins/1 parks although" in record.message for record in caplog.records)


async def test_what_a_step_starts_is_not_the_runs(stage: Stage) -> None:
    """A connection pool made in a step outlives the run, and keeps no run from parking."""
    background: list[asyncio.Task[None]] = []

    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    async def opens_pool() -> None:
        background.append(asyncio.create_task(spin()))

    async def pooled(ctx: Context) -> Any:
        await ctx.step("open", opens_pool)
        return await ctx.suspend("p")

    try:
        assert (await play(stage, pooled, ("p", 1)))[0] == 1
        assert not background[0].done()
    finally:
        for task in background:
            task.cancel()


async def test_a_child_with_a_context_of_its_own_belongs_to_the_run(stage: Stage) -> None:
    async def own_context(ctx: Context) -> list[Any]:
        async def child() -> Any:
            await asyncio.gather(ctx.step("a", stage.step("a")))
            return await ctx.suspend("q")

        p = asyncio.create_task(ctx.suspend("p"))
        q = asyncio.create_task(child(), context=contextvars.Context())
        return [await p, await q]

    assert await play(stage, own_context, ("p", 1), ("q", 2)) == ([1, 2], [1, 1, 1])


async def test_a_task_factory_installed_twice_or_replaced_later_still_sees_the_tasks(stage: Stage) -> None:
    loop = asyncio.get_running_loop()
    seen: list[Any] = []

    async def author(ctx: Context) -> list[Any]:
        async def branch() -> Any:
            await ctx.step("a", stage.step("a"))
            await asyncio.gather(asyncio.gather(asyncio.gather(ctx.step("b", stage.step("b")))))
            return await ctx.step("c", stage.step("c"))

        return list(await asyncio.gather(ctx.suspend("p"), branch()))

    async with stage.engine(author) as engine:

        def replacement(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
            seen.append(coro)
            return asyncio.Task(coro, loop=loop, **options)

        before = loop.get_task_factory()
        assert before is not None

        def chained(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
            seen.append(coro)
            return before(loop, coro, **options)

        for number, factory in enumerate((replacement, chained)):
            loop.set_task_factory(factory)
            install_task_factory(loop)
            install_task_factory(loop)
            instance = await engine.invoke("author", id=str(number))
            assert (await instance.wait(TOO_LONG_S)).status is Status.SUSPENDED
            assert stage.called == ["a", "b", "c"] * (number + 1)
            await instance.signal("p", 1)
            assert await instance.result(TOO_LONG_S) == [1, "c"]
            loop.set_task_factory(before)
    assert seen


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
async def test_eager_tasks(stage: Stage) -> None:
    loop = asyncio.get_running_loop()
    loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009  (unknown to 3.11's types)

    async def eager(ctx: Context) -> list[Any]:
        async def branch() -> Any:
            await asyncio.gather(asyncio.gather(ctx.step("a", stage.step("a"))))
            return await ctx.step("b", stage.step("b"))

        return list(await asyncio.gather(ctx.suspend("p"), branch(), ctx.suspend("q")))

    assert await play(stage, eager, ("p", 1), ("q", 2)) == ([1, "b", 2], [2, 2, 2])


async def test_a_durable_call_cancelled_before_it_started_is_closed(stage: Stage) -> None:
    """Its coroutine must not be reported as never awaited: warnings are errors here."""

    async def cancels(ctx: Context) -> list[Any]:
        tasks = [asyncio.ensure_future(ctx.step("a", stage.step("a"))), asyncio.ensure_future(ctx.suspend("q"))]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        # neither has begun: both keys are free
        return [await ctx.suspend("q"), await ctx.step("a", stage.step("a"))]

    assert await play(stage, cancels, ("q", 1)) == ([1, "a"], [0, 1])


async def test_a_step_that_begins_while_the_park_is_on_its_way_waits_for_its_answer(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its effect would be done, and its record refused."""
    release, parking = asyncio.Event(), asyncio.Event()

    async def racing(ctx: Context) -> list[Any]:
        async def foreign() -> Any:
            await release_outside.wait()
            return await ctx.step("a", stage.step("a"))

        return list(await asyncio.gather(ctx.suspend("p"), foreign()))

    release_outside = asyncio.Event()
    async with stage.engine(racing) as engine:
        store = engine._runtime._store
        park = store.park

        async def slow_park(*arguments: Any) -> Any:
            parking.set()
            await release.wait()
            return await park(*arguments)

        monkeypatch.setattr(store, "park", slow_park)
        instance = await engine.invoke("racing", id="1")
        await parking.wait()
        release_outside.set()
        for _ in range(20):
            await asyncio.sleep(0)
        assert stage.called == []
        release.set()
        assert (await instance.wait(TOO_LONG_S)).status is Status.SUSPENDED
        assert stage.called == []
        await instance.signal("p", 1)
        assert await instance.result(TOO_LONG_S) == [1, "a"]
        assert stage.called == ["a"]


async def test_a_signal_that_comes_while_a_step_is_in_flight_is_delivered_at_once(stage: Stage) -> None:
    go_on = asyncio.Event()

    async def busy(ctx: Context) -> list[Any]:
        async def waits() -> Any:
            value = await ctx.suspend("p")
            go_on.set()  # the step ends only when the signal has been delivered
            return value

        return list(await asyncio.gather(waits(), ctx.step("a", go_on.wait, returns=bool)))

    async with stage.engine(busy) as engine:
        instance = await engine.invoke("busy", id="1")
        while True:
            metadata = await instance.metadata()
            if metadata is not None and metadata.waiting_on == ["p"]:
                break
            await asyncio.sleep(0.005)
        assert metadata.status is Status.RUNNING
        await instance.signal("p", 1)
        assert await instance.result(TOO_LONG_S) == [1, True]


async def test_a_timer_fires_while_a_step_is_in_flight(stage: Stage) -> None:
    go_on = asyncio.Event()

    async def busy(ctx: Context) -> str:
        async def waits() -> None:
            await ctx.timer("t", 0.05)
            go_on.set()

        await asyncio.gather(waits(), ctx.step("a", go_on.wait, returns=bool))
        return "both"

    assert await play(stage, busy) == ("both", [0])


@pytest.mark.spec("cancelled-wait")
async def test_a_wait_that_the_author_cancels_closes_its_point_and_may_be_opened_again(stage: Stage) -> None:
    from memable import SignalRejected

    async def changes_mind(ctx: Context) -> list[Any]:
        q = asyncio.ensure_future(ctx.suspend("q"))
        await ctx.suspend("p")
        q.cancel()
        await asyncio.wait([q])
        value = await ctx.suspend("r")
        return [value, await ctx.suspend("q")]

    async with stage.engine(changes_mind) as engine:
        instance = await engine.invoke("changes_mind", id="1")
        await instance.wait(TOO_LONG_S)
        await instance.signal("p", None)
        async for state in instance.states():
            if state.status is Status.SUSPENDED and state.key == "r":
                break
        with pytest.raises(SignalRejected):
            await instance.signal("q", 1)
        await instance.signal("r", 2)
        async for state in instance.states():
            if state.status is Status.SUSPENDED and state.key == "q":
                break
        await instance.signal("q", 3)
        assert await instance.result(TOO_LONG_S) == [2, 3]


async def test_a_wait_that_the_author_cancels_closes_its_point_while_a_step_is_in_flight(stage: Stage) -> None:
    from memable import SignalRejected

    is_open, go_on = asyncio.Event(), asyncio.Event()

    async def changes_mind(ctx: Context) -> Any:
        step = asyncio.ensure_future(ctx.step("a", go_on.wait, returns=bool))
        p = asyncio.ensure_future(ctx.suspend("p"))
        await is_open.wait()
        p.cancel()
        await asyncio.wait([p])
        return await step

    async with stage.engine(changes_mind) as engine:
        instance = await engine.invoke("changes_mind", id="1")

        async def waits_for(*keys: str) -> bool:
            metadata = await instance.metadata()
            return metadata is not None and metadata.waiting_on == list(keys)

        await until(lambda: waits_for("p"), "the point is open")
        is_open.set()
        await until(waits_for, "the point is closed")
        with pytest.raises(SignalRejected):
            await instance.signal("p", 1)
        go_on.set()
        assert await instance.result(TOO_LONG_S)


async def test_a_run_opens_points_by_one_call_at_a_time(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two on their way Redis could refuse the first for a while (OOM), and ignore it once the second was there."""
    on_their_way: list[int] = []
    is_open, has_news, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def busy(ctx: Context) -> list[Any]:
        async def waits() -> Any:
            value = await ctx.suspend("p")
            go_on.set()
            return value

        return list(await asyncio.gather(waits(), ctx.step("a", go_on.wait, returns=bool)))

    async with stage.engine(busy) as engine:
        store = engine._runtime._store
        open_points, hear = store.open, run_module.Run.on_news

        async def slow_open(*arguments: Any) -> Any:
            on_their_way.append(1 if not on_their_way else on_their_way[-1] + 1)
            try:
                satisfied = await open_points(*arguments)
                is_open.set()
                await has_news.wait()
                for _ in range(50):  # more than enough to send another call
                    await asyncio.sleep(0)
                return satisfied
            finally:
                on_their_way.append(on_their_way[-1] - 1)

        def hear_news(run: Any) -> None:
            hear(run)
            has_news.set()

        monkeypatch.setattr(store, "open", slow_open)
        monkeypatch.setattr(run_module.Run, "on_news", hear_news)
        instance = await engine.invoke("busy", id="1")
        await is_open.wait()
        await instance.signal("p", 1)
        # the news that came while the first call was on its way are read by the second
        assert await instance.result(TOO_LONG_S) == [1, True]
    assert on_their_way == [1, 0, 1, 0]


async def test_a_run_that_awaits_a_task_of_another_run_fails_with_a_message(stage: Stage) -> None:
    tasks: list[asyncio.Task[Any]] = []
    begun, stolen_from = asyncio.Event(), asyncio.Event()

    async def owner(ctx: Context) -> Any:
        tasks.append(asyncio.ensure_future(ctx.suspend("p")))
        begun.set()
        return await ctx.step("hold", stolen_from.wait, returns=bool)

    async def thief(ctx: Context) -> Any:
        return await tasks[0]

    async with stage.engine(owner, thief) as engine:
        await engine.invoke("owner", id="1")
        await begun.wait()
        stolen = await engine.invoke("thief", id="1")
        state = await stolen.wait(TOO_LONG_S)
        assert state.status is Status.FAILED
        assert "thief/1 waits for a task of owner/1" in str(state)
        stolen_from.set()


async def test_an_error_of_the_checker_ends_the_run(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failed = asyncio.Event()

    async def author(ctx: Context) -> Any:
        return await ctx.suspend("p")

    async with stage.engine(author) as engine:
        runtime = engine._runtime

        async def broken_park(*_: Any) -> Any:
            failed.set()
            raise RuntimeError("the checker is broken")

        monkeypatch.setattr(runtime._store, "park", broken_park)
        with caplog.at_level(logging.ERROR):
            await engine.invoke("author", id="1")
            await failed.wait()
            while runtime.running:
                await asyncio.sleep(0.005)
    assert any("author/1: the run ends here" in record.message for record in caplog.records)


async def test_steps_alone_never_start_the_checker(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    check = rest_module.Rest._come_to_rest

    async def counted(run: Any) -> None:
        started.append(run._run.name)
        await check(run)

    monkeypatch.setattr(rest_module.Rest, "_come_to_rest", counted)

    async def steps(ctx: Context) -> None:
        for number in range(5):
            await ctx.step(f"s{number}", stage.step("s"))

    await play(stage, steps)
    assert started == []


async def test_steps_in_flight_when_the_function_returns_are_finished_and_recorded_first(stage: Stage) -> None:
    async def leaves(ctx: Context) -> str:
        asyncio.ensure_future(ctx.step("a", stage.step("a")))  # noqa: RUF006  (left behind on purpose)
        await asyncio.sleep(0)
        return "left"

    async with stage.engine(leaves) as engine:
        instance = await engine.invoke("leaves", id="1")
        assert await instance.result(TOO_LONG_S) == "left"
        assert [(step.key, step.result) for step in await engine.steps("leaves", "1")] == [("a", "a")]


async def test_a_step_cancelled_while_its_record_is_written_is_recorded_once_and_not_called_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording, recorded = asyncio.Event(), asyncio.Event()

    async def impatient(ctx: Context) -> Any:
        first = asyncio.ensure_future(ctx.step("a", stage.step("a")))
        await recording.wait()
        first.cancel()
        await asyncio.wait([first])
        recorded.set()
        return await ctx.step("a", stage.step("a"))

    async with stage.engine(impatient) as engine:
        store = engine._runtime._store
        record = store.record

        async def slow_record(*arguments: Any) -> Any:
            recording.set()
            await recorded.wait()
            return await record(*arguments)

        monkeypatch.setattr(store, "record", slow_record)
        instance = await engine.invoke("impatient", id="1")
        assert await instance.result(TOO_LONG_S) == "a"
        assert stage.called == ["a"]
