"""Living children of lives that are over: cancelled on behalf of whoever is allowed to, and by nobody else."""

from __future__ import annotations

import asyncio

import pytest

from memable.family import living_in
from memable.holding import Held, LeaseLost, NextLife
from memable.keys import BEREFT, InstanceKeys
from memable.lua import Answer
from memable.state import Status
from memable.store import new_token
from tests.lua.stage import BROKEN, LONG_MS, Stage, calling
from tests.lua.stage import DONE as SHIPPED


async def cancel(stage: Stage, child: InstanceKeys, parent: Held, *, by: str) -> Answer:
    await stage.store.cancel_child(child, parent.keys, new_token(), "over", LONG_MS, by=by)
    return stage.answered()


async def test_a_cancelled_child_tells_its_parent_why(stage: Stage) -> None:
    parent, child = await stage.parent_of_one()
    await stage.cancel(child, "no longer needed")
    assert await stage.status(parent.keys) is Status.QUEUED
    (end,) = await stage.family(parent).ends(calling(), 0, 1)
    assert end is not None
    assert (end.status, end.json) == (Status.CANCELLED, b'"no longer needed"')


async def test_the_run_of_a_parent_cancels_as_long_as_it_holds_it(stage: Stage) -> None:
    parent, child = await stage.parent_of_one(parked=False)
    await stage.recover(parent)
    with pytest.raises(LeaseLost):
        await cancel(stage, child, parent, by=parent.lease)
    assert await stage.status(child) is Status.QUEUED
    parent = await stage.take(parent.keys)
    assert await cancel(stage, child, parent, by=parent.lease) is Answer.DONE
    assert await cancel(stage, child, parent, by=parent.lease) is Answer.ALREADY


async def test_the_leader_cancels_no_child_of_a_parent_that_lives(stage: Stage) -> None:
    parent, child = await stage.parent_of_one(parked=False)
    assert await cancel(stage, child, parent, by=BEREFT) is Answer.STALE
    await stage.store.finish(parent, BROKEN, LONG_MS)
    await stage.store.resume(parent.keys, new_token())
    assert await cancel(stage, child, parent, by=BEREFT) is Answer.STALE
    assert await stage.status(child) is Status.QUEUED
    await stage.store.finish(await stage.take(parent.keys), BROKEN, LONG_MS)
    assert await cancel(stage, child, parent, by=BEREFT) is Answer.DONE


async def test_nobody_cancels_a_child_without_its_parent(stage: Stage) -> None:
    parent, child = await stage.parent_of_one()
    known = await stage.identity(child)
    with pytest.raises(LeaseLost):
        await stage.store.cancel(child, known.invoked_as, new_token(), "", LONG_MS)
    assert await stage.status(child) is Status.QUEUED
    assert await stage.status(parent.keys) is Status.SUSPENDED


async def test_the_living_are_those_that_were_made_and_have_not_ended(stage: Stage) -> None:
    parent, call = await stage.run("parent"), calling(3)
    await stage.spawn(parent, call=call, count=3)
    family = stage.family(parent)
    run, *_ = await stage.deliver(family.child(call, 0))
    await stage.store.claim(run, "w1")
    await stage.store.finish(run, SHIPPED, LONG_MS)
    living = [family.child(call, 1).name, family.child(call, 2).name]
    assert [each.name for each in await family.living(call)] == living
    of_all = await living_in(stage.store, parent.keys, parent.life, parent.keys.family)
    assert [each.name for each in of_all] == living
    assert await family.living(calling()._replace(key="other")) == []


async def test_the_next_life_has_a_family_of_its_own(stage: Stage) -> None:
    parent, child = await stage.parent_of_one(parked=False)
    life, partition = parent.life, parent.keys.partition
    await stage.store.continue_as(parent, NextLife(new_token(), b"2"))
    scene = await stage.check()
    assert parent.keys.family not in scene.hashes
    assert scene.zsets[partition.bereaved].keys() == {f"{parent.keys.name}/{life}"}
    assert [each.name for each in await living_in(stage.store, parent.keys, life, None)] == [child.name]
    assert await cancel(stage, child, parent, by=BEREFT) is Answer.DONE
    await console(stage, parent, life)
    scene = await stage.check()
    assert partition.bereaved not in scene.zsets
    assert partition.orphans(life) not in scene.hashes


async def test_of_two_leaders_one_may_take_away_what_the_other_is_reading(stage: Stage) -> None:
    parent, _ = await stage.parent_of_one(parked=False)
    await stage.store.continue_as(parent, NextLife(new_token(), b"2"))
    orphans = parent.keys.partition.orphans(parent.life)
    # sent behind the first command of the reader, and before its second
    living, _ = await asyncio.gather(
        living_in(stage.store, parent.keys, parent.life, None), stage.command("DEL", orphans)
    )
    assert living == []


async def test_a_life_whose_children_have_ended_leaves_nothing(stage: Stage) -> None:
    parent, child = await stage.parent_of_one(parked=False)
    await stage.cancel(child)
    await stage.store.continue_as(parent, NextLife(new_token(), b"2"))
    scene = await stage.check()
    assert parent.keys.partition.bereaved not in scene.zsets
    assert parent.keys.partition.orphans(parent.life) not in scene.hashes


async def test_delete_leaves_living_children_to_the_leader(stage: Stage) -> None:
    parent, child = await stage.parent_of_one(parked=False)
    await stage.store.finish(parent, BROKEN, LONG_MS)
    await stage.store.delete(parent.keys, parent.life)
    assert [each.name for each in await living_in(stage.store, parent.keys, parent.life, None)] == [child.name]
    assert await cancel(stage, child, parent, by=BEREFT) is Answer.DONE
    await console(stage, parent, parent.life)
    assert parent.keys.partition.orphans(parent.life) not in (await stage.check()).hashes


async def test_who_is_bereaved_anew_meanwhile_stays_on_the_list(stage: Stage) -> None:
    parent, _ = await stage.parent_of_one(parked=False)
    bereaved = parent.keys.partition.bereaved
    await stage.store.finish(parent, BROKEN, LONG_MS)
    member, score = await stage.command("ZRANGE", bereaved, 0, -1, "WITHSCORES")
    await stage.command("ZADD", bereaved, int(score) + 1, member)
    await stage.store.console(parent.keys, parent.life, member.decode(), score.decode())
    assert stage.answered() is Answer.ALREADY
    assert await stage.command("ZCARD", bereaved) == 1
    await console(stage, parent, parent.life)
    assert await stage.command("ZCARD", bereaved) == 0
    assert parent.keys.family in (await stage.check()).hashes


async def console(stage: Stage, parent: Held, life: str) -> None:
    """Take the life off the list; and once more, as after a lost reply."""
    member = f"{parent.keys.name}/{life}"
    score = await stage.command("ZSCORE", parent.keys.partition.bereaved, member)
    await stage.store.console(parent.keys, life, member, score.decode())
    before = await stage.check()
    assert await stage.again() == Answer.DONE
    assert await stage.check() == before
