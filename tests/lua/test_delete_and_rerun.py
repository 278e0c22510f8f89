"""delete and resume with `rerun`: what goes, what stays, and what is refused before anything has changed."""

from __future__ import annotations

import pytest

from memable.errors import InstanceBusy, RecordNotFound
from memable.holding import NextLife, Outcome
from memable.lua import Answer
from memable.state import Status
from memable.store import new_token
from tests.lua.stage import BROKEN, DONE, LONG_MS, STEP, YES, Stage, approval, timer

# ── delete ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("outcome", [DONE, BROKEN])
async def test_delete_leaves_nothing(stage: Stage, outcome: Outcome) -> None:
    held = await stage.run()
    await stage.store.record(held, "charge", STEP, 5)
    await stage.store.open(held, [approval(), timer(after_ms=1e9), timer("past", after_ms=-1)], [])
    await stage.store.finish(held, outcome, LONG_MS)
    await stage.store.delete(held.keys, await stage.life(held.keys))
    scene = await stage.check()
    assert not scene.hashes
    assert not scene.zsets
    assert not any(stream.entries or stream.pending for stream in scene.streams.values())


async def test_delete_made_again_leaves_a_later_instance_of_the_same_id_alone(stage: Stage) -> None:
    held = await stage.ended()
    await stage.store.delete(held.keys, await stage.life(held.keys))
    delete = stage.last_call
    assert await stage.again(delete) == [Answer.DONE]
    await stage.ended()
    before = await stage.check()
    assert await stage.again(delete) == [Answer.DONE]
    assert await stage.check() == before


async def test_what_has_not_ended_is_not_deleted(stage: Stage) -> None:
    keys = await stage.invoke()
    life = await stage.life(keys)

    async def is_refused(status: Status) -> None:
        before = await stage.check()
        with pytest.raises(InstanceBusy, match=f"order/42 is {status}: wait for it to end, or cancel it"):
            await stage.store.delete(keys, life)
        assert await stage.check() == before

    await is_refused(Status.QUEUED)
    held = await stage.take(keys)
    await is_refused(Status.RUNNING)
    await stage.store.park(held, [approval()], [], "")
    await is_refused(Status.SUSPENDED)


async def test_one_that_has_gone_on_in_another_life_is_read_again(stage: Stage) -> None:
    """The children of that life are to be cancelled by the leader, who finds them by it."""
    held = await stage.run()
    first = await stage.life(held.keys)
    await stage.store.continue_as(held, NextLife(new_token(), b"2"))
    await stage.store.finish(await stage.take(held.keys), DONE, LONG_MS)
    before = await stage.check()
    assert not await stage.store.delete(held.keys, first, life=first)
    assert await stage.check() == before
    life = (await stage.fields(held.keys))["life"]
    assert await stage.store.delete(held.keys, first, life=life)
    assert not await stage.command("EXISTS", held.keys.instance)


async def test_an_instance_that_was_resumed_before_delete_arrived_is_kept(stage: Stage) -> None:
    held = await stage.ended()
    life = await stage.life(held.keys)
    await stage.store.resume(held.keys, new_token())
    with pytest.raises(InstanceBusy):
        await stage.store.delete(held.keys, life)


# ── resume with rerun ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_rerun_drops_the_records_that_it_names_and_no_other(stage: Stage) -> None:
    held = await stage.run()
    for key in ("charge", "pack"):
        await stage.store.record(held, key, STEP, 5)
    await stage.store.open(held, [approval(), timer("past", after_ms=-1)], [])
    await stage.store.signal(held.keys, "approval", "s1", YES)
    await stage.store.finish(held, DONE, LONG_MS)
    await stage.store.resume(held.keys, new_token(), ["charge", "approval"])
    scene = await stage.check()
    assert scene.hashes[held.keys.steps].keys() == {"pack", "past", "_by:past"}
    assert "output" not in scene.hashes[held.keys.instance]


async def test_a_point_that_is_run_again_takes_another_signal(stage: Stage) -> None:
    held = await stage.parked()
    await stage.store.signal(held.keys, "approval", "s1", YES)
    await stage.store.finish(await stage.take(held.keys), DONE, LONG_MS)
    await stage.store.resume(held.keys, new_token(), ["approval"])
    await stage.store.park(await stage.take(held.keys), [approval()], [], "")
    await stage.store.signal(held.keys, "approval", "s2", YES)
    assert stage.answered() is Answer.DONE


async def test_a_retry_of_the_signal_that_a_rerun_has_dropped_has_no_second_effect(stage: Stage) -> None:
    held = await stage.parked()
    await stage.store.signal(held.keys, "approval", "s1", YES)
    await stage.store.finish(await stage.take(held.keys), DONE, LONG_MS)
    await stage.store.resume(held.keys, new_token(), ["approval"])
    await stage.store.park(await stage.take(held.keys), [approval()], [], "")
    before = await stage.check()
    await stage.store.signal(held.keys, "approval", "s1", YES)
    assert stage.answered() is Answer.DONE
    assert await stage.check() == before


async def test_an_open_point_that_is_run_again_loses_its_deadline(stage: Stage) -> None:
    held = await stage.parked(timer(after_ms=1e9), approval(after_ms=1e9))
    await stage.store.resume(held.keys, new_token(), ["cooling-off"])
    scene = await stage.check()
    assert scene.zsets[held.keys.timers].keys() == {"order/42/approval"}
    assert scene.hashes[held.keys.instance]["waiting"] == "approval"


async def test_failures_are_cleared_beside_what_is_rerun(stage: Stage) -> None:
    held = await stage.run()
    for key in ("charge", "pack", "ship"):
        await stage.store.record(held, key, STEP, 5)
    await stage.store.finish(held, BROKEN._replace(failed_keys=["ship"]), LONG_MS)
    await stage.store.resume(held.keys, new_token(), ["charge", "ship"])
    assert (await stage.check()).hashes[held.keys.steps].keys() == {"pack"}


async def test_a_key_without_a_record_changes_nothing(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.record(held, "charge", STEP, 5)
    await stage.store.finish(held, DONE, LONG_MS)
    before = await stage.check()
    with pytest.raises(RecordNotFound, match="order/42 has no record under 'pack' or 'ship'") as caught:
        await stage.store.resume(held.keys, new_token(), ["charge", "pack", "ship"])
    assert caught.value.keys == ("pack", "ship")
    assert await stage.check() == before


@pytest.mark.spec("resume-joined", "resume-busy")
async def test_a_live_instance_is_joined_unless_there_is_something_to_rerun(stage: Stage) -> None:
    keys = await stage.invoke()
    for status in (Status.QUEUED, Status.RUNNING):
        before = await stage.check()
        await stage.store.resume(keys, new_token())
        with pytest.raises(InstanceBusy, match=f"order/42 is {status}: wait for it to come to rest"):
            await stage.store.resume(keys, new_token(), ["charge"])
        assert await stage.check() == before
        if status is Status.QUEUED:
            await stage.take(keys)
