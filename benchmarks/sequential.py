"""One instance of 1,000 steps, one after another: time of a step, beside the bare round trip of the same script.

The bare round trip: one socket, nothing around it, and the very words by which a worker has recorded a step of an
instance that it still holds; only the step's key is another each time.
"""

from __future__ import annotations

import asyncio
import time

from benchmarks import bench
from benchmarks.app import WORKFLOWS
from benchmarks.bench import FLOOR, MEMABLE, Bench, Goal
from benchmarks.floor import Bare
from memable import Client

WHOLE_RUNS = 5
WHAT = "a step of 1,000 in a row, µs"
GOALS = (Goal(WHAT, at_most=1.5, of=FLOOR),)
HELD_S = 3.0


async def measure(bench: Bench) -> None:
    steps = bench.size(1_000)
    bench.empty()
    async with bench.workers("in_a_row"), bench.client() as client:
        elapsed_s: float = await (await client.invoke(WORKFLOWS["in_a_row"], steps)).result()
        bench.tell(WHAT, MEMABLE, elapsed_s / steps * 1e6)
    bench.empty()
    async with bench.workers("hold"), bench.client() as client:
        record = await _seen_recording(bench, client)
        bench.tell(WHAT, FLOOR, await _bare_s(bench.url, record, steps) / steps * 1e6)


async def _seen_recording(bench: Bench, client: Client) -> list[bytes]:
    """The words by which a worker records the first step of an instance, which it goes on to hold."""
    monitor = bench.monitor()
    await monitor.open()
    await client.invoke(WORKFLOWS["hold"], HELD_S)
    await asyncio.sleep(HELD_S / 3)
    (seen,) = (each for each in await monitor.close() if each.name == "record")
    return seen.words()


async def _bare_s(url: str, record: list[bytes], steps: int) -> float:
    bare, at = await Bare.connect(url), record.index(b"s0")
    begin_s = time.perf_counter()
    for number in range(1, steps + 1):
        record[at] = b"s%d" % number
        answer = await bare.call(*record)
        assert answer == [1], answer
    elapsed_s = time.perf_counter() - begin_s
    bare.close()
    return elapsed_s


if __name__ == "__main__":
    bench.main()
