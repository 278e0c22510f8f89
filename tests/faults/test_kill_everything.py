"""An instance that kills its worker is failed; those that shared the process with it never are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from memable import Client, Invocation, Status
from tests.apps.poison import app, neighbour, poison
from tests.worker_process import WorkerProcess

MAX_RECOVERIES = 3
NEIGHBOURS = 99


async def keep_alive(directory: Path, url: str, namespace: str) -> None:
    """What a supervisor does: a worker that died is started again, until this is cancelled."""
    while True:
        settings = {"NAMESPACE": namespace, "LEASE": "1", "MAX_RECOVERIES": str(MAX_RECOVERIES), "SHUTDOWN_GRACE": "0"}
        environment = {f"MEMABLE_{name}": value for name, value in settings.items()}
        worker = WorkerProcess(directory, url, "-m", "arq", "tests.apps.poison.WorkerSettings", **environment)
        worker.start()
        try:
            await asyncio.to_thread(worker.process.wait)
        finally:
            worker.process.kill()


@asynccontextmanager
async def fleet(processes: int, directory: Path, url: str, namespace: str) -> AsyncIterator[None]:
    keepers = [asyncio.create_task(keep_alive(directory, url, namespace)) for _ in range(processes)]
    try:
        yield
    finally:
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)


@pytest.mark.parametrize("processes", [1, 2])
async def test_what_kills_its_worker_is_failed_alone(
    redis_url: str, namespace: str, tmp_path: Path, processes: int
) -> None:
    (tmp_path / "company").touch()
    async with Client(redis_url, app=app, namespace=namespace) as client:
        victims = await client.invoke_many(neighbour, [0.1] * NEIGHBOURS)
        poisoned = await client.invoke(poison, NEIGHBOURS, id="poison")
        async with fleet(processes, tmp_path, redis_url, namespace):
            state = await poisoned.wait(100)
            assert state.status is Status.FAILED
            assert "poison/poison has lost its worker 3 times in a row" in str(state)
            for victim in victims:
                assert isinstance(victim, Invocation)
                assert await victim.result(100) == "unharmed"
                metadata = await victim.metadata()
                assert metadata is not None
                assert processes > 1 or metadata.attempt > 1  # it was there when its worker was killed
    deaths = (tmp_path / "deaths").read_text().split()
    assert len(set(deaths)) == len(deaths)
    # one loss more where the first ones came while it had neighbours
    assert MAX_RECOVERIES <= len(deaths) <= MAX_RECOVERIES + 2
