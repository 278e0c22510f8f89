"""A call whose reply was lost is made again, at once or much later: what each RETRY line promises, as a table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from memable import lua
from memable.holding import Copied, Held, LeaseLost, NextLife
from memable.lua import Answer
from memable.state import StepKind
from memable.store import new_token
from tests.lua.stage import (
    BROKEN,
    LONG_MS,
    STEP,
    YES,
    Call,
    Stage,
    answer_of,
    approval,
    back_off,
    calling,
    first,
    member,
    receive,
    timer,
)
from tests.lua.stage import DONE as SHIPPED

DONE, ALREADY, STALE, UNKNOWN = Answer.DONE, Answer.ALREADY, Answer.STALE, Answer.UNKNOWN
LOST, NOT_REACHED = Answer.LEASE_LOST, Answer.NOT_REACHED


@dataclass(frozen=True)
class Row:
    """How the first call comes about, and what its repetition is answered, the further the instance has moved on."""

    first: Callable[[Stage], Awaitable[object]]
    at_once: Answer
    claimed: Answer
    """… another run holds it"""
    ended: Answer
    """… which has ended it"""
    deleted: Answer
    anew: Answer
    """… and there is another instance under the same id"""
    begins_anew: bool = False
    """Once the instance is deleted, the repetition makes another."""
    reaches_anew: bool = False
    """It names an instance's id, not its life: what is kept is kept by the other instance."""


async def invoke(stage: Stage) -> None:
    await stage.invoke()


async def fork(stage: Stage) -> None:
    held = await stage.run("41")
    await stage.store.record(held, "charge", STEP, 5)
    await stage.store.finish(held, SHIPPED, LONG_MS)
    origin = await stage.store.copy(held.keys)
    assert await stage.store.fork(stage.of(), new_token(), origin, "41", Copied(origin.steps, {}))


async def claim(stage: Stage) -> None:
    await stage.run()


async def record(stage: Stage) -> None:
    await stage.store.record(await stage.run(), "charge", STEP, 5)


async def open_points(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [approval(), timer(after_ms=1e9)], [])
    await stage.store.open(held, [timer(after_ms=1e9), timer("past", at_ms=0)], ["cooling-off", "approval", "nothing"])


RACE = [member("approval"), member("charge", StepKind.STEP)]


async def open_race(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [first("race", *RACE), approval(choice="race")], [])


async def choose(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [first("race", *RACE), approval(choice="race")], [])
    await stage.store.choose(held, "race", RACE, "charge", 5)


async def spawn(stage: Stage) -> None:
    await stage.spawn(await stage.run(), call=calling(3), count=3)


async def park(stage: Stage) -> None:
    await stage.parked(approval(), timer(after_ms=1e9))


async def park_satisfied(stage: Stage) -> None:
    held = await stage.run()
    assert await stage.store.park(held, [approval(), timer("past", after_ms=-1)], [], "")


async def finish(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [approval()], [])
    await stage.store.finish(held, SHIPPED, LONG_MS)


async def release(stage: Stage) -> None:
    await stage.store.release(await stage.run())


async def continue_as(stage: Stage) -> None:
    await stage.store.continue_as(await stage.run(), NextLife(new_token(), b"2"))


async def isolate(stage: Stage) -> None:
    await stage.store.isolate(await stage.run(), alone=True)


async def set_status(stage: Stage) -> None:
    await stage.store.set_status(await stage.run(), "charging")


async def signal(stage: Stage) -> None:
    held = await stage.parked()
    await stage.store.signal(held.keys, "approval", "s1", YES)


async def signal_while_running(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [approval()], [])
    await stage.store.signal(held.keys, "approval", "s1", YES)


async def signal_kept(stage: Stage) -> None:
    await stage.store.signal((await stage.run()).keys, "approval", "s1", YES, keeps=True)


