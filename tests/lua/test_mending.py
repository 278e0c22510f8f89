"""tidy, retain, bury, and reconcile that only looks: what `memable doctor` finds and mends beside the leader."""

from __future__ import annotations

import pytest

from memable.holding import Payload
from memable.keys import GROUP, InstanceKeys
from memable.lua import Answer
from memable.state import Status
from memable.store import Broken
from tests.lua.stage import BROKEN, DONE, LONG_MS, Stage, back_off, calling, children, timer

# ── reconcile ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def look(stage: Stage, keys: InstanceKeys, status: Status) -> list[tuple[str, Broken]]:
    return await stage.store.reconcile(keys.partition, keys.workflow, status, [keys.instance_id], mends=False)


async def mend(stage: Stage, keys: InstanceKeys, status: Status) -> list[tuple[str, Broken]]:
    return await stage.store.reconcile(keys.partition, keys.workflow, status, [keys.instance_id])


async def everything(stage: Stage) -> object:
    names = sorted(await stage.command("KEYS", f"{stage.keys.namespace}:*"))
    return [(name, await stage.command("DUMP", name)) for name in names]


@pytest.mark.parametrize(
    ("status", "loss", "what"),
    [
        (Status.QUEUED, "XDEL {stream} {entry}", Broken.ENTRY),
        (Status.RUNNING, "XDEL {stream} {entry}", Broken.ENTRY),
        (Status.RUNNING, "HDEL {instance} lease", Broken.LEASE),
        (Status.SUSPENDED, "DEL {timers}", Broken.TIMER),
        (Status.SUSPENDED, "ZREM {listed} 42", Broken.LISTING),
        (Status.COMPLETED, "ZREM {listed} 42", Broken.LISTING),
        (Status.QUEUED, "DEL {instance}", Broken.GONE),
        (Status.SUSPENDED, "HDEL {instance} waiting", Broken.POINTS),
        (Status.SUSPENDED, "DEL {steps}", Broken.FORGETFUL),
    ],
)
async def test_who_only_looks_sees_what_would_be_mended_and_changes_nothing(
    stage: Stage, status: Status, loss: str, what: Broken
) -> None:
    keys = stage.of()
    match status:
        case Status.QUEUED:
            await stage.invoke()
            await stage.make_group(keys.stream)
        case Status.RUNNING:
            await stage.run()
        case Status.SUSPENDED:
            await stage.parked(timer(after_ms=1e9))
        case _:
            await stage.ended()
    entry = await stage.command("HGET", keys.instance, "entry") or b""
    names = {"stream": keys.stream, "instance": keys.instance, "steps": keys.steps, "timers": keys.timers}
    await stage.command(*loss.format(**names, entry=entry.decode(), listed=keys.index(status)).split())
    before = await everything(stage)
    assert await look(stage, keys, status) == [("42", what)]
    assert await look(stage, keys, status) == [("42", what)]
    assert await everything(stage) == before
    assert await mend(stage, keys, status) == [("42", what)]
    if what in (Broken.ASLEEP, Broken.FORGETFUL):
        assert await everything(stage) == before
    else:
        now = Status.QUEUED if status is Status.RUNNING else status
        assert await look(stage, keys, now) == []
    if what in (Broken.ASLEEP, Broken.FORGETFUL, Broken.GONE):
        await stage.command("XTRIM", keys.stream, "MAXLEN", 0)
        await stage.delete(keys)


async def test_one_that_ran_in_nobodys_hands_is_taken_again(stage: Stage) -> None:
    held = await stage.run()
    await stage.command("HDEL", held.keys.instance, "lease")
    assert await mend(stage, held.keys, Status.RUNNING) == [("42", "lease")]
    assert await stage.status(held.keys) is Status.QUEUED
    await stage.take(held.keys, "w2")


