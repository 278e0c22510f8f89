"""From invoke to result of a one-step instance: one client, one idle worker, one instance after another."""

from __future__ import annotations

import time

from benchmarks import bench
from benchmarks.app import WORKFLOWS, order
from benchmarks.bench import MEMABLE, Bench, Goal

WHOLE_RUNS = 5
WARM_UP = 20
WHAT = "invoke to result, ms"
GOALS = (
    Goal(f"{WHAT}, p50", at_most=1.5),
    Goal(f"{WHAT}, p99", at_most=5),
)


async def measure(bench: Bench) -> None:
    latencies_ms: list[float] = []
    bench.empty()
    async with bench.workers("noop"), bench.client() as client:
        for _ in range(bench.size(1_000) + WARM_UP):
            begin_s = time.perf_counter()
            await (await client.invoke(WORKFLOWS["noop"], order(1))).result()
            latencies_ms.append((time.perf_counter() - begin_s) * 1000)
    bench.tell_percentiles(WHAT, MEMABLE, latencies_ms[WARM_UP:])


if __name__ == "__main__":
    bench.main()
