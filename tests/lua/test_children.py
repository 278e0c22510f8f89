"""Families: children are made once, a parent is woken once it is decided, and ends are told by whoever makes them."""

from __future__ import annotations

import asyncio

import pytest

from memable.errors import StepConflict
from memable.family import ChildEnd
from memable.holding import Held, HistoryLost, LeaseLost
from memable.journal import Draft
from memable.keys import InstanceKeys
from memable.lua import Answer
from memable.state import Status, StepKind
from memable.store import new_token
from tests.lua.stage import BROKEN, CHILD, LONG_MS, Stage, calling, children
from tests.lua.stage import DONE as SHIPPED

COMPLETED, FAILED = (
    ChildEnd(Status.COMPLETED, SHIPPED.value),
    ChildEnd(Status.FAILED, BROKEN.value),
)

RECORD = Draft.completed(StepKind.CHILD, "", b'{"children":3}')


async def runs_of(stage: Stage, child: InstanceKeys) -> list[Held]:
    """Runs of all children that are ready."""
    found = await stage.deliver(child)
    for each in found:
        await stage.store.claim(each, "w2")
    return found


async def a_family_of_three(stage: Stage, *, fail_fast: bool) -> tuple[Held, list[Held]]:
    """A parked parent of three running children."""
    parent, call = await stage.run("parent"), calling(3)
    await stage.spawn(parent, call=call, count=3)
    await stage.store.park(parent, [children(wake_at=3, created=3, fail_fast=fail_fast)], [], "")
    return parent, await runs_of(stage, stage.family(parent).child(call, 0))


async def ends_of(stage: Stage, parent: Held, total: int = 1) -> list[ChildEnd | None]:
    return await stage.family(parent).ends(calling(total), 0, total)


async def test_a_child_is_made_once_and_is_an_instance_like_any_other(stage: Stage) -> None:
    parent = await stage.run("parent")
    assert (await stage.spawn(parent)).created == 1
    assert (await stage.spawn(parent)).created == 1
    child = stage.family(parent).child(calling(), 0)
    assert (await stage.fields(child)) | {"life": "", "created_us": "", "entry": ""} == {
        "status": "queued",
        "message": "",
        "version": "1",
        "input": "1",
        "parent": parent.keys.name,
        "life": "",
        "created_us": "",
        "entry": "",
    }
    assert len(await stage.deliver(child)) == 1


async def test_children_are_listed_beside_the_others_in_the_order_of_their_numbers(stage: Stage) -> None:
    parent, call = await stage.run("parent"), calling(12)
    await stage.spawn(parent, call=call, count=12)
    family = stage.family(parent)
    partition = parent.keys.partition
    listed = await stage.command("ZRANGE", partition.index(CHILD, Status.QUEUED, of_children=True), 0, -1)
    assert [each.decode() for each in listed] == [family.child(call, number).instance_id for number in range(12)]
    assert await stage.command("EXISTS", partition.index(CHILD, Status.QUEUED)) == 0


async def test_a_run_that_is_over_makes_no_children(stage: Stage) -> None:
    parent = await stage.run("parent")
    await stage.recover(parent)
    with pytest.raises(LeaseLost):
        await stage.spawn(parent)


async def test_a_key_keeps_its_workflow_and_its_number_of_children(stage: Stage) -> None:
    parent = await stage.run("parent")
    await stage.spawn(parent, call=calling(2), count=2)
    with pytest.raises(StepConflict, match=r"2 of workflow 'parcel'.*3 of workflow 'parcel'"):
        await stage.spawn(parent, call=calling(3), count=3)
    with pytest.raises(StepConflict, match=r"2 of workflow 'parcel'.*2 of workflow 'order'"):
        await stage.spawn(parent, call=calling(2, "order"), count=2)


async def test_a_parent_whose_child_ends_is_queued_and_finds_how(stage: Stage) -> None:
    parent, child = await stage.parent_of_one()
    assert (await stage.fields(parent.keys))["waiting"] == "kids"
    (run,) = await runs_of(stage, child)
    assert run.parent is not None
    assert run.parent.name == parent.keys.name
    await stage.store.finish(run, SHIPPED, LONG_MS)
    assert await stage.status(parent.keys) is Status.QUEUED
    again = await stage.take(parent.keys)
    assert await ends_of(stage, again) == [COMPLETED]
    assert (await stage.spawn(again)).ended == 1


