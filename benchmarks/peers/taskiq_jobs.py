"""taskiq with its stream broker (the one that acknowledges) and its result backend; 100 tasks at once, else as shipped.

Deferred tasks need its scheduler, another process: they are left out.
"""

from __future__ import annotations

from typing import Any

from roles import CONCURRENCY, TALLY, arguments, main
from taskiq.api import run_receiver_task
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

url = arguments().url
# from the first message on: what was enqueued before a worker ever ran counts
broker = RedisStreamBroker(url, consumer_id="0").with_result_backend(RedisAsyncResultBackend(url))


@broker.task(task_name="job")
async def job(order: dict[str, Any]) -> dict[str, int]:
    return await TALLY.job(order)


class Taskiq:
    async def open(self) -> None:
        await broker.startup()

    async def enqueue(self, order: dict[str, Any], _due_s: float | None) -> Any:
        return await job.kiq(order)

    async def result(self, handle: Any) -> Any:
        return (await handle.wait_result()).return_value

    async def work(self) -> None:
        await run_receiver_task(broker, max_async_tasks=CONCURRENCY, run_startup=True)


main(Taskiq(), arguments())
