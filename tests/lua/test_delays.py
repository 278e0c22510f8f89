"""invoke with a delay, begin: an instance that is queued, and gets its stream entry when its time has come."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from memable import lua
from memable.calls import Script
from memable.errors import SignalRejected
from memable.lua import Answer
from memable.moments import Due
from memable.state import Status
from memable.store import new_token
from tests.lua.stage import DONE, LONG_MS, YES, Stage

# ── a time as people read it ─────────────────────────────────────────────────────────────────────────────────────────

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
SHOW_TIME = lua.assemble(
    "show",
    "-- show: a time.\n-- USES  clock\n-- ARGV  at_ms, now\n-- RETURNS  it\n-- RETRY  the same\n"
    "return shown_time(tonumber(at_ms), tonumber(now))",
)


async def shown(stage: Stage, at_ms: float, now: datetime = NOON) -> str:
    script = Script(SHOW_TIME.name, SHOW_TIME.source, SHOW_TIME.sha, 0)
    text: bytes = await stage.wiretap.call(script, SHOW_TIME.bind(at_ms=at_ms, now=now.timestamp() * 1000))
    return text.decode()


async def test_a_time_of_today_is_shown_without_its_date(stage: Stage) -> None:
    first, last = NOON.replace(hour=0), NOON.replace(hour=23, minute=59, second=59, microsecond=999_000)
    assert await shown(stage, first.timestamp() * 1000) == "00:00:00"
    assert await shown(stage, last.timestamp() * 1000) == "23:59:59"
    assert await shown(stage, last.timestamp() * 1000 + 1) == "2026-12-01 00:00:00"
    assert await shown(stage, first.timestamp() * 1000 - 1) == "2026-11-29 23:59:59"


async def test_dates_are_those_of_the_calendar(stage: Stage) -> None:
    days = [datetime(year, 2, 28, 23, 59, 59, tzinfo=UTC) for year in (1970, 1999, 2000, 2024, 2100, 2400, 9998)]
    days += [datetime(2027, 1, 1, tzinfo=UTC) + timedelta(days=37, seconds=4999) * number for number in range(200)]
    for day in days:
        for each in (day, day + timedelta(seconds=1), day + timedelta(days=1, seconds=1)):
            assert await shown(stage, each.timestamp() * 1000) == f"{each:%Y-%m-%d %H:%M:%S}"


async def test_what_no_calendar_has_is_shown_all_the_same(stage: Stage) -> None:
    assert await shown(stage, 253_402_300_799_999) == "9999-12-31 23:59:59"
    assert await shown(stage, 1e300) == "a time after the year 9999"


# ── invoke, begin ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_delayed_instance_is_queued_with_a_timer_instead_of_an_entry(stage: Stage) -> None:
    keys = await stage.delayed(timedelta(days=2))
    scene = await stage.check()
    fields = scene.hashes[keys.instance]
    due = datetime.fromtimestamp(int(fields["due"]) / 1000, UTC)
    assert (fields["status"], fields["message"]) == ("queued", f"delayed until {due:%Y-%m-%d %H:%M:%S}")
    assert int(fields["due"]) >= int(fields["created_us"]) // 1000 + timedelta(days=2) // timedelta(milliseconds=1)
    assert keys.stream not in scene.streams


@pytest.mark.parametrize("due", [Due(), Due(after_ms=0), Due(after_ms=-1e9), Due(at_ms=0), Due(at_ms=-1e15)])
async def test_a_delay_that_is_none_is_none(stage: Stage, due: Due) -> None:
    keys = stage.of()
    assert await stage.store.invoke(keys, new_token(), b"1", due)
    assert (await stage.fields(keys))["message"] == ""
    await stage.take(keys)


async def test_it_begins_when_its_time_has_come_and_not_before(stage: Stage) -> None:
    keys = await stage.delayed()
    before = await stage.check()
    assert await stage.store.begin(keys) is Answer.NOT_REACHED
    assert await stage.check() == before
    await stage.make_delay_due(keys)
    async with stage.listening(keys.events) as heard:
        assert await stage.store.begin(keys) is Answer.DONE
        (event,) = await heard.so_far()
    assert json.loads(event) == {"version": 2, "status": "queued"}
    assert (await stage.fields(keys))["message"] == ""
    await stage.take(keys)


async def test_another_delay_changes_nothing(stage: Stage) -> None:
    keys = await stage.delayed()
    before = await stage.check()
    for due in (Due(), Due(after_ms=1e12), Due(at_ms=0)):
        assert not await stage.store.invoke(keys, new_token(), b'{"id":"42"}', due)
    assert await stage.check() == before


async def test_resume_joins_it_and_a_signal_does_not_reach_it(stage: Stage) -> None:
    keys = await stage.delayed()
    before = await stage.check()
    await stage.store.resume(keys, new_token())
    assert stage.answered() is Answer.ALREADY
    with pytest.raises(SignalRejected):
        await stage.store.signal(keys, "approval", "s1", YES)
    assert await stage.check() == before


async def test_the_timer_of_one_whose_hash_was_lost_is_removed(stage: Stage) -> None:
    keys = await stage.delayed()
    await stage.make_delay_due(keys)
    await stage.command("DEL", keys.instance)
    assert await stage.store.begin(keys) is Answer.UNKNOWN
    assert not await stage.command("ZCARD", keys.timers)
    await stage.delete(keys)


async def test_a_namesake_that_is_not_delayed_does_not_begin_twice(stage: Stage) -> None:
    keys = await stage.delayed()
    await stage.make_delay_due(keys)
    await stage.command("DEL", keys.instance)
    await stage.invoke()
    assert await stage.store.begin(keys) is Answer.UNKNOWN
    await stage.store.finish(await stage.take(keys), DONE, LONG_MS)
    await stage.check()


async def test_a_timer_that_was_lost_is_there_again(stage: Stage) -> None:
    keys = await stage.delayed()
    before = await stage.check()
    reconcile = stage.store.reconcile
    assert await reconcile(keys.partition, keys.workflow, Status.QUEUED, ["42"]) == []
    await stage.command("DEL", keys.timers)
    assert await reconcile(keys.partition, keys.workflow, Status.QUEUED, ["42"]) == [("42", "timer")]
    assert await stage.check() == before


async def test_the_leader_is_woken_by_the_earliest_delay(stage: Stage) -> None:
    async with stage.listening(stage.of().partition.wake) as heard:
        assert await heard.so_far() == []
        await stage.delayed(timedelta(days=2), "1")
        await stage.delayed(timedelta(days=3), "2")
        await stage.delayed(timedelta(days=1), "3")
        assert len(await heard.so_far()) == 2


async def test_it_can_be_cancelled_and_then_nothing_begins(stage: Stage) -> None:
    keys = await stage.delayed()
    await stage.make_delay_due(keys)
    assert str(await stage.cancel(keys, "no more")) == "cancelled: no more"
    assert "due" not in await stage.fields(keys)
    assert await stage.store.begin(keys) is Answer.NOT_REACHED
    # a resume does not wait for it any more
    await stage.store.resume(keys, new_token())
    await stage.take(keys)