async def test_a_running_parent_is_told_and_finds_the_point_decided(stage: Stage) -> None:
    parent, child = await stage.parent_of_one(parked=False)
    assert await stage.store.open(parent, [children()], []) == {}
    (run,) = await runs_of(stage, child)
    await stage.store.finish(run, SHIPPED, LONG_MS)
    assert await stage.renew("w1", parent) == [1]
    assert await stage.store.park(parent, [children()], [], "") == {"kids": b""}
    assert await stage.status(parent.keys) is Status.RUNNING


async def test_a_child_that_ended_before_it_was_waited_for_is_no_reason_to_park(stage: Stage) -> None:
    parent, child = await stage.parent_of_one(parked=False)
    (run,) = await runs_of(stage, child)
    await stage.store.finish(run, SHIPPED, LONG_MS)
    assert await stage.store.park(parent, [children()], [], "") == {"kids": b""}


async def test_only_the_last_child_wakes_a_parent_that_waits_for_all(stage: Stage) -> None:
    parent, runs = await a_family_of_three(stage, fail_fast=False)
    for run, outcome in zip(runs, (SHIPPED, BROKEN, SHIPPED), strict=True):
        assert await stage.status(parent.keys) is Status.SUSPENDED
        await stage.store.finish(run, outcome, LONG_MS)
    assert await stage.status(parent.keys) is Status.QUEUED
    assert await ends_of(stage, parent, 3) == [COMPLETED, FAILED, COMPLETED]


async def test_the_first_failure_wakes_a_parent_that_fails_fast(stage: Stage) -> None:
    parent, runs = await a_family_of_three(stage, fail_fast=True)
    await stage.store.finish(runs[0], SHIPPED, LONG_MS)
    assert await stage.status(parent.keys) is Status.SUSPENDED
    await stage.store.finish(runs[2], BROKEN, LONG_MS)
    assert await stage.status(parent.keys) is Status.QUEUED
    await stage.store.finish(runs[1], BROKEN, LONG_MS)
    standing = await stage.spawn(await stage.take(parent.keys), call=calling(3), count=0)
    assert (standing.created, standing.ended, standing.failed, standing.first_failed) == (3, 3, 2, 2)


async def test_a_parent_is_woken_early_to_make_more(stage: Stage) -> None:
    parent, call = await stage.run("parent"), calling(3)
    await stage.spawn(parent, call=call, count=2)
    await stage.store.park(parent, [children(wake_at=1, created=2)], [], "")
    one, other = await runs_of(stage, stage.family(parent).child(call, 0))
    await stage.store.finish(one, SHIPPED, LONG_MS)
    parent = await stage.take(parent.keys)
    assert (await stage.spawn(parent, call=call, first=2)).created == 3
    await stage.store.park(parent, [children(wake_at=3, created=3)], [], "")
    await stage.store.finish(other, SHIPPED, LONG_MS)
    assert await stage.status(parent.keys) is Status.SUSPENDED


async def test_a_child_that_takes_its_worker_down_too_often_tells_its_parent(stage: Stage) -> None:
    parent, child = await stage.parent_of_one()
    (run,) = await runs_of(stage, child)
    assert await stage.recover(run, max_recoveries=0) is Answer.TERMINAL
    assert await stage.status(parent.keys) is Status.QUEUED
    assert await ends_of(stage, parent) == [FAILED]


async def test_a_leader_that_does_not_know_the_parent_ends_no_child(stage: Stage) -> None:
    _, child = await stage.parent_of_one()
    (run,) = await runs_of(stage, child)
    run.parent = None
    assert await stage.recover(run, max_recoveries=0) is Answer.NOT_REACHED
    assert await stage.status(child) is Status.RUNNING


async def test_a_resume_takes_the_end_of_a_child_back_until_the_parent_has_recorded_it(stage: Stage) -> None:
    parent, runs = await a_family_of_three(stage, fail_fast=False)
    await stage.store.finish(runs[0], BROKEN, LONG_MS)
    await stage.store.resume(runs[0].keys, new_token(), parent=parent.keys)
    assert await ends_of(stage, parent, 3) == [None, None, None]
    await stage.store.finish(await stage.take(runs[0].keys), SHIPPED, LONG_MS)
    for run in runs[1:]:
        await stage.store.finish(run, BROKEN, LONG_MS)
    parent = await stage.take(parent.keys)
    await stage.store.record(parent, "kids", RECORD, 0)
    await stage.store.resume(runs[1].keys, new_token(), parent=parent.keys)
    await stage.store.finish(await stage.take(runs[1].keys), SHIPPED, LONG_MS)
    assert await ends_of(stage, parent, 3) == [COMPLETED, FAILED, FAILED]


