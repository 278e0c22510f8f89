"""open, park, fire_timer, settle for a step that is called again later: its attempts and deadline are in Redis."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from memable.errors import SignalRejected
from memable.holding import LeaseLost
from memable.journal import Record
from memable.keys import InstanceKeys
from memable.lua import Answer
from memable.state import Status, StepKind, StepState
from memable.store import new_token
from tests.lua.stage import BROKEN, LONG_MS, STEP, YES, Stage, approval, back_off, timer


async def facts(stage: Stage, keys: InstanceKeys, key: str = "charge") -> Any:
    record = await stage.record(keys, key)
    assert record is not None
    return json.loads(record.raw)


async def come_due(stage: Stage, keys: InstanceKeys, key: str = "charge") -> Answer:
    await stage.make_due(keys, key)
    return await stage.store.fire_timer(keys, key)


async def test_its_record_says_how_often_it_was_called_and_until_when_it_waits(stage: Stage) -> None:
    held = await stage.run()
    assert await stage.store.open(held, [back_off(attempts=2, after_ms=60_000, age_ms=5000)], []) == {}
    scene, said = await stage.check(), await facts(stage, held.keys)
    assert (said["state"], said["kind"], said["attempts"]) == ("retrying", "step", 2)
    assert said["due_ms"] == said["started_ms"] + 65_000
    assert scene.hashes[held.keys.instance]["retrying"] == "charge"
    record = await stage.record(held.keys, "charge")
    assert record is not None
    shown = record.shown("charge")
    assert (shown.kind, shown.state, shown.attempts) == (StepKind.STEP, StepState.RETRYING, 2)
    assert (shown.error, shown.completed_at) == ("ConnectionError: away", None)


async def test_its_deadline_counts_from_its_failure(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [replace(back_off(after_ms=60_000, age_ms=7000), elapsed_ms=5000)], [])
    said = await facts(stage, held.keys)
    assert said["due_ms"] == said["started_ms"] + 7000 + 55_000


async def test_a_run_that_waits_for_nothing_else_parks_as_queued(stage: Stage) -> None:
    held = await stage.run()
    async with stage.listening(held.keys.events) as heard:
        assert await stage.store.park(held, [back_off(attempts=2)], [], "") == {}
        (event,) = map(json.loads, await heard.so_far())
    fields = await stage.fields(held.keys)
    assert fields["status"] == event["status"] == "queued"
    assert fields["message"].startswith("retrying charge (3 of 5) at 20")
    assert (event["message"], "key" in event) == (fields["message"], False)
    assert "entry" not in fields


async def test_of_several_the_first_to_come_is_shown(stage: Stage) -> None:
    held = await stage.parked(back_off("a", after_ms=3e9), back_off("b", after_ms=1e9), back_off("c", after_ms=2e9))
    message = (await stage.fields(held.keys))["message"]
    assert message.startswith("retrying b (2 of 5) at ")
    assert message.endswith(", and 2 more")


async def test_a_run_that_waits_for_a_signal_too_is_suspended(stage: Stage) -> None:
    held = await stage.run()
    assert await stage.store.park(held, [approval(), back_off()], [], "waiting") == {}
    fields = await stage.fields(held.keys)
    assert (fields["status"], fields["message"], fields["waiting"]) == ("suspended", "waiting", "approval")
    assert await come_due(stage, held.keys) is Answer.DONE
    assert (await stage.fields(held.keys))["waiting"] == "approval"
    await stage.take(held.keys)


async def test_when_its_time_has_come_the_instance_is_queued_and_the_record_stays(stage: Stage) -> None:
    held = await stage.parked(back_off())
    assert await come_due(stage, held.keys) is Answer.DONE
    fields = await stage.fields(held.keys)
    assert (fields["status"], fields["message"], "retrying" in fields) == ("queued", "", False)
    assert (await facts(stage, held.keys))["state"] == "retrying"
    await stage.take(held.keys)


async def test_two_side_by_side_each_have_their_time(stage: Stage) -> None:
    held = await stage.parked(back_off("a"), back_off("b"))
    await come_due(stage, held.keys, "b")
    assert await come_due(stage, held.keys, "a") is Answer.DONE
    assert "retrying" not in await stage.fields(held.keys)
    held = await stage.take(held.keys)
    assert (await stage.store.open(held, [back_off("a"), back_off("b")], [])).keys() == {"a", "b"}


async def test_a_run_that_goes_on_is_told_when_the_time_has_come(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [back_off()], [])
    async with stage.listening(held.keys.partition.control("w1")) as heard:
        await come_due(stage, held.keys)
        assert await heard.so_far() == [b"news order/42"]
    raw = (await stage.store.park(held, [back_off(), approval()], [], ""))["charge"]
    assert Record(raw).is_retrying
    assert stage.answered() is Answer.SATISFIED


async def test_a_step_that_fails_again_waits_again_and_keeps_its_beginning(stage: Stage) -> None:
    held = await stage.parked(back_off(age_ms=10_000))
    before = await facts(stage, held.keys)
    await come_due(stage, held.keys)
    held = await stage.take(held.keys)
    assert await stage.store.open(held, [back_off(attempts=2, after_ms=2e9, age_ms=1)], []) == {}
    after = await facts(stage, held.keys)
    assert (after["attempts"], after["started_ms"]) == (2, before["started_ms"])
    assert after["due_ms"] > before["due_ms"]


async def test_a_deadline_that_is_set_stands(stage: Stage) -> None:
    held = await stage.parked(back_off(), approval())
    before = await facts(stage, held.keys)
    await stage.store.resume(held.keys, new_token())
    held = await stage.take(held.keys)
    assert await stage.store.park(held, [back_off(after_ms=1), approval()], [], "") == {}
    assert await facts(stage, held.keys) == before


async def test_one_that_is_past_already_is_called_at_once(stage: Stage) -> None:
    held = await stage.run()
    satisfied = await stage.store.park(held, [back_off(after_ms=4), replace(back_off("a"), elapsed_ms=10**9)], [], "")
    assert satisfied.keys() <= {"a", "charge"}
    assert Record(satisfied["a"]).is_retrying


async def test_the_record_of_its_end_takes_the_place(stage: Stage) -> None:
    held = await stage.parked(back_off(age_ms=10_000))
    await come_due(stage, held.keys)
    held = await stage.take(held.keys)
    assert await stage.store.settle(held, "charge", STEP, 5) is None
    said = await facts(stage, held.keys)
    assert (said["state"], said["result"]) == ("completed", "done")
    assert said["took_ms"] >= 10_000
    assert await stage.store.settle(held, "charge", STEP, 5)
    assert stage.answered() is Answer.ALREADY


async def test_its_end_may_come_before_its_time(stage: Stage) -> None:
    """A policy that was deployed meanwhile allows no further attempt."""
    held = await stage.run()
    await stage.store.open(held, [back_off("a"), back_off()], [])
    await stage.store.settle(held, "charge", STEP, 5)
    scene = await stage.check()
    assert scene.hashes[held.keys.instance]["retrying"] == "a"
    assert scene.zsets[held.keys.timers].keys() == {"order/42/a"}


async def test_a_step_that_never_waited_may_be_settled(stage: Stage) -> None:
    """Its wait was given up before it came to Redis."""
    held = await stage.run()
    assert await stage.store.settle(held, "charge", STEP, 5000) is None
    assert 5000 <= (await facts(stage, held.keys))["took_ms"] < 5001


async def test_one_that_waits_is_not_recorded_as_others_are(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [back_off()], [])
    there = await stage.store.record(held, "charge", STEP, 5)
    assert there is not None
    assert Record(there).is_retrying
    with pytest.raises(SignalRejected, match="this key waits for a retry"):
        await stage.store.signal(held.keys, "charge", "s1", YES)


async def test_what_is_given_up_has_been_called_so_often_all_the_same(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [back_off(attempts=2)], [])
    await stage.store.open(held, [], ["charge"])
    fields = await stage.fields(held.keys)
    assert "retrying" not in fields
    assert (await facts(stage, held.keys))["attempts"] == 2
    assert await stage.store.open(held, [back_off(attempts=3)], []) == {}
    assert (await stage.fields(held.keys))["retrying"] == "charge"


async def test_an_end_takes_its_timer_with_it(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [back_off(), timer(after_ms=1e9)], [])
    await stage.store.finish(held, BROKEN, LONG_MS)
    assert held.keys.timers not in (await stage.check()).zsets
    await stage.store.resume(held.keys, new_token())
    held = await stage.take(held.keys)
    assert (await stage.store.open(held, [back_off()], [])).keys() == {"charge"}


async def test_resume_joins_it(stage: Stage) -> None:
    held = await stage.parked(back_off())
    before = await stage.check()
    await stage.store.resume(held.keys, new_token())
    assert stage.answered() is Answer.ALREADY
    assert await stage.check() == before


async def test_a_run_that_is_over_settles_nothing(stage: Stage) -> None:
    held = await stage.parked(back_off())
    await stage.claimed_by_another(held.keys)
    before = await stage.check()
    with pytest.raises(LeaseLost):
        await stage.store.settle(held, "charge", STEP, 5)
    assert await stage.check() == before


async def test_a_worker_that_dies_leaves_it_as_it_was(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [back_off(), approval()], [])
    before = await facts(stage, held.keys)
    assert await stage.recover(held) is Answer.DONE
    assert await facts(stage, held.keys) == before
    assert await come_due(stage, held.keys) is Answer.DONE
    assert await stage.status(held.keys) is Status.QUEUED


async def test_a_timer_that_was_lost_is_there_again(stage: Stage) -> None:
    held = await stage.parked(back_off())
    before = await stage.check()
    keys, reconcile = held.keys, stage.store.reconcile
    assert await reconcile(keys.partition, keys.workflow, Status.QUEUED, ["42"]) == []
    await stage.command("DEL", keys.timers)
    assert await reconcile(keys.partition, keys.workflow, Status.QUEUED, ["42"]) == [("42", "timer")]
    assert await stage.check() == before


async def test_an_entry_that_was_lost_is_there_again_beside_a_step_that_waits(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [back_off()], [])
    await stage.command("XDEL", held.keys.stream, held.entry)
    keys = held.keys
    assert await stage.store.reconcile(keys.partition, keys.workflow, Status.RUNNING, ["42"]) == [("42", "entry")]
    assert await stage.store.reconcile(keys.partition, keys.workflow, Status.QUEUED, ["42"]) == []
    await stage.take(keys)


async def test_it_can_be_cancelled_and_is_not_called_again(stage: Stage) -> None:
    held = await stage.parked(back_off("a"), back_off("b"))
    assert str(await stage.cancel(held.keys, "no more")) == "cancelled: no more"
    scene = await stage.check()
    assert held.keys.timers not in scene.zsets
    assert "retrying" not in scene.hashes[held.keys.instance]
    assert (await facts(stage, held.keys, "a"))["state"] == "retrying"


async def test_when_its_record_is_dropped_it_begins_anew(stage: Stage) -> None:
    held = await stage.parked(back_off(attempts=3), approval())
    await stage.store.resume(held.keys, new_token(), ["charge"])
    scene = await stage.check()
    assert "charge" not in scene.hashes.get(held.keys.steps, {})
    held = await stage.take(held.keys)
    assert await stage.store.open(held, [back_off(attempts=1)], []) == {}
