"""A `first` and its members: whatever completes one of them decides, in the same script; the others are withdrawn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from memable.errors import SignalRejected, SignalSuperseded
from memable.holding import Held, HistoryLost, LeaseLost, Payload, Point
from memable.journal import Record
from memable.lua import Answer
from memable.state import Status, StepKind, StepState
from memable.store import new_token
from tests.lua.stage import DONE, LONG_MS, STEP, YES, Stage, answer_of, approval, first, member, timer

MEMBERS = (member("a"), member("b"), member("late", StepKind.TIMER), member("work", StepKind.STEP))
RACE = first("race", *MEMBERS)
POINTS = (approval("a", choice="race"), approval("b", choice="race"), timer("late", after_ms=1e9, choice="race"))
NULL = Payload("", "null", b"null")


async def parked(stage: Stage, *points: Point) -> Held:
    return await stage.parked(RACE, *(points or POINTS))


async def chosen(stage: Stage) -> str | None:
    """What the choice is, if it is made; and then nothing is left of the race."""
    scene, keys = await stage.check(), stage.of()
    steps = scene.hashes[keys.steps]
    if "race" not in steps or (record := Record(steps["race"].encode())).is_open:
        return None
    assert (record.kind, record.state) == (StepKind.CHOICE, StepState.COMPLETED)
    assert record.completed_ms is not None
    assert not [name for name in steps if name.startswith("_open:")]
    assert "waiting" not in scene.hashes[keys.instance]
    assert not scene.zsets.get(keys.timers)
    return (record.result or b"").decode().strip('"')


async def assert_superseded(stage: Stage, *keys: str) -> None:
    for key in keys:
        for payload in (YES, NULL):
            with pytest.raises(SignalSuperseded):
                await stage.store.signal(stage.of(), key, "late-one", payload)


# ── who decides ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_undecided_race_shows_what_it_waits_for_and_is_no_point_itself(stage: Stage) -> None:
    held = await parked(stage)
    fields = await stage.fields(held.keys)
    assert fields["waiting"].split("\n") == ["a", "b", "late"]
    assert fields["choosing"] == "race"
    assert await chosen(stage) is None
    with pytest.raises(SignalRejected, match="waits for a choice, not for a signal"):
        await stage.store.signal(held.keys, "race", "s1", YES)


@pytest.mark.spec("first-signal", "first-timer")
async def test_the_signal_that_comes_first_is_chosen_and_the_other_is_superseded(stage: Stage) -> None:
    held = await parked(stage)
    await stage.store.signal(held.keys, "b", "s1", YES)
    assert await stage.status(held.keys) is Status.QUEUED
    assert await chosen(stage) == "B"
    await assert_superseded(stage, "a", "late")
    await stage.store.signal(held.keys, "b", "s1", YES)  # made again
    with pytest.raises(SignalSuperseded):
        await stage.store.signal(held.keys, "b", "s2", YES)


async def test_a_deadline_that_comes_first_is_chosen(stage: Stage) -> None:
    held = await parked(stage)
    await stage.make_due(held.keys, "late")
    assert await stage.store.fire_timer(held.keys, "late") is Answer.DONE
    assert await chosen(stage) == "LATE"
    await assert_superseded(stage, "a", "b")


async def test_a_wait_that_times_out_is_done_too(stage: Stage) -> None:
    held = await parked(stage, approval("a", after_ms=1e9, choice="race"), POINTS[1])
    await stage.make_due(held.keys, "a")
    await stage.store.fire_timer(held.keys, "a")
    assert await chosen(stage) == "A"
    await assert_superseded(stage, "b")


@pytest.mark.parametrize("does", ["open", "park"])
async def test_a_deadline_that_is_past_already_decides_at_once(stage: Stage, does: str) -> None:
    held = await stage.run()
    points = [RACE, POINTS[0], timer("late", after_ms=-1, choice="race"), POINTS[1]]
    if does == "open":
        satisfied = await stage.store.open(held, points, [])
    else:
        satisfied = await stage.store.park(held, points, [], "")
    assert satisfied.keys() == {"race", "late"}
    first_answer = await stage.last_call.reply
    assert await chosen(stage) == "LATE"
    assert await stage.again() == first_answer
    assert await stage.status(held.keys) is Status.RUNNING
    await assert_superseded(stage, "a", "b")


async def test_a_step_that_ends_first_is_chosen_by_its_run(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [RACE, *POINTS], [])
    await stage.store.record(held, "work", STEP, 1)
    assert await chosen(stage) is None
    choice = await stage.store.choose(held, "race", MEMBERS, "work", 1)
    assert Record(choice).result == b'"WORK"'
    assert await chosen(stage) == "WORK"
    await assert_superseded(stage, "a", "b", "late")
    assert await stage.store.open(held, [RACE, *POINTS], []) == {"race": choice}
    assert await chosen(stage) == "WORK"


async def test_members_that_were_not_even_open_yet_have_lost_all_the_same(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.choose(held, "race", MEMBERS, "work", 250)
    assert await chosen(stage) == "WORK"
    await assert_superseded(stage, "a", "b", "late")
    assert (await stage.store.open(held, [RACE, *POINTS], [])).keys() == {"race"}
    assert await chosen(stage) == "WORK"


@pytest.mark.spec("first-buffered")
@pytest.mark.parametrize("decides", ["a step", "a signal", "a timer", "a past deadline"])
async def test_a_signal_that_was_kept_for_one_that_has_lost_goes_with_it(stage: Stage, decides: str) -> None:
    """Its point was not open yet: else it would have been completed."""
    held = await stage.run()
    await stage.store.open(held, [RACE, *POINTS[1:]], [])
    await stage.store.signal(held.keys, "a", "early", YES, keeps=True)
    assert await stage.command("HKEYS", held.keys.inbox) == [b"signal:a"]
    match decides:
        case "a step":
            await stage.store.choose(held, "race", MEMBERS, "work", 1)
        case "a signal":
            await stage.store.signal(held.keys, "b", "s1", YES)
        case "a timer":
            await stage.make_due(held.keys, "late")
            await stage.store.fire_timer(held.keys, "late")
        case _:
            other = (*MEMBERS, member("past", StepKind.TIMER))
            await stage.store.open(held, [first("race", *other), timer("past", after_ms=-1, choice="race")], [])
    assert await chosen(stage)
    assert await stage.command("HKEYS", held.keys.inbox) == []
    await assert_superseded(stage, "a")


async def test_a_signal_that_was_accepted_before_the_run_could_choose_is_the_choice(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [RACE, *POINTS], [])
    await stage.store.record(held, "work", STEP, 1)
    await stage.store.signal(held.keys, "a", "s1", YES)
    choice = await stage.store.choose(held, "race", MEMBERS, "work", 1)
    assert stage.answered() is Answer.ALREADY
    assert Record(choice).result == b'"A"'
    assert (await stage.store.open(held, [RACE, *POINTS], [])).keys() == {"race", "a"}
    assert (await stage.record(held.keys, "work")) is not None, "the record of a step that has lost is kept"


async def test_what_was_recorded_before_the_race_began_is_kept_when_another_is_chosen(stage: Stage) -> None:
    """New code races at keys at which older code waited for both."""
    held = await stage.parked(approval("a"), approval("b"))
    for key in ("a", "b"):
        await stage.store.signal(held.keys, key, f"for-{key}", YES)
    held = await stage.take(held.keys)
    await stage.store.choose(held, "race", MEMBERS, "a", 1)
    assert await chosen(stage) == "A"
    record = await stage.record(held.keys, "b")
    assert record is not None
    assert record.result == b"true"
    await stage.store.signal(held.keys, "b", "for-b", YES)


# ── what changes between runs, or within one ─────────────────────────────────────────────────────────────────────────


async def test_a_race_stays_undecided_through_the_death_of_its_run(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [RACE, *POINTS], [])
    await stage.recover(held)
    await stage.store.signal(held.keys, "a", "s1", YES)
    assert await chosen(stage) == "A"
    held = await stage.take(held.keys)
    assert (await stage.store.park(held, [RACE, *POINTS], [], "")).keys() == {"race", "a"}


@pytest.mark.parametrize("parks", [True, False])
async def test_points_that_race_no_longer_are_all_accepted(stage: Stage, parks: bool) -> None:
    """New code waits for both, where older code raced."""
    held = await parked(stage)
    await stage.store.resume(held.keys, "token")
    held = await stage.take(held.keys)
    points = [approval("a"), approval("b")]
    if parks:
        assert await stage.store.park(held, points, ["race", "late"], "") == {}
    else:
        await stage.store.open(held, points, ["race", "late"])
    for key in ("a", "b"):
        await stage.store.signal(held.keys, key, "s1", YES)
    assert await stage.record(held.keys, "race") is None
    await stage.check()


async def test_points_that_race_since_they_were_opened_are_decided_as_others(stage: Stage) -> None:
    held = await stage.parked(approval("a"), approval("b"))
    await stage.store.resume(held.keys, "token")
    held = await stage.take(held.keys)
    await stage.store.park(held, [RACE, *POINTS], [], "")
    await stage.store.signal(held.keys, "a", "s1", YES)
    assert await chosen(stage) == "A"
    await assert_superseded(stage, "b")


async def test_a_race_that_goes_on_with_others_forgets_those_that_left(stage: Stage) -> None:
    held = await parked(stage)
    await stage.store.resume(held.keys, "token")
    held = await stage.take(held.keys)
    other = first("race", MEMBERS[1], member("c"))
    await stage.store.open(held, [other, POINTS[1], approval("c", choice="race")], [])
    await stage.store.signal(held.keys, "a", "s1", YES)  # not withdrawn yet
    assert (record := await stage.record(held.keys, "race")) is not None
    assert record.is_open
    await stage.store.signal(held.keys, "c", "s1", YES)
    await stage.store.open(held, [], ["late"])
    assert await chosen(stage) == "C"
    await assert_superseded(stage, "b")


async def test_a_race_that_is_given_up_leaves_nothing_and_can_begin_again(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [RACE, *POINTS], [])
    opening = stage.last_call
    await stage.store.open(held, [], ["race", "a", "b", "late"])
    assert set((await stage.check()).hashes.get(held.keys.steps, {})) == set()
    assert answer_of(await stage.again(opening)) is Answer.DONE
    assert set((await stage.check()).hashes.get(held.keys.steps, {})) == set(), "a late packet opens nothing"
    await stage.store.open(held, [RACE, *POINTS], [])
    await stage.store.signal(held.keys, "a", "s1", YES)
    assert await chosen(stage) == "A"


async def test_who_has_lost_and_is_waited_for_all_the_same_can_be_completed(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.choose(held, "race", MEMBERS, "work", 1)
    await stage.store.park(held, [approval("b")], [], "")
    await stage.store.signal(held.keys, "b", "s1", YES)
    assert await stage.status(held.keys) is Status.QUEUED
    await stage.check()


# ── the end, and calls that come too late ────────────────────────────────────────────────────────────────────────────


async def finish(stage: Stage, held: Held) -> None:
    await stage.store.finish(held, DONE, LONG_MS)


async def lose_once_too_often(stage: Stage, held: Held) -> None:
    assert await stage.recover(held, max_recoveries=0) is Answer.TERMINAL


async def test_who_had_lost_is_free_again_once_the_choice_is_run_again(stage: Stage) -> None:
    held = await parked(stage)
    await stage.store.signal(held.keys, "b", "s1", YES)
    await stage.store.finish(await stage.take(held.keys), DONE, LONG_MS)
    await assert_superseded(stage, "a")
    await stage.store.resume(held.keys, new_token(), rerun=["race", "b"])
    with pytest.raises(SignalRejected, match="does not wait at this point"):
        await stage.store.signal(held.keys, "a", "s2", YES)


# none of its members is open any more where the last was a child that has ended, and the run has not chosen it yet
@pytest.mark.parametrize("points", [POINTS, ()], ids=["members open", "no member open"])
@pytest.mark.parametrize("end", [finish, lose_once_too_often])
async def test_the_end_of_the_instance_is_that_of_its_races(
    stage: Stage, end: Callable[[Stage, Held], Awaitable[None]], points: tuple[Point, ...]
) -> None:
    held = await stage.run()
    await stage.store.open(held, [RACE, *points], [])
    await end(stage, held)
    scene = await stage.check()
    assert "choosing" not in scene.hashes[held.keys.instance]
    assert not scene.hashes.get(held.keys.steps)


async def test_a_choice_made_again_is_answered_with_the_one_that_is_there(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [RACE, *POINTS], [])
    choice = await stage.store.choose(held, "race", MEMBERS, "work", 1)
    before = await stage.check()
    assert await stage.again() == [Answer.ALREADY, choice]
    assert await stage.check() == before


async def test_a_run_that_lost_its_lease_chooses_nothing(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [RACE, *POINTS], [])
    await stage.recover(held)
    before = await stage.check()
    with pytest.raises(LeaseLost):
        await stage.store.choose(held, "race", MEMBERS, "work", 1)
    assert await stage.check() == before


async def test_a_run_whose_history_is_gone_chooses_nothing(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.record(held, "work", STEP, 1)
    await stage.command("HDEL", held.keys.steps, "work")
    with pytest.raises(HistoryLost):
        await stage.store.choose(held, "race", MEMBERS, "work", 1)


async def test_a_choice_is_part_of_what_a_run_knows(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.choose(held, "race", MEMBERS, "work", 1)
    await stage.command("HDEL", held.keys.steps, "race")
    with pytest.raises(HistoryLost):
        await stage.store.record(held, "next", STEP, 1)
