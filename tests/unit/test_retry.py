"""How often a failed step is called again, and after which waits."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memable.errors import PermanentError, RetryableError, StepConflict, StepTimeout
from memable.retry import RetryPolicy, to_seconds

TIMED_OUT = StepTimeout("step 'a' of w/1", key="a", attempts=1, error_type="TimeoutError", error_message="1 s")


@pytest.mark.spec("retry-exponential")
def test_an_exponential_wait_doubles_up_to_its_cap() -> None:
    policy = RetryPolicy.exponential(10, base=1.0)
    assert [policy.delay_for(attempt) for attempt in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert RetryPolicy.exponential(3, base=0.5, max_delay=1.5).delay_for(2) == 1.5


@pytest.mark.spec("retry-fixed")
def test_a_fixed_wait_stays_the_same() -> None:
    policy = RetryPolicy.fixed(2, 60)
    assert [policy.delay_for(attempt) for attempt in (0, 1, 5000)] == [60, 60, 60]
    assert policy.max_retries == 2


@pytest.mark.spec("durations")
def test_durations_are_seconds_or_timedeltas() -> None:
    assert RetryPolicy.fixed(1, timedelta(minutes=1)) == RetryPolicy.fixed(1, 60)
    one = RetryPolicy.exponential(1, timedelta(seconds=1), max_delay=timedelta(seconds=2))
    assert one == RetryPolicy.exponential(1, 1.0, max_delay=2.0)
    assert one.with_max_delay(timedelta(hours=1)).delay_for(11) == 2048


@pytest.mark.parametrize("attempt", [0, 1023, 1024, 10**6])
def test_a_large_attempt_number_reaches_the_cap_and_no_wait_stays_none(attempt: int) -> None:
    assert RetryPolicy.exponential(1, base=0).delay_for(attempt) == 0
    assert RetryPolicy.exponential(1, base=30).delay_for(attempt) == 30


@pytest.mark.spec("retry-with")
def test_with_gives_a_changed_copy() -> None:
    policy = RetryPolicy.exponential(5, 1)
    changed = policy.with_max_delay(3).with_jitter(0.5)
    assert (changed.max_delay_s, changed.jitter) == (3, 0.5)
    assert (policy.max_delay_s, policy.jitter) == (30, 0)
    assert RetryPolicy.fixed(1, 10).with_max_delay(4).delay_for(0) == 4


@given(st.floats(0, 1), st.integers(0, 60))
def test_jitter_lengthens_and_shortens_by_its_share_at_most_and_never_passes_the_cap(
    jitter: float, attempt: int
) -> None:
    policy = RetryPolicy.exponential(3, 1.0, jitter=jitter)
    exact = policy.delay_for(attempt)
    assert exact * (1 - jitter) - 1e-9 <= policy.jittered_delay_s(attempt) <= min(30.0, exact * (1 + jitter) + 1e-9)


@pytest.mark.spec("retry-with")
def test_jitter_goes_both_ways_for_a_fixed_wait_too() -> None:
    policy = RetryPolicy.fixed(3, 10).with_jitter(0.5)
    delays = [policy.jittered_delay_s(0) for _ in range(200)]
    assert min(delays) < 10 < max(delays)
    assert all(5 <= delay <= 15 for delay in delays)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError(), True), (RetryableError(), True), (PermanentError(), False),
        (StepConflict("inside a step", "a"), False),
        (TIMED_OUT, False), (SystemExit(), False), (KeyboardInterrupt(), False), (asyncio.CancelledError(), False),
        (TimeoutError(), True),
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.spec("retryable")
def test_any_exception_is_retried_unless_it_is_permanent_a_timeout_or_no_exception(
    error: BaseException, expected: bool
) -> None:
    assert RetryPolicy.fixed(1, 0).allows(error) is expected
    assert RetryPolicy.fixed(1, 0, retry_on=BaseException).allows(error) is expected


@pytest.mark.spec("retry-on")
def test_retry_on_and_never_on_choose() -> None:
    policy = RetryPolicy.fixed(1, 0, retry_on=(OSError, ValueError), never_on=FileNotFoundError)
    assert policy.allows(ConnectionError())
    assert policy.allows(ValueError())
    assert not policy.allows(FileNotFoundError())
    assert not policy.allows(KeyError())
    assert RetryPolicy.exponential(1, 0, never_on=[KeyError]).never_on == (KeyError,)


def test_timeouts_are_retried_when_the_policy_says_so() -> None:
    assert RetryPolicy.fixed(1, 0, retry_timeouts=True).allows(TIMED_OUT)


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, "1", None, True, [1], 10**400], ids=lambda value: repr(value)[:9]
)
def test_what_is_no_duration_is_a_value_error_that_names_it(value: Any) -> None:
    with pytest.raises(ValueError, match="delay must be a finite number of seconds or a timedelta"):
        RetryPolicy.fixed(1, value)
    with pytest.raises(ValueError, match="the timeout must be"):
        to_seconds(value, "the timeout")


@pytest.mark.parametrize("value", [-1, timedelta(seconds=-1)])
def test_a_negative_wait_is_a_value_error(value: Any) -> None:
    makes: tuple[Callable[[], RetryPolicy], ...] = (
        lambda: RetryPolicy.fixed(1, value),
        lambda: RetryPolicy.exponential(1, value),
        lambda: RetryPolicy.exponential(1, 1, max_delay=value),
        lambda: RetryPolicy.fixed(1, 1).with_max_delay(value),
    )
    for make in makes:
        with pytest.raises(ValueError, match="must not be negative"):
            make()


@pytest.mark.parametrize("value", [-1, 1.5, True, "3", None], ids=repr)
def test_the_number_of_retries_is_a_whole_number_from_zero(value: Any) -> None:
    with pytest.raises(ValueError, match="max_retries must be a whole number"):
        RetryPolicy.fixed(value, 1)


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_jitter_is_a_share(value: float) -> None:
    with pytest.raises(ValueError, match="jitter must be between 0 and 1"):
        RetryPolicy.fixed(1, 1).with_jitter(value)


@pytest.mark.parametrize("name", ["retry_on", "never_on"])
def test_only_exception_classes_can_be_chosen(name: str) -> None:
    for value in ("ValueError", ValueError(), int, (ValueError, 3)):
        with pytest.raises(TypeError, match=f"{name} takes exception classes"):
            RetryPolicy.fixed(1, 1, **{name: value})


def test_an_unknown_option_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="retries_on"):
        RetryPolicy.fixed(1, 1, retries_on=ValueError)
