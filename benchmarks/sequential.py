"""One instance of 1,000 steps, one after another: time of a step, beside the bare round trip of the same script.

The bare round trip: one socket, nothing around it, and the very words by which a worker has recorded a step of an
instance that it still holds; only the step's key is another each time.

Who asks and who answers take turns, and much depends on where the kernel puts them. On one core they wake each other
for little; on two, a virtual machine pays an interrupt through its host for each wake-up, which can take longer than
all else. Left alone, the kernel mostly leaves the bare loop beside Redis, and a worker apart from it. So both are also
measured with Redis on a core of its own, as if it were on another machine: then the wake-ups are the same for both.
"""

from __future__ import annotations

import asyncio
import os
import time

from benchmarks import bench
from benchmarks.app import WORKFLOWS
from benchmarks.bench import FLOOR, MEMABLE, Bench, Goal
from benchmarks.floor import Bare
from memable import Client

WHOLE_RUNS = 5
WHAT = "a step of 1,000 in a row, µs"
APART = "a step of 1,000 in a row, Redis on a core of its own, µs"
GOALS = (Goal(WHAT, at_most=1.5, of=FLOOR), Goal(APART, at_most=1.5, of=FLOOR))
HELD_S = 3.0


async def measure(bench: Bench) -> None:
    steps = bench.size(1_000)
    bench.empty()
    async with bench.workers("in_a_row") as (worker,), bench.client() as client:
        bench.tell(WHAT, MEMABLE, await _in_a_row_us(client, steps))
        with bench.apart(worker):
            bench.tell(APART, MEMABLE, await _in_a_row_us(client, steps))
    bench.empty()
    async with bench.workers("hold"), bench.client() as client:
        record = await _seen_recording(bench, client)
        bench.tell(WHAT, FLOOR, await _bare_us(bench.url, record, range(1, 1 + steps)))
        with bench.apart(os.getpid()):
            bench.tell(APART, FLOOR, await _bare_us(bench.url, record, range(1 + steps, 1 + 2 * steps)))


async def _in_a_row_us(client: Client, steps: int) -> float:
    elapsed_s: float = await (await client.invoke(WORKFLOWS["in_a_row"], steps)).result()
    return elapsed_s / steps * 1e6


async def _seen_recording(bench: Bench, client: Client) -> list[bytes]:
    """The words by which a worker records the first step of an instance, which it goes on to hold."""
    monitor = bench.monitor()
    await monitor.open()
    await client.invoke(WORKFLOWS["hold"], HELD_S)
    await asyncio.sleep(HELD_S / 3)
    (seen,) = (each for each in await monitor.close() if each.name == "record")
    return seen.words()


async def _bare_us(url: str, record: list[bytes], numbers: range) -> float:
    bare, at = await Bare.connect(url), record.index(b"s0")
    words = list(record)
    begin_s = time.perf_counter()
    for number in numbers:
        words[at] = b"s%d" % number
        answer = await bare.call(*words)
        assert answer == [1], answer
    elapsed_s = time.perf_counter() - begin_s
    bare.close()
    return elapsed_s / len(numbers) * 1e6


if __name__ == "__main__":
    bench.main()
