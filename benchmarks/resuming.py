"""What it costs a worker to go on with an instance that has 1,000 records: CPU from the signal to the result."""

from __future__ import annotations

import asyncio

from benchmarks import bench
from benchmarks.app import WORKFLOWS, order
from benchmarks.bench import MEMABLE, Bench, Goal, cpu_s

WHOLE_RUNS = 3
WHAT = "worker CPU to resume with 1,000 records, ms"
GOALS = (Goal(WHAT, at_most=15),)
INSTANCES = 10


async def measure(bench: Bench) -> None:
    bench.empty()
    async with bench.workers("approve") as (worker,), bench.client() as client:
        waiting = [await client.invoke(WORKFLOWS["approve"], order(bench.size(1_000))) for _ in range(INSTANCES)]
        for each in waiting:
            await each.wait()
        await asyncio.sleep(0.5)
        begin_s = cpu_s(worker)
        for each in waiting:
            await each.signal("approval")
            await each.result()
        bench.tell(WHAT, MEMABLE, (cpu_s(worker) - begin_s) / INSTANCES * 1000)


if __name__ == "__main__":
    bench.main()
