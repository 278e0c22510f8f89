"""One life of an instance ends, and the next begins."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from memable.errors import InputConflict, SignalRejected, SignalSuperseded
from memable.holding import HistoryLost, LeaseLost, NextLife, Payload
from memable.journal import Draft, Record
from memable.lua import Answer
from memable.state import Status, StepKind
from memable.store import new_token
from tests.lua.stage import BROKEN, LONG_MS, STEP, YES, Stage, approval, receive, timer

NO = Payload("bool", "boolean", b"false")


@pytest.mark.spec("continue-as-atomic")
async def test_the_next_life_has_its_own_token_and_input_and_nothing_of_what_the_one_before_did(stage: Stage) -> None:
    held = await stage.run()
    before = await stage.fields(held.keys)
    await stage.store.record(held, "charge", STEP, 5)
    await stage.store.set_status(held, "charging")
    await stage.store.open(held, [approval(), timer(after_ms=1e9)], [])
    async with stage.listening(held.keys.events) as heard:
        await stage.store.continue_as(held, NextLife("second", b"2"))
        (event,) = await heard.so_far()
    assert b'"status":"queued"' in event
    assert b'"message"' not in event
    scene = await stage.check()
    fields = scene.hashes[held.keys.instance]
    assert {name: fields[name] for name in ("status", "message", "life", "input", "created_us")} == {
        "status": "queued",
        "message": "",
        "life": "second",
        "input": "2",
        "created_us": before["created_us"],
    }
    assert fields.keys() & {"progress", "attempt", "started_ms", "waiting", "recoveries"} == set()
    assert int(fields["version"]) > int(before["version"])
    assert held.keys.steps not in scene.hashes
    assert held.keys.timers not in scene.zsets


async def test_the_next_life_is_claimed_like_any_other(stage: Stage) -> None:
    first = await stage.run()
    await stage.store.continue_as(first, NextLife("second", b"2"))
    (held,) = await stage.deliver(first.keys, "w2")
    claim = await stage.store.claim(held, "w2")
    assert (claim.life, claim.input, claim.progress, claim.attempt, claim.recoveries, claim.steps) == (
        "second",
        b"2",
        "",
        1,
        0,
        {},
    )


async def test_recoveries_are_counted_for_each_life(stage: Stage) -> None:
    held = await stage.run()
    assert await stage.recover(held) is Answer.DONE
    held = await stage.take(held.keys)
    await stage.store.continue_as(held, NextLife(new_token(), b"2"))
    held = await stage.take(held.keys)
    assert await stage.recover(held, max_recoveries=2) is Answer.DONE


async def test_a_run_that_lost_its_lease_cannot_continue(stage: Stage) -> None:
    held = await stage.run()
    await stage.claimed_by_another(held.keys)
    before = await stage.check()
    with pytest.raises(LeaseLost):
        await stage.store.continue_as(held, NextLife(new_token(), b"2"))
    assert await stage.check() == before


async def test_a_run_whose_history_is_lost_cannot_continue(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.record(held, "charge", STEP, 5)
    await stage.command("HDEL", held.keys.steps, "charge")
    with pytest.raises(HistoryLost):
        await stage.store.continue_as(held, NextLife(new_token(), b"2"))
    assert (await stage.fields(held.keys))["input"] == '{"id":"42"}'


async def test_an_invoke_is_compared_with_the_first_input_whatever_life_it_is(stage: Stage) -> None:
    held = await stage.run()
    for number in (2, 3):
        await stage.store.continue_as(held, NextLife(new_token(), str(number).encode()))
        assert not await stage.store.invoke(held.keys, new_token(), b'{"id":"42"}')
        assert not await stage.store.invoke(held.keys, new_token(), b'{ "id": "42" }')
        with pytest.raises(InputConflict):
            await stage.store.invoke(held.keys, new_token(), str(number).encode())
        held = await stage.take(held.keys)


async def test_an_invoke_whose_reply_was_lost_is_still_the_one_that_made_it(stage: Stage) -> None:
    keys = stage.of()
    assert await stage.store.invoke(keys, "first", b"1")
    for number in (2, 3):
        await stage.store.continue_as(await stage.take(keys), NextLife(f"life {number}", b"2"))
        before = await stage.check()
        assert await stage.store.invoke(keys, "first", b"1")
        assert not await stage.store.invoke(keys, f"life {number}", b"1")
        assert await stage.check() == before


async def test_a_late_record_of_the_life_before_is_refused(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.continue_as(held, NextLife(new_token(), b"2"))
    with pytest.raises(LeaseLost):
        await stage.store.record(held, "charge", Draft.completed(StepKind.STEP, "str", b'"late"'), 5)
    await stage.take(held.keys)
    with pytest.raises(LeaseLost):
        await stage.store.record(held, "charge", Draft.completed(StepKind.STEP, "str", b'"late"'), 5)


async def test_a_resume_belongs_to_the_life_in_which_it_ended(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.record(held, "charge", STEP, 5)
    await stage.store.continue_as(held, NextLife("second", b"2"))
    held = await stage.take(held.keys)
    await stage.store.record(held, "ship", STEP, 5)
    await stage.store.finish(held, BROKEN, LONG_MS)
    await stage.store.resume(held.keys, new_token())
    fields = await stage.fields(held.keys)
    assert (fields["life"], fields["input"], fields["status"]) == ("second", "2", Status.QUEUED)
    assert await stage.record(held.keys, "ship") is not None
    assert await stage.record(held.keys, "charge") is None


# ── signals ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_signal_that_an_earlier_life_took_is_not_taken_again(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [approval(), approval("two words")], [])
    await stage.store.signal(held.keys, "approval", "s1", YES)
    await stage.store.signal(held.keys, "two words", "s1", YES)
    await stage.store.continue_as(held, NextLife(new_token(), b"2", ["two words", "approval"]))
    held = await stage.take(held.keys)
    await stage.store.open(held, [approval(), approval("two words")], [])
    before = await stage.check()
    for keeps in (True, False):
        await stage.store.signal(held.keys, "approval", "s1", NO, keeps=keeps)
        await stage.store.signal(held.keys, "two words", "s1", NO, keeps=keeps)
    assert await stage.check() == before
    # by its whole name, and also when another signal has completed the point of this life
    await stage.store.signal(held.keys, "two words", "words s1", YES)
    await stage.store.signal(held.keys, "approval", "s", YES)
    before = await stage.check()
    await stage.store.signal(held.keys, "approval", "s1", NO)
    with pytest.raises(SignalSuperseded):
        await stage.store.signal(held.keys, "approval", "1", NO)
    assert await stage.check() == before


async def test_it_is_remembered_over_many_lives_and_in_the_end(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [approval()], [])
    await stage.store.signal(held.keys, "approval", "s", YES)
    for _ in range(3):
        await stage.store.continue_as(held, NextLife(new_token(), b"2", ["approval"]))
        held = await stage.take(held.keys)
    await stage.store.signal(held.keys, "approval", "s", YES)
    await stage.store.finish(held, BROKEN, LONG_MS)
    await stage.store.signal(held.keys, "approval", "s", YES)


async def test_of_very_many_the_latest_are_remembered(stage: Stage) -> None:
    held = await stage.run()
    for life in range(3):
        keys = [f"p{number}" for number in range(600)]
        await stage.store.open(held, list(map(approval, keys)), [])
        await asyncio.gather(*(stage.store.signal(held.keys, key, f"life {life}", YES) for key in keys))
        await stage.store.continue_as(held, NextLife(new_token(), b"2", keys))
        held = await stage.take(held.keys)
    scene = await stage.check()
    seen = scene.hashes[held.keys.inbox]["seen"].split("\n")
    lives = Counter(line.rpartition(" ")[2] for line in seen)
    assert lives == {"2": 600, "1": 400}
    await stage.store.signal(held.keys, "p7", "life 2", YES)
    with pytest.raises(SignalRejected):
        await stage.store.signal(held.keys, "p7", "life 0", YES)


@pytest.mark.spec("continue-as-signals")
async def test_a_signal_that_nobody_has_read_is_kept_for_the_next_life(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.signal(held.keys, "approval", "s", YES, keeps=True)
    await stage.store.continue_as(held, NextLife(new_token(), b"2"))
    held = await stage.take(held.keys)
    assert (await stage.store.open(held, [approval()], [])).keys() == {"approval"}


async def test_a_signal_to_a_point_that_went_with_its_life_is_rejected(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [approval()], [])
    await stage.store.continue_as(held, NextLife(new_token(), b"2"))
    with pytest.raises(SignalRejected):
        await stage.store.signal(held.keys, "approval", "s", YES)


# ── what came, and was not read ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_signal_that_came_and_was_not_read_waits_for_the_same_point_of_the_next_life(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [approval(), approval("other")], [])
    await stage.store.signal(held.keys, "approval", "s", YES)
    await stage.store.continue_as(held, NextLife(new_token(), b"2", ["other"]))
    signal = stage.store.signal
    held = await stage.take(held.keys)
    await signal(held.keys, "approval", "s", NO)  # sent again: it is the same
    with pytest.raises(SignalSuperseded):
        await signal(held.keys, "approval", "another", NO)
    ((key, raw),) = (await stage.store.open(held, [approval(), approval("other")], [])).items()
    assert (key, Record(raw).kind, Record(raw).result) == ("approval", StepKind.SIGNAL, b"true")


async def test_an_early_end_of_a_timer_is_of_its_life(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [timer(after_ms=1e9)], [])
    await stage.store.signal(held.keys, "cooling-off", "s", Payload("", "null", b"null"))
    await stage.store.continue_as(held, NextLife(new_token(), b"2"))
    held = await stage.take(held.keys)
    assert await stage.store.open(held, [timer(after_ms=1e9)], []) == {}


async def test_messages_that_came_and_were_not_read_are_the_first_of_the_next_life(stage: Stage) -> None:
    held = await stage.run()
    keys = held.keys

    async def send(number: int, text: bytes) -> None:
        await stage.store.send(keys, "chat", f"m{number}", Payload("", "number", text))

    await stage.store.open(held, [receive("a"), receive("b"), receive("c")], [])
    for number in range(6):
        await send(number, b"%d" % number)
    await stage.store.open(held, [receive("d")], [])
    # a to d have m0 to m3, and m4 and m5 are in the mailbox
    await stage.store.continue_as(held, NextLife(new_token(), b"2", ["b"]))
    held = await stage.take(keys)
    await send(0, b"99")  # sent again: it is the same
    read = await stage.store.open(held, [receive(f"r{number}") for number in range(6)], [])
    assert [Record(read[f"r{number}"]).result for number in range(5)] == [b"0", b"2", b"3", b"4", b"5"]
    assert "r5" not in read
