"""Redis commands of a one-step instance, as the client and an idle worker send them; what goes by the clock aside."""

from __future__ import annotations

from collections import Counter

from benchmarks import bench
from benchmarks.app import WORKFLOWS, order
from benchmarks.bench import MEMABLE, Bench, Command, Goal

WHOLE_RUNS = 1
WHAT = "Redis commands of a one-step instance"
GOALS = (Goal(WHAT, at_most=5),)
OF_OTHERS = ("SUBSCRIBE", "UNSUBSCRIBE", "HMGET", "reconcile")
"""What `result()` sends beside, which awaiting.py counts, and the leader by the clock."""


async def measure(bench: Bench) -> None:
    count = bench.size(200)
    bench.empty()
    async with bench.workers("noop"), bench.client() as client:
        await (await client.invoke(WORKFLOWS["noop"], order(1))).result()
        monitor = bench.monitor()
        await monitor.open()
        for number in range(count):
            await (await client.invoke(WORKFLOWS["noop"], order(1), id=f"counted-{number}")).result()
        sent = Counter(each.name for each in await monitor.close() if _is_of_an_instance(each))
    bench.tell(WHAT, MEMABLE, round(sum(sent.values()) / count, 1))
    for each, times in sent.most_common():
        bench.tell(f"{WHAT}: {each}", MEMABLE, round(times / count, 2))


def _is_of_an_instance(command: Command) -> bool:
    if command.name == "XREADGROUP":
        return True
    return command.name not in OF_OTHERS and any("/counted-" in word for word in command.shown)


if __name__ == "__main__":
    bench.main()
