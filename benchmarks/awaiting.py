"""Redis commands of 1,000 concurrent `inv.result()` in one client, from before the instances run to after their end."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from benchmarks import bench
from benchmarks.app import WORKFLOWS, order
from benchmarks.bench import MEMABLE, Bench, Goal
from memable import Invocation

WHOLE_RUNS = 1
WHAT = "Redis commands of a result() of 1,000"
GOALS = (Goal(WHAT, at_most=3),)


async def measure(bench: Bench) -> None:
    count = bench.size(1_000)
    bench.empty()
    async with bench.client() as client:
        started = await client.invoke_many(WORKFLOWS["noop"], [order(1)] * count)
        monitor = bench.monitor()
        await monitor.open()
        awaiting = asyncio.gather(*(each.result() for each in started if isinstance(each, Invocation)))
        async with bench.workers("noop"):
            assert len(await awaiting) == count
        # what was listened to is forgotten at the end of the loop turn
        await asyncio.sleep(0.1)
        clients: Any = bench.admin.client_list()
        of_client = {each["addr"] for each in clients if each["name"] == "memable"}
        sent = Counter(each.name for each in await monitor.close() if each.address in of_client)
    bench.tell(WHAT, MEMABLE, sum(sent.values()) / count)
    for each, times in sent.most_common():
        bench.tell(f"{WHAT}: {each}", MEMABLE, times / count)


if __name__ == "__main__":
    bench.main()
