"""What each script of a one-step instance takes inside Redis: medians, by the slow log, which takes all of them."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import Any

from benchmarks import bench
from benchmarks.app import WORKFLOWS, order
from benchmarks.bench import MEMABLE, Bench, Goal
from memable import lua

WHOLE_RUNS = 1
WHAT = "inside Redis, µs"
OF_AN_INSTANCE = ("invoke", "claim", "record", "finish")
GOALS: tuple[Goal, ...] = ()


async def measure(bench: Bench) -> None:
    count = bench.size(3_000)
    bench.empty()
    names = {lua.load(each).sha: each for each in OF_AN_INSTANCE}
    took_us: dict[str, list[float]] = defaultdict(list)
    async with bench.client() as client, bench.workers("noop"):
        # the first use of a script brings its source
        await (await client.invoke(WORKFLOWS["noop"], order(1))).result()
        bench.admin.config_set("slowlog-max-len", 100 * count)
        bench.admin.config_set("slowlog-log-slower-than", 0)
        await client.invoke_many(WORKFLOWS["noop"], [order(1)] * count)
        await bench.rest(client, "noop")
        bench.admin.config_set("slowlog-log-slower-than", -1)
    logged: Any = bench.admin.slowlog_get(100 * count)
    for entry in logged:
        word, *words = entry["command"].split(b" ", 2)
        if word.upper() == b"EVALSHA" and (name := names.get(words[0].decode())) is not None:
            took_us[name].append(entry["duration"])
    for name in OF_AN_INSTANCE:
        bench.tell(f"{WHAT}: {name}", MEMABLE, median(took_us[name]))


if __name__ == "__main__":
    bench.main()
