"""What `ctx.first` refuses, what it leaves behind when it is given up, and how it goes with old and new code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from memable import (
    App,
    Context,
    DuplicateStep,
    Engine,
    InvalidKey,
    RetryPolicy,
    Settings,
    SignalRejected,
    Status,
    StepConflict,
    StepState,
)
from tests.worker_process import until

LONG_S = 3600
StartApp = Callable[[App], Engine]


@pytest.fixture
def start(redis_url: str, namespace: str) -> StartApp:
    return lambda app: Engine(app, url=redis_url, settings=Settings(namespace=namespace, park_grace=0.1))


async def ok() -> str:
    return "ok"


async def fail() -> None:
    raise ConnectionError("nobody there")


# ── refused ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def coroutine() -> None: ...


def named(name: Any, call: Any) -> dict[Any, Any]:
    return {name: call}


REFUSALS: dict[str, tuple[Callable[[Context], Any], type[Exception], str]] = {
    "nothing": (lambda ctx: ctx.first("f", {}), ValueError, "no calls to choose from"),
    "no dict": (lambda ctx: ctx.first("f", [ctx.suspend("a")]), TypeError, "a dict of names"),  # type: ignore[call-overload]
    "a value": (lambda ctx: ctx.first("f", {"a": 5}), TypeError, "'a' is 5, not a durable call"),  # type: ignore[dict-item]
    "a coroutine": (lambda ctx: ctx.first("f", {"a": coroutine()}), TypeError, "not a durable call"),  # type: ignore[dict-item]
    "a first": (
        lambda ctx: ctx.first("f", {"a": ctx.first("g", {"b": ctx.suspend("b")}), "c": ctx.suspend("c")}),
        TypeError,
        "put all calls into one",
    ),
    "a nameless one": (lambda ctx: ctx.first("f", named(1, ctx.suspend("a"))), TypeError, "are strings, not 1"),
    "a wrong key": (lambda ctx: ctx.first("a/b", {"a": ctx.suspend("a")}), InvalidKey, "a/b"),
    "one key twice": (
        lambda ctx: ctx.first("f", {"a": ctx.suspend("k"), "b": ctx.timer("k", 1)}),
        DuplicateStep,
        "'k'",
    ),
    "its own key": (lambda ctx: ctx.first("f", {"a": ctx.suspend("f")}), DuplicateStep, "'f'"),
    "a used key": (lambda ctx: ctx.first("f", {"a": ctx.step("used", ok)}), DuplicateStep, "'used'"),
    "a key of another kind": (
        lambda ctx: ctx.first("f", {"a": ctx.timer("long", LONG_S), "b": ctx.suspend("recorded")}),
        StepConflict,
        "'recorded'",
    ),
}
"""Each without a warning about coroutines that were never awaited, which would be an error here."""


@pytest.mark.parametrize("name", REFUSALS)
async def test_what_cannot_be_chosen_from_is_refused(start: StartApp, name: str) -> None:
    make, error, text = REFUSALS[name]
    app = App(default_retry=RetryPolicy.fixed(0, 0))
    is_second = False

    @app.workflow("refused")
    async def refused(ctx: Context) -> None:
        await ctx.step("used", ok)
        if not is_second:
            await ctx.step("recorded", ok)
            await ctx.suspend("go")
        await make(ctx)

    async with start(app) as engine:
        instance = await engine.invoke(refused, id="1")
        await instance.wait()
        is_second = True
        await instance.signal("go")
        state = await instance.wait()
        assert state.status is Status.FAILED
        assert str(state).startswith(f"failed: {error.__name__}")
        assert text in str(state)
        assert (metadata := await instance.metadata()) is not None
        assert metadata.waiting_on == []
        assert "f" not in {record.key for record in await engine.steps(refused, "1")}


async def test_a_durable_call_of_another_context_is_refused(start: StartApp) -> None:
    app = App()
    contexts: list[Context] = []

    @app.workflow("lending")
    async def lending(ctx: Context) -> str:
        contexts.append(ctx)
        if len(contexts) < 2:
            await ctx.suspend("go")
        try:
            await ctx.first("f", {"a": contexts[0].suspend("a")})
        except TypeError as error:
            return str(error)
        return "taken"

    async with start(app) as engine:
        await (await engine.invoke(lending, id="1")).wait()
        assert "of another context" in await (await engine.invoke(lending, id="2")).result()


# ── given up ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_one_that_is_given_up_leaves_no_point_and_can_begin_again(start: StartApp) -> None:
    app = App()
    may_give_up, has_given_up, may_try_again = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def calls(ctx: Context) -> dict[str, Any]:
        return {"a": ctx.suspend("a"), "late": ctx.timer("late", LONG_S)}

    async def hold() -> None:
        await may_try_again.wait()

    @app.workflow("wavering")
    async def wavering(ctx: Context) -> str:
        holding = asyncio.create_task(ctx.step("hold", hold))
        race = asyncio.create_task(ctx.first("race", calls(ctx)))
        await may_give_up.wait()
        race.cancel()
        await asyncio.wait([race])
        has_given_up.set()
        await holding
        name, _ = await ctx.first("race", calls(ctx))
        return name

    async with start(app) as engine:
        instance = await engine.invoke(wavering, id="1")

        async def waits_at(*keys: str) -> bool:
            metadata = await instance.metadata()
            return metadata is not None and metadata.waiting_on == list(keys)

        await until(lambda: waits_at("a", "late"), "the race has begun")
        may_give_up.set()
        await has_given_up.wait()
        await until(waits_at, "its points are closed")
        with pytest.raises(SignalRejected):
            await instance.signal("a")
        assert await engine.steps(wavering, "1") == []
        may_try_again.set()
        await until(lambda: waits_at("a", "late"), "the race has begun again")
        await instance.signal("a")
        assert await instance.result() == "a"


async def test_one_that_never_begins_leaves_no_coroutine_behind(start: StartApp) -> None:
    app = App()

    @app.workflow("wavering")
    async def wavering(ctx: Context) -> str:
        race = asyncio.create_task(ctx.first("race", {"a": ctx.suspend("a"), "b": ctx.step("b", ok)}))
        race.cancel()
        await asyncio.wait([race])
        ctx.first("never awaited", {"a": ctx.suspend("a")}).close()
        return "fine"

    async with start(app) as engine:
        assert await (await engine.invoke(wavering)).result() == "fine"


@pytest.mark.parametrize("where", ["in_group", "in_wait_for"])
async def test_it_may_stand_wherever_a_coroutine_may(start: StartApp, where: str) -> None:
    app = App()

    async def in_group(ctx: Context) -> str:
        async with asyncio.TaskGroup() as group:
            race = group.create_task(ctx.first("race", {"a": ctx.suspend("a"), "late": ctx.timer("late", LONG_S)}))
            group.create_task(ctx.timer("pause", 0.01))
        return race.result()[0]

    async def in_wait_for(ctx: Context) -> str:
        name, _ = await asyncio.wait_for(
            ctx.first("race", {"a": ctx.suspend("a"), "late": ctx.timer("late", LONG_S)}), timeout=LONG_S
        )
        return name

    app.register("racing", {"in_group": in_group, "in_wait_for": in_wait_for}[where])
    async with start(app) as engine:
        instance = await engine.invoke("racing")
        async for state in instance.states():
            if state.status is Status.SUSPENDED:
                break
        await instance.signal("a")
        assert await instance.result() == "a"


# ── old and new code ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_wait_that_becomes_a_race_keeps_what_it_has(start: StartApp) -> None:
    """Waits of old code are members of a race of new code; what was recorded of one is chosen, and no other called."""
    app = App()
    is_new = False
    called: list[str] = []

    async def call() -> None:
        called.append("step")

    @app.workflow("growing")
    async def growing(ctx: Context) -> list[Any]:
        if not is_new:
            return [await ctx.suspend("a"), await ctx.suspend("b")]
        calls = {"b": ctx.suspend("b"), "step": ctx.step("step", call), "a": ctx.suspend("a")}
        name, value = await ctx.first("race", calls)
        return [name, value]

    async with start(app) as engine:
        instance = await engine.invoke(growing, id="1")
        await instance.wait()
        await instance.signal("a", 1)
        async for state in instance.states():
            if state.key == "b":
                break
        is_new = True
        await instance.resume()
        assert await instance.result() == ["a", 1]
        assert {record.key for record in await engine.steps(growing, "1")} == {"a", "race"}
    assert called == []


async def test_a_race_that_becomes_waits_takes_both_signals(start: StartApp) -> None:
    app = App()
    is_new = False

    @app.workflow("growing")
    async def growing(ctx: Context) -> list[Any]:
        if is_new:
            return list(await asyncio.gather(ctx.suspend("a"), ctx.suspend("b")))
        return list(await ctx.first("race", {"a": ctx.suspend("a"), "b": ctx.suspend("b")}))

    async with start(app) as engine:
        instance = await engine.invoke(growing, id="1")
        await instance.wait()
        is_new = True
        await instance.resume()
        assert (await instance.wait()).status is Status.SUSPENDED
        await instance.signal("b", 2)
        await instance.signal("a", 1)
        assert await instance.result() == [1, 2]
        assert {record.key for record in await engine.steps(growing, "1")} == {"a", "b"}


async def test_replaying_ends_although_a_loser_that_was_recorded_is_never_called(start: StartApp) -> None:
    app = App()
    slow_may_end = asyncio.Event()
    replaying: list[bool] = []

    async def slow() -> None:
        await slow_may_end.wait()

    @app.workflow("racing")
    async def racing(ctx: Context) -> None:
        await ctx.first("race", {"slow": ctx.step("slow", slow), "quick": ctx.step("quick", ok)})
        slow_may_end.set()
        replaying.append(ctx.is_replaying)
        await ctx.suspend("go")

    async with start(app) as engine:
        instance = await engine.invoke(racing, id="1")
        await instance.wait()
        assert {"slow", "quick"} <= {record.key for record in await engine.steps(racing, "1")}
        await instance.resume()
        await until(lambda: len(replaying) == 2, "it was replayed")
        await instance.signal("go", buffer=True)
        await instance.result()
    assert replaying[:2] == [False, False]


# ── with other calls ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_message_may_be_first(start: StartApp) -> None:
    app = App()

    @app.workflow("listening")
    async def listening(ctx: Context) -> list[Any]:
        first = await ctx.first("one", {"message": ctx.receive("r1", "chat"), "stop": ctx.suspend("stop")})
        second = await ctx.first("two", {"message": ctx.receive("r2", "chat"), "stop": ctx.suspend("stop now")})
        return [*first, *second, await ctx.receive("r3", "chat")]

    async with start(app) as engine:
        instance = await engine.invoke(listening)
        await instance.send("chat", "hello")
        async for state in instance.states():
            if state.key == "r2":
                break
        await instance.signal("stop now", buffer=True)
        await instance.send("chat", "not for the one that has lost")
        assert await instance.result() == ["message", "hello", "stop", None, "not for the one that has lost"]


async def test_a_child_may_be_first(start: StartApp) -> None:
    app = App()

    @app.workflow("child")
    async def child(ctx: Context) -> str:
        return await ctx.step("work", ok)

    @app.workflow("parent")
    async def parent(ctx: Context) -> list[Any]:
        return list(await ctx.first("race", {"late": ctx.timer("late", LONG_S), "child": ctx.call("child", child)}))

    async with start(app) as engine:
        instance = await engine.invoke(parent, id="1")
        assert await instance.result() == ["child", "ok"]
        assert {record.key for record in await engine.steps(parent, "1")} == {"race", "child"}


@pytest.mark.spec("first-child")
async def test_children_that_have_lost_are_cancelled(start: StartApp) -> None:
    app = App()

    @app.workflow("child")
    async def child(ctx: Context, number: int) -> None:
        await ctx.suspend("for ever")

    @app.workflow("parent")
    async def parent(ctx: Context) -> Any:
        calls: dict[str, Any] = {
            "all": ctx.fan_out("all", range(3), child),
            "one": ctx.call("one", child, 1),
            "stop": ctx.suspend("stop"),
        }
        name, _ = await ctx.first("race", calls)
        return [name, await ctx.suspend("go")]

    async with start(app) as engine:
        instance = await engine.invoke(parent, id="1")

        async def children(status: Status) -> bool:
            return len((await engine.list_instances(child, status=status)).items) == 4

        await until(lambda: children(Status.SUSPENDED), "all children wait")
        await instance.signal("stop")
        await until(lambda: children(Status.CANCELLED), "all children are cancelled")
        await instance.signal("go", "on", buffer=True)
        assert await instance.result() == ["stop", "on"]
        assert {record.key for record in await engine.steps(parent, "1")} == {"race", "stop", "go"}


@pytest.mark.parametrize("others", ["a signal", "a step"])
async def test_a_step_that_waits_for_its_next_attempt_loses_without_a_trace(start: StartApp, others: str) -> None:
    app = App()
    in_back_off = asyncio.Event()

    async def wait_for_the_other() -> str:
        await in_back_off.wait()
        return "done"

    @app.workflow("racing")
    async def racing(ctx: Context) -> list[Any]:
        calls: dict[str, Any] = {"flaky": ctx.step("flaky", fail, retry=RetryPolicy.fixed(3, timedelta(hours=1)))}
        if others == "a signal":
            calls["other"] = ctx.suspend("other")
        else:
            calls["other"] = ctx.step("other", wait_for_the_other)
        name, _ = await ctx.first("race", calls)
        return [name, await ctx.suspend("go")]

    async with start(app) as engine:
        instance = await engine.invoke(racing, id="1")

        async def backs_off() -> bool:
            return any(record.state is StepState.RETRYING for record in await engine.steps(racing, "1"))

        await until(backs_off, "the step waits for its next attempt")
        if others == "a signal":
            await instance.signal("other")
        in_back_off.set()
        async for state in instance.states():
            if state.key == "go":
                break
        assert {record.key for record in await engine.steps(racing, "1")} == {"race", "other", "go"}
        await instance.signal("go", "on")
        assert await instance.result() == ["other", "on"]


async def test_a_step_that_has_lost_and_fails_then_is_not_called_again(start: StartApp) -> None:
    app = App()
    may_fail = asyncio.Event()
    calls: list[str] = []

    async def fail_later() -> None:
        calls.append("flaky")
        await may_fail.wait()
        raise ConnectionError("nobody there")

    @app.workflow("racing")
    async def racing(ctx: Context) -> str:
        flaky = ctx.step("flaky", fail_later, retry=RetryPolicy.fixed(3, timedelta(hours=1)))
        name, _ = await ctx.first("race", {"flaky": flaky, "quick": ctx.step("quick", ok)})
        may_fail.set()
        await ctx.suspend("go")
        return name

    async with start(app) as engine:
        instance = await engine.invoke(racing, id="1")
        assert str(await instance.wait()) == "suspended: go"
        assert {record.key for record in await engine.steps(racing, "1")} == {"race", "quick", "go"}
        await instance.signal("go")
        assert await instance.result() == "quick"
    assert calls == ["flaky"]
