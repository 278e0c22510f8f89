"""What broke memable once, when somebody tried: one test for each kind."""

from __future__ import annotations

from typing import Any

import pytest

import memable
from memable import App, Context, Engine, Settings, StepFailed, WorkflowFailed
from memable.endpoint import Endpoint
from memable.keys import ENTRY_FIELD, GROUP, Keys
from tests.worker_process import TOO_LONG_S


@pytest.mark.disorderly
async def test_what_is_broken_in_redis_does_not_keep_the_leader_from_the_rest(redis_url: str, namespace: str) -> None:
    app = App()

    @app.workflow("fine")
    async def fine(ctx: Context) -> str:
        await ctx.timer("short", 0.05)
        return "done"

    settings = Settings(redis_url=redis_url, namespace=namespace, lease=1)
    async with memable.connect(redis_url, app=app, settings=settings) as client:
        invocation = await client.invoke(fine, id="1")
    keys = Keys(namespace, partitions=1)
    (partition,) = keys.partitions
    stream, bad = partition.stream("fine"), partition.of("fine", "bad")
    admin: Any  # redis-py's stub promises an awaitable as well
    with Endpoint.from_url(redis_url).sync_client() as admin:
        admin.hset(keys.workflows, "broken", "no announcement")
        admin.set(partition.stream("broken"), "no stream")
        admin.set(bad.instance, "no hash")
        admin.set(bad.steps, "no hash")
        admin.zadd(partition.timers, {f"{bad.name}/key": 1, b"\xff/x/y": 1, "no timer": 1})
        admin.zadd(partition.expiry, {bad.name: 1, b"\xff": 1, "no instance": 1})
        for fields in ({ENTRY_FIELD: "bad"}, {ENTRY_FIELD: b"\xff"}, {"what": "ever"}):
            admin.xadd(stream, fields)
        admin.xgroup_create(stream, GROUP, "0")
        admin.xreadgroup(GROUP, "a worker that is dead", {stream: ">"})
        async with Engine(app, url=redis_url, settings=settings) as engine:
            assert await engine.get(fine, invocation.instance_id).result(TOO_LONG_S) == "done"
        # broken or not, these are memable's
        assert {*admin.zrange(partition.timers, 0, -1)} == {f"{bad.name}/key".encode()}
        assert {*admin.zrange(partition.expiry, 0, -1)} == {bad.name.encode(), b"fine/1"}
        assert admin.xpending(stream, GROUP)["pending"] <= 1  # the entry of an instance that is no hash
        admin.delete(partition.stream("broken"), bad.instance, bad.steps)


async def leaves_async() -> None:
    raise GeneratorExit("left")


def leaves_in_a_thread() -> None:
    raise GeneratorExit("left")


@pytest.mark.parametrize("leaves", [leaves_async, leaves_in_a_thread])
async def test_a_generator_exit_of_a_step_is_recorded_and_replayed_like_any_failure(
    redis_url: str, namespace: str, leaves: Any
) -> None:
    app, told = App(), list[str]()

    @app.workflow("leaving")
    async def leaving(ctx: Context) -> Any:
        with pytest.raises(StepFailed) as failed:
            await ctx.step("leave", leaves)
        told.append(f"{failed.value.error_type}: {failed.value.error_message}")
        return await ctx.suspend("p")

    async with Engine(app, url=redis_url, settings=Settings(redis_url=redis_url, namespace=namespace)) as engine:
        instance = await engine.invoke(leaving)
        await instance.wait(TOO_LONG_S)
        await instance.signal("p", 1)
        assert await instance.result(TOO_LONG_S) == 1
    assert told == ["GeneratorExit: left"] * 2


async def test_a_generator_exit_of_a_workflow_fails_the_instance(redis_url: str, namespace: str) -> None:
    app = App()

    @app.workflow("leaving")
    async def leaving(ctx: Context) -> None:
        await leaves_async()

    async with Engine(app, url=redis_url, settings=Settings(redis_url=redis_url, namespace=namespace)) as engine:
        with pytest.raises(WorkflowFailed) as failed:
            await (await engine.invoke(leaving)).result(TOO_LONG_S)
    assert failed.value.error_type == "GeneratorExit"


async def test_a_new_instance_is_not_handed_the_records_of_one_whose_hash_was_lost(
    redis_url: str, namespace: str
) -> None:
    app, called = App(), list[int]()

    async def charge() -> int:
        called.append(len(called))
        return called[-1]

    @app.workflow("order")
    async def order(ctx: Context) -> int:
        return await ctx.step("charge", charge)

    async with Engine(app, url=redis_url, settings=Settings(redis_url=redis_url, namespace=namespace)) as engine:
        assert await (await engine.invoke(order, id="42")).result(TOO_LONG_S) == 0
        with Endpoint.from_url(redis_url).sync_client() as admin:
            admin.delete(Keys(namespace, partitions=1).of("order", "42").instance)
        assert await (await engine.invoke(order, id="42")).result(TOO_LONG_S) == 1
