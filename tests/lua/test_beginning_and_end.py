"""invoke, finish, resume, forget: how an instance is made, how it ends, and what is left of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from memable.errors import InputConflict, InstanceNotFound, SignalRejected
from memable.holding import LeaseLost, Outcome
from memable.keys import InstanceKeys
from memable.lua import Answer
from memable.state import Status, StepKind, WorkflowState
from memable.store import new_token
from tests.lua.stage import BROKEN, DONE, LONG_MS, STEP, YES, Stage, approval, timer


async def test_a_new_instance_is_queued_and_in_its_stream(stage: Stage) -> None:
    keys = stage.of()
    assert await stage.store.invoke(keys, "life", b"[1]")
    assert stage.answered() is Answer.DONE
    fields = await stage.fields(keys)
    assert {name: fields[name] for name in ("status", "message", "version", "life", "input")} == {
        "status": "queued",
        "message": "",
        "version": "1",
        "life": "life",
        "input": "[1]",
    }


async def test_the_same_input_joins_and_another_conflicts(stage: Stage) -> None:
    keys = await stage.invoke()
    before = await stage.check()
    assert not await stage.store.invoke(keys, new_token(), b'{"id":"42"}')
    assert stage.answered() is Answer.ALREADY
    with pytest.raises(InputConflict, match="order/42"):
        await stage.store.invoke(keys, new_token(), b"2")
    assert stage.answered() is Answer.CONFLICT
    assert await stage.check() == before


@pytest.mark.parametrize("first", [DONE, BROKEN])
@pytest.mark.parametrize("then", [DONE, BROKEN])
async def test_an_id_is_free_again_when_its_instance_has_expired(stage: Stage, first: Outcome, then: Outcome) -> None:
    """Also in the listing: before the leader has trimmed it, and if the namesake ends another way."""
    held = await stage.ended(first, retention_ms=-1000)
    assert not await stage.command("EXISTS", held.keys.instance, held.keys.steps)
    keys = await stage.invoke()
    assert await stage.status(keys) is Status.QUEUED
    await stage.store.finish(await stage.take(keys), then, LONG_MS)
    await stage.store.forget(keys)
    assert await stage.status(keys) is then.status


async def test_an_end_takes_entry_points_timers_and_lease_with_it(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.record(held, "charge", STEP, 5)
    await stage.store.open(held, [approval(), timer(after_ms=1e9), timer("past", after_ms=-1)], [])
    await stage.store.finish(held, Outcome(Status.COMPLETED, b"{}", "all done"), LONG_MS)
    assert stage.answered() is Answer.DONE
    scene = await stage.check()
    fields = scene.hashes[held.keys.instance]
    assert (fields["status"], fields["message"], fields["output"]) == ("completed", "all done", "{}")
    assert fields["rested_by"] == held.lease
    assert scene.hashes[held.keys.steps].keys() == {"charge", "past", "_by:past"}
    assert held.keys.timers not in scene.zsets
    assert scene.expires_ms[held.keys.instance] == int(fields["completed_ms"]) + LONG_MS


@pytest.mark.parametrize("outcome", [DONE, BROKEN])
async def test_a_run_that_is_over_ends_nothing(stage: Stage, outcome: Outcome) -> None:
    held = await stage.run()
    other = await stage.claimed_by_another(held.keys)
    before = await stage.check()
    with pytest.raises(LeaseLost):
        await stage.store.finish(held, outcome, LONG_MS)
    assert stage.answered() is Answer.LEASE_LOST
    assert await stage.check() == before
    await stage.store.finish(other, outcome, LONG_MS)
    assert await stage.status(held.keys) is outcome.status


async def test_a_run_that_others_end_is_told_which_it_was(stage: Stage) -> None:
    held = await stage.run()
    async with stage.listening(held.keys.partition.control("w1")) as heard:
        assert await stage.recover(held, max_recoveries=1) is Answer.TERMINAL
        assert await heard.so_far() == [f"over {held.lease}".encode()]


async def test_a_run_that_ends_itself_is_told_nothing(stage: Stage) -> None:
    held = await stage.run()
    async with stage.listening(held.keys.partition.control("w1")) as heard:
        await stage.store.finish(held, DONE, LONG_MS)
        assert await heard.so_far() == []


async def test_nobody_ends_what_does_not_exist(stage: Stage) -> None:
    held = await stage.run()
    await stage.delete(held.keys)
    with pytest.raises(LeaseLost):
        await stage.store.finish(held, DONE, LONG_MS)
    assert not await stage.command("EXISTS", held.keys.instance)


@pytest.mark.parametrize("retention_ms", [-1, 0, 1, LONG_MS, 86_399_999_999_999_999])
async def test_any_retention_gives_both_hashes_the_same_expiry(stage: Stage, retention_ms: int) -> None:
    held = await stage.run()
    await stage.store.record(held, "charge", STEP, 5)
    await stage.store.finish(held, DONE, retention_ms)
    await stage.check()


# ── resume ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("outcome", [DONE, BROKEN])
async def test_resume_takes_back_the_end_and_every_expiry(stage: Stage, outcome: Outcome) -> None:
    held = await stage.run()
    await stage.store.record(held, "charge", STEP, 5)
    await stage.store.finish(held, outcome, LONG_MS)
    await stage.store.resume(held.keys, new_token())
    assert stage.answered() is Answer.DONE
    scene = await stage.check()
    assert scene.hashes[held.keys.instance]["status"] == "queued"
    assert not scene.hashes[held.keys.instance].keys() & {"output", "error", "completed_ms"}
    assert not scene.expires_ms
    assert "charge" in scene.hashes[held.keys.steps]
    again = await stage.take(held.keys)
    await stage.store.finish(again, outcome, LONG_MS)
    assert (await stage.fields(held.keys))["attempt"] == "2"


async def test_resume_clears_the_records_of_the_failure_and_no_others(stage: Stage) -> None:
    held = await stage.run()
    for key in ("charge", "ship it: now", "refund"):
        await stage.store.record(held, key, STEP, 5)
    failed = Outcome(Status.FAILED, b"{}", "no", ["charge", "ship it: now", "never recorded"])
    await stage.store.finish(held, failed, LONG_MS)
    await stage.store.resume(held.keys, new_token())
    scene = await stage.check()
    assert scene.hashes[held.keys.steps].keys() == {"refund"}
    assert "failed_keys" not in scene.hashes[held.keys.instance]


async def test_a_point_whose_record_is_cleared_can_be_completed_again(stage: Stage) -> None:
    held = await stage.parked()
    await stage.store.signal(held.keys, "approval", "s1", YES)
    failed = Outcome(Status.FAILED, b"{}", "no", ["approval"])
    await stage.store.finish(await stage.take(held.keys), failed, LONG_MS)
    await stage.store.resume(held.keys, new_token())
    assert await stage.store.park(await stage.take(held.keys), [approval()], [], "") == {}
    await stage.store.signal(held.keys, "approval", "s2", YES)
    assert await stage.status(held.keys) is Status.QUEUED


async def test_a_suspended_instance_is_resumed_with_its_points_and_deadlines(stage: Stage) -> None:
    held = await stage.parked(approval(), timer(after_ms=1e9))
    before = await stage.check()
    await stage.store.resume(held.keys, new_token())
    after = await stage.check()
    assert after.hashes[held.keys.steps] == before.hashes[held.keys.steps]
    assert after.zsets[held.keys.timers] == before.zsets[held.keys.timers]
    again = await stage.take(held.keys)
    assert await stage.store.park(again, [approval(), timer(after_ms=5e9)], [], "") == {}
    assert (await stage.check()).zsets[held.keys.timers] == before.zsets[held.keys.timers]


async def test_resume_joins_what_is_queued_or_running(stage: Stage) -> None:
    keys = await stage.invoke()
    for _ in range(2):
        before = await stage.check()
        await stage.store.resume(keys, new_token())
        assert stage.answered() is Answer.ALREADY
        assert await stage.check() == before
        if await stage.status(keys) is Status.QUEUED:
            await stage.take(keys)


async def test_resume_of_nothing(stage: Stage) -> None:
    with pytest.raises(InstanceNotFound, match="order/42"):
        await stage.store.resume(stage.of(), new_token())
    assert stage.answered() is Answer.UNKNOWN


async def test_a_resume_gives_a_crashed_instance_a_fresh_count_of_recoveries(stage: Stage) -> None:
    held = await stage.run()
    assert await stage.recover(held, max_recoveries=0) is Answer.TERMINAL
    await stage.store.resume(held.keys, new_token())
    assert await stage.recover(await stage.take(held.keys), max_recoveries=2) is Answer.DONE


# ── cancel ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def queued(stage: Stage) -> InstanceKeys:
    return await stage.invoke()


async def delayed(stage: Stage) -> InstanceKeys:
    return await stage.delayed()


async def delivered(stage: Stage) -> InstanceKeys:
    keys = await stage.invoke()
    await stage.deliver(keys)
    return keys


async def running(stage: Stage) -> InstanceKeys:
    held = await stage.run()
    await stage.store.record(held, "charge", STEP, 5)
    await stage.store.open(held, [approval(), timer(after_ms=1e9)], [])
    return held.keys


async def suspended(stage: Stage) -> InstanceKeys:
    return (await stage.parked(approval(), timer(after_ms=1e9))).keys


LIVE = [queued, delayed, delivered, running, suspended]
Reach = Callable[[Stage], Awaitable[InstanceKeys]]


@pytest.mark.parametrize("reach", LIVE)
@pytest.mark.spec("cancel")
async def test_a_cancel_ends_an_instance_wherever_it_is(stage: Stage, reach: Reach) -> None:
    keys = await reach(stage)
    state = await stage.cancel(keys, "no more")
    assert stage.answered() is Answer.DONE
    assert str(state) == "cancelled: no more"
    scene = await stage.check()
    fields = scene.hashes[keys.instance]
    assert (fields["status"], fields["message"]) == ("cancelled", "no more")
    assert not fields.keys() & {"output", "error", "waiting", "entry", "lease", "rested_by"}
    assert keys.timers not in scene.zsets
    assert keys.stream not in scene.streams or not scene.streams[keys.stream].entries
    assert scene.expires_ms[keys.instance] == int(fields["completed_ms"]) + LONG_MS
    assert await stage.record(keys, "approval") is None


@pytest.mark.parametrize("reach", LIVE)
async def test_a_resume_of_a_cancelled_instance_runs_it_on(stage: Stage, reach: Reach) -> None:
    keys = await reach(stage)
    await stage.cancel(keys)
    await stage.store.resume(keys, new_token())
    assert await stage.status(keys) is Status.QUEUED
    # a delivery of the past is still somewhere; the new one is another
    held = await stage.take(keys)
    record = await stage.record(keys, "charge")
    assert (record is not None) is (reach is running)
    await stage.store.finish(held, DONE, LONG_MS)
    await stage.check()


async def test_a_cancel_tells_the_run_that_holds_the_instance_and_refuses_it_from_then_on(stage: Stage) -> None:
    held = await stage.run()
    async with stage.listening(held.keys.partition.control("w1")) as heard:
        await stage.cancel(held.keys)
        assert await heard.so_far() == [f"over {held.lease}".encode()]
    assert await stage.renew("w1", held) == [Answer.LEASE_LOST]
    before = await stage.check()
    for write in (
        lambda: stage.store.record(held, "ship", STEP, 1),
        lambda: stage.store.open(held, [approval()], []),
        lambda: stage.store.park(held, [approval()], [], ""),
        lambda: stage.store.set_status(held, "at work"),
        lambda: stage.store.release(held),
        lambda: stage.store.finish(held, DONE, LONG_MS),
    ):
        with pytest.raises(LeaseLost):
            await write()
    assert await stage.check() == before


async def test_a_claim_that_comes_after_a_cancel_finds_nothing(stage: Stage) -> None:
    keys = await stage.invoke()
    (held,) = await stage.deliver(keys)
    await stage.cancel(keys)
    with pytest.raises(LeaseLost):
        await stage.store.claim(held, "w1")
    assert await stage.status(keys) is Status.CANCELLED


@pytest.mark.parametrize("outcome", [DONE, BROKEN])
async def test_a_cancel_leaves_what_has_ended_as_it_is_and_says_how_it_ended(stage: Stage, outcome: Outcome) -> None:
    held = await stage.ended(outcome)
    before = await stage.fields(held.keys)
    state = await stage.cancel(held.keys, "too late")
    assert stage.answered() is Answer.ALREADY
    assert state == WorkflowState.of(outcome.status, outcome.message)
    after = await stage.fields(held.keys)
    assert after.keys() - before.keys() == {"cancelled_by"}
    assert {name: after[name] for name in before} == before


async def test_the_first_of_two_cancels_counts(stage: Stage) -> None:
    keys = await stage.invoke()
    assert str(await stage.cancel(keys, "first")) == "cancelled: first"
    assert str(await stage.cancel(keys, "second")) == "cancelled: first"


async def test_nobody_cancels_what_does_not_exist(stage: Stage) -> None:
    with pytest.raises(InstanceNotFound, match="order/42"):
        await stage.cancel(stage.of())
    assert not (await stage.check()).hashes


@pytest.mark.parametrize("ends_first", [True, False])
async def test_a_cancel_made_again_leaves_an_instance_alone_that_was_resumed_meanwhile(
    stage: Stage, ends_first: bool
) -> None:
    """Whether the first try had its effect, or came too late."""
    held = await stage.run()
    if ends_first:
        await stage.store.finish(held, DONE, LONG_MS)
    await stage.cancel(held.keys)
    cancel = stage.last_call
    for number in range(15):  # others that did the same
        await stage.cancel(held.keys, str(number))
    await stage.store.resume(held.keys, new_token())
    await stage.take(held.keys)
    before = await stage.check()
    answer, *_ = await stage.again(cancel)
    assert answer == (Answer.ALREADY if ends_first else Answer.DONE)
    assert await stage.check() == before


# ── forget ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("outcome", [DONE, BROKEN])
async def test_an_expired_instance_leaves_no_trace(stage: Stage, outcome: Outcome) -> None:
    held = await stage.ended(outcome, retention_ms=-1000)
    await stage.store.forget(held.keys)
    assert stage.answered() is Answer.DONE
    assert (await stage.check()).zsets == {}
    assert Answer(await stage.again()) is Answer.DONE


async def test_an_instance_that_has_not_expired_is_not_forgotten(stage: Stage) -> None:
    """Nor is one whose time has come in this very millisecond: its key is still there, and would be listed no more."""
    held = await stage.ended()
    before = await stage.check()
    for due_ms in (None, 1000):
        if due_ms:
            await stage.command("ZADD", held.keys.expiry, due_ms, held.keys.name)
        await stage.store.forget(held.keys)
        assert stage.answered() is Answer.ALREADY
    await stage.command("ZADD", held.keys.expiry, before.zsets[held.keys.expiry][held.keys.name], held.keys.name)
    assert await stage.check() == before


async def test_an_instance_that_was_invoked_again_is_not_forgotten(stage: Stage) -> None:
    await stage.ended(retention_ms=-1000)
    keys = await stage.invoke()
    # as an older memable, or a script cut off by a rollback, could have left it
    await stage.command("ZADD", keys.expiry, 1000, keys.name)
    await stage.command("ZADD", keys.index(Status.FAILED), 1, keys.instance_id)
    await stage.store.forget(keys)
    assert stage.answered() is Answer.ALREADY
    assert await stage.status(keys) is Status.QUEUED


async def test_a_signal_to_what_has_expired_is_refused(stage: Stage) -> None:
    held = await stage.ended(retention_ms=-1000)
    with pytest.raises(SignalRejected, match="no such instance"):
        await stage.store.signal(held.keys, "approval", "s1", YES)


# ── record and set_status ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("recorded-once")
async def test_a_step_is_recorded_once_with_its_times(stage: Stage) -> None:
    held = await stage.run()
    assert await stage.store.record(held, "charge", STEP, 250.4) is None
    assert stage.answered() is Answer.DONE
    record = await stage.record(held.keys, "charge")
    assert record is not None
    shown = record.shown("charge")
    assert (shown.kind, shown.result, shown.attempts) == (StepKind.STEP, "done", 1)
    assert shown.started_at is not None
    assert shown.completed_at is not None
    assert (shown.completed_at - shown.started_at).total_seconds() == pytest.approx(0.25, abs=0.001)
    assert await stage.store.record(held, "charge", STEP, 0) == record.raw
    assert stage.answered() is Answer.ALREADY


async def test_an_open_point_is_not_overwritten_by_a_step(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [approval("charge")], [])
    there = await stage.store.record(held, "charge", STEP, 1)
    assert there is not None
    assert there.startswith(b'{"state":"suspended"')


async def test_a_run_that_is_over_records_and_says_nothing(stage: Stage) -> None:
    held = await stage.run()
    await stage.claimed_by_another(held.keys)
    before = await stage.check()
    with pytest.raises(LeaseLost):
        await stage.store.record(held, "charge", STEP, 1)
    assert stage.answered() is Answer.LEASE_LOST
    with pytest.raises(LeaseLost):
        await stage.store.set_status(held, "charging")
    assert stage.answered() is Answer.LEASE_LOST
    assert await stage.check() == before


async def test_what_was_said_last_comes_back_with_the_next_claim(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.set_status(held, "charging")
    assert stage.answered() is Answer.DONE
    await stage.store.park(held, [approval()], [], "waiting for the manager")
    assert (await stage.fields(held.keys))["message"] == "waiting for the manager"
    await stage.store.signal(held.keys, "approval", "s1", YES)
    assert (await stage.fields(held.keys))["message"] == ""
    (again,) = await stage.deliver(held.keys, "w2")
    assert (await stage.store.claim(again, "w2")).progress == "charging"
    assert (await stage.fields(held.keys))["message"] == "charging"
