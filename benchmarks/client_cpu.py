"""CPU that a client spends on a script call: 100 tasks that call a small script, one call after another each.

The script does HGET and HSET. Beside it: the same over a socket with hiredis and nothing else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from hashlib import sha1
from typing import Any

from benchmarks import bench
from benchmarks.bench import FLOOR, MEMABLE, Bench, Goal
from benchmarks.floor import Bare
from memable.connection import Endpoint, Script, ScriptConnection

WHOLE_RUNS = 3
TASKS = 100
WHAT = "client CPU of a script call, µs"
GOALS = (Goal(WHAT, at_most=15),)
SOURCE = "local at = redis.call('HGET', KEYS[1], 'at') redis.call('HSET', KEYS[1], 'at', ARGV[1]) return at"
SCRIPT = Script("at", SOURCE, sha1(SOURCE.encode(), usedforsecurity=False).hexdigest(), key_count=1)


async def measure(bench: Bench) -> None:
    bench.empty()
    bench.admin.script_load(SOURCE)
    each = bench.size(300)
    bare = await Bare.connect(bench.url)
    bench.tell(WHAT, FLOOR, await _cpu_us(each, lambda key: bare.call("EVALSHA", SCRIPT.sha, 1, key, "1")))
    bare.close()
    connection = ScriptConnection(Endpoint.from_url(bench.url), give_up_after_s=5)
    await connection.start()
    bench.tell(WHAT, MEMABLE, await _cpu_us(each, lambda key: connection.call(SCRIPT, (key, "1"))))
    await connection.close()


async def _cpu_us(each: int, call: Callable[[str], Awaitable[Any]]) -> float:
    async def task(number: int) -> None:
        key = f"key:{number}"
        for _ in range(each):
            await call(key)

    await call("warm")
    begin_s = time.process_time()
    await asyncio.gather(*(task(number) for number in range(TASKS)))
    return (time.process_time() - begin_s) / (TASKS * each) * 1e6


if __name__ == "__main__":
    bench.main()
