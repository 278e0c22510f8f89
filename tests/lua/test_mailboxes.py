"""send, and points of the kind `message`: messages in order, each read once."""

from __future__ import annotations

import asyncio
import random

import pytest

from memable.errors import SignalRejected, SignalSuperseded, SuspendTimeout
from memable.holding import Held, LeaseLost, Payload, Point
from memable.journal import Record
from memable.keys import InstanceKeys
from memable.lua import Answer
from memable.state import Status, StepKind, StepState
from memable.store import new_token
from tests.lua.stage import DONE, LONG_MS, YES, Stage, approval, receive


def message(number: int) -> Payload:
    return Payload("", "number", b"%d" % number)


async def send(stage: Stage, keys: InstanceKeys, *numbers: int, mailbox: str = "chat") -> None:
    for number in numbers:
        await stage.store.send(keys, mailbox, f"m{number}", message(number))


async def read(stage: Stage, held: Held, *points: Point) -> dict[str, int]:
    """Which number each of the points has got, if any."""
    satisfied = await stage.store.open(held, points, [])
    return {key: int(Record(raw).result or b"") for key, raw in satisfied.items()}


async def test_messages_are_kept_in_order_and_each_is_read_once(stage: Stage) -> None:
    keys = await stage.invoke()
    await send(stage, keys, 1, 2, 3)
    assert stage.answered() is Answer.DONE
    held = await stage.take(keys)
    assert await read(stage, held, receive("a"), receive("b")) == {"a": 1, "b": 2}
    assert await read(stage, held, receive("c"), receive("a")) == {"c": 3, "a": 1}
    assert await read(stage, held, receive("d")) == {}
    assert (await stage.fields(keys))["waiting"] == "d"


async def test_a_message_goes_to_the_receive_that_was_opened_first(stage: Stage) -> None:
    held = await stage.parked(approval(), receive("b"), receive("a"), receive("other", "feed"))
    async with stage.listening(held.keys.events) as heard:
        await send(stage, held.keys, 1)
        assert len(await heard.so_far()) == 1, "it is queued"
    assert await stage.status(held.keys) is Status.QUEUED
    await send(stage, held.keys, 2, 3)
    run = await stage.take(held.keys)
    assert await read(stage, run, receive("a"), receive("b"), receive("c")) == {"b": 1, "a": 2, "c": 3}
    record = await stage.record(held.keys, "b")
    assert record is not None
    assert (record.kind, record.state) == (StepKind.MESSAGE, StepState.COMPLETED)


async def test_a_message_tells_the_worker_that_runs_the_instance(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [receive()], [])
    async with stage.listening(held.keys.partition.control("w1")) as heard:
        await send(stage, held.keys, 1, 2)
        assert await heard.so_far() == [b"news order/42"], "once: nobody waits for the second"


async def test_a_message_keeps_the_run_from_parking(stage: Stage) -> None:
    held = await stage.run()
    await send(stage, held.keys, 1)
    assert (await stage.store.park(held, [approval(), receive()], [], "")).keys() == {"next"}
    assert stage.answered() is Answer.SATISFIED


async def test_mailboxes_of_an_instance_have_nothing_to_do_with_each_other(stage: Stage) -> None:
    held = await stage.run()
    names = ["chat", "chat:1", "chat 1", "chat-%d", "\N{SNOWMAN}"]
    for number, name in enumerate(names):
        await stage.store.send(held.keys, name, "m:1", message(number))
    points = [receive(f"k{number}", name) for number, name in enumerate(names)]
    assert await read(stage, held, *points) == {f"k{number}": number for number in range(len(names))}
    await stage.check()


async def test_a_message_with_an_id_is_sent_once(stage: Stage) -> None:
    held = await stage.run()
    await send(stage, held.keys, 1)
    before = await stage.check()
    await stage.store.send(held.keys, "chat", "m1", message(2))
    assert await stage.check() == before
    assert await read(stage, held, receive("a")) == {"a": 1}
    # also when it has been read
    await stage.store.send(held.keys, "chat", "m1", message(3))
    assert await read(stage, held, receive("b")) == {}
    # and by another mailbox it is another
    await stage.store.send(held.keys, "feed", "m1", message(4))
    assert await read(stage, held, receive("c", "feed")) == {"c": 4}


async def test_the_last_thousand_ids_are_remembered(stage: Stage) -> None:
    held = await stage.run()
    await asyncio.gather(*(send(stage, held.keys, number) for number in range(1001)))
    await stage.check()
    await send(stage, held.keys, 1)
    assert (await stage.check()).hashes[held.keys.inbox]["sent:chat"] == "1001"
    await send(stage, held.keys, 0)
    scene = await stage.check()
    assert scene.hashes[held.keys.inbox]["sent:chat"] == "1002"


