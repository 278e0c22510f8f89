"""The inbox: signals that come before their point is opened, and are kept for it."""

from __future__ import annotations

import pytest

from memable.errors import SignalRejected, SignalSuperseded, SuspendTimeout
from memable.holding import Payload
from memable.journal import Record
from memable.lua import Answer
from memable.state import Status, StepKind, StepState
from tests.lua.stage import BROKEN, DONE, LONG_MS, STEP, YES, Stage, approval, timer

NO = Payload("bool", "boolean", b"false")


async def test_a_signal_that_comes_too_early_is_kept_and_completes_its_point_when_that_is_opened(stage: Stage) -> None:
    keys = await stage.invoke()
    await stage.store.signal(keys, "approval", "s1", YES, keeps=True)
    assert stage.answered() is Answer.DONE
    scene = await stage.check()
    assert scene.hashes[keys.instance]["status"] == "queued"
    assert scene.hashes[keys.inbox]["signal:approval"].split("\n")[0] == "s1"
    held = await stage.take(keys)
    ((key, raw),) = (await stage.store.open(held, [approval(), approval("other")], [])).items()
    record = Record(raw)
    assert (key, record.kind, record.state, record.result) == (
        "approval",
        StepKind.SIGNAL,
        StepState.COMPLETED,
        b"true",
    )
    scene = await stage.check()
    assert keys.inbox not in scene.hashes
    assert scene.hashes[keys.steps]["_by:approval"] == "signal s1"
    assert scene.hashes[keys.instance]["waiting"] == "other"


async def test_a_kept_signal_keeps_the_run_from_parking(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.signal(held.keys, "approval", "s1", YES, keeps=True)
    satisfied = await stage.store.park(held, [approval("other"), approval()], [], "")
    assert stage.answered() is Answer.SATISFIED
    assert satisfied.keys() == {"approval"}
    assert await stage.status(held.keys) is Status.RUNNING


async def test_one_signal_is_kept_for_a_key_and_others_are_told_so(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.signal(held.keys, "approval", "s1", YES, keeps=True)
    await stage.store.signal(held.keys, "other", "s1", NO, keeps=True)
    before = await stage.check()
    for keeps in (True, False):
        with pytest.raises(SignalSuperseded):
            await stage.store.signal(held.keys, "approval", "s2", NO, keeps=keeps)
        await stage.store.signal(held.keys, "approval", "s1", NO, keeps=keeps)
    assert await stage.check() == before
    satisfied = await stage.store.park(held, [approval(), approval("other")], [], "")
    assert {key: Record(raw).result for key, raw in satisfied.items()} == {"approval": b"true", "other": b"false"}
    # also after it was read
    await stage.store.signal(held.keys, "approval", "s1", YES, keeps=True)
    with pytest.raises(SignalSuperseded):
        await stage.store.signal(held.keys, "approval", "s2", YES, keeps=True)


async def test_a_signal_to_an_open_point_is_not_kept(stage: Stage) -> None:
    held = await stage.parked()
    await stage.store.signal(held.keys, "approval", "s1", YES, keeps=True)
    assert await stage.status(held.keys) is Status.QUEUED
    assert held.keys.inbox not in (await stage.check()).hashes


@pytest.mark.parametrize("comes_first", ["the signal", "the point"])
async def test_a_signal_and_the_opening_of_its_point_never_miss_each_other(stage: Stage, comes_first: str) -> None:
    held = await stage.run()
    if comes_first == "the signal":
        await stage.store.signal(held.keys, "approval", "s1", YES, keeps=True)
        assert await stage.store.park(held, [approval()], [], "")
    else:
        assert not await stage.store.park(held, [approval()], [], "")
        await stage.store.signal(held.keys, "approval", "s1", YES, keeps=True)
        held = await stage.take(held.keys)
        assert await stage.store.park(held, [approval()], [], "")


async def test_nothing_is_kept_that_nobody_can_ever_read(stage: Stage) -> None:
    with pytest.raises(SignalRejected, match="no such instance"):
        await stage.store.signal(stage.of(), "approval", "s1", YES, keeps=True)
    held = await stage.run()
    await stage.store.record(held, "charge", STEP, 1)
    with pytest.raises(SignalRejected, match="step"):
        await stage.store.signal(held.keys, "charge", "s1", YES, keeps=True)
    await stage.store.signal(held.keys, "early", "s1", YES, keeps=True)
    await stage.store.finish(held, DONE, LONG_MS)
    before = await stage.check()
    for key, signal_id in (("approval", "s1"), ("early", "s2")):
        with pytest.raises(SignalRejected, match="completed"):
            await stage.store.signal(held.keys, key, signal_id, YES, keeps=True)
    await stage.store.signal(held.keys, "early", "s1", YES, keeps=True)
    assert await stage.check() == before


async def test_a_signal_that_was_accepted_goes_before_a_deadline_that_is_past(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.signal(held.keys, "approval", "s1", YES, keeps=True)
    satisfied = await stage.store.open(held, [approval(after_ms=-1), approval("late", after_ms=-1)], [])
    assert Record(satisfied["approval"]).result == b"true"
    assert isinstance(Record(satisfied["late"]).failure(), SuspendTimeout)
    with pytest.raises(SignalSuperseded):
        await stage.store.signal(held.keys, "late", "s2", YES, keeps=True)


async def test_a_signal_kept_for_what_turns_out_to_be_a_timer_completes_it(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.signal(held.keys, "cooling-off", "s1", Payload("", "null", b"null"), keeps=True)
    ((_, raw),) = (await stage.store.open(held, [timer(after_ms=1e9)], [])).items()
    assert (Record(raw).kind, Record(raw).result) == (StepKind.TIMER, b"null")
    assert held.keys.timers not in (await stage.check()).zsets


async def test_what_is_kept_lives_as_long_as_its_instance(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.signal(held.keys, "approval", "s1", YES, keeps=True)
    await stage.store.finish(held, BROKEN, LONG_MS)
    assert held.keys.inbox in (await stage.check()).expires_ms
    await stage.store.resume(held.keys, "again")
    assert held.keys.inbox not in (await stage.check()).expires_ms
    assert await stage.store.park(await stage.take(held.keys), [approval()], [], "")


async def test_a_failure_of_the_last_recovery_keeps_nothing_for_ever(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.signal(held.keys, "approval", "s1", YES, keeps=True)
    assert await stage.recover(held, max_recoveries=0) is Answer.TERMINAL
    assert held.keys.inbox in (await stage.check()).expires_ms


async def test_a_new_instance_finds_nothing_that_was_sent_to_its_namesake(stage: Stage) -> None:
    keys = await stage.invoke()
    await stage.store.signal(keys, "approval", "s1", YES, keeps=True)
    entry = await stage.command("HGET", keys.instance, "entry")
    await stage.command("XDEL", keys.stream, entry)
    await stage.command("DEL", keys.instance)  # as if its hash alone had been lost
    held = await stage.run()
    assert not await stage.store.park(held, [approval()], [], "")


async def test_a_payload_may_have_any_text(stage: Stage) -> None:
    held = await stage.run()
    odd = Payload("two\nlines %d|%s", "string", '"a\\nb % \N{SNOWMAN}"'.encode())
    await stage.store.signal(held.keys, "odd", "s 1:%n", odd, keeps=True)
    ((_, raw),) = (await stage.store.open(held, [approval("odd")], [])).items()
    assert Record(raw).result == odd.json
    await stage.store.signal(held.keys, "odd", "s 1:%n", odd)
