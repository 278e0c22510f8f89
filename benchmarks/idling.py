"""What idle workers ask of Redis: calls a second of each of four, with no instance and with 100,000 suspended ones.

Seen by MONITOR, so that what scripts call is not counted; arq's own polling is.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from benchmarks import bench
from benchmarks.app import WORKFLOWS, order
from benchmarks.bench import MEMABLE, Bench, Goal, cpu_s

WHOLE_RUNS = 1
WORKERS = 4
WATCHED_S = 15.0
SETTLED_S = 5.0
"""Longer than a lease: the first lead, and the first walk through the listing, are over."""

_WITH = "calls/s of an idle worker, 100,000 suspended"
_WITHOUT = "calls/s of an idle worker, none suspended"
GOALS = (Goal(_WITH, at_most=10), Goal(_WITHOUT, at_most=10))


async def measure(bench: Bench) -> None:
    bench.empty()
    async with bench.workers("approve", WORKERS) as pids, bench.client() as client:
        await _watch(bench, _WITHOUT, pids)
        count = bench.size(100_000)
        for first in range(0, count, 10_000):
            await client.invoke_many(WORKFLOWS["approve"], [order(0)] * min(10_000, count - first))
        await bench.rest(client, "approve")
        await _watch(bench, _WITH, pids)


async def _watch(bench: Bench, what: str, pids: list[int]) -> None:
    scaled_s = WATCHED_S if bench.is_whole else 1.0
    await asyncio.sleep(SETTLED_S if bench.is_whole else 0)
    monitor = bench.monitor()
    begin_s = sum(map(cpu_s, pids))
    await monitor.open()
    await asyncio.sleep(scaled_s)
    clients: Any = bench.admin.client_list()
    names = {each["addr"]: each["name"] for each in clients}
    seen = await monitor.close()
    used_s = sum(map(cpu_s, pids)) - begin_s
    # the reader's connection and arq's are the workers' too
    sent = Counter(each.name for each in seen if names.get(each.address, "").startswith("memable-"))
    bench.tell(what, MEMABLE, sum(sent.values()) / scaled_s / WORKERS)
    for each, times in sent.most_common():
        bench.tell(f"{what}: {each}", MEMABLE, times / scaled_s / WORKERS)
    bench.tell(what.replace("calls/s", "CPU ms/s"), MEMABLE, used_s * 1000 / scaled_s / WORKERS)


if __name__ == "__main__":
    bench.main()
