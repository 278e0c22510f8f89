"""A cancel needs no living worker: its holder is stopped or dead, or the reply is lost: the instance ends."""

from __future__ import annotations

import pytest

import memable
from memable import App, Context, Engine, Settings, Status, WorkflowCancelled
from tests.apps import labour
from tests.faults.crew import Crew
from tests.faults.losing import EachCall
from tests.proxy import Cut, Proxy
from tests.worker_process import TOO_LONG_S, until

BRIEF_S = 1


@pytest.mark.parametrize("step", ["async", "thread"])
async def test_a_holder_that_is_stopped_learns_it_when_it_goes_on_and_records_nothing(crew: Crew, step: str) -> None:
    async with crew.worker(lease=BRIEF_S, concurrency=1) as stopped:
        held = await crew.client.invoke(labour.chain, step, id=step)
        await crew.called(stopped, f"{step}-middle")
        crew.stop(stopped)
        assert str(await held.cancel(reason="no more")) == "cancelled: no more"
        before = await crew.scene("chain")

        crew.let_go_on(stopped)  # its step ends, the first that it does
        crew.wake(stopped)
        # its only slot is free once it has learnt that its run is over
        new = await crew.client.invoke(labour.brief, "new")
        assert await new.result(timeout=TOO_LONG_S) == stopped.pid
        assert await crew.scene("chain") == before
        assert crew.calls(f"{step}-after") == []
        with pytest.raises(WorkflowCancelled, match="no more"):
            await held.result(timeout=TOO_LONG_S)

        await held.resume()
        assert await held.result(timeout=TOO_LONG_S) == [stopped.pid] * 3
        assert crew.calls(f"{step}-before") == [stopped.pid]


async def test_what_a_dead_worker_held_is_cancelled_and_taken_over_by_nobody(crew: Crew) -> None:
    async with crew.worker(lease=BRIEF_S) as dead:
        held = await crew.client.invoke(labour.hold, "held", id="held")
        await crew.called(dead, "held")
        dead.process.kill()
        dead.process.wait()
        assert (await held.cancel()).status is Status.CANCELLED
    before = await crew.scene("hold")
    async with crew.worker(lease=BRIEF_S) as other:
        beside = await crew.client.invoke(labour.chain, "beside")
        await crew.called(other, "beside-middle")
        other_held = await crew.client.invoke(labour.brief, "sweep")
        assert await other_held.result(timeout=TOO_LONG_S) == other.pid
        crew.let_go_on(other)
        await beside.result(timeout=TOO_LONG_S)
        assert crew.calls("held") == [dead.pid]
        assert await crew.scene("hold") == before


@pytest.mark.parametrize("where", list(Cut))
async def test_a_cancel_whose_connection_is_lost_has_one_effect(redis_url: str, namespace: str, where: Cut) -> None:
    app = App()

    @app.workflow("work")
    async def work(ctx: Context) -> None:
        await ctx.suspend("p")

    settings = Settings(namespace=namespace)
    async with (
        Proxy(redis_url) as line,
        Engine(app, url=redis_url, settings=settings) as engine,
        memable.connect(line.url, app=app, namespace=namespace) as client,
    ):
        instance = await client.invoke(work, id="1")
        await instance.wait(TOO_LONG_S)
        version = await version_of(engine)
        line.cut_each(where, EachCall("cancel"))
        assert str(await instance.cancel(reason="once")) == "cancelled: once"
        await until(lambda: line.cuts == 1, "the connection was lost")
        assert await version_of(engine) == version + 1
        assert str(await instance.wait(TOO_LONG_S)) == "cancelled: once"


async def version_of(engine: Engine) -> int:
    online = engine._online()
    return int(await online.connection.command("HGET", online.store.keys.of("work", "1").instance, "version"))
