"""Labels: an instance stands in the index of each for as long as it is kept, and until the leader trims it."""

from __future__ import annotations

import pytest

from memable.keys import InstanceKeys, split_expiry_member
from memable.labels import Labels
from memable.store import new_token
from tests.lua.stage import DONE, LONG_MS, Stage, approval
from tests.lua.test_slots import monitoring

ACME_EU: Labels = {"region": "eu", "tenant": "acme"}


async def invoke(stage: Stage, labels: Labels = ACME_EU) -> InstanceKeys:
    keys = stage.of()
    assert await stage.store.invoke(keys, new_token(), b"1", labels=labels)
    return keys


async def labelled(stage: Stage) -> set[str]:
    """The labels by which an instance can be found."""
    scene = await stage.check()
    return {name.rpartition("label:order/")[2] for name in scene.zsets if ":label:" in name}


async def trim(stage: Stage, keys: InstanceKeys) -> list[bool]:
    """What the leader does when a retention has ended: whether each place was one to remove."""
    members = [member.decode() for member in await stage.command("ZRANGE", keys.expiry, 0, -1)]
    found = [(member, *split_expiry_member(member)[2:]) for member in members]
    return [await stage.store.unlabel(keys, member, created_us, lines) for member, created_us, lines in found if lines]


async def test_a_new_instance_stands_in_the_index_of_each_label(stage: Stage) -> None:
    keys = await invoke(stage)
    assert (await stage.fields(keys))["labels"] == "region=eu\ntenant=acme"
    assert await labelled(stage) == {"region=eu", "tenant=acme"}


async def test_it_is_found_until_its_retention_ends(stage: Stage) -> None:
    keys = await invoke(stage)
    held = await stage.take(keys)
    await stage.store.park(held, [approval()], [], "")
    await stage.store.resume(keys, new_token())
    await stage.store.finish(await stage.take(keys), DONE, LONG_MS)
    assert await labelled(stage) == {"region=eu", "tenant=acme"}
    assert await trim(stage, keys) == [False]
    await stage.store.resume(keys, new_token())
    assert not await stage.command("EXISTS", keys.expiry)
    await stage.store.finish(await stage.take(keys), DONE, -1000)
    assert await trim(stage, keys) == [True]
    assert await labelled(stage) == set()
    await stage.store.forget(keys)
    assert not await stage.command("EXISTS", keys.expiry)


async def test_a_deleted_instance_is_not_found_any_more(stage: Stage) -> None:
    keys = await invoke(stage)
    await stage.store.finish(await stage.take(keys), DONE, LONG_MS)
    await stage.store.delete(keys, await stage.life(keys), ACME_EU)
    assert await labelled(stage) == set()
    assert not await stage.command("EXISTS", keys.expiry)


@pytest.mark.parametrize("anew", [{}, {"region": "eu"}, {"region": "us", "tenant": "acme"}])
async def test_what_an_expired_instance_leaves_does_not_touch_the_next_of_its_id(stage: Stage, anew: Labels) -> None:
    keys = await invoke(stage)
    await stage.store.finish(await stage.take(keys), DONE, -1000)
    await invoke(stage, anew)
    assert await trim(stage, keys) == [True]
    assert await labelled(stage) == {f"{name}={value}" for name, value in anew.items()}
    await stage.store.finish(await stage.take(keys), DONE, -1000)
    await trim(stage, keys)
    await stage.store.forget(keys)
    assert await labelled(stage) == set()


async def test_the_same_instance_invoked_with_other_labels_keeps_its_own(stage: Stage) -> None:
    keys = await invoke(stage)
    assert not await stage.store.invoke(keys, new_token(), b"1", labels={"region": "us"})
    assert await labelled(stage) == {"region=eu", "tenant=acme"}


async def test_who_has_no_labels_pays_nothing_for_them(stage: Stage) -> None:
    async with monitoring(stage) as seen:
        for labels in ({}, ACME_EU):
            keys = await invoke(stage, labels)
            await stage.store.finish(await stage.take(keys), DONE, LONG_MS)
            await stage.store.resume(keys, new_token())
            await stage.store.finish(await stage.take(keys), DONE, LONG_MS)
            await stage.store.delete(keys, await stage.life(keys), labels)
    without, with_labels = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    more = [len(b.inside) - len(a.inside) for a, b in zip(without, with_labels, strict=True)]
    # invoke: a field, two indexes; claim, finish, resume, claim, finish: a place; delete: two indexes, a place
    assert more == [3, 0, 1, 1, 0, 1, 3]
