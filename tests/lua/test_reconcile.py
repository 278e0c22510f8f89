"""reconcile: what was lost outside of memable (keys evicted, entries or timers deleted by hand) is there again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from memable.holding import LeaseLost
from memable.keys import GROUP, InstanceKeys
from memable.state import Status, StepKind
from memable.store import Broken
from tests.lua.stage import DONE, LONG_MS, STEP, Stage, approval, first, member, timer

Loss = Callable[[Stage, InstanceKeys, str], Awaitable[object]]


async def reconcile(stage: Stage, keys: InstanceKeys, status: Status) -> list[tuple[str, Broken]]:
    return await stage.store.reconcile(keys.partition, keys.workflow, status, [keys.instance_id])


async def test_what_is_in_order_is_left_as_it_is(stage: Stage) -> None:
    waiting = await stage.parked(timer("a", after_ms=1e9), approval("b"), instance_id="suspended")
    running = await stage.run("running")
    delivered = await stage.invoke("delivered")
    await stage.deliver(delivered)
    queued = await stage.invoke("queued")
    before = await stage.check()
    for keys, status in (
        (waiting.keys, Status.SUSPENDED),
        (running.keys, Status.RUNNING),
        (delivered, Status.QUEUED),
        (queued, Status.QUEUED),
    ):
        assert await reconcile(stage, keys, status) == []
        assert await stage.check() == before


async def xdel(stage: Stage, keys: InstanceKeys, entry: str) -> None:
    await stage.command("XDEL", keys.stream, entry)


async def acknowledge(stage: Stage, keys: InstanceKeys, entry: str) -> None:
    await stage.command("XACK", keys.stream, GROUP, entry)


async def trim(stage: Stage, keys: InstanceKeys, entry: str) -> None:
    await stage.command("XTRIM", keys.stream, "MAXLEN", 0)


async def evict(stage: Stage, keys: InstanceKeys, entry: str) -> None:
    await stage.command("DEL", keys.stream)


async def skip(stage: Stage, keys: InstanceKeys, entry: str) -> None:
    await stage.command("XGROUP", "SETID", keys.stream, GROUP, "$")


LOSSES = [xdel, trim, evict]


@pytest.mark.parametrize("lose", [*LOSSES, skip])
async def test_what_is_queued_without_an_entry_that_will_be_delivered_gets_one(stage: Stage, lose: Loss) -> None:
    keys = await stage.invoke()
    entry = (await stage.command("HGET", keys.instance, "entry")).decode()
    await stage.make_group(keys.stream)
    await lose(stage, keys, entry)
    assert await reconcile(stage, keys, Status.QUEUED) == [("42", "entry")]
    assert await reconcile(stage, keys, Status.QUEUED) == []
    await stage.make_group_again(keys.stream)
    await stage.take(keys)


@pytest.mark.parametrize("lose", [*LOSSES, acknowledge])
async def test_what_runs_without_a_pending_entry_is_queued_again(stage: Stage, lose: Loss) -> None:
    held = await stage.run()
    await lose(stage, held.keys, held.entry)
    assert await reconcile(stage, held.keys, Status.RUNNING) == [("42", "entry")]
    assert await reconcile(stage, held.keys, Status.QUEUED) == []
    await stage.make_group_again(held.keys.stream)
    fields = await stage.fields(held.keys)
    assert fields["status"] == "queued"
    assert "recoveries" not in fields
    with pytest.raises(LeaseLost):
        await stage.store.record(held, "charge", STEP, 1)
    await stage.take(held.keys, "w2")


async def test_a_lost_timer_is_there_again_with_its_deadline(stage: Stage) -> None:
    held = await stage.parked(timer("a", after_ms=1e9), approval("b", after_ms=2e9), approval("c"))
    before = await stage.check()
    await stage.command("DEL", held.keys.timers)
    assert await reconcile(stage, held.keys, Status.SUSPENDED) == [("42", "timer")]
    assert await stage.check() == before
    assert await reconcile(stage, held.keys, Status.SUSPENDED) == []


async def test_an_instance_without_its_hash_leaves_the_listing(stage: Stage) -> None:
    keys = await stage.invoke()
    await stage.command("DEL", keys.instance)
    assert await reconcile(stage, keys, Status.QUEUED) == [("42", "gone")]
    assert await reconcile(stage, keys, Status.QUEUED) == []
    (held,) = await stage.deliver(keys)
    with pytest.raises(LeaseLost):  # and takes the entry out of the stream
        await stage.store.claim(held, "w1")


async def test_one_that_is_listed_under_a_status_that_it_has_not_is_listed_as_it_should(stage: Stage) -> None:
    held = await stage.ended()
    before = await stage.check()
    created_us = (await stage.fields(held.keys))["created_us"]
    await stage.command("ZADD", held.keys.index(Status.SUSPENDED), created_us, "42")
    assert await reconcile(stage, held.keys, Status.SUSPENDED) == [("42", "listing")]
    assert await stage.check() == before


async def test_one_that_moved_on_between_being_listed_and_looked_at_is_left_alone(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.finish(held, DONE, LONG_MS)
    before = await stage.check()
    assert await reconcile(stage, held.keys, Status.RUNNING) == []
    assert await stage.check() == before


async def test_what_one_waits_for_is_noted_again(stage: Stage) -> None:
    race = [member("a"), member("b", StepKind.TIMER)]
    points = [approval("a", choice="race"), timer("b", after_ms=1e9, choice="race"), approval("c")]
    held = await stage.parked(first("race", *race), *points)
    await stage.command("HDEL", held.keys.instance, "waiting", "choosing")
    assert await reconcile(stage, held.keys, Status.SUSPENDED) == [("42", "points")]
    assert await reconcile(stage, held.keys, Status.SUSPENDED) == []
    assert {*(await stage.fields(held.keys))["waiting"].split("\n")} == {"a", "b", "c"}
    await stage.cancel(held.keys)


async def test_one_that_waits_for_nothing_is_told(stage: Stage) -> None:
    held = await stage.parked()
    await stage.command("HDEL", held.keys.instance, "waiting")
    await stage.command("DEL", held.keys.steps)
    assert await reconcile(stage, held.keys, Status.SUSPENDED) == [("42", "asleep")]
    await stage.delete(held.keys)


async def test_many_at_once(stage: Stage) -> None:
    lost = [await stage.invoke(f"lost-{n}") for n in range(3)]
    for keys in lost:
        await stage.command("XDEL", keys.stream, await stage.command("HGET", keys.instance, "entry"))
    fine = await stage.invoke("fine")
    ids = [keys.instance_id for keys in (*lost, fine)]
    mended = await stage.store.reconcile(fine.partition, fine.workflow, Status.QUEUED, ids)
    assert mended == [(keys.instance_id, "entry") for keys in lost]
    await stage.check()
