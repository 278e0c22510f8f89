"""Lesson 4. Retries.

A `RetryPolicy` says how often a failed step is called again, and after which waits. It is given to a step, to a
workflow, or to the app; the nearest one counts, and `retry=None` means none. `max_retries=2` is at most three calls.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import pytest

from memable import (
    App,
    Context,
    PermanentError,
    RetriesExhausted,
    RetryableError,
    RetryPolicy,
    StepFailed,
    WorkflowFailed,
    current_step,
)
from tests.fundamentals.starting import Start

AT_ONCE = RetryPolicy.fixed(2, delay=0)


def failing(times: int, error: type[Exception] = ConnectionError) -> tuple[Callable[[], Any], list[int]]:
    """A function that fails so many times before it succeeds, and the attempts that it has seen."""
    attempts = list[int]()

    async def call() -> str:
        attempts.append(current_step().attempt)
        if len(attempts) <= times:
            raise error(f"call {len(attempts)} failed")
        return "done"

    return call, attempts


async def outcome(start: Start, app: App, fn: Callable[[], Any], **options: Any) -> str | StepFailed:
    """What one step of `fn` comes to."""
    seen = list[str | StepFailed]()

    @app.workflow("flow")
    async def flow(ctx: Context) -> None:
        try:
            seen.append(await ctx.step("call:v1", fn, **options))
        except StepFailed as failure:
            seen.append(failure)

    async with start(app) as engine:
        await (await engine.invoke(flow, id="1")).result()
    return seen[0]


@pytest.mark.spec("retryable", "errors-words")
async def test_without_a_policy_a_step_is_called_once(start: Start) -> None:
    call, attempts = failing(1)
    failure = await outcome(start, App(), call)
    assert type(failure) is StepFailed
    assert "attempts" not in str(failure)
    assert attempts == [1]


@pytest.mark.spec("retryable", "current-step")
async def test_a_second_attempt_may_succeed(start: Start) -> None:
    call, attempts = failing(1)
    assert await outcome(start, App(), call, retry=AT_ONCE) == "done"
    assert attempts == [1, 2]


@pytest.mark.spec("step-failed", "step-failed-classes", "retry-fixed", "errors-words")
async def test_retries_are_exhausted_after_the_last_call_that_the_policy_allows(start: Start) -> None:
    call, attempts = failing(9)
    failure = await outcome(start, App(), call, retry=AT_ONCE)
    assert isinstance(failure, RetriesExhausted)
    assert "failed after 3 attempts: ConnectionError: call 3 failed" in str(failure)
    assert (failure.key, failure.attempts, failure.error_message) == ("call:v1", 3, "call 3 failed")
    assert attempts == [1, 2, 3]


@pytest.mark.spec("permanent")
async def test_a_permanent_error_is_never_retried(start: Start) -> None:
    call, attempts = failing(9, PermanentError)
    failure = await outcome(start, App(), call, retry=AT_ONCE)
    assert type(failure) is StepFailed
    assert failure.error_type == "PermanentError"
    assert attempts == [1]


@pytest.mark.spec("permanent", "retryable")
async def test_a_permanent_error_ends_the_retries_of_others(start: Start) -> None:
    attempts = list[int]()

    async def call() -> None:
        attempts.append(1)
        raise PermanentError("closed") if len(attempts) == 2 else RetryableError("busy")

    failure = await outcome(start, App(), call, retry=RetryPolicy.fixed(5, delay=0))
    assert type(failure) is StepFailed
    assert (failure.attempts, failure.error_message) == (2, "closed")


@pytest.mark.parametrize(("error", "calls"), [(ConnectionError, 3), (FileNotFoundError, 1), (ValueError, 1)])
@pytest.mark.spec("retry-on")
async def test_a_policy_may_name_what_it_retries_and_what_not(start: Start, error: type[Exception], calls: int) -> None:
    only = RetryPolicy.fixed(2, delay=0, retry_on=OSError, never_on=FileNotFoundError)
    call, attempts = failing(9, error)
    assert isinstance(await outcome(start, App(), call, retry=only), StepFailed)
    assert len(attempts) == calls


@pytest.mark.spec("step-retry")
async def test_the_app_has_a_default_policy(start: Start) -> None:
    call, attempts = failing(1)
    assert await outcome(start, App(default_retry=AT_ONCE), call) == "done"
    assert attempts == [1, 2]


@pytest.mark.spec("step-retry")
async def test_a_workflow_has_a_policy_of_its_own(start: Start) -> None:
    app = App(default_retry=AT_ONCE)
    many, none = failing(4), failing(4)

    @app.workflow("many", retry=RetryPolicy.fixed(4, delay=0))
    async def with_many(ctx: Context) -> str:
        return await ctx.step("call:v1", many[0], returns=str)

    @app.workflow("none", retry=None)
    async def with_none(ctx: Context) -> str:
        return await ctx.step("call:v1", none[0], returns=str)

    async with start(app) as engine:
        assert await (await engine.invoke(with_many)).result() == "done"
        await (await engine.invoke(with_none)).wait()
    assert (len(many[1]), len(none[1])) == (5, 1)


@pytest.mark.spec("step-retry")
async def test_a_step_overrides_the_policy_of_the_app(start: Start) -> None:
    call, attempts = failing(4)
    retry = RetryPolicy.fixed(4, delay=0)
    assert await outcome(start, App(default_retry=AT_ONCE), call, retry=retry) == "done"
    assert len(attempts) == 5


@pytest.mark.spec("step-retry")
async def test_a_step_may_refuse_the_default_policy(start: Start) -> None:
    call, attempts = failing(1)
    failure = await outcome(start, App(default_retry=AT_ONCE), call, retry=None)
    assert type(failure) is StepFailed
    assert attempts == [1]


async def test_a_number_is_no_policy_and_the_text_says_what_is(start: Start) -> None:
    app, three = App(), cast("RetryPolicy", 3)
    call, attempts = failing(1)

    @app.workflow("flow")
    async def flow(ctx: Context) -> str:
        return await ctx.step("call", call, retry=three)

    hint = r"must be a policy, such as RetryPolicy\.fixed\(3, delay=1\), or None, not 3"
    with pytest.raises(TypeError, match=f"default_retry {hint}"):
        App(default_retry=three)
    with pytest.raises(TypeError, match=f"the retry of workflow 'other' {hint}"):
        app.workflow("other", retry=three)(flow.fn)
    async with start(app) as engine:
        with pytest.raises(WorkflowFailed, match=f"the retry of step 'call' {hint}"):
            await (await engine.invoke(flow)).result()
    assert attempts == []


@pytest.mark.spec("retry-exponential")
async def test_exponential_waits_double_up_to_the_longest(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = RetryPolicy.exponential(6, base=1, max_delay=timedelta(seconds=10))
    assert [policy.delay_for(attempt) for attempt in range(6)] == [1, 2, 4, 8, 10, 10]

    asked = list[float]()

    def at_once(policy: RetryPolicy, attempt: int) -> float:
        asked.append(policy.delay_for(attempt))
        return 0

    monkeypatch.setattr(RetryPolicy, "jittered_delay_s", at_once)
    call, _ = failing(6)
    assert await outcome(start, App(), call, retry=policy) == "done"
    assert asked == [1, 2, 4, 8, 10, 10]


async def test_the_number_of_attempts_is_recorded(start: Start) -> None:
    app = App()
    call, _ = failing(2)

    @app.workflow("flow")
    async def flow(ctx: Context) -> None:
        await ctx.step("call:v1", call, retry=AT_ONCE)

    async with start(app) as engine:
        await (await engine.invoke(flow, id="1")).result()
        [step] = await engine.steps(flow, "1")
        assert step.attempts == 3


async def test_a_resumed_instance_has_a_fresh_budget(start: Start) -> None:
    app = App()
    call, attempts = failing(4)

    @app.workflow("flow")
    async def flow(ctx: Context) -> str:
        return await ctx.step("call:v1", call, retry=AT_ONCE, returns=str)

    async with start(app) as engine:
        instance = await engine.invoke(flow)
        assert "after 3 attempts" in str(await instance.wait())
        await instance.resume()
        assert await instance.result() == "done"
    assert attempts == [1, 2, 3, 1, 2]
