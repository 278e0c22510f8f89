"""Steps/s of one, two and four worker processes: of steps that wait 2 ms for I/O, at concurrency 4, and of 2 ms of CPU.

The ratio of two processes to one is that of the run.
"""

from __future__ import annotations

from benchmarks import bench
from benchmarks.app import WORKFLOWS
from benchmarks.bench import MEMABLE, Bench, Goal

WHOLE_RUNS = 3
STEPS = 10
IO, CPU = "wait_for_io", "compute"
KINDS = {IO: "steps of 2 ms I/O", CPU: "steps of 2 ms CPU"}
IO_RATIO = "two workers to one, steps of 2 ms I/O"
GOALS = (Goal(IO_RATIO, at_least=1.8),)


def steps_by(kind: str, workers: int) -> str:
    return f"{KINDS[kind]}/s, {workers} worker{'s' * (workers > 1)}"


async def measure(bench: Bench) -> None:
    for kind, counts in ((IO, (1, 2, 4)), (CPU, (1, 2))):
        rates = {workers: await _rate(bench, kind, workers) for workers in counts}
        for workers, rate in rates.items():
            bench.tell(steps_by(kind, workers), MEMABLE, rate)
        bench.tell(f"two workers to one, {KINDS[kind]}", MEMABLE, rates[2] / rates[1])


async def _rate(bench: Bench, kind: str, workers: int) -> float:
    count = bench.size(300 * workers if kind == IO else 60 * workers)
    bench.empty()
    async with bench.workers(kind, workers, concurrency=4), bench.client() as client:
        ids = [str(number) for number in range(count)]
        await client.invoke_many(WORKFLOWS[kind], [STEPS] * count, ids=ids)
        await bench.rest(client, kind)
        return count * STEPS / await bench.between_claim_and_end_s(client, kind, ids)


if __name__ == "__main__":
    bench.main()
