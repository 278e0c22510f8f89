"""Lesson 19. Death of a process.

What an engine or a worker has acknowledged outlives it. With `Engine(app, data_dir=…)` that needs no Redis of one's
own: the embedded server of the directory writes each change to disk before it is acknowledged. A process that is
told to stop hands back what it runs; of one that is killed, others take over what it held after a lease (3 s by
default).
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from memable import App, Context, Engine, Settings, Status
from tests.fundamentals.dying import shop
from tests.fundamentals.starting import Start
from tests.worker_process import TOO_LONG_S


@pytest.mark.spec("engine-data-dir", "idempotency-key", "called-again")
async def test_an_engine_with_a_data_directory_goes_on_after_kill_9(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MEMABLE_REDIS_URL", raising=False)
    ledger = tmp_path / "ledger"
    victim = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.fundamentals.dying", str(data_dir), str(ledger)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert victim.stdout is not None
    try:
        assert await victim.stdout.readline() == b"ready\n"
    finally:
        victim.send_signal(signal.SIGKILL)
        await victim.wait()

    async with Engine(shop(ledger, ship=lambda: None), data_dir=data_dir, settings=Settings(lease=1)) as engine:
        waits = engine.get("waits", "1")
        assert str(await waits.wait()) == "suspended: answer"
        await waits.signal("answer", "yes")
        assert await waits.result() == "yes"

        order = engine.get("order", "42")
        assert await order.result() == ["receipt", "shipped"]
        metadata = await order.metadata()
        assert metadata is not None
        assert metadata.attempt == 2

    before, charge, *ships = ledger.read_text().splitlines()
    assert (before.split()[0], charge.split()[0]) == ("before", "charge")  # recorded, and not called again
    assert len(ships) == 2  # called again, since the process died before the record,
    assert len(set(ships)) == 1  # but with the same idempotency key


async def test_a_data_directory_keeps_instances_between_two_engines(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MEMABLE_REDIS_URL", raising=False)
    app = shop(tmp_path / "ledger", ship=lambda: None)
    async with Engine(app, data_dir=data_dir) as engine:
        assert await (await engine.invoke("order", id="42")).result() == ["receipt", "shipped"]
    async with Engine(app, data_dir=data_dir) as engine:
        assert await engine.get("order", "42").result() == ["receipt", "shipped"]


@pytest.mark.spec("shutdown")
async def test_an_engine_that_stops_hands_back_what_it_runs(start: Start) -> None:
    app, begun, called = App(), asyncio.Event(), list[str]()

    async def hangs_once() -> str:
        called.append("call")
        begun.set()
        if len(called) == 1:
            await asyncio.Event().wait()
        return "done"

    @app.workflow("order")
    async def order(ctx: Context) -> str:
        await ctx.step("first", called.append, "first") if not called else None
        called.clear() if called == ["first"] else None
        return await ctx.step("second", hangs_once)

    async with start(app, shutdown_grace=0) as engine:
        await engine.invoke(order, id="42")
        await begun.wait()
    async with start(app) as engine:
        # at once: nothing has to be taken from the dead
        assert await engine.get("order", "42").result() == "done"
        metadata = await engine.get_metadata("order", "42")
        assert metadata is not None
        assert (metadata.status, metadata.attempt) == (Status.COMPLETED, 2)
    assert called == ["call", "call"]


async def test_an_engine_that_stops_lets_its_runs_end_first(start: Start) -> None:
    app, begun, go_on = App(), asyncio.Event(), asyncio.Event()

    async def takes_a_while() -> str:
        begun.set()
        await go_on.wait()
        return "done"

    @app.workflow("order")
    async def order(ctx: Context) -> str:
        return await ctx.step("while", takes_a_while)

    async with start(app, shutdown_grace=30) as engine:
        await engine.invoke(order, id="42")
        await begun.wait()
        asyncio.get_running_loop().call_later(0.01, go_on.set)
    async with start(app) as engine:
        metadata = await engine.get_metadata("order", "42")
        assert metadata is not None
        assert (metadata.status, metadata.attempt) == (Status.COMPLETED, 1)


@pytest.mark.spec("shutdown")
async def test_a_workflow_cannot_tell_a_stop_from_a_wait(start: Start) -> None:
    """The cancellation that ends a run is not the author's: points stay open, and nothing is recorded as failed."""
    app, begun = App(), asyncio.Event()

    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    @app.workflow("order")
    async def order(ctx: Context, name: str) -> str:
        async def both() -> str:
            step = ctx.step("hang", hang) if not begun.is_set() else ctx.step("fine", str)
            return str((await asyncio.gather(ctx.suspend("answer"), step))[0])

        return await both()

    async with start(app, shutdown_grace=0) as engine:
        await engine.invoke(order, "a", id="42")
        await begun.wait()
    async with start(app) as engine:
        instance = engine.get("order", "42")
        assert (await instance.wait()).key == "answer"
        await instance.signal("answer", "yes")
        assert await instance.result() == "yes"
        assert {step.key: step.error for step in await engine.steps("order", "42")} == {"answer": None, "fine": None}


FORGETFUL = """
import asyncio, sys
from memable import App, Context, Engine, Settings

app, begun = App(), asyncio.Event()

async def hang() -> None:
    begun.set()
    await asyncio.Event().wait()

@app.workflow("order")
async def order(ctx: Context) -> None:
    await ctx.step("hang", hang)

async def main(url: str, namespace: str) -> None:
    engine = Engine(app, url=url, settings=Settings(namespace=namespace, lease=1))
    await engine.start()
    await engine.invoke(order, id="42")
    await begun.wait()  # and no stop()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_program_that_forgets_to_stop_its_engine_ends_all_the_same_and_its_instances_go_on(
    start: Start, redis_url: str, namespace: str
) -> None:
    program = [sys.executable, "-c", FORGETFUL, redis_url, namespace]
    ended = await asyncio.to_thread(
        subprocess.run, program, capture_output=True, text=True, timeout=TOO_LONG_S, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr

    app = App()

    async def fine() -> str:
        return "done"

    @app.workflow("order")
    async def order(ctx: Context) -> str:
        return await ctx.step("hang", fine)

    async with start(app, lease=1) as engine:
        assert await engine.get("order", "42").result() == "done"