async def signal_kept_and_read(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.signal(held.keys, "approval", "s1", YES, keeps=True)
    call = stage.last_call
    assert await stage.store.open(held, [approval()], [])
    stage.wiretap.calls.append(call)


async def open_with_a_kept_signal(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.signal(held.keys, "approval", "s1", YES, keeps=True)
    assert await stage.store.open(held, [approval(), approval("other")], [])


async def park_with_a_kept_signal(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.signal(held.keys, "approval", "s1", YES, keeps=True)
    assert await stage.store.park(held, [approval()], [], "")


async def send(stage: Stage) -> None:
    await stage.store.send((await stage.run()).keys, "chat", "m1", YES)


async def send_to_a_receive(stage: Stage) -> None:
    held = await stage.parked(receive())
    await stage.store.send(held.keys, "chat", "m1", YES)


async def open_with_a_message(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.send(held.keys, "chat", "m1", YES)
    await stage.store.send(held.keys, "chat", "m2", YES)
    assert await stage.store.open(held, [receive()], [])


async def resume(stage: Stage) -> None:
    held = await stage.parked()
    await stage.store.resume(held.keys, new_token())


async def resume_with_rerun(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.record(held, "charge", STEP, 5)
    await stage.store.park(held, [approval(), timer(after_ms=1e9)], [], "")
    await stage.store.resume(held.keys, new_token(), ["charge", "cooling-off"])


async def cancel(stage: Stage) -> None:
    held = await stage.run()
    await stage.cancel(held.keys)


async def cancel_too_late(stage: Stage) -> None:
    held = await stage.ended()
    await stage.cancel(held.keys)


async def expire(stage: Stage) -> None:
    keys = await stage.mortal()
    await stage.make_deadline_due(keys)
    assert await stage.store.expire(keys, BROKEN, LONG_MS) is DONE


async def fire_timer(stage: Stage) -> None:
    held = await stage.parked(timer(after_ms=1e9))
    await stage.make_due(held.keys, "cooling-off")
    assert await stage.store.fire_timer(held.keys, "cooling-off") is DONE


async def invoke_delayed(stage: Stage) -> None:
    await stage.delayed()


async def begin(stage: Stage) -> None:
    keys = await stage.delayed()
    await stage.make_delay_due(keys)
    assert await stage.store.begin(keys) is DONE


async def open_back_off(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [back_off()], [])


async def park_back_off(stage: Stage) -> None:
    await stage.parked(back_off("a"), back_off("b", after_ms=1e8))


async def back_off_over(stage: Stage) -> None:
    held = await stage.parked(back_off())
    await stage.make_due(held.keys, "charge")
    assert await stage.store.fire_timer(held.keys, "charge") is DONE


async def settle(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [back_off()], [])
    await stage.store.settle(held, "charge", STEP, 5)


async def recover(stage: Stage) -> None:
    assert await stage.recover(await stage.run()) is DONE


async def recover_once_too_often(stage: Stage) -> None:
    assert await stage.recover(await stage.run(), max_recoveries=0) is Answer.TERMINAL


async def forget(stage: Stage) -> None:
    held = await stage.ended(retention_ms=-1000)
    await stage.store.forget(held.keys)


async def park_end(stage: Stage, held: Held) -> None:
    await stage.store.park(held, [approval()], [], "")


async def finish_end(stage: Stage, held: Held) -> None:
    await stage.store.finish(held, SHIPPED, LONG_MS)


async def release_end(stage: Stage, held: Held) -> None:
    await stage.store.release(held)


async def continue_end(stage: Stage, held: Held) -> None:
    await stage.store.continue_as(held, NextLife(new_token(), b"2"))


TABLE = {
    "invoke": Row(invoke, DONE, DONE, DONE, DONE, ALREADY, begins_anew=True),
    "invoke, delayed": Row(invoke_delayed, DONE, DONE, DONE, DONE, ALREADY, begins_anew=True),
    "begin": Row(begin, NOT_REACHED, NOT_REACHED, NOT_REACHED, NOT_REACHED, NOT_REACHED),
    "invoke, a fork": Row(fork, DONE, DONE, DONE, DONE, Answer.CONFLICT, begins_anew=True),
    "claim": Row(claim, DONE, STALE, STALE, STALE, STALE),
    "record": Row(record, ALREADY, LOST, LOST, LOST, LOST),
    "open": Row(open_points, DONE, LOST, LOST, LOST, LOST),
    "spawn": Row(spawn, DONE, LOST, LOST, LOST, LOST),
    "open, a race": Row(open_race, DONE, LOST, LOST, LOST, LOST),
    "choose": Row(choose, ALREADY, LOST, LOST, LOST, LOST),
    "park": Row(park, DONE, DONE, LOST, LOST, LOST),
    "park, satisfied": Row(park_satisfied, Answer.SATISFIED, LOST, LOST, LOST, LOST),
    "finish": Row(finish, DONE, DONE, LOST, LOST, LOST),
    "release": Row(release, DONE, DONE, LOST, LOST, LOST),
    "continue_as": Row(continue_as, DONE, DONE, LOST, LOST, LOST),
    "isolate": Row(isolate, DONE, LOST, LOST, LOST, LOST),
    "set_status": Row(set_status, DONE, LOST, LOST, LOST, LOST),
    "signal": Row(signal, DONE, DONE, DONE, UNKNOWN, NOT_REACHED),
    "signal, running": Row(signal_while_running, DONE, DONE, DONE, UNKNOWN, NOT_REACHED),
    "signal, kept": Row(signal_kept, DONE, DONE, DONE, UNKNOWN, DONE, reaches_anew=True),
    "signal, kept and read": Row(signal_kept_and_read, DONE, DONE, DONE, UNKNOWN, DONE, reaches_anew=True),
    "open, with a kept signal": Row(open_with_a_kept_signal, DONE, LOST, LOST, LOST, LOST),
    "park, with a kept signal": Row(park_with_a_kept_signal, Answer.SATISFIED, LOST, LOST, LOST, LOST),
    "send": Row(send, DONE, DONE, DONE, UNKNOWN, DONE, reaches_anew=True),
    "send, to a receive": Row(send_to_a_receive, DONE, DONE, DONE, UNKNOWN, DONE, reaches_anew=True),
    "open, with a message": Row(open_with_a_message, DONE, LOST, LOST, LOST, LOST),
    "resume": Row(resume, DONE, DONE, DONE, UNKNOWN, ALREADY),
    "resume, rerun": Row(resume_with_rerun, DONE, DONE, DONE, UNKNOWN, Answer.BUSY),
    "cancel": Row(cancel, DONE, DONE, DONE, UNKNOWN, UNKNOWN),
    "cancel, too late": Row(cancel_too_late, ALREADY, ALREADY, ALREADY, UNKNOWN, UNKNOWN),
    "expire": Row(expire, NOT_REACHED, NOT_REACHED, NOT_REACHED, NOT_REACHED, NOT_REACHED),
    "fire_timer": Row(fire_timer, NOT_REACHED, NOT_REACHED, NOT_REACHED, NOT_REACHED, NOT_REACHED),
    "open, back-off": Row(open_back_off, DONE, LOST, LOST, LOST, LOST),
    "park, back-off": Row(park_back_off, DONE, DONE, LOST, LOST, LOST),
    "fire_timer, back-off": Row(back_off_over, NOT_REACHED, NOT_REACHED, NOT_REACHED, NOT_REACHED, NOT_REACHED),
    "settle": Row(settle, ALREADY, LOST, LOST, LOST, LOST),
    "recover": Row(recover, NOT_REACHED, NOT_REACHED, NOT_REACHED, NOT_REACHED, NOT_REACHED),
    "recover, failed": Row(recover_once_too_often, NOT_REACHED, NOT_REACHED, NOT_REACHED, NOT_REACHED, NOT_REACHED),
}
OF_NO_INSTANCE = {
    "beat", "bury", "console", "copy", "delete", "drop_consumer", "enter", "forget", "lead", "page", "reconcile",
    "renew", "resign", "retain", "tidy", "unlabel",
}  # fmt: skip
"""Those whose repetition is looked at elsewhere: they change nothing of an instance that is in order."""


def test_every_script_has_a_row() -> None:
    assert {name.split(",")[0] for name in TABLE} | OF_NO_INSTANCE >= set(lua.names())


@pytest.mark.parametrize("name", TABLE)
async def test_a_call_made_again(stage: Stage, name: str) -> None:
    row = TABLE[name]
    await row.first(stage)
    call, keys = stage.last_call, stage.of()
    assert call.script.name == name.split(",", maxsplit=1)[0]
    first = await call.reply

    assert await _again(stage, call) is row.at_once
    if row.at_once is answer_of(first):
        assert _timeless(call, await stage.again(call)) == _timeless(call, first)

    held = await stage.claimed_by_another(keys)
    assert await _again(stage, call) is row.claimed
    await stage.store.finish(held, SHIPPED, LONG_MS)
    assert await _again(stage, call) is row.ended
    await stage.delete(keys)
    assert await _again(stage, call, may_change=row.begins_anew) is row.deleted
    if row.begins_anew:
        await stage.delete(keys)
    await stage.invoke()
    assert await _again(stage, call, may_change=row.reaches_anew) is row.anew
    await stage.take(keys)
    assert await _again(stage, call) is row.anew


def _timeless(call: Call, answer: object) -> object:
    """Without what time it is, or how long ago something was."""
    at = {"spawn": 5, "claim": 9}.get(call.script.name)
    return answer if at is None or not isinstance(answer, list) else answer[:at] + answer[at + 1 :]


async def _again(stage: Stage, call: Call, *, may_change: bool = False) -> Answer:
    before = await stage.check()
    answer = answer_of(await stage.again(call))
    after = await stage.check()
    assert may_change or after == before
    return answer


async def test_a_record_made_again_is_answered_with_what_was_recorded(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.record(held, "charge", STEP, 5)
    recorded = await stage.command("HGET", held.keys.steps, "charge")
    assert await stage.again() == [ALREADY, recorded]


async def test_invoke_made_again_leaves_a_later_instance_alone(stage: Stage) -> None:
    keys = await stage.invoke()
    first = stage.last_call
    await stage.delete(keys)
    await stage.store.invoke(keys, new_token(), b"2")
    assert await _again(stage, first) is Answer.CONFLICT


@pytest.mark.parametrize("max_recoveries", [5, 0])
@pytest.mark.parametrize("end", [park_end, finish_end, release_end, continue_end])
async def test_a_run_that_was_lost_is_never_told_that_its_end_came_through(
    stage: Stage, end: Callable[[Stage, Held], Awaitable[object]], max_recoveries: int
) -> None:
    """Neither after a recovery, nor after the last one, which failed the instance."""
    held = await stage.run()
    await stage.recover(held, max_recoveries=max_recoveries)
    before = await stage.check()
    with pytest.raises(LeaseLost):
        await end(stage, held)
    assert await stage.check() == before


async def test_a_run_that_ended_is_over_also_when_a_later_one_was_lost(stage: Stage) -> None:
    await stage.parked()
    park = stage.last_call
    lost = await stage.claimed_by_another(stage.of())
    assert await _again(stage, park) is DONE
    await stage.recover(lost)
    assert await _again(stage, park) is LOST