async def test_one_whose_back_off_was_lost_with_its_records_is_queued_again(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.park(held, [back_off()], [], "")
    await stage.command("DEL", held.keys.steps, held.keys.timers)
    assert await mend(stage, held.keys, Status.QUEUED) == [("42", "entry")]
    assert await mend(stage, held.keys, Status.QUEUED) == []
    (again,) = await stage.deliver(held.keys)
    assert (await stage.store.claim(again, "w1")).steps == {}
    await stage.delete(held.keys)


# ── tidy ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_entries_that_no_instance_has_are_taken_out_of_a_stream(stage: Stage) -> None:
    queued = await stage.invoke()
    entry = (await stage.command("HGET", queued.instance, "entry")).decode()
    strays = [(await stage.command("XADD", queued.stream, "*", "i", id)).decode() for id in ("42", "gone")]
    entries = [(entry, "42"), *zip(strays, ("42", "gone"), strict=True)]
    before = await everything(stage)
    assert await stage.store.tidy(queued.partition, queued.workflow, entries, mends=False) == strays
    assert await everything(stage) == before
    assert await stage.store.tidy(queued.partition, queued.workflow, entries) == strays
    assert await stage.store.tidy(queued.partition, queued.workflow, entries) == []
    await stage.take(queued)


async def test_an_entry_that_was_delivered_leaves_the_pending_list_with_the_stream(stage: Stage) -> None:
    held = await stage.run()
    await stage.command("DEL", held.keys.instance, held.keys.steps)
    assert await stage.store.tidy(held.keys.partition, held.keys.workflow, [(held.entry, "42")]) == [held.entry]
    assert await stage.command("XPENDING", held.keys.stream, GROUP) == [0, None, None, None]
    await stage.delete(held.keys)


# ── retain ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_one_that_has_ended_and_would_stay_for_ever_expires(stage: Stage) -> None:
    keys = (await stage.run()).keys
    await stage.store.send(keys, "chat", "m1", Payload("bool", "boolean", b"true"))
    await stage.cancel(keys)
    assert not await stage.store.retain(keys, LONG_MS)
    for name in (keys.instance, keys.steps, keys.inbox):
        await stage.command("PERSIST", name)
    await stage.command("DEL", keys.expiry)
    before = await everything(stage)
    assert await stage.store.retain(keys, LONG_MS, mends=False)
    assert await everything(stage) == before
    assert await stage.store.retain(keys, LONG_MS)
    assert not await stage.store.retain(keys, LONG_MS)
    await stage.check()


async def test_one_that_lives_is_not_made_to_expire(stage: Stage) -> None:
    held = await stage.parked()
    assert not await stage.store.retain(held.keys, LONG_MS)
    assert not await stage.store.retain(stage.of("nobody"), LONG_MS)


# ── bury ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_parent_whose_child_was_lost_is_told_that_it_has_failed(stage: Stage) -> None:
    parent, child = await stage.parent_of_one()
    (entry,) = await stage.deliver(child)
    bury = stage.store.bury
    assert not await bury(child, parent.keys, BROKEN)
    await stage.command("DEL", child.instance)
    before = await everything(stage)
    assert await bury(child, parent.keys, BROKEN, mends=False)
    assert await everything(stage) == before
    assert await bury(child, parent.keys, BROKEN)
    assert stage.answered() is Answer.DONE
    assert not await bury(child, parent.keys, BROKEN)
    await stage.store.tidy(child.partition, child.workflow, [(entry.entry, child.instance_id)])
    await stage.delete(child)
    again = await stage.take(parent.keys)
    assert await stage.store.open(again, [children()], []) == {"kids": b""}
    (end,) = await stage.family(again).ends(calling(), 0, 1)
    assert end is not None
    assert end.status is Status.FAILED


async def test_nobody_is_told_of_a_child_that_was_never_made_or_is_of_another_life(stage: Stage) -> None:
    parent, child = await stage.parent_of_one()
    partition, workflow, life = child.partition, child.workflow, parent.life
    for id in (f"parent~{life}~kids~1", "parent~other~kids~0", f"parent~{life}~others~0"):
        assert not await stage.store.bury(partition.of(workflow, id), parent.keys, BROKEN)
    (held,) = await stage.deliver(child)
    await stage.store.claim(held, "w1")
    await stage.store.finish(held, DONE, -1000)
    assert not await stage.store.bury(child, parent.keys, BROKEN)
