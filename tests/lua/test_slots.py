"""Every script touches one cluster slot, and no key that it was not given: seen by MONITOR in a full life."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from memable import lua
from memable.endpoint import Wire
from memable.holding import Copied, NextLife
from memable.keys import Keys, is_child
from memable.state import Status, StepKind
from memable.store import enter, new_token
from tests.lua.stage import (
    BROKEN,
    CHILD,
    DONE,
    LONG_MS,
    STEP,
    WORKFLOW,
    YES,
    Stage,
    approval,
    back_off,
    calling,
    children,
    first,
    member,
    receive,
    timer,
)

_LINE = re.compile(rb"[0-9.]+ \[\d+ ([^\]]*)\] (.*)", re.DOTALL)
_WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_KEYLESS = {"TIME"}


@dataclass
class Seen:
    """One call of a script, as the server carried it out."""

    keys: list[str]
    inside: list[list[str]] = field(default_factory=list)
    """The commands of the script."""


@asynccontextmanager
async def monitoring(stage: Stage) -> AsyncIterator[list[Seen]]:
    """All calls of scripts of this namespace, once the block is left."""
    wire = await Wire.open(stage.endpoint)
    calls: list[Seen] = []
    seen: list[Seen] = []
    try:
        assert await wire.exchange("MONITOR") == b"OK"
        yield seen
        end = new_token()
        await stage.command("ECHO", end)
        lines: list[bytes] = []
        while not any(end.encode() in line for line in lines):
            lines.extend(await wire.replies())
        for line in lines:
            _note(calls, line)
        seen.extend(call for call in calls if any(key.startswith(stage.keys.namespace) for key in call.keys))
    finally:
        await wire.close()


def _note(calls: list[Seen], line: bytes) -> None:
    found = _LINE.fullmatch(line)
    assert found is not None, line
    words = [word.decode("latin-1") for word in _WORD.findall(found[2])]
    if words[0].upper() in ("EVAL", "EVALSHA"):
        calls.append(Seen(words[3 : 3 + int(words[2])]))
    elif found[1] == b"lua":
        calls[-1].inside.append(words)


def touched(words: list[str]) -> list[str]:
    """The keys, or the channel, of a command in a script."""
    name = words[0].upper()
    if name in _KEYLESS:
        return []
    if name in ("DEL", "EXISTS", "PERSIST"):
        return words[1:]
    return [words[2] if name in ("XGROUP", "XINFO") else words[1]]


async def a_life_with_everything(stage: Stage, instance_id: str) -> None:
    """Calls every operation of the store for one instance."""
    store, keys = stage.store, await stage.invoke(instance_id)
    held = await stage.take(keys)
    await store.record(held, "charge", STEP, 1)
    await store.set_status(held, "charging")
    await store.open(held, [approval(), timer("past", after_ms=-1), timer("a", after_ms=1e9)], [])
    await store.open(held, [], ["a"])
    await stage.renew("w1", held)
    await store.signal(keys, "approval", "s1", YES)
    await store.signal(keys, "early", "s1", YES, keeps=True)
    await store.send(keys, "chat", "m1", YES)
    await store.open(held, [approval("early"), receive("first"), receive("second")], [])
    await store.send(keys, "chat", "m2", YES)
    await store.park(held, [approval(), timer("b", after_ms=1e9)], [], "")
    await store.release(held)
    held = await stage.take(keys)
    await store.open(held, [approval("c")], ["b"])
    await store.park(held, [timer("d", after_ms=1e9), approval("e")], ["c"], "")
    await stage.make_due(keys, "d")
    await store.fire_timer(keys, "d")
    held = await stage.take(keys)
    await stage.recover(held)
    await store.continue_as(await stage.take(keys), NextLife(new_token(), b"2"))
    held = await stage.take(keys)
    await store.isolate(held, alone=True)
    await stage.recover(held, max_recoveries=1)
    await store.resume(keys, new_token())
    held = await stage.take(keys)
    race = [member("h"), member("i", StepKind.TIMER), member("j", StepKind.STEP)]
    points = [approval("h", choice="race"), timer("i", after_ms=1e9, choice="race")]
    await store.open(held, [first("race", *race), *points], [])
    await store.choose(held, "race", race, "j", 1)
    await store.open(held, [approval("f"), timer("g", after_ms=1e9), first("race2", *race), *points], [])
    await store.finish(held, BROKEN, LONG_MS)
    await store.resume(keys, new_token())
    await stage.take(keys)
    await stage.cancel(keys)
    await stage.cancel(keys)
    await store.resume(keys, new_token())
    await store.finish(await stage.take(keys), DONE, -1000)
    await stage.invoke(instance_id)
    await store.finish(await stage.take(keys), DONE, -1000)
    await store.forget(keys)
    await a_family(stage, instance_id)
    await stage.mortal(instance_id=instance_id)
    await stage.make_deadline_due(keys)
    await store.expire(keys, BROKEN, LONG_MS)
    await store.resume(keys, new_token())
    await store.finish(await stage.take(keys), DONE, -1000)
    await store.forget(keys)
    for lost in ("stream entry", "timer"):
        await stage.invoke(instance_id)
        held = await stage.take(keys)
        await store.open(held, [timer("a", after_ms=1e9)], [])
        if lost == "timer":
            await stage.command("DEL", keys.timers)
        else:
            await stage.command("XDEL", keys.stream, held.entry)
        ((_, mended),) = await store.reconcile(
            keys.partition, WORKFLOW, Status.RUNNING, [instance_id], of_children=is_child(instance_id)
        )
        assert mended in ("entry", "timer")
        await stage.delete(keys)
    await stage.invoke(instance_id)
    held = await stage.take(keys)
    await store.park(held, [back_off("charge")], [], "")
    await stage.make_due(keys, "charge")
    await store.fire_timer(keys, "charge")
    held = await stage.take(keys)
    await store.open(held, [back_off("charge", attempts=2), back_off("past", after_ms=0)], [])
    await store.settle(held, "charge", STEP, 1)
    await stage.delete(keys)
    await stage.delayed(instance_id=instance_id)
    await stage.make_delay_due(keys)
    await store.begin(keys)
    await stage.delete(keys)
    await store.delete((await stage.ended(instance_id=instance_id)).keys, await stage.life(keys))
    assert await store.invoke(keys, new_token(), b"1", labels={"a": "1", "b": "2"})
    await store.finish(await stage.take(keys), DONE, LONG_MS)
    await store.resume(keys, new_token())
    await store.finish(await stage.take(keys), DONE, LONG_MS)
    await store.delete(keys, await stage.life(keys), {"a": "1", "b": "2"})
    assert await store.invoke(keys, new_token(), b"1", labels={"a": "1"})
    await store.finish(await stage.take(keys), DONE, -1000)
    (place,) = {member.decode() for member in await stage.command("ZRANGE", keys.expiry, 0, -1)} - {keys.name}
    assert await store.unlabel(keys, place, place.split("\n")[1], ["a=1"])
    await store.forget(keys)
    origin = await store.copy((await stage.ended(instance_id=instance_id)).keys)
    await stage.delete(keys)
    await store.fork(keys, new_token(), origin, "42", Copied({"charge": b"{}"}, {"many~0": b"completed 1"}))
    await stage.delete(keys)
    await store.lead(keys.partition, "me", 60_000)
    await store.resign(keys.partition, "me")
    await store.drop_consumer(keys.stream, "w1")
    await store.newest([keys.index(status) for status in Status], None, 10)
    stray = await stage.command("XADD", keys.stream, "*", "i", instance_id)
    assert await store.tidy(keys.partition, WORKFLOW, [(stray.decode(), instance_id)])
    await stage.ended(instance_id=instance_id)
    await stage.command("ZREM", keys.expiry, keys.name)
    assert await store.retain(keys, LONG_MS)
    await stage.delete(keys)


async def a_family(stage: Stage, instance_id: str) -> None:
    """Children that complete, fail, are resumed, and are left behind."""
    store, call = stage.store, calling(3)
    parent = await stage.run(instance_id)
    await stage.spawn(parent, call=call, count=2)
    await stage.spawn(parent, call=call, first=2)
    await store.park(parent, [children(wake_at=3, created=3)], [], "")
    one, other, last = await stage.deliver(stage.family(parent).child(call, 0))
    for each in (one, other, last):
        await store.claim(each, "w1")
    await store.finish(one, DONE, LONG_MS)
    await store.finish(other, BROKEN, LONG_MS)
    await store.resume(other.keys, new_token(), parent=await store.parent_of(other.keys))
    await store.finish(await stage.take(other.keys), BROKEN, LONG_MS)
    parent = await stage.take(parent.keys)
    assert await store.open(parent, [children(wake_at=3, created=3)], []) == {"kids": b""}
    await store.finish(parent, DONE, LONG_MS)
    await store.resume(parent.keys, new_token())
    parent = await stage.take(parent.keys)
    await stage.recover(last, max_recoveries=0)
    await store.finish(parent, DONE, -1000)
    for each in (one, other, last, parent):
        await stage.delete(each.keys)
    await store.console(parent.keys, parent.life, f"{parent.keys.name}/{parent.life}", "0")
    await stage.command("DEL", parent.keys.partition.bereaved)
    parent = await stage.run(instance_id)
    await stage.spawn(parent)
    (lost,) = await stage.deliver(stage.family(parent).child(calling(), 0))
    await stage.command("DEL", lost.keys.instance)
    assert await store.bury(lost.keys, parent.keys, BROKEN)
    await store.tidy(lost.keys.partition, CHILD, [(lost.entry, lost.keys.instance_id)])
    for each in (lost, parent):
        await stage.delete(each.keys)


@pytest.mark.parametrize("partitions", [1, 4])
async def test_one_slot_a_call_and_no_key_unnamed(stage: Stage, partitions: int) -> None:
    stage.keys = stage.store.keys = await enter(stage.wiretap, stage.keys.namespace, partitions)
    ids = ["42", "43", "44", "45", "46", "a b:c", "parent~life~key~0"]
    assert {stage.of(each).partition for each in ids} == set(stage.keys.partitions)
    # so that `take` finds one delivery at a time
    for partition in stage.keys.partitions:
        await stage.make_group(partition.stream(WORKFLOW))
        await stage.make_group(partition.stream(CHILD))
    async with monitoring(stage) as seen:
        for each in ids:
            await a_life_with_everything(stage, each)
            await stage.check()
    called = {call.script.name for call in stage.wiretap.calls}
    assert called | {"beat"} == set(lua.names()), "a script is missing in this life"
    assert len(seen) == len([call for call in stage.wiretap.calls if call.script.name != "enter"])
    for call in seen:
        (own,) = {slot(key) for key in call.keys}
        assert call.inside
        for words in call.inside:
            names = touched(words)
            assert {slot(name) for name in names} <= {own}, words
            assert set(names) <= set(call.keys) or words[0].upper() == "PUBLISH", words


def slot(name: str) -> str:
    """What Redis Cluster hashes: the part between the first braces."""
    found = re.search(r"\{([^}]+)\}", name)
    assert found is not None, f"{name} has no braces"
    return found[1]


@pytest.mark.parametrize("partitions", [1, 2, 4, 64])
def test_a_family_and_all_its_keys_live_in_one_partition(partitions: int) -> None:
    keys = Keys("ns", partitions=partitions)
    for root in ("42", "a b", "ü", "x:y{9}"):
        family = [keys.of("order", root), keys.of("parcel", f"{root}~life~ship~0"), keys.of("x", f"{root}~a~b~1~c~d~2")]
        assert len({each.partition for each in family}) == 1
        for each in family:
            names = [
                each.instance,
                each.steps,
                each.family,
                each.partition.bereaved,
                each.stream,
                each.timers,
                each.expiry,
                each.events,
            ]
            names += [each.index(status) for status in Status]
            assert {slot(name) for name in names} == {slot(each.partition.prefix)}


def test_partitions_share_the_work() -> None:
    keys = Keys("ns", partitions=4)
    used = [keys.of("order", str(number)).partition for number in range(400)]
    assert all(used.count(each) > 50 for each in keys.partitions)
