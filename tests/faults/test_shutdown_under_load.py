"""A deploy: one of two busy workers is told to stop. The other takes what is left at once, and nobody is worse off."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Self

import pytest

from memable import App, Engine, Settings
from tests.apps import labour
from tests.faults.crew import Crew, results
from tests.worker_process import WorkerProcess, until

LEASE_S = 60
"""What is taken over within the patience of a test was handed back: nobody has waited for a lease."""

BATCH = 10
HELD = ["a", "b", "c", "d", "e", "f"]


class Load:
    """Errands without end, `BATCH` at a time; what has begun is waited for when they are enough."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._is_enough = False
        self.done = 0

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_enough = True
        await self._running

    async def _run(self) -> None:
        while not self._is_enough:
            names = [f"errand-{self.done + number}" for number in range(BATCH)]
            await results(await self._crew.client.invoke_many(labour.errand, names))
            self.done += BATCH

    async def keeps_busy(self, *processes: WorkerProcess) -> None:
        """Return when each of them has its share."""

        def are_busy() -> bool:
            ended = Counter(pid for name, pid in self._crew.ledger() if name.endswith("-return"))
            return all(ended[process.pid] >= BATCH for process in processes)

        await until(are_busy, "errands in every process")

    async def goes_on(self, batches: int) -> None:
        enough = self.done + batches * BATCH
        await until(lambda: self.done >= enough, "more errands")


@pytest.fixture
async def leader(redis_url: str, namespace: str) -> AsyncGenerator[Engine]:
    """A third process, which runs nothing: it leads, and so fires the timers, whoever stops."""
    async with Engine(App(), url=redis_url, settings=Settings(namespace=namespace, lease=LEASE_S)) as engine:
        yield engine


async def tell_to_stop(process: WorkerProcess) -> None:
    process.process.send_signal(signal.SIGTERM)
    await process.logged("shutdown on SIGTERM")


async def what_was_handed_back_is_at(other: WorkerProcess, crew: Crew) -> None:
    """At once, and as if nothing had happened to it."""
    await crew.called(other, *HELD)
    assert await crew.fields("hold", "status") == ["running"] * len(HELD)
    assert await crew.fields("hold", "recoveries") == [None] * len(HELD)
    assert await crew.fields("hold", "attempt") == ["2"] * len(HELD)


@pytest.mark.usefixtures("leader")
async def test_it_lets_runs_end_within_the_grace_takes_no_new_ones_and_hands_back_the_rest(crew: Crew) -> None:
    async with crew.worker(lease=LEASE_S, shutdown_grace=3) as told:
        held = await crew.client.invoke_many(labour.hold, HELD)
        await crew.called(told, *HELD)
        async with crew.worker(lease=LEASE_S) as other:
            async with Load(crew) as load:
                await load.keeps_busy(told, other)
                await tell_to_stop(told)
                await load.goes_on(batches=3)  # the first of them may have been invoked before the signal
                begun = crew.ledger()
                await load.goes_on(batches=2)
                assert {pid for name, pid in crew.ledger()[len(begun) :] if name.endswith("-go")} == {other.pid}
                assert await told.ended() == 0
                await what_was_handed_back_is_at(other, crew)
            crew.let_go_on(other)
            assert await results(held) == [other.pid] * len(HELD)
    assert [crew.calls(name) for name in HELD] == [[told.pid, other.pid]] * len(HELD)
    errands = Counter(name for name, _ in crew.ledger() if name.startswith("errand-"))
    ends = ("go", "attempt-1", "failed", "attempt-2", "return")
    assert errands == {f"errand-{number}-{end}": 1 for number in range(load.done) for end in ends}


@pytest.mark.usefixtures("leader")
async def test_told_again_it_hands_back_at_once(crew: Crew) -> None:
    async with crew.worker(lease=LEASE_S, shutdown_grace=600) as told:
        held = await crew.client.invoke_many(labour.hold, HELD)
        await crew.called(told, *HELD)
        async with crew.worker(lease=LEASE_S) as other:
            async with Load(crew) as load:
                await load.keeps_busy(told, other)
                await tell_to_stop(told)
                await load.goes_on(batches=1)
                assert told.is_alive
                await tell_to_stop(told)
                assert await told.ended() == 0
                await what_was_handed_back_is_at(other, crew)
            crew.let_go_on(other)
            assert await results(held) == [other.pid] * len(HELD)
