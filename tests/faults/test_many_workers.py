"""Many workers: none holds more than its slots, all slots are used, and those that are gone leave nothing behind."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from memable import App, Engine, Settings
from memable.keys import GROUP
from memable.runtime import leader, runtime
from tests.apps import labour
from tests.faults.crew import Crew, pid_of, results
from tests.worker_process import TOO_LONG_S, WorkerProcess, until


async def started_together(exits: AsyncExitStack, processes: list[WorkerProcess]) -> list[WorkerProcess]:
    return await asyncio.gather(*(exits.enter_async_context(process) for process in processes))


async def test_nobody_holds_more_than_its_slots_and_every_slot_is_used(crew: Crew) -> None:
    slots, workers, long_ones = 10, 4, 50
    names = [f"long-{number}" for number in range(long_ones)]
    invocations = await crew.client.invoke_many(labour.hold, names)
    async with AsyncExitStack() as exits:
        processes = await started_together(exits, [crew.worker(concurrency=slots) for _ in range(workers)])

        def are_all_slots_used() -> bool:
            return len(crew.ledger()) >= slots * workers

        await until(are_all_slots_used, "a call in every slot")
        assert Counter(pid for _, pid in crew.ledger()) == {process.pid: slots for process in processes}
        assert await crew.holders("hold") == {process.pid: slots for process in processes}
        assert Counter(await crew.fields("hold", "status")) == {"running": slots * workers, "queued": 10}

        first, *others = processes
        crew.let_go_on(first)  # it alone does what has no slot yet
        await until(lambda: len(crew.ledger()) == long_ones, "the call of the last one")
        assert Counter(pid for _, pid in crew.ledger())[first.pid] == slots + 10
        assert all(held <= slots for held in (await crew.holders("hold")).values())
        crew.let_go_on(*others)
        assert Counter(await results(invocations)) == {first.pid: 20, **{other.pid: slots for other in others}}
    assert await crew.fields("hold", "attempt") == ["1"] * long_ones


async def consumers(crew: Crew, workflow: str) -> dict[str, int]:
    """Who is in the group of a stream, and how much is pending for each."""
    found = await crew.connection.command("XINFO", "CONSUMERS", crew.partition.stream(workflow), GROUP)
    facts = [dict(zip(each[::2], each[1::2], strict=True)) for each in found]
    return {each[b"name"].decode(): int(each[b"pending"]) for each in facts}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Engines of this process, which run `labour` too, drop what has been gone for a moment, and look all the time."""
    monkeypatch.setenv("HOSTED_DIR", str(tmp_path))
    monkeypatch.setattr(leader, "_TRIM_EVERY_S", 0)
    monkeypatch.setattr(runtime, "STALE_MS", 1000)
    monkeypatch.setattr(runtime, "BEAT_EVERY_S", 0.2)


@pytest.mark.usefixtures("impatient")
async def test_a_dead_worker_is_dropped_from_the_group_unless_something_is_pending_for_it(
    crew: Crew, redis_url: str, namespace: str
) -> None:
    def settings(lease_s: float) -> Settings:
        return Settings(namespace=namespace, lease=lease_s)

    # it leads, and sweeps nothing before 60 s have passed: what is pending for the dead stays so
    async with Engine(App(), url=redis_url, settings=settings(60)) as engine:
        async with crew.worker(lease=60, concurrency=1) as holder:
            invocation = await crew.client.invoke(labour.hold, "held")
            await crew.called(holder, "held")
            async with crew.worker(lease=60) as idle:

                async def are_both_there() -> bool:
                    return {pid_of(name) for name in await consumers(crew, "hold")} == {holder.pid, idle.pid}

                await until(are_both_there, "both in the group")
                idle.process.kill()
            holder.process.kill()
        (patient,) = engine._runtime._leaders

        async def is_dropped() -> bool:
            await patient._drop_consumers()
            return idle.pid not in map(pid_of, await consumers(crew, "hold"))

        await until(is_dropped, "the end of the consumer that holds nothing")
        await patient._drop_consumers()
        assert {pid_of(name): held for name, held in (await consumers(crew, "hold")).items()} == {holder.pid: 1}
    async with Engine(labour.app, url=redis_url, settings=settings(1)) as heir:
        (crew.directory / f"{os.getpid()}.go").touch()
        assert await invocation.result(timeout=TOO_LONG_S) == os.getpid()

        async def is_alone() -> bool:
            return list(await consumers(crew, "hold")) == [heir._runtime.worker]

        await until(is_alone, "the end of the consumer whose entry was taken over")


WAVES, KILLED, TOLD, ENGINES = 2, 5, 1, 20
"""In each wave: processes killed, processes told to stop, and engines in this process, which are quick to start."""


@pytest.mark.usefixtures("impatient")
async def test_after_many_restarts_the_group_is_small_and_nothing_is_lost(
    crew: Crew, redis_url: str, namespace: str
) -> None:
    assert WAVES * (KILLED + TOLD + ENGINES) >= 50
    names = [f"walk-{number}" for number in range(200)]
    invocations = await crew.client.invoke_many(labour.walk, names)
    settings = Settings(namespace=namespace, lease=1, concurrency=3, shutdown_grace=0)

    async def has_work(process: WorkerProcess) -> bool:
        return process.pid in await crew.holders("walk")

    async def end_in_the_middle(process: WorkerProcess, *, is_killed: bool) -> None:
        async with process:
            await until(lambda: has_work(process), "work for a process")
            if is_killed:
                process.process.kill()
            else:
                assert await process.terminate() == 0

    async def restart_engine() -> None:
        async with Engine(labour.app, url=redis_url, settings=settings) as engine:
            await until(lambda: engine._runtime.running > 0, "work for an engine")

    for wave in range(1, WAVES + 1):
        workers = [crew.worker(lease=1, concurrency=3, shutdown_grace=0) for _ in range(KILLED + TOLD)]
        await asyncio.gather(
            *(end_in_the_middle(worker, is_killed=at < KILLED) for at, worker in enumerate(workers)),
            *(restart_engine() for _ in range(ENGINES)),
        )
        # only the dead have left anything
        assert len(await consumers(crew, "walk")) <= wave * KILLED

    async with Engine(labour.app, url=redis_url, settings=Settings(namespace=namespace, lease=1)) as last:
        assert await results(invocations) == names

        async def is_alone() -> bool:
            return list(await consumers(crew, "walk")) == [last._runtime.worker]

        await until(is_alone, "the end of all consumers that were left behind")
    paces = {f"{name}-pace-{number}" for name in names for number in range(labour.PACES)}
    assert {name for name, _ in crew.ledger()} == paces
