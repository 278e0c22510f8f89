"""Where a worker's time goes under load: py-spy on an arq worker process, and its hottest functions: `make profile`.

The stacks stay in build/benchmarks/profile.txt, one line a stack, as flame graph programs take them. Time in C counts
for the Python function that called it: the event loop itself has that of uvloop, tasks and futures.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import redis
import uvloop

from benchmarks import environments
from benchmarks.app import WORKFLOWS, order
from benchmarks.bench import ROOT, Bench, print_line, private_server, worker_environment

STACKS = ROOT / "build" / "benchmarks" / "profile.txt"
_BATCH = 10_000
_LOADED = "run (arq/worker.py"
"""In the stack of everything that a worker does once it runs."""


async def record(bench: Bench, steps: int, seconds: int, rate: int) -> None:
    """Have a worker run instances for so long, and keep its stacks."""
    spy = environments.program("profile", "py-spy")
    async with bench.client() as client:
        # more than it can do
        for _ in range(0, max(1, seconds * 15_000 // (steps + 1)), _BATCH):
            await client.invoke_many(WORKFLOWS["noop"], [order(steps)] * _BATCH)
    # py-spy starts the worker itself: watching another's process needs root
    words = [spy, "record", "--rate", str(rate), "--duration", str(seconds), "--format", "raw", "--output", str(STACKS)]
    process = subprocess.Popen(  # noqa: ASYNC220
        [*words, "--", sys.executable, "-m", "arq", "benchmarks.app.WorkerSettings"],
        cwd=ROOT,
        env=worker_environment(bench.url, "noop"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    _, said = await asyncio.to_thread(process.communicate)
    if not STACKS.exists():
        raise SystemExit(said)


def hottest(stacks: Path, count: int) -> str:
    """The functions in which, and below which, most samples are."""
    own, total, samples = Counter[str](), Counter[str](), 0
    for line in stacks.read_text("utf-8").splitlines():
        frames, _, times = line.rpartition(" ")
        if _LOADED not in frames:
            continue
        functions = [_without_line(frame) for frame in frames[frames.index(_LOADED) :].split(";")]
        functions[0] = "the event loop itself"
        samples += int(times)
        own[functions[-1]] += int(times)
        total.update(dict.fromkeys(functions, int(times)))
    if not samples:
        return "the worker was never seen at work"
    rows = [f"{samples:,} samples", "", "  own  with what it calls"]
    rows += [f"{share / samples:5.1%} {total[name] / samples:6.1%}  {name}" for name, share in own.most_common(count)]
    rows += ["", "  with what it calls"]
    rows += [f"{share / samples:5.1%}  {name}" for name, share in total.most_common(count)]
    return "\n".join(rows)


def _without_line(frame: str) -> str:
    return frame.rpartition(":")[0] + ")" if ":" in frame else frame


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=1, help="of an instance (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=8, help="for how long (default: %(default)s)")
    parser.add_argument("--rate", type=int, default=500, help="samples a second (default: %(default)s)")
    parser.add_argument("--top", type=int, default=30, help="functions to show (default: %(default)s)")
    given = parser.parse_args()
    STACKS.unlink(missing_ok=True)
    with private_server() as (url, pid), redis.Redis.from_url(url) as admin:
        bench = Bench(url, pid, admin, 0, 1.0, print_line)
        try:
            uvloop.run(record(bench, given.steps, given.seconds, given.rate))
        except environments.NotInstalled as error:
            raise SystemExit(f"py-spy cannot be installed here: {error}") from None
    print(hottest(STACKS, given.top))
    print(f"\nall stacks: {os.path.relpath(STACKS)}")


if __name__ == "__main__":
    main()
