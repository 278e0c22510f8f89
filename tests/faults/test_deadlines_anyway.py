"""A deadline comes whatever its holder does: one that is stopped learns it when it goes on, and records nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest

from memable import App, Context, Engine, Settings, WorkflowFailed
from tests.apps import labour
from tests.faults.crew import Crew
from tests.faults.losing import EachCall
from tests.proxy import Cut, Proxy
from tests.resting import hasten, rests_at
from tests.worker_process import TOO_LONG_S, until

BRIEF_S = 1
HOUR = timedelta(hours=1)


async def test_an_instance_whose_holder_is_stopped_is_failed_by_another_leader(
    crew: Crew, redis_url: str, namespace: str
) -> None:
    # it takes over nothing: it has no workflow
    leader = Engine(App(), url=redis_url, settings=Settings(namespace=namespace, lease=BRIEF_S))
    async with crew.worker(lease=600, concurrency=1) as stopped:
        held = await crew.client.invoke(labour.mortal, "held", id="held")
        await crew.called(stopped, "held")
        crew.stop(stopped)
        # a leader of that lease would keep the lead
        await crew.connection.command("DEL", crew.partition.leader)
        await hasten(crew.client, HOUR)
        async with leader:
            with pytest.raises(WorkflowFailed, match="mortal/held has not ended within its deadline of 3600 s"):
                await held.result(timeout=TOO_LONG_S)
        before = await crew.scene("mortal")
        crew.let_go_on(stopped)
        crew.wake(stopped)
        new = await crew.client.invoke(labour.brief, "new")
        assert await new.result(timeout=TOO_LONG_S) == stopped.pid
        assert await crew.scene("mortal") == before


@pytest.mark.parametrize("where", list(Cut))
async def test_a_leader_that_loses_its_connection_fails_it_once(redis_url: str, namespace: str, where: Cut) -> None:
    app = App()

    @app.workflow("mortal", deadline=HOUR)
    async def mortal(ctx: Context) -> None:
        await ctx.suspend("p")

    async with (
        Proxy(redis_url) as line,
        Engine(app, url=line.url, settings=Settings(namespace=namespace)) as engine,
    ):
        line.cut_each(where, EachCall("expire"))
        instance = await engine.invoke(mortal, id="1")
        await rests_at(instance, "p")
        await hasten(engine, HOUR)
        states = [str(state) async for state in instance.states()]
        await until(lambda: line.cuts == 1, "the connection was lost")
        assert states[-1] == "failed: DeadlineExceeded: mortal/1 has not ended within its deadline of 3600 s"
        online = engine._online()
        version = await online.connection.command("HGET", online.store.keys.of("mortal", "1").instance, "version")
        assert int(version) == len(["queued", "running", "suspended", "failed"])
