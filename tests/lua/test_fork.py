"""A fork: another instance that begins with the records of one, whatever becomes of that."""

from __future__ import annotations

import pytest

from memable.errors import InputConflict, InstanceNotFound, RecordNotFound, SignalSuperseded
from memable.forking import finished_before, name_of_fork
from memable.holding import Copied, Held, NextLife, Outcome, Payload
from memable.journal import Draft, Record
from memable.keys import InstanceKeys
from memable.lua import Answer
from memable.state import StepKind
from memable.store import new_token
from tests.lua.stage import BROKEN, DONE, LONG_MS, STEP, YES, Stage, approval, receive, timer


async def fork(stage: Stage, keys: InstanceKeys, new_id: str = "fork", before: str | None = None) -> InstanceKeys:
    origin = await stage.store.copy(keys)
    to = stage.of(new_id)
    records = finished_before(origin, keys, before)
    assert await stage.store.fork(to, new_token(), origin, name_of_fork(origin, keys, before), records)
    return to


async def recorded(stage: Stage, *keys: str) -> Held:
    held = await stage.run()
    for key in keys:
        await stage.store.record(held, key, STEP, 0)
    return held


async def fields(stage: Stage, keys: InstanceKeys) -> set[str]:
    return set((await stage.check()).hashes.get(keys.steps, {}))


async def test_a_fork_is_queued_with_input_and_records_of_the_other(stage: Stage) -> None:
    held = await recorded(stage, "charge", "pack")
    to = await fork(stage, held.keys)
    scene = await stage.check()
    assert scene.hashes[to.steps] == scene.hashes[held.keys.steps]
    ours, theirs = scene.hashes[to.instance], scene.hashes[held.keys.instance]
    assert (ours["status"], ours["input"]) == ("queued", theirs["input"])
    assert ours["life"] != theirs["life"]
    assert ours["forked_from"] == f"42\n{theirs['life']}\n"


async def test_a_fork_begins_before_a_record(stage: Stage) -> None:
    held = await recorded(stage, "c", "b", "a")
    for before, taken in (("c", set[str]()), ("b", {"c"}), ("a", {"b", "c"})):
        assert await fields(stage, await fork(stage, held.keys, f"before {before}", before)) == taken


async def test_what_is_not_finished_is_not_taken(stage: Stage) -> None:
    held = await recorded(stage, "charge")
    failed = Draft.failed(StepKind.STEP, RecordNotFound("order", "42", ["x"]), attempts=3)
    await stage.store.record(held, "failed", failed, 0)
    await stage.store.open(held, [approval(), timer(after_ms=1e9), timer("past", after_ms=-1)], [])
    assert await fields(stage, await fork(stage, held.keys)) == {"charge", "failed", "past", "_by:past"}
    await stage.store.record(held, "last", STEP, 0)
    taken = await fields(stage, await fork(stage, held.keys, "before it", before="last"))
    assert taken == {"charge", "failed", "past", "_by:past"}


@pytest.mark.parametrize("outcome", [DONE, BROKEN])
async def test_what_has_ended_can_be_forked_and_is_left_as_it_is(stage: Stage, outcome: Outcome) -> None:
    held = await recorded(stage, "charge")
    await stage.store.finish(held, outcome, LONG_MS)
    before = (await stage.check()).hashes[held.keys.instance]
    await fork(stage, held.keys)
    assert (await stage.check()).hashes[held.keys.instance] == before


async def test_a_signal_that_comes_late_is_told_the_same_of_a_fork(stage: Stage) -> None:
    held = await stage.parked()
    await stage.store.signal(held.keys, "approval", "s1", YES)
    to = await fork(stage, held.keys)
    await stage.store.signal(to, "approval", "s1", YES)
    with pytest.raises(SignalSuperseded):
        await stage.store.signal(to, "approval", "s2", YES)


