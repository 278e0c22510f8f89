"""SAQ: `concurrency=100`, with hiredis; else as shipped. Its times are whole seconds."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

from roles import CONCURRENCY, TALLY, arguments, main
from saq import Queue, Worker


async def job(_ctx: Any, *, order: dict[str, Any]) -> dict[str, int]:
    return await TALLY.job(order)


class Saq:
    def __init__(self, url: str) -> None:
        self.url = url

    async def open(self) -> None:
        self.queue = Queue.from_url(self.url)
        await self.queue.connect()

    async def enqueue(self, order: dict[str, Any], due_s: float | None) -> Any:
        return await self.queue.enqueue("job", order=order, scheduled=0 if due_s is None else math.ceil(due_s))

    async def result(self, handle: Any) -> Any:
        while not handle.completed:
            # it reads first and listens then: of a job that ends in between it would never hear
            with suppress(TimeoutError):
                await handle.refresh(until_complete=1)
        return handle.result

    async def work(self) -> None:
        await self.open()
        await Worker(self.queue, [("job", job)], concurrency=CONCURRENCY).start()


main(Saq(arguments().url), arguments())