async def test_a_child_that_ended_after_the_resume_of_its_parent_is_not_resumed_by_it(stage: Stage) -> None:
    parent, child = await stage.parent_of_one(parked=False)
    await stage.store.finish(parent, BROKEN, LONG_MS)
    await stage.store.resume(parent.keys, new_token())
    parent, *_ = [each for each in await stage.deliver(parent.keys) if each.keys.name == parent.keys.name]
    await stage.store.claim(parent, "w1")
    (run,) = await runs_of(stage, child)
    asked = (await stage.spawn(parent)).resumed
    while await now_ms(stage) <= int(asked.partition(" ")[2]):
        await asyncio.sleep(0)
    await stage.store.finish(run, BROKEN, LONG_MS)
    await stage.family(parent).resume(calling(), 0, asked)
    assert stage.answered() is Answer.ALREADY
    assert await stage.status(child) is Status.FAILED


async def now_ms(stage: Stage) -> int:
    seconds, us = await stage.command("TIME")
    return int(seconds) * 1000 + int(us) // 1000


async def test_a_child_is_resumed_by_its_parents_run_once_and_only_while_it_holds_the_parent(stage: Stage) -> None:
    parent, child = await stage.parent_of_one()
    (run,) = await runs_of(stage, child)
    await stage.store.finish(run, BROKEN, LONG_MS)
    parent, call = await stage.take(parent.keys), calling()
    family, token = stage.family(parent), new_token()
    await family.resume(call, 0, token)
    await stage.store.finish(await stage.take(child), BROKEN, LONG_MS)
    await family.resume(call, 0, token)
    assert await stage.status(child) is Status.FAILED
    await stage.recover(parent)
    with pytest.raises(LeaseLost):
        await family.resume(call, 0, new_token())


async def test_a_child_that_is_gone_stays_as_it_ended(stage: Stage) -> None:
    parent, child = await stage.parent_of_one()
    (run,) = await runs_of(stage, child)
    await stage.store.finish(run, BROKEN, LONG_MS)
    await stage.delete(child)
    parent = await stage.take(parent.keys)
    await stage.family(parent).resume(calling(), 0, new_token())
    assert await ends_of(stage, parent) == [FAILED]
    assert (await stage.spawn(parent)).created == 1
    assert await stage.deliver(child) == []


async def test_a_child_tells_no_later_life_of_its_parent(stage: Stage) -> None:
    parent, child = await stage.parent_of_one()
    (run,) = await runs_of(stage, child)
    await stage.delete(parent.keys)
    again = await stage.run("parent")
    await stage.spawn(again)
    await stage.store.finish(run, SHIPPED, LONG_MS)
    assert await ends_of(stage, again) == [None]


async def test_a_parent_that_ends_leaves_its_living_children_to_the_leader(stage: Stage) -> None:
    parent, _ = await stage.parent_of_one(parked=False)
    life = (await stage.fields(parent.keys))["life"]
    await stage.store.finish(parent, BROKEN, LONG_MS)
    assert (await stage.check()).zsets[parent.keys.partition.bereaved].keys() == {f"{parent.keys.name}/{life}"}


async def test_a_parent_whose_children_have_ended_leaves_none(stage: Stage) -> None:
    parent, child = await stage.parent_of_one(parked=False)
    (run,) = await runs_of(stage, child)
    await stage.store.finish(run, SHIPPED, LONG_MS)
    await stage.store.finish(parent, BROKEN, LONG_MS)
    assert parent.keys.partition.bereaved not in (await stage.check()).zsets


async def test_a_family_lives_as_long_as_its_parent(stage: Stage) -> None:
    parent, child = await stage.parent_of_one(parked=False)
    (run,) = await runs_of(stage, child)
    await stage.store.finish(run, SHIPPED, LONG_MS)
    await stage.store.finish(parent, BROKEN, LONG_MS)
    assert (await stage.check()).expires_ms.keys() >= {parent.keys.family, parent.keys.instance}
    await stage.store.resume(parent.keys, new_token())
    assert parent.keys.family not in (await stage.check()).expires_ms
    await stage.store.finish(await stage.take(parent.keys), BROKEN, -1000)
    assert parent.keys.family not in (await stage.check()).hashes


async def test_a_run_that_made_children_which_redis_has_forgotten_hands_its_instance_back(stage: Stage) -> None:
    parent, child = await stage.parent_of_one(parked=False)
    await stage.delete(child)
    await stage.command("DEL", parent.keys.family)
    await stage.command("HDEL", parent.keys.instance, "family")
    with pytest.raises(HistoryLost):
        await stage.store.park(parent, [children()], [], "")
    with pytest.raises(HistoryLost):
        await stage.spawn(parent, call=calling(2), first=1)
