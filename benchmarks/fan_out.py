"""A fan_out over 10,000 children of one step each, run by two worker processes: from its invoke to its result.

Beside it what the same children take when a client invokes them, each by itself, and nobody collects what they return.
"""

from __future__ import annotations

import time

from benchmarks import bench
from benchmarks.app import WORKFLOWS, order
from benchmarks.bench import MEMABLE, Bench, Goal

WHOLE_RUNS = 3
CHILDREN = 10_000
WORKERS = 2
WHAT = "a fan_out over 10,000 children, s"
IN_PLACES = "a fan_out over 10,000 children, 100 at a time, s"
INVOKED = "10,000 such instances invoked by a client, s"
GOALS = (Goal(WHAT, at_most=15),)


async def measure(bench: Bench) -> None:
    children = bench.size(CHILDREN)
    for what, concurrency in ((WHAT, None), (IN_PLACES, 100)):
        bench.empty()
        async with bench.workers("fan_out,noop", WORKERS), bench.client() as client:
            begin_s = time.perf_counter()
            asked = {"children": children, "concurrency": concurrency}
            assert await (await client.invoke(WORKFLOWS["fan_out"], asked)).result() == children
            bench.tell(what, MEMABLE, time.perf_counter() - begin_s)
    bench.empty()
    async with bench.workers("fan_out,noop", WORKERS), bench.client() as client:
        begin_s = time.perf_counter()
        await client.invoke_many(WORKFLOWS["noop"], [order(1)] * children)
        await bench.rest(client, "noop")
        bench.tell(INVOKED, MEMABLE, time.perf_counter() - begin_s)


if __name__ == "__main__":
    bench.main()
