"""Memory in Redis of a suspended instance with three small records and an input of 200 B, under deploy/redis.conf."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from typing import Any

from benchmarks import bench
from benchmarks.app import WORKFLOWS, order
from benchmarks.bench import MEMABLE, REDIS_CONF, Bench, Goal

WHOLE_RUNS = 1
CONFIGURATION = REDIS_CONF
INPUT_BYTES = 200
WHAT = "memory of a suspended instance, B"
GOALS = (Goal(WHAT, at_most=1_200),)


async def measure(bench: Bench) -> None:
    some, more = bench.size(1_000), bench.size(10_000)
    bench.empty()
    async with bench.client() as client:

        async def suspended(count: int) -> int:
            """The memory that is used when so many more are suspended, and nobody works."""
            async with bench.workers("approve"):
                await client.invoke_many(WORKFLOWS["approve"], [_input()] * count)
                await bench.rest(client, "approve")
            await asyncio.sleep(0.2)
            return _used_bytes(bench)

        # what is there once, whatever the number of instances, is in both
        before = await suspended(some)
        bench.tell(WHAT, MEMABLE, (await suspended(more) - before) / more)
        for kind, used in _by_kind(bench, some + more).items():
            bench.tell(f"{WHAT}: {kind}", MEMABLE, used)


def _input() -> dict[str, Any]:
    value = {**order(3), "note": ""}
    value["note"] = "x" * (INPUT_BYTES - len(json.dumps(value, separators=(",", ":"))))
    return value


def _used_bytes(bench: Bench) -> int:
    memory: Any = bench.admin.info("memory")
    return int(memory["used_memory"] - memory["mem_clients_normal"] - memory["mem_aof_buffer"])


def _by_kind(bench: Bench, instances: int) -> dict[str, float]:
    """What MEMORY USAGE says of the keys of each kind, for each instance; the server's own tables come on top."""
    sums: dict[str, float] = defaultdict(float)
    for key in bench.admin.scan_iter(count=1000):
        kind = key.decode().partition("}:")[2].partition(":")[0]
        if kind:
            sums[kind] += float(str(bench.admin.memory_usage(key, samples=0))) / instances
    return {kind: used for kind, used in sorted(sums.items()) if used >= 1}


if __name__ == "__main__":
    bench.main()
