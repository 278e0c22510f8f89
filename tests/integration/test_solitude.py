"""Suspects, which have lost two workers in a row, run alone; they spread, and neither wait nor last for ever."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from memable import App, Client, Context, Engine, Invocation, Settings
from memable.connection import ScriptConnection
from memable.keys import Keys
from tests.integration.connecting import connected
from tests.worker_process import TOO_LONG_S, until

MANY_RECOVERIES = 5


class Stage:
    """An app whose steps wait until they are let go, and what was called."""

    def __init__(self, redis_url: str, namespace: str, connection: ScriptConnection, *, lease: float) -> None:
        self.redis_url, self.connection = redis_url, connection
        self.settings = Settings(
            redis_url=redis_url, namespace=namespace, lease=lease, max_recoveries=MANY_RECOVERIES, shutdown_grace=0
        )
        self.keys = Keys(namespace, partitions=1)
        self.begun: list[str] = []
        self.go: dict[str, asyncio.Event] = {}

    def app(self) -> App:
        app = App()

        async def hold(name: str) -> str:
            self.begun.append(name)
            await self.go.setdefault(name, asyncio.Event()).wait()
            return name

        @app.workflow("hold")
        async def held(ctx: Context, name: str) -> str:
            return await ctx.step("hold", hold, name)

        return app

    def engine(self) -> Engine:
        return Engine(self.app(), url=self.redis_url, settings=self.settings)

    def let_go(self, name: str) -> None:
        self.go.setdefault(name, asyncio.Event()).set()

    async def invoke(self, client: Client, name: str, *, losses: int) -> Invocation[Any]:
        """An instance that has lost so many workers in a row: queued, and not seen by a worker before it has."""
        invocation = await client.invoke("hold", name, id=name)
        await self.connection.command("HSET", self.keys.of("hold", name).instance, "recoveries", losses)
        return invocation


def has_begun(stage: Stage, number: int) -> bool:
    assert len(stage.begun) <= number
    return len(stage.begun) == number


async def test_suspects_of_one_process_do_not_wait_for_each_other(redis_url: str, namespace: str) -> None:
    async with connected(redis_url) as connection, AsyncExitStack() as exits:
        stage = Stage(redis_url, namespace, connection, lease=60)
        client = await exits.enter_async_context(Client(redis_url, app=stage.app(), settings=stage.settings))
        suspects = [await stage.invoke(client, name, losses=2) for name in "abc"]
        await exits.enter_async_context(stage.engine())
        await until(lambda: len(stage.begun) == 1, "the first one runs alone")
        await exits.enter_async_context(stage.engine())
        await exits.enter_async_context(stage.engine())
        await until(lambda: len(stage.begun) == 3, "the others were handed back, for other workers")
        for suspect in suspects:
            stage.let_go(suspect.instance_id)
            assert await suspect.result(TOO_LONG_S) == suspect.instance_id
            found = await suspect.metadata()
            assert found is not None
            assert found.attempt == 1, "what never began is no run"


async def test_one_process_runs_its_suspects_one_after_another(redis_url: str, namespace: str) -> None:
    async with connected(redis_url) as connection, AsyncExitStack() as exits:
        stage = Stage(redis_url, namespace, connection, lease=60)
        client = await exits.enter_async_context(Client(redis_url, app=stage.app(), settings=stage.settings))
        suspects = {name: await stage.invoke(client, name, losses=2) for name in "abcdef"}
        await exits.enter_async_context(stage.engine())
        for number in range(len(suspects)):
            await until(partial(has_begun, stage, number + 1), "one at a time")
            name = stage.begun[-1]
            assert await connection.command("HGET", stage.keys.of("hold", name).instance, "alone") == b"1"
            stage.let_go(name)
            assert await suspects.pop(name).result(TOO_LONG_S) == name


async def test_a_suspect_does_not_wait_for_a_neighbour_that_takes_long(redis_url: str, namespace: str) -> None:
    async with connected(redis_url) as connection, AsyncExitStack() as exits:
        stage = Stage(redis_url, namespace, connection, lease=1)
        client = await exits.enter_async_context(Client(redis_url, app=stage.app(), settings=stage.settings))
        neighbour = await stage.invoke(client, "neighbour", losses=0)
        suspect = await stage.invoke(client, "suspect", losses=2)
        await exits.enter_async_context(stage.engine())
        await until(lambda: "suspect" in stage.begun, "it runs in company")
        assert await connection.command("HGET", stage.keys.of("hold", "suspect").instance, "alone") is None
        for each in (suspect, neighbour):
            stage.let_go(each.instance_id)
            assert await each.result(TOO_LONG_S) == each.instance_id


async def test_but_the_last_chance_waits_for_solitude(redis_url: str, namespace: str) -> None:
    async with connected(redis_url) as connection, AsyncExitStack() as exits:
        stage = Stage(redis_url, namespace, connection, lease=1)
        client = await exits.enter_async_context(Client(redis_url, app=stage.app(), settings=stage.settings))
        neighbour = await stage.invoke(client, "neighbour", losses=0)
        suspect = await stage.invoke(client, "suspect", losses=MANY_RECOVERIES - 1)
        await exits.enter_async_context(stage.engine())
        await until(lambda: "neighbour" in stage.begun, "the neighbour")
        # longer than another suspect waits
        asyncio.get_running_loop().call_later(1.5, stage.let_go, "neighbour")
        await until(lambda: "suspect" in stage.begun, "it runs")
        assert await connection.command("HGET", stage.keys.of("hold", "suspect").instance, "alone") == b"1"
        stage.let_go("suspect")
        assert await suspect.result(TOO_LONG_S) == "suspect"
        assert await neighbour.result(TOO_LONG_S) == "neighbour"


async def test_one_suspect_at_a_time_keeps_a_worker_from_taking_work(redis_url: str, namespace: str) -> None:
    async with connected(redis_url) as connection, AsyncExitStack() as exits:
        stage = Stage(redis_url, namespace, connection, lease=60)
        client = await exits.enter_async_context(Client(redis_url, app=stage.app(), settings=stage.settings))
        suspects = [await stage.invoke(client, name, losses=2) for name in "abc"]
        for _ in suspects:
            await exits.enter_async_context(stage.engine())
        await until(lambda: len(stage.begun) == 3, "each runs, in one worker or another")
        alone = [await connection.command("HGET", stage.keys.of("hold", name).instance, "alone") for name in "abc"]
        assert alone.count(b"1") == 1
        innocent = await stage.invoke(client, "innocent", losses=0)
        await until(lambda: "innocent" in stage.begun, "the others take work")
        for each in (*suspects, innocent):
            stage.let_go(each.instance_id)
            assert await each.result(TOO_LONG_S) == each.instance_id
        assert not await connection.command("EXISTS", stage.keys.partitions[0].solitude)


async def test_one_that_is_anothers_by_now_does_not_keep_its_process_from_work(redis_url: str, namespace: str) -> None:
    async with connected(redis_url) as connection, AsyncExitStack() as exits:
        stage = Stage(redis_url, namespace, connection, lease=1)
        client = await exits.enter_async_context(Client(redis_url, app=stage.app(), settings=stage.settings))
        neighbour = await stage.invoke(client, "neighbour", losses=0)
        suspect = await stage.invoke(client, "suspect", losses=MANY_RECOVERIES - 1)
        engine = await exits.enter_async_context(stage.engine())
        await until(lambda: "neighbour" in stage.begun, "the neighbour")
        await until(lambda: engine._runtime._intake._wish_for_quiet == 1, "it waits for solitude")
        run, keys = engine._runtime._runs["hold/suspect"], stage.keys.of("hold", "suspect")
        await connection.command("HSET", keys.instance, "lease", "another")
        await until(lambda: run.over is not None, "the thread that renews has told it")
        innocent = await stage.invoke(client, "innocent", losses=0)
        await until(lambda: "innocent" in stage.begun, "work is taken again")
        await connection.command("HSET", keys.instance, "lease", run.held.lease)
        for each in (neighbour, suspect, innocent):
            stage.let_go(each.instance_id)
        for each in (neighbour, suspect, innocent):
            assert await each.result(TOO_LONG_S) == each.instance_id
