"""Lesson 20. Starting later.

`client.invoke(…, delay=…)` takes seconds, a `timedelta` or an aware datetime. Until then the instance is queued, and
says so; the delay is kept in Redis, by its clock, and needs no process meanwhile.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from memable import App, Context, NotStarted, Status
from tests.fundamentals.starting import Start
from tests.resting import hasten

PAST = datetime(2001, 1, 1, tzinfo=UTC)


def shop() -> tuple[App, list[str]]:
    app, runs = App(), list[str]()

    @app.workflow("remind")
    async def remind(ctx: Context, whom: str) -> str:
        runs.append(ctx.instance_id)
        return f"reminded {whom}"

    return app, runs


@pytest.mark.spec("invoke-delay", "state-queued")
async def test_a_delayed_instance_is_queued_and_says_until_when(start: Start) -> None:
    app, runs = shop()
    async with start(app) as engine:
        await engine.invoke("remind", "you", id="1", delay=timedelta(days=2))
        known = await engine.get_metadata("remind", "1")
        assert known is not None
        due = known.created_at + timedelta(days=2)
        assert f"{due:queued: delayed until %Y-%m-%d %H:%M}" in str(known.state)
        assert (known.status, known.started_at, known.waiting_on) == (Status.QUEUED, None, [])
        assert [each.instance_id for each in (await engine.list_instances(status="queued")).items] == ["1"]
    assert runs == []


@pytest.mark.spec("invoke-delay")
async def test_it_begins_when_its_time_has_come_and_not_before(start: Start) -> None:
    app, _ = shop()
    async with start(app) as engine:
        instance = await engine.invoke("remind", "you", delay=0.1)
        assert await instance.result() == "reminded you"
        known = await instance.metadata()
        assert known is not None
        assert known.started_at is not None
        assert known.started_at - known.created_at >= timedelta(milliseconds=99)  # both to the millisecond


@pytest.mark.spec("invoke-delay")
async def test_a_delay_may_be_a_time_in_any_zone(start: Start) -> None:
    app, _ = shop()
    tokyo = timezone(timedelta(hours=9))
    async with start(app) as engine:
        later = await engine.invoke("remind", "you", id="1", delay=datetime(2999, 1, 1, 8, 30, tzinfo=tokyo))
        known = await later.metadata()
        assert known is not None
        assert str(known.state) == "queued: delayed until 2998-12-31 23:30:00"


@pytest.mark.parametrize("delay", [0, -5, timedelta(days=-1), PAST])
async def test_what_is_over_already_is_no_delay(start: Start, delay: Any) -> None:
    app, _ = shop()
    async with start(app) as engine:
        assert await (await engine.invoke("remind", "you", delay=delay)).result() == "reminded you"


@pytest.mark.parametrize("delay", [float("nan"), float("inf"), datetime(2030, 1, 1), "tomorrow"])  # noqa: DTZ001
async def test_a_naive_time_nan_and_infinity_are_refused(start: Start, delay: Any) -> None:
    app, _ = shop()
    async with start(app) as engine:
        with pytest.raises(ValueError, match="the delay of remind/1"):
            await engine.invoke("remind", "you", id="1", delay=delay)
        assert await engine.get_metadata("remind", "1") is None


@pytest.mark.spec("resume-joined")
async def test_the_same_id_with_another_delay_is_the_same_instance(start: Start) -> None:
    app, runs = shop()
    async with start(app) as engine:
        assert (await engine.invoke("remind", "you", id="1", delay=1e6)).created
        assert not (await engine.invoke("remind", "you", id="1")).created
        assert not (await engine.resume("remind", "1")).created
        known = await engine.get_metadata("remind", "1")
        assert known is not None
        assert "delayed until" in str(known.state)
    assert runs == []


@pytest.mark.spec("wait-all-stays")
async def test_a_delayed_instance_is_not_waited_for(start: Start) -> None:
    app, runs = shop()
    async with start(app) as engine:
        await engine.invoke("remind", "you", id="later", delay=1e6)
        await engine.invoke("remind", "you", id="now")
        await engine.wait_all()
        with pytest.raises(NotStarted):
            await engine.invoke("remind", "you")
        assert runs == ["now"]


async def test_whoever_watches_sees_it_begin(start: Start) -> None:
    app, _ = shop()
    async with start(app) as engine:
        instance, seen = await engine.invoke("remind", "you", delay=3600), list[str]()
        async for state in instance.states():
            if not seen:
                await hasten(engine, 3600)
            seen.append(str(state))
    assert seen[0].startswith("queued: delayed until ")
    assert seen[-1] == "completed"


async def test_a_delay_needs_no_process(start: Start) -> None:
    app, _ = shop()
    async with start(app) as engine:
        await engine.invoke("remind", "you", id="1", delay=0.05)
    async with start(app) as another:
        assert await another.get("remind", "1").result() == "reminded you"


async def test_it_may_be_cancelled_before_it_begins(start: Start) -> None:
    app, runs = shop()
    async with start(app) as engine:
        instance = await engine.invoke("remind", "you", id="1", delay=1e6)
        assert str(await instance.cancel(reason="never mind")) == "cancelled: never mind"
    assert runs == []
