"""streaQ: `concurrency=100`; else as shipped."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from roles import CONCURRENCY, TALLY, arguments, main
from streaq import Worker

worker = Worker(redis_url=arguments().url, concurrency=CONCURRENCY, handle_signals=False)


@worker.task
async def job(order: dict[str, Any]) -> dict[str, int]:
    return await TALLY.job(order)


class StreaQ:
    async def open(self) -> None:
        await worker.__aenter__()

    async def enqueue(self, order: dict[str, Any], due_s: float | None) -> Any:
        task = job.enqueue(order)
        return await (task if due_s is None else task.start(schedule=datetime.fromtimestamp(due_s, UTC)))

    async def result(self, handle: Any) -> Any:
        return (await handle.result()).result

    async def work(self) -> None:
        await worker.run_async()


main(StreaQ(), arguments())
