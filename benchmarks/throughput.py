"""Instances/s and steps/s of one worker process, concurrency 100, beside the floor: same run, same server.

Instances are invoked before the worker starts; its rate is from its first claim to its last end. Floor and memable take
turns, and the ratio is that of the run, so that what else the machine does meanwhile counts for both.
"""

from __future__ import annotations

from benchmarks import bench
from benchmarks.app import WORKFLOWS, order
from benchmarks.bench import FLOOR, MEMABLE, Bench, Goal

WHOLE_RUNS = 5
INSTANCES = "one-step instances/s"
LISTED = "one-step instances/s, beside a floor with listing, events and expiry"
CPU = "worker CPU of a one-step instance, µs"
SERVER_CPU = "server CPU of a one-step instance, µs"
LENGTHS = (1, 3, 10, 30, 100)
"""Steps of an instance."""


def steps_of(length: int) -> str:
    return f"steps/s, instances of {length} steps"


GOALS = (
    Goal(INSTANCES, at_least=0.5, of=FLOOR),
    Goal(LISTED, at_least=0.6, of=FLOOR),
    Goal(INSTANCES, at_least=3, of="queues"),
    Goal(steps_of(10), at_least=0.6, of=FLOOR),
)


async def measure(bench: Bench) -> None:
    for length in LENGTHS:
        if length == 1:
            count = bench.size(10_000)
        elif length == 10:
            count = bench.size(2_000)
        elif bench.run == 0 and bench.is_whole:  # for the plot alone
            count = bench.size(30_000 // length)
        else:
            continue
        used, server_s = await _floor(bench, count, length)
        _tell(bench, FLOOR, count, length, used["elapsed_s"], used["cpu_s"], server_s)
        if length == 1:
            used, _ = await _floor(bench, count, length, "--listed")
            bench.tell(LISTED, FLOOR, count / used["elapsed_s"])
        await _memable(bench, count, length)


async def _floor(bench: Bench, count: int, length: int, *options: str) -> tuple[dict[str, float], float]:
    """What the floor has used, and the CPU seconds of the server meanwhile."""
    bench.empty()
    given = "--url", bench.url, "--instances", count
    await bench.program("benchmarks/floor.py", "invoke", *given)
    with bench.server_cpu() as server_s:
        used = await bench.program("benchmarks/floor.py", "work", *given, "--steps", length, *options)
    return used, *server_s


async def _memable(bench: Bench, count: int, length: int) -> None:
    bench.empty()
    async with bench.client() as client:
        noop, ids = WORKFLOWS["noop"], [str(number) for number in range(count)]
        await client.invoke_many(noop, [order(length)] * count, ids=ids)
        async with bench.workers("noop"):
            with bench.server_cpu() as server_s:
                await bench.rest(client, "noop")
            cpu_s = await (await client.invoke(noop, order(0))).result()
        elapsed_s = await bench.between_claim_and_end_s(client, "noop", ids)
    _tell(bench, MEMABLE, count, length, elapsed_s, cpu_s, *server_s)


def _tell(bench: Bench, who: str, count: int, length: int, elapsed_s: float, cpu_s: float, server_s: float) -> None:
    if length > 1:
        bench.tell(steps_of(length), who, count * length / elapsed_s)
        return
    bench.tell(INSTANCES, who, count / elapsed_s)
    if who == MEMABLE:
        bench.tell(LISTED, who, count / elapsed_s)
    bench.tell(CPU, who, cpu_s / count * 1e6)
    bench.tell(SERVER_CPU, who, server_s / count * 1e6)


if __name__ == "__main__":
    bench.main()
