"""An instance that kills its worker is failed; those that shared the process with it never are."""

from __future__ import annotations

import asyncio
from pathlib import Path

from memable import Client, Invocation, Status
from tests.apps.poison import app, neighbour, poison
from tests.worker_process import WorkerProcess

MAX_RECOVERIES = 3
NEIGHBOURS = 12


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


async def test_what_kills_its_worker_is_failed_alone(redis_url: str, namespace: str, tmp_path: Path) -> None:
    async with Client(redis_url, app=app, namespace=namespace) as client:
        victims = await client.invoke_many(neighbour, [None] * NEIGHBOURS)
        poisoned = await client.invoke(poison, 0.2, id="poison")
        keepers = [asyncio.create_task(keep_alive(tmp_path, redis_url, namespace)) for _ in range(2)]
        try:
            state = await poisoned.wait(50)
            assert state.status is Status.FAILED
            assert "poison/poison has lost its worker 3 times in a row" in str(state)
            for victim in victims:
                assert isinstance(victim, Invocation)
                assert await victim.result(50) == "unharmed"
        finally:
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)
    deaths = (tmp_path / "deaths").read_text().split()
    assert len(set(deaths)) == len(deaths)
    # one loss more where the first ones came while it had neighbours
    assert MAX_RECOVERIES <= len(deaths) <= MAX_RECOVERIES + 2