async def test_what_nobody_will_receive_is_rejected(stage: Stage) -> None:
    with pytest.raises(SignalRejected, match="message for mailbox 'chat' to order/42 rejected: there is no such"):
        await send(stage, stage.of(), 1)
    assert stage.answered() is Answer.UNKNOWN
    held = await stage.run()
    await send(stage, held.keys, 1)
    await stage.store.finish(held, DONE, LONG_MS)
    before = await stage.check()
    await send(stage, held.keys, 1)
    with pytest.raises(SignalRejected, match="the instance is completed"):
        await send(stage, held.keys, 2)
    assert stage.answered() is Answer.TERMINAL
    assert await stage.check() == before


async def test_a_receive_may_time_out_and_the_next_message_is_for_another(stage: Stage) -> None:
    held = await stage.parked(receive("a", after_ms=1e9), receive("b"))
    await stage.make_due(held.keys, "a")
    assert await stage.store.fire_timer(held.keys, "a") is Answer.DONE
    record = await stage.record(held.keys, "a")
    assert record is not None
    assert (record.kind, type(record.failure())) == (StepKind.MESSAGE, SuspendTimeout)
    await send(stage, held.keys, 1)
    run = await stage.take(held.keys)
    assert await read(stage, run, receive("b")) == {"b": 1}
    # a deadline that is past loses to a message that is there
    await send(stage, held.keys, 2)
    assert await read(stage, run, receive("c", after_ms=-1)) == {"c": 2}
    ((_, raw),) = (await stage.store.open(run, [receive("d", after_ms=-1)], [])).items()
    assert isinstance(Record(raw).failure(), SuspendTimeout)


async def test_a_message_that_comes_first_leaves_no_deadline(stage: Stage) -> None:
    held = await stage.parked(receive(after_ms=1e9))
    await stage.make_due(held.keys, "next")
    await send(stage, held.keys, 1)
    assert await stage.store.fire_timer(held.keys, "next") is Answer.NOT_REACHED
    await stage.check()


async def test_a_receive_that_was_withdrawn_takes_no_message(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [receive("a"), receive("b")], [])
    await stage.store.open(held, [], ["a"])
    await send(stage, held.keys, 1, 2)
    assert await read(stage, held, receive("a"), receive("b")) == {"b": 1, "a": 2}


async def test_a_run_that_is_over_takes_no_message(stage: Stage) -> None:
    """Stopped for a minute, and gone on: its message would be under a key that nobody knows to have been received."""
    late = await stage.run()
    held = await stage.claimed_by_another(late.keys)
    await send(stage, late.keys, 1)
    for call in (stage.store.open(late, [receive()], []), stage.store.park(late, [receive()], [], "")):
        with pytest.raises(LeaseLost):
            await call
    assert await read(stage, held, receive("other")) == {"other": 1}


async def test_a_receive_takes_no_signal(stage: Stage) -> None:
    held = await stage.parked(receive())
    with pytest.raises(SignalRejected, match="this key waits for a message, not for a signal"):
        await stage.store.signal(held.keys, "next", "s1", YES, keeps=True)
    assert stage.answered() is Answer.CONFLICT
    await send(stage, held.keys, 1)
    with pytest.raises(SignalSuperseded):
        await stage.store.signal(held.keys, "next", "s1", YES)


async def test_what_is_unread_is_there_when_the_instance_is_resumed(stage: Stage) -> None:
    held = await stage.run()
    await send(stage, held.keys, 1)
    await stage.store.finish(held, DONE, LONG_MS)
    await stage.store.resume(held.keys, new_token())
    await send(stage, held.keys, 2)
    assert await read(stage, await stage.take(held.keys), receive("a"), receive("b")) == {"a": 1, "b": 2}


@pytest.mark.parametrize("seed", range(3))
async def test_a_thousand_messages_are_read_in_order_with_two_receives_open_whatever_dies(
    stage: Stage, seed: int
) -> None:
    """Every call is made twice, some runs park, some are lost; two receives are open all the time."""
    chance = random.Random(seed)
    keys = await stage.invoke()
    held, next_message, next_receive = await stage.take(keys), 0, 0
    got, wanted = dict[int, int](), list[Point]()
    while len(got) < 1000:
        for _ in range(chance.randrange(40)):
            if next_message < 1000:
                await send(stage, keys, next_message)
                await stage.again()
                next_message += 1
        for _ in range(chance.randrange(40)):
            wanted = [receive(str(next_receive)), receive(str(next_receive + 1))]
            satisfied = await stage.store.open(held, wanted, [])
            assert (await stage.again())[1::2] == [key.encode() for key in satisfied]
            for key, raw in satisfied.items():
                got[int(key)] = int(Record(raw).result or b"")
                next_receive += 1
            if not satisfied:
                break
        match chance.randrange(4):
            case 0:
                assert await stage.recover(held, max_recoveries=10_000) is Answer.DONE
                held = await stage.take(keys)
            case 1 if not await stage.store.park(held, wanted, [], ""):
                await stage.store.resume(keys, new_token())
                held = await stage.take(keys)
            case _:
                pass
    assert got == {number: number for number in range(1000)}
    await stage.check()
