"""Lesson 16. Names, keys and ids.

Names of workflows, keys of durable calls, and ids that are chosen have 1 to 200 characters, without `/`, `~` and
control characters; a key does not start with `_`. Anything else is an `InvalidKey`, wherever it comes in, before
anything else is looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from memable import App, Context, Engine, InvalidKey, SuspendPoint, WorkflowFailed
from tests.fundamentals.starting import Start

NO_NAMES = ["", "x" * 201, "a/b", "a~b", "line\nbreak", "nul\x00", "del\x7f", "\u2028", "\ud800", 7, None, b"bytes"]
NO_KEYS = [*NO_NAMES, "_private"]
GOOD = ["x", "x" * 200, "charge:v1", "two words", "ключ", "\U0001f600", "a.b-c_d", "{0}", "*", "a\\b", 'quo"te', "it's"]

FIRST_OF_ALL: dict[str, Callable[[Engine, Any], Any]] = {
    "invoke: workflow": lambda engine, value: engine.invoke(value),
    "invoke_many: workflow": lambda engine, value: engine.invoke_many(value, []),
    "signal: workflow": lambda engine, value: engine.signal(value, "1", "key"),
    "resume: workflow": lambda engine, value: engine.resume(value, "1"),
    "get_metadata: workflow": lambda engine, value: engine.get_metadata(value, "1"),
    "list_instances: workflow": lambda engine, value: engine.list_instances(value),
    "steps: workflow": lambda engine, value: engine.steps(value, "1"),
    "invoke: id": lambda engine, value: engine.invoke("flow", id=value),
    "invoke_many: id": lambda engine, value: engine.invoke_many("flow", [None], ids=[value]),
}


@pytest.mark.parametrize("value", NO_NAMES, ids=ascii)
@pytest.mark.spec("register-name", "invalid-key")
async def test_a_workflow_cannot_have_such_a_name(value: Any) -> None:
    app = App()
    with pytest.raises(InvalidKey, match="invalid workflow") as error:
        app.register(value, "not even a function")  # type: ignore[call-overload]
    assert error.value.value == value
    if value is not None:  # at the decorator that is "no name", and the function's own is taken

        async def flow(ctx: Context) -> None: ...

        with pytest.raises(InvalidKey):
            app.workflow(value)(flow)
    assert list(app) == []


@pytest.mark.parametrize("entry", FIRST_OF_ALL)
@pytest.mark.spec("invalid-key", "invalid-key-first")
async def test_such_a_name_or_id_is_refused_even_before_the_engine_is_started(entry: str) -> None:
    may_be_missing = entry in ("invoke: id", "list_instances: workflow")
    for value in NO_NAMES:
        if value is not None or not may_be_missing:
            with pytest.raises(InvalidKey, match=r"invalid (workflow|instance id)") as error:
                await FIRST_OF_ALL[entry](Engine(App()), value)
            assert error.value.value == value


OF_AN_EXISTING_INSTANCE: dict[str, Callable[[Engine, Any], Any]] = {
    "get": lambda engine, value: engine.get("flow", value),
    "subscribe": lambda engine, value: engine.subscribe("flow", value),
    "signal": lambda engine, value: engine.signal("flow", value, "key"),
    "resume": lambda engine, value: engine.resume("flow", value),
    "get_metadata": lambda engine, value: engine.get_metadata("flow", value),
    "steps": lambda engine, value: engine.steps("flow", value),
}


@pytest.mark.parametrize("entry", OF_AN_EXISTING_INSTANCE)
@pytest.mark.spec("invalid-key-first", "child-ids")
async def test_the_id_of_an_existing_instance_is_looked_at_first_too(entry: str) -> None:
    for value in ("", "a/b", "line\nbreak", "\ud800", 7, None):
        with pytest.raises(InvalidKey, match="invalid instance id"):
            await OF_AN_EXISTING_INSTANCE[entry](Engine(App()), value)


@pytest.mark.spec("child-ids", "get")
async def test_an_existing_instance_may_be_a_child_whose_id_memable_made() -> None:
    value = "parent~x~key~0" + "x" * 300
    assert Engine(App()).get("flow", value).instance_id == value


@pytest.mark.parametrize("value", NO_KEYS, ids=ascii)
async def test_a_point_or_a_signal_cannot_have_such_a_key(value: Any) -> None:
    with pytest.raises(InvalidKey, match="invalid suspend point"):
        SuspendPoint(value, bool)
    with pytest.raises(InvalidKey, match="invalid suspend point"):
        await Engine(App()).signal("flow", "1", value)


@pytest.mark.parametrize("value", [each for each in NO_NAMES if each is not None], ids=ascii)
async def test_a_signal_id_is_a_name_too(value: Any) -> None:
    with pytest.raises(InvalidKey, match="invalid signal id"):
        await Engine(App()).signal("flow", "1", "key", signal_id=value)


@pytest.mark.spec("invalid-key", "invalid-key-first")
async def test_durable_calls_cannot_have_such_keys(start: Start) -> None:
    app, labels = App(), list[str]()

    @app.workflow("flow")
    async def flow(ctx: Context) -> None:
        calls: list[Callable[[Any], Any]] = [
            lambda key: ctx.step(key, "not even a function"),  # type: ignore[call-overload]
            lambda key: ctx.suspend(SuspendPoint(key)),
            lambda key: ctx.timer(key, float("nan")),
            lambda key: ctx.sleep_until(key, datetime(2030, 1, 1)),  # noqa: DTZ001  (naive, and not yet looked at)
        ]
        for value in NO_KEYS:
            for call in calls:
                try:
                    call(value)  # refused when it is called, not only when it is awaited
                except InvalidKey as error:
                    labels.append(error.label)

    async with start(app) as engine:
        await (await engine.invoke(flow)).result()
    assert labels == ["step", "suspend point", "timer", "timer"] * len(NO_KEYS)


async def test_an_invalid_key_that_escapes_fails_the_instance_with_its_text(start: Start) -> None:
    app = App()

    @app.workflow("flow")
    async def flow(ctx: Context) -> None:
        await ctx.suspend("a/b")

    async with start(app) as engine:
        with pytest.raises(WorkflowFailed, match="InvalidKey: invalid suspend point 'a/b': it must be a string"):
            await (await engine.invoke(flow)).result()


@pytest.mark.parametrize("name", GOOD, ids=ascii)
@pytest.mark.spec("invalid-key")
async def test_any_other_name_works_everywhere(start: Start, name: str) -> None:
    app = App()

    @app.workflow(name)
    async def flow(ctx: Context) -> list[Any]:
        return [await ctx.step(name, str, name), await ctx.suspend(f"p {name}"[:200])]

    async with start(app) as engine:
        instance = await engine.invoke(name, id=name)
        await instance.wait()
        await instance.signal(f"p {name}"[:200], name, signal_id=name)
        assert await instance.result() == [name, name]
        assert [each.instance_id for each in (await engine.list_instances(name)).items] == [name]
        await engine.invoke(flow, id="timer")


async def test_a_timer_of_any_name_fires(start: Start) -> None:
    app = App()

    async def flow(ctx: Context) -> datetime:
        await ctx.timer(ctx.instance_id, 0.01)
        await ctx.sleep_until(f"u {ctx.instance_id}"[:200], datetime(2001, 1, 1, tzinfo=UTC))
        return ctx.started_at

    for name in GOOD:
        app.register(name, flow)

    async with start(app) as engine:
        instances = [await engine.invoke(name, id=name) for name in GOOD]
        for each in instances:
            await each.result()
