"""open, park, signal, fire_timer: where a run waits, and what lets it go on."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

import pytest

from memable.errors import SignalRejected, SignalSuperseded, SuspendTimeout, TypeMismatch
from memable.holding import LeaseLost, Payload, Point
from memable.journal import Record
from memable.keys import split_timer_member
from memable.lua import Answer
from memable.state import Status, StepKind, StepState
from tests.lua.stage import DONE, LONG_MS, STEP, YES, Stage, answer_of, approval, first, member, timer

# ── open ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_open_point_has_a_record_a_line_and_a_timer(stage: Stage) -> None:
    held = await stage.run()
    assert await stage.store.open(held, [approval(), timer(after_ms=60_000)], []) == {}
    assert stage.answered() is Answer.DONE
    scene = await stage.check()
    steps = scene.hashes[held.keys.steps]
    facts = json.loads(steps["cooling-off"])
    assert (facts["state"], facts["kind"], facts["type"]) == ("suspended", "timer", "None")
    assert facts["due_ms"] == facts["started_ms"] + 60_000
    assert steps["_open:approval"] == f"signal {json.loads(steps['approval'])['started_ms']} bool|boolean"
    assert scene.hashes[held.keys.instance]["waiting"] == "approval\ncooling-off"
    assert scene.hashes[held.keys.instance]["status"] == "running"


async def test_a_point_that_is_open_keeps_its_first_deadline(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [timer(after_ms=60_000)], [])
    before = await stage.check()
    await stage.store.open(held, [timer(after_ms=1)], [])
    await stage.store.open(held, [timer(at_ms=1)], [])
    assert await stage.check() == before


async def test_what_is_withdrawn_is_waited_for_no_more(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [approval("a"), approval("b"), timer(after_ms=1e9)], [])
    await stage.store.open(held, [], ["a", "cooling-off"])
    assert (await stage.fields(held.keys))["waiting"] == "b"
    await stage.store.open(held, [], ["b"])
    assert "waiting" not in await stage.fields(held.keys)


async def test_a_point_that_was_withdrawn_begins_anew(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [approval(), timer(after_ms=1e9)], [])
    await stage.store.open(held, [approval("other"), timer(after_ms=2e9)], ["cooling-off", "approval", "unknown"])
    scene = await stage.check()
    assert scene.hashes[held.keys.instance]["waiting"] == "other\ncooling-off"
    facts = json.loads(scene.hashes[held.keys.steps]["cooling-off"])
    assert facts["due_ms"] == facts["started_ms"] + 2_000_000_000
    with pytest.raises(SignalRejected):
        await stage.store.signal(held.keys, "approval", "s1", YES)


@pytest.mark.parametrize(("after_ms", "at_ms"), [(0.0, None), (-5.5, None), (None, 0.0), (None, -1e15)])
async def test_a_deadline_that_is_past_completes_its_point_at_once(
    stage: Stage, after_ms: float | None, at_ms: float | None
) -> None:
    held = await stage.run()
    ((key, raw),) = (await stage.store.open(held, [approval(), timer(after_ms=after_ms, at_ms=at_ms)], [])).items()
    record = Record(raw)
    assert key == "cooling-off"
    assert (record.kind, record.state, record.result) == (StepKind.TIMER, StepState.COMPLETED, b"null")
    # again, when it is asked for again
    assert await stage.store.open(held, [timer(after_ms=after_ms, at_ms=at_ms)], []) == {key: raw}
    with pytest.raises(SignalSuperseded):
        await stage.store.signal(held.keys, "cooling-off", "s1", Payload("", "null", b"null"))


async def test_a_deadline_counts_from_the_call_and_its_record_says_so(stage: Stage) -> None:
    held = await stage.run()
    points = [replace(timer(key, after_ms=after_ms), elapsed_ms=5000) for key, after_ms in (("a", 1e9), ("b", 4000))]
    await stage.store.open(held, points, [])
    # what the call waited for in its process is no time that the timer takes longer
    scene = await stage.check()
    facts = [json.loads(scene.hashes[held.keys.steps][key]) for key in "ab"]
    assert scene.zsets[held.keys.timers] == {"order/42/a": facts[0]["started_ms"] + 1e9}
    assert facts[1]["state"] == "completed"
    assert 5000 <= facts[1]["took_ms"] < 5001


async def test_points_completed_meanwhile_are_handed_over(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [approval("a"), approval("b"), timer(after_ms=1e9)], [])
    await stage.store.signal(held.keys, "b", "s1", YES)
    await stage.make_due(held.keys, "cooling-off")
    assert await stage.store.fire_timer(held.keys, "cooling-off") is Answer.DONE
    satisfied = await stage.store.open(held, [approval("a"), approval("b"), timer(after_ms=1e9)], [])
    assert satisfied.keys() == {"b", "cooling-off"}
    assert Record(satisfied["b"]).result == b"true"


async def test_a_run_that_is_over_opens_nothing(stage: Stage) -> None:
    held = await stage.run()
    await stage.claimed_by_another(held.keys)
    before = await stage.check()
    with pytest.raises(LeaseLost):
        await stage.store.open(held, [approval()], [])
    assert stage.answered() is Answer.LEASE_LOST
    with pytest.raises(LeaseLost):
        await stage.store.park(held, [approval()], [], "")
    assert stage.answered() is Answer.LEASE_LOST
    assert await stage.check() == before


# ── park ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_parked_instance_has_no_entry_and_no_lease(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [approval("a")], [])
    assert await stage.store.park(held, [approval("b"), approval("c")], ["a"], "waiting") == {}
    assert stage.answered() is Answer.DONE
    fields = await stage.fields(held.keys)
    assert (fields["status"], fields["message"], fields["waiting"]) == ("suspended", "waiting", "b\nc")
    assert fields["rested_by"] == held.lease


async def test_a_point_that_is_completed_keeps_the_run_from_parking(stage: Stage) -> None:
    """A signal between the last look and the park is not lost."""
    held = await stage.run()
    await stage.store.open(held, [approval("a"), approval("b")], [])
    await stage.store.signal(held.keys, "a", "s1", YES)
    satisfied = await stage.store.park(held, [approval("a"), approval("b"), approval("c")], [], "")
    assert stage.answered() is Answer.SATISFIED
    assert satisfied.keys() == {"a"}
    fields = await stage.fields(held.keys)
    assert (fields["status"], fields["waiting"]) == ("running", "b\nc")
    # a retry after another signal brings both
    await stage.store.signal(held.keys, "c", "s2", YES)
    assert (await stage.store.park(held, [approval("a"), approval("c")], [], "")).keys() == {"a", "c"}


async def test_a_point_that_was_completed_is_withdrawn_no_more(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [approval()], [])
    await stage.store.signal(held.keys, "approval", "s1", YES)
    await stage.store.open(held, [], ["approval"])
    record = await stage.record(held.keys, "approval")
    assert record is not None
    assert record.result == b"true"


async def test_a_point_withdrawn_by_the_park_that_was_completed_keeps_its_record(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [approval("a")], [])
    await stage.store.signal(held.keys, "a", "s1", YES)
    assert await stage.store.park(held, [approval("b")], ["a"], "") == {}
    record = await stage.record(held.keys, "a")
    assert record is not None
    assert record.state is StepState.COMPLETED


# ── signal ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("signal")
async def test_a_signal_queues_a_suspended_instance(stage: Stage) -> None:
    held = await stage.parked(approval(after_ms=1e9), approval("other"))
    await stage.store.signal(held.keys, "approval", "s1", YES)
    assert stage.answered() is Answer.DONE
    scene = await stage.check()
    assert scene.hashes[held.keys.instance]["status"] == "queued"
    assert scene.hashes[held.keys.steps]["_by:approval"] == "signal s1"
    record = await stage.record(held.keys, "approval")
    assert record is not None
    assert (record.kind, record.state, record.result) == (StepKind.SIGNAL, StepState.COMPLETED, b"true")
    # the other point is open also while it is queued
    await stage.store.signal(held.keys, "other", "s2", YES)
    await stage.take(held.keys)


async def test_a_signal_tells_the_worker_that_runs_the_instance(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [approval("a"), approval("b")], [])
    async with stage.listening(held.keys.partition.control("w1")) as heard:
        await stage.store.signal(held.keys, "a", "s1", YES)
        await stage.store.signal(held.keys, "b", "s2", YES)
        assert await heard.so_far() == [b"news order/42"] * 2
    assert (await stage.fields(held.keys))["news"] == "2"


async def test_one_of_many_signals_wins(stage: Stage) -> None:
    held = await stage.parked()
    await stage.store.signal(held.keys, "approval", "s1", YES)
    before = await stage.check()
    with pytest.raises(SignalSuperseded, match="approval"):
        await stage.store.signal(held.keys, "approval", "s2", Payload("bool", "boolean", b"false"))
    assert stage.answered() is Answer.SUPERSEDED
    await stage.store.signal(held.keys, "approval", "s1", Payload("bool", "boolean", b"false"))
    assert await stage.check() == before


async def test_a_completed_point_answers_also_when_the_instance_has_ended(stage: Stage) -> None:
    held = await stage.parked(approval(), approval("other"))
    await stage.store.signal(held.keys, "approval", "s1", YES)
    await stage.store.finish(await stage.take(held.keys), DONE, LONG_MS)
    await stage.store.signal(held.keys, "approval", "s1", YES)
    with pytest.raises(SignalSuperseded):
        await stage.store.signal(held.keys, "approval", "s2", YES)
    with pytest.raises(SignalRejected, match="completed"):
        await stage.store.signal(held.keys, "other", "s3", YES)
    assert stage.answered() is Answer.TERMINAL


async def test_a_signal_of_an_earlier_instance_of_this_id_is_a_new_one(stage: Stage) -> None:
    held = await stage.parked()
    await stage.store.signal(held.keys, "approval", "s1", YES)
    await stage.delete(held.keys)
    held = await stage.parked()
    await stage.store.signal(held.keys, "approval", "s1", YES)
    assert await stage.status(held.keys) is Status.QUEUED


async def test_signals_that_nobody_waits_for_are_rejected(stage: Stage) -> None:
    with pytest.raises(SignalRejected, match="no such instance"):
        await stage.store.signal(stage.of(), "approval", "s1", YES)
    assert stage.answered() is Answer.UNKNOWN
    held = await stage.run()
    await stage.store.record(held, "charge", STEP, 1)
    before = await stage.check()
    with pytest.raises(SignalRejected, match="does not wait"):
        await stage.store.signal(held.keys, "approval", "s1", YES)
    assert stage.answered() is Answer.NOT_REACHED
    with pytest.raises(SignalRejected, match="step"):
        await stage.store.signal(held.keys, "charge", "s1", YES)
    assert stage.answered() is Answer.CONFLICT
    assert await stage.check() == before


@pytest.mark.parametrize(
    ("declared", "types", "tag", "json_type", "fits"),
    [
        ("bool", ["boolean"], "bool", "boolean", True),
        ("bool", ["boolean"], "", "boolean", True),
        ("bool", ["boolean"], "int", "boolean", False),
        ("bool", ["boolean"], "", "string", False),
        ("", ["boolean", "object"], "Order", "object", True),
        ("", ["boolean", "object"], "Order", "array", False),
        ("int | None", ["integer", "null"], "int | None", "string", True),
        ("int | None", ["integer", "null"], "int ", "integer", False),
        ("int | None", ["integer", "null"], "", "null", True),
        ("Literal['a|b, c']", ["string"], "Literal['a|b, c']", "string", True),
        ("float", ["integer", "number"], "", "integer", True),
        ("float", ["number"], "", "num", False),
        ("two\nlines %d|%s", ["string"], "two\nlines %d|%s", "string", True),
    ],
)
async def test_a_payload_must_be_of_the_declared_type(
    stage: Stage, declared: str, types: list[str], tag: str, json_type: str, fits: bool
) -> None:
    held = await stage.parked(Point("p", StepKind.SIGNAL, declared, types))
    before = await stage.check()
    if fits:
        await stage.store.signal(held.keys, "p", "s1", Payload(tag, json_type, b"1"))
        return
    with pytest.raises(TypeMismatch, match="type mismatch") as raised:
        await stage.store.signal(held.keys, "p", "s1", Payload(tag, json_type, b"1"))
    assert stage.answered() is Answer.MISMATCH
    assert (raised.value.expected, raised.value.found) == (declared, tag or json_type)
    assert await stage.check() == before, "and the point stays open"


async def test_a_timer_can_be_completed_by_hand(stage: Stage) -> None:
    held = await stage.parked(timer(after_ms=1e9))
    await stage.store.signal(held.keys, "cooling-off", "s1", Payload("", "null", b"null"))
    record = await stage.record(held.keys, "cooling-off")
    assert record is not None
    assert (record.kind, record.result) == (StepKind.TIMER, b"null")
    assert await stage.status(held.keys) is Status.QUEUED


# ── fire_timer ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_timer_that_is_due_queues_a_suspended_instance(stage: Stage) -> None:
    held = await stage.parked(timer(after_ms=1e9), approval())
    assert await stage.store.fire_timer(held.keys, "cooling-off") is Answer.NOT_REACHED
    assert await stage.status(held.keys) is Status.SUSPENDED
    await stage.make_due(held.keys, "cooling-off")
    assert await stage.store.fire_timer(held.keys, "cooling-off") is Answer.DONE
    scene = await stage.check()
    assert scene.hashes[held.keys.instance]["status"] == "queued"
    assert scene.hashes[held.keys.steps]["_by:cooling-off"] == "timer"
    assert await stage.store.fire_timer(held.keys, "cooling-off") is Answer.NOT_REACHED


async def test_a_timer_that_is_asked_for_all_the_time_fires_at_its_millisecond_and_not_before(stage: Stage) -> None:
    held = await stage.parked(timer(after_ms=150), approval())
    due_ms = await stage.command("ZSCORE", held.keys.timers, f"{held.keys.name}/cooling-off")
    while await stage.store.fire_timer(held.keys, "cooling-off") is not Answer.DONE:
        pass
    record = await stage.record(held.keys, "cooling-off")
    assert record is not None
    completed_at = record.shown("cooling-off").completed_at
    assert completed_at is not None
    assert round(completed_at.timestamp() * 1000) >= float(due_ms)


async def test_a_timer_that_is_due_tells_the_worker_that_runs_the_instance(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [timer(after_ms=1e9)], [])
    await stage.make_due(held.keys, "cooling-off")
    async with stage.listening(held.keys.partition.control("w1")) as heard:
        await stage.store.fire_timer(held.keys, "cooling-off")
        assert await heard.so_far() == [b"news order/42"]


async def test_a_signal_loses_to_the_timer_whatever_its_id(stage: Stage) -> None:
    held = await stage.parked(timer(after_ms=1e9))
    await stage.make_due(held.keys, "cooling-off")
    await stage.store.fire_timer(held.keys, "cooling-off")
    for signal_id in ("s1", "timer", "signal timer", "signal s1", ""):
        with pytest.raises(SignalSuperseded):
            await stage.store.signal(held.keys, "cooling-off", signal_id, Payload("", "null", b"null"))


@pytest.mark.parametrize("exists", [True, False])
async def test_a_timer_that_nobody_waits_for_is_removed(stage: Stage, exists: bool) -> None:
    keys = stage.of()
    if exists:
        await stage.run()
    await stage.command("ZADD", keys.timers, 1000, f"{keys.name}/cooling-off")
    assert await stage.store.fire_timer(keys, "cooling-off") is Answer.UNKNOWN
    assert await stage.store.fire_timer(keys, "cooling-off") is Answer.NOT_REACHED


async def test_a_deadline_is_never_early(stage: Stage) -> None:
    """A millisecond counts as come when it has begun, and a deadline within one as the next."""
    held = await stage.run()
    seconds, microseconds = await stage.command("TIME")
    now_ms = int(seconds) * 1000 + int(microseconds) / 1000
    await stage.store.open(held, [timer("a", at_ms=now_ms + 1e6 + 0.25), timer("b", after_ms=0.001)], [])
    scene = await stage.check()
    facts = json.loads(scene.hashes[held.keys.steps]["a"])
    assert facts["due_ms"] - 1 < now_ms + 1e6 + 0.25 <= facts["due_ms"]
    assert json.loads(scene.hashes[held.keys.steps]["b"])["due_ms"] == 1 + _started(scene, held.keys.steps, "b")


def _started(scene: Any, steps: str, key: str) -> int:
    started_ms: int = json.loads(scene.hashes[steps][key])["started_ms"]
    return started_ms


@pytest.mark.parametrize(
    ("instance_id", "key"),
    [("42", "cooling-off"), ("a b:c", "x:y z"), ("parent~life~key~0", "k"), ("ü{0}", "\N{SNOWMAN}'\"\\"), ("%s", "%d")],
)
async def test_python_splits_what_lua_joins(stage: Stage, instance_id: str, key: str) -> None:
    await stage.parked(timer(key, after_ms=1e9), instance_id=instance_id)
    ((member, _),) = (await stage.check()).zsets[stage.of(instance_id).timers].items()
    assert split_timer_member(member) == ("order", instance_id, key)
    await stage.make_due(stage.of(instance_id), key)
    assert await stage.store.fire_timer(stage.of(instance_id), key) is Answer.DONE


# ── a deadline and a signal for one point ────────────────────────────────────────────────────────────────────────────


async def test_a_point_whose_deadline_comes_first_is_recorded_as_timed_out(stage: Stage) -> None:
    held = await stage.parked(approval(after_ms=1e9), approval("other"))
    await stage.make_due(held.keys, "approval")
    assert await stage.store.fire_timer(held.keys, "approval") is Answer.DONE
    assert await stage.status(held.keys) is Status.QUEUED
    with pytest.raises(SignalSuperseded):
        await stage.store.signal(held.keys, "approval", "s1", YES)
    record = await stage.record(held.keys, "approval")
    assert record is not None
    assert (record.kind, record.state, record.result) == (StepKind.SIGNAL, StepState.FAILED, None)
    failure = record.failure()
    assert isinstance(failure, SuspendTimeout)
    assert (failure.workflow, failure.instance_id, failure.key) == ("order", "42", "approval")
    assert await stage.store.park(await stage.take(held.keys), [approval(after_ms=1e9)], [], "") == {
        "approval": record.raw
    }


async def test_a_deadline_that_is_past_when_its_point_is_opened_is_a_timeout_at_once(stage: Stage) -> None:
    held = await stage.run()
    ((key, raw),) = (await stage.store.open(held, [approval(after_ms=-1), approval("other", after_ms=1e9)], [])).items()
    assert (key, type(Record(raw).failure())) == ("approval", SuspendTimeout)
    with pytest.raises(SignalSuperseded):
        await stage.store.signal(held.keys, "approval", "s1", YES)
    await stage.check()


async def test_a_signal_that_comes_first_leaves_no_deadline(stage: Stage) -> None:
    held = await stage.parked(approval(after_ms=1e9))
    await stage.make_due(held.keys, "approval")
    await stage.store.signal(held.keys, "approval", "s1", YES)
    assert await stage.store.fire_timer(held.keys, "approval") is Answer.NOT_REACHED
    record = await stage.record(held.keys, "approval")
    assert record is not None
    assert record.result == b"true"


@pytest.mark.parametrize("first", ["signal", "deadline"])
async def test_of_a_signal_and_a_deadline_that_are_both_due_one_wins_and_a_retry_of_either_changes_nothing(
    stage: Stage, first: str
) -> None:
    held = await stage.parked(approval(after_ms=1e9))
    await stage.make_due(held.keys, "approval")

    async def signal() -> None:
        with contextlib.suppress(SignalSuperseded):
            await stage.store.signal(held.keys, "approval", "s1", YES)

    async def fire() -> None:
        await stage.store.fire_timer(held.keys, "approval")

    calls = []
    for act in (signal, fire) if first == "signal" else (fire, signal):
        await act()
        calls.append(stage.last_call)
    before = await stage.check()
    again = [answer_of(await stage.again(call)) for call in calls]
    assert again == (
        [Answer.DONE, Answer.NOT_REACHED] if first == "signal" else [Answer.NOT_REACHED, Answer.SUPERSEDED]
    )
    assert await stage.check() == before


# ── waking the leader ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_leader_is_woken_when_a_timer_is_due_before_all_others(stage: Stage) -> None:
    wake = stage.keys.partitions[0].wake
    first, second = await stage.run("1"), await stage.run("2")
    seen = 0
    async with stage.listening(wake) as heard:

        async def wakes() -> int:
            nonlocal seen
            before, seen = seen, len(await heard.so_far())
            return seen - before

        await stage.store.open(first, [approval()], [])
        assert await wakes() == 0
        await stage.store.open(first, [timer("a", after_ms=5e8)], [])
        assert await wakes() == 1, "the first"
        await stage.store.open(first, [timer("b", after_ms=6e8)], [])
        assert await wakes() == 0, "a later one"
        await stage.store.open(first, [timer("a", after_ms=1e8)], [])
        assert await wakes() == 0, "one that keeps its deadline"
        await stage.store.open(first, [timer("past", after_ms=-1)], [])
        assert await wakes() == 0, "one that is completed at once"
        await stage.store.open(second, [timer("c", after_ms=4e8), timer("d", after_ms=3e8)], [])
        assert await wakes() == 2, "earlier ones, of another instance"
        await stage.store.park(first, [timer("e", after_ms=2e8), timer("f", after_ms=9e8)], [], "")
        assert await wakes() == 1, "the same while parking"
        await stage.store.open(second, [], ["c", "d"])
        await stage.store.signal(first.keys, "e", "s1", Payload("", "null", b"null"))
        assert await wakes() == 0, "timers that go need no leader"
        await stage.store.park(second, [timer("c", after_ms=7e8)], [], "")
        assert await wakes() == 0


async def test_the_leader_learns_the_earliest_deadline(stage: Stage) -> None:
    (partition,) = stage.keys.partitions
    led = await stage.store.lead(partition, "me", 60_000)
    assert led.next_ms is None
    held = await stage.parked(timer("a", at_ms=253_402_300_799_999), timer("b", after_ms=1e9))
    led = await stage.store.lead(partition, "me", 60_000)
    assert led.next_ms == (await stage.check()).zsets[held.keys.timers]["order/42/b"]
    await stage.store.signal(held.keys, "b", "s1", Payload("", "null", b"null"))
    led = await stage.store.lead(partition, "me", 60_000)
    assert led.next_ms == 253_402_300_799_999


async def test_very_many_points_are_not_written_anew_for_each_of_them(stage: Stage) -> None:
    """The lines of an instance: thousands of points would keep the server from its work for seconds."""
    count = 200
    keys = [f"p{number}" for number in range(count)]
    race = [first("winner", *map(member, keys)), *(approval(key, choice="winner") for key in keys)]

    async def writes_a_point(act: Awaitable[object]) -> float:
        await stage.command("CONFIG", "RESETSTAT")
        await act
        stats: bytes = await stage.command("INFO", "commandstats")
        return int((re.search(rb"cmdstat_hset:calls=(\d+)", stats) or [b"", b"0"])[1]) / count

    held = await stage.run("1")
    assert await writes_a_point(stage.store.open(held, race, [])) < 1.5
    assert await writes_a_point(stage.store.signal(held.keys, "p7", "s", YES)) < 1.5
    held = await stage.run("2")
    await stage.store.open(held, [approval(key) for key in keys], [])
    assert await writes_a_point(stage.store.open(held, [], keys[1:])) < 0.5
    held = await stage.parked(*(approval(key) for key in keys), instance_id="3")
    assert await writes_a_point(stage.cancel(held.keys)) < 0.5
