"""How late timers are: 1,000 instances that wait in `ctx.sleep_until`, one due every millisecond of one second."""

from __future__ import annotations

import asyncio
import time

from benchmarks import bench
from benchmarks.app import WORKFLOWS
from benchmarks.bench import MEMABLE, Bench, Goal
from memable import Invocation

WHOLE_RUNS = 3
WHAT = "timer late, ms"
GOALS = (
    Goal(f"{WHAT}, p50", at_most=5),
    Goal(f"{WHAT}, p99", at_most=30),
)
LEAD_S = 4.0
"""From the first invoke to the first deadline: all must wait by then."""


def due_s(count: int) -> list[float]:
    """Deadlines, evenly over a second."""
    first_s = time.time() + LEAD_S
    return [first_s + number / count for number in range(count)]


async def measure(bench: Bench) -> None:
    bench.empty()
    async with bench.workers("wake"), bench.client() as client:
        # longer than a lease: a worker that has just started may not lead yet
        await asyncio.sleep(1)
        deadlines_s = due_s(bench.size(1_000))
        waiting = await client.invoke_many(WORKFLOWS["wake"], deadlines_s)
        await bench.rest(client, "wake")
        assert time.time() < deadlines_s[0], "the instances did not come to wait before their timers were due"
        late_ms = await asyncio.gather(*(each.result() for each in waiting if isinstance(each, Invocation)))
    assert min(late_ms) > -0.01, "a timer fired early"  # a deadline goes by microseconds
    bench.tell_percentiles(WHAT, MEMABLE, late_ms)


if __name__ == "__main__":
    bench.main()
