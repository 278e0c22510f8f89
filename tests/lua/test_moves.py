"""Each move that a script's header has is made here. That it makes no other, every test of a script checks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from memable import lua
from memable.keys import DEADLINE_KEY
from memable.state import Status
from memable.store import new_token
from tests.lua.stage import BROKEN, CHILD, LONG_MS, WORKFLOW, YES, Stage, approval, receive
from tests.lua.test_slots import a_life_with_everything

LIFE = "42"
Deed = Callable[[Stage], Awaitable[object]]


async def waiting(stage: Stage) -> None:
    await stage.store.signal((await stage.parked()).keys, "approval", "s1", YES)


async def receiving(stage: Stage) -> None:
    await stage.store.send((await stage.parked(receive())).keys, "chat", "m1", YES)


async def resumed(stage: Stage) -> None:
    await stage.store.resume((await stage.parked()).keys, new_token())


async def cancelled_in_the_queue(stage: Stage) -> None:
    await stage.cancel(await stage.invoke())


async def cancelled_at_rest_and_deleted(stage: Stage) -> None:
    keys = (await stage.parked()).keys
    await stage.cancel(keys)
    await stage.store.delete(keys, await stage.life(keys))


async def failed_and_deleted(stage: Stage) -> None:
    keys = (await stage.ended(BROKEN)).keys
    await stage.store.delete(keys, await stage.life(keys))


async def late_while_it_runs(stage: Stage) -> None:
    held = await stage.take(await stage.mortal())
    await stage.make_deadline_due(held.keys)
    await stage.store.expire(held.keys, BROKEN, LONG_MS)


async def late_at_rest(stage: Stage) -> None:
    held = await stage.take(await stage.mortal())
    await stage.store.park(held, [approval()], [], "")
    await stage.make_deadline_due(held.keys)
    await stage.store.expire(held.keys, BROKEN, LONG_MS)


async def a_child_is_cancelled(stage: Stage) -> None:
    _, child = await stage.parent_of_one()
    await stage.cancel(child)


async def a_child_is_late(stage: Stage) -> None:
    parent, child = await stage.parent_of_one()
    await stage.command("HSET", child.instance, "deadline_ms", 1000, "ends_ms", 1000)
    await stage.command("ZADD", child.timers, 1000, f"{child.name}/{DEADLINE_KEY}")
    await stage.store.expire(child, BROKEN, LONG_MS, parent=parent.keys)


async def a_child_kills_its_workers(stage: Stage) -> None:
    _, child = await stage.parent_of_one()
    await stage.recover(await stage.take(child), max_recoveries=1)


async def a_child_is_lost(stage: Stage) -> None:
    parent, child = await stage.parent_of_one()
    (held,) = await stage.deliver(child)
    await stage.command("DEL", child.instance)
    await stage.store.bury(child, parent.keys, BROKEN)
    await stage.store.tidy(child.partition, child.workflow, [(held.entry, child.instance_id)])
    await stage.command("ZREM", child.index(Status.QUEUED), child.instance_id)


async def a_life(stage: Stage) -> None:
    await a_life_with_everything(stage, LIFE)


DEEDS: dict[Deed, set[tuple[str, str, str]]] = {
    waiting: {("signal", "suspended", "queued")},
    receiving: {("send", "suspended", "queued")},
    resumed: {("resume", "suspended", "queued")},
    cancelled_in_the_queue: {("cancel", "queued", "cancelled")},
    cancelled_at_rest_and_deleted: {("cancel", "suspended", "cancelled"), ("delete", "cancelled", "gone")},
    failed_and_deleted: {("delete", "failed", "gone")},
    late_while_it_runs: {("expire", "running", "failed")},
    late_at_rest: {("expire", "suspended", "failed")},
    a_child_is_cancelled: {("cancel", "suspended", "queued")},
    a_child_is_late: {("expire", "suspended", "queued")},
    a_child_kills_its_workers: {("recover", "suspended", "queued")},
    a_child_is_lost: {("bury", "suspended", "queued")},
}
DECLARED = {(name, *move) for name in lua.names() for move in lua.load(name).moves}
REST = DECLARED - set().union(*DEEDS.values())


@pytest.mark.parametrize(
    ("deed", "moves"), [*DEEDS.items(), (a_life, REST)], ids=lambda each: getattr(each, "__name__", "")
)
async def test_a_move_of_a_header_is_made(stage: Stage, deed: Deed, moves: set[tuple[str, str, str]]) -> None:
    for workflow in (WORKFLOW, CHILD):
        await stage.make_group(stage.keys.partitions[0].stream(workflow))
    await deed(stage)
    await stage.wiretap.check_moves()
    assert moves <= stage.wiretap.moves
