"""Lesson 25. Retries that wait for long.

A back-off of three seconds or more is kept in Redis: the instance is queued, says which attempt comes when, and holds
no slot; it outlives every death, with the number of attempts and the deadline. A shorter one is waited for where the
step is. Time is made to pass here by `memable.testing.TestEngine`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from memable import (
    App,
    Context,
    RetriesExhausted,
    RetryPolicy,
    SignalRejected,
    Status,
    StepFailed,
    StepState,
    WorkflowFailed,
    current_step,
)
from memable.runtime.steps import DURABLE_BACK_OFF_FROM_S
from memable.testing import TestEngine
from tests.fundamentals.starting import Start
from tests.resting import hasten, shows

HOURLY = RetryPolicy.fixed(4, timedelta(hours=1))
HOUR = timedelta(hours=1)


class Flaky:
    """A step that fails so many times before it succeeds."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.attempts: list[int] = []

    async def __call__(self) -> str:
        self.attempts.append(current_step().attempt)
        if len(self.attempts) <= self.times:
            raise ConnectionError(f"call {len(self.attempts)} failed")
        return "charged"


def shop(step: Flaky, retry: RetryPolicy | None = HOURLY) -> App:
    app = App()

    @app.workflow("order")
    async def order(ctx: Context) -> str:
        return await ctx.step("charge:v1", step, retry=retry, returns=str)

    return app


@pytest.mark.spec("durable-backoff", "state-queued", "step-kinds-and-states")
async def test_an_instance_that_waits_for_an_attempt_is_queued_and_says_so() -> None:
    flaky = Flaky(2)
    async with TestEngine(shop(flaky)) as engine:
        instance = await engine.invoke("order", id="1")
        await engine.settle()
        known = await instance.metadata()
        assert known is not None
        assert (known.status, known.worker) == (Status.QUEUED, None)
        assert str(known.state).startswith("queued: retrying charge:v1 (2 of 5) at ")
        [step] = await engine.steps("order", "1")
        assert (step.state, step.attempts, step.error) == (StepState.RETRYING, 1, "ConnectionError: call 1 failed")
        assert [each.instance_id for each in (await engine.list_instances(status="queued")).items] == ["1"]
        await engine.advance(HOUR)
        known = await instance.metadata()
        assert known is not None
        assert str(known.state).startswith("queued: retrying charge:v1 (3 of 5) at ")
        await engine.advance(HOUR)
        assert await instance.result() == "charged"
        [step] = await engine.steps("order", "1")
        assert (step.state, step.attempts, step.error) == (StepState.COMPLETED, 3, None)
        assert step.started_at
        assert step.completed_at
    assert flaky.attempts == [1, 2, 3]


async def test_all_attempts_count_when_they_are_exhausted() -> None:
    flaky = Flaky(99)
    async with TestEngine(shop(flaky, RetryPolicy.exponential(2, base=60, max_delay=3600))) as engine:
        instance = await engine.invoke("order", id="1")
        await engine.advance(timedelta(days=1))
        with pytest.raises(WorkflowFailed, match=r"failed after 3 attempts: ConnectionError: call 3 failed"):
            await instance.result()
        [step] = await engine.steps("order", "1")
        assert (step.state, step.attempts) == (StepState.FAILED, 3)
        # and a fresh budget after a resume
        await instance.resume()
        await engine.settle()
    assert flaky.attempts == [1, 2, 3, 1]


async def test_a_short_back_off_is_waited_for_where_the_step_is(start: Start) -> None:
    flaky = Flaky(2)
    async with start(shop(flaky, RetryPolicy.exponential(4, base=0.01))) as engine:
        instance = await engine.invoke("order", id="1")
        assert await instance.result() == "charged"
        known = await instance.metadata()
        assert known is not None
        assert known.attempt == 1  # it never left its worker
    assert DURABLE_BACK_OFF_FROM_S == 3


async def test_short_and_long_back_offs_count_together() -> None:
    flaky = Flaky(4)
    steep = RetryPolicy(9, DURABLE_BACK_OFF_FROM_S / 1000, factor=1000, max_delay_s=7200)  # 3 ms, 3 s, 50 min, 2 h …
    async with TestEngine(shop(flaky, steep)) as engine:
        instance = await engine.invoke("order")
        await engine.advance(timedelta(days=1))
        assert await instance.result() == "charged"
        known = await instance.metadata()
        assert known is not None
        assert known.attempt == 4
    assert flaky.attempts == [1, 2, 3, 4, 5]


