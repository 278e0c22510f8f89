"""Deadlines of instances: from invoke, resume and continue_as, until whatever end comes first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from memable.holding import LeaseLost, NextLife
from memable.keys import DEADLINE_KEY, InstanceKeys
from memable.lua import Answer
from memable.moments import Due
from memable.state import Status
from memable.store import new_token
from tests.lua.stage import BROKEN, DONE, LONG_MS, Stage, approval, timer

DEADLINE_MS = 3_600_000
Reach = Callable[[Stage], Awaitable[InstanceKeys]]


async def queued(stage: Stage) -> InstanceKeys:
    return await stage.mortal(DEADLINE_MS)


async def delayed(stage: Stage) -> InstanceKeys:
    keys = stage.of()
    assert await stage.store.invoke(keys, new_token(), b"1", Due(after_ms=1e9), deadline_ms=DEADLINE_MS)
    return keys


async def running(stage: Stage) -> InstanceKeys:
    held = await stage.take(await queued(stage))
    await stage.store.open(held, [approval(), timer(after_ms=1e9)], [])
    return held.keys


async def suspended(stage: Stage) -> InstanceKeys:
    held = await stage.take(await queued(stage))
    await stage.store.park(held, [approval(), timer(after_ms=1e9)], [], "")
    return held.keys


async def ends_ms(stage: Stage, keys: InstanceKeys) -> float | None:
    score = await stage.command("ZSCORE", keys.timers, f"{keys.name}/{DEADLINE_KEY}")
    return None if score is None else float(score)


async def expire(stage: Stage, keys: InstanceKeys) -> Answer:
    return await stage.store.expire(keys, BROKEN, LONG_MS)


@pytest.mark.spec("deadline")
async def test_it_counts_from_the_invoke_also_of_one_that_is_delayed(stage: Stage) -> None:
    for reach in (queued, delayed):
        keys = await reach(stage)
        fields = await stage.fields(keys)
        assert await ends_ms(stage, keys) == int(fields["created_us"]) // 1000 + DEADLINE_MS == int(fields["ends_ms"])
        await stage.cancel(keys)
        await stage.store.delete(keys, await stage.life(keys))


async def test_the_leader_is_woken_for_the_earliest(stage: Stage) -> None:
    async with stage.listening(stage.of().partition.wake) as heard:
        assert await heard.so_far() == []
        await stage.mortal(DEADLINE_MS, "first")
        await stage.mortal(DEADLINE_MS * 2, "second")
        await stage.mortal(DEADLINE_MS // 2, "third")
        assert await heard.so_far() == [b"", b""]


@pytest.mark.parametrize("reach", [queued, delayed, running, suspended])
@pytest.mark.spec("deadline")
async def test_an_instance_is_failed_wherever_it_is(stage: Stage, reach: Reach) -> None:
    keys = await reach(stage)
    before = await stage.check()
    assert await expire(stage, keys) is Answer.NOT_REACHED
    assert await stage.check() == before
    await stage.make_deadline_due(keys)
    assert await expire(stage, keys) is Answer.DONE
    scene = await stage.check()
    fields = scene.hashes[keys.instance]
    assert (fields["status"], fields["message"], fields["error"]) == ("failed", BROKEN.message, BROKEN.value.decode())
    assert keys.timers not in scene.zsets
    assert scene.expires_ms[keys.instance] == int(fields["completed_ms"]) + LONG_MS


async def test_the_run_that_holds_it_is_told_and_refused(stage: Stage) -> None:
    held = await stage.take(await stage.mortal())
    await stage.make_deadline_due(held.keys)
    async with stage.listening(held.keys.partition.control("w1")) as heard:
        await expire(stage, held.keys)
        assert await heard.so_far() == [f"over {held.lease}".encode()]
    with pytest.raises(LeaseLost):
        await stage.store.finish(held, DONE, LONG_MS)


@pytest.mark.parametrize("how", ["finish", "cancel"])
async def test_any_other_end_takes_it_away(stage: Stage, how: str) -> None:
    held = await stage.take(await stage.mortal())
    if how == "finish":
        await stage.store.finish(held, DONE, LONG_MS)
    else:
        await stage.cancel(held.keys)
    assert await ends_ms(stage, held.keys) is None
    assert await expire(stage, held.keys) is Answer.NOT_REACHED
    await stage.check()


async def test_a_timer_whose_instance_has_ended_or_is_gone_is_removed(stage: Stage) -> None:
    held = await stage.ended()
    for _ in range(2):
        await stage.command("ZADD", held.keys.timers, 1000, f"{held.keys.name}/{DEADLINE_KEY}")
        assert await expire(stage, held.keys) is Answer.UNKNOWN
        assert await ends_ms(stage, held.keys) is None
        await stage.delete(held.keys)


async def test_it_starts_again_when_an_instance_that_has_ended_is_resumed(stage: Stage) -> None:
    keys = await stage.mortal(DEADLINE_MS)
    await stage.make_deadline_due(keys)
    await expire(stage, keys)
    before_ms = (await stage.check()).now_ms
    await stage.store.resume(keys, new_token())
    ends = await ends_ms(stage, keys)
    assert ends is not None
    assert ends >= before_ms + DEADLINE_MS - 1
    await stage.check()


async def test_it_stays_when_a_suspended_one_is_resumed_and_in_every_run(stage: Stage) -> None:
    keys = await suspended(stage)
    before = await ends_ms(stage, keys)
    await stage.store.resume(keys, new_token())
    held = await stage.take(keys)
    await stage.store.release(held)
    await stage.recover(await stage.take(keys))
    await stage.take(keys)
    assert await ends_ms(stage, keys) == before
    assert before is not None


async def test_it_starts_again_in_the_next_life(stage: Stage) -> None:
    held = await stage.take(await stage.mortal(DEADLINE_MS))
    await stage.make_deadline_due(held.keys)
    await stage.store.continue_as(held, NextLife(new_token(), b"2"))
    assert await expire(stage, held.keys) is Answer.NOT_REACHED
    fields = await stage.fields(held.keys)
    assert int(fields["ends_ms"]) > 1000
    await stage.check()


async def test_one_that_is_lost_is_mended(stage: Stage) -> None:
    for reach, status in ((queued, Status.QUEUED), (suspended, Status.SUSPENDED)):
        keys = await reach(stage)
        before = await ends_ms(stage, keys)
        await stage.command("ZREM", keys.timers, f"{keys.name}/{DEADLINE_KEY}")
        mended = await stage.store.reconcile(keys.partition, keys.workflow, status, [keys.instance_id])
        assert mended == [(keys.instance_id, "timer")]
        assert await ends_ms(stage, keys) == before
        await stage.cancel(keys)
        await stage.store.delete(keys, await stage.life(keys))
