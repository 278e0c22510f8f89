"""arq: `max_jobs=100`; else as shipped."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from arq import Worker, create_pool
from arq.connections import RedisSettings
from roles import CONCURRENCY, TALLY, arguments, main


async def job(_ctx: dict[str, Any], order: dict[str, Any]) -> dict[str, int]:
    return await TALLY.job(order)


class Arq:
    def __init__(self, url: str) -> None:
        self.settings = RedisSettings.from_dsn(url)

    async def open(self) -> None:
        self.pool = await create_pool(self.settings)

    async def enqueue(self, order: dict[str, Any], due_s: float | None) -> Any:
        due = None if due_s is None else datetime.fromtimestamp(due_s, UTC)
        return await self.pool.enqueue_job("job", order, _defer_until=due)

    async def result(self, handle: Any) -> Any:
        return await handle.result()

    async def work(self) -> None:
        worker = Worker([job], redis_settings=self.settings, max_jobs=CONCURRENCY, handle_signals=False)
        await worker.async_run()


main(Arq(arguments().url), arguments())
