"""What a step in a row takes of the interpreter alone: a run whose every call is answered in the next turn of the loop.

No server, no socket, no sleep, all caches warm: what is left when there is nothing to wait for. The floor is a future
that is answered in the next turn. What the connection adds is `benchmarks.client_cpu`'s to tell.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import bench
from benchmarks.app import make
from benchmarks.bench import FLOOR, MEMABLE, Bench, Goal
from memable import lua
from memable.calls import AnyScript
from memable.codec import Codec
from memable.definitions import Definitions
from memable.holding import Claim, Held
from memable.keys import Keys
from memable.lua import Answer, Argument
from memable.reading import Reader
from memable.runtime.run import Run, Workshop
from memable.runtime.steps import StepCaller
from memable.runtime.tasks import Activity
from memable.runtime.threads import StepThreads
from memable.store import Store, new_token

WHOLE_RUNS = 3
WHAT = "interpreter's time for a step in a row, µs"
GOALS: tuple[Goal, ...] = ()
TRIES = 100
"""Short ones: in the quickest of them nobody else had the core."""


class Answering:
    """A connection that answers at once, without asking anybody: that it is done."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def call(self, script: AnyScript, arguments: Sequence[Argument]) -> asyncio.Future[Any]:  # noqa: ARG002
        future: asyncio.Future[Any] = self._loop.create_future()
        done = int(Answer.DONE)
        self._loop.call_soon(future.set_result, [done] if script.name == "record" else done)
        return future

    def command(self, *words: Argument) -> asyncio.Future[Any]:
        raise NotImplementedError(words)


async def measure(bench: Bench) -> None:
    steps = bench.size(200)
    connection = Answering()
    store, codec, activity = Store(connection, Keys(MEMABLE, partitions=1)), Codec(), Activity()
    workshop = Workshop(
        store=store,
        codec=codec,
        caller=StepCaller(StepThreads(1), activity),
        activity=activity,
        definitions=Definitions(codec, None, lambda: Reader(store)),
        resources={},
        park_grace_s=1.0,
        max_records=steps,
        retention_s=None,
        confirm_lease=lambda _: None,
    )
    bench.tell(WHAT, MEMABLE, min([await _in_a_row_s(workshop, steps) for _ in range(TRIES)]) / steps * 1e6)
    bench.tell(WHAT, FLOOR, min([await _bare_s(connection, steps) for _ in range(TRIES)]) / steps * 1e6)


async def _in_a_row_s(workshop: Workshop, steps: int) -> float:
    workflow = make(["in_a_row"])[1]["in_a_row"]
    held = Held(workshop.store.keys.of(workflow.name, new_token()), "1-0", new_token())
    claim = Claim("life", b"%d" % steps, "", 1, 0, 0, 0, {})
    run = Run(workshop, workflow, held, claim)
    await run.carry()
    assert run.outcome is not None
    return float(run.outcome.value)


async def _bare_s(connection: Answering, steps: int) -> float:
    script = lua.load("record")
    begin_s = time.perf_counter()
    for _ in range(steps):
        await connection.call(script, ())
    return time.perf_counter() - begin_s


if __name__ == "__main__":
    bench.main()
