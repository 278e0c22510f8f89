"""Lesson 8. Waiting for a time.

`await ctx.timer(key, duration)` and `await ctx.sleep_until(key, when)` wait durably: the deadline is kept in Redis,
by its clock, and the instance holds no memory and no worker meanwhile. A timer fires once, and never early. It may
be completed early, by a signal to its key. `await ctx.suspend(point, timeout=…)` waits for both, a signal and a time:
whichever comes first is recorded, and the same in every replay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import memable
from memable import (
    App,
    Context,
    SignalSuperseded,
    Status,
    StepKind,
    StepState,
    SuspendPoint,
    SuspendTimeout,
    WorkflowFailed,
)
from tests.fundamentals.starting import Start
from tests.resting import hasten, replayed, rests_at

SOON_S = 0.02
APPROVAL = SuspendPoint("approval:v1", bool)
PAST = datetime(2001, 1, 1, tzinfo=UTC)


@pytest.mark.spec("timer", "durations")
async def test_a_timer_fires(start: Start) -> None:
    app = App()

    @app.workflow("cooling")
    async def cooling(ctx: Context) -> str:
        await ctx.timer("cooling-off:v1", timedelta(milliseconds=20))
        return "cool"

    async with start(app) as engine:
        assert await (await engine.invoke(cooling, id="1")).result() == "cool"
        [timer] = await engine.steps(cooling, "1")
        assert (timer.kind, timer.state, timer.result) == (StepKind.TIMER, StepState.COMPLETED, None)
        assert timer.started_at is not None
        assert timer.completed_at is not None
        assert timer.completed_at - timer.started_at >= timedelta(milliseconds=20)  # never early, by Redis's clock


NOW: list[Callable[[Context], Any]] = [
    lambda ctx: ctx.timer("now", 0),
    lambda ctx: ctx.timer("now", -5),
    lambda ctx: ctx.timer("now", timedelta(days=-1)),
    lambda ctx: ctx.sleep_until("now", PAST),
]


@pytest.mark.parametrize("wait", NOW)
@pytest.mark.spec("timer-past")
async def test_what_is_over_already_fires_at_once(start: Start, wait: Callable[[Context], Any]) -> None:
    app, runs = App(), list[str]()

    @app.workflow("now")
    async def now(ctx: Context) -> str:
        runs.append("run")
        await wait(ctx)
        return "went on"

    async with start(app) as engine:
        assert await (await engine.invoke(now)).result() == "went on"
    assert runs == ["run"]  # it never came to rest


async def test_a_timer_is_memoised(start: Start) -> None:
    """A deadline that has passed has passed: no replay waits again, whatever the code says by now."""
    app, durations = App(), [3600.0, 1e6, 1e6]

    @app.workflow("flow")
    async def flow(ctx: Context) -> str:
        await ctx.timer("wait:v1", durations.pop(0))
        await ctx.suspend("pause")
        return "done"

    async with start(app) as engine:
        instance = await engine.invoke(flow)
        await rests_at(instance, "wait:v1")
        await hasten(engine, 3600)
        assert await replayed(instance, "pause") == "done"
    assert durations == []


async def test_steps_around_a_timer_happen_once(start: Start) -> None:
    app, called = App(), list[str]()

    @app.workflow("flow")
    async def flow(ctx: Context) -> None:
        await ctx.step("before", called.append, "before")
        await ctx.timer("wait:v1", SOON_S)
        await ctx.step("after", called.append, "after")

    async with start(app) as engine:
        await (await engine.invoke(flow)).result()
    assert called == ["before", "after"]


@pytest.mark.spec("timer", "resume-suspended")
async def test_a_timer_keeps_its_first_deadline_when_the_instance_is_resumed(start: Start) -> None:
    app, durations = App(), [3600.0, 1e6]

    @app.workflow("flow")
    async def flow(ctx: Context) -> None:
        await ctx.timer("wait:v1", durations.pop(0))

    async with start(app) as engine:
        instance = await engine.invoke(flow, id="1")
        await instance.wait()
        [before] = await engine.steps(flow, "1")
        await instance.resume()
        assert str(await instance.wait()) == "suspended: wait:v1"
        assert await engine.steps(flow, "1") == [before]
    assert durations == []


@pytest.mark.spec("timer-signal")
async def test_a_timer_may_be_completed_by_hand_before_its_time(start: Start) -> None:
    app = App()

    @app.workflow("cooling")
    async def cooling(ctx: Context) -> str:
        await ctx.timer("cooling-off:v1", timedelta(days=365))
        return "done"

    async with start(app) as engine:
        instance = await engine.invoke(cooling, id="1")
        assert str(await instance.wait()) == "suspended: cooling-off:v1"
        await instance.signal("cooling-off:v1")
        assert await instance.result() == "done"
        [timer] = await engine.steps(cooling, "1")
        assert (timer.kind, timer.state) == (StepKind.TIMER, StepState.COMPLETED)


async def test_of_a_timer_and_a_signal_that_race_one_wins_and_the_workflow_goes_on_once(start: Start) -> None:
    app, called = App(), list[int]()

    @app.workflow("race")
    async def race(ctx: Context, number: int) -> int:
        await ctx.timer("soon:v1", SOON_S)
        await ctx.step("after:v1", called.append, number)
        return number

    async with start(app) as engine:
        instances = [await engine.invoke(race, number, id=str(number)) for number in range(20)]

        async def hurry(number: int) -> bool:
            """Whether the signal was first."""
            while (metadata := await instances[number].metadata()) is None or not metadata.started_at:
                await asyncio.sleep(0)
            while True:
                metadata = await instances[number].metadata()
                assert metadata is not None
                if metadata.status is Status.SUSPENDED or metadata.completed_at:
                    break
                await asyncio.sleep(0)
            try:
                await instances[number].signal("soon:v1")
            except SignalSuperseded:
                return False
            return True

        await asyncio.gather(*map(hurry, range(20)))
        assert await asyncio.gather(*(each.result() for each in instances)) == list(range(20))
    assert sorted(called) == list(range(20))


@pytest.mark.spec("timer")
async def test_sleep_until_takes_an_aware_time_in_any_zone(start: Start) -> None:
    app = App()

    @app.workflow("until")
    async def until(ctx: Context) -> str:
        await ctx.sleep_until(
            "soon", ctx.started_at.astimezone(timezone(timedelta(hours=9))) + timedelta(seconds=SOON_S)
        )
        return "awake"

    async with start(app) as engine:
        assert await (await engine.invoke(until)).result() == "awake"


WRONG: list[tuple[Callable[[Context], Any], str]] = [
    (lambda ctx: ctx.sleep_until("until", datetime(2030, 1, 1)), "needs an aware datetime"),  # noqa: DTZ001
    (lambda ctx: ctx.timer("wait", float("nan")), "must be a finite number of seconds"),
    (lambda ctx: ctx.timer("wait", float("inf")), "must be a finite number of seconds"),
]


@pytest.mark.parametrize(("wait", "complaint"), WRONG)
@pytest.mark.spec("timer-invalid")
async def test_a_naive_time_nan_and_infinity_are_refused(
    start: Start, wait: Callable[[Context], Any], complaint: str
) -> None:
    app = App()

    @app.workflow("wrong")
    async def wrong(ctx: Context) -> None:
        await wait(ctx)

    async with start(app) as engine:
        with pytest.raises(WorkflowFailed, match=complaint) as failed:
            await (await engine.invoke(wrong)).result()
        assert failed.value.error_type == "ValueError"


async def test_timers_of_many_instances_all_fire(start: Start) -> None:
    app = App()

    @app.workflow("many")
    async def many(ctx: Context, number: int) -> int:
        await ctx.timer("wait:v1", number / 1000)
        return number

    async with start(app) as engine:
        instances = [await engine.invoke(many, number) for number in range(50)]
        assert [await each.result() for each in instances] == list(range(50))


# ── a signal, but not for ever ───────────────────────────────────────────────────────────────────────────────────────


def approving(timeout: Any) -> tuple[App, list[str]]:
    """A workflow that is refused when nobody approves in time; and what its runs saw."""
    app, seen = App(), list[str]()

    @app.workflow("approving")
    async def approving(ctx: Context) -> str:
        try:
            approved = await ctx.suspend(APPROVAL, timeout=timeout)
        except SuspendTimeout as error:
            seen.append(f"{error.key} of {error.workflow}/{error.instance_id}")
            approved = False
        await ctx.suspend("pause")
        return "approved" if approved else "refused"

    return app, seen


async def test_a_signal_in_time_is_handed_over_and_nothing_is_left_of_the_deadline(start: Start) -> None:
    app, seen = approving(timedelta(days=365))
    async with start(app) as engine:
        instance = await engine.invoke("approving", id="1")
        assert str(await instance.wait()) == "suspended: approval:v1"
        await instance.signal(APPROVAL, True)
        assert await replayed(instance, "pause") == "approved"
    assert seen == []


@pytest.mark.spec("suspend-timeout")
async def test_a_timeout_is_raised_and_raised_again_on_every_replay(start: Start) -> None:
    app, seen = approving(SOON_S)
    async with start(app) as engine:
        instance = await engine.invoke("approving", id="1")
        assert await replayed(instance, "pause") == "refused"
        with pytest.raises(SignalSuperseded):
            await instance.signal(APPROVAL, True)
        wait, _ = await engine.steps("approving", "1")
        assert (wait.kind, wait.state) == (StepKind.SIGNAL, StepState.FAILED)
        assert (wait.error or "").startswith("SuspendTimeout: ")
        assert wait.started_at is not None
        assert wait.completed_at is not None
        assert wait.completed_at - wait.started_at >= timedelta(seconds=SOON_S)  # never early, by Redis's clock
    assert seen == ["approval:v1 of approving/1"] * 2


async def test_a_timeout_that_is_over_already_is_raised_at_once(start: Start) -> None:
    app, seen = approving(-1)
    async with start(app) as engine:
        assert await replayed(await engine.invoke("approving"), "pause") == "refused"
    assert len(seen) == 2


@pytest.mark.spec("suspend-timeout")
async def test_a_timeout_passes_also_while_there_is_no_worker(start: Start, redis_url: str, namespace: str) -> None:
    app, seen = approving(timedelta(hours=1))
    async with start(app) as engine:
        await rests_at(await engine.invoke("approving", id="1"), APPROVAL.key)
    async with memable.connect(redis_url, namespace=namespace) as client:
        await hasten(client, timedelta(hours=1))
    assert seen == []
    async with start(app) as engine:
        assert await replayed(engine.get("approving", "1"), "pause") == "refused"
    assert len(seen) == 2


@pytest.mark.spec("suspend-timeout", "resume-suspended")
async def test_a_wait_keeps_its_first_deadline_when_the_instance_is_resumed(start: Start) -> None:
    app, durations = App(), [timedelta(days=1), timedelta(0)]

    @app.workflow("flow")
    async def flow(ctx: Context) -> None:
        await ctx.suspend(APPROVAL, timeout=durations.pop(0))

    async with start(app) as engine:
        instance = await engine.invoke(flow, id="1")
        await instance.wait()
        [before] = await engine.steps(flow, "1")
        await instance.resume()
        assert str(await instance.wait()) == "suspended: approval:v1"
        assert await engine.steps(flow, "1") == [before]
    assert durations == []


async def test_an_instance_that_a_timeout_has_failed_waits_anew_when_it_is_resumed(start: Start) -> None:
    app, durations = App(), [SOON_S]

    @app.workflow("flow")
    async def flow(ctx: Context) -> bool:
        return await ctx.suspend(APPROVAL, timeout=durations.pop() if durations else timedelta(days=1))

    async with start(app) as engine:
        instance = await engine.invoke(flow, id="1")
        with pytest.raises(WorkflowFailed, match="SuspendTimeout: wait 'approval:v1' of flow/1 timed out"):
            await instance.result()
        await instance.resume()
        assert str(await instance.wait()) == "suspended: approval:v1"
        await instance.signal(APPROVAL, True)
        assert await instance.result() is True


async def test_of_a_signal_and_a_timeout_that_race_one_wins_and_the_sender_is_told_the_truth(start: Start) -> None:
    app, _ = approving(SOON_S)
    async with start(app) as engine:
        instances = [await engine.invoke("approving") for _ in range(20)]
        await asyncio.gather(*(each.wait() for each in instances))

        async def hurry(number: int) -> str:
            await asyncio.sleep(number * SOON_S / 10)
            try:
                await instances[number].signal(APPROVAL, True)
            except SignalSuperseded:
                return "refused"
            return "approved"

        told = await asyncio.gather(*map(hurry, range(20)))
        assert await asyncio.gather(*(replayed(each, "pause") for each in instances)) == told


@pytest.mark.parametrize("timeout", [float("nan"), float("inf")])
async def test_a_timeout_must_be_a_time(start: Start, timeout: float) -> None:
    app, _ = approving(timeout)
    async with start(app) as engine:
        with pytest.raises(WorkflowFailed, match="ValueError: the timeout of suspend point 'approval:v1'"):
            await (await engine.invoke("approving")).result()
