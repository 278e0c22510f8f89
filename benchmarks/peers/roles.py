"""What each peer's program does, in three roles, each a process: a `Queue` says how; standard library only.

enqueue   puts jobs into the queue; with --due, deferred to times evenly over the second from then on
work      a worker, concurrency 100, until the jobs are done; tells seconds and CPU from the first to the last
latency   enqueues a job and awaits its result, one after another, with a worker that is there already
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from typing import Any, Protocol

CONCURRENCY = 100
WARM_UP = 3
AT_ONCE = 50
"""More than their pools of connections have, some refuse."""


class Queue(Protocol):
    """A queue, as its manual says it is used: defaults but for the concurrency."""

    async def open(self) -> None:
        """Be ready to enqueue."""

    async def enqueue(self, order: dict[str, Any], due_s: float | None) -> Any:
        """A handle on the job that `job(order)` is."""

    async def result(self, handle: Any) -> Any:
        """Wait as the manual says."""

    async def work(self) -> None:
        """Be a worker, until cancelled."""


class Tally:
    """What a worker process did: `job` is what the queue calls."""

    def __init__(self) -> None:
        self.expected = 0
        self.done = 0
        self.late_ms: list[float] = []
        self.begin_s = self.begin_cpu_s = 0.0

    async def job(self, order: dict[str, Any]) -> dict[str, int]:
        if not self.done:
            self.begin_s, self.begin_cpu_s = time.perf_counter(), time.process_time()
        if order["due_s"] is not None:
            self.late_ms.append((time.time() - order["due_s"]) * 1000)
        self.done += 1
        if self.done == self.expected:
            # what the queue does with the last result is not in it, as little as what it did before the first job
            told = {
                "elapsed_s": time.perf_counter() - self.begin_s,
                "cpu_s": time.process_time() - self.begin_cpu_s,
                "late_ms": self.late_ms,
            }
            sys.stdout.write(json.dumps(told) + "\n")
            sys.stdout.flush()
            os._exit(0)
        return {"a": 1}


TALLY = Tally()


async def enqueue(queue: Queue, jobs: int, first_due_s: float | None) -> None:
    await queue.open()
    for first in range(0, jobs, AT_ONCE):
        numbers = range(first, min(jobs, first + AT_ONCE))
        due_s = [None if first_due_s is None else first_due_s + number / jobs for number in numbers]
        await asyncio.gather(*(queue.enqueue({"due_s": each, "items": [1, 2, 3]}, each) for each in due_s))


async def latency(queue: Queue, jobs: int, limit_s: float) -> None:
    await queue.open()
    latencies_ms: list[float] = []
    end_s = time.monotonic() + limit_s
    while len(latencies_ms) < jobs + WARM_UP and time.monotonic() < end_s:
        begin_s = time.perf_counter()
        await queue.result(await queue.enqueue({"due_s": None, "items": [1, 2, 3]}, None))
        latencies_ms.append((time.perf_counter() - begin_s) * 1000)
    sys.stdout.write(json.dumps({"latencies_ms": latencies_ms[WARM_UP:]}) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["enqueue", "work", "latency"])
    parser.add_argument("--url", required=True)
    parser.add_argument("--jobs", type=int, required=True)
    parser.add_argument("--due", type=float)
    parser.add_argument("--seconds", type=float, default=60, help="latency: at most so long")
    return parser.parse_args()


def main(queue: Queue, given: argparse.Namespace) -> None:
    import uvloop  # the program's environment has it

    async def play() -> None:
        match given.role:
            case "enqueue":
                await enqueue(queue, given.jobs, given.due)
            case "work":
                TALLY.expected = given.jobs
                await queue.work()
            case _:
                await latency(queue, given.jobs, given.seconds)

    uvloop.run(play())
    sys.stdout.flush()
    # some of them close badly
    os._exit(0)