async def test_a_message_that_a_fork_was_given_and_nobody_read_is_the_first_of_its_next_life(stage: Stage) -> None:
    def message(number: bytes) -> Payload:
        return Payload("", "number", number)

    held = await stage.run()
    await stage.store.open(held, [receive("a"), receive("b")], [])
    for number in (b"1", b"2"):
        await stage.store.send(held.keys, "chat", f"m{number!r}", message(number))
    run = await stage.take(await fork(stage, held.keys))
    await stage.store.continue_as(run, NextLife(new_token(), b"2"))
    run = await stage.take(run.keys)
    await stage.store.send(run.keys, "chat", "m3", message(b"3"))
    read = await stage.store.open(run, [receive(key) for key in "cdef"], [])
    assert {key: Record(raw).result for key, raw in read.items()} == {"c": b"1", "d": b"2", "e": b"3"}
    # and it is a mailbox like any other
    await stage.store.send(run.keys, "chat", "m4", message(b"4"))
    assert Record((await stage.store.open(run, [receive("f")], []))["f"]).result == b"4"


async def test_a_fork_has_the_labels_of_the_other(stage: Stage) -> None:
    keys = stage.of()
    await stage.store.invoke(keys, new_token(), b"1", labels={"tenant": "acme"})
    to = await fork(stage, keys)
    assert (await stage.fields(to))["labels"] == "tenant=acme"


async def test_there_may_be_more_records_than_a_command_of_a_script_takes(stage: Stage) -> None:
    held = await recorded(stage, "charge")
    record = await stage.command("HGET", held.keys.steps, "charge")
    many = {f"step {number}": record for number in range(10_000)}
    origin = await stage.store.copy(held.keys)
    to = stage.of("fork")
    await stage.store.fork(to, new_token(), origin, "42", Copied(many, {"many~0": b"completed 1"}))
    assert await stage.command("HLEN", to.steps) == len(many)


async def test_how_children_ended_is_taken_with_the_record_of_their_call(stage: Stage) -> None:
    """And forgotten with it: other children will be made, which must not be taken for these."""
    held = await stage.run()
    for key in ("pages", "later"):
        await stage.store.record(held, key, Draft.completed(StepKind.CHILD, "", b'{"children":2}'), 0)
    ends = {f"{key}~{number}": f"completed {number}" for key in ("pages", "later") for number in range(2)}
    await stage.command("HSET", held.keys.family, *[word for end in ends.items() for word in end])
    await stage.command("HSET", held.keys.instance, "family", 1)
    to = await fork(stage, held.keys, before="later")
    assert (await stage.check()).hashes[to.family] == {"pages~0": "completed 0", "pages~1": "completed 1"}
    held = (await stage.deliver(to))[-1]
    await stage.store.claim(held, "w1")
    await stage.store.finish(held, DONE, LONG_MS)
    assert (await stage.check()).expires_ms[to.family]
    await stage.store.resume(to, new_token(), ["pages"])
    assert not any(name.startswith("pages") for name in (await stage.check()).hashes.get(to.family, {}))


async def test_the_same_fork_is_the_same_instance_and_another_conflicts(stage: Stage) -> None:
    held = await recorded(stage, "charge", "pack")
    to = await fork(stage, held.keys, before="pack")
    before = await stage.check()
    origin = await stage.store.copy(held.keys)
    the_same = name_of_fork(origin, held.keys, "pack")
    assert not await stage.store.fork(to, new_token(), origin, the_same, Copied(origin.steps, {}))
    assert stage.answered() is Answer.ALREADY
    for other in (name_of_fork(origin, held.keys, None), name_of_fork(origin, stage.of("43"), "pack")):
        with pytest.raises(InputConflict, match="order/fork exists already, and is not this fork: choose another id"):
            await stage.store.fork(to, new_token(), origin, other, Copied(origin.steps, {}))
    assert await stage.check() == before


async def test_what_is_no_fork_conflicts_also_with_the_same_input(stage: Stage) -> None:
    held = await recorded(stage, "charge")
    await stage.invoke("fork")
    with pytest.raises(InputConflict):
        await fork(stage, held.keys)


async def test_what_is_not_there_cannot_be_forked(stage: Stage) -> None:
    with pytest.raises(InstanceNotFound):
        await fork(stage, stage.of())
    held = await recorded(stage, "charge")
    with pytest.raises(RecordNotFound, match="order/42 has no record under 'pack'"):
        await fork(stage, held.keys, before="pack")
