"""Who knows a workflow's deadline: whoever has its object, and who has only its name, by its workers' announcement."""

from __future__ import annotations

import memable
from memable import App, ChildFailed, Client, Context, Engine, Settings


def app_with(deadline: float | None) -> App:
    app = App()

    @app.workflow("work", deadline=deadline)
    async def work(ctx: Context) -> None:
        await ctx.suspend("p")

    return app


async def deadline_of(client: Client, id: str) -> int | None:
    online = client._online()
    raw = await online.connection.command("HGET", online.store.keys.of("work", id).instance, "deadline_ms")
    return None if raw is None else int(raw)


async def test_a_name_has_the_deadline_that_was_announced_and_an_object_its_own(redis_url: str, namespace: str) -> None:
    settings = Settings(namespace=namespace)
    async with (
        Engine(app_with(60), url=redis_url, settings=settings),
        memable.connect(redis_url, namespace=namespace) as by_name,
    ):
        await by_name.invoke("work", id="1")
        await by_name.invoke_many("work", [None], ids=["2"])
        another = app_with(0.0001).get("work")
        assert another is not None
        by_object = Client(redis_url, namespace=namespace)
        async with by_object:
            await by_object.invoke(another, id="3")
        assert [await deadline_of(by_name, id) for id in "123"] == [60_000, 60_000, 1]


async def test_the_first_invoke_of_an_id_decides(redis_url: str, namespace: str) -> None:
    first, second = app_with(None).get("work"), app_with(60).get("work")
    assert first is not None
    assert second is not None
    async with Client(redis_url, namespace=namespace) as client:
        assert (await client.invoke(first, id="1")).created
        assert not (await client.invoke(second, id="1")).created
        assert await deadline_of(client, "1") is None


async def test_a_fork_has_that_of_its_origin(redis_url: str, namespace: str) -> None:
    async with Engine(app_with(60), url=redis_url, settings=Settings(namespace=namespace)) as engine:
        await (await engine.invoke("work", id="1")).wait()
        fork = await engine.fork("work", "1", new_id="2")
        assert await deadline_of(engine, fork.instance_id) == 60_000


async def test_a_child_has_that_of_its_workflow_and_its_parent_is_told(redis_url: str, namespace: str) -> None:
    app = app_with(0.3)

    @app.workflow("parent")
    async def parent(ctx: Context) -> str:
        try:
            await ctx.call("child", "work")
        except ChildFailed as failure:
            return failure.error_type
        return "in time"

    async with Engine(app, url=redis_url, settings=Settings(namespace=namespace)) as engine:
        assert await (await engine.invoke(parent)).result() == "DeadlineExceeded"
