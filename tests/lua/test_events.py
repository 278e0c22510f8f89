"""What subscribers hear: every transition once, in order, as JSON whatever people write into it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from memable.holding import Outcome
from memable.state import Status
from memable.store import new_token
from tests.lua.stage import BROKEN, DONE, LONG_MS, STEP, YES, Heard, Stage, approval, timer

STRANGE = [
    "plain",
    'quotes " and \' and \\ and / and \\" and \\\\',
    "lines\nof\r\ntext\tand \x0b tabs",
    "nothing \x00 and \x01 and \x1f and \x7f",
    "Grüße \N{SNOWMAN} \N{GRINNING FACE} \u2028 \u2029 \ufeff \uffff",
    '","status":"completed","x":"',
    "%s %d %% {0} $1",
    "</script>",
    "x" * 10_000,
]


async def events(heard: Heard) -> list[dict[str, Any]]:
    return [json.loads(message) for message in await heard.so_far()]


async def test_every_transition_is_heard_once_with_a_higher_version(stage: Stage) -> None:
    keys = await stage.invoke()
    async with stage.listening(keys.events) as heard:
        held = await stage.take(keys)
        await stage.store.record(held, "charge", STEP, 1)
        await stage.store.set_status(held, "charging")
        await stage.store.open(held, [approval()], [])
        await stage.store.park(held, [approval(), timer(after_ms=1e9)], [], "waiting for the manager")
        await stage.store.signal(keys, "approval", "s1", YES)
        held = await stage.take(keys)
        await stage.store.release(held)
        held = await stage.take(keys)
        await stage.recover(held)
        held = await stage.take(keys)
        await stage.store.finish(held, BROKEN, LONG_MS)
        await stage.store.resume(keys, new_token())
        held = await stage.take(keys)
        await stage.store.park(held, [timer("later", after_ms=1e9)], [], "")
        await stage.make_due(keys, "later")
        await stage.store.fire_timer(keys, "later")
        held = await stage.take(keys)
        await stage.store.finish(held, Outcome(Status.COMPLETED, b'{"id":1}', "all done"), LONG_MS)
        told = await events(heard)
    assert [event.pop("version") for event in told] == list(range(2, 2 + len(told)))
    running, queued = {"status": "running", "message": "charging"}, {"status": "queued"}
    assert told == [
        {"status": "running"},
        running,
        {"status": "suspended", "message": "waiting for the manager", "key": "approval"},
        *(queued, running),
        *(queued, running),
        *(queued, running),
        {"status": "failed", "message": "ValueError: no", "error": json.loads(BROKEN.value)},
        *(queued, running),
        {"status": "suspended", "key": "later"},
        *(queued, running),
        {"status": "completed", "message": "all done", "output": {"id": 1}},
    ]
    assert (await stage.fields(keys))["version"] == str(1 + len(told))


async def test_what_changes_nothing_is_not_heard(stage: Stage) -> None:
    held = await stage.parked()
    keys = held.keys
    await stage.store.signal(keys, "approval", "s1", YES)
    async with stage.listening(keys.events) as heard:
        await stage.again()
        await stage.store.invoke(keys, new_token(), b'{"id":"42"}')
        await stage.store.resume(keys, new_token())
        await stage.store.fire_timer(keys, "approval")
        await stage.recover(held)
        assert await heard.so_far() == []


async def test_the_last_recovery_is_heard_as_the_end(stage: Stage) -> None:
    held = await stage.run()
    async with stage.listening(held.keys.events) as heard:
        await stage.recover(held, max_recoveries=0)
        (event,) = await events(heard)
    assert (event["status"], event["message"]) == ("failed", "ValueError: no")


@pytest.mark.parametrize("text", STRANGE, ids=range(len(STRANGE)))
async def test_any_message_comes_through_as_it_is(stage: Stage, text: str) -> None:
    held = await stage.run()
    async with stage.listening(held.keys.events) as heard:
        await stage.store.set_status(held, text)
        assert (await stage.fields(held.keys))["progress"] == text
        await stage.store.park(held, [approval()], [], text)
        assert (await stage.fields(held.keys))["message"] == text
        await stage.store.signal(held.keys, "approval", "s1", YES)
        held = await stage.take(held.keys)
        await stage.store.finish(held, Outcome(Status.FAILED, b"{}", text), LONG_MS)
        told = await events(heard)
    assert [(event["status"], event.get("message")) for event in told] == [
        ("running", text),
        ("suspended", text),
        ("queued", None),
        ("running", text),
        ("failed", text),
    ]


@pytest.mark.parametrize("key", ['the "key"', "back\\slash", "Grüße \N{SNOWMAN}", "a:b c", "'", "%s", "[1]"])
async def test_any_key_comes_through_as_it_is(stage: Stage, key: str) -> None:
    held = await stage.run()
    async with stage.listening(held.keys.events) as heard:
        await stage.store.park(held, [approval(key)], [], "")
        (event,) = await events(heard)
    assert event["key"] == key
    assert (await stage.fields(held.keys))["waiting"] == key
    await stage.store.signal(held.keys, key, "s1", YES)


@pytest.mark.parametrize("instance_id", ["a b", "a:b", "ü{1}", "'\"\\", "parent~life~key~0", "*", "-", "0"])
async def test_any_id_has_its_own_channel(stage: Stage, instance_id: str) -> None:
    keys = await stage.invoke(instance_id)
    async with stage.listening(keys.events) as heard:
        held = await stage.take(keys)
        await stage.store.finish(held, DONE, LONG_MS)
        assert [event["status"] for event in await events(heard)] == ["running", "completed"]


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED])
async def test_an_event_carries_how_it_ended_while_that_is_small(stage: Stage, status: Status) -> None:
    field = "output" if status is Status.COMPLETED else "error"
    for size, is_carried in ((4096, True), (4097, False), (1_000_000, False)):
        value = b'"' + b"x" * (size - 2) + b'"'
        held = await stage.run(str(size))
        async with stage.listening(held.keys.events) as heard:
            await stage.store.finish(held, Outcome(status, value, ""), LONG_MS)
            (event,) = await events(heard)
        assert event["status"] == status
        assert event.get(field) == (json.loads(value) if is_carried else None)
        assert (await stage.fields(held.keys))[field] == value.decode()