async def test_two_steps_side_by_side_wait_each_for_their_own() -> None:
    app, flakies = App(), {"a": Flaky(1), "b": Flaky(2)}

    @app.workflow("both")
    async def both(ctx: Context) -> list[str]:
        a = ctx.step("a:v1", flakies["a"], retry=HOURLY, returns=str)
        b = ctx.step("b:v1", flakies["b"], retry=RetryPolicy.fixed(4, timedelta(minutes=25)), returns=str)
        return [*await asyncio.gather(a, b)]

    async with TestEngine(app) as engine:
        instance = await engine.invoke(both, id="1")
        await engine.settle()
        known = await instance.metadata()
        assert known is not None
        assert "retrying b:v1 (2 of 5) at " in str(known.state)
        assert str(known.state).endswith(", and 1 more")
        await engine.advance(timedelta(minutes=25))
        known = await instance.metadata()
        assert known is not None
        assert "retrying b:v1 (3 of 5) at " in str(known.state)
        assert flakies["a"].attempts == [1]
        await engine.advance(timedelta(minutes=25))
        await engine.advance(timedelta(minutes=10))
        assert await instance.result() == ["charged", "charged"]
    assert (flakies["a"].attempts, flakies["b"].attempts) == ([1, 2], [1, 2, 3])


async def test_beside_a_signal_the_instance_is_suspended_and_both_go_on() -> None:
    app, flaky = App(), Flaky(2)  # the first call of each fails

    @app.workflow("both")
    async def both(ctx: Context) -> list[Any]:
        charge = ctx.step("charge:v1", flaky, retry=HOURLY, returns=str)
        return [*await asyncio.gather(charge, ctx.suspend("approval", status="please approve"))]

    async with TestEngine(app) as engine:
        first, second = await engine.invoke(both, id="1"), await engine.invoke(both, id="2")
        for instance in (first, second):
            assert str(await instance.wait()) == "suspended: please approve"
            known = await instance.metadata()
            assert known is not None
            assert (known.state.key, known.waiting_on) == ("approval", ["approval"])
            with pytest.raises(SignalRejected, match="this key waits for a retry"):
                await instance.signal("charge:v1", "charged")
        await first.signal("approval", "yes")
        await engine.settle()
        known = await first.metadata()
        assert known is not None
        assert str(known.state).startswith("queued: retrying charge:v1 (2 of 5)")
        await second.resume()
        assert str(await second.wait()) == "suspended: please approve"
        await engine.advance(HOUR)
        assert await first.result() == ["charged", "yes"]
        await second.signal("approval", "yes")
        assert await second.result() == ["charged", "yes"]
    assert sorted(flaky.attempts) == [1, 1, 2, 2]


async def test_other_steps_go_on_meanwhile() -> None:
    app, flaky, done = App(), Flaky(1), list[str]()

    @app.workflow("both")
    async def both(ctx: Context) -> str:
        async def others() -> None:
            for key in ("a", "b", "c"):
                await ctx.step(key, done.append, key)

        result, _ = await asyncio.gather(ctx.step("charge:v1", flaky, retry=HOURLY, returns=str), others())
        return result

    async with TestEngine(app) as engine:
        instance = await engine.invoke(both)
        await engine.settle()
        assert done == ["a", "b", "c"]
        await engine.advance(HOUR)
        assert await instance.result() == "charged"
    assert done == ["a", "b", "c"]


async def test_an_author_may_give_up_on_a_step_that_waits() -> None:
    """It was called so often all the same: called again, it goes on counting."""
    app, flaky = App(), Flaky(2)

    @app.workflow("hasty")
    async def hasty(ctx: Context) -> str:
        charge = asyncio.create_task(ctx.step("charge:v1", flaky, retry=HOURLY, returns=str))
        await ctx.suspend("hurry")
        await asyncio.sleep(0)  # so that it waits in a replay, too
        charge.cancel()
        await asyncio.wait([charge])
        return await ctx.step("charge:v1", flaky, retry=HOURLY, returns=str)

    async with TestEngine(app) as engine:
        instance = await engine.invoke(hasty, id="1")
        await instance.wait()
        await instance.signal("hurry")
        await engine.settle()
        known = await instance.metadata()
        assert known is not None
        assert "retrying charge:v1 (3 of 5)" in str(known.state)
        await engine.advance(HOUR)
        assert await instance.result() == "charged"
    assert flaky.attempts == [1, 2, 3]


async def test_a_step_that_was_given_up_wakes_nobody() -> None:
    app, flaky = App(), Flaky(9)

    @app.workflow("hasty")
    async def hasty(ctx: Context) -> str:
        charge = asyncio.create_task(ctx.step("charge:v1", flaky, retry=HOURLY, returns=str))
        await ctx.suspend("hurry")
        await asyncio.sleep(0)  # so that it waits in a replay, too
        charge.cancel()
        await asyncio.wait([charge])
        answer: str = await ctx.suspend("answer")
        return answer

    async with TestEngine(app) as engine:
        instance = await engine.invoke(hasty, id="1")
        await instance.wait()
        await instance.signal("hurry")
        await engine.settle()
        assert not await engine.advance_to_next()  # nothing falls due any more
        await instance.signal("answer", "enough")
        assert await instance.result() == "enough"
        [step] = [each for each in await engine.steps(hasty, "1") if each.key == "charge:v1"]
        assert (step.state, step.attempts) == (StepState.RETRYING, 1)


