"""Parents and children whose workers are killed: every child is there once, and every parent gets what each returns."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.apps.kin import CHILDREN, GRANDPARENT, PARENT
from tests.faults.crew import Crew
from tests.worker_process import TOO_LONG_S, WorkerProcess, until

SQUARES = [number * number for number in range(CHILDREN + 1)]


def worker(crew: Crew, kind: str = "Both") -> WorkerProcess:
    return crew.worker("-m", "arq", f"tests.apps.kin.{kind}", lease=1, concurrency=8)


async def killed_after(crew: Crew, process: WorkerProcess, effects: int) -> None:
    """Kill a process when so many effects have been told in all."""
    await until(lambda: len(crew.ledger()) >= effects, f"{effects} effects")
    process.process.kill()
    process.process.wait()


def check(crew: Crew, deaths: int, families: int = 1) -> None:
    """Every child was called, once more at most for each death that it was in the middle of."""
    calls = Counter(name for name, _ in crew.ledger())
    assert calls.keys() == {str(number) for number in range(CHILDREN + 1)}
    assert sum(calls.values()) - families * len(calls) <= 8 * deaths


async def rest(crew: Crew, *, children: int) -> None:
    """Nothing is left to do, and nothing was made twice."""
    counts = {workflow: len(await crew.fields(workflow, "status")) for workflow in ("child", "parent")}
    assert counts["child"] == children
    for workflow in ("child", "parent"):
        assert set(await crew.fields(workflow, "status")) == {"completed"}


@pytest.mark.parametrize("concurrency", [None, 5])
async def test_every_worker_of_a_family_is_killed_in_its_turn(crew: Crew, concurrency: int | None) -> None:
    instance = await crew.client.invoke(PARENT, concurrency, id="1")
    for effects in (1, 10, 25):
        process = worker(crew)
        process.start()
        await killed_after(crew, process, effects)
    async with worker(crew), worker(crew):
        assert await instance.result(timeout=TOO_LONG_S) == SQUARES
    check(crew, deaths=3)
    await rest(crew, children=CHILDREN + 1)


async def test_a_parents_worker_is_killed_and_its_children_run_on(crew: Crew) -> None:
    async with worker(crew, "Children"):
        instance = await crew.client.invoke(PARENT, None, id="1")
        process = worker(crew, "Parents")
        process.start()
        await killed_after(crew, process, 2)
        # nobody is there to be woken by them, and they need nobody
        await until(lambda: len(set(crew.ledger())) >= CHILDREN // 2, "children without their parent's worker")
        async with worker(crew, "Parents"):
            assert await instance.result(timeout=TOO_LONG_S) == SQUARES
    check(crew, deaths=0)
    await rest(crew, children=CHILDREN + 1)


async def test_the_childrens_worker_is_killed_and_their_parent_waits_for_others(crew: Crew) -> None:
    async with worker(crew, "Parents"), worker(crew, "Children") as first:
        instance = await crew.client.invoke(PARENT, 6, id="1")
        await killed_after(crew, first, 1)
        async with worker(crew, "Children") as second:
            await killed_after(crew, second, 12)
        async with worker(crew, "Children"):
            assert await instance.result(timeout=TOO_LONG_S) == SQUARES
    check(crew, deaths=2)
    await rest(crew, children=CHILDREN + 1)


async def test_three_generations_outlive_the_death_of_their_workers(crew: Crew) -> None:
    families = 3
    instance = await crew.client.invoke(GRANDPARENT, families, id="1")
    for effects in (2, 30):
        process = worker(crew)
        process.start()
        await killed_after(crew, process, effects)
    async with worker(crew), worker(crew):
        assert await instance.result(timeout=TOO_LONG_S) == families * sum(SQUARES)
    check(crew, deaths=2, families=families)
    await rest(crew, children=families * (CHILDREN + 1))
