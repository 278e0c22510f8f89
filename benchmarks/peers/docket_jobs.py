"""docket: `concurrency=100`; else as shipped."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from docket import Docket, Worker
from roles import CONCURRENCY, TALLY, arguments, main


async def job(order: dict[str, Any]) -> dict[str, int]:
    return await TALLY.job(order)


class OfDocket:
    def __init__(self, url: str) -> None:
        # redis-py 8 has 100 connections in a pool: fewer than 100 tasks at once take
        self.docket = Docket(name="bench", url=f"{url}?max_connections=1000")

    async def open(self) -> None:
        await self.docket.__aenter__()
        self.docket.register(job)

    async def enqueue(self, order: dict[str, Any], due_s: float | None) -> Any:
        when = None if due_s is None else datetime.fromtimestamp(due_s, UTC)
        return await self.docket.add(job, when=when)(order)

    async def result(self, handle: Any) -> Any:
        return await handle.get_result()

    async def work(self) -> None:
        await self.open()
        async with Worker(self.docket, concurrency=CONCURRENCY) as worker:
            await worker.run_forever()


main(OfDocket(arguments().url), arguments())
