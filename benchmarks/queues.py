"""No-op jobs in arq, streaQ, SAQ, docket and taskiq, results stored: jobs/s, CPU, idle latency, lateness of timers.

One worker process, concurrency 100, the same server settings as for memable. What cannot be installed is left out.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

from benchmarks import bench, environments, latency, throughput, timers
from benchmarks.bench import ROOT, Bench, Goal

WHOLE_RUNS = 1
GOALS: tuple[Goal, ...] = ()
PROGRAMS = {
    "arq": "arq_jobs.py",
    "streaQ": "streaq_jobs.py",
    "SAQ": "saq_jobs.py",
    "docket": "docket_jobs.py",
    "taskiq": "taskiq_jobs.py",
}
WITHOUT_TIMERS = ("taskiq",)
TOO_LONG_S = 60.0
LATENCY_S = 8
"""For how long latency is measured at most."""


async def measure(bench: Bench) -> None:
    for name in PROGRAMS:
        try:
            python = environments.program(name)
        except environments.NotInstalled as error:
            sys.stderr.write(f"{name} is left out: {error}\n")
            continue
        try:
            async with asyncio.timeout(TOO_LONG_S):
                await _jobs(bench, name, python)
            async with asyncio.timeout(TOO_LONG_S):
                await _latency(bench, name, python)
            async with asyncio.timeout(TOO_LONG_S):
                if name not in WITHOUT_TIMERS:
                    await _timers(bench, name, python)
        except (RuntimeError, TimeoutError) as error:
            sys.stderr.write(f"{name} is left out from here on: {str(error) or 'it took too long'}\n")


def _words(bench: Bench, name: str, role: str, jobs: int) -> list[str]:
    return [f"benchmarks/peers/{PROGRAMS[name]}", role, "--url", bench.url, "--jobs", str(jobs)]


async def _jobs(bench: Bench, name: str, python: str) -> None:
    count = bench.size(5_000)
    bench.empty()
    await bench.program(*_words(bench, name, "enqueue", count), python=python)
    with bench.server_cpu() as server_s:
        used = await bench.program(*_words(bench, name, "work", count), python=python)
    bench.tell(throughput.INSTANCES, name, count / used["elapsed_s"])
    bench.tell(throughput.CPU, name, used["cpu_s"] / count * 1e6)
    bench.tell(throughput.SERVER_CPU, name, server_s[0] / count * 1e6)


async def _latency(bench: Bench, name: str, python: str) -> None:
    bench.empty()
    words = [python, *_words(bench, name, "work", 0)]
    worker = subprocess.Popen(words, cwd=ROOT, stderr=subprocess.DEVNULL)  # noqa: ASYNC220
    try:
        words = _words(bench, name, "latency", bench.size(500))
        told = await bench.program(*words, "--seconds", bench.size(LATENCY_S), python=python)
    finally:
        worker.kill()
        await asyncio.to_thread(worker.wait)
    bench.tell_percentiles(latency.WHAT, name, told["latencies_ms"])


async def _timers(bench: Bench, name: str, python: str) -> None:
    count = bench.size(1_000)
    bench.empty()
    working = asyncio.create_task(bench.program(*_words(bench, name, "work", count), python=python))
    try:
        await asyncio.sleep(1)
        due = ("--due", str(time.time() + timers.LEAD_S))
        await bench.program(*_words(bench, name, "enqueue", count), *due, python=python)
        bench.tell_percentiles(timers.WHAT, name, (await working)["late_ms"])
    finally:
        working.cancel()


if __name__ == "__main__":
    bench.main()
