"""lead, resign, enter, beat: who leads a partition, what a namespace agrees on, which workers live."""

from __future__ import annotations

import pytest

from memable import lua
from memable.errors import StorageError
from memable.keys import LAYOUT, Keys
from memable.lua import Answer
from memable.store import enter
from tests.lua.stage import Stage


async def test_one_leads_until_it_resigns(stage: Stage) -> None:
    (partition,) = stage.keys.partitions
    first = await stage.store.lead(partition, "me", 60_000)
    assert stage.answered() is Answer.DONE
    assert first.is_ours
    other = await stage.store.lead(partition, "you", 60_000)
    assert not other.is_ours
    assert other.next_ms is not None
    assert 0 < other.next_ms - other.now_ms <= 60_001
    assert stage.answered() is Answer.LEASE_LOST
    again = await stage.store.lead(partition, "me", 60_000)
    assert again.is_ours
    assert again.now_ms >= first.now_ms
    await stage.store.resign(partition, "you")
    assert stage.answered() is Answer.DONE
    assert not (await stage.store.lead(partition, "you", 60_000)).is_ours
    await stage.store.resign(partition, "me")
    await stage.store.resign(partition, "me")
    assert (await stage.store.lead(partition, "you", 60_000)).is_ours
    # the first one's call, tried again after all that
    await stage.store.resign(partition, "me")
    assert not (await stage.store.lead(partition, "me", 60_000)).is_ours


async def test_one_that_is_new_gives_way_to_one_that_is_not(stage: Stage) -> None:
    (partition,) = stage.keys.partitions
    lead = stage.store.lead

    async def leads(token: str, *, is_new: bool) -> bool:
        return (await lead(partition, token, 60_000, is_new=is_new)).is_ours

    assert await leads("new", is_new=True)
    assert not await leads("newer", is_new=True)
    assert await leads("new", is_new=True)
    assert await leads("old", is_new=False)
    assert not await leads("new", is_new=True)
    assert not await leads("older", is_new=False)
    # cut off and connected again, it leads on until somebody else may sweep
    assert await leads("old", is_new=True)
    await stage.store.resign(partition, "new")
    assert await leads("older", is_new=False)
    await stage.store.resign(partition, "older")
    assert await leads("new", is_new=True)
    await stage.store.resign(partition, "new")
    assert await leads("newer", is_new=True)


async def test_leadership_ends_by_itself(stage: Stage) -> None:
    (partition,) = stage.keys.partitions
    await stage.store.lead(partition, "me", 60_000)
    assert 0 < await stage.command("PTTL", partition.leader) <= 60_000
    await stage.store.lead(partition, "me", 120_000)
    assert 60_000 < await stage.command("PTTL", partition.leader) <= 120_000


async def test_partitions_have_leaders_of_their_own(stage: Stage) -> None:
    stage.keys = Keys(stage.keys.namespace, partitions=2)
    for token, partition in zip("ab", stage.keys.partitions, strict=True):
        assert (await stage.store.lead(partition, token, 60_000)).is_ours


async def test_the_first_to_come_decides_the_number_of_partitions(stage: Stage) -> None:
    namespace = stage.keys.namespace
    keys = await enter(stage.wiretap, namespace, 4)
    assert len(keys.partitions) == 4
    assert len((await enter(stage.wiretap, namespace, None)).partitions) == 4
    assert len((await enter(stage.wiretap, namespace, 4)).partitions) == 4
    with pytest.raises(StorageError, match="has 4 partitions, not 8"):
        await enter(stage.wiretap, namespace, 8)
    assert len((await enter(stage.wiretap, namespace, None)).partitions) == 4


async def test_one_partition_when_nobody_says_a_number(stage: Stage) -> None:
    assert len((await enter(stage.wiretap, stage.keys.namespace, None)).partitions) == 1


async def test_a_namespace_of_another_layout_is_refused(stage: Stage) -> None:
    namespace = stage.keys.namespace
    await stage.command("HSET", Keys.meta(namespace), "layout", "0", "partitions", 1)
    with pytest.raises(StorageError, match=f"layout version 0, and this memable speaks {LAYOUT}"):
        await enter(stage.wiretap, namespace, None)


async def test_a_worker_is_seen_until_it_has_been_silent_for_long(stage: Stage) -> None:
    script, workers = lua.load("beat"), stage.keys.workers

    async def beat(worker: str, stale_ms: int) -> list[bytes]:
        arguments = script.bind(workers=workers, worker=worker, stale_ms=stale_ms)
        assert Answer(await stage.wiretap.call(script, arguments)) is Answer.DONE
        seen: list[bytes] = await stage.command("ZRANGE", workers, 0, -1)
        return seen

    assert await beat("w1", 60_000) == [b"w1"]
    assert await beat("w1", 60_000) == [b"w1"]
    assert set(await beat("w2", 60_000)) == {b"w1", b"w2"}
    await stage.command("ZADD", workers, 1000, "w1")
    assert await beat("w2", 60_000) == [b"w2"]
    ((_, at_ms),) = (await stage.check()).zsets[workers].items()
    assert at_ms > 1e12
