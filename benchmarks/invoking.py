"""How many instances a second one client starts with `invoke_many`, beside the floor."""

from __future__ import annotations

import time

from benchmarks import bench
from benchmarks.app import WORKFLOWS, order
from benchmarks.bench import FLOOR, MEMABLE, Bench, Goal

WHOLE_RUNS = 5
WHAT = "invoke_many/s"
GOALS = (Goal(WHAT, at_least=25_000),)


async def measure(bench: Bench) -> None:
    count = bench.size(20_000)
    bench.empty()
    used = await bench.program("benchmarks/floor.py", "invoke", "--url", bench.url, "--instances", count)
    bench.tell(WHAT, FLOOR, count / used["elapsed_s"])
    bench.empty()
    async with bench.client() as client:
        inputs = [order(1)] * count
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        with bench.server_cpu() as server_s:
            await client.invoke_many(WORKFLOWS["noop"], inputs)
        elapsed_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
    bench.tell(WHAT, MEMABLE, count / elapsed_s)
    bench.tell("client CPU of an instance of invoke_many, µs", MEMABLE, cpu_s / count * 1e6)
    bench.tell("server CPU of an instance of invoke_many, µs", MEMABLE, server_s[0] / count * 1e6)


if __name__ == "__main__":
    bench.main()
