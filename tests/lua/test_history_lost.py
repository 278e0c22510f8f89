"""What a run may still do when Redis has lost the end of its history, and the run's lease came back with the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from memable.holding import Held, HistoryLost
from memable.lua import Answer
from memable.state import Status
from tests.lua.stage import DONE, LONG_MS, STEP, YES, Stage, approval

Operation = Callable[[Stage, Held], Awaitable[object]]

OPERATIONS: dict[str, Operation] = {
    "record": lambda stage, held: stage.store.record(held, "ship", STEP, 1),
    "open": lambda stage, held: stage.store.open(held, [approval("b")], []),
    "park": lambda stage, held: stage.store.park(held, [approval("b")], [], ""),
    "finish": lambda stage, held: stage.store.finish(held, DONE, LONG_MS),
}
every_operation = pytest.mark.parametrize("operate", OPERATIONS.values(), ids=OPERATIONS)


@every_operation
async def test_a_run_whose_last_record_is_gone_is_refused(stage: Stage, operate: Operation) -> None:
    held = await stage.run()
    await stage.store.record(held, "order", STEP, 1)
    await stage.store.record(held, "charge", STEP, 1)
    await stage.command("HDEL", held.keys.steps, "charge")
    before = await stage.check()
    with pytest.raises(HistoryLost):
        await operate(stage, held)
    assert stage.answered() is Answer.FORGOTTEN
    assert await stage.check() == before
    await stage.store.release(held)
    # the next one knows what is there, and nothing else
    await operate(stage, await stage.take(held.keys, "w2"))


@every_operation
async def test_so_is_one_that_has_seen_a_signal_which_is_gone(stage: Stage, operate: Operation) -> None:
    held = await stage.run()
    await stage.store.open(held, [approval("a")], [])
    await stage.store.signal(held.keys, "a", "s1", YES)
    assert await stage.store.open(held, [approval("a")], [])
    await stage.command("HDEL", held.keys.steps, "a", "_by:a")
    with pytest.raises(HistoryLost):
        await operate(stage, held)


async def test_what_was_withdrawn_is_no_loss(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [approval("a")], [])
    await stage.store.open(held, [], ["a"])
    for operate in OPERATIONS.values():
        await operate(stage, held)
        if await stage.status(held.keys) is Status.SUSPENDED:
            await stage.store.signal(held.keys, "b", "s1", YES)
            held = await stage.take(held.keys)


async def test_an_older_signal_that_is_seen_late_hides_no_record(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [approval("a")], [])
    await stage.store.signal(held.keys, "a", "s1", YES)
    await stage.store.record(held, "charge", STEP, 1)
    assert await stage.store.open(held, [approval("a")], [])
    await stage.command("HDEL", held.keys.steps, "charge")
    with pytest.raises(HistoryLost):
        await stage.store.record(held, "ship", STEP, 1)


async def test_nor_does_a_record_that_was_asked_for_before_another_was_known(stage: Stage) -> None:
    held = await stage.run()
    before = held.known
    await stage.store.record(held, "charge", STEP, 1)
    await stage.command("HDEL", held.keys.steps, "charge")
    since, held.known = held.known, before
    later = asyncio.ensure_future(stage.store.record(held, "ship", STEP, 1))
    await asyncio.sleep(0)  # it is on its way, as after a reconnect
    held.known = since
    assert await later is None
    with pytest.raises(HistoryLost):
        await stage.store.finish(held, DONE, LONG_MS)


async def test_what_a_run_knows_stays_short(stage: Stage) -> None:
    held = await stage.run()
    for number in range(100):
        await stage.store.record(held, f"s{number}", STEP, 1)
    assert held.known == ("s99",)
    await asyncio.gather(*(stage.store.record(held, f"t{number}", STEP, 1) for number in range(100)))
    assert held.known == tuple(f"t{number}" for number in range(84, 100))


async def test_a_point_that_a_step_found_open_under_its_key_may_be_withdrawn(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [approval("a")], [])
    assert await stage.store.record(held, "a", STEP, 1)
    await stage.store.open(held, [], ["a"])
    assert await stage.store.record(held, "a", STEP, 1) is None


async def test_a_record_that_is_asked_for_again_hides_none_that_came_after_it(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.record(held, "charge", STEP, 1)
    await stage.store.record(held, "ship", STEP, 1)
    assert await stage.store.record(held, "charge", STEP, 1) is not None
    await stage.command("HDEL", held.keys.steps, "ship")
    with pytest.raises(HistoryLost):
        await stage.store.finish(held, DONE, LONG_MS)


async def test_of_many_points_the_last_to_be_completed_are_known(stage: Stage) -> None:
    held = await stage.run()
    points = [approval(f"p{number}") for number in range(20)]
    await stage.store.open(held, points, [])
    for number in reversed(range(20)):
        await stage.store.signal(held.keys, f"p{number}", "s1", YES)
        await next_millisecond(stage)
    await stage.store.open(held, points, [])
    assert set(held.known) == {f"p{number}" for number in range(16)}


async def next_millisecond(stage: Stage) -> None:
    """The resolution of a record's times."""
    begun = await stage.command("TIME")
    while int((await stage.command("TIME"))[1]) // 1000 == int(begun[1]) // 1000:
        pass