ENDS: list[tuple[Callable[[], str], str]] = [(lambda: "returned", "completed"), (lambda: str(1 // 0), "failed")]


@pytest.mark.parametrize(("end", "status"), ENDS, ids=["returns", "raises"])
async def test_a_function_that_ends_leaves_no_step_behind(end: Callable[[], str], status: str) -> None:
    """As a step in flight is finished and recorded first, one that waits for its next attempt is, too."""
    app, flaky = App(), Flaky(2)
    tasks = set[asyncio.Task[str]]()

    @app.workflow("fire and forget")
    async def fire_and_forget(ctx: Context) -> str:
        tasks.add(asyncio.create_task(ctx.step("notify:v1", flaky, retry=HOURLY, returns=str)))
        await ctx.step("other", end)
        return end()

    async with TestEngine(app) as engine:
        instance = await engine.invoke(fire_and_forget, id="1")
        await engine.settle()
        known = await instance.metadata()
        assert known is not None
        assert "retrying notify:v1 (2 of 5)" in str(known.state)
        await engine.advance(2 * HOUR)
        assert (await instance.wait()).status == status
        steps = {step.key: step.state for step in await engine.steps(fire_and_forget, "1")}
        assert steps["notify:v1"] is StepState.COMPLETED
    assert flaky.attempts == [1, 2, 3]


@pytest.mark.parametrize(
    ("new", "seen", "state"),
    [
        (RetryPolicy.fixed(1, HOUR), [1, 2], "failed after 2 attempts: ConnectionError: call 2 failed"),
        (None, [1, 2], "failed after 2 attempts: ConnectionError: call 2 failed"),
        (RetryPolicy.fixed(9, 0.001), [1, 2, 3, 4], "completed"),
    ],
    ids=["fewer", "none", "more"],
)
async def test_the_policy_that_is_in_force_says_whether_there_is_another_attempt(
    start: Start, new: RetryPolicy | None, seen: list[int], state: str
) -> None:
    """But a deadline that is set stands."""
    flaky = Flaky(3)
    async with start(shop(flaky, RetryPolicy.fixed(2, HOUR))) as engine:
        instance = await engine.invoke("order", id="1")
        await shows(instance, "retrying charge:v1 (2 of 3)")
        await hasten(engine, HOUR)
        await shows(instance, "retrying charge:v1 (3 of 3)")
    async with start(shop(flaky, new)) as engine:
        instance = engine.get("order", "1")
        await hasten(engine, HOUR)
        assert state in str(await instance.wait())
    assert flaky.attempts == seen


async def test_jitter_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = list[float]()

    def draw(_: RetryPolicy, attempt: int) -> float:
        drawn.append(3600 * (attempt + 1))
        return drawn[-1]

    monkeypatch.setattr(RetryPolicy, "jittered_delay_s", draw)
    app, flaky = App(), Flaky(1)

    @app.workflow("both")
    async def both(ctx: Context) -> str:
        result, _ = await asyncio.gather(
            ctx.step("charge:v1", flaky, retry=HOURLY, returns=str), ctx.suspend("approval")
        )
        return result

    async with TestEngine(app) as engine:
        instance = await engine.invoke(both)
        await instance.wait()
        for _ in range(3):
            await instance.resume()
            await instance.wait()
        assert drawn == [3600]
        await instance.signal("approval")
        await engine.advance(HOUR)
        assert await instance.result() == "charged"


@pytest.mark.spec("fails-the-same")
async def test_a_replay_hands_back_the_failure_without_a_wait() -> None:
    app, flaky, raised = App(), Flaky(9), list[StepFailed]()

    @app.workflow("caught")
    async def caught(ctx: Context) -> str:
        try:
            await ctx.step("charge:v1", flaky, retry=RetryPolicy.fixed(1, HOUR))
        except RetriesExhausted as error:
            raised.append(error)
        answer: str = await ctx.suspend("answer")
        return answer

    async with TestEngine(app) as engine:
        instance = await engine.invoke(caught)
        await engine.advance(HOUR)
        await instance.signal("answer", "never mind")
        assert await instance.result() == "never mind"
    assert len(raised) == 2
    assert vars(raised[0]) == vars(raised[1])
    assert flaky.attempts == [1, 2]


@pytest.mark.spec("wait-all-stays")
async def test_waiting_for_all_does_not_wait_for_it() -> None:
    flaky = Flaky(9)
    async with TestEngine(shop(flaky)) as engine:
        instance = await engine.invoke("order")
        await engine.wait_all()
        known = await instance.metadata()
        assert known is not None
        assert known.status is Status.QUEUED


async def test_it_may_be_cancelled_meanwhile() -> None:
    flaky = Flaky(9)
    async with TestEngine(shop(flaky)) as engine:
        instance = await engine.invoke("order", id="1")
        await engine.settle()
        assert str(await instance.cancel(reason="too late")) == "cancelled: too late"
        assert not await engine.advance_to_next()
        [step] = await engine.steps("order", "1")
        assert (step.state, step.error) == (StepState.RETRYING, "ConnectionError: call 1 failed")
    assert flaky.attempts == [1]
